"""Takes cuts for the source: of its topics, at its isolation, and with the losses it may pass over.

The rest of the source plans from cuts (`pyspark_txnstore.shared.offsets`) and reads by these plans.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Final

import txnclient.sync
from pyspark_txnstore.shared.offsets import beginning, may_have_committed, settle, topics_left
from pyspark_txnstore.shared.options import SourceOptions
from pyspark_txnstore.shared.process_client import client_of
from pyspark_txnstore.source.boundary_cuts import BoundaryCuts
from txnclient import EntryHead
from txnclient.reading.snapshot import Snapshot, TopicBounds
from txnwire.errors import DataTrimmed, InvalidArgument, Timeout, TopicNotFound
from txnwire.ids import EARLIEST, Position
from txnwire.names import SegmentName

ATTEMPTS = 10
"""Attempts to take a cut while topics are made and deleted: one fails only if a topic came or went meanwhile."""

PAGE_ENTRIES: Final = 10_000
"""Heads per request."""

ASKED_AT_ONCE: Final = 500
"""Transactions per request for outcomes."""

_log = logging.getLogger("pyspark_txnstore")


class Cuts:
    """Takes cuts of the topics that a query reads."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._told = ""
        """The loss that was last reported."""

    @property
    def client(self) -> txnclient.sync.Client:
        return client_of(self._options.url, timeout_s=self._options.timeout_s)

    def take(self) -> Snapshot | None:
        """Takes a cut of all topics that are read; None while the pattern matches none.

        Raises `TopicNotFound`, unless data may be lost; `Timeout` if topics come and go all the time."""
        names = self._names()
        for _ in range(ATTEMPTS):
            if not names:
                return None
            try:
                cut = self.client.snapshot(names)
            except TopicNotFound:
                if self._options.pattern is None and self._options.fail_on_data_loss:
                    raise
                names = self._names()
                continue
            # ▲ A topic made before the cut's revision may hold what was committed by then: without it, a transaction
            # over several topics would be in two batches. Also checked for named topics, of which one may be missing.
            if (now := self._names()) == names:
                return self.isolated(cut)
            names = now
        # ▲ Retriable: a server may go on listing a topic for a while that is being deleted.
        raise Timeout(f"topics came and went in each of {ATTEMPTS} attempts to take a cut of them: try again")

    def _names(self) -> list[str]:
        pattern = self._options.pattern
        if pattern is not None:
            return sorted(name for name in self.client.list_topics() if pattern.fullmatch(name))
        if self._options.fail_on_data_loss:
            return list(self._options.topics)
        there = frozenset(self.client.list_topics())
        return [name for name in self._options.topics if name in there]

    def may_name_others(self, cut: Snapshot | None) -> bool:
        """Whether topics may come that are to be read and are not in the cut."""
        return self._options.pattern is not None or len(self._options.topics) > len(() if cut is None else cut.topics)

    def names_others(self, cut: Snapshot | None) -> bool:
        """Whether the topics to read now differ from those in the cut."""
        return frozenset(self._names()) != frozenset(() if cut is None else cut.topics)

    def isolated(self, cut: Snapshot) -> Snapshot:
        """▲ Uncommitted, everything up to the ends counts, so nothing is read again."""
        if not self._options.uncommitted:
            return cut
        topics = {
            topic: bounds._replace(
                segments={path: one._replace(resolved=one.end) for path, one in bounds.segments.items()}
            )
            for topic, bounds in cut.topics.items()
        }
        return replace(cut, topics=topics, pending=(), aborted=(), losers=(), counted={})

    def first(self, target: Snapshot | None) -> Snapshot | None:
        """Where a query without checkpoint begins; None: before everything. ▲ `target`: where it ends, if that is
        certain already: a cut taken now would lie behind it."""
        start = self._options.start
        if isinstance(start, Snapshot):
            return self.narrowed(start)
        cut = self.take() if target is None else target
        if cut is None or start == "latest":
            return cut
        first = self.first_kept(cut)
        return beginning(cut, first) if start is None else BoundaryCuts(self, self._options, cut, first).at(start)

    def _reads(self, topic: str) -> bool:
        pattern = self._options.pattern
        return topic in self._options.topics if pattern is None else pattern.fullmatch(topic) is not None

    def check_topics(self, end: Snapshot) -> None:
        """▲ Checks a repeated batch of a checkpoint: if its query got other topics, or the checkpoint was copied for
        another query, the batch would read the former topics.

        Raises `DataTrimmed`, unless data may be lost: the next batch does not continue with them."""
        if others := [topic for topic in end.topics if not self._reads(topic)]:
            self._lost(f"{', '.join(others)}: in the checkpoint's last batch, and not asked for any more")

    def check_some_left(self, start: Snapshot | None) -> None:
        """Checks the topics of `start` where there was none to take a cut of. ▲ No cut shows their loss: a query would
        wait, or end, as if it had read everything. Raises `DataTrimmed`, unless data may be lost."""
        if start is None or not start.topics:
            return
        there = frozenset(self._names())
        if (obstacle := _left([topic for topic in start.topics if topic not in there])) is not None:
            self._lost(obstacle)

    def still_there(self, start: Snapshot | None, end: Snapshot) -> tuple[Snapshot | None, Snapshot]:
        """Returns the pair of a batch planned before, without topics that were deleted since, or deleted and made
        again. Raises `DataTrimmed` if there are such, unless data may be lost.

        ▲ A query begins with its last planned batch however often it is restarted. A task that reads a deleted topic
        fails, or waits for a layout that the new topic of the name will not reach, so the query would never go on."""
        now = self._there_now(list(end.topics))
        gone = [topic for topic, one in end.topics.items() if topic not in now or now[topic].epoch < one.epoch]
        if not gone:
            return start, end
        self._lost(f"{', '.join(gone)}: in the checkpoint's last batch, but deleted since, and perhaps created again")
        return None if start is None else _without(start, gone), _without(end, gone)

    def check_kept(self, start: Snapshot | None, end: Snapshot) -> None:
        """Checks the topics of a given `end` that are read from their beginning. ▲ They are read as far as they are
        kept: of a topic that was deleted and made again that is nothing, as if it had been empty.

        Raises `DataTrimmed`, unless data may be lost; `TopicNotFound`."""
        for topic, bounds in end.topics.items():
            held = [path for path, one in bounds.segments.items() if one.end > EARLIEST]
            if not held or (start is not None and topic in start.topics):
                continue
            if all(map(self.client.describe_topic(topic).has_lost, held)):
                self._lost(
                    f"{topic}: nothing in the snapshot is kept any more: retention has taken all of it, or the topic "
                    "was deleted and created again"
                )

    def _there_now(self, topics: Sequence[str]) -> Mapping[str, TopicBounds]:
        """▲ Asks for cuts, which read the store: a list may leave out a topic that was just made again."""
        try:
            return self.client.snapshot(topics).topics
        except TopicNotFound:
            found: dict[str, TopicBounds] = {}
            for topic in topics:
                with suppress(TopicNotFound):
                    found |= self.client.snapshot(topic).topics
            return found

    def narrowed(self, cut: Snapshot) -> Snapshot:
        """The given cut, reduced to the topics that are read."""
        kept = {topic: bounds for topic, bounds in cut.topics.items() if self._reads(topic)}
        return self.isolated(cut if len(kept) == len(cut.topics) else replace(cut, topics=kept))

    def ending(self, cut: Snapshot) -> Snapshot:
        """The given cut to end at. Raises `InvalidArgument` if it lacks a topic."""
        for topic in self._options.topics:
            if topic not in cut.topics:
                named = ", ".join(sorted(cut.topics))
                raise InvalidArgument(f"{topic} is not in the snapshot at revision {cut.revision}, of {named}")
        return self.narrowed(cut)

    def first_kept(self, cut: Snapshot) -> dict[str, Position]:
        """The first entry kept of each segment that has one at or before the end of the cut."""
        found: dict[str, Position] = {}
        for path, bounds in cut.segments.items():
            if (head := self.first_head(path, EARLIEST, bounds.end, cut.revision)) is not None:
                found[path] = head.position
        return found

    def first_head(self, segment: str, after: Position, end: Position, revision: int) -> EntryHead | None:
        """The first entry kept in (after, end]. ▲ In pages of one: the broker reads whole entries for a page."""
        with closing(self.heads(segment, after, end, revision, trimmed="skip", page_entries=1)) as pages:
            return next((page[0] for page in pages), None)

    def heads(
        self,
        segment: str,
        after: Position,
        end: Position,
        revision: int,
        *,
        trimmed: str | None = None,
        page_entries: int = PAGE_ENTRIES,
    ) -> Generator[list[EntryHead], None, None]:
        """Heads of all entries in (after, end], page by page. Raises `DataTrimmed`, unless data may be lost."""
        trimmed = trimmed or ("fail" if self._options.fail_on_data_loss else "skip")
        pages = self.client.scan_entries(
            segment, after=after, end=end, min_revision=revision, trimmed=trimmed, page_entries=page_entries
        )
        try:
            for page in pages:
                # Uncommitted, an entry stands for itself: no transaction holds it back.
                yield (
                    [head._replace(txn_id=None, aborted=False) for head in page] if self._options.uncommitted else page
                )
        finally:
            pages.close()

    def between(self, start: Snapshot | None, end: Snapshot) -> tuple[Snapshot | None, Snapshot]:
        """Returns the pair to plan by. Raises `DataTrimmed` if something between the two is gone, unless data may be
        lost: then the start is returned without it. Raises `InvalidArgument` for unrelated cuts.

        ▲ Depends only on the two cuts and on outcomes, so that a repeated batch reads the same."""
        if start is None:
            return None, end
        obstacle = _obstacle(start, end)
        if obstacle is not None and (settled := self.settled(start, end)) is not None:
            start, end = settled
            obstacle = _obstacle(start, end)
        if obstacle is None:
            return start, end
        passing = passed_over(start, end)
        self._lost(obstacle)
        return passing

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataTrimmed(f"{what}: to continue without the lost messages, set failOnDataLoss to false")
        if self._told != what:
            # Once: an idle query asks again and again from the same start.
            self._told = what
            _log.warning("data is lost and passed over, as failOnDataLoss is false: %s", what)

    def settled(self, start: Snapshot, end: Snapshot) -> tuple[Snapshot, Snapshot] | None:
        """Returns the two without what looks lost because transactions that aborted since held it back; None if there
        are none such, or if others have been decided, too.

        ▲ Asks only if something is gone, because most have committed. The end names the aborted ones, so that a
        repeated batch is the same even after outcomes are forgotten."""
        if not (unknown := may_have_committed(start, end)):
            return settle(start, end, ())
        for first in range(0, len(unknown), ASKED_AT_ONCE):
            outcomes = self.client.outcomes(unknown[first : first + ASKED_AT_ONCE])
            if any(outcome != "ABORTED" for outcome in outcomes.values()):
                return None
        return settle(start, end, unknown)


def _obstacle(start: Snapshot, end: Snapshot) -> str | None:
    return start.obstacle(end) or _left(topics_left(start, end))


def _left(topics: Sequence[str]) -> str | None:
    if not topics:
        return None
    return f"{', '.join(topics)}: read so far, and now deleted or not asked for"


def _without(cut: Snapshot, topics: Container[str]) -> Snapshot:
    return replace(cut, topics={topic: bounds for topic, bounds in cut.topics.items() if topic not in topics})


def passed_over(start: Snapshot, end: Snapshot) -> tuple[Snapshot, Snapshot]:
    """The two, as if what was lost between them had never existed: segments that retention took, and topics that were
    deleted, or made again, which are read from their beginning. Raises `InvalidArgument` for unrelated cuts."""
    kept = {topic: _kept(bounds, end.topics[topic]) for topic, bounds in start.topics.items() if topic in end.topics}
    before = replace(start, topics={topic: bounds for topic, bounds in kept.items() if bounds is not None})
    after = replace(end, topics={topic: bounds._replace(lost_id=-1) for topic, bounds in end.topics.items()})
    if (obstacle := before.obstacle(after)) is not None:
        raise InvalidArgument(obstacle)
    return before, after


def _kept(before: TopicBounds, then: TopicBounds) -> TopicBounds | None:
    if before.epoch > then.epoch:
        return None
    segments = {path: one for path, one in before.segments.items() if path in then.segments}
    if any(then.segments[path].end < one.end for path, one in segments.items()):
        return None
    return TopicBounds(before.epoch, segments)


def of_segment(cut: Snapshot, segment: str) -> Snapshot:
    """The part of a cut that a reader of the segment needs, so that a task's description stays small. ▲ The topic stays
    even if the segment is not in it: then the segment came later, and is read whole or refused."""
    topic = str(SegmentName.from_path(segment).topic)
    bounds = cut.topics.get(topic)
    own = Snapshot(cut.revision, {}, store=cut.store)
    if bounds is None:
        return own
    segments = {segment: bounds.segments[segment]} if segment in bounds.segments else {}
    return replace(own, topics={topic: TopicBounds(bounds.epoch, segments)})


def of_transactions(cut: Snapshot) -> Snapshot:
    """The rest of a cut that a task needs, the same for all segments."""
    return replace(cut, topics={})
