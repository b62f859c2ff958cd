"""Transactions that are begun under a key (D7, K7, L2)."""

from __future__ import annotations

import asyncio

import pytest

from tests.coordinator_v5.naming.key_holders import Holder, close, commit, refusal, two
from tests.coordinator_v5.processes import (
    LANDS_LATE,
    LOST_AFTER,
    LOST_BEFORE,
    Connection,
    fresh_etcd,
    headers,
    open_headers,
)
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys
from txnstore.memory.memory_store import Fate
from txnstore.records import COMMITTED
from txnstore.writes.transitions import RecordedDecision
from txnwire.errors import (
    ExpiredTransaction,
    InvalidTxnState,
    NotAllowed,
)


@virtual_time
async def test_one_transaction_at_a_time_and_the_same_begin_is_answered_alike() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    first = await holder.begin(one)
    for process in (one, other):
        again = await holder.begin(process, number=1)
        assert (again.txn_id, again.deadline_ms, again.joined) == (first.txn_id, first.deadline_ms, True)
        assert "one at a time" in str(await refusal(holder.begin(process, number=2)))
        assert isinstance(await refusal(holder.begin(process, number=2)), InvalidTxnState)
    await commit(one, first.txn_id)
    second = await holder.begin(other)
    assert second.txn_id != first.txn_id
    assert isinstance(await refusal(holder.begin(one, number=1)), NotAllowed), "it comes late"
    assert open_headers(etcd) == [second.txn_id]
    await commit(one, second.txn_id)
    ended = await holder.begin(one, number=2)
    assert (ended.txn_id, ended.decision) == (second.txn_id, RecordedDecision(COMMITTED, 0))
    assert open_headers(etcd) == [], "a late begin opens nothing, whether or not another one was begun since"
    await close(etcd, one, other)


@virtual_time
async def test_k1_a_newer_holder_begins_also_where_only_an_older_one_is_known() -> None:
    """Dies if it is judged by the older one's record: the newest holder would be told that it was fenced."""
    etcd = fresh_etcd()
    one, other = await two(etcd)
    older, newer = Holder("a"), Holder("b")
    await older.connect(one)
    await newer.connect(other)
    begun = await newer.begin(one)
    assert open_headers(etcd) == [begun.txn_id]
    assert isinstance(await refusal(older.begin(one)), ExpiredTransaction)
    await close(etcd, one, other)


@virtual_time
async def test_the_same_begin_again_behind_the_end_of_its_transaction_is_told_that() -> None:
    """It may have been on its way for long: nobody waits for it who would end what it opens."""
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    begun = await holder.begin(one)
    await commit(one, begun.txn_id)
    for process in (one, other):
        again = await holder.begin(process, number=1)
        assert (again.txn_id, again.decision) == (begun.txn_id, RecordedDecision(COMMITTED, 0))
    assert open_headers(etcd) == []
    await close(etcd, one, other)


@pytest.mark.parametrize("commit_first", [True, False])
@pytest.mark.parametrize("commit_late", [True, False])
@virtual_time
async def test_l2_a_delayed_end_never_ends_the_next_transaction_of_the_key(
    commit_first: bool, commit_late: bool
) -> None:
    """Wherever it comes, also once the header of what it meant is gone."""
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    first = await holder.begin(one)
    ended = await one.coordinator.end(first.txn_id, commit=commit_first)
    second = await holder.begin(one)
    for collected in (False, True):
        if collected:
            await until(lambda: [keys.txn_of(record.key) for record in headers(etcd)] == [second.txn_id])
        for process in (one, other):
            late = process.coordinator.end(first.txn_id, commit=commit_late)
            if commit_late is commit_first:
                assert (await late).state == ended.state
            else:
                assert isinstance(await refusal(late), InvalidTxnState)
        assert open_headers(etcd) == [second.txn_id]
    assert (await commit(one, second.txn_id)).state == COMMITTED
    await close(etcd, one, other)


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("fate", [LOST_BEFORE, LOST_AFTER, LANDS_LATE])
@virtual_time
async def test_d7_a_lost_keyed_begin_leaves_one_transaction_through_whichever_coordinator(
    fate: Fate, elsewhere: bool
) -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    await asyncio.sleep(1.0)  # its block of ids has come
    one.fates.script.append(fate)
    first = asyncio.ensure_future(holder.begin(one, number=1))
    await asyncio.sleep(0.1)
    begun = await holder.begin(other if elsewhere else one, number=1)
    assert (await first).txn_id == begun.txn_id
    assert open_headers(etcd) == [begun.txn_id]
    await asyncio.sleep(10.0)
    assert open_headers(etcd) == [begun.txn_id], "its client is there and knows of it"
    await commit(one, begun.txn_id)
    await close(etcd, one, other)


@pytest.mark.parametrize("fate", [LOST_BEFORE, LOST_AFTER, LANDS_LATE])
@virtual_time
async def test_a_begin_of_the_old_holder_that_is_still_on_its_way_never_lands_behind_the_new_one(fate: Fate) -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    old, new = Holder("old"), Holder("new")
    await old.connect(one)
    await asyncio.sleep(1.0)
    one.fates.script.append(fate)
    begin = asyncio.ensure_future(old.begin(one))
    await asyncio.sleep(0.1)
    assert await new.connect(other) == 1
    try:
        begun = await begin
    except ExpiredTransaction:
        pass
    else:
        assert isinstance(await refusal(commit(one, begun.txn_id)), ExpiredTransaction)
    mine = await new.begin(other)
    assert open_headers(etcd) == [mine.txn_id]
    await asyncio.sleep(30.0)
    assert one.coordinator.statistics().open + other.coordinator.statistics().open == 1
    await close(etcd, one, other)


@virtual_time
async def test_a_coordinator_that_slept_over_a_begin_and_its_key_opens_nothing() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    old, new = Holder("old"), Holder("new")
    await old.connect(one)
    await commit(one, (await old.begin(one)).txn_id)  # the record is remembered there
    one.pause()
    late = one.loop.create_task(old.begin(one), context=one.loop.context_of(one.owner))
    await new.connect(other)
    one.resume()
    assert isinstance(await refusal(late), ExpiredTransaction)
    assert open_headers(etcd) == []
    await close(etcd, one, other)


@virtual_time
async def test_k7_transactions_of_a_holder_that_never_comes_back_end_after_the_grace() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    begun = await holder.begin(one)
    one.coordinator.disconnected(holder.connection)
    assert 2.0 < await until(lambda: not open_headers(etcd)) < 5.0
    header = await one.header(begun.txn_id)
    assert header is not None
    assert header.reason == "session"
    # It is not fenced: nobody took its key.
    holder.connection = Connection("a")
    assert await holder.connect(one, named=-1) == 0
    assert (await holder.begin(one)).decision is None
    await close(etcd, one, other)


@virtual_time
async def test_a_killed_coordinator_s_keyed_transaction_is_its_client_s_at_the_successor() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    begun = await holder.begin(one)
    one.kill()
    await until(lambda: other.coordinator.owned_tcids == (0, 1))
    assert await holder.connect(other, named=-1) == 0
    await other.coordinator.announce(holder.connection, [begun.txn_id])
    await asyncio.sleep(20.0)
    assert open_headers(etcd) == [begun.txn_id]
    again = await holder.begin(other, number=1)
    assert (again.txn_id, again.joined) == (begun.txn_id, True)
    await commit(other, begun.txn_id)
    assert (await holder.begin(other)).decision is None
    await close(etcd, other)


@virtual_time
async def test_k7_a_transaction_whose_holder_went_before_its_begin_had_landed_ends_after_the_grace() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    await asyncio.sleep(1.0)  # its block of ids has come
    one.fates.script.append(LOST_BEFORE)
    beginning = asyncio.ensure_future(holder.begin(one))
    await asyncio.sleep(0.1)
    one.coordinator.disconnected(holder.connection)
    begun = await beginning
    assert open_headers(etcd) == [begun.txn_id]
    assert 2.0 < await until(lambda: not open_headers(etcd)) < 5.0
    await close(etcd, one, other)


@virtual_time
async def test_a_begin_repeated_at_the_successor_makes_its_transaction_the_holder_s_again() -> None:
    """Its answer was lost, so no list of its client names it: nobody else would show that its client is there."""
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    begun = await holder.begin(one)
    one.kill()
    await until(lambda: other.coordinator.owned_tcids == (0, 1))
    assert await holder.connect(other, named=-1) == 0
    await other.coordinator.announce(holder.connection, [])
    assert (await holder.begin(other, number=1)).txn_id == begun.txn_id
    await asyncio.sleep(20.0)
    assert open_headers(etcd) == [begun.txn_id]
    await close(etcd, other)
