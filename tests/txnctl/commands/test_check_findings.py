"""What `txnctl check` says of each violation, word for word, and up to where nothing is one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.txnctl.commands.test_check import (
    HIGH,
    LOW,
    NOW_MS,
    TOPIC,
    TXN,
    changing,
    collected,
    keyed,
    marked,
    owner_record,
    sound,
    split,
)
from txnctl.checking.invariants import DELETION_GRACE_MS, SWEEP_GRACE_MS, broken_invariants
from txnctl.checking.picture import Picture
from txnstore.records import (
    AssignmentRecord,
    CursorMark,
    Drained,
    Header,
    LayoutChange,
    LedgerInfo,
    LedgerRecord,
    SubscriptionRecord,
    TransactionKey,
    TxnName,
    TxnSeq,
    Watermark,
)
from txnwire.ids import TxnId

GONE = f"{TOPIC}/0000-ffff-9"
OTHER = TxnId(3, 18)


def sealed_twice(picture: Picture) -> None:
    split(picture, seal=(1, 9))
    picture.drained[TOPIC, "job", 0] = Drained(end=(1, 3))


def named_again(picture: Picture, record: TxnName | None) -> None:
    picture.names.pop("a/1")
    if record is not None:
        picture.names["a/1"] = record


FINDINGS: list[tuple[Callable[[Picture], object], list[str]]] = [
    (lambda p: p.unreadable.append("/txn/x: not a header"), ["/txn/x: not a header"]),
    (lambda p: p.unknown.append("/what/is/this"), ["/what/is/this is no key of ours"]),
    (
        lambda p: (p.headers.clear(), p.names.clear()),
        [f"{segment} has op records of {TXN}, whose header is missing" for segment in (LOW, HIGH)],
    ),
    (lambda p: p.write_index.clear(), [f"{LOW} has write ops of {TXN} but no index key"]),
    (lambda p: p.ops.pop((TXN, LOW, None)), [f"{LOW} has an index key of {TXN} but no write op"]),
    (lambda p: p.ack_index.clear(), [f"{HIGH}, subscription job, has ack ops of {TXN} but no index key"]),
    (
        lambda p: p.ops.pop((TXN, HIGH, "job")),
        [f"{HIGH}, subscription job, has an index key of {TXN} but no ack op"],
    ),
    (collected, [f"{TXN} has an outcome as a collected transaction and a header as well"]),
    (
        lambda p: p.id_blocks.update({3: TxnSeq(next=TXN.counter)}),
        [f"{TXN} was given out, but /txn-seq/0003 says {TXN.counter}"],
    ),
    (lambda p: p.id_blocks.clear(), [f"{TXN} was given out, but /txn-seq/0003 says nothing"]),
    (
        lambda p: p.headers.update({TXN: replace(p.headers[TXN], timeout_ms=NOW_MS - 60_400)}),
        [f"{TXN} is open 60 s past its deadline: is no coordinator running?"],
    ),
    (
        lambda p: p.watermarks.update({GONE: Watermark(position=(1, 1))}),
        [f"{GONE} belongs to no topic, but has a watermark"],
    ),
    (
        lambda p: p.subscriptions.clear(),
        [
            f"{HIGH} has cursors of job, which is no subscription of {TOPIC}",
            f"{TOPIC} has an assignment of job, which is no subscription of it",
        ],
    ),
    (
        lambda p: p.subscriptions.update({("t/n/x", "late"): SubscriptionRecord(type="queue", start={})}),
        ["subscription late belongs to t/n/x, which does not exist"],
    ),
    (
        lambda p: p.topics.update({TOPIC: marked(p.topics[TOPIC])}),
        [f"topic {TOPIC} is being deleted for 1000 s: is no broker, or no controller, running?"],
    ),
    (
        lambda p: p.subscriptions.update({(TOPIC, "job"): SubscriptionRecord(type="queue", start={}, deleting_ms=1)}),
        [f"subscription job of {TOPIC} is being deleted for 1000 s: is no broker, or no controller, running?"],
    ),
    (
        lambda p: changing(p, LayoutChange(id="c", kind="split", parents=[0], since_ms=1)),
        [f"{TOPIC}: split c is under way for 1000 s: is no controller running?"],
    ),
    (
        lambda p: changing(p, LayoutChange(id="c", kind="merge", parents=[1, 7])),
        [f"{TOPIC}: the merge c names segment 7, which is not active"],
    ),
    (
        lambda p: (split(p, seal=(1, 9)), changing(p, LayoutChange(id="c", kind="split", parents=[0]))),
        [f"{TOPIC}: the split c names segment 0, which is not active"],
    ),
    (
        lambda p: changing(p, *[LayoutChange(id=one, kind="split", parents=[0]) for one in "cde"]),
        [f"{TOPIC}: segment 0 is named by both {first} and {second}" for first, second in ("cd", "de")],
    ),
    (lambda p: split(p, seal=None), [f"{LOW} is sealed in its topic's layout, and not in /ledger"]),
    (lambda p: split(p, seal=(1, 8)), [f"{LOW} is sealed at 1:8, and holds more than that"]),
    (
        lambda p: p.drained.update({(TOPIC, "gone", 0): Drained(end=(1, 9))}),
        [f"{TOPIC}: subscription gone has drained segment 0: there is no such subscription"],
    ),
    (
        lambda p: p.drained.update({("t/n/x", "job", 0): Drained(end=(1, 9))}),
        ["t/n/x: subscription job has drained segment 0: there is no such subscription"],
    ),
    (
        lambda p: p.drained.update({(TOPIC, "job", 0): Drained(end=(1, 9))}),
        [f"{TOPIC}: subscription job has drained segment 0, which is not sealed"],
    ),
    (
        lambda p: p.drained.update({(TOPIC, "job", 9): Drained(end=(1, 9))}),
        [f"{TOPIC}: subscription job has drained segment 9, which is no segment of it"],
    ),
    (
        sealed_twice,
        [f"{TOPIC}: subscription job has drained segment 0 through (1, 3), but it is sealed at (1, 9)"],
    ),
    (
        lambda p: keyed(p, None),
        [f"{TXN} is open under key 'etl' at epoch 2; the key has no record"],
    ),
    (
        lambda p: keyed(p, TransactionKey(epoch=3, txn_id=str(OTHER))),
        [f"{TXN} is open under key 'etl' at epoch 2; the key has epoch 3 with {OTHER}"],
    ),
    (lambda p: named_again(p, None), [f"{TXN} is open under the name 'a/1', which is held by nobody"]),
    (
        lambda p: named_again(p, TxnName(v=1, txn_id=str(OTHER), outcome="ABORTED")),
        [f"{TXN} is open under the name 'a/1', which is held by {OTHER}"],
    ),
    (
        lambda p: p.names.update({"a/2": TxnName(v=1, txn_id=str(OTHER))}),
        [f"name 'a/2' stands for {OTHER}, which has neither a header nor an outcome"],
    ),
    (
        lambda p: p.assignments.update({(TOPIC, "job"): AssignmentRecord(epoch=1, consumers={"a": [LOW], "b": [LOW]})}),
        [f"{TOPIC}/job: {LOW} is assigned to both a and b"],
    ),
    (
        lambda p: p.ledgers.update({LOW: LedgerRecord(ledgers=[LedgerInfo(ledger_id=2)] * 2)}),
        [f"{LOW}: ledger ids do not rise: [2, 2]", f"{LOW}: ledgers [2, 2] are open"],
    ),
    (
        lambda p: p.ledgers.update({LOW: replace(p.ledgers[LOW], sealed=(1, 9))}),
        [f"{LOW}: ledgers [2] are open in a sealed segment"],
    ),
    (
        lambda p: p.marks.update({(LOW, "job"): CursorMark(position=(1, 10))}),
        [f"{LOW}: mark-delete of job is at 1:10, but that ledger ends after 10 entries"],
    ),
    (
        lambda p: p.ledgers.update({LOW: replace(p.ledgers[LOW], trimmed_below=(2, 1))}),
        [f"{LOW} is trimmed below 2:1, where no ledger of its list begins"],
    ),
    (lambda p: p.owners.update({LOW: owner_record(lease=0)}), [f"{LOW} has an owner that no lease ends"]),
]


@pytest.mark.parametrize(("break_it", "findings"), FINDINGS)
def test_a_violation_is_told_with_what_it_is_and_nothing_else_is_found(
    break_it: Callable[[Picture], object], findings: list[str]
) -> None:
    picture = sound()
    break_it(picture)
    assert [finding for _, finding in broken_invariants(picture, now_ms=NOW_MS)] == findings


TRIMMED_AND_SEALED = LedgerRecord(
    ledgers=[LedgerInfo(ledger_id=1, closed_length=10)], trimmed_below=(2, 0), sealed=(1, 9)
)


def opened(late_ms: int) -> Callable[[Picture], object]:
    return lambda p: p.headers.update({TXN: replace(p.headers[TXN], timeout_ms=NOW_MS - late_ms)})


def deleting(since_ms: int) -> Callable[[Picture], object]:
    record = SubscriptionRecord(type="queue", start={}, deleting_ms=since_ms)
    return lambda p: p.subscriptions.update({(TOPIC, "job"): record})


def splitting(since_ms: int) -> Callable[[Picture], object]:
    return lambda p: changing(p, LayoutChange(id="c", kind="split", parents=[0], since_ms=since_ms))


@pytest.mark.parametrize(
    ("break_it", "rule"),
    [
        (opened(SWEEP_GRACE_MS), None),
        (opened(SWEEP_GRACE_MS + 1), "open_transactions_are_within_their_deadline"),
        (deleting(NOW_MS - DELETION_GRACE_MS), None),
        (deleting(NOW_MS - DELETION_GRACE_MS - 1), "deletions_come_to_an_end"),
        (splitting(0), None),
        (splitting(NOW_MS - DELETION_GRACE_MS), None),
        (splitting(NOW_MS - DELETION_GRACE_MS - 1), "layout_changes_come_to_an_end"),
        (lambda p: p.id_blocks.update({3: TxnSeq(next=TXN.counter + 1)}), None),
        (lambda p: p.headers.update({TXN: Header(state="COMMITTED", timeout_ms=1, created_ms=0)}), None),
        (lambda p: keyed(p, TransactionKey(epoch=2, txn_id=str(TXN))), None),
        (
            lambda p: (keyed(p, None), p.headers.update({TXN: replace(p.headers[TXN], state="COMMITTED")})),
            None,
        ),
        (
            lambda p: (named_again(p, None), p.headers.update({TXN: replace(p.headers[TXN], state="COMMITTED")})),
            None,
        ),
        (lambda p: split(p, seal=(1, 9)), None),
        (lambda p: p.ledgers.update({HIGH: LedgerRecord(ledgers=[])}), None),
        (lambda p: p.ledgers.update({HIGH: LedgerRecord(ledgers=[], trimmed_below=(9, 0))}), None),
        (lambda p: p.ledgers.update({HIGH: TRIMMED_AND_SEALED}), None),
        (lambda p: p.watermarks.update({LOW: Watermark(position=(2, 1000))}), None),
        (lambda p: p.watermarks.update({LOW: Watermark(position=(7, 1000))}), None),
    ],
)
def test_what_is_in_time_and_in_order_is_none(break_it: Callable[[Picture], object], rule: str | None) -> None:
    picture = sound()
    break_it(picture)
    found = broken_invariants(picture, now_ms=NOW_MS)
    assert [name for name, _ in found] == ([] if rule is None else [rule]), found
