"""E8: what becomes of what the ledgers know and a restored etcd does not: by tables."""

from __future__ import annotations

import pytest

from segments.layout.topology import Topology
from txnctl.checking.picture import Picture
from txnctl.checking.rewound import (
    EPOCH_STEP,
    IDS_STEP,
    OnDisk,
    Reckoning,
    RewoundJudge,
    RewoundVerdict,
    adopt,
    is_active,
    raised_ids,
    raised_topic,
)
from txnstore import keys
from txnstore.records import (
    AbortedRecord,
    Header,
    LedgerInfo,
    LedgerRecord,
    SegmentEntry,
    TopicRecord,
    TxnName,
    TxnSeq,
)
from txnstore.writes.collection_transitions import Collectable, read_outcomes
from txnwire.ids import Position, TxnId
from txnwire.names import TopicName

SEGMENT = "public/default/t/0000-ffff-0"
W1, W2 = 1, 2


def header(state: str, writers: list[str] | None = None) -> Header:
    return Header(state=state, timeout_ms=2, created_ms=1, writers=writers)


def txn(counter: int) -> TxnId:
    return TxnId(0, counter)


def picture() -> Picture:
    """Ids below 20 are older than the late-index mark; 1–4 have headers, 5–7 were collected lately, 8 long ago."""
    outcomes = read_outcomes(0, 0, None).with_finals(
        [Collectable(5, True, 9), Collectable(6, False, 9), Collectable(7, True, 9)], 1
    )
    writers = [f"{W1:016x}"]
    return Picture(
        headers={
            txn(1): header("COMMITTED"),
            txn(2): header("ABORTED"),
            txn(3): header("OPEN"),
            txn(4): header("COMMITTED", writers),
        },
        outcomes={(0, 0): outcomes},
        names={
            "job/1": TxnName(v=1, txn_id=str(txn(1))),
            "job/7": TxnName(v=1, txn_id=str(txn(7)), outcome="COMMITTED", writers=writers),
        },
        id_blocks={0: TxnSeq(next=1001, indexed_below=20)},
    )


@pytest.mark.parametrize(
    ("counter", "writer", "verdict"),
    [
        (1, 0, RewoundVerdict.KEPT),
        (2, 0, RewoundVerdict.ABORTED),
        (3, 0, RewoundVerdict.ABORTED),
        (4, W1, RewoundVerdict.KEPT),
        (4, W2, RewoundVerdict.ABORTED),
        (5, 0, RewoundVerdict.KEPT),
        (6, 0, RewoundVerdict.ABORTED),
        (7, W1, RewoundVerdict.KEPT),
        (7, W2, RewoundVerdict.ABORTED),
        (8, 0, RewoundVerdict.KEPT),
        (20, 0, RewoundVerdict.LOST),  # begun after the backup, out of a block of ids that had been taken before
        (5000, 0, RewoundVerdict.LOST),
    ],
)
def test_e8_only_what_etcd_knows_as_committed_stays(counter: int, writer: int, verdict: RewoundVerdict) -> None:
    assert RewoundJudge(picture()).verdict(txn(counter), writer) is verdict


def test_e8_an_unknown_coordinator_id_is_of_after_the_backup() -> None:
    assert RewoundJudge(picture()).verdict(TxnId(9, 1), 0) is RewoundVerdict.LOST


def test_e8_what_is_aborted_is_noted_once_where_it_ends_and_left_to_who_knows_of_it() -> None:
    found = picture()
    found.write_index = {(txn(3), SEGMENT): None}
    found.aborted = {
        (segment, txn(counter), None): AbortedRecord(max_position=(1, 1))
        for segment, counter in (("public/default/t/other", 9), (SEGMENT, 2))
    }
    reckoning = Reckoning(found, RewoundJudge(found), SEGMENT, known=[(txn(6), None)])
    entries = [(1, 0), (2, 0), (3, 0), (6, 0), (4, W1), (4, W2), (30, 0), (31, 0)]
    for at, (counter, writer) in enumerate([*entries, (30, 0)]):
        reckoning.entry(txn(counter), writer, Position(1 + at // 7, at), 2)
    doomed = reckoning.doomed()
    assert doomed.by_ledger == {
        1: {(txn(4), W2): Position(1, 5)},
        2: {(txn(30), None): Position(2, 8), (txn(31), None): Position(2, 7)},
    }
    assert doomed.lost == {txn(30): 4, txn(31): 2}
    elsewhere = Reckoning(found, RewoundJudge(found), "public/default/t/other", known=())
    elsewhere.entry(txn(3), 0, Position(1, 0), 1)  # it had no op there when the backup was taken
    assert elsewhere.doomed().by_ledger == {1: {(txn(3), None): Position(1, 0)}}


def ledgers(*infos: tuple[int, int | None], **more: object) -> LedgerRecord:
    return LedgerRecord(ledgers=[LedgerInfo(ledger_id=a, closed_length=b) for a, b in infos], **more)  # type: ignore[arg-type]


def lengths(record: LedgerRecord) -> list[tuple[int, int | None]]:
    return [(info.ledger_id, info.closed_length) for info in record.ledgers]


def test_e8_ledgers_are_listed_as_they_stand_and_all_of_them_closed() -> None:
    disk = {1: OnDisk(5, 50), 2: OnDisk(9, 90), 3: OnDisk(4, 40), 7: OnDisk(0, 0)}
    found = adopt(ledgers((1, 5), (2, None)), disk, active=True, now_ms=1)
    assert lengths(found.record) == [(1, 5), (2, 9), (3, 4), (7, 0)]
    assert (found.new, found.gone, found.missing) == ((3, 7), (), ())
    assert lengths(adopt(found.record, disk, active=True, now_ms=2).record) == lengths(found.record)


def test_e8_ledgers_that_retention_took_are_trimmed_and_holes_are_told() -> None:
    found = adopt(ledgers((1, 5), (2, 6), (3, None)), {3: OnDisk(1, 1)}, active=True, now_ms=1)
    assert lengths(found.record) == [(3, 1)]
    assert (found.record.trimmed_below, found.record.trimmed_through) == ((3, 0), (2, 5))
    found = adopt(ledgers((1, 5), (2, 6), (3, None)), {1: OnDisk(5, 5), 3: OnDisk(1, 1)}, active=True, now_ms=1)
    assert (found.missing, found.record.trimmed_below) == ((2,), None)
    found = adopt(ledgers((1, 5), (2, 6), (3, 7), (4, None)), {1: OnDisk(5, 5), 4: OnDisk(1, 1)}, active=True, now_ms=1)
    assert (found.missing, found.record.trimmed_below) == ((2, 3), None)
    found = adopt(ledgers((1, 5), (2, None)), {1: OnDisk(5, 5)}, active=True, now_ms=1)
    assert (found.missing, lengths(found.record)) == ((), [(1, 5), (2, 0)]), "listed, and its creator died"


def test_e8_ledger_ids_of_a_topic_deleted_after_the_backup_are_not_used_again() -> None:
    found = adopt(ledgers((1, 5), (2, None)), {}, active=True, now_ms=1)
    assert found.record.trimmed_below is not None
    assert found.record.trimmed_below[0] > EPOCH_STEP
    assert found.record.ledgers == []


def test_e8_a_backup_that_was_repaired_before_uses_nothing_again_of_its_earlier_repairs() -> None:
    """▲ It knows nothing of them: each has raised ids and epochs by a step."""
    found = adopt(ledgers((1, 5), (2, None)), {}, active=True, now_ms=1, steps=3)
    assert found.record.trimmed_below is not None
    assert found.record.trimmed_below[0] > 3 * EPOCH_STEP
    entry = SegmentEntry(id=0, lo=0, hi=0xFFFF, state="ACTIVE", parents=[], children=[])
    topic = TopicRecord(epoch=3, next_segment_id=1, segments=[entry])
    assert raised_topic(topic, 0, 3).epoch == 3 + 3 * EPOCH_STEP


def test_e8_a_seal_that_was_undone_is_undone() -> None:
    sealed = ledgers((1, 5), sealed=(1, 4), sealed_by="c")
    disk = {1: OnDisk(5, 5), 2: OnDisk(3, 3)}
    undone = adopt(sealed, disk, active=True, now_ms=1).record
    assert (undone.sealed, undone.sealed_by, lengths(undone)) == (None, None, [(1, 5), (2, 3)])
    stays = adopt(sealed, disk, active=False, now_ms=1).record
    assert (stays.sealed, lengths(stays)) == ((1, 4), [(1, 5)])


def test_e8_a_segment_is_active_as_its_own_layout_says_whichever_it_is() -> None:
    topics = {}
    for path in ("public/default/s", "public/default/t"):
        entries = [
            SegmentEntry(id=n, lo=lo, hi=hi, state=state, parents=parents, children=children)
            for n, lo, hi, state, parents, children in (
                (0, 0, 0xFFFF, "SEALED", [], [1, 2]),
                (1, 0, 0x7FFF, "ACTIVE", [0], []),
                (2, 0x8000, 0xFFFF, "ACTIVE", [0], []),
            )
        ]
        record = TopicRecord(epoch=1, next_segment_id=3, segments=entries)
        topics[path] = Topology(TopicName.from_path(path), record)
    found = Picture(topics=topics)
    assert [is_active(found, segment) for segment in found.segments()] == [False, True, True] * 2


def test_e8_nothing_is_numbered_twice() -> None:
    assert raised_ids(None, 1) == TxnSeq(next=IDS_STEP)
    once = raised_ids(TxnSeq(next=1001, indexed_below=20), 1)
    assert once == TxnSeq(next=IDS_STEP, indexed_below=20)
    assert raised_ids(once, 2).next == 2 * IDS_STEP
    assert raised_ids(TxnSeq(next=1001), 2).next == 2 * IDS_STEP, "the same backup, restored once more"
    entry = SegmentEntry(id=0, lo=0, hi=0xFFFF, state="ACTIVE", parents=[], children=[])
    topic = TopicRecord(epoch=3, next_segment_id=1, segments=[entry])
    raised = raised_topic(topic, 4, 1)
    assert (raised.next_segment_id, raised.epoch) == (5, 3 + EPOCH_STEP)
    assert raised_topic(raised, 0, 1).next_segment_id == 5
    assert keys.outcome_block(txn(once.next)) > keys.outcome_block(txn(10**9)), "ids stay in order as text"
