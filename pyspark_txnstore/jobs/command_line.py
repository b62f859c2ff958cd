"""What all jobs share: their arguments, the Spark session they run in, and how they end.

    def main(argv: Sequence[str] | None = None) -> int:
        parser = job_parser("audit", __doc__)
        add_service(parser)
        add_topics(parser)
        return run_job(parser, audit, argv)

    if __name__ == "__main__":
        sys.exit(main())

What a job finds goes to standard output, how far it is to standard error. It ends with 0, with 1 where it found what it
looks for, with 2 where it could not do its work: so a failure is never taken for an answer.
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
from txnclient.connection.address import parse_url
from txnclient.reading.snapshot import Snapshot
from txnwire.errors import InvalidArgument, TxnError
from txnwire.names import TopicName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLEAN: Final = 0
FINDINGS: Final = 1
UNDECIDED: Final = 2

Job = Callable[[argparse.Namespace], int]
V = TypeVar("V")


class JobFailed(Exception):
    """The job could not do its work, and the message says why and what to do: it ends with `UNDECIDED`."""


# ---- arguments ------------------------------------------------------------------------------------------------------


def job_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """`description`: the job's docstring, shown as it is. Made without Spark, so that `--help` answers at once."""
    parser = argparse.ArgumentParser(
        prog=f"{name}.py", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--master", metavar="URL", help="where Spark runs; default: what spark-submit was told, else local[*]"
    )
    return parser


def add_service(parser: argparse.ArgumentParser) -> None:
    """`args.service`, `args.timeout_s`."""
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
    """The same, as options of the source and of the sink."""
    return {"service.url": args.service, "service.timeoutMs": str(round(args.timeout_s * 1000))}


def add_topics(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """Exactly one of `--topics` and `--topics-pattern`, and of what else is added to the group that is returned;
    `snapshot_now(args)` is a snapshot of them."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--topics", metavar="TOPIC,…", type=argument(_topics), help="topic://tenant/namespace/name, several by commas"
    )
    which.add_argument(
        "--topics-pattern", metavar="REGEX", type=argument(re.compile), help="all topics whose full name it matches"
    )
    return which


def topics_of(args: argparse.Namespace, client: txnclient.sync.Client) -> list[str]:
    """The topics that were asked for, sorted. Raises `JobFailed` where the pattern matches none."""
    if args.topics is not None:
        return sorted(args.topics)
    found = sorted(topic for topic in client.list_topics() if args.topics_pattern.fullmatch(topic))
    if not found:
        raise JobFailed(f"no topic's name is matched by {args.topics_pattern.pattern!r}")
    return found


def snapshot_now(args: argparse.Namespace) -> Snapshot:
    """One of the topics that were asked for, taken now. Raises `JobFailed`, and what a client does."""
    client = client_of(args.service, timeout_s=args.timeout_s)
    return client.snapshot(topics_of(args, client))


def add_cut(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """`add_topics`, or a snapshot that was kept; `cut_of(args)` is either."""
    which = add_topics(parser)
    which.add_argument(
        "--snapshot", metavar="FILE", type=argument(snapshot_of_file), help="all topics of this snapshot, as of it"
    )
    return which


def cut_of(args: argparse.Namespace) -> Snapshot:
    """Up to where the job reads. Raises as `snapshot_now`."""
    kept: Snapshot | None = args.snapshot
    return snapshot_now(args) if kept is None else kept


def argument(parse: Callable[[str], V]) -> Callable[[str], V]:
    """`parse`, as argparse wants it: what it raises becomes the message of the argument."""

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
    """A snapshot kept as `Snapshot.to_json()`. Raises `InvalidArgument` naming the file."""
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
    """The session there is, or one made here and stopped at the end; `format("txnstore")` works in it, also where the
    package came with --py-files and Spark does not find it by itself."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    from pyspark_txnstore import DefaultSource

    try:
        running = SparkSession.active()  # of any thread
    except PySparkRuntimeError:
        pass
    else:
        running.dataSource.register(DefaultSource)
        yield running
        return
    builder = SparkSession.builder.appName(name)
    if master is not None or "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit has set its own already
        builder = builder.master(master or "local[*]")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        # Workers are to be of the Python that has this package; what Spark takes otherwise is the first on PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.config("spark.ui.enabled", "false").config("spark.sql.session.timeZone", "UTC")
    made = builder.getOrCreate()
    try:
        made.dataSource.register(DefaultSource)
        yield made
    finally:
        made.stop()


def exact_times(session: SparkSession) -> AbstractContextManager[None]:
    """Times in Parquet as they are in the source: Spark's older kind ends in the year 2262."""
    return _configured(session, "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


def caches_by_size(session: SparkSession) -> AbstractContextManager[None]:
    """What is persisted has as many partitions as there is to hold. Without this it always has
    `spark.sql.shuffle.partitions`, which is 200: a task for each, however little there is."""
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
    """Parse, run, and turn how it ended into an exit code; what went wrong is told in words."""
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
        # Python itself would end with 1, which says that something was found.
        if not _of_spark(error):
            logging.exception("%s: a fault of its own", parser.prog)
        print(f"{parser.prog}: {_spark_words(error)}", file=sys.stderr, flush=True)
        return UNDECIDED


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, JobFailed) else f"{type(error).__name__}: {error}"


def _of_spark(error: Exception) -> bool:
    """Without importing pyspark where it was not needed so far."""
    return type(error).__module__.startswith(("pyspark.", "py4j."))


_TXN_ERROR: Final = re.compile(r"^(?:txnwire\.errors\.|pyspark_txnstore\.\S*\.)(\w+: .+)$", re.MULTILINE)


def _spark_words(error: Exception) -> str:
    """What a task raised, out of Spark's account of it; else its first line."""
    text = str(error)
    found = _TXN_ERROR.findall(text)
    return str(found[-1]) if found else next((line for line in text.splitlines() if line.strip()), type(error).__name__)


class Progress:
    """Lines on standard error, each with the seconds since the job began."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began_s:7.1f} s  {text}", file=sys.stderr, flush=True)
