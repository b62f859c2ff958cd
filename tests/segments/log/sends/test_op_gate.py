from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from segments.log.sends.op_gate import OpGate, Turn
from txnwire.ids import TxnId

T1, T2 = TxnId(0, 1), TxnId(0, 2)


def test_only_the_first_op_carries_the_index_and_the_others_wait_for_it() -> None:
    gate: OpGate[str] = OpGate()
    assert gate.enter(T1, "a") is Turn.FIRST
    assert gate.enter(T1, "b") is Turn.WAIT
    assert gate.enter(T1, "c") is Turn.WAIT
    assert gate.enter(T2, "d") is Turn.FIRST
    assert list(gate.first_confirmed(T1)) == ["b", "c"]
    assert gate.enter(T1, "e") is Turn.FURTHER


def test_a_refused_first_op_hands_the_index_to_the_next() -> None:
    gate: OpGate[str] = OpGate()
    gate.enter(T1, "a")
    gate.enter(T1, "b")
    gate.enter(T1, "c")
    assert gate.first_refused(T1) == "b"
    assert gate.enter(T1, "d") is Turn.WAIT
    assert list(gate.first_confirmed(T1)) == ["c", "d"]


def test_nothing_is_left_of_a_transaction_whose_only_op_was_refused() -> None:
    gate: OpGate[str] = OpGate()
    gate.enter(T1, "a")
    assert gate.first_refused(T1) is None
    assert len(gate) == 0
    assert gate.enter(T1, "b") is Turn.FIRST


def test_a_transaction_found_in_the_index_on_recovery_sends_at_once_and_is_forgotten_with_its_decision() -> None:
    gate: OpGate[str] = OpGate()
    gate.loaded(T1)
    assert gate.enter(T1, "a") is Turn.FURTHER
    gate.forget(T1)
    assert len(gate) == 0


@given(st.lists(st.sampled_from(["enter", "confirm", "refuse"]), max_size=40))
def test_there_is_never_more_than_the_first_op_out_before_its_index_key_is_confirmed(steps: list[str]) -> None:
    gate: OpGate[int] = OpGate()
    out: list[int] = []
    indexed = False
    for number, step in enumerate(steps):
        if step == "enter" and gate.enter(T1, number) is not Turn.WAIT:
            out.append(number)
        elif step == "confirm" and out and not indexed:
            indexed = True
            out += gate.first_confirmed(T1)
        elif step == "refuse" and out and not indexed:
            out = [one for one in [gate.first_refused(T1)] if one is not None]
        assert indexed or len(out) <= 1
