"""Finds where the segments of some topics end when a reader is opened, while layouts may change (V5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import Session
from txnclient.connection.topic_layout import ACTIVE, SegmentInfo, TopicLayout, topic_of_segment
from txnwire.errors import NotOwner, TopicNotFound
from txnwire.ids import EARLIEST, Position
from txnwire.proto import txn_pb2 as pb
from txnwire.tasks import all_of

POSITIONS_TIMEOUT_S: Final = 5.0
LAYOUT_WAIT_S: Final = 0.2
"""Pause between checks of a sealed segment whose children are not known yet."""


class Reach(NamedTuple):
    """How far one segment reaches. `sealed`: its owner accepts no more. `held`: some of it is not readable yet.
    `before_time`: the position after which a start by the given time begins; None if its owner does not tell."""

    end: Position
    sealed: bool
    held: bool
    before_time: Position | None = None


async def latest_ends(
    session: Session, topics: Sequence[str], *, committed: bool, min_revision: int, deadline: Deadline
) -> dict[str, Position]:
    """The last readable position of every segment, by its path. Raises the errors of a topic lookup, and `Timeout`.

    ▲ A sealed segment that is active in the known layout has, or will have, children unknown here; a commit to them may
    precede this call. So wait for the layout that has them, and ask their owners, too.
    """
    found: dict[str, Reach] = {}
    while True:
        layouts = [await session.directory.layout(topic, deadline) for topic in topics]
        segments = [segment for layout in layouts for segment in layout.segments.values()]
        unasked = [one for one in segments if one.path not in found or is_outdated(one, found[one.path])]
        answers = await all_of(
            ask_reach(session, one, committed=committed, min_revision=min_revision, deadline=deadline)
            for one in unasked
        )
        found.update((one.path, answer) for one, answer in zip(unasked, answers, strict=True))
        if not any(is_outdated(one, found[one.path]) for one in segments):
            return {path: end for layout in layouts for path, end in _in_order(layout, found).items()}
        if deadline.passed:
            raise deadline.expired(f"waiting for the new layout of {', '.join(topics)}: a segment has been sealed")
        await session.directory.wait_change(min(LAYOUT_WAIT_S, deadline.remaining()))


def is_outdated(segment: SegmentInfo, reach: Reach) -> bool:
    """Whether it has, or will have, children unknown here, or its seal will be undone."""
    return segment.state == ACTIVE and reach.sealed


def _in_order(layout: TopicLayout, found: dict[str, Reach]) -> dict[str, Position]:
    """▲ S7: messages behind an unreadable one are not readable either: a segment yields nothing while an open
    transaction holds back one of its ancestors."""
    ends: dict[str, Position] = {}
    held: dict[int, None] = {}
    for segment in sorted(layout.segments.values(), key=lambda one: one.segment_id):  # parents first
        reach = found[segment.path]
        behind_held = any(parent in held for parent in segment.parents)
        if behind_held or reach.held:
            held[segment.segment_id] = None
        ends[segment.path] = EARLIEST if behind_held else reach.end
    return ends


async def starts_by_time(
    session: Session, topics: Sequence[str], *, timestamp_ms: int, deadline: Deadline
) -> dict[str, Position | None]:
    """The position after which a start by time begins, for every known segment. None: its owner has an older version
    and computes the start at each subscribe. Raises the errors of a topic lookup, and `Timeout`."""
    layouts = [await session.directory.layout(topic, deadline) for topic in topics]
    segments = [segment for layout in layouts for segment in layout.segments.values()]
    answers = await all_of(
        ask_reach(session, one, committed=False, min_revision=0, deadline=deadline, timestamp_ms=timestamp_ms)
        for one in segments
    )
    return {one.path: answer.before_time for one, answer in zip(segments, answers, strict=True)}


async def ask_reach(
    session: Session,
    segment: SegmentInfo,
    *,
    committed: bool,
    min_revision: int,
    deadline: Deadline,
    timestamp_ms: int = 0,
) -> Reach:
    """Ask the segment's owner how far it reaches. Raises `Timeout`, the errors of a topic lookup."""

    async def ask() -> Reach:
        try:
            link = await session.directory.owner_link(segment.path, deadline)
            request = pb.SegmentPositions(
                segment=segment.path,
                min_revision=max(session.told_revision, min_revision),
                timestamp_ms=timestamp_ms,
            )
            reply = await link.call(
                pb.Command(segment_positions=request), timeout_s=min(POSITIONS_TIMEOUT_S, deadline.remaining())
            )
        except TopicNotFound as error:
            if session.directory.known_layout(topic_of_segment(segment.path)) is None:
                raise
            if session.directory.segment(segment.path) is not None:
                raise NotOwner(f"{error}; its topic's layout here is another") from error  # look it up again
            return Reach(EARLIEST, sealed=True, held=False)  # retention took all of it meanwhile
        answer = reply.segment_positions_ok
        last = Position(answer.last_confirmed.ledger_id, answer.last_confirmed.entry_id)
        readable = Position(answer.max_read_position.ledger_id, answer.max_read_position.entry_id)
        before_time: Position | None = None
        if answer.HasField("before_timestamp"):
            before_time = Position(answer.before_timestamp.ledger_id, answer.before_timestamp.entry_id)
        end = readable if committed else last
        return Reach(end, answer.sealed, held=committed and readable < last, before_time=before_time)

    return await session.repeat(f"asking how far {segment.name} reaches", deadline, ask)
