"""The four named queries, listings, descriptions, outcomes and what hangs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator_v5 import queries
from coordinator_v5.naming.transaction_keys import delete
from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.processes import SEGMENT, Connection, Process, fresh_etcd, headers
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys
from txnstore.records import ABORTED, COMMITTED, OPEN, Op, TransactionKey, encode
from txnstore.store import Commit, Delete, Put, RangeResult
from txnstore.writes.op_transitions import plan_ack_op
from txnstore.writes.transitions import RecordedDecision
from txnwire.errors import DataCorrupt
from txnwire.ids import TxnId

OTHER = "public/default/orders/0000-ffff-1"


async def ack(process: Process, txn_id: TxnId, segment: str, subscription: str, epoch: int, counter: int) -> None:
    op = Op(v=1, kind="ack", segment=segment, subscription=subscription, messages=2)
    plan = plan_ack_op(txn_id, segment, subscription, epoch, counter, op, first_in_subscription=True)
    assert (await process.store.commit(plan)).succeeded


@virtual_time
async def test_the_four_indexes() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=2)).start()
    epoch, other = await process.own(SEGMENT), await process.own(OTHER)
    ids = [(await process.coordinator.begin(n % 2, timeout_ms=20_000 + n)).txn_id for n in range(6)]
    for number, txn_id in enumerate(ids):
        assert await process.write(txn_id, SEGMENT, number, epoch=epoch)
    assert await process.write(ids[0], OTHER, 50, epoch=other)
    await ack(process, ids[1], SEGMENT, "s", epoch, 60)
    await ack(process, ids[2], SEGMENT, "t", epoch, 61)
    store = process.store
    assert await queries.writes_by_segment(store, SEGMENT) == sorted(ids)
    assert await queries.writes_by_segment(store, OTHER) == [ids[0]]
    assert await queries.acks_by_segment_subscription(store, SEGMENT, "s") == [ids[1]]
    assert await queries.txns_by_deadline(store, until_ms=10**13 - 2) == []
    await asyncio.sleep(2)
    deadlines = await queries.txns_by_deadline(store, until_ms=10**13 - 2)
    assert [txn_id for _, txn_id in deadlines] == ids
    assert await queries.txns_by_deadline(store, until_ms=deadlines[2][0]) == deadlines[:3]
    for number, txn_id in enumerate(ids[:4]):
        await process.coordinator.end(txn_id, commit=number != 1)
    committed = await queries.txns_by_final_state(store, COMMITTED)
    assert [one.txn_id for one in committed] == sorted([ids[0], ids[2], ids[3]])
    assert all(one.revision > 0 for one in committed)
    paged = await queries.txns_by_final_state(store, COMMITTED, limit=1)
    paged += await queries.txns_by_final_state(store, COMMITTED, after=paged[0].txn_id)
    assert paged == committed
    assert [one.txn_id for one in await queries.txns_by_final_state(store, ABORTED)] == [ids[1]]
    await process.close()


@virtual_time
async def test_listings_filter_by_state_age_owner_and_segment() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    epoch = await process.own()
    old = (await process.coordinator.begin(0, owner="ann")).txn_id
    await asyncio.sleep(5)
    young = (await process.coordinator.begin(0, owner="bob")).txn_id
    done = (await process.coordinator.begin(0, owner="bob")).txn_id
    await process.coordinator.end(done, commit=True)
    await process.write(young, epoch=epoch)

    async def listed(**filters: object) -> list[TxnId]:
        now_ms = process.clock.wall_ms()
        found = await queries.list_transactions(process.store, now_ms=now_ms, **filters)  # type: ignore[arg-type]
        return [one.txn_id for one in found]

    assert await listed() == [old, young, done]
    assert await listed(state=OPEN) == [old, young]
    assert await listed(state=COMMITTED) == [done]
    assert await listed(older_than_ms=3_000) == [old]
    assert await listed(owner="bob") == [young, done]
    assert await listed(segment=SEGMENT) == [young]
    assert await listed(segment=SEGMENT, owner="ann") == []
    assert await listed(limit=2) == [old, young]
    await process.close()


@virtual_time
async def test_a_description_has_header_ops_and_outcome_also_after_collection() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    epoch = await process.own()
    txn_id = (await process.coordinator.begin(0)).txn_id
    for counter in range(5):
        await process.write(txn_id, epoch=epoch, counter=counter)
    found = await queries.describe_transaction(process.store, txn_id, ops_limit=3)
    assert found.record is not None
    assert (found.record.header.state, found.record.revision, found.outcome) == (OPEN, 0, None)
    assert len(found.ops) == 3
    assert len((await queries.describe_transaction(process.store, txn_id)).ops) == 5
    decision = await process.coordinator.end(txn_id, commit=True)
    found = await queries.describe_transaction(process.store, txn_id)
    assert found.outcome == decision
    prefix = keys.txn_ops(txn_id)
    etcd.mvcc.commit([Commit(deletes=(Delete(prefix, keys.prefix_end(prefix)),))])
    await until(lambda: not headers(etcd), within_s=300.0)
    found = await queries.describe_transaction(process.store, txn_id)
    assert (found.record, found.ops, found.outcome) == (None, (), RecordedDecision(COMMITTED, 0))
    await process.close()


@virtual_time
async def test_outcomes_of_many_in_one_question() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    assert await queries.outcomes(process.store, []) == []
    ids = [(await process.coordinator.begin(0)).txn_id for _ in range(3)]
    await process.coordinator.end(ids[0], commit=True)
    await process.coordinator.end(ids[1], commit=False)
    now = await queries.outcomes(process.store, [*ids, TxnId(5, 5), ids[0]])
    assert [None if one is None else one.state for one in now] == [COMMITTED, ABORTED, None, None, COMMITTED]
    assert now[1] is not None
    assert now[1].reason == "client"
    await until(lambda: len(headers(etcd)) == 0, within_s=300.0)
    later = await queries.outcomes(process.store, ids)
    assert [None if one is None else one.state for one in later] == [COMMITTED, ABORTED, ABORTED]
    await process.close()


@pytest.mark.parametrize(("owned", "at_once"), [(True, 5000), (False, 1), (False, 3)])
@virtual_time
async def test_e6_hanging_names_what_is_open_for_long_and_what_is_not_cleaned_up(
    owned: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "PAGE_KEYS", at_once)
    monkeypatch.setattr(queries, "PAGE_HEADERS", at_once)
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    epoch, other = await process.own(), await process.own(OTHER)
    begin = process.coordinator.begin
    opened = (await begin(0, timeout_ms=600_000)).txn_id
    await process.write(opened, epoch=epoch)
    await process.write(opened, epoch=epoch, counter=2)
    empty = [(await begin(0, timeout_ms=600_000)).txn_id for _ in range(3)]
    decided = (await begin(0)).txn_id
    await ack(process, decided, SEGMENT, "s", epoch, 9)
    await ack(process, decided, OTHER, "s", other, 9)
    await process.coordinator.end(decided, commit=True)
    clean = (await begin(0)).txn_id
    await process.coordinator.end(clean, commit=True)
    late = (await begin(0)).txn_id
    await process.write(late, epoch=epoch, counter=3)
    await asyncio.sleep(20)
    await process.coordinator.end(late, commit=True)  # its owner has had no time yet
    await process.write((await begin(0)).txn_id, epoch=epoch, counter=10)
    if not owned:
        etcd.mvcc.commit([Commit(deletes=(Delete(keys.owner(SEGMENT)), Delete(keys.owner(OTHER))))])
    now_ms = process.clock.wall_ms()
    found = await queries.hanging(process.store, now_ms=now_ms, older_than_ms=10_000)
    assert [one.record.txn_id for one in found] == [opened, *empty, decided]
    assert [one.writes for one in found] == [{SEGMENT: 2}, {}, {}, {}, {}]
    assert [one.acks for one in found] == [{}, {}, {}, {}, {(SEGMENT, "s"): 1, (OTHER, "s"): 1}]
    assert (found[0].ownerless, found[-1].ownerless) == (((), ()) if owned else ((SEGMENT,), (SEGMENT, OTHER)))
    assert len(await queries.hanging(process.store, now_ms=now_ms, older_than_ms=10_000, limit=1)) == 1
    await process.close()


@virtual_time
async def test_nothing_that_can_be_multiplied_is_read_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    epoch, other = await process.own(SEGMENT), await process.own(OTHER)
    ids = []
    for number in range(7):
        txn_id = (await process.coordinator.begin(0, timeout_ms=600_000)).txn_id
        ids.append(txn_id)
        for counter in range(number):
            await process.write(txn_id, SEGMENT, 10 * number + counter, epoch=epoch)
        await process.write(txn_id, OTHER, 100 + number, epoch=other)
        await asyncio.sleep(2)
        etcd.mvcc.commit([Commit(puts=(Put(keys.txn_key("ann", f"key-{number}"), encode(TransactionKey(epoch=0))),))])
    store, now_ms, read = process.store, process.clock.wall_ms(), counted_ranges(process, monkeypatch)

    async def all_asked() -> list[object]:
        read.clear()
        return [
            await queries.hanging(store, now_ms=now_ms, older_than_ms=0, limit=3),
            await queries.hanging(store, now_ms=now_ms, older_than_ms=0),
            await queries.list_transactions(store, now_ms=now_ms, segment=SEGMENT),
            await queries.list_transactions(store, now_ms=now_ms),
            await queries.transaction_keys(store),
            await queries.txns_by_deadline(store, until_ms=10**13 - 2),
            await queries.outcomes(store, ids),
        ]

    before = await all_asked()
    assert max(read) > 3
    monkeypatch.setattr(queries, "PAGE_HEADERS", 2)
    monkeypatch.setattr(queries, "PAGE_KEYS", 3)
    assert await all_asked() == before
    assert max(read) <= 3
    oldest, everything = before[0], before[1]
    assert isinstance(oldest, list)
    assert isinstance(everything, list)
    assert [one.record.txn_id for one in everything] == ids
    assert [one.writes for one in oldest] == [{OTHER: 1}, {SEGMENT: 1, OTHER: 1}, {SEGMENT: 2, OTHER: 1}]
    read.clear()
    assert len(await queries.list_transactions(store, now_ms=now_ms, limit=1)) == 1
    assert read == [2]
    await process.close()


def counted_ranges(process: Process, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each range has brought in one piece, from now on."""
    read: list[int] = []
    asked = process.store.range

    async def counted(*args: bytes, **options: Any) -> RangeResult:
        found = await asked(*args, **options)
        read.append(len(found.records))
        return found

    monkeypatch.setattr(process.store, "range", counted)
    return read


@virtual_time
async def test_a_damaged_header_hides_no_transaction_key_and_is_named() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    begun = []
    for key in ("a", "b"):
        connection = Connection(key, owner="ann")
        epoch = await process.coordinator.connect_key(0, key=key, epoch=-1, attempt=b"1", connection=connection)
        begin = process.coordinator.begin_keyed(0, key=key, epoch=epoch, number=1, connection=connection)
        begun.append((await begin).txn_id)
    etcd.mvcc.commit([Commit(puts=(Put(keys.txn(begun[0]), b"not a header"),))])
    unreadable: list[queries.UnreadableRecord] = []
    found = await queries.transaction_keys(process.store, unreadable=unreadable)
    assert [(one.key, one.header is not None) for one in found] == [("a", False), ("b", True)]
    assert [one.key for one in unreadable] == [f"/txn/{begun[0]}"]
    with pytest.raises(DataCorrupt, match=str(begun[0])):
        await queries.transaction_keys(process.store)
    await process.close()


@virtual_time
async def test_a_deleted_transaction_key_is_listed_to_whoever_asks_for_deleted_ones() -> None:
    process = await Process(fresh_etcd(), "one").start()
    for key in ("a", "b"):
        connection = Connection(key, owner="ann")
        await process.coordinator.connect_key(0, key=key, epoch=-1, attempt=b"1", connection=connection)
    await delete(process.store, process.clock, owner="ann", key="a", epoch=0)
    assert [one.key for one in await queries.transaction_keys(process.store)] == ["b"]
    found = await queries.transaction_keys(process.store, owner="ann", deleted=True)
    assert [(one.key, one.record.epoch, one.record.deleted_ms > 0) for one in found] == [
        ("a", 1, True),
        ("b", 0, False),
    ]
    await process.close()
