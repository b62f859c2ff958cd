"""Clean-up that etcd denies or refuses: tried again, and not more often than said (DESIGN §4, §6)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from tests.waiting import until
from tests.watchers.clean_up_targets import Deletes, Flushed, Losing
from tests.watchers.headers import begin, end
from tests.watchers.participants import Held, own, present
from txnstore import keys
from txnstore.access.backend import Reason, Refused, RequestFence, Unanswered
from txnstore.access.grouping import GroupMember
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate, MemoryStore
from txnstore.store import CommitVerdict
from txnwire.clock import SystemClock
from txnwire.errors import Unauthorized
from txnwire.ids import TxnId
from watchers.clean_up import CleanUp, CleanUpSettings
from watchers.outcomes import Decision

A = TxnId(0, 1)


class LateAnswers:
    """Each commit is answered a little later."""

    def fate(self, request: str, client: str) -> Fate:
        return Fate(answer_s=0.05) if request == "commit" else NO_FAULT

    def watch_delay_s(self, client: str) -> float:
        return 0.0


@pytest.mark.parametrize("again", [False, True])
async def test_clean_up_of_unknown_outcome_is_made_again_though_nothing_else_comes(
    memory_store: MemoryStore, again: bool
) -> None:
    """It would never be stored, while acks go on being answered. Denied for good, it is reported."""
    clean_up = CleanUp(memory_store, SystemClock(), CleanUpSettings(linger_s=0.002, retry_s=0.01))
    await clean_up.start()
    held = Held(memory_store, await own(memory_store))
    clean_up.add(held.writes)
    await begin(memory_store, A)
    await held.write(A)
    revision = await end(memory_store, A)
    fates: list[Exception] = [Unanswered("cut off"), *[Refused(Reason.DENIED, "no such right")] * (2 if again else 1)]
    backend = memory_store._backend
    send = backend.commit

    async def denied(
        members: Sequence[GroupMember], *, repeated: bool, fence: RequestFence | None = None
    ) -> list[CommitVerdict]:
        if fates:
            raise fates.pop(0)
        return await send(members, repeated=repeated, fence=fence)

    backend.commit = denied  # type: ignore[method-assign]
    held.decided(Decision(A, True, revision))
    clean_up.wake(held.writes)
    if again:
        await until(lambda: held.errors, within_s=10)
        assert isinstance(held.errors[0], Unauthorized)
    else:
        await until(lambda: held.writes.backlog == 0, within_s=10)
        assert await present(memory_store, keys.TXN_OP) == {}
        assert held.errors == []
    await clean_up.close()


async def test_decisions_behind_a_refusal_wait_for_the_same_pause(memory_store: MemoryStore) -> None:
    """Each would be a request that a full etcd writes into its log, and begin a series of retries of its own."""
    clean_up = CleanUp(memory_store, SystemClock(), CleanUpSettings(linger_s=0.001, retry_s=0.5))
    await clean_up.start()
    held = Held(memory_store, await own(memory_store))
    clean_up.add(held.writes)
    decisions = []
    for counter in range(1, 101):
        await begin(memory_store, TxnId(0, counter))
        await held.write(TxnId(0, counter))
        decisions.append(Decision(TxnId(0, counter), False, await end(memory_store, TxnId(0, counter), commit=False)))
    plenty, memory_store.etcd.quota_bytes = memory_store.etcd.quota_bytes, 1
    before = memory_store.statistics().members
    for decision in decisions:
        held.decided(decision)
        clean_up.wake(held.writes)
        await asyncio.sleep(0.005)
    assert memory_store.statistics().members - before <= 10
    memory_store.etcd.quota_bytes, memory_store.etcd.no_space = plenty, False
    await until(lambda: held.writes.backlog == 0, within_s=10)
    await clean_up.close()


async def test_a_compare_lost_once_now_and_then_costs_no_pause(memory_store: MemoryStore) -> None:
    """Only the second in a row does."""
    clean_up = CleanUp(memory_store, SystemClock(), CleanUpSettings(linger_s=0.001, retry_s=3600.0))
    await clean_up.start()
    target = Losing(0)
    clean_up.add(target)
    for lost in range(1, 4):
        target.backlog = target.losses = 1
        clean_up.wake(target)
        await until(lambda: target.backlog == 0, within_s=10)
        assert clean_up.statistics().lost_compares == lost
    await clean_up.close()


async def test_what_is_to_be_cleaned_up_does_not_wait_for_a_write_that_may_wait(memory_store: MemoryStore) -> None:
    clean_up = CleanUp(memory_store, SystemClock(), CleanUpSettings(linger_s=0.001))
    await clean_up.start()
    target = Flushed()
    clean_up.add(target)
    clean_up.wake(target)
    await until(lambda: target.asked, within_s=10)
    target.backlog = 1
    clean_up.wake(target)
    await until(lambda: target.backlog == 0, within_s=10)
    await clean_up.close()


async def test_whoever_retires_a_target_waits_for_its_commit_in_flight_and_no_longer() -> None:
    """▲ It might still land on a subscription of the same name; and a deletion goes on behind it."""
    faults = LateAnswers()
    store = MemoryStore(MemoryEtcd(SystemClock()), SystemClock(), random.Random(0), faults=faults)
    clean_up = CleanUp(store, SystemClock(), CleanUpSettings(linger_s=0.001))
    await clean_up.start()
    target = Deletes("/segment", 1)
    clean_up.add(target)
    clean_up.wake(target)
    await until(lambda: clean_up.statistics().in_flight == 1, within_s=10)
    async with asyncio.timeout(10):
        await clean_up.retire(target)
    assert clean_up.statistics().in_flight == 0
    assert target.backlog == 1, "its answer is nobody's any more"
    async with asyncio.timeout(10):
        await clean_up.retire(target)  # again
    await clean_up.close()
    await store.close()
