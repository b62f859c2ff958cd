"""What every `MetadataStore` must do. Subclass `StoreContract` and give it the fixtures `store` and `other_store`
(another client of the same keys)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from txnstore import keys
from txnstore.access import store_client
from txnstore.access.backend import Fenced, RequestFence
from txnstore.access.grouping import GroupMember
from txnstore.access.store_client import StoreClient
from txnstore.store import (
    MAX_COMMIT_BYTES,
    MAX_COMMIT_OPS,
    Commit,
    Compacted,
    Compare,
    Delete,
    Event,
    EventKind,
    KeyValue,
    LeaseGone,
    Put,
    Read,
    Relation,
    StoreWatch,
    Target,
    absent,
    created_at,
    range_is_empty,
    unchanged_since,
    version_is,
)
from txnwire.errors import InvalidArgument, StoreUnavailable

A, B, C = b"/k/a", b"/k/b", b"/k/c"
KEYS = (b"/k/", b"/k0")
IN_TIME_S = 10.0


def put(key: bytes, value: bytes = b"v", *compares: Compare, lease: int = 0) -> Commit:
    return Commit(compares, (Put(key, value, lease),))


async def written(store: StoreClient, *commits: Commit) -> list[int]:
    """The revisions of commits that must succeed, made one after the other."""
    revisions = []
    for commit in commits:
        result = await store.commit(commit)
        assert result.succeeded
        revisions.append(result.revision)
    return revisions


async def values(store: StoreClient) -> dict[bytes, bytes]:
    return {record.key: record.value for record in (await store.range(*KEYS)).records}


async def events_until(watch: StoreWatch, key: bytes, value: bytes) -> list[Event]:
    """Everything up to the put of `key` to `value`."""
    events: list[Event] = []
    async with asyncio.timeout(IN_TIME_S):
        async for batch in watch:
            assert [event.record.mod_revision for event in batch.events] == sorted(
                event.record.mod_revision for event in batch.events
            )
            events += batch.events
            if batch.events[-1].record.key == key and batch.events[-1].record.value == value:
                return events
    raise AssertionError("the watch ended")


def summary(events: Sequence[Event]) -> list[tuple[str, bytes, bytes]]:
    return [(event.kind.name, event.record.key, event.record.value) for event in events]


class StoreContract:
    # --- commits ---

    @pytest.mark.parametrize("members", [1, 3])
    async def test_what_is_sent_under_a_fence_that_was_raised_is_refused(
        self, store: StoreClient, members: int
    ) -> None:
        """▲ Below group commit: what keeps an earlier sending from landing behind a later one."""
        backend = store._backend
        key, (lease, _) = keys.SENDER + b"test", await backend.grant(60)
        sent = [GroupMember(commit, backend.encode(commit)) for commit in [put(b"/k/%d" % n) for n in range(members)]]
        first = await backend.raise_fence(RequestFence(key, 0), lease)
        second = await backend.raise_fence(RequestFence(key, first), lease)
        assert 0 < first < second
        assert await backend.raise_fence(RequestFence(key, first), lease) == second
        with pytest.raises(Fenced):
            await backend.commit(sent, repeated=False, fence=RequestFence(key, first))
        assert await values(store) == {}
        assert all(one.succeeded for one in await backend.commit(sent, repeated=False, fence=RequestFence(key, second)))
        await backend.revoke(lease)
        assert await backend.raise_fence(RequestFence(key, second), 0) == 0
        with pytest.raises(Fenced):
            await backend.commit(sent, repeated=False, fence=RequestFence(key, second))

    async def test_a_commit_writes_all_at_one_revision(self, store: StoreClient) -> None:
        await written(store, put(C))
        (revision,) = await written(store, Commit((absent(A),), (Put(A, b"1"), Put(B, b"2")), (Delete(C),)))
        assert (await store.range(*KEYS)).records == (
            KeyValue(A, b"1", 1, revision, revision),
            KeyValue(B, b"2", 1, revision, revision),
        )

    async def test_a_refused_commit_writes_nothing_and_reads(self, store: StoreClient) -> None:
        (first,) = await written(store, put(A, b"1"))
        result = await store.commit(
            Commit((absent(A),), (Put(B, b"x"),), (Delete(A),), (Read(A), Read(B), Read(*KEYS)))
        )
        record = KeyValue(A, b"1", 1, first, first)
        assert not result.succeeded
        assert not result.repeated
        assert result.reads == ((record,), (), (record,))
        assert await values(store) == {A: b"1"}

    async def test_versions_and_revisions_count(self, store: StoreClient) -> None:
        first, second = await written(store, put(A, b"1", absent(A)), put(A, b"2", version_is(A, 1)))
        assert await store.get(A) == KeyValue(A, b"2", 2, first, second)
        assert second > first
        (third,) = await written(store, Commit(deletes=(Delete(A),)))
        (fourth,) = await written(store, put(A, b"3", absent(A)))
        assert await store.get(A) == KeyValue(A, b"3", 1, fourth, fourth)
        assert fourth > third

    @pytest.mark.parametrize(
        ("target", "relation", "offset", "holds"),
        [
            (Target.VERSION, Relation.EQUAL, 0, True),
            (Target.VERSION, Relation.NOT_EQUAL, 0, False),
            (Target.VERSION, Relation.GREATER, -1, True),
            (Target.VERSION, Relation.LESS, 0, False),
            (Target.CREATE, Relation.EQUAL, 0, True),
            (Target.CREATE, Relation.LESS, 1, True),
            (Target.MOD, Relation.EQUAL, 0, True),
            (Target.MOD, Relation.GREATER, 0, False),
            (Target.LEASE, Relation.EQUAL, 0, True),
            (Target.LEASE, Relation.NOT_EQUAL, 0, False),
        ],
    )
    async def test_every_compare(
        self, store: StoreClient, target: Target, relation: Relation, offset: int, holds: bool
    ) -> None:
        await written(store, put(A, b"1"), put(A, b"2"))
        record = await store.get(A)
        assert record is not None
        number = {
            Target.VERSION: record.version,
            Target.CREATE: record.create_revision,
            Target.MOD: record.mod_revision,
            Target.LEASE: record.lease,
        }[target]
        assert (await store.commit(put(B, b"", Compare(A, target, relation, number + offset)))).succeeded is holds

    async def test_an_absent_key_has_zeros(self, store: StoreClient) -> None:
        zeros = [Compare(A, target, Relation.EQUAL, 0) for target in Target]
        assert (await store.commit(put(B, b"", *zeros, unchanged_since(A, 0)))).succeeded

    async def test_keys_are_counted_without_being_read(self, store: StoreClient) -> None:
        await written(store, put(A), put(B), put(C), put(b"/other"), Commit((), (), (Delete(B),)))
        assert await store.count(*KEYS) == 2
        assert await store.count(b"/k/b", b"/k/c") == 0

    async def test_queries_of_an_index_are_timed_and_no_others(self, store: StoreClient) -> None:
        await store.range(*KEYS)
        assert store.index_queries().count == 0
        await store.range(b"/idx/txn-by-deadline/", b"/idx/txn-by-deadline0", keys_only=True)
        assert store.index_queries().count == 1

    async def test_group_sizes_and_latencies_are_counted(self, store: StoreClient) -> None:
        results = await asyncio.gather(*[store.commit(put(b"/k/%d" % n)) for n in range(20)])
        statistics = store.statistics()
        assert (statistics.sizes.total, statistics.sizes.count) == (20, statistics.requests)
        assert statistics.latency.count == statistics.requests
        assert statistics.revision == max(result.revision for result in results)

    async def test_range_compares_hold_for_every_key(self, store: StoreClient) -> None:
        assert (await store.commit(put(b"/x", b"", range_is_empty(*KEYS)))).succeeded
        (first,) = await written(store, put(A))
        assert not (await store.commit(put(b"/x", b"", range_is_empty(*KEYS)))).succeeded
        await written(store, put(B))
        created_first = Compare(KEYS[0], Target.CREATE, Relation.EQUAL, first, KEYS[1])
        assert not (await store.commit(put(b"/x", b"", created_first))).succeeded
        unread = Compare(KEYS[0], Target.VERSION, Relation.EQUAL, 1, KEYS[1])
        assert (await store.commit(put(b"/x", b"", unread))).succeeded

    async def test_a_range_delete_spares_its_end(self, store: StoreClient) -> None:
        await written(store, put(A), put(B), put(C), Commit(deletes=(Delete(A, C),)))
        assert await values(store) == {C: b"v"}

    async def test_deleting_nothing_succeeds_and_makes_no_revision(self, store: StoreClient) -> None:
        (before,) = await written(store, put(A))
        (after,) = await written(store, Commit(deletes=(Delete(B),)))
        assert after == before

    # --- group commit ---

    async def test_concurrent_commits_share_requests_and_keep_their_own_verdicts(self, store: StoreClient) -> None:
        await written(store, put(A))
        good = [put(b"/k/good/%d" % n, b"", absent(b"/k/good/%d" % n)) for n in range(100)]
        bad = [put(b"/k/bad/%d" % n, b"", absent(A)) for n in range(100)]
        mixed = [commit for pair in zip(good, bad, strict=True) for commit in pair]
        before = store.statistics()
        results = await asyncio.gather(*[store.commit(commit) for commit in mixed])
        assert [result.succeeded for result in results] == [True, False] * 100
        assert store.statistics().requests - before.requests < 20
        assert len((await store.range(b"/k/good/", b"/k/good0")).records) == 100
        assert not (await store.range(b"/k/bad/", b"/k/bad0")).records

    async def test_of_racing_creates_one_wins(self, store: StoreClient, other_store: StoreClient) -> None:
        racers = [(client, b"%d" % n) for n in range(20) for client in (store, other_store)]
        results = await asyncio.gather(*[client.commit(put(A, name, absent(A))) for client, name in racers])
        assert sum(result.succeeded for result in results) == 1

    async def test_concurrent_rewrites_of_one_key_all_happen_in_order(self, store: StoreClient) -> None:
        results = await asyncio.gather(*[store.commit(put(A, b"%d" % n, version_is(A, n))) for n in range(30)])
        assert all(result.succeeded for result in results)
        assert await values(store) == {A: b"29"}

    async def test_a_compare_never_shares_a_request_with_a_write_of_its_key(self, store: StoreClient) -> None:
        """▲ All compares of a request come before its writes: a late op would slip in beside the decision."""
        await written(store, put(A, b"open"))
        ops = [store.commit_nowait(put(b"/k/op/%d" % n, b"", version_is(A, 1))) for n in range(10)]
        end = store.commit_nowait(put(A, b"committed", version_is(A, 1)))
        late = [store.commit_nowait(put(b"/k/late/%d" % n, b"", version_is(A, 1))) for n in range(10)]
        decided = await end
        assert decided.succeeded
        for result in [await future for future in (*ops, *late)]:
            if result.succeeded:
                assert result.revision < decided.revision
            else:
                assert result.revision >= decided.revision

    async def test_a_range_compare_never_shares_a_request_with_a_put_into_it(self, store: StoreClient) -> None:
        """▲ As above, for ranges: a header is collected only if no op of it is there (DESIGN §5)."""
        collected = store.commit_nowait(put(A, b"", range_is_empty(b"/k/op/", b"/k/op0")))
        op = store.commit_nowait(put(b"/k/op/1", b""))
        later = store.commit_nowait(put(B, b"", range_is_empty(b"/k/op/", b"/k/op0")))
        first, second, third = await collected, await op, await later
        assert second.succeeded
        for collection in (first, third):
            if collection.succeeded:
                assert collection.revision < second.revision
            else:
                assert collection.revision >= second.revision

    async def test_members_of_a_group_share_a_revision_and_see_siblings_puts_in_else_reads(
        self, store: StoreClient
    ) -> None:
        """Decide by the verdict: the reads of a refused member may already show what a sibling has put."""
        await written(store, put(A))
        winner = store.commit_nowait(put(B, b"sibling"))
        loser = store.commit_nowait(Commit((absent(A),), (Put(C, b""),), (), (Read(B),)))
        won, lost = await winner, await loser
        assert won.succeeded
        assert not lost.succeeded
        assert won.revision == lost.revision
        assert [record.value for record in lost.reads[0]] == [b"sibling"]

    @pytest.mark.parametrize(
        "malformed",
        [
            Commit(puts=(Put(A, b""), Put(A, b""))),
            Commit(puts=(Put(A, b""),), deletes=(Delete(*KEYS),)),
            Commit(deletes=(Delete(B, A),)),
            Commit(puts=tuple(Put(b"/k/%d" % n, b"") for n in range(MAX_COMMIT_OPS + 1))),
            Commit(puts=(Put(A, bytes(MAX_COMMIT_BYTES + 1)),)),
        ],
    )
    async def test_malformed_commits_raise(self, store: StoreClient, malformed: Commit) -> None:
        with pytest.raises(InvalidArgument):
            await store.commit(malformed)
        with pytest.raises(InvalidArgument):
            store.commit_nowait(malformed)
        assert await values(store) == {}

    async def test_a3_the_largest_commits_pass_beside_others(self, store: StoreClient) -> None:
        many = Commit(puts=tuple(Put(b"/k/many/%03d" % n, b"") for n in range(MAX_COMMIT_OPS)))
        large = Commit(puts=(Put(b"/k/large", bytes(MAX_COMMIT_BYTES - 1000)),))
        others = [put(b"/k/other/%d" % n) for n in range(300)]
        results = await asyncio.gather(*[store.commit(commit) for commit in (*others, many, large)])
        assert all(result.succeeded for result in results)
        assert len((await store.range(*KEYS, keys_only=True)).records) == 300 + MAX_COMMIT_OPS + 1

    async def test_a_member_that_poisons_a_group_fails_alone(self, bare_store: StoreClient) -> None:
        """An empty key is refused by etcd itself, and with it the whole request."""
        commits = [put(b"/poison/%d" % n) for n in range(60)]
        poison = Commit(puts=(Put(b"", b""),))
        futures = [bare_store.commit_nowait(commit) for commit in (*commits[:30], poison, *commits[30:])]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(outcomes.pop(30), InvalidArgument)
        assert all(not isinstance(outcome, BaseException) and outcome.succeeded for outcome in outcomes)
        assert bare_store.statistics().splits > 0

    # --- reads ---

    async def test_get_and_get_many(self, store: StoreClient) -> None:
        assert await store.get(A) is None
        first, second = await written(store, put(A, b"1"), put(C, b"3"))
        revision, records = await store.get_many([C, B, A])
        assert revision == second
        assert records == [KeyValue(C, b"3", 1, second, second), None, KeyValue(A, b"1", 1, first, first)]
        with pytest.raises(InvalidArgument, match="no key at all"):
            await store.get_many([])

    async def test_get_many_splits_and_stays_at_one_revision(
        self, store: StoreClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_client, "_KEYS_PER_READ", 7)
        keys = [b"/k/%02d" % n for n in range(30)]
        (revision,) = await written(store, Commit(puts=tuple(Put(key, key) for key in keys)))
        reading = asyncio.create_task(store.get_many(keys))
        await asyncio.gather(*[store.commit(put(key, b"new")) for key in keys])
        at, records = await reading
        assert at >= revision
        expected = [await store.range(key, key + b"\0", revision=at) for key in keys]
        assert records == [found.records[0] for found in expected]

    async def test_get_many_at_a_given_revision_sees_nothing_newer(
        self, store: StoreClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Recovery reads indexes and headers at one revision (DESIGN §6)."""
        monkeypatch.setattr(store_client, "_KEYS_PER_READ", 2)
        keys = [b"/k/%02d" % n for n in range(5)]
        (then,) = await written(store, Commit(puts=tuple(Put(key, b"old") for key in keys[:4])))
        await written(store, *(put(key, b"new") for key in keys))
        revision, records = await store.get_many(keys, revision=then)
        assert revision == then
        assert [record.value if record else None for record in records] == [b"old"] * 4 + [None]

    async def test_a_range_is_read_in_pages_at_one_revision(
        self, store: StoreClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_client, "PAGE_RECORDS", 5)
        keys = [b"/k/%02d" % n for n in range(23)]
        await written(store, Commit(puts=tuple(Put(key, b"old") for key in keys)))
        reading = asyncio.create_task(store.range(*KEYS))
        changed = [store.commit(put(key, b"new")) for key in keys[::2]]
        deleted = [store.commit(Commit(deletes=(Delete(key),))) for key in keys[1::2]]
        await asyncio.gather(*changed, *deleted)
        found = await reading
        again = await store.range(*KEYS, revision=found.revision)
        assert again == found
        assert len({record.key for record in found.records}) == len(found.records)
        assert all(record.mod_revision <= found.revision for record in found.records)

    @pytest.mark.parametrize("limit", [1, 4, 5, 6, 22, 23, 100])
    async def test_a_limit_bounds_the_answer(
        self, store: StoreClient, monkeypatch: pytest.MonkeyPatch, limit: int
    ) -> None:
        monkeypatch.setattr(store_client, "PAGE_RECORDS", 5)
        keys = [b"/k/%02d" % n for n in range(23)]
        await written(store, Commit(puts=tuple(Put(key, b"old") for key in keys)))
        assert [record.key for record in (await store.range(*KEYS, limit=limit)).records] == keys[:limit]

    @pytest.mark.parametrize("at_once", [1, 3, 100])
    async def test_many_small_ranges_are_read_at_one_revision(
        self, store: StoreClient, monkeypatch: pytest.MonkeyPatch, at_once: int
    ) -> None:
        monkeypatch.setattr(store_client, "_RANGES_PER_READ", at_once)
        held = {f"/k/{prefix}/".encode(): count for prefix, count in zip("abcdef", (0, 1, 3, 4, 5, 23), strict=True)}
        puts = [Put(prefix + b"%02d" % n, b"old") for prefix, count in held.items() for n in range(count)]
        (revision,) = await written(store, Commit(puts=tuple(puts)))
        await written(store, put(b"/k/a/00", b"new"), put(b"/k/f/00", b"new"))
        asked = [(prefix, keys.prefix_end(prefix)) for prefix in held]
        found = await store.ranges(asked, revision=revision)
        assert [[record.value for record in records] for records in found] == [[b"old"] * n for n in held.values()]
        assert [record.key for records in found for record in records] == [one.key for one in puts]
        await store.compact(revision + 1)
        with pytest.raises(Compacted):
            await store.ranges(asked, revision=revision)

    async def test_keys_only_leaves_the_values_out(self, store: StoreClient) -> None:
        (revision,) = await written(store, put(A, b"value"))
        assert (await store.range(*KEYS, keys_only=True)).records == (KeyValue(A, b"", 1, revision, revision),)

    async def test_old_revisions_are_read_until_compacted(self, store: StoreClient) -> None:
        first, second, third = await written(store, put(A, b"1"), Commit(deletes=(Delete(A),)), put(A, b"3"))
        assert [record.value for record in (await store.range(*KEYS, revision=first)).records] == [b"1"]
        assert (await store.range(*KEYS, revision=second)).records == ()
        await store.compact(third)
        await store.compact(third)  # by another holder of the role, or by hand: fine
        with pytest.raises(Compacted):
            await store.range(*KEYS, revision=second)
        assert [record.value for record in (await store.range(*KEYS, revision=third)).records] == [b"3"]

    @pytest.mark.parametrize("read", ["range", "get_many"])
    async def test_a_read_that_compaction_overtakes_starts_over(
        self, store: StoreClient, monkeypatch: pytest.MonkeyPatch, read: str
    ) -> None:
        """▲ A process that follows decisions ended by it, and all of them at once where etcd is compacted by hand."""
        monkeypatch.setattr(store_client, "PAGE_RECORDS", 2)
        monkeypatch.setattr(store_client, "_KEYS_PER_READ", 2)
        asked = [b"/k/%d" % n for n in range(6)]
        first, *_ = await written(store, *(put(key, b"old") for key in asked))
        compacted: list[int] = []

        async def compact_now() -> None:
            if not compacted:
                (revision,) = await written(store, put(asked[-1], b"new"))
                compacted.append(revision)
                await store.compact(revision)

        method = "read_page" if read == "range" else "read_many"
        sent = getattr(store._backend, method)

        async def page(*args: object, **options: object) -> object:
            answer = await sent(*args, **options)
            await compact_now()
            return answer

        monkeypatch.setattr(store._backend, method, page)
        if read == "range":
            found = await store.range(*KEYS)
            records = list(found.records)
            with pytest.raises(Compacted):
                await store.range(*KEYS, revision=first)
        else:
            _, some = await store.get_many(asked)
            records = [record for record in some if record is not None]
            with pytest.raises(Compacted):
                await store.get_many(asked, revision=first)
        assert [record.value for record in records] == [*[b"old"] * 5, b"new"]

    async def test_an_empty_range_is_refused(self, store: StoreClient) -> None:
        with pytest.raises(InvalidArgument, match="end must be above"):
            await store.range(B, A)
        with pytest.raises(InvalidArgument, match="end must be above"):
            store.watch(B, B, from_revision=1)

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

    # --- identity, closing ---

    async def test_the_incarnation_is_given_once(self, store: StoreClient, other_store: StoreClient) -> None:
        first, second = await asyncio.gather(store.incarnation(), other_store.incarnation())
        assert first == second
        assert len(first) == 16

    async def test_closing_fails_what_is_waiting_and_everything_after(self, other_store: StoreClient) -> None:
        waiting = [other_store.commit_nowait(put(b"/k/%d" % n)) for n in range(5)]
        watch = other_store.watch(*KEYS, from_revision=1)
        lease = await other_store.grant_lease(5)
        await other_store.close()
        assert all(future.done() for future in waiting)
        assert not lease.valid()
        async with asyncio.timeout(IN_TIME_S):
            while await anext(watch, None) is not None:
                pass
        with pytest.raises(StoreUnavailable):
            await other_store.commit(put(A))
        with pytest.raises(StoreUnavailable):
            await other_store.commit_nowait(put(A))
        with pytest.raises(StoreUnavailable):
            await other_store.get(A)
        for future in waiting:
            future.exception()
        await other_store.close()

    async def test_created_at_is_an_epoch(self, store: StoreClient) -> None:
        (epoch,) = await written(store, put(A))
        assert (await store.commit(put(B, b"", created_at(A, epoch)))).succeeded
        await written(store, Commit(deletes=(Delete(A),)), put(A))
        assert not (await store.commit(put(B, b"", created_at(A, epoch)))).succeeded

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
