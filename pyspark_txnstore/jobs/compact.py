"""Compacts the sealed, fully decided segments of keyed topics to the newest committed value of each key.

    spark-submit compact.py --service txn://… --topics topic://public/default/prices --output /mnt/compacted

Each run adds a generation to the folder: the previous one merged with the segments sealed since. A read with
option("compacted", "true") and option("compactedPath", "/mnt/compacted") gets the newest generation that its snapshot
holds completely, and all other segments from their ledgers: the newest value of each key, and maybe some older ones.

An empty value deletes its key. Messages without a key all stay. Entries of open transactions are not touched. Ledgers
keep their own retention, and compacted rows outlive it: so run this job more often than retention takes ledgers. The
job refuses to go on if retention took a segment that was not compacted yet, because that may have held a key's newest
value.

Exit codes: 0 done, or nothing to do; 2 it could not be done.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from pyspark_txnstore.jobs.command_line import (
    CLEAN,
    JobFailed,
    Progress,
    add_service,
    add_topics,
    argument,
    count,
    exact_times,
    job_parser,
    run_job,
    service_options,
    snapshot_now,
    spark_session,
)
from pyspark_txnstore.newest import newest_per_key
from pyspark_txnstore.shared.versioned_folder import folder_of
from pyspark_txnstore.source.columns import SCHEMA
from pyspark_txnstore.source.compacted import CompactionStep, Manifest, gap_after, next_step
from pyspark_txnstore.source.compacted_files import Generations, data_files
from txnwire.protocol import MIB
from txnwire.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEPT_GENERATIONS: Final = 2
"""Generations kept: a running read may have been planned with the previous one."""


def compact(args: argparse.Namespace) -> int:
    progress = Progress()
    snapshot = snapshot_now(args)
    session: SparkSession | None = None
    with ExitStack() as stack:
        for topic in snapshot.topics:
            generations = Generations(args.output, topic)
            with generations.locked():
                step = _next(args, generations, snapshot)
                if step is None:
                    print(f"{topic}: nothing to do, no segment was sealed and decided since", flush=True)
                    continue
                progress.say(f"{topic}: generation {step.manifest.generation}, {len(step.new)} new segments")
                session = session or stack.enter_context(_session(args))
                manifest = _make(session, args, generations, step)
                removed = generations.forget(keep=args.keep)
            print(f"{topic}: {_account(manifest, removed)}", flush=True)
    return CLEAN


def _next(args: argparse.Namespace, generations: Generations, snapshot: Snapshot) -> CompactionStep | None:
    newest = next(iter(generations.numbers()), 0)
    previous = None if args.afresh or not newest else generations.manifest(newest)
    return next_step(snapshot, generations.topic, previous, generation=newest + 1, accept_gaps=args.accept_gaps)


def _make(session: SparkSession, args: argparse.Namespace, generations: Generations, step: CompactionStep) -> Manifest:
    """Makes and publishes the next generation."""
    rows = _new_rows(session, args, generations.topic, step)
    if step.previous is not None and step.previous.files:
        rows = session.read.schema(SCHEMA).parquet(*generations.paths(step.previous)).unionByName(rows)
    made = generations.making()
    try:
        newest_per_key(rows).write.parquet(str(made))
    except PySparkException as error:
        if step.previous is not None and "DataTrimmed" in str(error):
            raise JobFailed(gap_after(step.previous, "found while reading it")) from error
        raise
    manifest = step.published(data_files(made))
    generations.add(made, manifest)
    return manifest


def _new_rows(session: SparkSession, args: argparse.Namespace, topic: str, step: CompactionStep) -> DataFrame:
    reader = (
        session.read.format("txnstore")
        .options(**service_options(args))
        .option("topic", topic)
        .option("snapshot", step.end.to_json())
    )
    if step.start is not None:
        reader = reader.option("startingOffsets", step.start.to_json())
    return reader.load()


@contextmanager
def _session(args: argparse.Namespace) -> Iterator[SparkSession]:
    with spark_session("compact", args.master) as session, exact_times(session):
        yield session


def _account(manifest: Manifest, removed: Sequence[int]) -> str:
    size_mib = sum(file.size_bytes for file in manifest.files) / MIB
    text = (
        f"generation {manifest.generation} of {len(manifest.compacted)} segments: {manifest.rows} rows, "
        f"{size_mib:.1f} MiB in {len(manifest.files)} files"
    )
    return f"{text}; removed {', '.join(map(str, removed))}" if removed else text


def parser() -> argparse.ArgumentParser:
    made = job_parser("compact", __doc__)
    add_service(made)
    add_topics(made)
    made.add_argument(
        "--output", metavar="FOLDER", required=True, type=argument(folder_of),
        help="folder of the generations; the driver, all executors and all readers must see it",
    )  # fmt: skip
    made.add_argument(
        "--keep", metavar="N", type=argument(count), default=KEPT_GENERATIONS,
        help=f"generations kept, for reads of older snapshots or under way (default: {KEPT_GENERATIONS})",
    )  # fmt: skip
    gaps = made.add_mutually_exclusive_group()
    gaps.add_argument(
        "--accept-gaps", action="store_true",
        help="go on where retention took what was not compacted yet: keys may keep values that had newer ones",
    )  # fmt: skip
    gaps.add_argument(
        "--afresh",
        action="store_true",
        help="begin again with the messages that the ledgers keep, without the earlier generation",
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    return run_job(parser(), compact, argv)


if __name__ == "__main__":
    sys.exit(main())
