"""DataFrames, filled by the executors, of all stored entries of some segments and their transactions' outcomes.

One row per entry, without its messages: the audit needs no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_txnstore.jobs.judgement import KNOWN, STORED, TOLD
from pyspark_txnstore.shared.process_client import client_of
from txnclient.reading.snapshot import Snapshot
from txnwire.errors import TxnNotFound
from txnwire.ids import EARLIEST, Position
from txnwire.names import SegmentName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txnclient import WholeEntry

QUESTION_IDS: Final = 1_000
"""Transactions per request: some 25 KB each way."""

NO_WRITER: Final = f"{0:016x}"

_STORED: Final = to_arrow_schema(STORED)
_KNOWN: Final = to_arrow_schema(KNOWN)
_TOLD: Final = to_arrow_schema(TOLD)


class ServiceAddress(NamedTuple):
    """How an executor reaches the cluster."""

    url: str
    timeout_s: float


def stored_entries(spark: SparkSession, service: ServiceAddress, cut: Snapshot) -> DataFrame:
    """Reads the entries kept of each segment, up to its end in the snapshot, READ_UNCOMMITTED: `judgement.STORED`."""
    ends = [(path, str(bounds.end)) for path, bounds in cut.segments.items() if bounds.end > EARLIEST]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                path, end = ends[number]
                yield from _batches(service, path, Position.parse(end))

    return _tasks(spark, len(ends)).mapInArrow(read, STORED)


def _tasks(spark: SparkSession, number: int) -> DataFrame:
    """One task per row; at least one without a row, because Spark makes no DataFrame of none."""
    return spark.range(0, number, 1, max(1, number))


def _batches(service: ServiceAddress, path: str, end: Position) -> Iterator[pa.RecordBatch]:
    topic = str(SegmentName.from_path(path).topic)
    entries = client_of(service.url, timeout_s=service.timeout_s).read_entries(
        path, after=EARLIEST, end=end, isolation="read_uncommitted", trimmed="skip"
    )
    try:
        for some in entries:
            yield pa.RecordBatch.from_pylist([_row(topic, path, entry) for entry in some], schema=_STORED)
    finally:
        entries.close()


def _row(topic: str, path: str, entry: WholeEntry) -> dict[str, Any]:
    return {
        "topic": topic,
        "segment": path,
        "ledger_id": entry.position.ledger_id,
        "entry_id": entry.position.entry_id,
        "txn_id": None if entry.txn_id is None else str(entry.txn_id),
        "writer": f"{entry.writer:016x}",
        "producer": entry.producer,
        "incarnation": f"{entry.incarnation:016x}",
        "sequence_id": entry.sequence_id,
        "messages": len(entry.block),
    }


def first_kept(service: ServiceAddress, cut: Snapshot) -> dict[str, Position]:
    """For each segment of the snapshot, the place before the first entry kept now; its end if none is."""
    client = client_of(service.url, timeout_s=service.timeout_s)
    found: dict[str, Position] = {}
    for path, bounds in cut.segments.items():
        pages = client.scan_entries(path, after=EARLIEST, end=bounds.end, trimmed="skip")
        try:
            first = next((page[0].position for page in pages if page), None)
        finally:
            pages.close()
        found[path] = bounds.end if first is None else Position(first.ledger_id, first.entry_id - 1)
    return found


def known_transactions(transactions: DataFrame, service: ServiceAddress, cut: Snapshot) -> DataFrame:
    """How each of them ended: `judgement.KNOWN`. `transactions`: `txn_id`, `named` (a writer of it wrote).

    ▲ Ask once, after the snapshot was taken: a transaction that is not pending in it was decided before it, so a
    transaction that is open now was not in it. For named transactions it also asks for the writers that count."""
    pending = frozenset(str(txn_id) for txn_id in cut.pending)

    def ask(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (
            (txn_id, named)
            for batch in batches
            for txn_id, named in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        )
        while some := dict(islice(rows, QUESTION_IDS)):
            answers = _answers(service, some)
            known = [{**answer, "txn_id": txn_id, "pending": txn_id in pending} for txn_id, answer in answers.items()]
            yield pa.RecordBatch.from_pylist(known, schema=_KNOWN)

    return transactions.select("txn_id", "named").mapInArrow(ask, KNOWN)


def _answers(service: ServiceAddress, named: Mapping[str, bool]) -> dict[str, dict[str, Any]]:
    client = client_of(service.url, timeout_s=service.timeout_s)
    states = {str(txn_id): state for txn_id, state in client.outcomes(named).items()}
    # A transaction collected between the two reads of one answer is not unknown.
    again = [txn_id for txn_id, state in states.items() if state == "UNKNOWN"]
    states |= {str(txn_id): state for txn_id, state in client.outcomes(again).items()} if again else {}
    return {
        txn_id: {"state": state}
        | _writers(client.transaction_info, txn_id, asks=named[txn_id] and state == "COMMITTED")
        for txn_id, state in states.items()
    }


def _writers(describe: Callable[[str], dict[str, Any]], txn_id: str, *, asks: bool) -> dict[str, Any]:
    """Returns the counting writers of a committed transaction; None is all of them."""
    if not asks:
        return {"writers": None, "writers_known": True}
    try:
        info = describe(txn_id)
    except TxnNotFound:
        return {"writers": None, "writers_known": False}
    told = info if info["header"] is None else info["header"]
    return {"writers": told.get("writers"), "writers_known": "writers" in told}


def told_writers(spark: SparkSession, service: ServiceAddress, cut: Snapshot, segments: Iterable[str]) -> DataFrame:
    """Tells for all writers of named transactions in these segments whether they count: `judgement.TOLD`.

    ▲ Ask it for collected transactions: by then each segment has noted which of their writers do not count. A writer
    counts unless all its segments have noted that it does not: this shows a segment that disagrees."""
    ends = [(path, str(cut.segments[path].end)) for path in segments]

    def scan(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                path, end = ends[number]
                told = _told(service, path, Position.parse(end))
                rows = [{"txn_id": txn_id, "writer": writer, "counts": counts} for (txn_id, writer), counts in told]
                yield pa.RecordBatch.from_pylist(rows, schema=_TOLD)

    of_segments = _tasks(spark, len(ends)).mapInArrow(scan, TOLD)
    return of_segments.groupBy("txn_id", "writer").agg(F.bool_or("counts").alias("counts"))


def _told(service: ServiceAddress, path: str, end: Position) -> Iterable[tuple[tuple[str, str], bool]]:
    told: dict[tuple[str, str], bool] = {}
    pages = client_of(service.url, timeout_s=service.timeout_s).scan_entries(
        path, after=EARLIEST, end=end, trimmed="skip"
    )
    try:
        for page in pages:
            for head in page:
                if head.txn_id is not None and head.writer:
                    told[str(head.txn_id), f"{head.writer:016x}"] = not head.aborted
    finally:
        pages.close()
    return told.items()
