"""Shared by all jobs: arguments, Spark session and exit codes.

    def main(argv: Sequence[str] | None = None) -> int:
        parser = job_parser("audit", __doc__)
        add_service(parser)
        add_topics(parser)
        return run_job(parser, audit, argv)

    if __name__ == "__main__":
        sys.exit(main())

A job writes findings to standard output and progress to standard error. It exits with 0, with 1 if it found what it
looks for, or with 2 if it could not do its work: so a failure is never taken for an answer.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import txnclient.sync
from pyspark_txnstore.shared.process_client import DEFAULT_TIMEOUT_S, client_of
from pyspark_txnstore.source.cuts import ATTEMPTS
from txnclient.connection.address import parse_url
from txnclient.reading.snapshot import Snapshot
from txnwire.errors import InvalidArgument, Timeout, TopicNotFound, TxnError
from txnwire.names import TopicName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLEAN: Final = 0
FINDINGS: Final = 1
UNDECIDED: Final = 2

Job = Callable[[argparse.Namespace], int]
V = TypeVar("V")


class JobFailed(Exception):
    """The job could not do its work and ends with `UNDECIDED`. The message says why and what to do."""


# ---- arguments ------------------------------------------------------------------------------------------------------


def job_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """`description`: the job's docstring, shown unchanged. Needs no Spark, so that `--help` answers at once."""
    parser = argparse.ArgumentParser(
        prog=f"{name}.py", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--master", metavar="URL", help="where Spark runs; default: the master of spark-submit, else local[*]"
    )
    return parser


def add_service(parser: argparse.ArgumentParser) -> None:
    """Adds `args.service` and `args.timeout_s`."""
    parser.add_argument(
        "--service",
        metavar="URL",
        required=True,
        type=argument(_url),
        help="txn://host:port[,host:port…] of the cluster",
    )
    parser.add_argument(
        "--timeout", dest="timeout_s", metavar="SECONDS", type=argument(seconds), default=DEFAULT_TIMEOUT_S,
        help=f"how long any one request to the cluster may take (default: {DEFAULT_TIMEOUT_S:g})",
    )  # fmt: skip


def service_options(args: argparse.Namespace) -> dict[str, str]:
    """Returns them as options of the source and of the sink."""
    return {"service.url": args.service, "service.timeoutMs": str(round(args.timeout_s * 1000))}


def add_topics(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """Adds `--topics` and `--topics-pattern` to the returned group, of which exactly one must be given.
    `snapshot_now(args)` takes a snapshot of these topics."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--topics", metavar="TOPIC,…", type=argument(_topics), help="topic://tenant/namespace/name, several by commas"
    )
    which.add_argument(
        "--topics-pattern", metavar="REGEX", type=argument(re.compile), help="all topics whose full name it matches"
    )
    return which


def topics_of(args: argparse.Namespace, client: txnclient.sync.Client) -> list[str]:
    """Returns the requested topics, sorted. Raises `JobFailed` if the pattern matches none."""
    if args.topics is not None:
        return sorted(args.topics)
    found = sorted(topic for topic in client.list_topics() if args.topics_pattern.fullmatch(topic))
    if not found:
        raise JobFailed(f"no topic's name is matched by {args.topics_pattern.pattern!r}")
    return found


def snapshot_now(args: argparse.Namespace) -> Snapshot:
    """Takes a snapshot of the requested topics. Raises `JobFailed`, and any error of a client.

    ▲ Lists the topics of a pattern again afterwards: one that was created in between may hold a part of a transaction
    of which the snapshot has another part."""
    client = client_of(args.service, timeout_s=args.timeout_s)
    topics = topics_of(args, client)
    for _ in range(ATTEMPTS):
        try:
            cut = client.snapshot(topics)
        except TopicNotFound:
            if args.topics is not None:
                raise
            cut = None
        if (now := topics_of(args, client)) == topics and cut is not None:
            return cut
        topics = now
    raise Timeout(f"topics came and went in each of {ATTEMPTS} attempts to take a snapshot of them: try again")


def add_cut(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """Adds `add_topics`, or a kept snapshot instead; `cut_of(args)` returns either."""
    which = add_topics(parser)
    which.add_argument(
        "--snapshot", metavar="FILE", type=argument(snapshot_of_file), help="all topics of this snapshot, as of it"
    )
    return which


def cut_of(args: argparse.Namespace) -> Snapshot:
    """The cut up to which the job reads. Raises as `snapshot_now`."""
    kept: Snapshot | None = args.snapshot
    return snapshot_now(args) if kept is None else kept


def argument(parse: Callable[[str], V]) -> Callable[[str], V]:
    """Wraps `parse` for argparse: its error becomes the argument's message."""

    def parsed(text: str) -> V:
        try:
            return parse(text)
        except (ValueError, re.error, OSError) as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise InvalidArgument(f"{text!r} is not a positive number of seconds")
    return value


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise InvalidArgument(f"{text!r} is not a positive whole number")
    return value


def snapshot_of_file(path: str) -> Snapshot:
    """Reads a snapshot kept as `Snapshot.to_json()`. Raises `InvalidArgument` naming the file."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        return Snapshot.from_json(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from error


def _url(text: str) -> str:
    parse_url(text)
    return text


def _topics(text: str) -> list[str]:
    return list(dict.fromkeys(str(TopicName.parse(name.strip())) for name in text.split(",")))


# ---- the session ----------------------------------------------------------------------------------------------------


@contextmanager
def spark_session(name: str, master: str | None = None) -> Iterator[SparkSession]:
    """Yields the current session, or a new one that is stopped at the end. `format("txnstore")` works in it even if the
    package came with --py-files and Spark did not find it."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    from pyspark_txnstore import DefaultSource

    try:
        running = SparkSession.active()  # a session of any thread
    except PySparkRuntimeError:
        pass
    else:
        running.dataSource.register(DefaultSource)
        yield running
        return
    builder = SparkSession.builder.appName(name)
    if master is not None or "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit has set the master already
        builder = builder.master(master or "local[*]")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        # Workers must run the Python that has this package; by default Spark takes the first one on PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.config("spark.ui.enabled", "false").config("spark.sql.session.timeZone", "UTC")
    made = builder.getOrCreate()
    try:
        made.dataSource.register(DefaultSource)
        yield made
    finally:
        made.stop()


def exact_times(session: SparkSession) -> AbstractContextManager[None]:
    """Keeps times in Parquet as in the source: Spark's older kind ends in the year 2262."""
    return _configured(session, "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


def caches_by_size(session: SparkSession) -> AbstractContextManager[None]:
    """Gives a persisted DataFrame as many partitions as its size needs. Otherwise it always has
    `spark.sql.shuffle.partitions`, 200: one task each, however little data there is."""
    return _configured(session, "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning", "true")


@contextmanager
def _configured(session: SparkSession, name: str, value: str) -> Iterator[None]:
    before = session.conf.get(name)
    session.conf.set(name, value)
    try:
        yield
    finally:
        if before is not None:
            session.conf.set(name, before)


# ---- running --------------------------------------------------------------------------------------------------------


def run_job(parser: argparse.ArgumentParser, job: Job, argv: Sequence[str] | None = None) -> int:
    """Parses, runs the job, and returns the exit code; errors are printed in words."""
    args = parser.parse_args(argv)
    try:
        return job(args)
    except (JobFailed, TxnError, OSError) as error:
        print(f"{parser.prog}: {_words(error)}", file=sys.stderr, flush=True)
        return UNDECIDED
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr, flush=True)
        return UNDECIDED
    except Exception as error:
        # Python itself would exit with 1, which means that something was found.
        if not _of_spark(error):
            logging.exception("%s: a fault of its own", parser.prog)
        print(f"{parser.prog}: {_spark_words(error)}", file=sys.stderr, flush=True)
        return UNDECIDED


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, JobFailed) else f"{type(error).__name__}: {error}"


def _of_spark(error: Exception) -> bool:
    """Checks without importing pyspark if nothing has imported it so far."""
    return type(error).__module__.startswith(("pyspark.", "py4j."))


_TXN_ERROR: Final = re.compile(r"^(?:txnclient\.|txnwire\.errors\.|pyspark_txnstore\.\S*\.)(\w+: .+)$", re.MULTILINE)


def _spark_words(error: Exception) -> str:
    """Extracts the error of a task from Spark's message; else the first line."""
    text = str(error)
    found = _TXN_ERROR.findall(text)
    return str(found[-1]) if found else next((line for line in text.splitlines() if line.strip()), type(error).__name__)


class Progress:
    """Prints lines on standard error, each with the seconds since the job began."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began_s:7.1f} s  {text}", file=sys.stderr, flush=True)
