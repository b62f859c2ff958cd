"""Hands out the feeds' messages in turn to waiting callers, for consumers and readers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from itertools import islice
from operator import index
from typing import Any, Protocol

from txnclient.connection.deadlines import FIRST_PAUSE_S, LONGEST_PAUSE_S
from txnclient.connection.session import Session
from txnclient.consuming.received.message import Message
from txnclient.serializers import Serializer
from txnwire.errors import InvalidArgument, TxnError, for_good

_log = logging.getLogger("txnclient")


class FeedSource(Protocol):
    """One feed with a buffer; nothing is taken while it is `paused`."""

    paused: bool

    @property
    def buffered(self) -> int: ...
    def take(self, at_most: int) -> list[Message[Any]]: ...
    def resume(self) -> None:
        """The application asks again, after `Receiver.pause`."""


class FeedReceiver(Protocol):
    """The part of its receiver that a feed uses."""

    @property
    def serializer(self) -> Serializer[Any] | None: ...
    @property
    def failed(self) -> bool: ...
    @property
    def at_once(self) -> int:
        """How many messages the application works on together, as far as it has said."""

    @property
    def asks(self) -> int:
        """How often the application has asked for messages."""

    @property
    def is_awaited(self) -> bool:
        """Whether the application waits for messages."""

    def ready(self, source: FeedSource) -> None: ...
    def pause(self, source: FeedSource) -> None: ...
    def fail(self, error: TxnError) -> None: ...


class Receiver:
    """Merges the buffers of several feeds: in order within a feed, from one feed after the other.

    One call takes from as few feeds as it can: what a transaction acks in a segment is a record of its own."""

    def __init__(self, session: Session, what: str, serializer: Serializer[Any] | None = None) -> None:
        """`what`: e.g. "consumer c1", for error messages. `serializer`: of the values received, None for bytes."""
        self.serializer = serializer
        self._session = session
        self._what = what
        self._ready: dict[FeedSource, None] = {}
        self._queue: deque[FeedSource] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._failure: TxnError | None = None
        self._closed = False
        self._pause_s = 0.0
        self.at_once = 1
        self.asks = 0
        self._waiters = 0
        self._paused: dict[FeedSource, None] = {}
        self._passed_over = False
        """The feed whose turn it was has waited for one call."""
        self._begun: FeedSource | None = None
        """The feed that gave the last message, if it has more."""

    # ---- for the feeds ----------------------------------------------------------------------------------------------

    def ready(self, source: FeedSource) -> None:
        """`source` has messages in its buffer, or is no longer paused. ▲ Ignored after the close: a consumer
        stays attached while it moves dead letters, and its application could ack no further message."""
        if source.paused or self._closed:
            return
        if source not in self._ready:
            self._ready[source] = None
            self._queue.append(source)
        self.wake()

    def wake(self) -> None:
        """Wake the waiting callers, to check again."""
        if self._arrival is not None:
            self._arrival.set_result(None)
            self._arrival = None

    @property
    def is_awaited(self) -> bool:
        return self._waiters > 0

    def pause(self, source: FeedSource) -> None:
        """Call `source.resume` when the application asks for messages."""
        self._paused[source] = None

    def _asked(self) -> None:
        self.asks += 1
        if self._paused:
            paused, self._paused = self._paused, {}
            for source in paused:
                source.resume()

    def fail(self, error: TxnError) -> None:
        """Nothing more can be received: calls raise `error` once the buffers are empty."""
        if self._failure is None:
            self._failure = error
            _log.warning("%s cannot continue: %s: %s", self._what, type(error).__name__, error)
        self.wake()

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._queue.clear()
        self._paused.clear()
        self._begun = None
        self.wake()

    # ---- for the application ----------------------------------------------------------------------------------------

    def take_many(self, max_messages: int) -> list[Message[Any]]:
        """As `take`, for the application. Raises `InvalidArgument` for less than one: a caller that waits for none
        would loop without end."""
        # ▲ A number of numpy's may have few bits: counted with it, a call would take none, again and again.
        at_most = index(max_messages) if hasattr(max_messages, "__index__") else 0
        if at_most < 1:
            raise InvalidArgument(f"max_messages is a positive number, not {max_messages!r}")
        self.at_once = at_most
        return self.take(at_most)

    def take(self, at_most: int, *, of: int = 0) -> list[Message[Any]]:
        """The buffered messages, without waiting; perhaps none. `of`: how many the caller asks for in all, if it goes
        on with `take_on`."""
        if not self._session.is_here:
            return []  # `wait` says so
        self._asked()
        self._bring_forward(max(at_most, of))
        return self._taken(at_most)

    def take_on(self, at_most: int) -> list[Message[Any]]:
        """More for the call that has just taken some: at first from the feed that gave the last of them."""
        if self._queue and self._queue[-1] is self._begun:
            self._queue.rotate(1)
        return self._taken(at_most)

    def _taken(self, at_most: int) -> list[Message[Any]]:
        taken: list[Message[Any]] = []
        self._begun = None
        while self._queue and len(taken) < at_most:
            source = self._queue.popleft()
            while source.buffered and not source.paused and len(taken) < at_most:
                taken += source.take(at_most - len(taken))
            if source.buffered and not source.paused:
                self._queue.append(source)
                self._begun = source
            else:
                del self._ready[source]
        return taken

    def _bring_forward(self, at_most: int) -> None:
        """Let a feed that holds the whole number asked for pass the feed at the head of the queue. ▲ Every second time
        at most: a segment that is always full would block the others for ever. It looks at no more feeds than one call
        may take from: with thousands of topics the search would cost more than the messages."""
        if self._passed_over or not self._queue or self._queue[0].buffered >= at_most:
            self._passed_over = False
            return
        for at, source in enumerate(islice(self._queue, at_most)):
            if source.buffered >= at_most and not source.paused:
                del self._queue[at]
                self._queue.appendleft(source)
                self._passed_over = True
                return

    async def wait(self, timeout_s: float | None) -> bool:
        """Wait until there may be something to take; False when the time is up. Raises the receiver's failure, as
        `fatal`; `InvalidArgument` if it is closed or belongs to another event loop."""
        if (error := self._refusal()) is not None:
            await self._pause(timeout_s)
            raise error
        if self._queue:
            return True
        if self._arrival is None:
            self._arrival = self._session.loop.create_future()
        self._waiters += 1
        try:
            done, _ = await asyncio.wait((self._arrival,), timeout=timeout_s)
        finally:
            self._waiters -= 1
        if done and (error := self._refusal()) is not None:
            raise error
        return bool(done)

    def _refusal(self) -> TxnError | None:
        """A new error each time that tells why nothing more will come."""
        if not self._session.is_here:
            return self._session.elsewhere()
        if self._queue:
            return None
        if self._closed:
            return for_good(InvalidArgument(f"{self._what} is closed"))
        return None if self._failure is None else for_good(self._failure)

    async def _pause(self, timeout_s: float | None) -> None:
        """▲ C6: a caller that ignores the error and calls again must cost little: pause for one turn of the loop at
        first, then longer, up to a second."""
        pause_s, self._pause_s = self._pause_s, min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
        await asyncio.sleep(pause_s if timeout_s is None else min(pause_s, timeout_s))


class TopicReceiver:
    """The receiver of one topic's feeds: `on_failed` decides what their failure means."""

    def __init__(self, receiver: Receiver, on_failed: Callable[[TxnError], None]) -> None:
        self._receiver = receiver
        self.fail = on_failed

    @property
    def serializer(self) -> Serializer[Any] | None:
        return self._receiver.serializer

    @property
    def failed(self) -> bool:
        return self._receiver.failed

    @property
    def at_once(self) -> int:
        return self._receiver.at_once

    @property
    def asks(self) -> int:
        return self._receiver.asks

    @property
    def is_awaited(self) -> bool:
        return self._receiver.is_awaited

    def pause(self, source: FeedSource) -> None:
        self._receiver.pause(source)

    def ready(self, source: FeedSource) -> None:
        self._receiver.ready(source)
