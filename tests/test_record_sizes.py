"""No write of ours is refused for its size (SCENARIOS C9): the largest record of each kind that the limits at the calls
let come about fits a commit, with its keys."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator_v5.naming.name_expiry import NAMESPACES_TOLD
from segments.controller.membership import MAX_CONSUMERS
from segments.layout.layout_transitions import MAX_SEGMENTS, SPLIT, Wanted, most_segments, plan_intent
from segments.layout.topics import MAX_LIMIT
from segments.layout.topology import ACTIVE, SEALED
from segments.subscription.cursors.cursor import BLOCK_ENTRIES, PARTIAL_BYTES, Cursor
from segments.subscription.cursors.partial_acks import stored_bytes
from tests.segments.ledger_lengths import LedgerLengths
from txnstore import keys, records
from txnstore.access.backend import GROUP_BYTES
from txnstore.access.grouping import GroupMember, GroupPlanner
from txnstore.cluster_clock import MOST_LEAPS
from txnstore.etcd import wire
from txnstore.memory.memory_etcd import DEFAULT_REQUEST_BYTES
from txnstore.store import MAX_COMMIT_BYTES, Commit, KeyValue, Put, absent
from txnstore.writes.writer_lists import MAX_LISTED, MAX_WRITERS
from txnwire.bounds import MAX_ID, MAX_TIME_MS
from txnwire.errors import InvalidArgument, NotAllowed
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.names import MAX_TRANSACTION_KEY_BYTES, MAX_TXN_NAME_BYTES, SegmentName, TopicName
from txnwire.protocol import MAX_ENTRY_MESSAGES
from watchers.acks import WHOLE, AckPosition, ack_op_record, check_op_size

KEYS_BYTES = 20_000
"""Of the keys of a commit around one record, and of the small records that travel with it."""

LONG, SHORT = TopicName("t" * 128, "n" * 128, "o" * 128), TopicName("t", "n", "o")
NAME = "s" * 128
CONSUMER = "c" * 128 + "@" + "f" * 16
ID = 10**10
"""Of a segment: there is one more with each split."""
TXN_ID = str(TxnId(0xFFFF, (1 << 64) - 1))
WRITERS = ["f" * 16 + f"+{MAX_WRITERS:x}"] * MAX_LISTED
TEXT = "\x01" * 512
"""Written with six characters each."""


def header() -> records.Header:
    return records.Header(
        state="COMMITTED", timeout_ms=MAX_TIME_MS, created_ms=MAX_TIME_MS, finalized_ms=MAX_TIME_MS, owner=TEXT,
        name=TEXT[:MAX_TXN_NAME_BYTES], txn_key=TEXT[:MAX_TRANSACTION_KEY_BYTES], key_epoch=MAX_ID, attempt="f" * 64,
        reason="unanswered", writers=WRITERS, end_attempt="f" * 64,
    )  # fmt: skip


def largest_ack(messages: int) -> list[AckPosition]:
    """As many positions of entries of so many messages as one ack may name."""
    indexes = WHOLE if messages == 1 else (1 << messages - 1) - 1 | 1 << messages - 1 - 1
    positions = [AckPosition(Position(MAX_ID - n, MAX_ID), messages, indexes) for n in range(10_000)]
    low, high = 1, len(positions)
    while low < high:
        middle = (low + high + 1) // 2
        try:
            check_op_size(positions[:middle])
        except InvalidArgument:
            high = middle - 1
        else:
            low = middle
    return positions[:low]


def ack_op(messages: int) -> records.Op:
    return ack_op_record(
        f"{LONG.path}/0000-ffff-{ID}", NAME, largest_ack(messages), cumulative=False, writer=1, consumer=CONSUMER
    )


def topic_record(topic: TopicName, changes: int = 0) -> records.TopicRecord:
    most = most_segments(topic) - 2 * changes
    return records.TopicRecord(
        epoch=ID, next_segment_id=ID, created_ms=MAX_TIME_MS, created_segments=256, lost_id=ID, first_segment_id=ID,
        segments=[
            records.SegmentEntry(
                id=ID + n, lo=0xFFFF, hi=0xFFFF, state=SEALED if changes == 0 else ACTIVE,
                parents=[ID + n, ID + n], children=[ID + n, ID + n],
            )
            for n in range(most)
        ],
        policies={"retention_ms": MAX_LIMIT, "retention_bytes": MAX_LIMIT, "autoscale": {"split_cooldown_s": 1e15}},
        changes=[
            records.LayoutChange(id="f" * 32, kind="merge", parents=[ID + n, ID + n], at=0xFFFF, since_ms=MAX_TIME_MS)
            for n in range(changes)
        ],
        pruning=[] if changes else [ID + n for n in range(most)],
    )  # fmt: skip


def paths(topic: TopicName) -> list[str]:
    return [SegmentName(topic, 0, 0xFFFF, ID + n).path for n in range(most_segments(topic))]


def subscription(topic: TopicName) -> records.SubscriptionRecord:
    start = {
        "kind": "message_id", "segment": paths(topic)[0], "ledger_id": MAX_ID, "entry_id": MAX_ID, "index": 1 << 32,
        "after": True, "ancestors": [ID + n for n in range(most_segments(topic))],
    }  # fmt: skip
    positions = dict.fromkeys(paths(topic), (10**9, 10**12))
    return records.SubscriptionRecord(type="stream", start=start, positions=positions, created_ms=MAX_TIME_MS)


def assignment(topic: TopicName) -> records.AssignmentRecord:
    names = [f"{n:0128}@{'f' * 16}" for n in range(MAX_CONSUMERS)]
    all_paths = paths(topic)
    share = len(all_paths) // len(names) + 1
    consumers = {name: all_paths[n * share : (n + 1) * share] for n, name in enumerate(names)}
    return records.AssignmentRecord(epoch=ID, consumers=consumers)


LARGEST: dict[type[msgspec.Struct], Sequence[Callable[[], msgspec.Struct]]] = {
    records.Header: [header],
    records.Op: [lambda: ack_op(1), lambda: ack_op(500), lambda: ack_op(10_000), lambda: ack_op(MAX_ENTRY_MESSAGES)],
    records.TxnSeq: [lambda: records.TxnSeq(next=1 << 64, indexed_below=1 << 64)],
    records.TxnName: [lambda: records.TxnName(v=1, txn_id=TXN_ID, outcome="COMMITTED", writers=WRITERS)],
    records.NameCounts: [
        lambda: records.NameCounts(
            counted_ms=MAX_TIME_MS,
            namespaces={f"{n:03}" + "\0" * (MAX_TXN_NAME_BYTES - 4): MAX_ID for n in range(NAMESPACES_TOLD)},
            others=MAX_ID,
        )
    ],
    records.OutcomeBlock: [
        lambda: records.OutcomeBlock(
            decided="A" * (keys.OUTCOMES_PER_BLOCK // 6 + 4),
            committed="A" * (keys.OUTCOMES_PER_BLOCK // 6 + 4),
            touched_ms=MAX_TIME_MS,
        )
    ],
    records.AbortedRecord: [lambda: records.AbortedRecord(max_position=(MAX_ID, MAX_ID))],
    records.Watermark: [lambda: records.Watermark(position=(MAX_ID, MAX_ID))],
    records.TopicRecord: [
        lambda: topic_record(SHORT),
        lambda: topic_record(LONG),
        lambda: topic_record(SHORT, changes=MAX_SEGMENTS // 2 - 1),
        lambda: topic_record(SHORT, changes=MAX_SEGMENTS // 3),
    ],
    records.SegmentIds: [lambda: records.SegmentIds(floor=ID)],
    records.CursorMark: [lambda: records.CursorMark(position=(MAX_ID, MAX_ID), seeks=MAX_ID)],
    records.SubscriptionRecord: [lambda: subscription(SHORT), lambda: subscription(LONG)],
    records.AssignmentRecord: [lambda: assignment(SHORT), lambda: assignment(LONG)],
    records.Drained: [lambda: records.Drained(end=(MAX_ID, MAX_ID))],
    records.LoadSample: [
        lambda: records.LoadSample(messages_in_per_s=1e308, bytes_in_per_s=1e308, window_s=1e308, taken_ms=MAX_TIME_MS)
    ],
    records.TransactionKey: [
        lambda: records.TransactionKey(
            epoch=MAX_ID, txn_id=TXN_ID, attempt="f" * 64, since_ms=MAX_TIME_MS, deleted_ms=MAX_TIME_MS, begins=MAX_ID
        )
    ],
    records.GcHorizon: [lambda: records.GcHorizon(revision=MAX_ID)],
    records.Pin: [lambda: records.Pin(revision=MAX_ID)],
    records.ClockStamp: [
        lambda: records.ClockStamp(ms=MAX_TIME_MS, leaps=((MAX_TIME_MS, MAX_TIME_MS),) * (MOST_LEAPS + 1))
    ],
}

ELSEWHERE = {
    records.CollectedName: "what a TxnName is written as",
    records.SegmentEntry: "part of the topic's record",
    records.LayoutChange: "part of the topic's record",
    records.LedgerInfo: "part of the ledger list",
    records.LedgerRecord: "a head of at most 320 ledgers: tests/segments/log/ledgers/test_ledger_pages.py",
    records.LedgerPage: "256 ledgers: tests/segments/log/ledgers/test_ledger_pages.py",
    records.CursorBlock: "made by the cursor, below",
    records.OwnerRecord: "made of settings",
    records.RegistrationRecord: "made of settings",
    records.BrokerRegistration: "made of settings",
    records.DataFolder: "made of settings",
    records.CompactionMark: "made of settings",
    records.Incarnation: "grows by an id with each repair by hand",
}
"""Kinds that no caller makes large, and those judged by themselves."""


def test_every_kind_of_record_is_judged() -> None:
    kinds = {kind for _, kind in inspect.getmembers(records, inspect.isclass) if issubclass(kind, msgspec.Struct)}
    assert kinds == {*LARGEST, *ELSEWHERE, msgspec.Struct} - ({msgspec.Struct} - kinds)


@pytest.mark.parametrize(
    "make",
    [make for makers in LARGEST.values() for make in makers],
    ids=[k.__name__ for k, m in LARGEST.items() for _ in m],
)
def test_the_largest_record_of_each_kind_fits_a_commit(make: Callable[[], msgspec.Struct]) -> None:
    """C9."""
    assert len(records.encode(make())) <= MAX_COMMIT_BYTES - KEYS_BYTES


@settings(max_examples=15, deadline=None)
@given(
    messages=st.sampled_from([2, 3, 100, 1_000, 10_000, MAX_ENTRY_MESSAGES]),
    stride=st.sampled_from([1, 7, BLOCK_ENTRIES]),
)
def test_no_record_of_a_cursor_outgrows_a_commit_whatever_is_acked(messages: int, stride: int) -> None:
    """Until it is full, and beyond: what was promised room for is acked all the same."""
    cursor = Cursor(LedgerLengths({1: MAX_ID}), EARLIEST, max_blocks=10_000, max_partial=1 << 60)
    most = (1 << messages - 1) - 1
    for number in range(min(2 * PARTIAL_BYTES // stored_bytes(messages), 6_000)):
        cursor.ack(AckPosition(Position(1, 1 + number * stride), messages, most), held=True)
    sizes = [len(write.value) for write in cursor.block_writes() if write.value is not None]
    assert max(sizes) <= MAX_COMMIT_BYTES // 4


def test_changes_under_way_count_as_made() -> None:
    """▲ Each of many splits asked for at once has room, all of them together have none."""
    count = MAX_SEGMENTS - 10
    segments = [
        records.SegmentEntry(
            id=n, lo=n * 0x10000 // count, hi=(n + 1) * 0x10000 // count - 1, state=ACTIVE, parents=[], children=[]
        )
        for n in range(count)
    ]
    record = records.TopicRecord(epoch=1, next_segment_id=count, segments=segments)
    key = keys.topic(SHORT.path)
    for n in range(5):
        found = KeyValue(key, records.encode(record), 1, 1, 1)
        wanted = Wanted(SPLIT, (n,), segments[n].lo + 1)
        intent, _ = plan_intent(found, wanted, change_id=f"{n:08x}", still_held=absent(b"/x"), now_ms=1)
        record = msgspec.structs.replace(record, changes=[*record.changes, intent])
    found = KeyValue(key, records.encode(record), 1, 1, 1)
    wanted = Wanted(SPLIT, (5,), segments[5].lo + 1)
    with pytest.raises(NotAllowed, match="10 to come"):
        plan_intent(found, wanted, change_id="ffffffff", still_held=absent(b"/x"), now_ms=1)


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.sampled_from([0, 100, 20_000, 400_000, 990_000]), min_size=1, max_size=400))
def test_no_request_of_many_members_outgrows_what_etcd_takes(sizes: list[int]) -> None:
    encoder = wire.CommitEncoder(b"/txnstore")
    planner: GroupPlanner[GroupMember] = GroupPlanner(max_txn_ops=1024, max_bytes=GROUP_BYTES)
    for number, size in enumerate(sizes):
        commit = Commit(puts=(Put(b"/k/%d" % number, bytes(size)),))
        planner.offer(GroupMember(commit, encoder.transaction(commit)))
    members = 0
    while (group := planner.take()) is not None:
        assert len(wire.group([member.wire for member in group.members])) <= DEFAULT_REQUEST_BYTES - 100_000
        members += len(group.members)
        planner.finish(group)
    assert members == len(sizes)
