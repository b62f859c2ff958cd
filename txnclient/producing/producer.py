"""A producer: one name and one incarnation, writing to the active segments of one topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

from txnclient.connection.deadlines import Deadline
from txnclient.connection.opening import closed_behind
from txnclient.connection.session import Session
from txnclient.connection.topic_layout import TopicLayout
from txnclient.producing.batches import Batch, BulkBatch, GatheringBatch
from txnclient.producing.buffer import Ask, Buffer
from txnclient.producing.bulk import BulkPart, SentIds, parts_of
from txnclient.producing.bulk_sends import EntryRun, Pull, send_bulk
from txnclient.producing.channel import Channel
from txnclient.producing.channels import Channels
from txnclient.producing.large_values import send_large, transaction_of
from txnclient.producing.lingering import Lingering
from txnclient.producing.moving import Group
from txnclient.producing.outgoing import checked, checked_value
from txnclient.producing.untold import Looked, Untold
from txnclient.serializers import Serializer, V, encode
from txnclient.transactions.transaction import FENCED_LIKE, Transaction, check_transaction, reason_of
from txnclient.transactions.whole import failure_in
from txnwire.compression import MAX_LEVEL
from txnwire.entry import Columns, OutgoingMessage, Piece
from txnwire.errors import (
    ConnectionLost,
    InvalidArgument,
    SegmentSealed,
    TxnError,
    WouldBlock,
    again,
    for_good,
)
from txnwire.ids import MessageId
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


T = TypeVar("T")


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
        self._channels = Channels(session, self, layout)
        self._next_sequence_id = 0
        self._last_stored = -1
        self._buffer = Buffer(session, self.name, buffer_bytes)
        self._pending: dict[Batch, None] = {}
        self._untold = Untold()
        self._lingering = Lingering(session, linger_ms / 1000, self._pending.__contains__)
        self._failure: TxnError | None = None
        self._closed = False
        self._all_closed = asyncio.Event()
        """It is closed, and nothing of it is under way any more."""

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
        """Send one message and wait until it is stored; waits for room in the buffer, in the order of asking.

        `chunk`: a value over 5 MiB is sent in pieces, within a transaction, with which they appear together or not at
        all; the id is the first piece's.

        Raises `TxnConflict`, `InvalidTxnState`, `MessageTooLarge`, `ProducerFenced`, `Timeout`: its fate is not known;
        `TopicNotFound`: the topic was deleted, also where another one has its name now, which only a producer opened
        anew writes to; `ExpiredTransaction`: the client was fenced. A send that is cancelled may still be stored. In a
        transaction it belongs to that from the call on, which can only abort once it has failed or was cancelled.
        """
        await self._expect_usable(txn)
        data = self._encoded(value)
        if chunk and len(data) > MAX_VALUE_BYTES:
            data = checked_value(data)
            head, overhead = checked(b"", key, properties, event_time_ms)
            inside = transaction_of(len(data), txn)
            self._check_sends(inside)
            try:
                return await send_large(self, data, head, overhead, inside)
            except FENCED_LIKE as error:
                raise await reason_of(error, txn) from error.__cause__
        message, size = checked(data, key, properties, event_time_ms)
        self._check_sends(txn)
        stored: asyncio.Future[MessageId] = self._session.loop.create_future()
        try:
            if self._buffer.has_room(size):
                self._take(message, size, txn, stored)
            else:
                await self._buffer.wait(size, txn, partial(self._take, message, size, txn, stored))
            return await stored
        except BaseException as error:
            stored.cancel()
            if txn is not None:
                txn.failed(failure_in(txn, "a send", error))  # ▲ C1: before anything is awaited, or it could commit
            if isinstance(error, FENCED_LIKE):
                raise await reason_of(error, txn) from error.__cause__
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
        """Queue one message; the future resolves when it is stored. Raises `WouldBlock` when the buffer is full, or
        other sends wait for room in it.

        Without a transaction, look at the future: the next `flush` or `close` raises a failure that nobody has looked
        at. In one, its commit waits for it and raises its failure; an abort fails what was not sent by
        `InvalidTxnState`. Whoever cancels the future leaves its transaction only able to abort.
        """
        message, size = self.prepared(value, key, properties, event_time_ms)
        self._check_sends(txn)
        if not self._buffer.has_room(size):
            raise WouldBlock(f"producer {self.name}: {self._buffer}; await send(), or flush() first")
        stored: asyncio.Future[MessageId] = self._session.loop.create_future()
        self._take(message, size, txn, stored)
        return stored

    async def send_many(
        self,
        messages: Iterable[V | tuple[str | bytes | None, V] | OutgoingMessage] | Columns,
        *,
        txn: Transaction | None = None,
    ) -> SentIds:
        """Send values, (key, value) pairs or `OutgoingMessage`s in bulk and wait until all are stored; or `Columns` of
        values and, where there are any, keys, properties and event times.

        They pass through without an object each and fill entries of `batch_bytes`; an iterator is read as there is room
        in the buffer. Returns their ids, a sequence in the order of `messages`. Raises the first failure, or what the
        iterator has raised, once all that were sent are answered; those may be stored, as when it is cancelled. In a
        transaction, which can only abort then, none of them is.
        """
        parts = self.parts(messages)

        async def pull() -> BulkPart | None:
            return next(parts, None)

        return await self.send_pulled(pull, txn=txn)

    def parts(self, messages: Iterable[Any]) -> Generator[BulkPart, None, None]:
        """As `send_many` takes them in."""
        return parts_of(messages, None if self._serializer is None else self._encoded)

    async def send_pulled(self, pull: Pull, *, txn: Transaction | None) -> SentIds:
        """Send part after part, as `send_many`, until there is none."""
        await self._expect_usable(txn)
        self._check_sends(txn)
        try:
            return await send_bulk(self, pull, txn)
        except FENCED_LIKE as error:
            raise await reason_of(error, txn) from error.__cause__

    def groups(self, keys: Sequence[bytes | None] | None) -> tuple[list[Group], int]:
        """Messages by where they go, and the version of the routes that this is of."""
        return self._channels.groups(keys)

    async def add_run(self, run: EntryRun, txn: Transaction | None) -> BulkBatch:
        """Messages that were sent in bulk, as one batch or, where the layout has changed meanwhile, more."""
        self._check_goes_on(txn)
        return await self._in_room(run.size, txn, partial(self._place_run, run, txn))

    def _place_run(self, run: EntryRun, txn: Transaction | None) -> BulkBatch:
        self._channels.current()
        batch = self._bulk_batch(run.columns, run.size, txn)
        self._channels.put(batch, run.columns, run.segment, run.version)
        return batch

    async def _in_room(self, size: int, txn: Transaction | None, place: Callable[[], T]) -> T:
        return place() if self._buffer.has_room(size) else await self._buffer.wait(size, txn, place)

    def prepared(
        self, value: V, key: str | bytes | None, properties: Mapping[str, str] | None, event_time_ms: int | None
    ) -> tuple[OutgoingMessage, int]:
        """The message as it will be sent, and its size. Raises `InvalidArgument`, `MessageTooLarge`."""
        return checked(self._encoded(value), key, properties, event_time_ms)

    async def accepted(self, message: OutgoingMessage, size: int, txn: Transaction) -> asyncio.Future[MessageId]:
        """As `send_nowait`, of what is prepared, but it waits for room in the buffer in its turn."""
        self._check_sends(txn)
        stored: asyncio.Future[MessageId] = self._session.loop.create_future()
        await self._in_room(size, txn, partial(self._take, message, size, txn, stored))
        return stored

    def _bulk_batch(
        self, columns: Columns, size: int, txn: Transaction | None, piece: Piece | None = None
    ) -> BulkBatch:
        """One that counts for the buffer, and is still to be given to a channel."""
        batch = BulkBatch(columns, size, txn, self._session.deadline(), self._session.loop.create_future(), piece)
        self._pending[batch] = None
        self._buffer.take(size)
        return batch

    # ---- large values -----------------------------------------------------------------------------------------------

    def channel_of(self, key: bytes | None, txn: Transaction) -> Channel:
        return self._channels.of_whole(key)

    async def add_piece(
        self, channel: Channel, columns: Columns, size: int, txn: Transaction, piece: Piece
    ) -> BulkBatch:
        self._check_goes_on(txn)
        return await self._in_room(size, txn, partial(self._place_piece, channel, columns, size, txn, piece))

    def _place_piece(self, channel: Channel, columns: Columns, size: int, txn: Transaction, piece: Piece) -> BulkBatch:
        self._channels.current()
        if channel.left:
            raise SegmentSealed(f"segment://{channel.segment} was sealed before all of this message was stored")
        batch = self._bulk_batch(columns, size, txn, piece)
        channel.add_whole(batch)
        return batch

    # ---- flushing ---------------------------------------------------------------------------------------------------

    async def flush(self, *, timeout: float | None = None) -> None:
        """Wait until everything sent so far is stored, also what waits for room in the buffer; raises the first failure
        among it, or an earlier one that nobody has been told of (of an open transaction, too)."""
        self._session.expect_here()
        deadline = self._session.deadline(timeout)
        asks, batches = await self._wait_stored(deadline)
        if not all(batch.over for batch in batches) or not all(ask.placed.done() for ask in asks):
            raise deadline.expired(f"flushing producer {self.name}")
        failures = [ask.failure for ask in asks] + [batch.failure for batch in batches]
        self._tell([failure for failure in failures if failure is not None], of_transactions=True)

    async def _wait_stored(self, deadline: Deadline) -> tuple[Sequence[Ask], Sequence[Batch]]:
        """Wait, as time allows, for what waits for room and for what is not stored now, also where it is divided
        meanwhile; returns both."""
        asks = await self._buffer.wait_placed(deadline)
        self._channels.flush_all()
        batches = list(self._pending)
        while True:
            leaves = [leaf for batch in batches for leaf in batch.leaves()]
            left = [leaf.end(self._session.loop) for leaf in leaves if not leaf.over]
            if not left or deadline.passed:
                return asks, leaves
            await asyncio.wait(left, timeout=deadline.remaining())

    def _tell(self, failures: Sequence[Exception] = (), *, of_transactions: bool = False) -> None:
        """▲ C4: raise what nobody has been told of."""
        untold = self._untold.tell(of_transactions=of_transactions)
        if untold is not None:
            raise untold
        for failure in failures:
            raise again(failure) if isinstance(failure, TxnError) else failure

    def told_by(self, stored: asyncio.Future[MessageId], looked: Looked) -> None:
        """Of a future of `send_nowait`: only `looked` says whether its sender knows how it ended."""
        self._untold.looked_at_elsewhere(stored, looked)

    def _encoded(self, value: V) -> bytes:
        return value if self._serializer is None else encode(self._serializer, value)  # type: ignore[return-value]

    def _take(
        self, message: OutgoingMessage, size: int, txn: Transaction | None, stored: asyncio.Future[MessageId]
    ) -> None:
        channel = self._channels.of(message.key, txn)
        if not channel.fits(txn, size):
            channel.flush(txn)
            channel = self._channels.of(message.key, txn)
        self._buffer.take(size)
        channel.add(message, size, txn, stored)

    def _check_sends(self, txn: Transaction | None) -> None:
        self._check_usable(txn)
        if txn is not None:
            check_transaction(txn, "send")

    def _check_goes_on(self, txn: Transaction | None) -> None:
        """The same for the rest of something that was begun."""
        self._check_usable(txn)
        if txn is not None:
            txn.check_goes_on("send")

    async def _expect_usable(self, txn: Transaction | None) -> None:
        """▲ C6: whoever calls on although told that it cannot go on does not stop the loop."""
        try:
            self._check_usable(txn)
        except TxnError:
            await asyncio.sleep(0)
            raise

    def _check_usable(self, txn: Transaction | None) -> None:
        self._session.expect_here()
        if self._closed:
            raise for_good(InvalidArgument(f"producer {self.name} is closed"))
        self._channels.notice()
        if self._failure is not None:
            if isinstance(txn, Transaction):
                txn.failed(self._failure)  # ▲ C1: it would commit without this
            raise for_good(self._failure)

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
        batch.ended()
        self._buffer.give_back(batch.bytes)
        if stored and batch.last > self._last_stored:
            self._last_stored = batch.last
        self._channels.settled(batch)

    def lost(self, batch: Batch, futures: Sequence[asyncio.Future[MessageId]]) -> None:
        """The batch has failed, and these futures with it."""
        for future in futures:
            if batch.failure is not None:
                self._untold.failed(future, batch.failure, batch.txn)

    def fenced(self, error: TxnError) -> None:
        """A newer producer of this name has taken over: nothing can be sent any more."""
        self._fail(error)

    def topic_gone(self, error: TxnError) -> None:
        """Its topic was deleted: nothing can be sent any more."""
        self._fail(error)

    def _fail(self, error: TxnError) -> None:
        if self._failure is None:
            self._failure = error
        self._buffer.fail_all(error)
        self._channels.fail_all(error)

    def divided(self, batch: Batch, parts: Sequence[Batch]) -> None:
        """What was one batch is several, for its segment was."""
        del self._pending[batch]
        self._pending |= dict.fromkeys(parts)

    def held_back(self, channel: Channel) -> bool:
        """Whether nothing may be written there yet."""
        return self._channels.held_back(channel)

    def move_on(self) -> None:
        """Take what is left out of sealed segments that have answered, to where it belongs now."""
        self._channels.move_on()

    # ---- closing ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Send what is gathered and wait for it, at most 5 s; what is not stored by then fails. Idempotent. Raises the
        first failure that nobody has been told of, outside transactions; the producer is closed all the same."""
        if self._closed:
            if self._session.is_here:
                await self._all_closed.wait()  # whoever closed it first waits for what it sends
            self._tell()
            return
        self._session.expect_here()
        self._closed = True
        deadline = Deadline(self._session.clock, min(CLOSE_TIMEOUT_S, self._session.timeout_s))
        try:
            await self._wait_stored(deadline)
        finally:
            self._lingering.stop()
            self._channels.close()  # before what is left fails, which lets go of the connection without a word
            self._fail(ConnectionLost(f"producer {self.name} was closed before this was stored"))
            self._all_closed.set()
            self._on_closed(self)  # ▲ not before: a client that closes meanwhile waits for it, too
        await asyncio.sleep(0)  # whoever waits for a message hears of it first
        self._tell()

    async def __aenter__(self) -> Producer[V]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await closed_behind(self.close, error)
