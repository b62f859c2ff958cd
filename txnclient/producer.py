"""A producer: one name and one incarnation, writing to the active segments of one topic."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Generic

from txnclient.channel import Batch, Channel
from txnclient.deadlines import Deadline
from txnclient.serializers import Serializer, V, encode
from txnclient.session import Session
from txnclient.topic_layout import SegmentInfo, TopicLayout
from txnclient.transaction import Transaction
from txnwire.entry import OutgoingMessage
from txnwire.errors import (
    ConnectionLost,
    InvalidArgument,
    InvalidTxnState,
    MessageTooLarge,
    TopicNotFound,
    TxnError,
    WouldBlock,
)
from txnwire.ids import MessageId, hash_key
from txnwire.names import validate_name
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_VALUE_BYTES

MESSAGE_OVERHEAD_BYTES = 16
"""What a message counts for in the buffer besides its own bytes."""

CLOSE_TIMEOUT_S = 5.0

_COMPRESSIONS = {"zstd": pb.COMPRESSION_ZSTD, "none": pb.COMPRESSION_NONE, None: pb.COMPRESSION_NONE}


class Producer(Generic[V]):
    """Made by `client.producer(topic)`. Sends of one key, and sends without key in one batch, are stored in order."""

    def __init__(
        self,
        session: Session,
        topic: str,
        *,
        name: str | None,
        linger_ms: float,
        batch_bytes: int,
        compression: str | None,
        buffer_bytes: int,
        serializer: Serializer[V] | None = None,
        on_closed: Callable[[Producer[V]], None],
    ) -> None:
        if compression not in _COMPRESSIONS:
            raise InvalidArgument(f"compression {compression!r}: expected 'zstd' or None")
        if linger_ms < 0 or batch_bytes < 1 or buffer_bytes < 1:
            raise InvalidArgument("linger_ms must not be negative, batch_bytes and buffer_bytes must be positive")
        self.incarnation = session.random_u64()
        self.name = validate_name(name or f"producer-{self.incarnation:016x}", part="producer name")
        self.topic = topic
        self.compression = _COMPRESSIONS[compression]
        self.linger_s = linger_ms / 1000
        self.batch_bytes = min(batch_bytes, MAX_VALUE_BYTES)
        self._session = session
        self._serializer = serializer
        self._on_closed = on_closed
        self._buffer_bytes = buffer_bytes
        self._channels: dict[str, Channel] = {}
        self._turn = session.random.getrandbits(16)
        self._keyless: dict[Transaction | None, Channel] = {}
        """Where messages without a key gather now: round robin over the segments, one batch each (DESIGN §3)."""
        self._next_sequence_id = 0
        self._last_stored = -1
        self._buffered = 0
        self._pending: dict[Batch, None] = {}
        self._this_turn: list[tuple[Channel, Batch]] = []
        self._lingering: deque[tuple[Channel, Batch]] = deque()
        self._linger_timer: asyncio.TimerHandle | None = None
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        self._failure: TxnError | None = None
        self._closed = False

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id known to be stored, -1 for none."""
        return self._last_stored

    # ---- sending ----------------------------------------------------------------------------------------------------

    async def send(
        self,
        value: V,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        txn: Transaction | None = None,
        chunk: bool = False,
    ) -> MessageId:
        """Send one message and wait until it is stored; waits for room in the buffer.

        Raises `TxnConflict` (and the transaction can only abort), `InvalidTxnState`, `MessageTooLarge`,
        `ProducerFenced`, `Timeout`: its fate is not known. A send that is cancelled may still be stored.
        """
        if chunk:
            raise InvalidArgument("chunk=True is not offered by this version: send values of at most 5 MiB")
        message, size = _outgoing(self._encoded(value), key, properties, event_time_ms)
        if self._buffered + size > self._buffer_bytes and self._buffered:
            await self._wait_room(size)
        stored = self._take(message, size, txn)
        try:
            return await stored
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if txn is not None and txn.aborting and stored.cancelled() and not (task and task.cancelling()):
                raise InvalidTxnState(f"transaction {txn.id} was aborted before this message was sent") from None
            raise

    def send_nowait(
        self,
        value: V,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        txn: Transaction | None = None,
    ) -> asyncio.Future[MessageId]:
        """Queue one message; the future resolves when it is stored. Raises `WouldBlock` when the buffer is full.

        Without a transaction, look at the future or `flush()`; in one, its commit waits for it and reports a failure.
        An abort cancels the futures of messages that were not sent.
        """
        message, size = _outgoing(self._encoded(value), key, properties, event_time_ms)
        if self._buffered + size > self._buffer_bytes and self._buffered:
            raise WouldBlock(
                f"producer {self.name}: {self._buffered} of {self._buffer_bytes} bytes of its buffer are taken; "
                "await send(), or flush() first"
            )
        return self._take(message, size, txn)

    async def send_many(
        self, messages: Iterable[tuple[str | bytes | None, V]], *, txn: Transaction | None = None
    ) -> list[MessageId]:
        """Send (key, value) pairs and wait until all are stored; raises the first failure once all are answered."""
        stored: list[asyncio.Future[MessageId]] = []
        for key, value in messages:
            message, size = _outgoing(self._encoded(value), key, None, None)
            if self._buffered + size > self._buffer_bytes and self._buffered:
                await self._wait_room(size)
            stored.append(self._take(message, size, txn))
        if not stored:
            return []
        results = await asyncio.gather(*stored, return_exceptions=True)
        ids: list[MessageId] = []
        for result in results:
            if isinstance(result, BaseException):
                if isinstance(result, asyncio.CancelledError) and txn is not None and txn.aborting:
                    raise InvalidTxnState(f"transaction {txn.id} was aborted before all messages were sent")
                raise result
            ids.append(result)
        return ids

    async def flush(self, *, timeout: float | None = None) -> None:
        """Wait until everything sent so far is stored; raises the first failure among it."""
        deadline = self._session.deadline(timeout)
        for channel in self._channels.values():
            channel.flush_all()
        waited_for = self._unstored()
        if waited_for:
            await asyncio.wait(waited_for, timeout=deadline.remaining())
        if not all(future.done() for future in waited_for):
            raise deadline.expired(f"flushing producer {self.name}")
        failures = [future.exception() for future in waited_for if not future.cancelled()]
        for failure in failures:
            if failure is not None:
                raise failure

    def _unstored(self) -> list[asyncio.Future[MessageId]]:
        """Futures of what is not stored yet; those of one batch end together, so one that nobody has cancelled stands
        for its batch."""
        alive = ([future for future in batch.futures if not future.done()] for batch in self._pending)
        return [futures[-1] for futures in alive if futures]

    def _encoded(self, value: V) -> bytes:
        return value if self._serializer is None else encode(self._serializer, value)  # type: ignore[return-value]

    def _take(self, message: OutgoingMessage, size: int, txn: Transaction | None) -> asyncio.Future[MessageId]:
        if self._closed:
            raise InvalidArgument(f"producer {self.name} is closed")
        if self._failure is not None:
            raise self._failure
        if txn is not None:
            txn.check_open("send")
        channel = self._channel(message.key, txn)
        if not channel.fits(txn, size):
            channel.flush(txn)
            channel = self._channel(message.key, txn)
        self._buffered += size
        return channel.add(message, size, txn, self._session.timeout_s)

    def _channel(self, key: bytes | None, txn: Transaction | None) -> Channel:
        if key is not None:
            return self._channel_to(self._current_layout().segment_of_hash(hash_key(key)))
        channel = self._keyless.get(txn)
        if channel is None or not channel.gathers(txn):
            active = self._current_layout().active
            self._turn += 1
            channel = self._channel_to(active[self._turn % len(active)])
            self._keyless[txn] = channel
        return channel

    def _channel_to(self, segment: SegmentInfo) -> Channel:
        channel = self._channels.get(segment.path)
        if channel is None:
            channel = self._channels[segment.path] = Channel(self._session, self, segment.path)
        return channel

    def _current_layout(self) -> TopicLayout:
        layout = self._session.directory.known_layout(self.topic)
        if layout is None:
            raise TopicNotFound(f"topic {self.topic!r} does not exist any more")
        return layout

    async def _wait_room(self, size: int) -> None:
        deadline = self._session.deadline()
        while self._buffered and self._buffered + size > self._buffer_bytes:
            if self._failure is not None:
                raise self._failure
            if deadline.passed:
                raise deadline.expired(f"waiting for room in the buffer of producer {self.name}")
            room: asyncio.Future[None] = self._session.loop.create_future()
            self._room_waiters.append(room)
            await asyncio.wait((room,), timeout=deadline.remaining())

    # ---- for its channels -------------------------------------------------------------------------------------------

    def take_sequence_ids(self, count: int) -> int:
        """The first of `count` new sequence ids; given when a batch closes, so they rise in every segment."""
        first = self._next_sequence_id
        self._next_sequence_id += count
        return first

    def leave_this_turn(self, channel: Channel, batch: Batch) -> None:
        """Close `batch` once all that is ready to run now has had its turn."""
        self._pending[batch] = None
        if not self._this_turn:
            self._session.loop.call_soon(self._turn_over)
        self._this_turn.append((channel, batch))

    def leave_later(self, channel: Channel, batch: Batch) -> None:
        """Close `batch` when lingering is over, unless something else closes it before."""
        self._pending[batch] = None
        batch.due = self._session.clock.monotonic() + self.linger_s
        self._lingering.append((channel, batch))
        if self._linger_timer is None:
            self._linger_timer = self._session.loop.call_later(self.linger_s, self._lingering_over)

    def _turn_over(self) -> None:
        leaving, self._this_turn = self._this_turn, []
        for channel, batch in leaving:
            channel.close_batch(batch)

    def _lingering_over(self) -> None:
        self._linger_timer = None
        now = self._session.clock.monotonic()
        while self._lingering and self._lingering[0][1].due <= now:
            channel, batch = self._lingering.popleft()
            channel.close_batch(batch)
        while self._lingering and self._lingering[0][1] not in self._pending:
            self._lingering.popleft()
        if self._lingering:
            self._linger_timer = self._session.loop.call_later(
                max(0.0, self._lingering[0][1].due - now), self._lingering_over
            )

    def settled(self, batch: Batch, stored: bool) -> None:
        """The batch has its final answer, or was withdrawn."""
        self._pending.pop(batch, None)
        self._buffered -= batch.bytes
        if batch.txn is not None and self._keyless.get(batch.txn) is not None:
            self._forget_keyless(batch.txn)
        if stored and batch.last > self._last_stored:
            self._last_stored = batch.last
        while self._room_waiters:
            waiter = self._room_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _forget_keyless(self, txn: Transaction) -> None:
        if not self._keyless[txn].gathers(txn):
            del self._keyless[txn]

    def fenced(self, error: TxnError) -> None:
        """A newer producer of this name has taken over: nothing can be sent any more."""
        self._fail(error)

    def _fail(self, error: TxnError) -> None:
        if self._failure is None:
            self._failure = error
        for channel in self._channels.values():
            channel.fail_all(error)

    # ---- closing ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Send what is gathered and wait for it, at most 5 s; what is not stored by then fails. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._on_closed(self)
        deadline = Deadline(self._session.clock, min(CLOSE_TIMEOUT_S, self._session.timeout_s))
        try:
            for channel in self._channels.values():
                channel.flush_all()
            waited_for = self._unstored()
            if waited_for:
                await asyncio.wait(waited_for, timeout=deadline.remaining())
        finally:
            if self._linger_timer is not None:
                self._linger_timer.cancel()
            self._fail(ConnectionLost(f"producer {self.name} was closed before this was stored"))
            for channel in self._channels.values():
                channel.close()

    async def __aenter__(self) -> Producer[V]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _outgoing(
    value: bytes, key: str | bytes | None, properties: Mapping[str, str] | None, event_time_ms: int | None
) -> tuple[OutgoingMessage, int]:
    """The message, and the bytes it counts for in the buffer. Raises `InvalidArgument`, `MessageTooLarge`."""
    if type(value) is not bytes:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InvalidArgument(f"a message's value is bytes, not {type(value).__name__}")
        value = bytes(value)
    if len(value) > MAX_VALUE_BYTES:
        raise MessageTooLarge(f"a value of {len(value)} bytes is over the {MAX_VALUE_BYTES} bytes that are allowed")
    size = len(value) + MESSAGE_OVERHEAD_BYTES
    if key is not None:
        if isinstance(key, str):
            key = key.encode()
        elif not isinstance(key, bytes):
            raise InvalidArgument(f"a message's key is str or bytes, not {type(key).__name__}")
        size += len(key)
    if properties:
        for name, text in properties.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise InvalidArgument("a message's properties map str to str")
            size += len(name) + len(text)
    return OutgoingMessage(value, key, properties or None, event_time_ms), size
