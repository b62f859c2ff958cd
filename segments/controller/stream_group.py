"""The shell of one stream subscription at the elected controller: writes the assignments that `GroupMembership` plans,
and sends them to the consumers.

One CAS per change: joins, leaves and losses during a write share the next one. After a crash the next controller goes
on from the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from segments.controller.membership import GroupMembership
from segments.controller.term_work import no_controller
from segments.layout.assignment import assignable, parse_consumer_id
from segments.layout.directory import Directory
from txnstore import keys
from txnstore.election import Leadership
from txnstore.records import AssignmentRecord, decode, encode
from txnstore.store import Commit, CommitVerdict, MetadataStore, Put, Read, unchanged_since
from txnstore.writes.deletion_transitions import present
from txnwire.errors import (
    InternalError,
    NotAllowed,
    OutcomeUnknown,
    StoreFull,
    StoreUnavailable,
    SubscriptionNotFound,
    TxnError,
)
from txnwire.ports import Clock, Random
from txnwire.proto import txn_pb2 as pb
from txnwire.tasks import errand

log = structlog.get_logger(__name__)

_RETRY_S = (0.05, 0.5)
_SETTLE_AGAIN_S = 1.0
"""Pause after an assignment failed with an error that an immediate retry would not fix."""


class ConsumerLink(Protocol):
    """A consumer's connection (`txnwire.transport.calls.Peer`), as far as a group uses it."""

    def push(self, command: pb.Command) -> None: ...


class StreamGroup:
    """Manages one stream subscription during one term. `links`: connected members, over all terms."""

    def __init__(
        self,
        store: MetadataStore,
        directory: Directory,
        clock: Clock,
        random: Random,
        *,
        topic_path: str,
        subscription: str,
        membership: GroupMembership,
        links: dict[str, ConsumerLink],
        leadership: Leadership,
        on_deposed: Callable[[], None],
    ) -> None:
        self._store = store
        self._directory = directory
        self._clock = clock
        self._random = random
        self._topic_path = topic_path
        self._subscription = subscription
        self._key = keys.assignment(topic_path, subscription)
        self._membership = membership
        self._links = links
        self._leadership = leadership
        self._on_deposed = on_deposed
        self._evicted: dict[str, ConsumerLink] = {}
        self._waiters: dict[asyncio.Future[None], tuple[str, Callable[[], bool]]] = {}
        self._settling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended: TxnError | None = None
        for consumer in list(links):
            if consumer in membership.assigned:
                membership.join(consumer)
            else:
                # ▲ It left, or was given up, while another process led. A client unaware of it joins again; one that
                # left ignores this.
                gone = unassigned(self._topic_path, self._subscription, consumer, epoch=0)
                links.pop(consumer).push(pb.Command(assignment=gone))
        # ▲ An earlier term sent its last write to no consumer if that was never answered. If the record is already
        # right, no later write would send it either.
        self._tell()
        self.refresh()

    # ---- members ----------------------------------------------------------------------------------------------------

    async def join(self, consumer: str, link: ConsumerLink, *, again: bool = False) -> pb.Assignment:
        """Add `consumer`; returns once a record in etcd names it. A repeated join changes nothing; `again` marks one.

        Raises `NotAllowed` (replaced by another of its name), `Overloaded`, or the error that ended the group.
        """
        for replaced in self._membership.join(consumer, again=again):
            if (old := self._links.pop(replaced, None)) is not None:
                self._evicted[replaced] = old
        self._links[consumer] = link
        self.refresh()
        await self._wait(
            consumer, lambda: consumer in self._membership.assigned or not self._membership.is_member(consumer)
        )
        if not self._membership.is_member(consumer):
            raise NotAllowed(f"consumer {consumer} was replaced by another of its name, or left, while it joined")
        return self._assignment(consumer)

    async def leave(self, consumer: str) -> None:
        """Remove `consumer` now; returns once the record does not name it."""
        self._links.pop(consumer, None)
        self._membership.leave(consumer)
        self.refresh()
        await self._wait(consumer, lambda: consumer not in self._membership.assigned)

    def disconnected(self, consumer: str, *, grace_s: float) -> None:
        """The connection of `consumer` is gone: it has `grace_s` seconds to join again."""
        self._membership.disconnect(consumer, gone_at=self._clock.monotonic() + grace_s)
        self.refresh()

    def links_changed(self, *, gone_at: float) -> None:
        """Give up members without a connection at `gone_at`, unless they join again."""
        for consumer in self._membership.connected():
            if consumer not in self._links:
                self._membership.disconnect(consumer, gone_at=gone_at)
        self.refresh()

    def refresh(self) -> None:
        """Check members, clock and layout again, and start writing the record if it must change."""
        if self._ended is not None:
            return
        for consumer in self._membership.expire(self._clock.monotonic()):
            log.info("consumer_given_up", consumer=consumer, topic=self._topic_path, subscription=self._subscription)
        self._set_timer()
        if self._settling is None and self._plan() is not None:
            self._settling = errand(self._settle(), name="assignment", of=self._key.decode())
            self._settling.add_done_callback(self._settled)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        expiry = self._membership.next_expiry()
        loop = asyncio.get_running_loop()
        delay = None if expiry is None else max(0.0, expiry - self._clock.monotonic())
        self._timer = None if delay is None else loop.call_later(delay, self.refresh)

    async def _wait(self, consumer: str, condition: Callable[[], bool]) -> None:
        if self._ended is not None:
            raise self._ended
        if condition():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = (consumer, condition)
        try:
            await waiter
        finally:
            del self._waiters[waiter]

    # ---- the record -------------------------------------------------------------------------------------------------

    def _plan(self) -> AssignmentRecord | None:
        """The record to write, or None. None also while the directory does not know the topic (a successor's may lag
        behind its predecessor's) or cannot read its record: consumers then keep their segments."""
        topology = self._directory.topics().get(self._topic_path)
        if topology is None:
            return None
        drained = self._directory.drained(self._topic_path, self._subscription)
        return self._membership.plan(assignable(topology, drained))

    async def _settle(self) -> None:
        """Write until the record in etcd matches members and layout."""
        while (record := self._plan()) is not None:
            try:
                result = await self._store.commit(self._commit(record))
            except (StoreUnavailable, StoreFull, OutcomeUnknown) as error:
                log.warning("assignment_retry", key=self._key.decode(), error=str(error))
                await asyncio.sleep(self._random.uniform(*_RETRY_S))
                continue
            if result.succeeded:
                self._confirm(record, result.revision)
            elif not result.reads[2]:
                self._end(SubscriptionNotFound(f"subscription {self._subscription} of {self._topic_path} is deleted"))
                return
            elif not self._take_in(result):
                self._end(no_controller())
                self._on_deposed()
                return

    def _commit(self, record: AssignmentRecord) -> Commit:
        """▲ Fenced by the controller's epoch (`still_held`). A late old value never overwrites a newer one (DESIGN §4):
        every write compares the revision of the record it was planned from. ▲ It fails once the subscription is
        deleted: no process would ever delete the record."""
        subscription = keys.subscription(self._topic_path, self._subscription)
        return Commit(
            compares=(
                self._leadership.still_held(),
                unchanged_since(self._key, self._membership.mod_revision),
                present(subscription),
            ),
            puts=(Put(self._key, encode(record)),),
            else_reads=(Read(self._key), Read(self._leadership.key), Read(subscription)),
        )

    def _take_in(self, result: CommitVerdict) -> bool:
        """Handle a refused write: the record has changed (an earlier, unanswered write landed after all), or the
        election is lost. Returns False for the latter."""
        found, holder, _ = result.reads
        if not holder or holder[0].create_revision != self._leadership.epoch:
            return False
        if found:
            self._confirm(decode(AssignmentRecord, found[0].value, key=self._key), found[0].mod_revision)
        else:
            self._confirm(None, 0)
        return True

    def _confirm(self, record: AssignmentRecord | None, mod_revision: int) -> None:
        self._membership.confirm(record, mod_revision)
        self._tell()
        for waiter, (_, condition) in self._waiters.items():
            if not waiter.done() and condition():
                waiter.set_result(None)

    def _tell(self) -> None:
        """Send every connected member its assignment of the new epoch, and a replaced one an empty assignment. One that
        is still joining gets it as the reply."""
        joining = {consumer: None for consumer, _ in self._waiters.values()}
        for consumer, link in (*self._links.items(), *self._evicted.items()):
            if consumer not in joining:
                link.push(pb.Command(assignment=self._assignment(consumer)))
        self._evicted.clear()

    def _assignment(self, consumer: str) -> pb.Assignment:
        record = self._membership.record
        assignment = unassigned(self._topic_path, self._subscription, consumer, epoch=record.epoch if record else 0)
        assignment.segments.extend(self._membership.assigned.get(consumer, ()))
        return assignment

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._settling = None
        if task.cancelled():
            return
        if (error := task.exception()) is None:
            self.refresh()  # members may have changed since the task's last plan
            return
        log.error("assignment_failed", key=self._key.decode(), error=repr(error))
        self._fail_waiters(error if isinstance(error, TxnError) else InternalError(f"{type(error).__name__}: {error}"))
        asyncio.get_running_loop().call_later(_SETTLE_AGAIN_S, self.refresh)

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _fail_waiters(self, error: TxnError) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _end(self, error: TxnError) -> None:
        self._ended = error
        self._fail_waiters(error)
        if self._timer is not None:
            self._timer.cancel()

    async def close(self, error: TxnError) -> None:
        """The term is over: fail all waiting requests with `error`, and write nothing more."""
        self._end(error)
        if (settling := self._settling) is not None:
            settling.cancel()
            await asyncio.gather(settling, return_exceptions=True)


def unassigned(topic_path: str, subscription: str, consumer: str, *, epoch: int) -> pb.Assignment:
    """An assignment of no segments; with epoch 0 it tells the consumer to join again."""
    name, incarnation = parse_consumer_id(consumer)
    return pb.Assignment(
        topic=f"topic://{topic_path}", subscription=subscription, consumer=name, incarnation=incarnation, epoch=epoch
    )
