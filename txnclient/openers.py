"""The part of a client that opens producers, consumers and readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime
from re import Pattern
from typing import Any, Literal, TypeVar, Unpack, overload

from txnclient.connection.opening import Closable, Opening
from txnclient.connection.registrations import Registrations
from txnclient.connection.session import Session
from txnclient.connection.topic_layout import TopicLayout
from txnclient.consuming.assigned_feeds import ConsumerSettings
from txnclient.consuming.consumer import Consumer
from txnclient.consuming.consumer_impl import ConsumerImpl
from txnclient.consuming.feeds.dead_letters import DeadLetterPolicy, Services
from txnclient.consuming.places.lag import Lag, subscription_lag
from txnclient.consuming.places.reader_ends import starts_by_time
from txnclient.consuming.places.starts import StartArgument, start_to_wire, topics_of
from txnclient.options import ConsumerOptions, ProducerOptions, ReaderOptions
from txnclient.producing.channels.numbered import NumberedLife, check_source
from txnclient.producing.producer import Producer
from txnclient.producing.producer_impl import ProducerImpl, check_options
from txnclient.reading import entries
from txnclient.reading.cuts import SharedCuts
from txnclient.reading.entries import WholeEntry
from txnclient.reading.entry_heads import EntryHead
from txnclient.reading.reader import Reader
from txnclient.reading.reader_impl import ReaderImpl
from txnclient.reading.snapshot import Snapshot, Span
from txnclient.reading.watch import Watch
from txnclient.serializers import Serializer, V, serializer_of
from txnwire.errors import InvalidArgument, for_good
from txnwire.ids import Position
from txnwire.names import TopicName, validate_name

T = TypeVar("T", bound=Closable)


class Openers:
    """Opens producers, consumers, readers and watches; base of `Client`."""

    _session: Session
    _cuts: SharedCuts
    _registrations: Registrations
    _opened: dict[Closable, None]
    _closed: bool

    def _services(self) -> Services:
        """The client as the processing loops use it."""
        raise NotImplementedError

    def _moving(self) -> Services:
        """The client as the moving of dead letters uses it."""
        raise NotImplementedError

    def _keep(self, thing: T) -> T:
        self._opened[thing] = None
        return thing

    def _forget(self, thing: Closable) -> None:
        self._opened.pop(thing, None)

    def _check_open(self) -> None:
        """Raises `InvalidArgument` if the client is closed or belongs to another event loop."""
        self._session.expect_here()
        if self._closed:
            raise for_good(InvalidArgument("this client is closed"))

    async def _expect_open(self) -> None:
        """As `_check_open`. ▲ C6: a caller that ignores the error and calls again must not block the event loop."""
        try:
            self._check_open()
        except InvalidArgument:
            await asyncio.sleep(0)
            raise

    # ---- producers --------------------------------------------------------------------------------------------------

    @overload
    def producer(
        self, topic: str, *, serializer: Literal["bytes"] | None = None, **options: Unpack[ProducerOptions]
    ) -> Opening[Producer[bytes]]: ...
    @overload
    def producer(
        self, topic: str, *, serializer: Literal["str"], **options: Unpack[ProducerOptions]
    ) -> Opening[Producer[str]]: ...
    @overload
    def producer(
        self, topic: str, *, serializer: Literal["json"], **options: Unpack[ProducerOptions]
    ) -> Opening[Producer[Any]]: ...
    @overload
    def producer(
        self,
        topic: str,
        *,
        serializer: tuple[Callable[[V], bytes], Callable[[bytes], V]] | Serializer[V],
        **options: Unpack[ProducerOptions],
    ) -> Opening[Producer[V]]: ...
    def producer(
        self,
        topic: str,
        *,
        serializer: Any = None,
        name: str | None = None,
        sequence_id: int | None = None,
        linger_ms: float = 5,
        batch_bytes: int = 131_072,
        compression: str | None = "zstd",
        compression_level: int = 1,
        buffer_bytes: int = 64 * 1024 * 1024,
    ) -> Opening[Producer[Any]]:
        """`await` it, or `async with` it.

        One producer is live per `name`: a second one fences the first; None: a random name. `linger_ms`: how long
        messages may gather while earlier ones are under way. `compression`: "zstd" (with `compression_level` 1 to 9),
        "lz4" or None. `buffer_bytes`: how much may be unstored before sends wait, or raise `WouldBlock`.
        `serializer`: "bytes", "str", "json", a pair (encode, decode) or a `Serializer`.
        `sequence_id`: with a `name`, makes it a numbered producer, for a source that numbers what it reads: the id up
        to which the source knows everything to be stored, -1 for none. `Producer.last_sequence_id` then tells where to
        go on; whatever is sent again is stored once. A name is remembered for 7 days after its last send.

        Raises `TopicNotFound`, `InvalidArgument`; for a numbered producer also `ProducerFenced` if another of the name
        is being opened, `NotAllowed` if a broker is of an older release, `Timeout`.
        """

        async def open_producer() -> Producer[Any]:
            await self._expect_open()
            # ▲ Checks all arguments first: a numbered producer takes its name from the producer that has it.
            check_options(linger_ms, batch_bytes, compression, compression_level, buffer_bytes)
            chosen = serializer_of(serializer)
            if sequence_id is not None:
                check_source(name, sequence_id)
            registration = await self._registrations.enter(str(TopicName.parse(topic)), self._session.deadline())

            def on_closed(producer: ProducerImpl[Any]) -> None:
                self._forget(producer)
                self._registrations.leave(registration)

            try:
                life = await self._life(registration.layout, name, sequence_id)
                self._check_open()  # ▲ closed meanwhile: no close would wait for its sends or fail them
                producer = ProducerImpl[Any](
                    self._session,
                    registration.layout,
                    name=name,
                    linger_ms=linger_ms,
                    batch_bytes=batch_bytes,
                    compression=compression,
                    compression_level=compression_level,
                    buffer_bytes=buffer_bytes,
                    serializer=chosen,
                    life=life,
                    on_closed=on_closed,
                )
                return Producer(self._keep(producer))
            except BaseException:
                self._registrations.leave(registration)
                raise

        return Opening(open_producer)

    async def _life(self, layout: TopicLayout, name: str | None, sequence_id: int | None) -> NumberedLife | None:
        """The life of a numbered producer, once it has taken its name."""
        if name is None or sequence_id is None:
            return None
        life = NumberedLife(self._session, layout, name, sequence_id)
        await life.open(self._session.deadline())
        return life

    # ---- consumers --------------------------------------------------------------------------------------------------

    @overload
    def consumer(
        self,
        topics: str | Sequence[str] | None = None,
        subscription: str = "",
        *,
        serializer: Literal["bytes"] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Opening[Consumer[bytes]]: ...
    @overload
    def consumer(
        self,
        topics: str | Sequence[str] | None = None,
        subscription: str = "",
        *,
        serializer: Literal["str"],
        **options: Unpack[ConsumerOptions],
    ) -> Opening[Consumer[str]]: ...
    @overload
    def consumer(
        self,
        topics: str | Sequence[str] | None = None,
        subscription: str = "",
        *,
        serializer: Literal["json"],
        **options: Unpack[ConsumerOptions],
    ) -> Opening[Consumer[Any]]: ...
    @overload
    def consumer(
        self,
        topics: str | Sequence[str] | None = None,
        subscription: str = "",
        *,
        serializer: tuple[Callable[[V], bytes], Callable[[bytes], V]] | Serializer[V],
        **options: Unpack[ConsumerOptions],
    ) -> Opening[Consumer[V]]: ...
    def consumer(
        self,
        topics: str | Sequence[str] | None = None,
        subscription: str = "",
        *,
        serializer: Any = None,
        type: str = "stream",
        start: StartArgument = "earliest",
        isolation: str = "read_committed",
        name: str | None = None,
        prefetch: int = 1000,
        prefetch_bytes: int = 64 * 1024 * 1024,
        max_redeliveries: int | None = None,
        dead_letter_topic: str | None = None,
        redelivery_delay: float = 1.0,
        topics_pattern: str | Pattern[str] | None = None,
        ack_timeout: float | None = None,
    ) -> Opening[Consumer[Any]]:
        """`await` it, or `async with` it. `start` applies only if the subscription does not exist yet.

        `type`: in a "stream" one consumer at a time reads each segment, in order per key; in a "queue" every consumer
        gets messages of all segments. One stream consumer is live per `name`; None: a random name.
        `topics_pattern`, instead of `topics`: a regular expression for the whole names of topics. Those that match are
        joined within seconds of their creation, at their earliest message; deleted ones are left quietly.
        The buffer keeps at most `prefetch` messages, or about `prefetch_bytes`, over all segments; fewer of a queue
        that others share.

        For queues: `redelivery_delay`, in seconds, of `nack`. What is not acked within `ack_timeout` seconds of its
        receipt (None: no limit) is given back, as by a `nack` without delay. A message redelivered `max_redeliveries`
        times (None: no limit) is moved to `dead_letter_topic` (default: `<topic>-<subscription>-DLQ`, created if it is
        missing).

        `serializer`: "bytes", "str", "json", a pair (encode, decode) or a `Serializer`; see `message.value`.
        Raises `TopicNotFound`, `InvalidArgument`, `NotAllowed` (e.g. the subscription is of the other type),
        `Overloaded` (it has too many consumers), `Timeout`.
        """

        async def open_consumer() -> Consumer[Any]:
            await self._expect_open()
            settings = ConsumerSettings(
                topics=[] if topics is None else topics_of(topics),
                subscription=subscription,
                type=type,
                start=start,
                isolation=isolation,
                name=name,
                prefetch=prefetch,
                prefetch_bytes=prefetch_bytes,
                redelivery_delay=redelivery_delay,
                topics_pattern=topics_pattern,
                ack_timeout=ack_timeout,
            )
            consumer = ConsumerImpl[Any](
                self._session,
                settings,
                services=self._services(),
                dead_letters=DeadLetterPolicy.of(self._moving(), max_redeliveries, dead_letter_topic),
                serializer=serializer_of(serializer),
                on_closed=self._forget,
            )
            try:
                await consumer.open(self._session.deadline())
                self._check_open()
            except BaseException:
                await consumer.close()
                raise
            return Consumer(self._keep(consumer))

        return Opening(open_consumer)

    # ---- readers ----------------------------------------------------------------------------------------------------

    @overload
    def reader(
        self,
        topics: str | Sequence[str],
        *,
        serializer: Literal["bytes"] | None = None,
        **options: Unpack[ReaderOptions],
    ) -> Opening[Reader[bytes]]: ...
    @overload
    def reader(
        self, topics: str | Sequence[str], *, serializer: Literal["str"], **options: Unpack[ReaderOptions]
    ) -> Opening[Reader[str]]: ...
    @overload
    def reader(
        self, topics: str | Sequence[str], *, serializer: Literal["json"], **options: Unpack[ReaderOptions]
    ) -> Opening[Reader[Any]]: ...
    @overload
    def reader(
        self,
        topics: str | Sequence[str],
        *,
        serializer: tuple[Callable[[V], bytes], Callable[[bytes], V]] | Serializer[V],
        **options: Unpack[ReaderOptions],
    ) -> Opening[Reader[V]]: ...
    def reader(
        self,
        topics: str | Sequence[str],
        *,
        serializer: Any = None,
        start: StartArgument | Snapshot = "earliest",
        end: str | Snapshot | None = None,
        at_least: int = 0,
        isolation: str = "read_committed",
        prefetch: int = 1000,
        prefetch_bytes: int = 64 * 1024 * 1024,
    ) -> Opening[Reader[Any]]:
        """`await` it, or `async with` it. With `end="latest"` it takes a snapshot when opened (`reader.snapshot`) and
        ends after what was committed at that snapshot; with isolation "read_uncommitted", after what is stored.

        With a `Snapshot` as end it reads exactly what was committed at it. From one `Snapshot` to a later one it reads
        what was committed between them: both reads together equal one read to the later snapshot. From a snapshot
        without an end it follows what has been committed since.

        `at_least`, for a reader with an end: a revision of the metadata store, such as another client's
        `txn.result.revision`; the reader reads everything committed by then.

        A MessageId as start begins at that message in its segment, and at the earliest message of other segments.
        Raises `TopicNotFound`, `DataTrimmed` (retention has taken part of what a snapshot promises), `InvalidArgument`,
        `Timeout`.
        """

        async def open_reader() -> Reader[Any]:
            await self._expect_open()
            reader = ReaderImpl[Any](
                self._session,
                topics,
                start=start,
                end=end,
                at_least=at_least,
                cuts=self._cuts,
                isolation=isolation,
                prefetch=prefetch,
                prefetch_bytes=prefetch_bytes,
                serializer=serializer_of(serializer),
                on_closed=self._forget,
            )
            try:
                await reader.open(self._session.deadline())
                self._check_open()
            except BaseException:
                await reader.close()
                raise
            return Reader(self._keep(reader))

        return Opening(open_reader)

    def watch(
        self, snapshot: Snapshot, *, isolation: str = "read_committed", timeout: float | None = None
    ) -> Opening[Watch]:
        """`await` it, or `async with` it: its `wait` returns when the next snapshot of these topics may hold more
        than this one. Brokers push the news; the client does not poll.

        It wakes for new messages, also of open transactions; for the end of transactions pending in the snapshot,
        unless isolation is "read_uncommitted"; when a segment is split, merged or trimmed away, and when a topic is
        deleted. `timeout`: as in `Watch.move`. Raises `TopicNotFound`, `InvalidArgument`, `Timeout`.
        """

        async def open_watch() -> Watch:
            await self._expect_open()
            watch = Watch(self._session, isolation, self._forget)
            try:
                await watch.move(snapshot, timeout=timeout)
                self._check_open()
            except BaseException:
                await watch.close()
                raise
            return self._keep(watch)

        return Opening(open_watch)

    # ---- bulk -------------------------------------------------------------------------------------------------------

    def read_entries(
        self,
        segment: str,
        *,
        after: Position,
        end: Position,
        span: Span | None = None,
        isolation: str = "read_committed",
        prefetch_bytes: int = 16 * 1024 * 1024,
        trimmed: str = "fail",
        timeout: float | None = None,
    ) -> AsyncGenerator[list[WholeEntry], None]:
        """Yield the entries of (after, end] of one segment, by its path, in order, in lists that are never empty.
        It continues with a new owner; `aclose` it (or drop it) to leave early.

        With a `span` it yields only entries between its snapshots; with isolation "read_uncommitted" all entries, also
        aborted ones. Without either it waits at undecided entries. A range must hold all pieces of a large value or
        none: do not cut one in two.

        `trimmed`: what to do if retention has deleted part of the range: "fail" with `DataTrimmed`, or "skip" it.
        From `EARLIEST` on in a span without a start it reads what is kept, as a `Reader` does.
        The buffer keeps about `prefetch_bytes`. `timeout`: how long to wait for the next entry (None: the client's).
        Raises `Timeout`, `TopicNotFound`, `DataTrimmed`, `DataCorrupt`, `InvalidArgument`.
        """
        self._check_open()
        return entries.read_entries(
            self._session,
            segment,
            after=after,
            end=end,
            span=span,
            isolation=isolation,
            prefetch_bytes=prefetch_bytes,
            trimmed=trimmed,
            timeout=timeout,
            keep=self._keep,
            forget=self._forget,
        )

    def scan_entries(
        self,
        segment: str,
        *,
        after: Position,
        end: Position,
        min_revision: int = 0,
        trimmed: str = "fail",
        page_entries: int | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[list[EntryHead], None]:
        """Yield the heads of all entries in (after, end] of one segment, by its path, in order, in pages of some
        thousands. It includes entries of open transactions, and of aborted ones that are still kept.

        It ends at the last stored entry if that is before `end`. `aborted` reflects decisions up to `min_revision`.
        `page_entries`: most entries of a page; the broker reads whole entries for them. `trimmed`, `timeout` (of one
        page): as in `read_entries`. Raises `Timeout`, `TopicNotFound`, `DataTrimmed`, `DataCorrupt`, `InvalidArgument`.
        """
        self._check_open()
        return entries.scan_entries(
            self._session,
            segment,
            after=after,
            end=end,
            min_revision=min_revision,
            trimmed=trimmed,
            page_entries=entries.SCAN_ENTRIES if page_entries is None else page_entries,
            timeout=timeout,
        )

    async def positions_before(self, topics: str | Sequence[str], time: int | datetime) -> dict[str, Position | None]:
        """For each segment, by its path, the position after which a start by time begins. Every kept message published
        at `time` (ms since the Unix epoch, or an aware datetime) or later lies after it. None: the segment's owner has
        an older version, or the whole segment is gone.

        Producers set publish times, in no order: older messages may lie after it, too. Raises `TopicNotFound`,
        `Timeout`, `InvalidArgument`.
        """
        await self._expect_open()
        if isinstance(time, str) or not (timestamp_ms := start_to_wire(time).timestamp_ms):
            raise InvalidArgument(f"time {time!r}: expected milliseconds since the Unix epoch, or an aware datetime")
        return await starts_by_time(
            self._session, topics_of(topics), timestamp_ms=timestamp_ms, deadline=self._session.deadline()
        )

    async def lag(self, topics: str | Sequence[str], subscription: str) -> Lag:
        """How far a subscription is behind, with or without consumers; see `Consumer.lag`.

        It joins nothing. Raises `TopicNotFound`, `SubscriptionNotFound`, `Timeout`.
        """
        await self._expect_open()
        return await subscription_lag(
            self._session, topics_of(topics), validate_name(subscription, part="subscription")
        )
