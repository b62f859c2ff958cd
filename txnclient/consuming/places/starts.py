"""The common arguments of consumers and readers: start, isolation, topics, prefetch."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import SupportsIndex

from txnclient.connection.topic_layout import topic_of_segment
from txnclient.consuming.places.positions import BY_POSITIONS, Positions, check_topics, start_of_topic
from txnwire.bounds import MAX_TIME_MS
from txnwire.errors import InvalidArgument
from txnwire.ids import MessageId
from txnwire.names import TopicName
from txnwire.proto import txn_pb2 as pb

StartArgument = str | int | datetime | MessageId | Positions


def start_to_wire(start: StartArgument) -> pb.Start:
    """Encode `"earliest"`, `"latest"`, a timestamp (ms since the Unix epoch, or an aware datetime), or a MessageId to
    begin at. Of `Positions`, which differ by segment, only that they are such."""
    if isinstance(start, Positions):
        return pb.Start(segment=BY_POSITIONS)
    if isinstance(start, MessageId):
        return pb.Start(
            segment=start.segment,
            ledger_id=start.position.ledger_id,
            entry_id=start.position.entry_id,
            index=start.index,
        )
    if start == "earliest":
        return pb.Start(earliest=True)
    if start == "latest":
        return pb.Start(latest=True)
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidArgument(f"start {start!r} has no time zone: give it one, e.g. datetime.now(UTC)")
        return pb.Start(timestamp_ms=max(1, int(start.timestamp() * 1000)))
    if isinstance(start, int) and not isinstance(start, bool) and 0 < start <= MAX_TIME_MS:
        return pb.Start(timestamp_ms=start)
    raise InvalidArgument(
        f"start {start!r}: expected 'earliest', 'latest', a timestamp in ms, an aware datetime, a MessageId or "
        "Positions"
    )


def start_of_subscription(start: StartArgument, topic: str) -> pb.Start:
    """The start of a new subscription of one topic."""
    return start_of_topic(start.topics.get(topic)) if isinstance(start, Positions) else start_to_wire(start)


def check_topic_of(start: object, topics: Sequence[str], *, only: bool = False) -> None:
    """Raises `InvalidArgument` for a MessageId or Positions of none of the topics; `only`: for a MessageId also if
    there are other topics.

    ▲ Call it before any segment moves: an owner would read the position in the wrong log."""
    if isinstance(start, Positions):
        check_topics(start, topics)
    if not isinstance(start, MessageId):
        return
    topic = topic_of_segment(start.segment)
    if topic not in topics:
        raise InvalidArgument(
            f"message {start} belongs to {topic}, not to {', '.join(topics)}: start at a message of these topics, by "
            "time, or at 'earliest'"
        )
    if only and len(topics) > 1:
        raise InvalidArgument(
            f"message {start} belongs to {topic}, but this seek moves {len(topics)} topics: seek each by itself, or "
            "all by time"
        )


def isolation_to_wire(isolation: str) -> pb.Isolation:
    if isolation == "read_committed":
        return pb.ISOLATION_READ_COMMITTED
    if isolation == "read_uncommitted":
        return pb.ISOLATION_READ_UNCOMMITTED
    raise InvalidArgument(f"isolation {isolation!r}: expected 'read_committed' or 'read_uncommitted'")


def check_prefetch(messages: object, size_bytes: object) -> None:
    """Raises `InvalidArgument`."""
    check_count(messages, "prefetch", "messages")
    check_count(size_bytes, "prefetch_bytes", "bytes")


def check_count(value: object, what: str, of: str, *, least: int = 1) -> None:
    """Raises `InvalidArgument`. ▲ Also for a float like 1e3: a feed cannot grant permits by it. It would fail after
    the first messages, and end the connection that it shares with others."""
    if not isinstance(value, SupportsIndex) or value.__index__() < least:
        raise InvalidArgument(f"{what} is a whole number of {of}, {least} or more, not {value!r}")


def topics_of(topics: str | Sequence[str]) -> list[str]:
    """The validated names, each once, in order."""
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names:
        raise InvalidArgument("no topic was named")
    return list(dict.fromkeys(str(TopicName.parse(name)) for name in names))
