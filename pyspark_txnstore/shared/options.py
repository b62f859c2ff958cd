"""The options of the source and of the sink: one table, and their parsed forms.

Spark passes strings under names in lower case. Values are checked here, so that a slip is an error with the option's
name before anything is read or written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

from pyspark_txnstore.shared import condition
from pyspark_txnstore.shared.boundaries import (
    Boundary,
    ByTime,
    is_by_position,
    parse_positions,
    parse_time,
    parse_times,
)
from pyspark_txnstore.shared.condition import Condition
from pyspark_txnstore.shared.kafka_options import hint_of
from pyspark_txnstore.shared.offset_codec import Isolation, check_isolation, decode_offset
from pyspark_txnstore.shared.process_client import DEFAULT_TIMEOUT_S
from pyspark_txnstore.shared.versioned_folder import folder_of
from txnclient.connection.address import parse_url
from txnclient.reading.snapshot import Snapshot
from txnwire.errors import InvalidArgument
from txnwire.names import TopicName

V = TypeVar("V")

Start = Snapshot | Boundary | Literal["latest"] | None
End = Snapshot | Boundary | None

Use = Literal["read", "stream read", "write", "stream write"]

READS: Final[tuple[Use, ...]] = ("read", "stream read")
WRITES: Final[tuple[Use, ...]] = ("write", "stream write")


DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 900_000
DEFAULT_PLANNING_RETRY_MS: Final = 120_000
DEFAULT_TRIGGER_DELAY_MS: Final = 900_000


class Option(NamedTuple):
    """`uses`: where it may be given. `default`: as shown to users; empty if there is none."""

    name: str
    kind: str
    default: str
    uses: tuple[Use, ...]
    meaning: str


OPTIONS: Final = (
    Option("service.url", "URL", "", READS + WRITES, "`txn://host:port[,host:port…]`; required"),
    Option(
        "service.timeoutMs", "milliseconds", str(round(DEFAULT_TIMEOUT_S * 1000)), READS + WRITES,
        "how long any one request may take",
    ),
    Option(
        "topic", "topic", "", READS + WRITES,
        "`topic://tenant/namespace/name`; of a sink: the topic of rows that name none",
    ),
    Option("topics", "topics, by commas", "", READS, "several of them, in one order of transactions"),
    Option("topicsPattern", "regular expression", "", READS, "all topics whose full name it matches, new ones too"),
    Option(
        "startingOffsets", "`earliest`, `latest` or JSON", "earliest", READS,
        "where a query without a checkpoint begins: a snapshot, an offset of another query, or positions by segment; "
        "latest: streams only",
    ),
    Option("endingOffsets", "`latest` or JSON", "latest", ("read",), "where a batch read ends, as startingOffsets"),
    Option(
        "startingTimestamp", "milliseconds or ISO 8601", "", READS,
        "instead of startingOffsets: messages published at this time or later",
    ),
    Option("endingTimestamp", "milliseconds or ISO 8601", "", ("read",), "messages published before this time"),
    Option("startingOffsetsByTimestamp", "JSON", "", READS, "as startingTimestamp, a time for each topic"),
    Option("endingOffsetsByTimestamp", "JSON", "", ("read",), "as endingTimestamp, a time for each topic"),
    Option("snapshot", "JSON", "", ("read",), "messages committed at this snapshot: `Snapshot.to_json()`"),
    Option(
        "isolationLevel", "`read_committed` or `read_uncommitted`", "read_committed", READS,
        "uncommitted: all stored messages, also of open and aborted transactions",
    ),
    Option(
        "maxBytesPerTrigger", "bytes, or with k, m, g", "", ("stream read",),
        "stored bytes in a micro-batch; transactions stay whole",
    ),
    Option(
        "maxEntriesPerTrigger", "number", "", ("stream read",),
        "stored entries (batches of producers) in a micro-batch; all limits apply",
    ),
    Option(
        "minEntriesPerTrigger", "number", "", ("stream read",),
        "a micro-batch waits for this number of stored entries, up to maxTriggerDelayMs; `availableNow` does not",
    ),
    Option(
        "maxTriggerDelayMs", "milliseconds", str(DEFAULT_TRIGGER_DELAY_MS), ("stream read",),
        "how long after the batch before it a batch waits for minEntriesPerTrigger",
    ),
    Option(
        "planningRetryMs", "milliseconds", str(DEFAULT_PLANNING_RETRY_MS), READS,
        "how long a query repeats a request that the cluster does not answer, until it fails",
    ),
    Option(
        "maxRowsPerTrigger", "number", "", ("stream read",),
        "rows in a micro-batch; entries and transactions stay whole",
    ),
    Option(
        "minPartitions", "number", "", READS,
        "several tasks read a large segment, so that there are at least this many",
    ),
    Option(
        "failOnDataLoss", "true or false", "true", READS,
        "false: the query skips messages that retention or a deletion has removed",
    ),
    Option(
        "columns", "names, by commas", "", (*READS, "write"),
        "only these columns; fewer are faster. A view in SQL that you write to: the columns that it accepts",
    ),
    Option(
        "where", "condition", "", READS,
        "only these rows, on `topic`, `segment`, `key`, `publish_time`, `txn_id`; the rest is not read",
    ),
    Option(
        "compacted", "true or false", "false", ("read",),
        "keyed topics: read compacted segments as their newest values",
    ),
    Option("compactedPath", "folder", "", ("read",), "the output folder of the job compact; needed with `compacted`"),
    Option("sinkName", "text", "", WRITES, "part of the names of the sink's transactions; default: `spark`"),
    Option(
        "transactionTimeoutMs", "milliseconds", str(DEFAULT_TRANSACTION_TIMEOUT_MS), WRITES,
        "how long the transaction of a batch may take before it is aborted",
    ),
    Option(
        "allowDifferentReplay", "true or false", "false", WRITES,
        "true: the sink leaves out a committed batch or `writeId` even if it would now write other rows",
    ),
    Option(
        "writeId", "text", "", ("write",),
        "makes a batch write repeatable: all writes with this id are one transaction",
    ),
)  # fmt: skip

_BY_NAME: Final = {option.name.lower(): option for option in OPTIONS}

_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "path"})
"""Options of Spark's own that Spark passes along; `path` is handled below."""

ASYNC_PROGRESS: Final = "asyncprogresstrackingenabled"

_OF_ANY_SINK: Final = frozenset(
    {
        "maxrecordsperfile", "compression", "encoding", "timezone", "dateformat", "timestampformat",
        ASYNC_PROGRESS, "asyncprogresstrackingcheckpointintervalms",
    }
)  # fmt: skip
"""Options that jobs give to any sink, and that say how Spark runs a query: none concerns topics. Others are refused,
because a misspelt option of ours would otherwise be ignored."""

_SIZE: Final = re.compile(r"([1-9][0-9]{0,17})([kmg]?)b?\Z")
_FACTORS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True)
class SourceOptions:
    """`topics` or `pattern`. `start`: None for the earliest. `end`: None for the latest."""

    url: str
    timeout_s: float
    topics: tuple[str, ...]
    pattern: re.Pattern[str] | None
    start: Start
    end: End
    uncommitted: bool
    max_bytes: int | None
    max_entries: int | None
    max_rows: int | None
    min_entries: int | None
    max_delay_s: float
    """Delay behind the previous batch for a batch that waits for `min_entries`."""
    min_partitions: int | None
    fail_on_data_loss: bool
    planning_retry_s: float
    compacted: Path | None
    """Where usable generations lie; None: everything is read from the ledgers."""
    where: Condition
    """Filters rows; it changes neither what is committed nor what a stream's batch holds."""

    @property
    def isolation(self) -> Isolation:
        return isolation_of(uncommitted=self.uncommitted)

    @staticmethod
    def parse(options: Mapping[str, str], *, use: Use) -> SourceOptions:
        """Raises `InvalidArgument` naming the option, its value and what was expected."""
        given = _Given(options, use)
        topics, pattern = _which_topics(given)
        uncommitted = given.take("isolationLevel", _uncommitted) or False
        if uncommitted and given.is_set("snapshot"):
            raise InvalidArgument(
                "option 'snapshot': a snapshot has only committed messages: leave isolationLevel at read_committed"
            )
        isolation = isolation_of(uncommitted=uncommitted)
        end = _ending(given, isolation)
        start = _start(given, isolation)
        _check_order(start, end)
        if start == "latest" and use == "read":
            raise InvalidArgument("option 'startingOffsets': a batch read that begins at 'latest' has nothing to read")
        lossless = given.take("failOnDataLoss", _flag)
        where = given.take("where", condition.parse) or condition.EVERYTHING
        compacted = _compacted(given, uncommitted=uncommitted)
        if compacted is not None and where != condition.EVERYTHING and not where.asks_keys_alone:
            # ▲ If the newest row of a key were filtered out first, an older one would stand for it.
            raise InvalidArgument(
                "option 'where': a compacted read takes only a condition on key; filter others after newest_per_key"
            )
        max_entries = given.take("maxEntriesPerTrigger", _count)
        min_entries = _at_least(given, max_entries)
        return SourceOptions(
            url=given.url(),
            timeout_s=given.timeout_s(),
            topics=topics,
            pattern=pattern,
            start=start,
            end=end,
            uncommitted=uncommitted,
            max_bytes=given.take("maxBytesPerTrigger", _size),
            max_entries=max_entries,
            max_rows=given.take("maxRowsPerTrigger", _count),
            min_entries=min_entries,
            max_delay_s=(given.take("maxTriggerDelayMs", _count) or DEFAULT_TRIGGER_DELAY_MS) / 1000,
            min_partitions=given.take("minPartitions", _count),
            fail_on_data_loss=lossless is None or lossless,
            planning_retry_s=(given.take("planningRetryMs", _count) or DEFAULT_PLANNING_RETRY_MS) / 1000,
            compacted=compacted,
            where=where,
        )


def isolation_of(*, uncommitted: bool) -> Isolation:
    return "read_uncommitted" if uncommitted else "read_committed"


def columns_option(options: Mapping[str, str]) -> tuple[str, ...] | None:
    """The option `columns`, which decides the schema; None for all."""
    return _Given(options, None).take("columns", lambda text: _names(text) if text else ())


@dataclass(frozen=True)
class SinkOptions:
    url: str
    timeout_s: float
    topic: str | None
    sink_name: str | None
    transaction_timeout_ms: int
    write_id: str | None
    allow_different_replay: bool = False

    @staticmethod
    def parse(options: Mapping[str, str], *, use: Use) -> SinkOptions:
        """Raises `InvalidArgument` naming the option, its value and what was expected."""
        given = _Given(options, use)
        return SinkOptions(
            url=given.url(),
            timeout_s=given.timeout_s(),
            topic=given.take("topic", _topic),
            sink_name=given.take("sinkName", _text),
            transaction_timeout_ms=given.take("transactionTimeoutMs", _count) or DEFAULT_TRANSACTION_TIMEOUT_MS,
            write_id=given.take("writeId", _text),
            allow_different_replay=given.take("allowDifferentReplay", _flag) or False,
        )


class _Given:
    """The given options, each by the name in the table. `use` None: unknown options are ignored."""

    def __init__(self, options: Mapping[str, str], use: Use | None) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        if use is not None:
            self._check_names(use)

    def _check_names(self, use: Use) -> None:
        for name in self._values:
            option = _BY_NAME.get(name)
            if option is not None and use not in option.uses:
                raise InvalidArgument(
                    f"option {option.name!r} is not for this: it belongs to {' or '.join(option.uses)}"
                )
            if name == "path" and use in READS:
                raise InvalidArgument("load() takes no path here: name topics with the option 'topic'")
            if name == ASYNC_PROGRESS and use in WRITES and self._values[name].strip().lower() == "true":
                raise InvalidArgument(
                    "option 'asyncProgressTrackingEnabled': a query that does not write down each batch before it runs "
                    "gives a number to other rows after a restart, so it is not exactly once: leave it out"
                )
            if option is None and name not in _OF_SPARK and not (use in WRITES and name in _OF_ANY_SINK):
                if (hint := hint_of(name)) is not None:
                    raise InvalidArgument(f"option {name!r} belongs to Kafka's source: {hint}")
                known = ", ".join(one.name for one in OPTIONS if use in one.uses)
                raise InvalidArgument(f"option {name!r} is not known; of a {use} there are: {known}")

    def is_set(self, name: str) -> bool:
        return name.lower() in self._values

    def at_most_one(self, names: tuple[str, ...], tells: str) -> None:
        found = [name for name in names if self.is_set(name)]
        if len(found) > 1:
            told = f"options {' and '.join(map(repr, found[:2]))} both say {tells}"
            raise InvalidArgument(f"{told}: leave one out")

    def take(self, name: str, parse: Callable[[str], V]) -> V | None:
        text = self._values.get(name.lower())
        if text is None:
            return None
        try:
            return parse(text.strip())
        except (ValueError, re.error) as error:
            raise InvalidArgument(f"option {name!r}: {error}") from error

    def url(self) -> str:
        url = self.take("service.url", _url)
        if url is None:
            raise InvalidArgument("option 'service.url' is required: txn://host:port of a server of the cluster")
        return url

    def timeout_s(self) -> float:
        timeout_ms = self.take("service.timeoutMs", _count)
        return DEFAULT_TIMEOUT_S if timeout_ms is None else timeout_ms / 1000


def _which_topics(given: _Given) -> tuple[tuple[str, ...], re.Pattern[str] | None]:
    ways = [name for name in ("topic", "topics", "topicsPattern") if given.is_set(name)]
    if len(ways) != 1:
        found = " and ".join(repr(way) for way in ways) or "none"
        raise InvalidArgument(
            f"exactly one of the options 'topic', 'topics' and 'topicsPattern' is needed, not {found}"
        )
    topic = given.take("topic", _topic)
    topics = (topic,) if topic is not None else given.take("topics", _topics) or ()
    return topics, given.take("topicsPattern", re.compile)


_STARTS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS: Final = ("snapshot", "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def _start(given: _Given, isolation: Isolation) -> Start:
    given.at_most_one(_STARTS, "where to begin")
    by_time = given.take("startingTimestamp", _time) or given.take("startingOffsetsByTimestamp", parse_times)
    by_offset = given.take("startingOffsets", partial(_starting, isolation=isolation))
    if by_time is not None:
        return by_time
    return None if by_offset == "earliest" else by_offset


def _ending(given: _Given, isolation: Isolation) -> End:
    given.at_most_one(_ENDS, "where to end")
    by_time = given.take("endingTimestamp", _time) or given.take("endingOffsetsByTimestamp", parse_times)
    by_offset = given.take("endingOffsets", partial(_ending_offset, isolation=isolation))
    if by_time is not None:
        return by_time
    if by_offset is not None:
        return None if by_offset == "latest" else by_offset
    return given.take("snapshot", partial(_cut, isolation=isolation))


def _time(text: str) -> ByTime:
    return ByTime(everywhere=parse_time(text))


def _check_order(start: Start, end: End) -> None:
    """▲ With the two swapped, what lies between them would look like lost data.

    Messages outside of transactions do not raise the revision; a loss does, because a segment or topic goes."""
    if isinstance(start, ByTime) and isinstance(end, ByTime) and start.is_behind(end):
        raise InvalidArgument("the start is a later time than the end: exchange the two")
    if not isinstance(start, Snapshot) or not isinstance(end, Snapshot) or start.store != end.store:
        return
    if start.revision > end.revision or (start.revision == end.revision and not start.precedes(end)):
        raise InvalidArgument(
            f"option 'startingOffsets': it is newer than the end, of revision {start.revision} and the end of "
            f"{end.revision}: a read begins at the earlier one, exchange the two"
        )


def _at_least(given: _Given, max_entries: int | None) -> int | None:
    found = given.take("minEntriesPerTrigger", _count)
    if found is None and given.is_set("maxTriggerDelayMs"):
        raise InvalidArgument("option 'maxTriggerDelayMs' goes with 'minEntriesPerTrigger': nothing is waited for")
    if found is not None and max_entries is not None and found > max_entries:
        raise InvalidArgument(
            f"option 'minEntriesPerTrigger': {found} is more than the {max_entries} of 'maxEntriesPerTrigger', so no "
            "batch could have both: lower the one or raise the other"
        )
    return found


def _compacted(given: _Given, *, uncommitted: bool) -> Path | None:
    folder = given.take("compactedPath", folder_of)
    if not given.take("compacted", _flag):
        return None
    if folder is None:
        raise InvalidArgument("option 'compacted' needs 'compactedPath': the folder that the job compact writes to")
    if uncommitted:
        raise InvalidArgument(
            "option 'compacted': compacted messages are committed: leave isolationLevel at read_committed"
        )
    return folder


def _url(text: str) -> str:
    parse_url(text)
    return text


def _topic(text: str) -> str:
    return str(TopicName.parse(text))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InvalidArgument(f"{text!r} names nothing")
    return names


def _topics(text: str) -> tuple[str, ...]:
    return tuple(_topic(name) for name in _names(text))


def _text(text: str) -> str:
    if not text:
        raise InvalidArgument("it is empty")
    return text


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidArgument(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) == 0:
        raise InvalidArgument(f"{text!r} is not a positive whole number")
    return int(text)


def _size(text: str) -> int:
    match = _SIZE.match(text.lower())
    if match is None:
        raise InvalidArgument(f"{text!r} is not a number of bytes, such as 1048576 or 64m")
    return int(match[1]) * _FACTORS[match[2]]


def _uncommitted(text: str) -> bool:
    if text not in ("read_committed", "read_uncommitted"):
        raise InvalidArgument(f"{text!r}: expected read_committed or read_uncommitted")
    return text == "read_uncommitted"


def _starting(text: str, *, isolation: Isolation) -> Snapshot | Boundary | Literal["earliest", "latest"]:
    if text == "earliest" or text == "latest":
        return "earliest" if text == "earliest" else "latest"
    if is_by_position(text):
        return parse_positions(text)
    return _offset(text, "earliest, latest or JSON", isolation) or "earliest"


def _ending_offset(text: str, *, isolation: Isolation) -> Snapshot | Boundary | Literal["latest"]:
    if is_by_position(text):
        return parse_positions(text)
    return "latest" if text == "latest" else _cut(text, "latest or JSON", isolation=isolation)


def _cut(text: str, expected: str = "JSON", *, isolation: Isolation) -> Snapshot:
    cut = _offset(text, expected, isolation)
    if cut is None:
        raise InvalidArgument("nothing lies before an offset that is 'earliest'")
    return cut


def _offset(text: str, expected: str, isolation: Isolation) -> Snapshot | None:
    """Parses a snapshot's JSON, or a stream's offset as its checkpoint has it."""
    if not text.startswith("{"):
        raise InvalidArgument(
            f"{text!r:.80}: expected {expected}, of client.snapshot(...).to_json() or from a checkpoint"
        )
    offset = json.loads(text)
    cut = decode_offset(offset)
    check_isolation(offset, cut, isolation)
    return cut
