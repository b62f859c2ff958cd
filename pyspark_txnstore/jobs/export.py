"""Exports topics to Parquet, as they were at a snapshot; the next run adds the messages committed since.

    spark-submit export.py --service txn://… --topics topic://public/nyc/flights --output /data/flights
    spark-submit export.py --service txn://… --snapshot cut.json --output /data/as-of

At any moment the folder holds exactly what was committed at one snapshot, over all topics: each transaction whole or
not at all, each message once. A run killed at any point leaves the folder as before or complete; the next run goes on
from there. Read it with spark.read.parquet("/data/flights"): the columns are those of the source, and `increment`,
which counts the runs that had something to add.

If retention has taken messages that were not exported yet, the job refuses to go on unless --allow-data-loss is given:
run it more often than retention takes ledgers.

Exit codes: 0 done, or nothing new; 2 it could not be done.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark_txnstore.jobs.command_line import (
    CLEAN,
    JobFailed,
    Progress,
    add_cut,
    add_service,
    argument,
    count,
    cut_of,
    exact_times,
    job_parser,
    run_job,
    service_options,
    spark_session,
)
from pyspark_txnstore.jobs.export_folder import ExportFolder, Increment
from pyspark_txnstore.shared.offsets import adds
from pyspark_txnstore.shared.options import SourceOptions
from pyspark_txnstore.source.cuts import Cuts
from txnclient.reading.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def export(args: argparse.Namespace) -> int:
    progress = Progress()
    folder: ExportFolder = args.output
    with folder.locked():
        last = folder.last()
        cut = _cut(args, last)
        if last is not None and not adds(last.cut, cut):
            print(f"{folder.path}: nothing new since increment {last.number}, revision {last.cut.revision}", flush=True)
            return CLEAN
        number = 1 if last is None else last.number + 1
        since = "from the earliest kept on" if last is None else f"since revision {last.cut.revision}"
        progress.say(f"increment {number}: {', '.join(sorted(cut.topics))} up to revision {cut.revision}, {since}")
        made = folder.making()
        with spark_session("export", args.master) as session, exact_times(session):
            rows = _rows(session, args, None if last is None else last.cut, cut)
            rows.write.option("compression", args.compression).parquet(str(made))
        progress.say("written")
        done = folder.add(made, number, cut)
    print(f"{folder.path}: {done.rows:,} rows in increment {number}, revision {cut.revision}", flush=True)
    return CLEAN


def _cut(args: argparse.Namespace, last: Increment | None) -> Snapshot:
    """Returns where this run ends. Raises `JobFailed` if it cannot follow the last run."""
    cut = cut_of(args)
    if last is None:
        return cut
    if left_out := [topic for topic in sorted(last.cut.topics) if topic not in cut.topics]:
        # ▲ The next cut would lose this topic's place; were the topic added again, it would be exported once more.
        raise JobFailed(f"{left_out[0]} was exported to {args.output.path} so far: name it too, or use another folder")
    if not args.allow_data_loss and (obstacle := _obstacle(args, last.cut, cut)) is not None:
        raise JobFailed(f"{args.output.path} cannot be continued, use another folder: {obstacle}")
    return cut


def _obstacle(args: argparse.Namespace, start: Snapshot, end: Snapshot) -> str | None:
    """Why the export does not continue from `start` to `end`, or None. ▲ As the source, which reads on where a segment
    that is gone only held what has aborted since."""
    obstacle = start.obstacle(end)
    if obstacle is None:
        return None
    settled = Cuts(SourceOptions.parse(_options(args, None, end), use="read")).settled(start, end)
    return obstacle if settled is None else settled[0].obstacle(settled[1])


def _options(args: argparse.Namespace, start: Snapshot | None, end: Snapshot) -> dict[str, str]:
    """Options of the source for a read from `start` to `end`."""
    options = {
        **service_options(args),
        "topics": ",".join(sorted(end.topics)),
        "snapshot": end.to_json(),
        "failOnDataLoss": str(not args.allow_data_loss).lower(),
    }
    if start is not None:
        options["startingOffsets"] = start.to_json()
    if args.partitions is not None:
        options["minPartitions"] = str(args.partitions)
    return options


def _rows(session: SparkSession, args: argparse.Namespace, start: Snapshot | None, end: Snapshot) -> DataFrame:
    rows = session.read.format("txnstore").options(**_options(args, start, end)).load()
    return rows if args.files is None else rows.coalesce(args.files)


def main(argv: Sequence[str] | None = None) -> int:
    parser = job_parser("export", __doc__)
    add_service(parser)
    add_cut(parser)
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        required=True,
        type=argument(ExportFolder),
        help="of a disk that all executors see",
    )
    parser.add_argument("--partitions", metavar="N", type=argument(count), help="read by so many tasks at least")
    parser.add_argument("--files", metavar="N", type=argument(count), help="write so many files at most")
    parser.add_argument(
        "--compression", choices=("zstd", "snappy", "lz4", "gzip", "none"), default="zstd", help="default: zstd"
    )
    parser.add_argument("--allow-data-loss", action="store_true", help="skip messages that retention has deleted")
    return run_job(parser, export, argv)


if __name__ == "__main__":
    sys.exit(main())
