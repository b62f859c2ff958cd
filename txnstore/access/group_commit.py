"""Group commit: concurrent conditional writes gather while requests are in flight and leave together (DESIGN §4).

Theory of operation:

1. `submit` queues a commit and returns a future of its verdict. Each member keeps its own compares and its own verdict.
2. A few sender tasks each take what is queued, and send it as one etcd transaction of nested transactions. No timer
   runs before that: a lone commit waits for one round trip. While a request is in flight a few commits wait shortly for
   its answer, or for others: a request of its own costs etcd and this process more than a dozen members do.
3. `txnstore.access.grouping` decides which members may share a request ▲: none compares a key that another one writes,
   and a key has at most one unanswered write.
4. A request that was answered gives every member its verdict.
5. A request that was not answered has an unknown fate. The sender repeats it, under a new sending fence ▲: then either
   the first sending has been applied, or it never will be. The verdict of the repeat is therefore definite.
6. A request that etcd refuses as a whole is repeated in parts, down to single members, so that a bad one fails alone.
7. One sweep over everything outstanding keeps the time limits. A member that was never sent fails with
   `StoreUnavailable`, one that was sent with `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import Final

import msgspec
import structlog

from txnstore.access.backend import GROUP_BYTES, Backend, Fenced, Reason, Refused, RequestFence, Unanswered
from txnstore.access.grouping import MAX_MEMBERS, Group, GroupMember, GroupPlanner, halves
from txnstore.access.sending_fence import SendingFence
from txnstore.store import Commit, CommitVerdict, LeaseGone
from txnwire.errors import (
    InternalError,
    InvalidArgument,
    OutcomeUnknown,
    StoreFull,
    StoreUnavailable,
    TxnError,
    Unauthorized,
)
from txnwire.histogram import SIZE_BOUNDS, Histogram, HistogramSnapshot
from txnwire.ports import Clock, Random
from txnwire.tasks import vital

MAX_IN_FLIGHT: Final = 4
COMPANY: Final = 32
"""This many commits do not wait for the answer to a request in flight."""
COMPANY_S: Final = 0.005
"""No commit waits longer than this."""
SWEEP_S: Final = 0.05
FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 1.0

log = structlog.get_logger(__name__)


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the start, and the numbers outstanding now. `sizes`: members per request; `latency`: from sending a
    request to its answer, in seconds. `revision`: the newest one in an answer."""

    members: int
    requests: int
    repeats: int
    splits: int
    queued: int
    in_flight: int
    sizes: HistogramSnapshot
    latency: HistogramSnapshot
    revision: int


class PendingCommit(GroupMember):
    """A member with its caller. `sent`: a sending of it was not answered (yet), so its fate is open."""

    __slots__ = ("deadline", "future", "sent")

    def __init__(self, commit: Commit, wire: bytes, future: asyncio.Future[CommitVerdict], deadline: float) -> None:
        super().__init__(commit, wire)
        self.future = future
        self.deadline = deadline
        self.sent = False


class GroupCommit:
    """Owns the sender tasks, which start with the first commit; `close` ends them."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        random: Random,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_members: int = MAX_MEMBERS,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._fence = SendingFence(backend, clock, random)
        self._max_in_flight = max_in_flight
        self._planner = GroupPlanner[PendingCommit](
            max_txn_ops=backend.max_txn_ops, max_bytes=GROUP_BYTES, max_members=max_members
        )
        self._senders: list[asyncio.Task[None]] = []
        self._idle: deque[asyncio.Future[None]] = deque()
        self._waking = False
        self._company_timer: asyncio.TimerHandle | None = None
        self._waited = False
        """Whether the queued commits have waited for others as long as they may."""
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._broken: str | None = None
        self._members = self._requests = self._repeats = self._splits = 0
        self._sizes, self._latency = Histogram(SIZE_BOUNDS), Histogram()
        self._revision = 0

    def submit(self, commit: Commit, timeout_s: float | None) -> asyncio.Future[CommitVerdict]:
        """Queue a commit. Raises `InvalidArgument` at once if it is malformed; otherwise see `MetadataStore`."""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if self._broken is not None:
            raise InternalError(self._broken)
        loop = asyncio.get_running_loop()
        if not self._senders:
            self._start_senders(loop)
        deadline = math.inf if timeout_s is None else self._clock.monotonic() + timeout_s
        future: asyncio.Future[CommitVerdict] = loop.create_future()
        self._planner.offer(PendingCommit(commit, self._backend.encode(commit), future, deadline))
        if self._sweep_timer is None and timeout_s is not None:
            self._sweep_timer = loop.call_later(SWEEP_S, self._sweep)
        self._wake()
        return future

    def statistics(self) -> Statistics:
        return Statistics(
            members=self._members,
            requests=self._requests,
            repeats=self._repeats,
            splits=self._splits,
            queued=sum(1 for _ in self._planner.waiting()),
            in_flight=sum(len(group.members) for group in self._planner.groups_in_flight()),
            sizes=self._sizes.snapshot(),
            latency=self._latency.snapshot(),
            revision=self._revision,
        )

    async def close(self) -> None:
        """Fail all waiting commits: `OutcomeUnknown` if a sending is unanswered, else `StoreUnavailable`."""
        self._closed = True
        for timer in (self._sweep_timer, self._company_timer):
            if timer is not None:
                timer.cancel()
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)
        self._give_up_all("the store was closed")

    def _start_senders(self, loop: asyncio.AbstractEventLoop) -> None:
        self._senders = [vital(self._run_sender(), name="sender to etcd") for _ in range(self._max_in_flight)]
        for sender in self._senders:
            sender.add_done_callback(self._sender_ended)

    def _sender_ended(self, sender: asyncio.Task[None]) -> None:
        """A sender ends only through a bug: then fail every commit, so that no caller waits for ever."""
        if sender.cancelled() or (error := sender.exception()) is None:
            return
        self._broken = f"group commit broke down: {type(error).__name__}: {error}"
        log.error("group commit broke down", exc_info=error)
        self._give_up_all(self._broken)

    def _give_up_all(self, why: str) -> None:
        for member in [*self._planner.waiting(), *self._taken()]:
            self._give_up(member, why)

    def _taken(self) -> list[PendingCommit]:
        return [member for group in self._planner.groups_in_flight() for member in group.members]

    def _wake(self) -> None:
        """Wakes at most one sender at a time, so that it finds everything this turn of the loop brings."""
        if not self._waking and self._idle and self._may_send():
            self._waking = True
            self._idle.popleft().set_result(None)

    def _may_send(self) -> bool:
        """Whether to send the queued commits now; if not, they go with the next answer, or after `COMPANY_S`."""
        if self._waited or not self._planner.in_flight or self._planner.queued >= COMPANY:
            return True
        if self._company_timer is None and self._planner.has_queued:
            self._company_timer = asyncio.get_running_loop().call_later(COMPANY_S, self._no_company)
        return False

    def _no_company(self) -> None:
        self._company_timer = None
        if self._planner.has_queued:
            self._waited = True
            self._wake()

    def _take(self) -> Group[PendingCommit] | None:
        if not self._may_send():
            return None
        self._waited = False
        if self._company_timer is not None:
            self._company_timer.cancel()
            self._company_timer = None
        return self._planner.take()

    async def _run_sender(self) -> None:
        while True:
            await self._backend.wait_ready()  # before taking: a commit not sent can still be withdrawn
            group = self._take()
            if group is None:
                await self._wait_for_work()
                continue
            if self._planner.has_queued:
                self._wake()
            await self._settle(group)
            self._planner.finish(group)

    async def _wait_for_work(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(turn)
        await turn
        self._waking = False

    async def _settle(self, group: Group[PendingCommit]) -> None:
        """Send the group until every verdict is definite, split and repeated as needed."""
        self._members += len(group.members)
        pause_s = 0.0
        parts: deque[_RequestPart] = deque([_RequestPart(group.members)])
        while parts:
            part = parts.popleft()
            if pause_s:
                await asyncio.sleep(pause_s)
            await self._backend.wait_ready()
            try:
                # ▲ No earlier sending of it can land after this one.
                fence = await self._fence.under(dead=part.unanswered)
                part.drop_withdrawn()
                if not part.members:
                    continue
                results = await self._send(part, fence)
            except Fenced:
                self._fence.found_down(fence)
                parts.appendleft(part)
                pause_s = 0.0
            except Unanswered:
                parts.appendleft(_RequestPart(part.members, unanswered=fence.revision))
                pause_s = min(max(2 * pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
            except Refused as refusal:
                following = self._after_refusal(part, refusal)
                parts.extendleft(reversed(following))
                waits = following and refusal.reason in (Reason.BUSY, Reason.FULL)
                pause_s = min(max(2 * pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S) if waits else 0.0
            else:
                _resolve(part.members, results)
                pause_s = 0.0

    async def _send(self, part: _RequestPart, fence: RequestFence) -> list[CommitVerdict]:
        self._requests += 1
        self._repeats += part.repeated
        for member in part.members:
            member.sent = True
        self._sizes.observe(len(part.members))
        sent_at = self._clock.monotonic()
        results = await self._backend.commit(part.members, repeated=part.repeated, fence=fence)
        self._latency.observe(self._clock.monotonic() - sent_at)
        self._revision = max(self._revision, results[-1].revision)
        return results

    def _after_refusal(self, part: _RequestPart, refusal: Refused) -> list[_RequestPart]:
        """The parts to send next. This sending was not applied; an earlier, unanswered one may have been or may be."""
        if not part.repeated:
            for member in part.members:
                member.sent = False
        if refusal.reason is Reason.BUSY or (refusal.reason is Reason.FULL and part.repeated):
            return [part]
        if refusal.reason is Reason.FULL or len(part.members) == 1:
            for member in part.members:
                _fail(member, _error_for(refusal, repeated=part.repeated))
            return []
        self._splits += 1
        first, second = halves(part.members)
        return [_RequestPart(first, part.unanswered), _RequestPart(second, part.unanswered)]

    def _sweep(self) -> None:
        """Keeps all time limits."""
        now = self._clock.monotonic()
        limited = 0
        for member in self._planner.waiting():
            if member.deadline <= now:
                self._give_up(member, "no etcd endpoint took it in time")
            limited += member.deadline < math.inf
        for member in self._taken():
            if member.deadline <= now:
                self._give_up(member, "etcd did not answer in time")
            limited += member.deadline < math.inf and not member.future.done()
        loop = asyncio.get_running_loop()
        self._sweep_timer = loop.call_later(SWEEP_S, self._sweep) if limited else None

    def _give_up(self, member: PendingCommit, why: str) -> None:
        if member.sent:
            _fail(
                member,
                OutcomeUnknown(f"{why}: the write may be applied now or later, it is still being repeated"),
            )
        else:
            member.withdrawn = True
            _fail(member, StoreUnavailable(f"{why}: the write was not sent and has been withdrawn"))


class _RequestPart:
    """Members sent together. `unanswered`: the revision of the fence under which the last sending of them went
    unanswered; 0 if none did."""

    __slots__ = ("members", "unanswered")

    def __init__(self, members: list[PendingCommit], unanswered: int = 0) -> None:
        self.members = members
        self.unanswered = unanswered

    @property
    def repeated(self) -> bool:
        """Whether an earlier sending of them went unanswered."""
        return self.unanswered != 0

    def drop_withdrawn(self) -> None:
        """Members withdrawn before they were sent must not be sent now; repeats go on for ever (▲ DESIGN §4)."""
        if not self.repeated:
            self.members = [member for member in self.members if not member.withdrawn]


def _resolve(members: list[PendingCommit], results: list[CommitVerdict]) -> None:
    for member, result in zip(members, results, strict=True):
        if not member.future.done():
            member.future.set_result(result)


def _fail(member: PendingCommit, error: TxnError) -> None:
    if not member.future.done():
        member.future.set_exception(error)


def _error_for(refusal: Refused, *, repeated: bool) -> TxnError:
    match refusal.reason:
        case Reason.LEASE_GONE:
            return LeaseGone(str(refusal))  # also after an unanswered sending: its puts went with the lease
        case Reason.FULL:
            return StoreFull(f"{refusal}; it compacts and defragments, try again later")
        case Reason.DENIED if repeated:
            return OutcomeUnknown(f"a sending went unanswered, and repeating it is no longer allowed: {refusal}")
        case Reason.DENIED:
            return Unauthorized(str(refusal))
        case _:
            return InvalidArgument(str(refusal))
