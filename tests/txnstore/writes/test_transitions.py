"""Header transitions as tables: who may follow whom, and what each verdict makes of what the store answered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from txnstore import keys, records
from txnstore.records import ABORTED, COMMITTED, OPEN, Header, RegistrationRecord, TxnSeq
from txnstore.store import Commit, CommitVerdict, KeyValue
from txnstore.writes.transitions import (
    FIRST_SEQ,
    LEGAL,
    Indexed,
    RecordedDecision,
    check_end,
    decide,
    decision_of,
    plan_begin,
    plan_drop_deadline,
    plan_end,
    plan_late_index,
    plan_seq,
    plan_take_tcid,
    read_begin_verdict,
    read_end_verdict,
    read_late_index_verdict,
    read_seq,
    read_seq_verdict,
    read_take_verdict,
)
from txnwire.errors import DataCorrupt, ExpiredTransaction, InternalError, InvalidTxnState, NotOwner, TxnError
from txnwire.ids import TxnId

TXN = TxnId(3, 17)
OPENED = Header(state=OPEN, timeout_ms=61_000, created_ms=1_000, attempt="aa", owner="ann")
EPOCH = 40


def record(key: bytes, value: bytes, *, version: int = 1, create: int = 50, mod: int = 50, lease: int = 0) -> KeyValue:
    return KeyValue(key, value, version, create, mod, lease)


def header_record(header: Header, *, version: int, mod: int = 77) -> KeyValue:
    return record(keys.txn(TXN), records.encode(header), version=version, mod=mod)


def refused(*reads: Sequence[KeyValue], repeated: bool = False) -> CommitVerdict:
    return CommitVerdict(False, 90, tuple(tuple(one) for one in reads), repeated)


OK = CommitVerdict(True, 99)
COMMITTED_HEADER = decide(OPENED, COMMITTED, finalized_ms=2_000, reason=None, writers=None)
ABORTED_HEADER = decide(OPENED, ABORTED, finalized_ms=2_000, reason="timeout", writers=None)
FENCED_HEADER = decide(OPENED, ABORTED, finalized_ms=2_000, reason="fenced", writers=None)


# ---- the table of transitions ----


@pytest.mark.parametrize("before", [OPEN, COMMITTED, ABORTED])
@pytest.mark.parametrize("after", [OPEN, COMMITTED, ABORTED])
def test_only_open_changes_and_only_to_a_decision(before: str, after: str) -> None:
    header = Header(state=before, timeout_ms=1, created_ms=0)
    if before == OPEN and after != OPEN:
        assert decide(header, after, finalized_ms=5, reason="client", writers=None).state == after
        assert after in LEGAL[before]
    else:
        with pytest.raises(InvalidTxnState, match=before):
            decide(header, after, finalized_ms=5, reason=None, writers=None)


def test_a_decided_header_keeps_what_the_open_one_said() -> None:
    opened = Header(
        state=OPEN, timeout_ms=9, created_ms=1, owner="ann", name="n", txn_key="k", key_epoch=4, attempt="ff"
    )
    decided = decide(opened, COMMITTED, finalized_ms=5, reason="client", writers=["00000000000000aa"])
    for field in ("timeout_ms", "created_ms", "owner", "name", "txn_key", "key_epoch", "attempt"):
        assert getattr(decided, field) == getattr(opened, field)
    assert (decided.finalized_ms, decided.reason, decided.writers) == (5, None, ["00000000000000aa"])
    assert decide(opened, ABORTED, finalized_ms=5, reason="admin", writers=["aa"]).writers is None


# ---- begin ----


def test_begin_compares_absence_and_the_tcid_epoch() -> None:
    commit = plan_begin(TXN, EPOCH, OPENED)
    assert [(one.key, one.value) for one in commit.compares] == [(keys.txn(TXN), 0), (keys.tc(3), EPOCH)]
    assert [put.key for put in commit.puts] == [keys.txn(TXN)]
    assert commit.partition_key == str(TXN).encode()
    assert not commit.reserve, "a begin must be refused above the soft limit"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (OK, None),
        (refused([header_record(OPENED, version=1)], repeated=True), OPENED),
        (refused([header_record(ABORTED_HEADER, version=2)], repeated=True), ABORTED_HEADER),
        (refused([]), NotOwner),
        (refused([], repeated=True), NotOwner),
        (refused([header_record(OPENED, version=1)]), InternalError),
        (refused([header_record(Header(state=OPEN, timeout_ms=1, created_ms=1, attempt="bb"), version=1)],
                 repeated=True), InternalError),
    ],
)  # fmt: skip
def test_begin_verdicts(result: CommitVerdict, expected: Header | type[TxnError] | None) -> None:
    if isinstance(expected, type):
        with pytest.raises(expected):
            read_begin_verdict(result, TXN, "aa")
    else:
        assert read_begin_verdict(result, TXN, "aa") == expected


# ---- end ----


def test_end_compares_version_one_and_deletes_the_deadline_key_only_where_there_may_be_one() -> None:
    without, with_key = (plan_end(TXN, COMMITTED_HEADER, deadline_key=flag) for flag in (False, True))
    assert [(one.key, one.value) for one in without.compares] == [(keys.txn(TXN), 1)]
    assert without.deletes == ()
    assert [one.key for one in with_key.deletes] == [keys.deadline(61_000, TXN)]
    assert without.reserve, "decisions must drain above the soft limit"


def test_a_sweep_s_end_compares_the_tcid_epoch_too() -> None:
    """▲ A coordinator that slept and lost the TCID must not abort what its clients re-announced elsewhere."""
    commit = plan_end(TXN, ABORTED_HEADER, deadline_key=False, tc_epoch=EPOCH)
    assert [(one.key, one.value) for one in commit.compares] == [(keys.txn(TXN), 1), (keys.tc(3), EPOCH)]
    with pytest.raises(NotOwner):
        read_end_verdict(commit, refused([header_record(OPENED, version=1)]), ABORTED_HEADER)


COMMIT_END = plan_end(TXN, COMMITTED_HEADER, deadline_key=False)
MINE = RecordedDecision(COMMITTED, 77)


@pytest.mark.parametrize(
    ("result", "decision", "mine"),
    [
        (OK, RecordedDecision(COMMITTED, 99), True),
        (refused([header_record(COMMITTED_HEADER, version=2)], repeated=True), MINE, True),
        (refused([header_record(COMMITTED_HEADER, version=2)]), MINE, False),
        (refused([header_record(ABORTED_HEADER, version=2)]), RecordedDecision(ABORTED, 77, "timeout"), False),
        (
            refused([header_record(ABORTED_HEADER, version=2)], repeated=True),
            RecordedDecision(ABORTED, 77, "timeout"),
            False,
        ),
        (refused([]), None, False),
    ],
)
def test_d1_end_verdicts(result: CommitVerdict, decision: RecordedDecision | None, mine: bool) -> None:
    verdict = read_end_verdict(COMMIT_END, result, COMMITTED_HEADER)
    assert (verdict.decision, verdict.mine) == (decision, mine)


def test_an_open_header_that_refuses_a_client_s_end_is_a_defect() -> None:
    with pytest.raises(InternalError):
        read_end_verdict(COMMIT_END, refused([header_record(OPENED, version=1)]), COMMITTED_HEADER)


A, B = "000000000000000a", "000000000000000b"


@pytest.mark.parametrize(
    ("decision", "state", "writers", "expected"),
    [
        (RecordedDecision(COMMITTED, 7), COMMITTED, None, None),
        (RecordedDecision(ABORTED, 7, "client"), ABORTED, None, None),
        (RecordedDecision(ABORTED, 7, "client"), ABORTED, [A], None),
        (RecordedDecision(COMMITTED, 7), ABORTED, None, InvalidTxnState),
        (RecordedDecision(ABORTED, 7, "timeout"), COMMITTED, None, InvalidTxnState),
        (RecordedDecision(ABORTED, 7, "fenced"), COMMITTED, None, ExpiredTransaction),
        (RecordedDecision(ABORTED, 7, "fenced"), ABORTED, None, ExpiredTransaction),
        (RecordedDecision(COMMITTED, 7, None, (A, B)), COMMITTED, [B, A], None),
        (RecordedDecision(COMMITTED, 7, None, (A, B)), COMMITTED, [A], InvalidTxnState),
        (RecordedDecision(COMMITTED, 7, None, (A,)), COMMITTED, None, InvalidTxnState),
        (RecordedDecision(COMMITTED, 7), COMMITTED, [A], InvalidTxnState),
        (RecordedDecision(COMMITTED, 7, None, ()), COMMITTED, [], None),
        (RecordedDecision(COMMITTED, 7), COMMITTED, [], InvalidTxnState),
    ],
)
def test_d1_d2_the_same_decision_again_is_ok_and_every_other_is_refused_with_its_reason(
    decision: RecordedDecision, state: str, writers: list[str] | None, expected: type[TxnError] | None
) -> None:
    if expected is None:
        assert check_end(TXN, decision, state, writers) is decision
        return
    with pytest.raises(InvalidTxnState) as caught:
        check_end(TXN, decision, state, writers)
    assert type(caught.value) is expected
    if decision.reason:
        assert decision.reason in str(caught.value)


def test_lists_of_writers_that_differ_are_told_apart_in_words() -> None:
    many = tuple(f"{writer:016x}" for writer in range(9))
    for decided, asked, told in (
        (None, [], "all, asked for none"),
        ((), None, "none, asked for all"),
        ((A,), [A, B], f"{A}, asked for {A}, {B}"),
        (many, [A], f"9 of them ({', '.join(many[:4])}, …), asked for {A}"),
    ):
        with pytest.raises(InvalidTxnState) as caught:
            check_end(TXN, RecordedDecision(COMMITTED, 7, None, decided), COMMITTED, asked)
        assert str(caught.value).endswith(f": {told}")


def test_the_decision_in_a_header_record() -> None:
    assert decision_of(header_record(OPENED, version=1)) is None
    assert decision_of(header_record(FENCED_HEADER, version=2, mod=8)) == RecordedDecision(ABORTED, 8, "fenced")
    with pytest.raises(DataCorrupt, match="/txn/0003"):
        decision_of(record(keys.txn(TXN), b"{}", version=2))


# ---- ids ----


def seq_record(seq: TxnSeq, mod: int) -> KeyValue:
    return record(keys.txn_seq(3), records.encode(seq), mod=mod)


def test_a_block_is_taken_and_the_mark_never_goes_back() -> None:
    seq = read_seq(seq_record(TxnSeq(next=2049, indexed_below=900), 60))
    commit = plan_seq(3, EPOCH, seq, take=1024, indexed_below=800)
    assert [(one.key, one.value) for one in commit.compares] == [(keys.tc(3), EPOCH), (keys.txn_seq(3), 60)]
    verdict = read_seq_verdict(commit, OK, 3)
    assert verdict.applied
    assert verdict.seq.record == TxnSeq(next=3073, indexed_below=900)
    assert verdict.seq.mod_revision == 99


def test_a_block_whose_reply_was_lost_is_never_taken() -> None:
    """▲ Refused after a repeat, the record found is the very one we wrote: it still yields no ids."""
    commit = plan_seq(3, EPOCH, FIRST_SEQ, take=1024)
    landed = seq_record(TxnSeq(next=1025), 88)
    tc = record(keys.tc(3), b"{}", create=EPOCH)
    verdict = read_seq_verdict(commit, refused([tc], [landed], repeated=True), 3)
    assert not verdict.applied
    assert verdict.seq == read_seq(landed)


@pytest.mark.parametrize("owner", [[], [record(keys.tc(3), b"{}", create=EPOCH + 1)]])
def test_the_mark_of_a_lost_tcid_is_not_moved(owner: list[KeyValue]) -> None:
    """▲ The mark's put compares the TCID epoch."""
    commit = plan_seq(3, EPOCH, FIRST_SEQ, indexed_below=5)
    with pytest.raises(NotOwner):
        read_seq_verdict(commit, refused(owner, []), 3)


# ---- late index, coordinator ids ----


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (OK, Indexed.DONE),
        (refused([header_record(OPENED, version=1)]), Indexed.LOST),
        (refused([header_record(ABORTED_HEADER, version=2)]), Indexed.DECIDED),
        (refused([]), Indexed.DECIDED),
    ],
)
def test_late_index_verdicts(result: CommitVerdict, expected: Indexed) -> None:
    assert read_late_index_verdict(result) is expected


def test_late_index_is_for_open_transactions_of_owned_tcids_only() -> None:
    commit = plan_late_index(TXN, EPOCH, 61_000)
    assert [(one.key, one.value) for one in commit.compares] == [(keys.txn(TXN), 1), (keys.tc(3), EPOCH)]
    assert [put.key for put in commit.puts] == [keys.deadline(61_000, TXN)]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (OK, 99),
        (refused([record(keys.tc(3), b"{}", create=41, lease=5)]), 41),
        (refused([record(keys.tc(3), b"{}", create=41, lease=6)]), None),
        (refused([]), None),
    ],
)
def test_a_tcid_is_mine_only_if_its_lease_is_mine(result: CommitVerdict, expected: int | None) -> None:
    assert read_take_verdict(result, lease_id=5) == expected


def test_every_header_plan_has_room_for_siblings() -> None:
    plans: list[Commit] = [
        plan_begin(TXN, EPOCH, OPENED),
        plan_end(TXN, COMMITTED_HEADER, deadline_key=True, tc_epoch=EPOCH),
        plan_seq(3, EPOCH, FIRST_SEQ, take=9),
        plan_late_index(TXN, EPOCH, 61_000),
        plan_drop_deadline(61_000, TXN),
        plan_take_tcid(3, RegistrationRecord(id="c", address="c:1"), 5),
    ]
    for plan in plans:
        assert max(len(plan.compares), len(plan.puts) + len(plan.deletes), len(plan.else_reads)) <= 3
