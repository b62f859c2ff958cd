"""One life of a numbered producer: it takes its name at every segment, and sends each id once (DESIGN §7, "Numbered
producers").

Theory of operation:

1. At opening, the life takes its name at every segment of the topic, sealed ones too, under an epoch above all others.
   Each segment then refuses earlier lives and tells the ids that it holds. ▲ The answer of a sealed segment is not
   enough: its children must have answered too.
2. Ids that are stored by then are never sent again, and only this life can store others. So it sends each other id
   once, like any message.
3. Before it writes to a segment that came later, ▲ it asks all ancestors of that segment: one of them refuses a life
   that was fenced, even if the new segment has not heard of the name.
4. An id that was placed is sent until it is stored or the producer ends: a send that times out or is cancelled may be
   called again, and shares the outcome. The first failure of an entry ends the producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Final, TypeVar

from txnclient.connection.deadlines import Backoff, Deadline
from txnclient.connection.session import TRANSIENT, Session
from txnclient.connection.topic_layout import SegmentInfo, TopicLayout
from txnclient.producing.channels.batches import GatheringBatch
from txnclient.producing.channels.source_ids import LARGEST_ID, SourceIds
from txnwire.entry import Columns
from txnwire.errors import (
    ConnectionLost,
    InvalidArgument,
    NotAllowed,
    ProducerFenced,
    SegmentSealed,
    Timeout,
    TopicNotFound,
    TxnError,
    again,
)
from txnwire.ids import MessageId, Position
from txnwire.names import validate_name
from txnwire.numbers import Numbers, ids_of
from txnwire.proto import txn_pb2 as pb

T = TypeVar("T")

ASKED_AT_ONCE: Final = 32
ASK_TIMEOUT_S: Final = 5.0
ASK_AGAIN_S: Final = 24 * 3600.0
"""Well below the time after which a segment forgets a name."""
TRIES: Final = 5
"""Epochs that an opening tries while others of the name are being opened."""

STORED_BEFORE: Final = MessageId("", Position(0, -1), 0)
"""The id of a message that an earlier send has stored: its place is not known."""


def check_source(name: str | None, sequence_id: object) -> None:
    """The options of a numbered producer. Raises `InvalidArgument`."""
    if name is None:
        raise InvalidArgument(
            "sequence_id=… makes a numbered producer, which needs a name: by it its next life finds it"
        )
    if type(sequence_id) is not int or not -1 <= sequence_id <= LARGEST_ID:
        raise InvalidArgument(
            f"sequence_id {sequence_id!r}: expected the last id that the source knows to be stored, -1 for none"
        )


def fenced(name: str) -> ProducerFenced:
    return ProducerFenced(f"a newer producer named {name} has taken the name: one may send at a time")


class Outcome(asyncio.Future[MessageId]):
    """One send waits for it; its batch finds the message's sequence id in it."""

    sequence_id: int


class _Unending(Deadline):
    """The deadline of an entry that is sent until it is stored. Each attempt has the client's timeout."""

    __slots__ = ()

    def remaining(self) -> float:
        return self.timeout_s

    @property
    def passed(self) -> bool:
        return False


class NumberedLife:
    """The life of one producer. `ids`: the known state of its ids."""

    def __init__(self, session: Session, layout: TopicLayout, name: str, done: int) -> None:
        self.name = validate_name(name, part="producer name")
        self.incarnation = session.random_u64()
        self.epoch = 0
        self.ids = SourceIds(done)
        self._session = session
        self._topic = layout.topic
        self._life = layout.life
        self._waiting: dict[int, list[asyncio.Future[MessageId]]] = {}
        """Repeated sends that wait for the outcome of the first one."""
        self._ancestors_asked: set[str] = set()
        self._asked_s = 0.0
        """When every segment was asked last."""

    # ---- taking the name --------------------------------------------------------------------------------------------

    async def open(self, deadline: Deadline) -> None:
        """Take the name everywhere. Raises `ProducerFenced` if others take it at the same time, `TopicNotFound`,
        `NotAllowed` from an older broker, `Timeout`."""
        backoff = Backoff(self._session.random)
        for _ in range(TRIES):
            self.epoch = max(self._session.clock.wall_ms(), self.epoch + 1)
            later = await self._take_everywhere(deadline, self.ids.learn)
            if later is None:
                return
            self.epoch = max(self.epoch, later)
            await asyncio.sleep(min(backoff.next_s(), deadline.remaining()))
        raise ProducerFenced(f"another producer named {self.name} is being opened at the same time: one may send")

    async def _take_everywhere(self, deadline: Deadline, learn: Callable[[int, list[int]], None]) -> int | None:
        """Calls `learn` with the ids that each segment keeps. Returns None, or, if a later life has the name at some
        segment, the highest epoch ▲ of all, because each segment may have heard of another life."""
        begun_s = self._session.clock.monotonic()
        sealed: dict[str, bool] = {}
        """By path of the segments that have answered."""
        highest, refused = 0, False
        while True:
            layout = self._layout()
            asked = [one for one in layout.segments.values() if one.path not in sealed][:ASKED_AT_ONCE]
            if asked:
                answers = await _all_of([self._take(one, deadline) for one in asked])
                for segment, answer in zip(asked, answers, strict=True):
                    if answer is None:
                        sealed[segment.path] = False
                        continue
                    sealed[segment.path] = answer.taken and answer.sealed
                    highest, refused = max(highest, answer.name_epoch), refused or not answer.taken
                    learn(answer.all_below, ids_of(answer.id_steps))
            elif refused:
                return highest
            elif any(sealed[one.path] for one in layout.active):
                # ▲ Sealed, and this client does not know its children yet: a former life may write to them.
                await self._wait(deadline, f"the layout of {self._topic}")
            else:
                self._asked_s = begun_s
                return None

    def _layout(self) -> TopicLayout:
        layout = self._session.directory.known_layout(self._topic)
        if layout is None or layout.is_another(self._life):
            raise TopicNotFound(f"topic {self._topic!r} was deleted: open a producer of the one that is there now")
        return layout

    async def _wait(self, deadline: Deadline, what: str, last: TxnError | None = None, pause_s: float = 1.0) -> None:
        if self._session.closed:
            raise ConnectionLost(f"taking the name of producer {self.name}: this client was closed meanwhile") from last
        if deadline.passed:
            raise deadline.expired(f"taking the name of producer {self.name}: {what}", last)
        await self._session.directory.wait_change(min(pause_s, deadline.remaining()))

    async def _take(self, segment: SegmentInfo, deadline: Deadline) -> pb.TakeNameOk | None:
        """None if the segment has left the layout: nothing is left of it."""
        backoff = Backoff(self._session.random)
        while True:
            try:
                return await self._take_once(segment.path, deadline)
            except (*TRANSIENT, SegmentSealed, TopicNotFound) as error:
                last = error
            if self._layout().segment_by_path(segment.path) is None:
                return None
            await self._wait(deadline, segment.name, last, backoff.next_s())

    async def _take_once(self, path: str, deadline: Deadline) -> pb.TakeNameOk:
        attempt = Deadline(self._session.clock, min(ASK_TIMEOUT_S, deadline.remaining()))
        link = await self._session.directory.owner_link(path, attempt)
        take = pb.TakeName(segment=path, name=self.name, incarnation=self.incarnation, name_epoch=self.epoch)
        try:
            reply = await link.call(pb.Command(take_name=take), timeout_s=attempt.remaining())
        except TopicNotFound:
            raise
        except InvalidArgument as error:
            raise self._older(path, error) from error
        return reply.take_name_ok

    def _older(self, path: str, why: object) -> NotAllowed:
        """▲ A broker that does not know numbered producers would store everything that is sent again."""
        return NotAllowed(
            f"the broker of segment://{path} has a release without numbered producers ({why}): update all brokers"
        )

    async def before_open(self, segment: SegmentInfo, deadline: Deadline) -> None:
        """Called before each opening at a segment. Raises `ProducerFenced` if a later life has the name."""
        slept = self._session.clock.monotonic() - self._asked_s > ASK_AGAIN_S
        # ▲ A segment to which a later life does not write may have forgotten the name by now; another one knows it.
        if slept and await self._take_everywhere(deadline, lambda *_: None) is not None:
            raise fenced(self.name)
        if segment.path not in self._ancestors_asked:
            for ancestor in _ancestors(self._layout(), segment):
                await self._expect_taken(ancestor.path, deadline)
            self._ancestors_asked.add(segment.path)
        await self._expect_taken(segment.path, deadline)

    async def _expect_taken(self, path: str, deadline: Deadline) -> None:
        if not (await self._take_once(path, deadline)).taken:
            raise fenced(self.name)

    def check_opened(self, opened: pb.OpenProducerOk, path: str) -> None:
        """Raises `NotAllowed` if the broker has opened it as an ordinary producer."""
        if not opened.sealed and not opened.numbered:
            raise self._older(path, "it has opened an ordinary one")

    # ---- one id -----------------------------------------------------------------------------------------------------

    def outcome(self, sequence_id: int) -> Outcome:
        """A new one, for an id that is given now."""
        outcome = Outcome(loop=self._session.loop)
        outcome.sequence_id = sequence_id
        self.ids.give(sequence_id)
        return outcome

    def repeated(self, sequence_id: int) -> asyncio.Future[MessageId]:
        """For a repeated send of an id that is under way."""
        waits: asyncio.Future[MessageId] = self._session.loop.create_future()
        others = [one for one in self._waiting.get(sequence_id, ()) if not one.done()]
        self._waiting[sequence_id] = [*others, waits]
        return waits

    def owe(self, sequence_id: int) -> None:
        """Its send gives up before it was placed. ▲ It also ends the sends that repeat it: no other code would."""
        self.ids.owe(sequence_id)
        self._end(
            self._waiting.pop(sequence_id, ()),
            Timeout(
                f"sequence id {sequence_id}: the send that was repeated gave up before it found room; send it again"
            ),
        )

    def new_batch(self) -> NumberedBatch:
        return NumberedBatch(self, _Unending(self._session.clock, self._session.timeout_s))

    def numbers(self, ids: Sequence[int]) -> Numbers:
        return Numbers(self.epoch, self.ids.all_below, ids)

    def stored(self, ids: Sequence[int], segment: str, position: Position) -> None:
        self.ids.stored(ids)
        for index, one in enumerate(ids):
            for waits in self._waiting.pop(one, ()):
                if not waits.done():
                    waits.set_result(MessageId(segment, position, index))

    def failed(self, error: TxnError) -> None:
        """The producer ends: repeated sends get its failure."""
        waiting, self._waiting = self._waiting, {}
        for futures in waiting.values():
            self._end(futures, error)

    def _end(self, futures: Iterable[asyncio.Future[MessageId]], error: TxnError) -> None:
        for waits in futures:
            if not waits.done():
                waits.set_exception(again(error))
                waits.exception()  # the first send of the id is the one to be told


class NumberedBatch(GatheringBatch):
    """Messages with ids of their source."""

    __slots__ = ("_life",)

    def __init__(self, life: NumberedLife, deadline: Deadline, size: int = 0) -> None:
        super().__init__(None, deadline, size)
        self._life = life

    def _ids(self) -> list[int]:
        return [future.sequence_id for future in self.futures if isinstance(future, Outcome)]

    @property
    def numbers(self) -> Numbers:
        return self._life.numbers(self._ids())

    def _part(self, columns: Columns, indexes: Sequence[int], size: int) -> NumberedBatch:
        part = NumberedBatch(self._life, self.deadline, size)
        part.futures = [self.futures[index] for index in indexes]
        part._take(columns)
        return part

    def stored(self, segment: str, position: Position) -> None:
        self._life.stored(self._ids(), segment, position)
        super().stored(segment, position)


def _ancestors(layout: TopicLayout, segment: SegmentInfo) -> list[SegmentInfo]:
    """The ancestors that are still in the layout, the oldest first."""
    found: dict[int, SegmentInfo] = {}
    frontier = list(segment.parents)
    while frontier:
        known = layout.segments.get(frontier.pop())
        if known is not None and known.segment_id not in found:
            found[known.segment_id] = known
            frontier.extend(known.parents)
    return [found[number] for number in sorted(found)]


async def _all_of(work: Sequence[Coroutine[None, None, T]]) -> list[T]:
    """Run all at once; after the first failure none goes on."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
