"""Links: one connection per server, shared by all parts of a client (DESIGN §11)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from txnclient.connection.deadlines import Backoff, Deadline
from txnclient.connection.tasks import OwnedTasks
from txnwire.errors import ConnectionLost, NotOwner, TxnError, from_wire
from txnwire.ports import Clock, Random, Transport
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MIB
from txnwire.transport.calls import Caller

CONNECT_TIMEOUT_S = 5.0

BUSY_BYTES = 4 * MIB
"""Bulk senders pause while more than this waits to be sent over a link, and go on when half of it is sent."""

_log = logging.getLogger("txnclient")


class ConsumerEnd(Protocol):
    """Receives the pushes for one consumer id."""

    def on_deliver(self, deliver: pb.Deliver) -> None: ...
    def on_rewind(self) -> None: ...
    def on_end_of_segment(self, sealed: bool) -> None: ...
    def on_consumer_closed(self, error: TxnError) -> None: ...


class ProducerEnd(Protocol):
    """Receives the pushes for one producer id."""

    def on_producer_closed(self, error: TxnError, last_sequence_id: int) -> None: ...


class News(Protocol):
    """Receives the news of the cluster."""

    def on_news(self, link: Link, command: pb.Command) -> None:
        """A push about the cluster or a topic."""

    def on_not_owner(self, link: Link, segment: str) -> None:
        """The server at the other end has refused a call for this segment with `NotOwner`."""


class Link:
    """A connection after its handshake, with the routes for its server's pushes."""

    def __init__(self, address: str, news: News, tasks: OwnedTasks) -> None:
        self.address = address
        self.stale = False
        """Whether its server has reported its own view of the cluster as stale."""
        self._tasks = tasks
        self._paused: list[Callable[[], None]] = []
        self.caller: Caller
        self.consumers: dict[int, ConsumerEnd] = {}
        self.producers: dict[int, ProducerEnd] = {}
        self.assignments: dict[tuple[str, str, str, int], Callable[[pb.Assignment], None]] = {}
        """By topic, subscription, consumer name and incarnation. ▲ Consumers of one name may share the connection while
        one is leaving: each receives only its own assignments."""
        self._news = news
        self._lost_listeners: dict[int, Callable[[], None]] = {}
        self._next_listener = 0

    @property
    def closed(self) -> bool:
        return self.caller.closed

    def call_nowait(self, command: pb.Command, *, timeout_s: float) -> asyncio.Future[pb.Command]:
        """Raises `ConnectionLost` if the link has ended; see `Caller.call_nowait`."""
        return self.caller.call_nowait(command, timeout_s=timeout_s)

    async def call(self, command: pb.Command, *, timeout_s: float) -> pb.Command:
        try:
            return await self.caller.call_nowait(command, timeout_s=timeout_s)
        except NotOwner:
            segment = getattr(getattr(command, command.WhichOneof("body") or "", None), "segment", "")
            if isinstance(segment, str) and segment:
                self._news.on_not_owner(self, segment)
            raise

    def push_if_open(self, command: pb.Command) -> None:
        """Send a command that matters only while the connection lives."""
        if self.caller.closed:
            return
        try:
            self.caller.push(command)
        except ConnectionLost as error:  # it has ended, and the caller does not know yet
            _log.debug("connection to %s ended under a push: %s", self.address, error)

    @property
    def busy(self) -> bool:
        """Whether bulk data should wait: see `when_drained`."""
        return self.caller.pending_bytes > BUSY_BYTES

    def when_drained(self, resume: Callable[[], None]) -> None:
        """Call `resume` once the link is no longer busy, or has ended."""
        self._paused.append(resume)
        if len(self._paused) == 1:
            self._tasks.start(self._drain(), name=f"drain {self.address}")

    async def _drain(self) -> None:
        try:
            await self.caller.drain(BUSY_BYTES // 2)
        except ConnectionLost as error:
            _log.debug("connection to %s ended while busy: %s", self.address, error)
        paused, self._paused = self._paused, []
        for resume in paused:
            resume()

    def when_lost(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` once when the link ends, or soon if it has ended; returns a function that removes it."""
        if self.caller.closed:
            handle = asyncio.get_running_loop().call_soon(listener)
            return handle.cancel
        self._next_listener += 1
        number = self._next_listener
        self._lost_listeners[number] = listener
        return lambda: _forget(self._lost_listeners, number)

    def lost(self, reason: TxnError) -> None:
        """Called once by the caller when the connection has ended."""
        _log.debug("connection to %s ended: %s", self.address, reason)
        listeners = list(self._lost_listeners.values())
        self._lost_listeners.clear()
        for listener in listeners:
            listener()

    def on_push(self, command: pb.Command) -> None:
        body = command.WhichOneof("body")
        if body == "deliver":
            consumer = self.consumers.get(command.deliver.consumer_id)
            if consumer is not None:
                consumer.on_deliver(command.deliver)
        elif body == "rewind":
            consumer = self.consumers.get(command.rewind.consumer_id)
            if consumer is not None:
                consumer.on_rewind()
        elif body == "end_of_segment":
            consumer = self.consumers.get(command.end_of_segment.consumer_id)
            if consumer is not None:
                consumer.on_end_of_segment(command.end_of_segment.sealed)
        elif body == "consumer_closed":
            consumer = self.consumers.pop(command.consumer_closed.consumer_id, None)
            if consumer is not None:
                consumer.on_consumer_closed(from_wire(command.consumer_closed.error))
        elif body == "producer_closed":
            closed = command.producer_closed
            producer = self.producers.pop(closed.producer_id, None)
            if producer is not None:
                producer.on_producer_closed(from_wire(closed.error), closed.last_sequence_id)
            else:
                # Reopened since, perhaps many times: the broker keeps each one until it, or the connection, is closed.
                self.push_if_open(pb.Command(close_producer=pb.CloseProducer(producer_id=closed.producer_id)))
        elif body == "assignment":
            self._assigned(command.assignment)
        else:
            self._news.on_news(self, command)

    def _assigned(self, assignment: pb.Assignment) -> None:
        """Route an assignment to its consumer; without an incarnation (older controllers), to all of the name."""
        name = assignment.topic, assignment.subscription, assignment.consumer
        if assignment.incarnation:
            routes = [(*name, assignment.incarnation)]
        else:
            routes = [route for route in self.assignments if route[:3] == name]
        for route in routes:
            if (told := self.assignments.get(route)) is not None:
                told(assignment)


def _forget(listeners: dict[int, Callable[[], None]], number: int) -> None:
    listeners.pop(number, None)


class Links:
    """The links of one client, by address, opened when first asked for."""

    def __init__(
        self,
        *,
        transport: Transport,
        clock: Clock,
        random: Random,
        hello: pb.Hello,
        tasks: OwnedTasks,
        on_opened: Callable[[Link], None],
    ) -> None:
        """`on_opened` is called with a new link before any other use; its `TxnError` fails the attempt."""
        self._transport = transport
        self._clock = clock
        self._random = random
        self._hello = hello
        self._tasks = tasks
        self._on_opened = on_opened
        self._news: News
        self._links: dict[str, Link] = {}
        self._attempts: dict[str, asyncio.Future[Link]] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._failures: dict[str, TxnError] = {}
        """The error of the latest attempt until one succeeds, for callers that time out during the pause."""
        self._closed = False

    def tell(self, news: News) -> None:
        """Set the receiver of the servers' news, before any link is opened."""
        self._news = news

    def ready(self, address: str) -> Link | None:
        """The open link to this address, if there is one."""
        link = self._links.get(address)
        return link if link is not None and not link.caller.closed else None

    async def get(self, address: str, deadline: Deadline) -> Link:
        """The link to this address. All waiting callers share one attempt; after a failed one there is a short pause.

        Raises `ConnectionLost` if the attempt fails, `Timeout`, or the handshake's error.
        """
        link = self.ready(address)
        if link is not None:
            return link
        if self._closed:
            raise ConnectionLost("this client is closed")
        attempt = self._attempts.get(address)
        if attempt is None:
            attempt = self._attempts[address] = asyncio.get_running_loop().create_future()
            opening = self._tasks.start(self._open(address, attempt), name=f"connect {address}")
            opening.add_done_callback(lambda _: self._attempted(address, attempt))
        await asyncio.wait((attempt,), timeout=deadline.remaining())
        if not attempt.done():
            raise deadline.expired(f"connecting to {address}", self._failures.get(address))
        return attempt.result()

    async def _open(self, address: str, attempt: asyncio.Future[Link]) -> None:
        backoff = self._backoffs.get(address)
        try:
            if backoff is not None:
                await asyncio.sleep(backoff.next_s())
            link = Link(address, self._news, self._tasks)
            link.caller = await Caller.open(
                self._transport,
                address,
                self._hello,
                clock=self._clock,
                on_push=link.on_push,
                on_closed=link.lost,
                timeout_s=CONNECT_TIMEOUT_S,
            )
            try:
                self._on_opened(link)  # raises `ConnectionLost` if the other end has closed it already
            except BaseException:
                await link.caller.close()  # nobody else knows it
                raise
        except TxnError as error:
            if backoff is None:
                self._backoffs[address] = Backoff(self._random)
            self._failures[address] = error
            attempt.set_exception(error)
            attempt.exception()  # the waiting callers may have timed out
        else:
            self._backoffs.pop(address, None)
            self._failures.pop(address, None)
            self._links[address] = link
            attempt.set_result(link)

    def _attempted(self, address: str, attempt: asyncio.Future[Link]) -> None:
        """▲ C6: runs also for a task that was cancelled before its first step: otherwise its callers would wait until
        their time is up."""
        del self._attempts[address]
        if not attempt.done():
            attempt.set_exception(ConnectionLost(f"connecting to {address} was given up: this client is closing"))
            attempt.exception()

    async def close(self) -> None:
        """Close every link; bounded by the callers' own bounds."""
        self._closed = True
        links = list(self._links.values())
        self._links.clear()
        await asyncio.gather(*(link.caller.close() for link in links))
