"""What every `MetadataStore` must do about watches and leases: a part of `StoreContract`."""

from __future__ import annotations

import asyncio

import pytest

from tests.txnstore.contract_steps import IN_TIME_S, KEYS, A, B, C, events_until, put, summary, values, written
from txnstore.access.store_client import StoreClient
from txnstore.store import (
    Commit,
    Delete,
    Event,
    EventKind,
    KeyValue,
    LeaseGone,
    Put,
    absent,
)


class WatchContract:
    # --- watches ---

    async def test_a_watch_tells_every_change_in_order(self, store: StoreClient) -> None:
        (first,) = await written(store, put(A, b"1"))
        watch = store.watch(*KEYS, from_revision=first)
        await written(
            store,
            Commit(puts=(Put(B, b"2"), Put(C, b"3"))),
            put(b"/elsewhere"),
            Commit(puts=(Put(A, b"4"),), deletes=(Delete(B),)),
            put(C, b"end"),
        )
        events = await events_until(watch, C, b"end")
        assert summary(events) == [
            ("PUT", A, b"1"),
            ("PUT", B, b"2"),
            ("PUT", C, b"3"),
            ("PUT", A, b"4"),
            ("DELETE", B, b""),
            ("PUT", C, b"end"),
        ]
        record = events[3].record
        assert (record.version, record.create_revision) == (2, first)
        await watch.close()

    async def test_a_watch_may_start_in_the_future(self, store: StoreClient) -> None:
        (now,) = await written(store, put(A, b"1"))
        watch = store.watch(*KEYS, from_revision=now + 2)
        await written(store, put(A, b"2"), put(A, b"3"))
        assert summary(await events_until(watch, A, b"3")) == [("PUT", A, b"3")]
        await watch.close()

    async def test_a_batch_holds_whole_revisions(self, store: StoreClient) -> None:
        (now,) = await written(store, put(A))
        watch = store.watch(*KEYS, from_revision=now + 1)
        commits = [Commit(puts=tuple(Put(b"/k/%d/%d" % (n, m), b"") for m in range(10))) for n in range(50)]
        results = await asyncio.gather(*[store.commit(commit) for commit in commits])
        last = max(result.revision for result in results)
        seen = 0
        async with asyncio.timeout(IN_TIME_S):
            async for batch in watch:
                assert batch.revision == batch.events[-1].record.mod_revision
                assert not batch.resync
                at = (await store.range(*KEYS, revision=batch.revision, keys_only=True)).records
                seen += len(batch.events)
                assert seen == len(at) - 1
                if batch.revision == last:
                    break
        await watch.close()

    async def test_e1_a_compacted_watch_lists_anew_and_goes_on(self, store: StoreClient) -> None:
        first, *_, last = await written(
            store, put(A, b"1"), put(B, b"2"), Commit(deletes=(Delete(A),)), put(C, b"3"), put(b"/elsewhere", b"")
        )
        await store.compact(last)
        watch = store.watch(*KEYS, from_revision=first)
        async with asyncio.timeout(IN_TIME_S):
            batch = await anext(watch)
        assert batch.resync
        assert batch.revision >= last
        assert summary(batch.events) == [("PUT", B, b"2"), ("PUT", C, b"3")]
        await written(store, put(A, b"4"))
        assert summary(await events_until(watch, A, b"4")) == [("PUT", A, b"4")]
        await watch.close()

    async def test_a_cancelled_wait_loses_no_event(self, store: StoreClient) -> None:
        (now,) = await written(store, put(A, b"0"))
        watch = store.watch(*KEYS, from_revision=now + 1)
        events: list[Event] = []
        for n in range(1, 20):
            waiting = asyncio.ensure_future(anext(watch))
            await store.commit(put(A, b"%d" % n))
            waiting.cancel()
            try:
                events += (await waiting).events
            except asyncio.CancelledError:
                continue
        await store.commit(put(A, b"end"))
        events += await events_until(watch, A, b"end")
        assert [event.record.value for event in events] == [*[b"%d" % n for n in range(1, 20)], b"end"]
        await watch.close()

    async def test_closing_a_watch_ends_whoever_waits(self, store: StoreClient) -> None:
        watch = store.watch(*KEYS, from_revision=1)
        waiting = asyncio.ensure_future(anext(watch, None))
        await asyncio.sleep(0)
        await watch.close()
        async with asyncio.timeout(IN_TIME_S):
            while (batch := await waiting) is not None:
                assert batch.events
                waiting = asyncio.ensure_future(anext(watch, None))
        await watch.close()

    # --- leases ---

    async def test_a_lease_takes_its_keys_along(self, store: StoreClient, other_store: StoreClient) -> None:
        lease = await store.grant_lease(5)
        assert lease.valid()
        leased = [put(key, b"1", lease=lease.id) for key in (A, C)]
        revision, *_ = await written(store, *leased, put(B, b"2"))
        record = await other_store.get(A)
        assert record == KeyValue(A, b"1", 1, revision, revision, lease.id)
        await lease.revoke()
        assert not lease.valid()
        assert await values(store) == {B: b"2"}
        await lease.revoke()

    async def test_a_predecessors_lease_can_be_revoked(self, store: StoreClient, other_store: StoreClient) -> None:
        lease = await other_store.grant_lease(5)
        await written(other_store, put(A, lease=lease.id))
        await store.revoke_lease(lease.id)
        assert await values(store) == {}
        await store.revoke_lease(lease.id)
        async with asyncio.timeout(IN_TIME_S):
            await lease.wait_lost()  # the next keep-alive tells
        assert not lease.valid()

    async def test_a_rewrite_without_the_lease_frees_the_key(self, store: StoreClient) -> None:
        lease = await store.grant_lease(5)
        await written(store, put(A, b"1", lease=lease.id), put(A, b"2"))
        await lease.revoke()
        assert await values(store) == {A: b"2"}

    async def test_a_put_on_a_lease_that_is_gone_fails_alone(self, store: StoreClient) -> None:
        lease = await store.grant_lease(5)
        await lease.revoke()
        futures = [store.commit_nowait(put(b"/k/%d" % n)) for n in range(10)]
        with pytest.raises(LeaseGone):
            await store.commit(put(A, lease=lease.id))
        assert all([(await future).succeeded for future in futures])
        assert (await store.get(A)) is None

    async def test_a_refused_put_does_not_ask_for_its_lease(self, store: StoreClient) -> None:
        lease = await store.grant_lease(5)
        await lease.revoke()
        await written(store, put(A))
        assert not (await store.commit(put(A, b"", absent(A), lease=lease.id))).succeeded

    async def test_a_watch_tells_deletions_by_lease_and_range(self, store: StoreClient) -> None:
        lease = await store.grant_lease(5)
        *_, last = await written(store, put(B, lease=lease.id), put(A, lease=lease.id), put(C))
        watch = store.watch(*KEYS, from_revision=last + 1)
        await lease.revoke()
        await written(store, Commit(deletes=(Delete(*KEYS),)), put(A, b"end"))
        events = await events_until(watch, A, b"end")
        assert [(event.kind, event.record.key) for event in events] == [
            (EventKind.DELETE, A),
            (EventKind.DELETE, B),
            (EventKind.DELETE, C),
            (EventKind.PUT, A),
        ]
        assert events[0].record.mod_revision == events[1].record.mod_revision < events[2].record.mod_revision
        await watch.close()
