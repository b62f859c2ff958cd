"""E2: writes whose answers are missing, in virtual time over the in-memory etcd."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import cast

import pytest

from tests.segments.virtual_time import LoopClock, run, virtual_time
from tests.txnstore.faulty_store import (
    HANGS,
    LANDS_LATE,
    LOST_AFTER,
    LOST_BEFORE,
    UNKNOWN,
    A,
    B,
    Script,
    client,
    create,
    record,
)
from tests.waiting import until_turn
from txnstore import keys
from txnstore.access.backend import Backend, RequestFence
from txnstore.access.group_commit import COMPANY, COMPANY_S, GroupCommit
from txnstore.access.grouping import GroupMember
from txnstore.access.sending_fence import RENEW_S, TTL_S
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate, MemoryBackend, MemoryStore
from txnstore.store import (
    Commit,
    CommitVerdict,
    Delete,
    Put,
    Read,
    unchanged_since,
)
from txnwire.errors import InternalError, InvalidArgument, OutcomeUnknown, StoreFull, StoreUnavailable


@pytest.mark.parametrize(
    "fates", [[first] for first in UNKNOWN] + [[LANDS_LATE, LOST_BEFORE], [LOST_AFTER, HANGS]], ids=str
)
@pytest.mark.parametrize("members", [1, 5])
@virtual_time
async def test_e2_a_commit_of_unknown_fate_is_repeated_until_definite(fates: list[Fate], members: int) -> None:
    """▲ The same conditional write again; a refusal then shows the earlier sending by the caller's own identity."""
    etcd = MemoryEtcd(LoopClock())
    faults = Script(fates=fates)
    store = client(etcd, faults)
    mine = [b"/k/%d" % n for n in range(members)]
    results = await asyncio.gather(*[store.commit(create(key, b"mine"), timeout_s=60) for key in mine])
    for result in results:
        assert result.repeated
        assert result.succeeded or result.reads[0][0].value == b"mine"
        assert result.succeeded == (fates[0].arrive_s is None or fates[0].arrive_s > 1)
    assert faults.sent == len(fates) + 1
    await asyncio.sleep(10)  # until what lands late has landed
    assert [record(etcd, key).version for key in mine] == [1] * members
    await store.close()


@pytest.mark.parametrize("fate", UNKNOWN, ids=str)
@virtual_time
async def test_e2_a_caller_that_times_out_learns_that_the_outcome_is_open_and_the_store_goes_on(fate: Fate) -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd, Script(fates=[fate]))
    with pytest.raises(OutcomeUnknown, match="is still being repeated"):
        await store.commit(create(A, b"mine"), timeout_s=0.3)
    follower = await store.commit(Commit((unchanged_since(A, 0),), (Put(A, b"other"),), (), (Read(A),)), timeout_s=60)
    assert not follower.succeeded, "sent only after the first one's verdict, so it finds its record"
    assert follower.reads[0][0].value == b"mine"
    await asyncio.sleep(10)
    assert record(etcd, A).version == 1
    await store.close()


@virtual_time
async def test_few_wait_for_the_answer_of_a_request_in_flight_but_not_for_long() -> None:
    """Alone at once; behind a request in flight with its answer, together; after `COMPANY_S` by itself; not many."""
    faults = Script(fates=[Fate(arrive_s=0.003)])
    store, loop = client(MemoryEtcd(LoopClock()), faults), asyncio.get_running_loop()

    async def put(key: str) -> float:
        assert (await store.commit(create(key.encode(), b""))).succeeded
        return loop.time()

    first = asyncio.create_task(put("/first"))
    await asyncio.sleep(0.001)
    few = [asyncio.create_task(put(f"/few/{number}")) for number in range(3)]
    await asyncio.sleep(0.001)
    few.append(asyncio.create_task(put("/few/late")))
    answered_s = await first
    assert min([await one for one in few]) >= answered_s
    assert faults.sent == 2, "what came meanwhile travelled together"

    faults.fates = [Fate(arrive_s=1.0), Fate(arrive_s=1.0)]
    stuck = asyncio.create_task(put("/stuck"))
    await asyncio.sleep(0.001)
    asked_s = loop.time()
    soon = asyncio.create_task(put("/soon"))
    await asyncio.sleep(COMPANY_S / 2)
    assert faults.sent == 3
    await asyncio.sleep(COMPANY_S)
    assert faults.sent == 4, "it does not wait for a request that is not answered"
    many = [asyncio.create_task(put(f"/many/{number}")) for number in range(COMPANY)]
    await asyncio.wait(many)
    assert loop.time() - asked_s < 2 * COMPANY_S
    await asyncio.gather(stuck, soon)
    await store.close()


@virtual_time
async def test_one_unanswered_write_per_key_is_in_flight() -> None:
    """▲ A late old value must never land on a new one: the second write of a key waits for the first one's verdict, and
    compares what that left."""
    etcd = MemoryEtcd(LoopClock())
    faults = Script(fates=[LANDS_LATE])
    store = client(etcd, faults)
    first = store.commit_nowait(create(A, b"old"))
    await asyncio.sleep(0.1)
    second = store.commit_nowait(Commit((), (Put(A, b"new"),)))
    elsewhere = await store.commit(create(B, b""), timeout_s=0.2)
    assert elsewhere.succeeded, "other keys are not held up"
    assert not second.done()
    verdict = await first
    assert not (verdict.repeated and not verdict.succeeded)
    assert (await second).succeeded
    await asyncio.sleep(10)
    assert record(etcd, A).value == b"new", "the late sending found its compare failed"
    await store.close()


@virtual_time
async def test_what_was_not_sent_is_withdrawn() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    store.memory_backend.disconnect()
    with pytest.raises(StoreUnavailable, match="not sent"):
        await store.commit(create(A, b""), timeout_s=0.5)
    patient = store.commit_nowait(create(B, b""))
    await asyncio.sleep(30)
    store.memory_backend.reconnect()
    assert (await patient).succeeded
    await asyncio.sleep(1)
    assert etcd.mvcc.get(A) is None
    await store.close()


@virtual_time
async def test_what_a_refused_group_left_unsent_is_withdrawn_too() -> None:
    """A poisoned group has been refused whole and is being tried in parts when the connection goes."""
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    innocent = [store.commit(create(b"/k/%d" % n, b""), timeout_s=2.0) for n in range(8)]
    poison = store.commit(Commit(puts=(Put(b"", b""),)), timeout_s=2.0)
    waiting = asyncio.gather(poison, *innocent, return_exceptions=True)
    await until_turn(lambda: store.statistics().splits, "a group that is tried in parts")
    store.memory_backend.disconnect()
    outcomes = await waiting
    await asyncio.sleep(5)
    store.memory_backend.reconnect()
    await asyncio.sleep(5)
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds.count(StoreUnavailable) >= 4, kinds
    applied = len(etcd.mvcc.range(b"/k/", b"/k0")[0])
    assert applied <= 8 - kinds.count(StoreUnavailable) + 1
    await store.close()


@virtual_time
async def test_e2_every_part_of_a_group_that_was_unanswered_and_then_refused_is_a_repeat() -> None:
    """▲ A part sent as if for the first time might land twice: its first sending may still be on its way."""
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd, Script(fates=[LOST_BEFORE]))
    innocent = [store.commit_nowait(create(b"/k/%d" % n, b"")) for n in range(7)]
    poison = store.commit_nowait(Commit(puts=(Put(b"", b""),)))
    results = await asyncio.gather(*innocent)
    assert [result.repeated for result in results] == [True] * len(innocent)
    assert store.statistics().splits > 1
    with pytest.raises(InvalidArgument):
        await poison
    await store.close()


@virtual_time
async def test_parked_behind_an_open_fate_is_withdrawn_in_time_too() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd, Script(fates=[HANGS, HANGS]))
    first = store.commit_nowait(create(A, b"first"))
    await asyncio.sleep(0.01)
    with pytest.raises(StoreUnavailable, match="not sent"):
        await store.commit(Commit((), (Put(A, b"second"),)), timeout_s=1.0)
    assert (await first).succeeded
    assert record(etcd, A).value == b"first"
    await store.close()


@virtual_time
async def test_etcd_that_is_paused_or_restarted_makes_everything_wait_and_go_on() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    for fault, heal in ((etcd.pause, etcd.resume), (etcd.crash, etcd.restart)):
        fault()
        waiting = [store.commit_nowait(create(b"/k/%d/%s" % (n, fault.__name__.encode()), b"")) for n in range(50)]
        reading = asyncio.ensure_future(store.get(A, timeout_s=20))
        await asyncio.sleep(8)
        assert not any(future.done() for future in waiting)
        heal()
        for future in waiting:
            assert (await future).succeeded or (await future).repeated
        assert await reading is None
    assert len(etcd.mvcc.range(b"/k/", b"/k0")[0]) == 100
    await store.close()


@virtual_time
async def test_a_read_that_is_not_answered_in_time_says_so() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    etcd.pause()
    with pytest.raises(StoreUnavailable, match="no answer from etcd in time"):
        await store.range(b"/", b"0", timeout_s=0.7)
    etcd.crash()
    with pytest.raises(StoreUnavailable):
        await store.get(A, timeout_s=0.7)
    await store.close()


@virtual_time
async def test_closing_tells_open_fates_from_unsent_ones() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd, Script(fates=[HANGS]))
    sent = store.commit_nowait(create(A, b""))
    await asyncio.sleep(0.01)
    parked = store.commit_nowait(Commit((), (Put(A, b""),)))
    queued = store.commit_nowait(create(B, b""))
    await asyncio.sleep(0)
    await store.close()
    assert isinstance(sent.exception(), OutcomeUnknown)
    assert isinstance(parked.exception(), StoreUnavailable)
    assert isinstance(queued.exception(), StoreUnavailable)
    await asyncio.sleep(2 * COMPANY_S)  # nothing wakes who has gone


@virtual_time
async def test_all_that_are_sent_and_all_that_wait_are_counted_and_told_in_time() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd, Script(fates=[HANGS] * 10))

    def asked(prefix: bytes, count: int) -> list[asyncio.Future[CommitVerdict]]:
        named = [b"/%s/%d" % (prefix, number) for number in range(count)]
        return [asyncio.ensure_future(store.commit(create(key, b""), timeout_s=2.0)) for key in named]

    sent = asked(b"together", 5)
    await asyncio.sleep(0.5)
    sent += asked(b"later", 2)
    await asyncio.sleep(0.5)
    parked = asked(b"together", 3) + asked(b"later", 1)  # behind either request
    await asyncio.sleep(0.5)
    assert (store.statistics().in_flight, store.statistics().queued) == (7, 4)
    assert (store.statistics().members, store.statistics().requests, store.statistics().repeats) == (7, 2, 0)
    answers = await asyncio.wait_for(asyncio.gather(*sent, *parked, return_exceptions=True), 5.0)
    assert [type(answer) for answer in answers] == [OutcomeUnknown] * 7 + [StoreUnavailable] * 4
    await store.close()


@pytest.mark.parametrize("fate", [LOST_BEFORE, LOST_AFTER], ids=str)
@virtual_time
async def test_e2_a_repeat_that_is_refused_says_nothing_of_the_sending_before_it(fate: Fate) -> None:
    """▲ That one may have landed: told as not sent, its caller would do the same again under another id."""
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd, Script(fates=[fate]))
    waiting = asyncio.ensure_future(store.commit(create(A, b"mine"), timeout_s=5.0))
    await asyncio.sleep(0.1)
    etcd.quota_bytes = 1
    with pytest.raises(OutcomeUnknown, match="is still being repeated"):
        await waiting
    await store.close()


@virtual_time
async def test_each_of_a_group_that_a_full_etcd_refuses_is_told_so() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    etcd.quota_bytes = 1
    asked = [store.commit_nowait(create(b"/k/%d" % number, b"")) for number in range(5)]
    answers = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 5.0)
    assert [type(answer) for answer in answers] == [StoreFull] * 5
    await store.close()


def test_e2_random_unknown_outcomes_apply_every_commit_exactly_once() -> None:
    """Counters rewritten under compares by several clients, most requests unanswered one way or the other."""

    async def scenario(seed: int) -> None:
        chance = random.Random(seed)
        etcd = MemoryEtcd(LoopClock())

        class Chaos(Script):
            def fate(self, request: str, client: str) -> Fate:
                return chance.choice([*UNKNOWN, NO_FAULT, NO_FAULT]) if request == "commit" else NO_FAULT

        stores = [client(etcd, Chaos(), name) for name in ("one", "two")]
        done = dict.fromkeys(stores, 0)

        async def count(store: MemoryStore, worker: int) -> None:
            for turn in range(6):
                me = b"%d/%d/%d" % (id(store), worker, turn)
                while True:
                    current = await store.get(A)
                    version = 0 if current is None else current.mod_revision
                    log = b"/k/log/" + me
                    result = await store.commit(
                        Commit((unchanged_since(A, version),), (Put(A, me), Put(log, b"")), (), (Read(log),)),
                        timeout_s=600,
                    )
                    if result.succeeded or (result.repeated and result.reads[0]):
                        done[store] += 1
                        break

        await asyncio.gather(*[count(store, worker) for store in stores for worker in range(3)])
        await asyncio.sleep(20)
        assert record(etcd, A).version == sum(done.values()) == 36
        assert len(etcd.mvcc.range(b"/k/log/", b"/k/log0")[0]) == 36
        for store in stores:
            await store.close()

    for seed in range(5):
        run(scenario(seed))


LONG_AFTER = Fate(arrive_s=60.0, fail_s=0.5)
"""Lands when what it wrote is long gone."""


@pytest.mark.parametrize("members", [1, 3])
@virtual_time
async def test_l1_no_earlier_sending_lands_behind_a_later_one(members: int) -> None:
    """Sent, unanswered, sent again, answered, deleted: the first sending must not raise the record from the dead."""
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd, Script(fates=[LONG_AFTER]))
    made = [b"/k/%d" % number for number in range(members)]
    results = await asyncio.gather(*[store.commit(create(key, b"")) for key in made])
    assert all(result.succeeded and result.repeated for result in results)
    await asyncio.gather(*[store.commit(Commit(deletes=(Delete(key),))) for key in made])
    await asyncio.sleep(70)
    assert [etcd.mvcc.get(key) for key in made] == [None] * members
    await store.close()


@pytest.mark.parametrize("first", UNKNOWN)
@pytest.mark.parametrize("second", UNKNOWN)
@virtual_time
async def test_l1_raising_the_fence_may_go_unanswered_too(first: Fate, second: Fate) -> None:
    etcd = MemoryEtcd(LoopClock())

    class Both(Script):
        def fate(self, request: str, client: str) -> Fate:
            if request == "fence":
                return fences.pop() if fences else NO_FAULT
            return super().fate(request, client)

    fences = [second, first, first]
    store = client(etcd, Both(fates=[LONG_AFTER]))
    assert (await store.commit(create(A, b""), timeout_s=60)).succeeded
    await store.commit(Commit(deletes=(Delete(A),)), timeout_s=60)
    await asyncio.sleep(70)
    assert etcd.mvcc.get(A) is None
    await store.close()


@virtual_time
async def test_a_renewal_of_the_fence_that_is_not_answered_ends_no_sender() -> None:
    faults = Script("keep_alive", [LOST_BEFORE] * 2)
    store = client(MemoryEtcd(LoopClock()), faults)
    for number in range(4):
        assert (await store.commit(create(b"/k/%d" % number, b""))).succeeded
        await asyncio.sleep(RENEW_S + 1.0)
    assert not faults.fates
    await store.close()


@virtual_time
async def test_the_fence_is_renewed_seldom_however_often_it_is_sent_under() -> None:
    faults = Script("keep_alive")
    store = client(MemoryEtcd(LoopClock()), faults)
    for number in range(3 * RENEW_S // 20):
        assert (await store.commit(create(b"/k/%d" % number, b""))).succeeded
        await asyncio.sleep(20.0)
    assert 1 <= faults.sent <= 3
    await store.close()


@virtual_time
async def test_a_fence_that_went_with_its_lease_is_put_again() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    await store.commit(create(A, b""))
    await asyncio.sleep(2 * TTL_S)
    assert not etcd.mvcc.range(keys.SENDER, keys.prefix_end(keys.SENDER))[0]
    results = await asyncio.gather(*[store.commit(create(b"/k/%d" % number, b"")) for number in range(9)])
    assert all(result.succeeded and not result.repeated for result in results)
    await store.close()


@virtual_time
async def test_e3_the_fence_of_who_works_stands_however_long_etcd_is_full() -> None:
    """▲ At its quota etcd grants no lease and takes no put, only renewals: what is open could not be ended any more."""
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    await store.commit(create(A, b""))
    etcd.no_space = True
    for _ in range(3 * TTL_S // RENEW_S):
        await asyncio.sleep(0.9 * RENEW_S)
        assert (await store.commit(Commit(deletes=(Delete(A),)))).succeeded
    await store.close()


class BrokenBackend(MemoryBackend):
    async def commit(
        self, members: Sequence[GroupMember], *, repeated: bool, fence: RequestFence | None = None
    ) -> list[CommitVerdict]:
        if self.unanswered:
            self.unanswered -= 1
            await asyncio.Event().wait()
        raise ZeroDivisionError("a bug")

    unanswered = 0


@pytest.mark.parametrize("unanswered", [0, 1])
@virtual_time
async def test_a_bug_below_group_commit_hangs_nobody(unanswered: int) -> None:
    """Whichever request meets it, and also those that others have on their way."""
    backend = BrokenBackend(MemoryEtcd(LoopClock()), "client", None)
    backend.unanswered = unanswered
    commits = GroupCommit(cast(Backend, backend), LoopClock(), random.Random(1))
    before = [commits.submit(create(b"/before/%d" % number, b""), None) for number in range(unanswered)]
    await asyncio.sleep(1.0)
    with pytest.raises(OutcomeUnknown, match="a bug"):
        await commits.submit(create(A, b""), None)
    with pytest.raises(InternalError, match="a bug"):
        commits.submit(create(A, b""), None)
    assert [type(one.exception()) for one in before] == [OutcomeUnknown] * unanswered
    await commits.close()
