"""The main paths against a real etcd: what the fakes promise must be true there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from coordinator_v5 import queries
from coordinator_v5.coordinator import Coordinator
from coordinator_v5.settings import CoordinatorSettings
from tests.waiting import until, until_answer
from txnstore import keys
from txnstore.etcd.etcd_store import EtcdStore
from txnstore.records import ABORTED, COMMITTED, Op
from txnstore.store import Commit, Put
from txnstore.writes.op_transitions import plan_clean_up, plan_write_op, read_clean_up_verdict, read_op_verdict
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import InvalidTxnState, TxnConflict, TxnNotFound
from txnwire.ids import TxnId

SEGMENT = "public/default/orders/0000-ffff-0"
QUICK = CoordinatorSettings(
    tcids=2, lease_ttl_s=3.0, header_retention_s=0.5, collect_every_s=0.1, sweep_s=0.05, client_grace_s=0.3
)


@asynccontextmanager
async def coordinator(store: EtcdStore, name: str = "one") -> AsyncIterator[Coordinator]:
    running = Coordinator(store, SystemClock(), SystemRandom(), QUICK, id=name, address=f"{name}:1")
    await running.start()
    try:
        yield running
    finally:
        await running.close()


async def headers(store: EtcdStore) -> int:
    return len((await store.range(keys.TXN, keys.prefix_end(keys.TXN), keys_only=True)).records)


async def gone(store: EtcdStore) -> None:
    await until_answer(lambda: headers(store), lambda left: not left, "all headers to be collected", within_s=20)


async def test_many_transactions_live_and_are_collected(store: EtcdStore) -> None:
    async with coordinator(store) as one:
        decided: dict[TxnId, str] = {}

        async def live(number: int) -> None:
            begun = await one.begin(number % 2)
            decision = await one.end(begun.txn_id, commit=number % 3 != 0)
            assert await one.end(begun.txn_id, commit=number % 3 != 0) == decision
            decided[begun.txn_id] = decision.state

        await asyncio.gather(*(live(number) for number in range(600)))
        await gone(store)
        found = await queries.outcomes(store, list(decided))
        assert [one and one.state for one in found] == list(decided.values())
        assert one.statistics().collected == 600
        some = next(iter(decided))
        assert (await one.end(some, commit=decided[some] == COMMITTED)).state == decided[some]
        with pytest.raises(TxnNotFound):
            await one.end(TxnId(0, 10**9), commit=True)


async def test_a_deadline_and_its_key(store: EtcdStore) -> None:
    async with coordinator(store) as one:
        begun = await one.begin(0, timeout_ms=1_800)
        await until(lambda: queries.txns_by_deadline(store, until_ms=10**13 - 2), "the key of the deadline", within_s=5)
        await until(lambda: one.statistics().timed_out == 1)
        with pytest.raises(InvalidTxnState, match="timeout"):
            await one.end(begun.txn_id, commit=True)
        assert await queries.txns_by_deadline(store, until_ms=10**13 - 2) == []


async def test_ops_hold_a_header_until_they_are_cleaned_up(store: EtcdStore) -> None:
    async with coordinator(store) as one:
        epoch = (await store.commit(Commit(puts=(Put(keys.owner(SEGMENT), b"{}"),)))).revision
        begun = await one.begin(1)
        op = Op(v=1, kind="write", segment=SEGMENT, messages=1, bytes=100)
        plans = [
            plan_write_op(begun.txn_id, SEGMENT, epoch, counter, op, first_in_segment=counter == 0)
            for counter in range(1_000)
        ]
        for plan, result in zip(plans, await asyncio.gather(*map(store.commit, plans)), strict=True):
            read_op_verdict(plan, result, begun.txn_id)
        await one.end(begun.txn_id, commit=True)
        late = plan_write_op(begun.txn_id, SEGMENT, epoch, 5_000, op, first_in_segment=False)
        with pytest.raises(TxnConflict):
            read_op_verdict(late, await store.commit(late), begun.txn_id)
        await until(lambda: one.statistics().stuck == 1)
        assert await headers(store) == 1
        clean_up = plan_clean_up(SEGMENT, epoch, writes=[begun.txn_id])
        assert read_clean_up_verdict(clean_up, await store.commit(clean_up)) is None
        await gone(store)
        assert await queries.writes_by_segment(store, SEGMENT) == []


async def test_a_successor_takes_over_and_aborts_what_nobody_announces(store: EtcdStore) -> None:
    async with coordinator(store, "two") as two:
        assert two.owned_tcids == (0, 1)
        first = await two.begin(0, timeout_ms=60_000)
    async with coordinator(store, "three") as three:
        assert three.owned_tcids == (0, 1)
        await until(lambda: three.statistics().vanished == 1)
        with pytest.raises(InvalidTxnState, match="session"):
            await three.end(first.txn_id, commit=True)
        again = await three.begin(0)
        assert again.txn_id.counter > first.txn_id.counter
        assert (await three.end(again.txn_id, commit=False)).state == ABORTED
