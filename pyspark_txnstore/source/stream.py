"""The streaming source: offsets are cuts, and a micro-batch is what lies between two of them (DESIGN §10)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_txnstore.shared.offsets import adds, encode_offset, is_laid_out_anew
from pyspark_txnstore.shared.options import SourceOptions
from pyspark_txnstore.shared.patience import Patience
from pyspark_txnstore.source import first_batch
from pyspark_txnstore.source.cuts import Cuts
from pyspark_txnstore.source.idle import BLOCK_S, FALLBACK_S, Idle
from pyspark_txnstore.source.limits import Backlog, HeadScan
from pyspark_txnstore.source.look_back import pair_to_plan
from pyspark_txnstore.source.source import plan, read
from txnclient.reading.snapshot import Snapshot
from txnwire.errors import DataTrimmed, InvalidArgument, TxnError


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream. Spark keeps one in a process of the driver, and sends others to the tasks, only for `read`.

    It connects at the first question."""

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        *,
        rest: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
        fallback_s: float = FALLBACK_S,
    ) -> None:
        self._options = options
        self._schema = schema
        self._now = now
        self._patience = Patience(options.planning_retry_s, rest=rest)
        self._cuts = Cuts(options)
        self._idle = Idle(self._cuts, options.isolation, fallback_s=fallback_s, rest=rest, now=now)
        self._initial: dict[str, Any] | None = None
        self._untold: TxnError | None = None
        """Why the start of the query is unknown."""
        self._target: Snapshot | None = None
        """Where the query ends, if it does."""
        self._ends = False
        """True also if the pattern matched no topic at the start, so that there is none to end at."""
        self._newest: Snapshot | None = None
        self._seen: Snapshot | None = None
        """The newest cut; None if there was no topic to take one of."""
        self._backlog = Backlog()
        self._ended_s = -math.inf
        """When this driver process planned its newest batch."""
        self._planned: dict[str, Any] | None = None
        """The end of that batch."""
        self._is_short = False
        """Whether there is something behind the start, but less than a batch waits for."""

    # ---- offsets ----------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """▲ The same for every call: Spark asks twice, and would lose the messages between two different answers.

        Raises errors only if the answer is needed: Spark also asks before it repeats the first batch, when segments
        that the options name may have been split or trimmed."""
        if self._initial is None:
            try:
                first = self._patience.ask("where the query begins", lambda: self._cuts.first(self._target))
            except (InvalidArgument, DataTrimmed) as error:
                self._untold = error
                return first_batch.untold(str(error), self._options.isolation)
            self._untold = None
            self._initial = first_batch.initial(first, self._options.isolation)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark passes one back, which says that limits hold in this trigger; then all limit options are applied."""
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        most = self._options.max_entries or self._options.max_rows or self._options.min_entries
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._patience.ask("where the query ends", self._cuts.take)
        self._ends = True
        self.look_again()

    def look_again(self) -> None:
        """Looks for the next end at once, whether or not a watch has reported new data."""
        self._idle.over()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """▲ Returns `start` itself if nothing is new: anything else is another micro-batch."""
        if self._untold is not None and first_batch.is_untold(start):
            raise self._untold
        limited = not isinstance(limit, ReadAllAvailable)
        until_s = self._now() + BLOCK_S
        while not self._idle.is_at(start) or self._idle.news(until_s):
            end = self._patience.ask("the end of the next batch", lambda: self._end_behind(start, limited=limited))
            if end is not None:
                self._idle.over()
                self._ended_s = self._now()
                self._planned = end
                return end
            if self._ends:
                break
            self._idle.begin(start, self._seen, self._delay_left_s() if self._is_short else math.inf)
        return start

    def _delay_left_s(self) -> float:
        """How long a batch may wait for more, counted from the previous batch. ▲ Without a previous batch in this
        driver process the wait is over: it does not begin again after a restart."""
        return max(0.0, self._ended_s + self._options.max_delay_s - self._now())

    def _end_behind(self, start: dict[str, Any], *, limited: bool) -> dict[str, Any] | None:
        self._is_short = False
        self._seen = target = self._target if self._ends else self._cuts.take()
        before = first_batch.decoded(start, self._options.isolation)
        if target is None:
            self._cuts.check_some_left(before)
            return None
        self._newest = target
        before, target = self._cuts.between(before, target)
        if not adds(before, target):
            return None
        end = self._end(before, target, limited=limited)
        return None if end is None else first_batch.ending(start, end, self._options.isolation)

    def _end(self, start: Snapshot | None, target: Snapshot, *, limited: bool) -> Snapshot | None:
        """Returns the end of the next batch; None if it should wait for more.

        ▲ The end names transactions aborted since the start, if something looks lost because of them: so a repeat of
        the batch looks back no further."""
        end: Snapshot | None = target
        if limited:
            try:
                end = self._limited(start, target)
            except DataTrimmed:
                if start is None or (settled := self._cuts.settled(start, target)) is None:
                    raise
                start, target = settled
                end = self._limited(start, target)
        return None if end is None else pair_to_plan(self._cuts, start, end, self._backlog)[1]

    def _limited(self, start: Snapshot | None, target: Snapshot) -> Snapshot | None:
        """▲ A batch that reaches a limit does not wait, even if it has fewer entries than it would wait for."""
        end = self._within_limits(start, target)
        self._is_short = end == target and self._waits(start, target)
        return None if self._is_short else end

    def _waits(self, start: Snapshot | None, target: Snapshot) -> bool:
        least = self._options.min_entries
        if least is None or self._ends or not self._delay_left_s():
            return False
        if start is not None and is_laid_out_anew(start, target):
            return False  # ▲ a seal must be known before retention takes the segment
        while not isinstance(found := self._backlog.shows(start, target, least), bool):
            for one in found:
                self._scan(one, start, target)
        return not found

    def _within_limits(self, start: Snapshot | None, target: Snapshot) -> Snapshot:
        if self._options.max_bytes is None and self._options.max_entries is None and self._options.max_rows is None:
            return target
        while True:
            found = self._backlog.nearest(
                start,
                target,
                max_bytes=self._options.max_bytes,
                max_entries=self._options.max_entries,
                max_rows=self._options.max_rows,
            )
            if isinstance(found, Snapshot):
                return found
            for one in found:
                self._scan(one, start, target)

    def _scan(self, one: HeadScan, start: Snapshot | None, target: Snapshot) -> None:
        part = one.part
        # A new topic is read as far as it is kept; topics already being read must have no gap.
        trimmed = None if start is not None and part.topic in start.topics else "skip"
        pages = self._cuts.heads(part.segment, part.after, part.end, target.revision, trimmed=trimmed)
        try:
            scanned = 0
            for page in pages:
                self._backlog.add(part, page)
                scanned += len(page)
                if one.heads is not None and scanned >= one.heads:
                    return
        finally:
            pages.close()
        self._backlog.done(part)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._newest is None else encode_offset(self._newest, self._options.isolation)

    # ---- a micro-batch ----------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        cuts = first_batch.between(start, end, self._options.isolation)
        if cuts is None:
            return []
        self._cuts.check_topics(cuts[1])
        return self._patience.ask("the plan of a batch", lambda: self._plan(*cuts, is_new=end == self._planned))

    def _plan(self, start: Snapshot | None, end: Snapshot, *, is_new: bool) -> Sequence[InputPartition]:
        """`is_new`: this driver process has just taken the cut."""
        if not is_new:
            start, end = self._cuts.still_there(start, end)
        return plan(self._options, start, end, known=self._backlog, cuts=self._cuts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: what lies before is forgotten when the next batch begins there."""

    def stop(self) -> None:
        """Closes the process' client, which ends with the query: otherwise brokers would report to no reader."""
        self._idle.close()
