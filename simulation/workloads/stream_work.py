"""A stream from cut to cut, as in Spark's source (SCENARIOS X2): each step shows what its end holds and its start does
not, read in bulk, segment by segment and part by part, under all faults.

A step's end is recorded before the step is read, so the next life after a crash reads the same step; sometimes an old
one is read again much later. At the end each committed transaction must have been shown by exactly one step, whole, and
every reading of a step must have shown the same.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import txnclient
from simulation.clients.draining import WorkloadDrain
from simulation.clients.life import LoggedLife
from simulation.workloads.large_work import AUTOSCALE
from simulation.workloads.large_work import TOPIC as LARGE_TOPIC
from txnclient.connection.opening import Opening
from txnclient.reading.entries import EntryHead
from txnclient.reading.snapshot import SegmentBounds, Snapshot, Span
from txnwire.errors import TxnError
from txnwire.ids import EARLIEST, Position

PAUSE_S = 3.0
"""Mean pause between two steps."""
AGAIN_SHARE = 0.3
"""Share of steps after which an earlier one is read again."""
TRIES = 4
"""Attempts for each part of a step before the whole step begins again; as many as Spark gives a task."""


class ShownMessage(NamedTuple):
    """One message of a step."""

    position: Position
    txn_id: str | None
    value: str


@dataclass(slots=True)
class StreamLog:
    """What the stream knows over all its lives. `cuts`: where it began, and the end of each step, the last of which may
    still be under way; `steps`: what each one showed, by segment."""

    topics: tuple[str, ...]
    cuts: list[str] = field(default_factory=list)
    steps: list[dict[str, list[ShownMessage]]] = field(default_factory=list)
    done: int = 0
    """Number of steps read to their ends."""
    again: int = 0
    """Number of segments of steps that were read more than once."""
    late: int = 0
    """Number of messages before their step's start: of transactions pending then."""
    found: list[str] = field(default_factory=list)
    expected: Counter[str] = field(default_factory=Counter)
    """What a reader shows at the end, between the stream's begin and end."""
    ended: bool = False

    def planned(self, end: Snapshot) -> None:
        if self.cuts:
            self.steps.append({})
        self.cuts.append(end.to_json())

    def span(self, step: int) -> Span:
        return Span(Snapshot.from_json(self.cuts[step]), Snapshot.from_json(self.cuts[step + 1]))

    def told(self, step: int, path: str, shown: list[ShownMessage]) -> None:
        """Records all that a step shows of a segment, however often it was read."""
        before = self.steps[step].setdefault(path, shown)
        if before is not shown:
            self.again += 1
            if before != shown:
                self.found.append(f"stream: step {step} of {path} was {_told(before)}, and read again {_told(shown)}")

    def findings(self, sent: Iterable[Sequence[str]]) -> Iterator[str]:
        """`sent`: the first words of values that belong together, each with those of its transaction."""
        yield from self.found
        if not self.ended:
            return
        steps: dict[str, int] = {}
        transactions: dict[str, int] = {}
        for number, step in enumerate(self.steps):
            for one in (one for shown in step.values() for one in shown):
                name = one.value.partition(" ")[0]
                if name in steps:
                    yield f"stream: {name} was shown by step {steps[name]} and by step {number}"
                steps.setdefault(name, number)
                if one.txn_id is not None and transactions.setdefault(one.txn_id, number) != number:
                    yield f"stream: {one.txn_id} was shown by step {transactions[one.txn_id]} and by step {number}"
        for together in sent:
            parts = {name: steps[name] for name in together if name in steps}
            if parts and (len(parts) < len(together) or len(dict.fromkeys(parts.values())) > 1):
                yield f"stream: of {', '.join(together)}, which belong together, steps show {parts}"
        values = Counter(one.value for step in self.steps for shown in step.values() for one in shown)
        for what, difference in (("lacks", self.expected - values), ("has, and no reader,", values - self.expected)):
            if difference:
                yield f"stream: it {what} {', '.join(value.partition(' ')[0] for value in difference)}"


def _told(shown: Sequence[ShownMessage]) -> str:
    return ", ".join(f"{one.value.partition(' ')[0]} at {one.position}" for one in shown) or "nothing"


class StreamLife(LoggedLife[StreamLog]):
    """One life of the process."""

    _may_connect_carelessly = False

    def _connect(self) -> Opening[txnclient.Client]:
        return self._plan.connect(self._ports, timeout=self._random.uniform(3.0, 12.0))

    async def _work(self, client: txnclient.Client) -> None:
        for topic in self._log.topics:
            if topic == LARGE_TOPIC:
                await client.create_topic(topic, segments=1, autoscale=AUTOSCALE)
            else:
                await client.create_topic(topic, segments=self._plan.segments)
        await self._repeat(partial(self._turn, client), pause_s=PAUSE_S)

    async def _turn(self, client: txnclient.Client) -> None:
        await self._careless.call(self.step(client), awaits=20)
        if self._log.done and self._random.random() < AGAIN_SHARE:
            await self._careless.call(self._read(client, self._random.randrange(self._log.done)), awaits=20)

    async def step(self, client: txnclient.Client) -> bool:
        """Does the step under way, or else the next one. Returns False if nothing was added."""
        log = self._log
        if log.done == len(log.steps):
            cut = await client.snapshot(list(log.topics))
            if not log.cuts:
                log.planned(cut if self._random.random() < 0.5 else await _beginning(client, cut))
                return True
            if not cut.adds_to(Snapshot.from_json(log.cuts[-1])):
                return False
            log.planned(cut)
        await self._read(client, log.done)
        log.done += 1
        return True

    async def _read(self, client: txnclient.Client, step: int) -> None:
        """All segments at once, each separately."""
        span = self._log.span(step)
        ranges = [(path, span.after(path), end) for path, end in span.ends(self._log.topics).items()]
        reading = [self._read_segment(client, step, span, *one) for one in ranges if one[1] < one[2]]
        for failed in await asyncio.gather(*reading, return_exceptions=True):
            if isinstance(failed, BaseException):
                raise failed

    async def _read_segment(
        self, client: txnclient.Client, step: int, span: Span, path: str, after: Position, end: Position
    ) -> None:
        assert span.end is not None
        pages = client.scan_entries(path, after=after, end=end, min_revision=span.end.revision)
        heads = [head for page in [page async for page in pages] for head in page]
        places = partings(heads)
        shown: list[ShownMessage] = []
        inner = sorted(self._random.sample(places, min(len(places), self._random.choice((0, 1, 3)))))
        for first, last in zip([after, *inner], [*inner, end], strict=True):
            shown += await self._read_part(client, span, path, first, last)
        if not any(head.piece for head in heads):
            self._hold_against_heads(step, span, path, heads, shown)
        start = None if span.start is None else span.start.bounds(path)
        if start is not None and path not in self._log.steps[step]:
            self._log.late += sum(1 for one in shown if one.position <= start.end)
        self._log.told(step, path, shown)

    def _hold_against_heads(
        self, step: int, span: Span, path: str, heads: Sequence[EntryHead], shown: Sequence[ShownMessage]
    ) -> None:
        """A plan is made of heads: they must show the same entries, in order, each with as many messages."""
        planned = [
            (head.position, head.messages)
            for head in heads
            if not head.aborted and span.shows(path, head.position, head.txn_id, head.writer)
        ]
        if planned != (read := list(Counter(one.position for one in shown).items())):
            self._log.found.append(f"stream: step {step} of {path} has {planned} by heads and {read} by entries")

    async def _read_part(
        self, client: txnclient.Client, span: Span, path: str, after: Position, end: Position
    ) -> list[ShownMessage]:
        """What a task does: reads a part independently, and again if it fails."""
        for number in range(1, TRIES + 1):
            try:
                return await self._try_part(client, span, path, after, end)
            except TxnError as error:
                if number == TRIES or error.fatal:
                    raise
                self._met(error)
                await asyncio.sleep(self._random.expovariate(1 / 0.5))
        raise AssertionError("the last try returns or raises")

    async def _try_part(
        self, client: txnclient.Client, span: Span, path: str, after: Position, end: Position
    ) -> list[ShownMessage]:
        shown: list[ShownMessage] = []
        window = self._random.choice((1024, 4096, 1024 * 1024))
        reading = client.read_entries(path, after=after, end=end, span=span, prefetch_bytes=window)
        try:
            async for entries in reading:
                for entry in entries:
                    txn_id = None if entry.txn_id is None else str(entry.txn_id)
                    shown += [ShownMessage(entry.position, txn_id, value.decode()) for value in entry.block.values()]
        finally:
            await reading.aclose()
        return shown


def partings(heads: Sequence[EntryHead]) -> list[Position]:
    """Entries behind which a range can be split: none inside the pieces of a large value."""
    places: list[Position] = []
    begun: dict[tuple[str, int], None] = {}
    for head in heads:
        if head.piece is not None:
            key = (head.piece.producer, head.piece.incarnation)
            begun[key] = None
            if head.piece.number + 1 == head.piece.pieces:
                del begun[key]
        if not begun:
            places.append(head.position)
    return places[:-1]


async def _beginning(client: txnclient.Client, cut: Snapshot) -> Snapshot:
    """An empty cut: before the first entry of each segment, also of transactions that are open at `cut`."""
    topics = {}
    for topic, bounds in cut.topics.items():
        segments = {}
        for path, one in bounds.segments.items():
            at = one.end
            async for page in client.scan_entries(path, after=EARLIEST, end=one.end, min_revision=cut.revision):
                at = min(at, page[0].position._replace(entry_id=page[0].position.entry_id - 1))
            segments[path] = SegmentBounds(at, at, one.sealed and at == one.end)
        topics[topic] = bounds._replace(segments=segments)
    return replace(cut, topics=topics, pending=(), aborted=(), losers=(), counted={})


class StreamDrain(WorkloadDrain[StreamLog]):
    """Reads the rest of the stream."""

    async def _read(self, client: txnclient.Client) -> None:
        log = self._log
        life = StreamLife(self._ports, self._plan, log)
        while await life.step(client):
            pass
        first, last = Snapshot.from_json(log.cuts[0]), Snapshot.from_json(log.cuts[-1])
        async with client.reader(list(log.topics), start=first, end=last) as reader:
            while not reader.ended:
                log.expected.update(message.value.decode() for message in await reader.receive_many(500))
        log.ended = True
