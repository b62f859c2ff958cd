"""Joins one consumer to one topic's stream subscription at the controller, again after every loss."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from txnclient.connection.deadlines import Backoff, Deadline
from txnclient.connection.links import Link
from txnclient.connection.session import TRANSIENT, Session
from txnclient.connection.tasks import OwnedTasks
from txnwire.errors import TxnError
from txnwire.proto import txn_pb2 as pb

JOIN_TIMEOUT_S = 10.0
LEAVE_TIMEOUT_S = 2.0
LEAVE_AGAIN_S = 10.0
"""How long a newly elected controller waits for consumers that it finds assigned."""

_log = logging.getLogger("txnclient")


class ConsumerMembership:
    """Keeps one consumer joined. `on_assignment` receives every assignment newer than the last; `on_failed` is called
    when the membership has ended. `outliving`: tasks that go on when the consumer is closed."""

    def __init__(
        self,
        session: Session,
        request: pb.JoinSubscription,
        *,
        on_assignment: Callable[[pb.Assignment], None],
        on_failed: Callable[[TxnError], None],
        outliving: OwnedTasks,
    ) -> None:
        self._session = session
        self._outliving = outliving
        self._request = request
        self._on_assignment = on_assignment
        self._on_failed = on_failed
        self._epoch = 0
        self._link: Link | None = None
        self._address: str | None = None
        self._left = False
        self._asked: Link | None = None
        """Where the last join was sent, answered or not: it must receive the leave."""
        self._joining = False
        self._staying: asyncio.Future[None] | None = None
        self._leaving: asyncio.Future[Any] | None = None

    @property
    def life(self) -> int:
        """The revision at which the subscription was created; 0 before the controller has said."""
        return self._request.life

    @property
    def topic(self) -> str:
        return self._request.topic

    async def join(self, deadline: Deadline) -> None:
        """Join, and stay a member until `leave`. Raises the controller's error if it refuses, `Timeout`."""
        what = f"joining subscription {self._request.subscription} of {self.topic}"
        try:
            await self._session.repeat(what, deadline, lambda: self._join(deadline))
        except TxnError:
            await self.leave()
            raise
        self._staying = self._session.tasks.start(
            self._stay(), name=f"membership in {self.topic}", on_failed=self._on_failed
        )

    async def _join(self, deadline: Deadline) -> None:
        address = self._session.directory.controller_address
        link = await self._session.directory.controller_link(deadline)
        self._epoch = 0  # a subscription deleted and created again restarts its count
        link.assignments[self._route] = self._told
        self._asked = link
        timeout_s = min(JOIN_TIMEOUT_S, deadline.remaining())
        reply = await link.call(pb.Command(join_subscription=self._request), timeout_s=timeout_s)
        self._link, self._address = link, address
        self._request.again, self._request.life = True, reply.assignment.life
        self._assigned(reply.assignment)

    @property
    def _route(self) -> tuple[str, str, str, int]:
        request = self._request
        return request.topic, request.subscription, request.consumer, request.incarnation

    async def _stay(self) -> None:
        """Join again whenever the connection is lost or another controller has been elected."""
        session = self._session
        backoff = Backoff(session.random)
        while not self._left:
            if self._link is not None and not self._link.closed:
                if session.directory.controller_address in (self._address, None):
                    await session.directory.wait_change_or_lost(self._link)
                    continue
                # ▲ From here on ignore that controller's pushes: if it leads again before another one is joined, the
                # consumer joins it anew.
                self._link.assignments.pop(self._route, None)
                self._link = None
            self._joining = True
            try:
                await self._join(session.deadline(JOIN_TIMEOUT_S))
                backoff.reset()
                continue
            except TRANSIENT as error:
                _log.debug("joining %s again: %s", self.topic, error)
            except TxnError as error:
                self._on_failed(error)
                return
            finally:
                self._joining = False
                if self._left:  # `leave` came during the join, and left the rest to this task
                    await _heard(self._tell_leave())
            await session.directory.wait_change(backoff.next_s())

    def _told(self, assignment: pb.Assignment) -> None:
        """Receive a pushed assignment."""
        if assignment.epoch:
            self._assigned(assignment)
        elif self._link is not None:
            # ▲ The controller does not know this consumer: another controller has led meanwhile and removed it.
            self._link = None
            self._session.directory.wake()

    def _assigned(self, assignment: pb.Assignment) -> None:
        if assignment.epoch >= self._epoch:
            self._epoch = assignment.epoch
            self._on_assignment(assignment)

    async def leave(self) -> None:
        """As `leave_nowait`, and wait for the answer."""
        await _heard(self.leave_nowait())

    def leave_nowait(self) -> asyncio.Future[pb.Command] | None:
        """Send the leave to the controller, or in the background to the next one if it cannot be reached. ▲ Without an
        await: a cancelled close must still send it. Returns the answer's future, if there will be one."""
        self._left = True
        return None if self._joining else self._tell_leave()

    @property
    def has_left(self) -> bool:
        """Whether its leave was answered, or given up."""
        return self._left and self._under_way() is None

    async def wait_left(self, deadline: Deadline) -> None:
        """Raises `Timeout`. Call it after `leave_nowait`."""
        while (under_way := self._under_way()) is not None:
            await asyncio.wait((under_way,), timeout=deadline.remaining())
            if deadline.passed:
                raise deadline.expired(f"leaving subscription {self._request.subscription} of {self.topic}")

    def _under_way(self) -> asyncio.Future[Any] | None:
        """The request that its leave waits for."""
        waited = self._staying if self._joining else self._leaving
        return None if waited is None or waited.done() else waited

    def _tell_leave(self) -> asyncio.Future[pb.Command] | None:
        """Send the leave, also after a join that was never answered: the client's connection stays open, so the
        controller would keep segments for the consumer for as long as the client lives."""
        link, self._asked, self._link = self._asked, None, None
        if link is None:
            return None
        link.assignments.pop(self._route, None)
        request = pb.LeaveSubscription(
            topic=self._request.topic,
            subscription=self._request.subscription,
            consumer=self._request.consumer,
            incarnation=self._request.incarnation,
        )
        try:
            answer = link.call_nowait(pb.Command(leave_subscription=request), timeout_s=LEAVE_TIMEOUT_S)
        except TRANSIENT as error:
            self._leave_later(request, error)
            return None
        answer.add_done_callback(lambda answer: self._leave_answered(request, answer))
        self._leaving = answer
        return answer

    def _leave_answered(self, request: pb.LeaveSubscription, answer: asyncio.Future[pb.Command]) -> None:
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, TRANSIENT):
            self._leave_later(request, error)
        elif error is not None:
            _log.debug("leaving %s: %s", self.topic, error)

    def _leave_later(self, request: pb.LeaveSubscription, error: BaseException) -> None:
        _log.debug("leaving %s again: %s", self.topic, error)
        self._leaving = self._outliving.start(self._leave_again(request), name=f"leaving {self.topic}")

    async def _leave_again(self, request: pb.LeaveSubscription) -> None:
        """Send the leave to the next controller. ▲ A newly elected controller finds the consumer assigned, and reserves
        its segments for a grace period. It does not know this connection, so it would not notice that it ends."""
        session = self._session
        deadline = session.deadline(LEAVE_AGAIN_S)

        async def leave() -> None:
            link = await session.directory.controller_link(deadline)
            timeout_s = min(LEAVE_TIMEOUT_S, deadline.remaining())
            await link.call(pb.Command(leave_subscription=request), timeout_s=timeout_s)

        try:
            await session.repeat(f"leaving {self.topic}", deadline, leave)
        except TxnError as error:
            _log.debug("leaving %s: %s", self.topic, error)


async def _heard(answer: asyncio.Future[pb.Command] | None) -> None:
    """Wait for the answer; `ConsumerMembership` handles its failure."""
    if answer is not None:
        await asyncio.wait((answer,))
