"""Clean-up whose sending goes unanswered, and whose repetition etcd then denies (DESIGN §4, §6)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.waiting import until
from tests.watchers.headers import begin, end
from tests.watchers.participants import Held, own, present
from txnstore import keys
from txnstore.access.backend import Reason, Refused, RequestFence, Unanswered
from txnstore.access.grouping import GroupMember
from txnstore.memory.memory_store import MemoryStore
from txnstore.store import CommitVerdict
from txnwire.clock import SystemClock
from txnwire.errors import Unauthorized
from txnwire.ids import TxnId
from watchers.clean_up import CleanUp, CleanUpSettings
from watchers.outcomes import Decision

A = TxnId(0, 1)


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
