"""A producer: one name and one incarnation, writing to the active segments of one topic."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic

from txnclient.batches import Batch, BulkBatch, GatheringBatch
from txnclient.bulk import Part, SentIds, parts_of
from txnclient.channel import Channel
from txnclient.deadlines import Deadline
from txnclient.large_values import send_large, transaction_of
from txnclient.lingering import Lingering
from txnclient.moving import Routes
from txnclient.outgoing import checked, checked_value
from txnclient.serializers import Serializer, V, encode
from txnclient.session import Session
from txnclient.topic_layout import SegmentInfo, TopicLayout
from txnclient.transaction import FENCED_LIKE, Transaction, check_transaction, reason_of
from txnwire.compression import MAX_LEVEL
from txnwire.entry import Columns, OutgoingMessage, Piece
from txnwire.errors import (
    ConnectionLost,
    InvalidArgument,
    InvalidTxnState,
    SegmentSealed,
    TopicNotFound,
    TxnError,
    WouldBlock,
)
from txnwire.ids import MessageId, hash_key
from txnwire.names import validate_name
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_VALUE_BYTES

CLOSE_TIMEOUT_S = 5.0

COMPRESSIONS = {
    "zstd": pb.COMPRESSION_ZSTD,
    "lz4": pb.COMPRESSION_LZ4,
    "none": pb.COMPRESSION_NONE,
    None: pb.COMPRESSION_NONE,
}


class Producer(Generic[V]):
    """Made by `client.producer(topic)`. Sends of one key, and sends without key in one batch, are stored in order; they
    are read in that order too when segments are split and merged meanwhile, which a producer follows by itself."""

    def __init__(
        self,
        session: Session,
        layout: TopicLayout,
        *,
        name: str | None,
        linger_ms: float,
        batch_bytes: int,
        compression: str | None,
        buffer_bytes: int,
        compression_level: int = 1,
        serializer: Serializer[V] | None = None,
        on_closed: Callable[[Producer[V]], None],
    ) -> None:
        if compression not in COMPRESSIONS:
            raise InvalidArgument(f"compression {compression!r}: expected 'zstd', 'lz4' or None")
        if not 1 <= compression_level <= MAX_LEVEL:
            raise InvalidArgument(f"compression_level {compression_level}: expected 1 to {MAX_LEVEL}")
        if linger_ms < 0 or batch_bytes < 1 or buffer_bytes < 1:
            raise InvalidArgument("linger_ms must not be negative, batch_bytes and buffer_bytes must be positive")
        self.incarnation = session.random_u64()
        self.name = validate_name(name or f"producer-{self.incarnation:016x}", part="producer name")
        self.topic = layout.topic
        self.compression = COMPRESSIONS[compression]
        self.compression_level = compression_level
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
        self._lingering = Lingering(session, linger_ms / 1000, self._pending.__contains__)
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        self._failure: TxnError | None = None
        self._closed = False
        self._routes = Routes(layout)
        self._moving = False
        self._unlisten = session.directory.listen(self.move_on)

    def __repr__(self) -> str:
        return f"Producer({self.topic}, {self.name}{', closed' * self._closed})"

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

        `chunk`: a value over 5 MiB is sent in pieces, within a transaction, with which they appear together or not at
        all; the id is the first piece's.

        Raises `TxnConflict` (and the transaction can only abort), `InvalidTxnState`, `MessageTooLarge`,
        `ProducerFenced`, `Timeout`: its fate is not known; `ExpiredTransaction`: the client was fenced. A send that is
        cancelled may still be stored.
        """
        data = self._encoded(value)
        if chunk and len(data) > MAX_VALUE_BYTES:
            data = checked_value(data)
            head, overhead = checked(b"", key, properties, event_time_ms)
            inside = transaction_of(len(data), txn)
            try:
                self._check_sends(inside)
                return await send_large(self, data, head, overhead, inside)
            except FENCED_LIKE as error:
                raise await reason_of(error, txn) from error.__cause__
        message, size = checked(data, key, properties, event_time_ms)
        await self.room(size)
        try:
            stored = self._take(message, size, txn)
            return await stored
        except FENCED_LIKE as error:
            raise await reason_of(error, txn) from error.__cause__
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
        message, size = checked(self._encoded(value), key, properties, event_time_ms)
        if self._buffered + size > self._buffer_bytes and self._buffered:
            raise WouldBlock(
                f"producer {self.name}: {self._buffered} of {self._buffer_bytes} bytes of its buffer are taken; "
                "await send(), or flush() first"
            )
        return self._take(message, size, txn)

    async def send_many(
        self,
        messages: Iterable[V | tuple[str | bytes | None, V] | OutgoingMessage] | Columns,
        *,
        txn: Transaction | None = None,
    ) -> SentIds:
        """Send values, (key, value) pairs or `OutgoingMessage`s in bulk and wait until all are stored; or `Columns` of
        values and, where there are any, keys, properties and event times.

        They pass through without an object each and fill entries of `batch_bytes`; an iterator is read as there is room
        in the buffer. Returns their ids, a sequence in the order of `messages`. Raises the first failure once all that
        were sent are answered; what stands before a malformed message may be stored.
        """
        ids = SentIds()
        failure: TxnError | None = None
        try:
            for part in parts_of(messages, None if self._serializer is None else self._encoded):
                await self._send_part(part, txn, ids)
        except TxnError as error:
            failure = error
            if txn is not None and ids.batches:
                txn.failed(error)
        unsettled = [batch.settled for batch in ids.batches if not batch.settled.done()]
        if unsettled:
            await asyncio.wait(unsettled)
        for batch in ids.batches:
            if batch.settled.cancelled():
                raise InvalidTxnState("the transaction was aborted before all messages were sent")
            failure = failure or batch.settled.exception()  # type: ignore[assignment]
        if failure is not None:
            raise (await reason_of(failure, txn) if isinstance(failure, FENCED_LIKE) else failure)
        return ids

    async def _send_part(self, part: Part, txn: Transaction | None, ids: SentIds) -> None:
        routes = self._current_routes()
        groups, version = routes.groups(part.columns.keys), routes.version
        for segment, indexes in groups:
            chosen = part if indexes is None else part.select(indexes)
            for columns, size in chosen.runs(self.batch_bytes):
                await self.room(size)
                self._check_sends(txn)
                batch = self._bulk_batch(columns, size, txn)
                if self._current_routes().version == version:
                    channel = self._next_channel() if segment is None else self._channel_to(segment)
                    channel.add_whole(batch)
                else:
                    self._place(batch, columns)
                ids.add(batch)
        order = None if len(groups) == 1 else [index for _, indexes in groups for index in indexes or ()]
        ids.taken(order, len(part))
        await asyncio.sleep(0)  # the loop's other tasks, and the writer of what has been taken in

    def _bulk_batch(
        self, columns: Columns, size: int, txn: Transaction | None, piece: Piece | None = None
    ) -> BulkBatch:
        """One that counts for the buffer, and is still to be given to a channel."""
        batch = BulkBatch(columns, size, txn, self._session.deadline(), self._session.loop.create_future(), piece)
        self._pending[batch] = None
        self._buffered += size
        return batch

    # ---- large values -----------------------------------------------------------------------------------------------

    def channel_of(self, key: bytes | None, txn: Transaction) -> Channel:
        return self._next_channel() if key is None else self._channel(key, txn)

    async def room(self, size: int) -> None:
        if self._buffered + size > self._buffer_bytes and self._buffered:
            await self._wait_room(size)

    def add_piece(self, channel: Channel, columns: Columns, size: int, txn: Transaction, piece: Piece) -> BulkBatch:
        if self._closed:
            raise InvalidArgument(f"producer {self.name} is closed")
        if self._failure is not None:
            raise self._failure
        self._current_routes()
        if channel.left:
            raise SegmentSealed(f"segment://{channel.segment} was sealed before all of this message was stored")
        batch = self._bulk_batch(columns, size, txn, piece)
        channel.add_whole(batch)
        return batch

    async def flush(self, *, timeout: float | None = None) -> None:
        """Wait until everything sent so far is stored; raises the first failure among it."""
        deadline = self._session.deadline(timeout)
        waited_for = await self._wait_stored(deadline)
        if not all(future.done() for future in waited_for):
            raise deadline.expired(f"flushing producer {self.name}")
        failures = [future.exception() for future in waited_for if not future.cancelled()]
        for failure in failures:
            if failure is not None:
                raise failure

    async def _wait_stored(self, deadline: Deadline) -> list[asyncio.Future[Any]]:
        """Wait, as time allows, for what is not stored now, also where it is divided meanwhile; the futures of what
        somebody waits for, one or more for each batch."""
        for channel in self._channels.values():
            channel.flush_all()
        batches = list(self._pending)
        waited_for: dict[asyncio.Future[Any], None] = {}
        while left := [future for batch in batches for future in batch.unsettled()]:
            waited_for |= dict.fromkeys(left)
            if deadline.passed:
                break
            await asyncio.wait(left, timeout=deadline.remaining())
        return list(waited_for)

    def _encoded(self, value: V) -> bytes:
        return value if self._serializer is None else encode(self._serializer, value)  # type: ignore[return-value]

    def _take(self, message: OutgoingMessage, size: int, txn: Transaction | None) -> asyncio.Future[MessageId]:
        self._check_sends(txn)
        channel = self._channel(message.key, txn)
        if not channel.fits(txn, size):
            channel.flush(txn)
            channel = self._channel(message.key, txn)
        self._buffered += size
        return channel.add(message, size, txn, self._session.timeout_s)

    def _check_sends(self, txn: Transaction | None) -> None:
        if self._closed:
            raise InvalidArgument(f"producer {self.name} is closed")
        if self._failure is not None:
            raise self._failure
        if txn is not None:
            check_transaction(txn, "send")

    def _channel(self, key: bytes | None, txn: Transaction | None) -> Channel:
        if key is not None:
            return self._channel_to(self._current_routes().segment_of_hash(hash_key(key)))
        channel = self._keyless.get(txn)
        if channel is None or not channel.gathers(txn):
            channel = self._keyless[txn] = self._next_channel()
        return channel

    def _next_channel(self) -> Channel:
        active = self._current_routes().layout.active
        self._turn += 1
        return self._channel_to(active[self._turn % len(active)])

    def _channel_to(self, segment: SegmentInfo) -> Channel:
        channel = self._channels.get(segment.path)
        if channel is None:
            channel = self._channels[segment.path] = Channel(self._session, self, segment)
        return channel

    def _current_routes(self) -> Routes:
        routes = self._routes
        layout = self._session.directory.known_layout(self.topic)
        if layout is not routes.layout:
            if layout is None:
                raise TopicNotFound(f"topic {self.topic!r} does not exist any more")
            self.move_on()  # nobody has told us yet
        return routes

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

    def gathers(self, channel: Channel, batch: GatheringBatch, *, later: bool) -> None:
        """A batch has been begun; `later`: it may linger, because an earlier one is under way."""
        self._pending[batch] = None
        if later:
            self._lingering.leave_later(channel, batch)
        else:
            self._lingering.leave_this_turn(channel, batch)

    def settled(self, batch: Batch, stored: bool) -> None:
        """The batch has its final answer, or was withdrawn."""
        self._pending.pop(batch, None)
        self._buffered -= batch.bytes
        if batch.txn is not None and self._keyless.get(batch.txn) is not None:
            self._forget_keyless(batch.txn)
        if stored and batch.last > self._last_stored:
            self._last_stored = batch.last
        if self._routes.leaving:
            self._session.loop.call_soon(self.move_on)  # it may have been the last that was in doubt
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

    # ---- following the layout ---------------------------------------------------------------------------------------

    def held_back(self, channel: Channel) -> bool:
        return self._routes.held_back(channel.info)

    def move_on(self) -> None:
        """Take what is left out of sealed segments that have answered, to where it belongs now (`txnclient.moving`)."""
        layout = self._session.directory.known_layout(self.topic)
        routes = self._routes
        if self._moving or layout is None or (layout is routes.layout and not routes.leaving):
            return
        self._moving = True
        try:
            if layout is not routes.layout:
                routes.follow(layout, [channel.info for channel in self._channels.values()])
            moved = [self._leave_or_ask(segment) for segment in list(routes.leaving.values())]
        finally:
            self._moving = False
        if any(moved):
            self._session.directory.stir()  # those that were held back may go

    def _leave_or_ask(self, segment: SegmentInfo) -> bool:
        """Whether a sealed segment has answered, and was left."""
        channel = self._channels[segment.path]
        if channel.in_doubt:
            if not self._routes.is_gone(segment):
                channel.ask()
                return False
            channel.give_up_doubtful()
        self._routes.left(segment)
        del self._channels[segment.path]
        for batch in channel.leave():
            self._move(batch)
        return True

    def _move(self, batch: Batch) -> None:
        """A batch that is surely not stored, and that no channel has any more."""
        txn = batch.txn
        if txn is not None and txn.aborting:
            batch.cancelled()
            self.settled(batch, stored=False)
        elif batch.piece is not None:
            # Its value is begun anew by who sends it: what is stored of it already cannot be moved.
            batch.failed(SegmentSealed("the segment was sealed before all of this value was stored"))
            self.settled(batch, stored=False)
        else:
            self._place(batch, batch.take_back())
        if txn is not None:
            txn.finished(None)

    def _place(self, batch: Batch, columns: Columns) -> None:
        """Give a batch to the channel its messages belong to now, or its parts to several."""
        groups = self._routes.groups(columns.keys)
        parts: Sequence[Batch] = (batch,)
        if len(groups) > 1:
            parts = batch.divide(columns, [indexes or () for _, indexes in groups])
            del self._pending[batch]
            self._pending |= dict.fromkeys(parts)
        for (segment, _), part in zip(groups, parts, strict=True):
            channel = self._next_channel() if segment is None else self._channel_to(segment)
            channel.add_whole(part)

    # ---- closing ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Send what is gathered and wait for it, at most 5 s; what is not stored by then fails. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._on_closed(self)
        deadline = Deadline(self._session.clock, min(CLOSE_TIMEOUT_S, self._session.timeout_s))
        try:
            await self._wait_stored(deadline)
        finally:
            self._unlisten()
            self._lingering.stop()
            for channel in self._channels.values():
                channel.close()  # before what is left fails, which lets go of the connection without a word
            self._fail(ConnectionLost(f"producer {self.name} was closed before this was stored"))

    async def __aenter__(self) -> Producer[V]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
