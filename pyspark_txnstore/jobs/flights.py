"""Delay statistics of flights, per carrier and airport, exactly once to a topic and to Parquet.

Reads a topic of flights as a stream, joins airlines and planes, and writes to the topic of statistics what each
micro-batch adds to them: one transaction each, with as many writers as it has tasks. A second query reads that topic as
a stream again, and keeps it as Parquet. Both resume from their checkpoints, wherever they were killed.

Runs until SIGTERM, then finishes what is there. With --available-now it ends on its own. Read the Parquet with Spark:
it knows which files count; other readers would also take those of a killed attempt.

    spark-submit flights.py --service txn://127.0.0.1:6650 --airlines airlines.csv --planes planes.csv \\
        --flights topic://public/nyc/flights --statistics topic://public/nyc/statistics \\
        --parquet statistics.parquet --checkpoint flights.checkpoint
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_txnstore.jobs.command_line import (
    CLEAN,
    Progress,
    add_service,
    argument,
    job_parser,
    run_job,
    seconds,
    service_options,
    spark_session,
)
from pyspark_txnstore.jobs.flight_statistics import (
    STATISTIC,
    as_messages,
    flights_of,
    increments,
    joined,
    statistics_of,
)
from txnwire.names import TopicName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

STATISTICS_CHECKPOINT, PARQUET_CHECKPOINT = "statistics", "parquet"
"""Folders of the two queries below `--checkpoint`."""

POLL_S: Final = 0.25


class FlightsQueries:
    """Runs the two queries, and reports how far they are."""

    def __init__(self, spark: SparkSession, args: argparse.Namespace) -> None:
        self._spark = spark
        self._args = args
        self._progress = Progress()
        self._told: dict[str, int] = {}

    def run(self, stopping: threading.Event) -> None:
        """Runs until `stopping` is set, then until everything available is written."""
        queries = [self._start(self.statistics()), self._start(self.parquet())]
        self._progress.say("running")
        while not stopping.wait(POLL_S):
            self._tell(queries)
        self._progress.say("finishing the messages that are stored")
        for query in queries:  # in this order: what the first still writes is the second's input
            query.processAllAvailable()
        self._tell(queries)
        for query in queries:
            query.stop()

    def run_available(self) -> None:
        """Processes the messages stored at the start; the second query begins when the first has ended."""
        for writer in (self.statistics(), self.parquet()):
            query = self._start(writer.trigger(availableNow=True))
            while query.isActive:
                time.sleep(POLL_S)
                self._tell([query])
            self._tell([query])  # ▲ it may have failed since: the next query would read what is not all there

    def statistics(self) -> DataStreamWriter:
        airlines, planes = self._table(self._args.airlines), self._table(self._args.planes)
        flights = flights_of(self._topic(self._args.flights, "value"))
        found = joined(flights, airlines, planes).mapInArrow(increments, STATISTIC)
        writer = as_messages(found).writeStream.format("txnstore").queryName("statistics")
        return self._common(writer, STATISTICS_CHECKPOINT).option("topic", self._args.statistics)

    def parquet(self) -> DataStreamWriter:
        found = statistics_of(self._topic(self._args.statistics, "value,txn_id"))
        writer = found.writeStream.format("parquet").queryName("parquet").option("path", self._args.parquet)
        return writer.option("checkpointLocation", str(Path(self._args.checkpoint) / PARQUET_CHECKPOINT))

    def _common(self, writer: DataStreamWriter, checkpoint: str) -> DataStreamWriter:
        place = str(Path(self._args.checkpoint) / checkpoint)
        return writer.options(**service_options(self._args)).option("checkpointLocation", place)

    def _topic(self, topic: str, columns: str) -> DataFrame:
        reader = self._spark.readStream.format("txnstore").options(**service_options(self._args))
        if self._args.max_bytes is not None:
            reader = reader.option("maxBytesPerTrigger", self._args.max_bytes)
        return reader.option("topic", topic).option("columns", columns).load()

    def _table(self, path: str) -> DataFrame:
        return self._spark.read.csv(path, header=True, nullValue="NA")

    def _start(self, writer: DataStreamWriter) -> StreamingQuery:
        if not self._args.available_now:
            writer = writer.trigger(processingTime=f"{round(self._args.every_s * 1000)} milliseconds")
        return writer.start()

    def _tell(self, queries: Sequence[StreamingQuery]) -> None:
        """Prints a line for each new micro-batch. Raises the error of a failed query."""
        for query in queries:
            failure = query.exception()
            if failure is not None:
                raise failure
            for one in query.recentProgress:
                batch, rows = one["batchId"], one["numInputRows"]
                if batch > self._told.get(query.name, -1) and rows > 0:
                    self._told[query.name] = batch
                    took = f"{one['durationMs'].get('triggerExecution', 0) / 1000:.1f} s"
                    self._progress.say(f"{query.name}: micro-batch {batch} of {rows:,} messages took {took}")


def run_flights(args: argparse.Namespace) -> int:
    stopping = threading.Event()
    if threading.current_thread() is threading.main_thread():
        # Set before Spark starts: a SIGTERM meanwhile ends the job once Spark has started, and leaves nothing behind.
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with spark_session("flights", args.master) as spark:
        pipeline = FlightsQueries(spark, args)
        if args.available_now:
            pipeline.run_available()
        else:
            pipeline.run(stopping)
    return CLEAN


def _topic_name(text: str) -> str:
    return str(TopicName.parse(text))


def parser() -> argparse.ArgumentParser:
    made = job_parser("flights", __doc__)
    add_service(made)
    topic = argument(_topic_name)
    made.add_argument("--flights", metavar="TOPIC", required=True, type=topic, help="read: one flight a message, JSON")
    made.add_argument("--statistics", metavar="TOPIC", required=True, type=topic, help="output: the rows of each batch")
    made.add_argument("--parquet", metavar="FOLDER", required=True, help="written: the same as Parquet")
    made.add_argument("--checkpoint", metavar="FOLDER", required=True, help="it continues from here after a restart")
    made.add_argument("--airlines", metavar="CSV", required=True, help="columns carrier and name")
    made.add_argument("--planes", metavar="CSV", required=True, help="columns tailnum and seats")
    made.add_argument("--available-now", action="store_true", help="process the stored messages, then end")
    made.add_argument(
        "--every", dest="every_s", metavar="SECONDS", type=argument(seconds), default=1.0,
        help="look for new input, and begin a micro-batch, so often at most (default: 1)",
    )  # fmt: skip
    made.add_argument("--max-bytes", metavar="BYTES", help="of a micro-batch's input, such as 8m; whole transactions")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    return run_job(parser(), run_flights, argv)


if __name__ == "__main__":
    sys.exit(main())
