"""What is deleted of a topic and of its segments: all of it, and under which compares."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from txnstore import keys, records
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import SegmentIds, SubscriptionRecord, TopicRecord
from txnstore.store import Commit, Compare, Delete, KeyValue, Put, created_at
from txnstore.writes import deletion_transitions
from txnstore.writes.deletion_transitions import (
    SegmentRemains,
    plan_erase,
    plan_forget_subscription,
    plan_forget_topic,
    plan_mark_subscription,
    plan_mark_topic,
    segment_id_floor,
)
from txnwire.ids import TxnId

TOPIC = "public/default/orders"
SEGMENT = f"{TOPIC}/0000-ffff-0"
CONTROLLERS = (keys.SUBSCRIPTION, keys.ASSIGNMENT, keys.DRAINED, keys.CURSOR, keys.LOAD)
OWNERS = (
    keys.OWNER, keys.LEDGER, keys.LEDGER_PAGE, keys.SEGMENT_STATE, keys.WRITES_BY_SEGMENT,
    keys.ACKS_BY_SEGMENT_SUBSCRIPTION,
)  # fmt: skip


async def put(store: MemoryStore, *put_keys: bytes, value: bytes = b"{}") -> int:
    return (await store.commit(Commit(puts=tuple(Put(key, value) for key in put_keys)))).revision


@pytest.mark.parametrize("left", [None, *OWNERS])
async def test_s8_a_topic_is_forgotten_with_all_that_its_controller_wrote_once_its_owners_have_left_nothing(
    memory_store: MemoryStore, left: bytes | None
) -> None:
    leader, topic = keys.leader("controller"), keys.topic(TOPIC)
    held = created_at(leader, await put(memory_store, leader))
    await put(memory_store, topic, value=records.encode(TopicRecord(epoch=1, next_segment_id=3, segments=[])))
    below = [prefix + f"{TOPIC}/{name}".encode() for prefix in CONTROLLERS for name in ("one", "two")]
    beside = [prefix + f"{TOPIC}-2/one".encode() for prefix in (*CONTROLLERS, *OWNERS)]
    await put(memory_store, *below, *beside)
    if left is not None:
        await put(memory_store, left + SEGMENT.encode())
    record = await memory_store.get(topic)
    assert record is not None
    done = await memory_store.commit(plan_forget_topic(TOPIC, record, None, still_held=held))
    assert done.succeeded is (left is None)
    found = {one.key for one in memory_store.etcd.mvcc.range(b"/", b"0")[0]}
    assert found & {topic, *below} == (set() if left is None else {topic, *below})
    assert found >= set(beside)
    ids = await memory_store.get(keys.SEGMENT_IDS)
    if left is None:
        assert ids is not None
        assert records.decode(SegmentIds, ids.value, key=ids.key).floor == 3


async def test_topics_forgotten_at_once_leave_the_ids_of_both_used(memory_store: MemoryStore) -> None:
    """▲ Dies if the second lowers what the first has raised: the first's name would get its own ids again."""
    held = created_at(keys.leader("controller"), await put(memory_store, keys.leader("controller")))
    commits = []
    for path, next_id in ((TOPIC, 9), (f"{TOPIC}-2", 3)):
        value = records.encode(TopicRecord(epoch=1, next_segment_id=next_id, segments=[]))
        await put(memory_store, keys.topic(path), value=value)
        record = await memory_store.get(keys.topic(path))
        assert record is not None
        commits.append(plan_forget_topic(path, record, None, still_held=held))
    assert [(await memory_store.commit(commit)).succeeded for commit in commits] == [True, False]
    ids = await memory_store.get(keys.SEGMENT_IDS)
    assert ids is not None
    assert segment_id_floor(ids) == 9


def mark_topic(record: KeyValue, held: Compare) -> Commit | None:
    return plan_mark_topic(record, still_held=held, now_ms=1)


def mark_subscription(record: KeyValue, held: Compare) -> Commit | None:
    return plan_mark_subscription(record, still_held=held, now_ms=1)


def forget_topic(record: KeyValue, held: Compare) -> Commit | None:
    return plan_forget_topic(TOPIC, record, None, still_held=held)


def forget_subscription(record: KeyValue, held: Compare) -> Commit | None:
    return plan_forget_subscription(TOPIC, record, still_held=held)


@pytest.mark.parametrize("moved", [None, "leader", "record"])
@pytest.mark.parametrize("plan", [mark_topic, forget_topic, mark_subscription, forget_subscription])
async def test_s8_no_step_of_a_former_controller_lands_nor_one_planned_from_an_older_record(
    memory_store: MemoryStore, plan: Callable[[KeyValue, Compare], Commit | None], moved: str | None
) -> None:
    """▲ Each of the two is enough: the record may be that of the next topic or subscription of the name."""
    leader = keys.leader("controller")
    held = created_at(leader, await put(memory_store, leader))
    if plan in (mark_topic, forget_topic):
        key, value = keys.topic(TOPIC), records.encode(TopicRecord(epoch=1, next_segment_id=3, segments=[]))
    else:
        key = keys.subscription(TOPIC, "s")
        value = records.encode(SubscriptionRecord(type="queue", start={"kind": "earliest"}))
    await put(memory_store, key, value=value)
    record = await memory_store.get(key)
    assert record is not None
    commit = plan(record, held)
    assert commit is not None
    if moved == "leader":
        await memory_store.commit(Commit(deletes=(Delete(leader),)))
        await put(memory_store, leader)
    elif moved == "record":
        await put(memory_store, key, value=value)
    assert (await memory_store.commit(commit)).succeeded is (moved is None)


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_s8_all_that_one_page_shows_of_a_segment_is_erased_in_one_step(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(deletion_transitions, "TRANSACTIONS_AT_ONCE", at_once)
    written = [TxnId(1, counter) for counter in (1, 2, 3)]
    acked = [("s", TxnId(1, 3)), ("s", TxnId(1, 4)), ("t", TxnId(1, 4))]
    remains = SegmentRemains(written, acked, [keys.aborted(SEGMENT, txn_id) for txn_id in written])
    commits = plan_erase(SEGMENT, 7, remains)
    expected = [keys.write_ops(txn_id, SEGMENT) for txn_id in written]
    expected += [keys.write_index(SEGMENT, txn_id) for txn_id in written]
    expected += [keys.ack_ops(txn_id, SEGMENT, name) for name, txn_id in acked]
    expected += [keys.ack_index(SEGMENT, name, txn_id) for name, txn_id in acked]
    deletes = [delete for commit in commits for delete in commit.deletes]
    assert sorted(delete.key for delete in deletes[:-1]) == sorted(expected)
    assert (deletes[-1].key, deletes[-1].range_end) == (remains.keys[0], remains.keys[-1] + b"\0")
    assert all(commit.compares == (created_at(keys.owner(SEGMENT), 7),) for commit in commits)
