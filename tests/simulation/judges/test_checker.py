"""X5, the checker's self-test: a planted history for each anomaly is caught, clean ones pass."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.judges.checker import RULES, check
from simulation.judges.history import (
    History,
    Operation,
    Outcome,
    Poll,
    Send,
    read_history,
    write_history,
)
from tests.simulation.judges.histories import CLEAN, PLANTED, A
from tests.simulation.judges.history_steps import kinds, op, poll
from txnwire.errors import DataCorrupt


@pytest.mark.parametrize("name", CLEAN)
def test_x5_a_clean_history_passes(name: str) -> None:
    assert kinds(*CLEAN[name]) == []


@pytest.mark.parametrize("name", PLANTED)
def test_x5_a_planted_anomaly_is_caught(name: str) -> None:
    expected, operations = PLANTED[name]
    assert kinds(*operations) == expected


def test_x5_every_rule_has_a_planted_history() -> None:
    for kind in (part for rule in RULES for part in rule.split(" / ")):
        assert any(kind in expected for expected, _ in PLANTED.values()), kind


def test_nothing_is_unseen_before_the_drain() -> None:
    assert kinds(op(sends=[A]), op("r", polls=[poll()]), drained=False) == []


def random_clean_history(seed: int) -> History:
    """A model log: transactions append atomically in random interleavings, readers follow the committed prefix."""
    chance = random.Random(seed)
    logs: dict[str, list[tuple[str, bool | None]]] = {"k0": [], "k1": []}
    operations: list[Operation] = []
    read_up_to: dict[tuple[str, str], int] = {}
    for number in range(chance.randrange(1, 30)):
        at = float(number)
        if chance.random() < 0.6:
            committed = chance.random() < 0.8
            sends = []
            for part in range(chance.randrange(1, 4)):
                key = chance.choice(sorted(logs))
                logs[key].append((f"{number}.{part}", committed))
                told = (1, len(logs[key]) - 1) if chance.random() < 0.7 else None
                sends.append(Send(key=key, value=f"{number}.{part}", place=told))
            outcome: Outcome = "unknown" if chance.random() < 0.2 else "ok" if committed else "failed"
            operations.append(op(f"w{number % 3}", outcome, sends, at=at))
        else:
            reader, key = chance.choice("rs"), chance.choice(sorted(logs))
            operations.append(op(reader, polls=[_read(logs, read_up_to, reader, key, chance.randrange(6))], at=at))
    operations += [op("d", polls=[_read(logs, read_up_to, "d", key, 1000)], at=99.0) for key in logs]
    return History(operations=operations, drained=True)


def _read(
    logs: dict[str, list[tuple[str, bool | None]]], up_to: dict[tuple[str, str], int], reader: str, key: str, limit: int
) -> Poll:
    begin = up_to.get((reader, key), 0)
    visible = [(entry, value) for entry, (value, ok) in enumerate(logs[key]) if entry >= begin and ok][:limit]
    up_to[reader, key] = visible[-1][0] + 1 if visible else begin
    return poll(*visible, key=key)


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_x5_random_clean_histories_pass(seed: int) -> None:
    assert check(random_clean_history(seed)) == []


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.data())
def test_x5_a_value_taken_out_of_every_poll_is_missed(seed: int, data: st.DataObject) -> None:
    history = random_clean_history(seed)
    values = [send.value for operation in history.operations if operation.outcome == "ok" for send in operation.sends]
    if not values:
        return
    victim = data.draw(st.sampled_from(values))
    for operation in history.operations:
        for found in operation.polls:
            for reads in found.reads.values():
                reads[:] = [read for read in reads if read.value != victim]
    assert "unseen" in {anomaly.kind for anomaly in check(history)}


def test_histories_survive_the_disk(tmp_path: Path) -> None:
    history = random_clean_history(7)
    path = tmp_path / "history.jsonl"
    write_history(path, history)
    assert read_history(path) == history
    path.write_bytes(path.read_bytes() + b'{"process": 3}\n')
    with pytest.raises(DataCorrupt, match=rf"history\.jsonl: line {len(history.operations) + 2} "):
        read_history(path)
