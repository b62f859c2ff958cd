"""Plans and reads partitions for Spark: each is a range of one segment, read as Arrow record batches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_txnstore.shared.offsets import EntryRange, decode_offset, encode_offset, split
from pyspark_txnstore.shared.options import SourceOptions
from pyspark_txnstore.shared.patience import Patience
from pyspark_txnstore.shared.process_client import client_of
from pyspark_txnstore.source.boundary_cuts import bounded
from pyspark_txnstore.source.columns import MORE, arrow_schema
from pyspark_txnstore.source.compacted_files import CompactedPart, plan_compacted, read_part
from pyspark_txnstore.source.cuts import Cuts, of_segment, of_transactions
from pyspark_txnstore.source.limits import Backlog
from pyspark_txnstore.source.look_back import pair_to_plan
from pyspark_txnstore.source.part_reading import SegmentPart, batches
from txnclient import EntryHead
from txnclient.reading.snapshot import Snapshot, Span
from txnwire.errors import InvalidArgument
from txnwire.ids import EARLIEST, Position

MIN_STEPS: Final = 10_000
STEPS_PER_PARTITION: Final = 32
"""How finely a segment can be split for `minPartitions`."""


class EntryPartition(InputPartition):
    """The part that one task reads, as text sent to it. `start`, `end`: the parts of the cuts that concern the segment;
    `start_txns`, `end_txns`: shared by the tasks of a batch, and large if many transactions are open.
    """

    def __init__(
        self,
        part: EntryRange,
        *,
        trimmed: str,
        start: str | None,
        start_txns: str | None,
        end: str,
        end_txns: str,
    ) -> None:
        self.segment = part.segment
        self.after = str(part.after)
        self.through = str(part.end)
        self.trimmed = trimmed
        self.start = start
        self.start_txns = start_txns
        self.end = end
        self.end_txns = end_txns

    def span(self) -> Span:
        return Span(_joined(self.start, self.start_txns), _joined(self.end, self.end_txns))


def _joined(own: str | None, txns: str | None) -> Snapshot | None:
    if own is None or txns is None:
        return None
    bounds = _cut_of(own)
    return replace(_transactions_of(txns), topics=bounds.topics)


def _text_of(cut: Snapshot) -> str:
    return json.dumps(encode_offset(cut))


def _cut_of(text: str) -> Snapshot:
    cut = decode_offset(json.loads(text))
    if cut is None:
        raise InvalidArgument("a task reads between two cuts, and one of its is before everything")
    return cut


@lru_cache(maxsize=4)
def _transactions_of(text: str) -> Snapshot:
    """Transactions in the cuts of a batch, cached: one process often runs several of its tasks."""
    return _cut_of(text)


def plan(
    options: SourceOptions,
    start: Snapshot | None,
    end: Snapshot,
    known: Backlog | None = None,
    cuts: Cuts | None = None,
) -> list[EntryPartition]:
    """Plans what lies between the two, in one task per segment or `minPartitions`; leaves out what `known` shows to be
    unneeded."""
    cuts = Cuts(options) if cuts is None else cuts
    known = Backlog() if known is None else known
    start, end = pair_to_plan(cuts, start, end, known)
    parts = known.ranges(start, end)
    parts = [part for part in parts if options.where.may_hold_in(part.segment)]
    if options.min_partitions is not None and 0 < len(parts) < options.min_partitions:
        most = max(MIN_STEPS, STEPS_PER_PARTITION * options.min_partitions)
        heads: dict[str, list[EntryHead]] = {}
        for part in parts:  # maybe several of a segment, in order
            pages = cuts.heads(part.segment, part.after, part.end, end.revision, trimmed="skip")
            heads.setdefault(part.segment, []).extend(coarse(pages, most))
        parts = split(parts, heads, options.min_partitions)
    start_txns = None if start is None else _text_of(of_transactions(start))
    end_txns = _text_of(of_transactions(end))
    return [
        EntryPartition(
            part,
            trimmed=_trimmed(options, part, start),
            start=None if start is None else _text_of(of_segment(start, part.segment)),
            start_txns=start_txns,
            end=_text_of(of_segment(end, part.segment)),
            end_txns=end_txns,
        )
        for part in parts
    ]


def coarse(pages: Iterable[Sequence[EntryHead]], most: int) -> list[EntryHead]:
    """Merges entries into groups at the last one's position, so that there are about `most` groups, without aborted
    entries. ▲ Pieces of large values stay single: no split may fall between them."""
    steps: list[EntryHead] = []
    for page in pages:
        steps += [head for head in page if not head.aborted]
        while len(steps) > most and len(fewer := _halved(steps)) < len(steps):
            steps = fewer
    return steps


def _halved(steps: Sequence[EntryHead]) -> list[EntryHead]:
    found: list[EntryHead] = []
    first: EntryHead | None = None
    for step in steps:
        if first is None:
            first = step
        elif first.piece is None and step.piece is None:
            found.append(step._replace(size_bytes=first.size_bytes + step.size_bytes))
            first = None
        else:
            found.append(first)
            first = step
    return found if first is None else [*found, first]


def _trimmed(options: SourceOptions, part: EntryRange, start: Snapshot | None) -> str:
    """▲ A part with a start is read whole or refused; one without, as far as it is kept. The range itself says so,
    except in a read without a span."""
    anywhere = options.uncommitted and part.after == EARLIEST and (start is None or part.topic not in start.topics)
    return "skip" if anywhere or not options.fail_on_data_loss else "fail"


def read(options: SourceOptions, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yields the record batches of a task."""
    if not isinstance(partition, EntryPartition):
        return  # Spark's own partition for an empty plan: there is nothing to read
    part = SegmentPart(
        partition.segment,
        after=Position.parse(partition.after),
        end=Position.parse(partition.through),
        span=None if options.uncommitted else partition.span(),
        trimmed=partition.trimmed,
    )
    yield from batches(client_of(options.url, timeout_s=options.timeout_s), part, schema, options.where)


class BatchReader(DataSourceReader):
    """The reader of `spark.read`: all that was committed at the moment of planning, or at a given one, or behind a
    start."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.compacted is not None and (more := [name for name in schema.names if name in MORE.names]):
            raise InvalidArgument(f"option 'compacted': compacted rows have no {', '.join(more)}, only 'position'")
        self._options = options
        self._schema = schema
        self._patience = Patience(options.planning_retry_s)

    def partitions(self) -> Sequence[InputPartition]:
        """▲ If one part gets no answer, everything is asked again: all of it depends on one cut."""
        return self._patience.ask("the plan of a read", self._plan)

    def _plan(self) -> Sequence[InputPartition]:
        cuts = Cuts(self._options)
        end = cuts.ending(self._options.end) if isinstance(self._options.end, Snapshot) else cuts.take()
        if end is None:
            cuts.check_some_left(self._options.start if isinstance(self._options.start, Snapshot) else None)
            return []
        if self._options.start == "latest":
            return []
        if isinstance(self._options.end, Snapshot) and self._options.compacted is None:
            cuts.check_kept(self._options.start if isinstance(self._options.start, Snapshot) else None, end)
        start, end = bounded(cuts, self._options, end)
        if start is not None:
            return list(plan(self._options, start, end))
        compacted: list[CompactedPart] = []
        if self._options.compacted is not None:
            # ▲ Only for a read of everything: behind a start there may be values that newer ones replaced.
            drawn_back = not isinstance(self._options.end, Snapshot | None)
            compacted, end = plan_compacted(self._options.compacted, end, drawn_back=drawn_back)
        return [*compacted, *plan(self._options, None, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, CompactedPart):
            return read_part(partition, arrow_schema(self._schema), keys=self._options.where.keys)
        return read(self._options, self._schema, partition)
