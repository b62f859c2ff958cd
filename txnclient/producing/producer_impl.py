"""Implements a producer: writes to the active segments of one topic under one name and incarnation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import Session
from txnclient.connection.topic_layout import TopicLayout
from txnclient.producing.buffer import Ask, Buffer
from txnclient.producing.bulk import BulkPart, SentIds, parts_of
from txnclient.producing.bulk_sends import EntryRun, Pull, send_bulk
from txnclient.producing.channels.batches import Batch, BulkBatch, GatheringBatch
from txnclient.producing.channels.channel import Channel
from txnclient.producing.channels.channels import Channels
from txnclient.producing.channels.lingering import Lingering
from txnclient.producing.channels.moving import Group
from txnclient.producing.channels.numbered import NumberedLife
from txnclient.producing.large_values import PIECE_BYTES, send_large, transaction_of
from txnclient.producing.later import delivery_time_ms
from txnclient.producing.numbered_sends import Placing, expect_life, send_numbered, send_numbered_nowait
from txnclient.producing.outgoing import check_size, checked, checked_value
from txnclient.producing.untold import Looked, Untold
from txnclient.serializers import Serializer, V, encode
from txnclient.transactions.transaction_impl import FENCED_LIKE, TransactionImpl, check_transaction, reason_of
from txnclient.transactions.whole import failure_in
from txnwire.compression import MAX_LEVEL
from txnwire.entry import Columns, OutgoingMessage, Piece
from txnwire.errors import (
    ConnectionLost,
    InvalidArgument,
    SegmentSealed,
    TxnError,
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


def check_options(
    linger_ms: float, batch_bytes: int, compression: str | None, compression_level: int, buffer_bytes: int
) -> None:
    """Raises `InvalidArgument`."""
    if not (compression is None or isinstance(compression, str)) or compression not in COMPRESSIONS:
        raise InvalidArgument(f"compression {compression!r}: expected 'zstd', 'lz4' or None")
    if not isinstance(compression_level, int) or not 1 <= compression_level <= MAX_LEVEL:
        raise InvalidArgument(f"compression_level {compression_level!r}: expected 1 to {MAX_LEVEL}")
    for name, value in (("linger_ms", linger_ms), ("batch_bytes", batch_bytes), ("buffer_bytes", buffer_bytes)):
        if not isinstance(value, int | float):
            raise InvalidArgument(f"{name} is a number, not {value!r}")
    # ▲ nan would close no batch, and would be looked at in every turn of the loop; in a buffer of
    # nan bytes no message has room beside another one.
    if not (linger_ms >= 0 and batch_bytes >= 1 and buffer_bytes >= 1):
        raise InvalidArgument("linger_ms must not be negative, batch_bytes and buffer_bytes must be positive")


class ProducerImpl(Generic[V]):
    """Implements one `Producer`, which documents the public calls: gives messages to its channels, and closes them."""

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
        life: NumberedLife | None = None,
        on_closed: Callable[[ProducerImpl[V]], None],
    ) -> None:
        self.life = life
        self.incarnation = session.random_u64() if life is None else life.incarnation
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
        self._buffer = Buffer(session, self.name, buffer_bytes, None if life is None else life.ids)
        self._pending: dict[Batch, None] = {}
        self._untold = Untold()
        self._lingering = Lingering(session, linger_ms / 1000)
        self._failure: TxnError | None = None
        self._closed = False
        self._all_closed = asyncio.Event()
        """Set when it is closed and nothing of it is under way."""

    def __repr__(self) -> str:
        return f"Producer({self.topic}, {self.name}{', closed' * self._closed})"

    @property
    def last_sequence_id(self) -> int:
        return self._last_stored if self.life is None else self.life.ids.last_sequence_id

    @property
    def encodes(self) -> bool:
        """Whether it has a serializer."""
        return self._serializer is not None

    # ---- sending ----------------------------------------------------------------------------------------------------

    async def send(
        self,
        value: V,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        txn: TransactionImpl | None = None,
        chunk: bool = False,
        sequence_id: int | None = None,
        deliver_after: float | timedelta | None = None,
        deliver_at_ms: int | None = None,
    ) -> MessageId:
        """See `Producer.send`."""
        try:
            self._check_usable(txn)
        except TxnError:
            await asyncio.sleep(0)  # ▲ C6: a caller that ignores the failure and calls again must not block the loop
            raise
        later_ms = 0 if deliver_after is deliver_at_ms is None else self._later_ms(deliver_after, deliver_at_ms)
        if self.life is not None or sequence_id is not None:
            life, number = expect_life(self.life, sequence_id, txn=txn, chunk=chunk)
            message, size = self.prepared(value, key, properties, event_time_ms)
            return await send_numbered(self._placing(), life, number, message, size, self._session.deadline())
        data = self._encoded(value)
        if chunk:
            data = checked_value(data)  # ▲ before it is measured: the items of a view may be wider than a byte
        if chunk and len(data) > MAX_VALUE_BYTES:
            head, overhead = checked(b"", key, properties, event_time_ms)
            check_size(overhead + PIECE_BYTES)
            inside = transaction_of(len(data), txn)
            self._check_sends(inside)
            try:
                return await send_large(self, data, head, overhead, inside, deliver_at_ms=later_ms)
            except FENCED_LIKE as error:
                raise await reason_of(error, txn) from error.__cause__
        message, size = checked(data, key, properties, event_time_ms)
        if txn is not None:
            check_transaction(txn, "send")
        stored: asyncio.Future[MessageId] = self._session.loop.create_future()
        try:
            if self._buffer.has_room(size):
                self._take(message, size, txn, stored, later_ms, noticed=True)
            else:
                await self._buffer.wait(size, txn, partial(self._take, message, size, txn, stored, later_ms))
            return await stored
        except BaseException as error:
            stored.cancel()
            if txn is not None:
                txn.failed(failure_in(txn, "a send", error))  # ▲ C1: before the first await, or it could commit
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
        txn: TransactionImpl | None = None,
        sequence_id: int | None = None,
        deliver_after: float | timedelta | None = None,
        deliver_at_ms: int | None = None,
    ) -> asyncio.Future[MessageId]:
        """See `Producer.send_nowait`."""
        later_ms = 0 if deliver_after is deliver_at_ms is None else self._later_ms(deliver_after, deliver_at_ms)
        message, size = self.prepared(value, key, properties, event_time_ms)
        self._check_sends(txn)
        if self.life is not None or sequence_id is not None:
            return send_numbered_nowait(self._placing(), *expect_life(self.life, sequence_id, txn=txn), message, size)
        if not self._buffer.has_room(size):
            raise self._buffer.full()
        stored: asyncio.Future[MessageId] = self._session.loop.create_future()
        self._take(message, size, txn, stored, later_ms, noticed=True)
        return stored

    async def send_many(
        self,
        messages: Iterable[V | tuple[str | bytes | None, V] | OutgoingMessage] | Columns,
        *,
        txn: TransactionImpl | None = None,
        deliver_after: float | timedelta | None = None,
        deliver_at_ms: int | None = None,
    ) -> SentIds:
        """See `Producer.send_many`."""
        parts = self.parts(messages)

        async def pull() -> BulkPart | None:
            return next(parts, None)

        return await self.send_pulled(pull, txn=txn, deliver_after=deliver_after, deliver_at_ms=deliver_at_ms)

    def parts(self, messages: Iterable[Any]) -> Generator[BulkPart, None, None]:
        """The messages in parts, as `send_many` takes them in."""
        return parts_of(messages, None if self._serializer is None else self._encoded)

    async def send_pulled(
        self,
        pull: Pull,
        *,
        txn: TransactionImpl | None,
        deliver_after: float | timedelta | None = None,
        deliver_at_ms: int | None = None,
    ) -> SentIds:
        """Send part after part, as `send_many`, until there is none."""
        try:
            self._check_usable(txn)
            later_ms = 0 if deliver_after is deliver_at_ms is None else self._later_ms(deliver_after, deliver_at_ms)
        except TxnError:
            await asyncio.sleep(0)  # ▲ C6, as in `send`
            raise
        if self.life is not None:
            raise InvalidArgument(f"producer {self.name} numbers its messages: send them one by one, each with its id")
        self._check_sends(txn)
        try:
            return await send_bulk(self, pull, txn, later_ms)
        except FENCED_LIKE as error:
            raise await reason_of(error, txn) from error.__cause__

    def groups(self, keys: Sequence[bytes | None] | None) -> tuple[list[Group], int]:
        """Messages grouped by segment, and the version of the routes used."""
        return self._channels.groups(keys)

    async def add_run(self, run: EntryRun, txn: TransactionImpl | None) -> BulkBatch:
        """Add a run of a bulk send, as one batch, or as several if the layout has changed."""
        self._check_goes_on(txn)
        return await self._in_room(run.size, txn, partial(self._place_run, run, txn))

    def _place_run(self, run: EntryRun, txn: TransactionImpl | None) -> BulkBatch:
        self._channels.current()
        batch = self._bulk_batch(run.columns, run.size, txn)
        batch.deliver_at_ms = run.deliver_at_ms
        self._channels.put(batch, run.columns, run.segment, run.version)
        return batch

    def _later_ms(self, deliver_after: float | timedelta | None, deliver_at_ms: int | None) -> int:
        if self.life is not None:
            raise InvalidArgument(f"producer {self.name} numbers its messages, and sends none to be delivered later")
        return delivery_time_ms(deliver_after, deliver_at_ms, self._session.clock.wall_ms())

    def _placing(self) -> Placing:
        return Placing(self._buffer, self._take)

    async def _in_room(self, size: int, txn: TransactionImpl | None, place: Callable[[], T]) -> T:
        return place() if self._buffer.has_room(size) else await self._buffer.wait(size, txn, place)

    def prepared(
        self, value: V, key: str | bytes | None, properties: Mapping[str, str] | None, event_time_ms: int | None
    ) -> tuple[OutgoingMessage, int]:
        """The message as it will be sent, and its size. Raises `InvalidArgument`, `MessageTooLarge`."""
        return checked(self._encoded(value), key, properties, event_time_ms)

    async def accepted(self, message: OutgoingMessage, size: int, txn: TransactionImpl) -> asyncio.Future[MessageId]:
        """As `send_nowait`, for a prepared message, but waits in turn for room in the buffer."""
        self._check_sends(txn)
        stored: asyncio.Future[MessageId] = self._session.loop.create_future()
        await self._in_room(size, txn, partial(self._take, message, size, txn, stored))
        return stored

    def _bulk_batch(
        self, columns: Columns, size: int, txn: TransactionImpl | None, piece: Piece | None = None
    ) -> BulkBatch:
        """A new batch, counted in the buffer but not yet given to a channel."""
        batch = BulkBatch(columns, size, txn, self._session.deadline(), self._session.loop.create_future(), piece)
        self._pending[batch] = None
        self._buffer.take(size)
        return batch

    # ---- large values -----------------------------------------------------------------------------------------------

    def channel_of(self, key: bytes | None, txn: TransactionImpl) -> Channel:
        return self._channels.of_whole(key)

    async def add_piece(
        self, channel: Channel, columns: Columns, size: int, txn: TransactionImpl, piece: Piece, deliver_at_ms: int
    ) -> BulkBatch:
        self._check_goes_on(txn)
        place = partial(self._place_piece, channel, columns, size, txn, piece, deliver_at_ms)
        return await self._in_room(size, txn, place)

    def _place_piece(
        self, channel: Channel, columns: Columns, size: int, txn: TransactionImpl, piece: Piece, deliver_at_ms: int
    ) -> BulkBatch:
        self._channels.current()
        if channel.left:
            raise SegmentSealed(f"segment://{channel.segment} was sealed before all of this message was stored")
        batch = self._bulk_batch(columns, size, txn, piece)
        batch.deliver_at_ms = deliver_at_ms
        channel.add_whole(batch)
        return batch

    # ---- flushing ---------------------------------------------------------------------------------------------------

    async def flush(self, *, timeout: float | None = None) -> None:
        """See `Producer.flush`."""
        self._session.expect_here()
        deadline = self._session.deadline(timeout)
        asks, batches = await self._wait_stored(deadline)
        if not all(batch.over for batch in batches) or not all(ask.placed.done() for ask in asks):
            raise deadline.expired(f"flushing producer {self.name}")
        failures = [ask.failure for ask in asks] + [batch.failure for batch in batches]
        self._tell([failure for failure in failures if failure is not None], of_transactions=True)

    async def _wait_stored(self, deadline: Deadline) -> tuple[Sequence[Ask], Sequence[Batch]]:
        """Wait, as time allows, for sends that wait for room and for unstored batches, also divided ones; returns
        both."""
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
        """▲ C4: raise the first unreported failure."""
        untold = self._untold.tell(of_transactions=of_transactions)
        if untold is not None:
            raise untold
        for failure in failures:
            raise again(failure) if isinstance(failure, TxnError) else failure

    def told_by(self, stored: asyncio.Future[MessageId], looked: Looked) -> None:
        """For a future of `send_nowait`: only `looked` tells whether its sender knows the result."""
        self._untold.looked_at_elsewhere(stored, looked)

    def _encoded(self, value: V) -> bytes:
        return value if self._serializer is None else encode(self._serializer, value)  # type: ignore[return-value]

    def _take(
        self,
        message: OutgoingMessage,
        size: int,
        txn: TransactionImpl | None,
        stored: asyncio.Future[MessageId],
        deliver_at_ms: int = 0,
        *,
        noticed: bool = False,
    ) -> None:
        """`noticed`: the caller has called `_check_usable` in this turn of the loop."""
        channel = self._channels.of(message.key, txn, noticed=noticed)
        while not channel.fits(txn, size, deliver_at_ms):
            # ▲ Without a key the next segment takes the message, and its open batch may also have another delivery
            # time: without the loop the batch and this message would be delivered at the same time.
            channel.flush(txn)
            channel = self._channels.of(message.key, txn)
        self._buffer.take(size)
        channel.add(message, size, txn, stored, deliver_at_ms)

    def _check_sends(self, txn: TransactionImpl | None) -> None:
        self._check_usable(txn)
        if txn is not None:
            check_transaction(txn, "send")

    def _check_goes_on(self, txn: TransactionImpl | None) -> None:
        """As `_check_sends`, for the rest of an operation already begun."""
        self._check_usable(txn)
        if txn is not None:
            txn.check_goes_on("send")

    def _check_usable(self, txn: TransactionImpl | None) -> None:
        self._session.expect_here()
        if self._closed:
            raise for_good(InvalidArgument(f"producer {self.name} is closed"))
        self._channels.notice()
        if self._failure is not None:
            if txn is not None:
                txn.failed(self._failure)  # ▲ C1: it would commit without this
            raise for_good(self._failure)

    # ---- for its channels -------------------------------------------------------------------------------------------

    def take_sequence_ids(self, count: int) -> int:
        """The first of `count` new sequence ids; taken when a batch closes, so they rise in every segment."""
        first = self._next_sequence_id
        self._next_sequence_id += count
        return first

    def new_batch(self, txn: TransactionImpl | None) -> GatheringBatch:
        return GatheringBatch(txn, self._session.deadline()) if self.life is None else self.life.new_batch()

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
        self._lingering.over(batch)
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
        if self.life is not None and self._failure is None and batch.failure is not None:
            # ▲ A numbered producer ends with its first failure: behind it, later ids of the same key would be stored.
            self._failure = batch.failure
            self._session.loop.call_soon(self._fail, batch.failure)

    def fenced(self, error: TxnError) -> None:
        """A newer producer of this name has taken over: nothing can be sent any more."""
        self._fail(error)

    def topic_gone(self, error: TxnError) -> None:
        """Its topic was deleted: nothing can be sent any more."""
        self._fail(error)

    def _fail(self, error: TxnError) -> None:
        if self._failure is None:
            self._failure = error
        if self.life is not None:
            self.life.failed(error)
        self._buffer.fail_all(error)
        self._channels.fail_all(error)

    def divided(self, batch: Batch, parts: Sequence[Batch]) -> None:
        """A batch was divided into several because its segment was split."""
        del self._pending[batch]
        self._lingering.over(batch)
        self._pending |= dict.fromkeys(parts)

    def held_back(self, channel: Channel) -> bool:
        """Whether the channel must not write yet."""
        return self._channels.held_back(channel)

    def move_on(self) -> None:
        """Move the rest from sealed segments that have answered to its current segments."""
        self._channels.move_on()

    # ---- closing ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """See `Producer.close`."""
        if self._closed:
            if self._session.is_here:
                await self._all_closed.wait()  # the first close waits for its sends
            self._tell()
            return
        self._session.expect_here()
        self._closed = True
        deadline = Deadline(self._session.clock, min(CLOSE_TIMEOUT_S, self._session.timeout_s))
        try:
            await self._wait_stored(deadline)
        finally:
            self._lingering.stop()
            self._channels.close()  # before `_fail`, which drops the connection without telling the broker
            self._fail(ConnectionLost(f"producer {self.name} was closed before this was stored"))
            self._all_closed.set()
            self._on_closed(self)  # ▲ not before: a client closing meanwhile waits for it, too
        await asyncio.sleep(0)  # waiting callers get their failure first
        self._tell()
