"""Where to begin, how isolated to read, which topics: the arguments consumers and readers have in common."""

from __future__ import annotations

from collections.abc import Sequence

from txnwire.errors import InvalidArgument
from txnwire.ids import MessageId
from txnwire.names import TopicName
from txnwire.proto import txn_pb2 as pb

StartArgument = str | int | MessageId


def start_to_wire(start: StartArgument) -> pb.Start:
    """`"earliest"`, `"latest"`, a timestamp in ms since the Unix epoch, or a MessageId, to begin at it."""
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
    if isinstance(start, int) and not isinstance(start, bool) and start > 0:
        return pb.Start(timestamp_ms=start)
    raise InvalidArgument(f"start {start!r}: expected 'earliest', 'latest', a timestamp in ms, or a MessageId")


def isolation_to_wire(isolation: str) -> pb.Isolation:
    if isolation == "read_committed":
        return pb.ISOLATION_READ_COMMITTED
    if isolation == "read_uncommitted":
        raise InvalidArgument("isolation 'read_uncommitted' is not offered by this version: use 'read_committed'")
    raise InvalidArgument(f"isolation {isolation!r}: expected 'read_committed'")


def topics_of(topics: str | Sequence[str]) -> list[str]:
    """The validated names, each once, in order."""
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names:
        raise InvalidArgument("no topic was named")
    return list(dict.fromkeys(str(TopicName.parse(name)) for name in names))
