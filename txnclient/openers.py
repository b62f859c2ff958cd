"""The part of a client that opens producers, consumers and readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar, Unpack, overload

from txnclient.connection.opening import Closable, Opening
from txnclient.connection.registrations import Registrations
from txnclient.connection.session import Session
from txnclient.consuming.consumer import Consumer
from txnclient.consuming.dead_letters import DeadLetterPolicy, Services
from txnclient.consuming.reader_ends import starts_by_time
from txnclient.consuming.starts import StartArgument, start_to_wire, topics_of
from txnclient.options import ConsumerOptions, ProducerOptions, ReaderOptions
from txnclient.producing.producer import Producer
from txnclient.reading import entries
from txnclient.reading.cuts import SharedCuts
from txnclient.reading.entries import WholeEntry
from txnclient.reading.entry_heads import EntryHead
from txnclient.reading.reader import Reader
from txnclient.reading.snapshot import Snapshot, Span
from txnclient.reading.watch import Watch
from txnclient.serializers import Serializer, V, serializer_of
from txnwire.errors import InvalidArgument, for_good
from txnwire.ids import Position
from txnwire.names import TopicName

T = TypeVar("T", bound=Closable)


class Openers:
    """Base of `Client`."""

    _session: Session
    _cuts: SharedCuts
    _registrations: Registrations
    _opened: dict[Closable, None]
    _closed: bool

    def _services(self) -> Services:
        """What the loops take of the client."""
        raise NotImplementedError

    def _moving(self) -> Services:
        """What moving dead letters takes of the client."""
        raise NotImplementedError

    def _keep(self, thing: T) -> T:
        self._opened[thing] = None
        return thing

    def _forget(self, thing: Closable) -> None:
        self._opened.pop(thing, None)

    def _check_open(self) -> None:
        """Raises `InvalidArgument` where the client is closed, or belongs to another event loop."""
        self._session.expect_here()
        if self._closed:
            raise for_good(InvalidArgument("this client is closed"))

    async def _expect_open(self) -> None:
        """The same. ▲ C6: whoever calls on although told does not stop the loop."""
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
        linger_ms: float = 5,
        batch_bytes: int = 131_072,
        compression: str | None = "zstd",
        compression_level: int = 1,
        buffer_bytes: int = 64 * 1024 * 1024,
    ) -> Opening[Producer[Any]]:
        """`await` it, or `async with` it.

        Of one `name` one producer is live at a time, a second one fences the first; None: a random name. `linger_ms`:
        how long messages may gather while earlier ones are under way. `compression`: "zstd" (of `compression_level` 1
        to 9), "lz4" or None. `buffer_bytes`: how much may be unstored before sends wait, or raise `WouldBlock`.
        `serializer`: "bytes", "str", "json", a pair (encode, decode) or a `Serializer`. Raises `TopicNotFound`,
        `InvalidArgument`.
        """

        async def open_producer() -> Producer[Any]:
            await self._expect_open()
            registration = await self._registrations.enter(str(TopicName.parse(topic)), self._session.deadline())

            def on_closed(producer: Producer[Any]) -> None:
                self._forget(producer)
                self._registrations.leave(registration)

            try:
                self._check_open()  # ▲ closed meanwhile: what it would send now, nobody would wait for or fail
                return self._keep(
                    Producer(
                        self._session,
                        registration.layout,
                        name=name,
                        linger_ms=linger_ms,
                        batch_bytes=batch_bytes,
                        compression=compression,
                        compression_level=compression_level,
                        buffer_bytes=buffer_bytes,
                        serializer=serializer_of(serializer),
                        on_closed=on_closed,
                    )
                )
            except BaseException:
                self._registrations.leave(registration)
                raise

        return Opening(open_producer)

    # ---- consumers --------------------------------------------------------------------------------------------------

    @overload
    def consumer(
        self,
        topics: str | Sequence[str],
        subscription: str,
        *,
        serializer: Literal["bytes"] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Opening[Consumer[bytes]]: ...
    @overload
    def consumer(
        self,
        topics: str | Sequence[str],
        subscription: str,
        *,
        serializer: Literal["str"],
        **options: Unpack[ConsumerOptions],
    ) -> Opening[Consumer[str]]: ...
    @overload
    def consumer(
        self,
        topics: str | Sequence[str],
        subscription: str,
        *,
        serializer: Literal["json"],
        **options: Unpack[ConsumerOptions],
    ) -> Opening[Consumer[Any]]: ...
    @overload
    def consumer(
        self,
        topics: str | Sequence[str],
        subscription: str,
        *,
        serializer: tuple[Callable[[V], bytes], Callable[[bytes], V]] | Serializer[V],
        **options: Unpack[ConsumerOptions],
    ) -> Opening[Consumer[V]]: ...
    def consumer(
        self,
        topics: str | Sequence[str],
        subscription: str,
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
    ) -> Opening[Consumer[Any]]:
        """`await` it, or `async with` it. `start` counts where the subscription does not exist yet.

        `type`: of a "stream" each segment is with one consumer at a time, in order per key; of a "queue" every consumer
        gets messages of all segments. Of one `name` one stream consumer is live at a time; None: a random name.
        `prefetch` messages, or about `prefetch_bytes`, are kept in the buffer, over all segments.

        For queues: `redelivery_delay`, in seconds, of `nack`. What has been delivered again `max_redeliveries` times
        (None: no limit) is moved to `dead_letter_topic` (default: `<topic>-<subscription>-DLQ`, made if it is missing).

        `serializer`: "bytes", "str", "json", a pair (encode, decode) or a `Serializer`; see `message.value`.
        Raises `TopicNotFound`, `InvalidArgument`, `NotAllowed` (e.g. the subscription is of the other type), `Timeout`.
        """

        async def open_consumer() -> Consumer[Any]:
            await self._expect_open()
            consumer = Consumer[Any](
                self._session,
                topics,
                subscription,
                type=type,
                start=start,
                isolation=isolation,
                name=name,
                prefetch=prefetch,
                prefetch_bytes=prefetch_bytes,
                redelivery_delay=redelivery_delay,
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
            return self._keep(consumer)

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
        """`await` it, or `async with` it. With `end="latest"` it takes a snapshot when it is opened, which is
        `reader.snapshot`, and ends by itself behind what was committed at that; with isolation "read_uncommitted",
        behind what is stored.

        With a `Snapshot` as end it reads exactly what was committed at that; from one `Snapshot` to a later one, what
        was committed between them, so that both reads together are the read to the later one. From a snapshot
        without an end it follows what has been committed since.

        `at_least`, of a reader with an end: a revision of the metadata store, such as another client's
        `txn.result.revision`; whatever was committed by then is read.

        A MessageId as start begins at that message in its segment, and at the earliest of the others.
        Raises `TopicNotFound`, `InvalidArgument`, `Timeout`.
        """

        async def open_reader() -> Reader[Any]:
            await self._expect_open()
            reader = Reader[Any](
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
            return self._keep(reader)

        return Opening(open_reader)

    def watch(
        self, snapshot: Snapshot, *, isolation: str = "read_committed", timeout: float | None = None
    ) -> Opening[Watch]:
        """`await` it, or `async with` it: `wait` on it to hear that the next snapshot of these topics may hold more
        than this one. Nothing is asked meanwhile: brokers tell of it.

        It wakes for messages, also of transactions that are open; for the end of those that are pending in the
        snapshot, unless isolation is "read_uncommitted"; where a segment is split, merged or trimmed away, and where a
        topic is deleted. `timeout`: as `Watch.move` has it. Raises `TopicNotFound`, `InvalidArgument`, `Timeout`.
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
        """The entries of (after, end] of one segment, by its path, in order, a list of some at a time; none is ever
        empty. It goes on where a new owner takes over; `aclose` it (or let go of it) to leave early.

        With a `span` only what lies between its snapshots; with isolation "read_uncommitted" everything, what was
        aborted too. Without either it waits at what is undecided. A large value sent in pieces belongs to the range
        that holds all of its pieces: do not cut one in two.

        `trimmed`: what to do where retention has taken something of the range: "fail" with `DataTrimmed`, or "skip" it.
        From `EARLIEST` on in a span that has no start, what is kept is read, as by a `Reader`.
        About `prefetch_bytes` are kept here. `timeout`: how long to wait for the next entry (None: the client's).
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
        """The heads of all entries in (after, end] of one segment, by its path, in order, a page of some thousands at a
        time, without their messages: also of open transactions, and of aborted ones, as far as they are kept.

        It ends at what is stored now where that is before `end`. What was decided up to `min_revision` shows in
        `aborted`. `page_entries`: of a page, at most; the broker reads whole entries for them. `trimmed`, `timeout` (of
        one page): as of `read_entries`. Raises `Timeout`, `TopicNotFound`, `DataTrimmed`, `DataCorrupt`,
        `InvalidArgument`.
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
        """Where a start by a time begins: of each segment, by its path, the position behind which that is. Everything
        published at `time` (ms since the Unix epoch, or an aware datetime) or later lies behind it, as far as it is
        kept. None: the owner of the segment is of an older version, or all of it is gone.

        Publish times are the producers' and come in no order: behind it may be older messages, too. Raises
        `TopicNotFound`, `Timeout`, `InvalidArgument`.
        """
        await self._expect_open()
        if isinstance(time, str) or not (timestamp_ms := start_to_wire(time).timestamp_ms):
            raise InvalidArgument(f"time {time!r}: expected milliseconds since the Unix epoch, or an aware datetime")
        return await starts_by_time(
            self._session, topics_of(topics), timestamp_ms=timestamp_ms, deadline=self._session.deadline()
        )
