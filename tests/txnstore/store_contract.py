"""What every `MetadataStore` must do. Subclass `StoreContract` and give it the fixtures `store` and `other_store`
(another client of the same keys)."""

from __future__ import annotations

import asyncio

import pytest

from tests.txnstore.contract_steps import IN_TIME_S, KEYS, A, B, C, put, values, written
from tests.txnstore.watch_contract import WatchContract
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
    KeyValue,
    Put,
    Read,
    Relation,
    Target,
    absent,
    created_at,
    range_is_empty,
    unchanged_since,
    version_is,
)
from txnwire.errors import InvalidArgument, StoreUnavailable


class StoreContract(WatchContract):
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
        await store.range(b"/idx/writes-by-segment/a/", b"/idx/writes-by-segment/a0", keys_only=True)
        assert store.index_queries().count == 2

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
        await written(store, *(put(key, b"new") for key in (b"/k/a/00", b"/k/f/00", b"/k/f/22")))
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
