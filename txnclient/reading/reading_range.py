"""What a reader is asked to read, and how its prefetch is divided. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

from txnclient.consuming.places.starts import (
    StartArgument,
    check_prefetch,
    check_topic_of,
    isolation_to_wire,
    start_to_wire,
)
from txnclient.reading.cuts import check_at_least
from txnclient.reading.snapshot import Snapshot, Span
from txnwire.errors import InvalidArgument
from txnwire.proto import txn_pb2 as pb


def check_bounds(end: str | Snapshot | None, at_least: int, prefetch: int, prefetch_bytes: int) -> None:
    """Raises `InvalidArgument` for an end, a revision or a prefetch that no reader has."""
    if not isinstance(end, Snapshot) and end not in (None, "latest"):
        raise InvalidArgument(f"end {end!r}: expected None, 'latest' or a Snapshot")
    check_prefetch(prefetch, prefetch_bytes)
    check_at_least(at_least)
    if at_least and end is None:
        raise InvalidArgument("at_least is for readers with an end: one without an end sees every commit")
    if isinstance(end, Snapshot) and end.revision < at_least:
        raise InvalidArgument(f"the snapshot belongs to revision {end.revision}, and at_least asks for {at_least}")


@dataclass(slots=True)
class ReadingRange:
    """From where to where a reader reads, and what it is shown. `cut`: the snapshot at which it ends."""

    start: StartArgument | Snapshot
    start_on_wire: pb.Start
    end: str | Snapshot | None
    at_least: int
    isolation: pb.Isolation
    span: Span | None
    cut: Snapshot | None
    bounded: bool

    @classmethod
    def asked(
        cls,
        topics: Sequence[str],
        *,
        start: StartArgument | Snapshot,
        end: str | Snapshot | None,
        at_least: int,
        isolation: str,
    ) -> ReadingRange:
        """Raises `InvalidArgument` for a start outside `topics`, and for bounds that do not go together."""
        on_wire = isolation_to_wire(isolation)
        check_topic_of(start, topics)
        start_on_wire = pb.Start() if isinstance(start, Snapshot) else start_to_wire(start)
        span = _span(start, end)
        if span is not None and on_wire != pb.ISOLATION_READ_COMMITTED:
            raise InvalidArgument("a snapshot has only committed messages: read it with isolation 'read_committed'")
        return cls(
            start=start,
            start_on_wire=start_on_wire,
            end=end,
            at_least=at_least,
            isolation=on_wire,
            span=span,
            cut=end if isinstance(end, Snapshot) else None,
            bounded=end is not None,
        )

    def end_at(self, cut: Snapshot) -> Span:
        """The span that it has with `cut` as its end."""
        self.cut = cut
        self.span = Span(self.start if isinstance(self.start, Snapshot) else None, cut)
        return self.span

    @property
    def committed(self) -> bool:
        return self.isolation == pb.ISOLATION_READ_COMMITTED


def _span(start: StartArgument | Snapshot, end: str | Snapshot | None) -> Span | None:
    since, until = (one if isinstance(one, Snapshot) else None for one in (start, end))
    if until is not None and start == "latest":
        raise InvalidArgument("start 'latest' is after every snapshot: begin at 'earliest' or at an older snapshot")
    return None if since is None and until is None else Span(since, until)


class DividedPrefetch:
    """Divides a reader's prefetch among the segments that it reads at once. `messages`, `bytes`: the share of each."""

    def __init__(self, messages: int, size: int) -> None:
        self._all = (index(messages), index(size))  # ▲ numpy's may have few bits
        self.messages, self.bytes = self._all

    def divide(self, among: int) -> bool:
        """Whether the shares have changed."""
        former, (messages, size) = (self.messages, self.bytes), self._all
        self.messages, self.bytes = messages // among, size // among
        return (self.messages, self.bytes) != former
