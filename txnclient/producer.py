"""A producer: one name and one incarnation, writing to the active segments of one topic."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Generic

from txnclient.batches import Batch, BulkBatch, GatheringBatch
from txnclient.bulk import Part, SentIds, parts_of
from txnclient.channel import Channel
from txnclient.deadlines import Deadline
from txnclient.lingering import Lingering
from txnclient.outgoing import checked, checked_value
from txnclient.serializers import Serializer, V, encode
from txnclient.session import Session
from txnclient.topic_layout import SegmentInfo, TopicLayout
from txnclient.transaction import Transaction, check_transaction
from txnwire.compression import MAX_LEVEL
from txnwire.entry import Columns, OutgoingMessage, Piece
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
from txnwire.protocol import MAX_CHUNKED_BYTES, MAX_VALUE_BYTES, MIB

CLOSE_TIMEOUT_S = 5.0

PIECE_BYTES = MIB
"""Of a large value in one entry: small beside what a segment takes in at once, large beside what an entry costs."""

COMPRESSIONS = {
    "zstd": pb.COMPRESSION_ZSTD,
    "lz4": pb.COMPRESSION_LZ4,
    "none": pb.COMPRESSION_NONE,
    None: pb.COMPRESSION_NONE,
}


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
        self.topic = topic
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
        `ProducerFenced`, `Timeout`: its fate is not known. A send that is cancelled may still be stored.
        """
        data = self._encoded(value)
        if chunk and len(data) > MAX_VALUE_BYTES:
            return await self._send_pieces(checked_value(data), key, properties, event_time_ms, txn)
        message, size = checked(data, key, properties, event_time_ms)
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
        message, size = checked(self._encoded(value), key, properties, event_time_ms)
        if self._buffered + size > self._buffer_bytes and self._buffered:
            raise WouldBlock(
                f"producer {self.name}: {self._buffered} of {self._buffer_bytes} bytes of its buffer are taken; "
                "await send(), or flush() first"
            )
        return self._take(message, size, txn)

    async def send_many(
        self,
        messages: Iterable[V | tuple[str | bytes | None, V] | OutgoingMessage],
        *,
        txn: Transaction | None = None,
    ) -> SentIds:
        """Send values, (key, value) pairs or `OutgoingMessage`s in bulk and wait until all are stored.

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
            raise failure
        return ids

    async def _send_part(self, part: Part, txn: Transaction | None, ids: SentIds) -> None:
        groups = self._by_segment(part)
        for segment, indexes in groups:
            chosen = part if indexes is None else part.select(indexes)
            for columns, size in chosen.runs(self.batch_bytes):
                channel = await self._room_for(size, txn, segment)
                ids.add(self._take_bulk(channel, columns, size, txn))
        order = None if len(groups) == 1 else [index for _, indexes in groups for index in indexes or ()]
        ids.taken(order, len(part))
        await asyncio.sleep(0)  # the loop's other tasks, and the writer of what has been taken in

    def _by_segment(self, part: Part) -> list[tuple[int | None, list[int] | None]]:
        """A part's messages by a hash of the segment they belong to, None for those without a key; the indexes None
        where all belong together."""
        keys = part.columns.keys
        if keys is None:
            return [(None, None)]
        layout = self._current_layout()
        if len(layout.active) == 1 and None not in keys:
            return [(layout.active[0].range[0], None)]
        groups: dict[int | None, list[int]] = {}
        for index, key in enumerate(keys):
            low = None if key is None else layout.segment_of_hash(hash_key(key)).range[0]
            groups.setdefault(low, []).append(index)
        return list(groups.items()) if len(groups) > 1 else [(next(iter(groups)), None)]

    async def _room_for(self, size: int, txn: Transaction | None, key_hash: int | None) -> Channel:
        """The channel for the next run of a bulk send, once there is room; without a key the next one in turn."""
        if self._buffered + size > self._buffer_bytes and self._buffered:
            await self._wait_room(size)
        self._check_sends(txn)
        if key_hash is None:
            return self._next_channel()
        return self._channel_to(self._current_layout().segment_of_hash(key_hash))

    def _take_bulk(
        self, channel: Channel, columns: Columns, size: int, txn: Transaction | None, piece: Piece | None = None
    ) -> BulkBatch:
        batch = BulkBatch(columns, size, txn, self._session.deadline(), self._session.loop.create_future(), piece)
        self._pending[batch] = None
        self._buffered += size
        channel.add_bulk(batch)
        return batch

    # ---- large values -----------------------------------------------------------------------------------------------

    async def _send_pieces(
        self,
        value: bytes,
        key: str | bytes | None,
        properties: Mapping[str, str] | None,
        event_time_ms: int | None,
        txn: Transaction | None,
    ) -> MessageId:
        """One value in pieces, all to one segment, and one value after the other. ▲ A7: whatever ends it in between
        leaves the transaction only able to abort, or it would commit half a value."""
        if txn is None:
            raise MessageTooLarge(
                f"a value of {len(value)} bytes needs a transaction: its pieces appear together only when one commits"
            )
        if len(value) > MAX_CHUNKED_BYTES:
            raise MessageTooLarge(f"a value of {len(value)} bytes is over the {MAX_CHUNKED_BYTES} of one in pieces")
        head, overhead = checked(b"", key, properties, event_time_ms)
        self._check_sends(txn)
        channel = self._next_channel() if head.key is None else self._channel(head.key, txn)
        count = -(-len(value) // PIECE_BYTES)
        batches: list[BulkBatch] = []
        try:
            async with channel.one_large_value:
                for number in range(count):
                    part = value[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]
                    if self._buffered + len(part) > self._buffer_bytes and self._buffered:
                        await self._wait_room(len(part))
                    self._check_sends(txn)
                    message = head._replace(value=part) if number == 0 else OutgoingMessage(part, head.key)
                    columns = Columns.of([message])
                    chunk_id = batches[0].first if batches else -1
                    piece = Piece(chunk_id, number, count, len(value))
                    batches.append(self._take_bulk(channel, columns, len(part) + overhead, txn, piece))
            await asyncio.wait([batch.settled for batch in batches])
        except BaseException as error:
            if batches:
                torn = error if isinstance(error, TxnError) else InvalidTxnState("a large value was sent in part only")
                txn.failed(torn)
            raise
        for batch in batches:
            if batch.settled.cancelled():
                raise InvalidTxnState(f"transaction {txn.id} was aborted before all of this message was sent")
            batch.settled.result()
        return MessageId(channel.segment, batches[0].settled.result(), 0)

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

    def _unstored(self) -> list[asyncio.Future[Any]]:
        """One future for each batch that is not stored yet and that somebody waits for."""
        unsettled = [batch.unsettled() for batch in self._pending]
        return [future for future in unsettled if future is not None]

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
            return self._channel_to(self._current_layout().segment_of_hash(hash_key(key)))
        channel = self._keyless.get(txn)
        if channel is None or not channel.gathers(txn):
            channel = self._keyless[txn] = self._next_channel()
        return channel

    def _next_channel(self) -> Channel:
        active = self._current_layout().active
        self._turn += 1
        return self._channel_to(active[self._turn % len(active)])

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
