"""Names the transaction of a write: the same for every attempt at the same rows, and for no other rows. Pure.

    a micro-batch   <sink>/<query id>/<target>/<batch id>
    a batch write   <sink>/<target>/<write id>

The target is the topic of the option `topic`, without its `topic://`, or `-` where rows name their topics themselves. A
query has its id from its checkpoint, so a fresh checkpoint under an old sink name begins other transactions, and a
restart the same ones. ▲ A checkpoint copied for another output topic has the same query id and batches: without the
target in the name its batches would be found committed, and nothing would be written.

Sink, target and write id are escaped, so that no `/` in them makes two names equal; a long one is replaced by its hash.
Outcomes are kept for 30 days. The last commit under a name, without number or write id, is kept for ever (DESIGN §10):
a query that returns after a year still finds its last batch committed.

Earlier versions left out the target and escaped nothing. Their commits are looked up by `former`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from hashlib import blake2b
from typing import Final, NamedTuple
from uuid import UUID

from txnwire.errors import InvalidArgument
from txnwire.names import TopicName

STREAM_SINK: Final = "spark"
"""The default name of a sink; the query's id in the checkpoint makes the batch's name unique.

▲ Does not use the checkpoint's location (API.md's default): a restart may spell it differently, `ck/x` for
`/data/ck/x`, and write its last batch twice under two names."""

KEPT: Final = timedelta(days=30)
"""How long an outcome is kept, whatever the namespaces of the service are set to."""

MAX_SINK_NAME_BYTES: Final = 300
MAX_WRITE_ID_BYTES: Final = 200

MAX_PART_BYTES: Final = 150
"""Longest part in a name. Three of them, an id and a number fit into a name's 512 bytes."""

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Task properties that Spark sets for each micro-batch; the query's id is the one in its checkpoint."""


class BatchName(NamedTuple):
    """`text`: the transaction's name. `former`: the name that an earlier version would have used. `keep_newest`: the
    write may be repeated at any later time, so its outcome is kept until a newer one commits."""

    text: str
    former: str
    keep_newest: bool = True


class SinkIdentity(NamedTuple):
    """Names a sink and its topic. `topic`: the option; None if rows name their topics. `former`: an earlier version's
    name for the sink."""

    name: str
    topic: str | None
    former: str

    @property
    def target(self) -> str:
        """▲ No topic is called `-`: topics have a `/`, which is escaped."""
        return "-" if self.topic is None else _part(TopicName.parse(self.topic).path)


def query_id(text: str) -> str:
    """Returns the text if it is a query id of Spark's. Raises `InvalidArgument`."""
    try:
        UUID(text)
    except ValueError:
        raise InvalidArgument(f"the query id {text!r} is not one that Spark gives: expected a UUID") from None
    return text


def micro_batch_name(sink: SinkIdentity, query: str, batch_id: int) -> BatchName:
    """`query`: its id. Raises `InvalidArgument` if it is none."""
    query = query_id(query)
    return BatchName(f"{_part(sink.name)}/{query}/{sink.target}/{batch_id}", f"{sink.former}/{query}/{batch_id}")


def is_micro_batch(name: str, sink: SinkIdentity, batch_id: int) -> bool:
    """Whether the name is that of a batch with this number, of any query that writes through this sink."""
    parts = name.split("/")
    return len(parts) == 4 and [parts[0], *parts[2:]] == [_part(sink.name), sink.target, str(batch_id)]


def micro_batch_of(properties: Mapping[str, str | None], sink: SinkIdentity) -> BatchName:
    """Names the micro-batch of a task with these properties. Raises `InvalidArgument`."""
    query, batch_id = properties.get(QUERY_ID), properties.get(BATCH_ID)
    if not query or batch_id is None or not batch_id.isdecimal():
        raise InvalidArgument(
            f"this task has {QUERY_ID}={query!r} and {BATCH_ID}={batch_id!r}, so it is not known which micro-batch "
            "it writes: the sink needs Structured Streaming's micro-batches (no continuous trigger)"
        )
    return micro_batch_name(sink, query, int(batch_id))


def write_name(sink: SinkIdentity, write_id: str) -> BatchName:
    """Raises `InvalidArgument`."""
    length = len(write_id.encode())
    if not 0 < length <= MAX_WRITE_ID_BYTES:
        raise InvalidArgument(f"writeId has {length} bytes: expected 1 to {MAX_WRITE_ID_BYTES}, e.g. day-2026-11-21")
    return BatchName(f"{_part(sink.name)}/{sink.target}/{_part(write_id)}", f"{sink.former}/{write_id}")


def stream_sink(given: str | None, topic: str | None) -> SinkIdentity:
    """Made from `sinkName` and `topic`. Raises `InvalidArgument`."""
    name = _checked(given) if given is not None else STREAM_SINK
    return SinkIdentity(name, topic, name)


def batch_sink(given: str | None, topic: str | None) -> SinkIdentity:
    """Made from `sinkName` and `topic`. Raises `InvalidArgument`. Earlier versions named it after its topic."""
    if given is not None:
        return SinkIdentity(_checked(given), topic, given)
    return SinkIdentity(STREAM_SINK, topic, topic or STREAM_SINK)


def _checked(name: str) -> str:
    length = len(name.encode())
    if not 0 < length <= MAX_SINK_NAME_BYTES:
        raise InvalidArgument(f"sinkName has {length} bytes: expected 1 to {MAX_SINK_NAME_BYTES}, e.g. delays-by-hour")
    return name


def _part(text: str) -> str:
    """▲ Has no `/`, and is unique to each text: only a hash begins with `~`."""
    escaped = text.replace("%", "%25").replace("/", "%2F").replace("~", "%7E")
    if len(escaped.encode()) <= MAX_PART_BYTES:
        return escaped
    return "~" + blake2b(text.encode(), digest_size=20).hexdigest()
