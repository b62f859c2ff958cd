"""Moving a subscription: every segment's owner is told where to go on, parents before their children."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence

from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import Session
from txnclient.connection.topic_layout import ACTIVE, TopicLayout, topic_of_segment
from txnclient.consuming.reader_ends import LAYOUT_WAIT_S, Reach, ask_reach, is_outdated
from txnclient.consuming.starts import StartArgument, check_topic_of, start_to_wire, topics_of
from txnwire.errors import NotOwner, TopicNotFound
from txnwire.names import validate_name
from txnwire.proto import txn_pb2 as pb

CALL_TIMEOUT_S = 15.0
"""Of one request to one owner, which itself waits for open transactions for 10 s at most."""


async def seek(
    session: Session, topics: str | Sequence[str], subscription: str, start: StartArgument, deadline: Deadline
) -> None:
    """All segments of the topics; repeating it is harmless. What it raises may leave some segments moved and others
    not."""
    validate_name(subscription, part="subscription")
    on_wire = start_to_wire(start)
    names = topics_of(topics)
    # ▲ Before anything moves: all of the other topics would go back to their earliest.
    check_topic_of(start, names, only=True)
    await _all(_seek_topic(session, topic, subscription, on_wire, deadline) for topic in names)


async def _seek_topic(session: Session, topic: str, subscription: str, start: pb.Start, deadline: Deadline) -> None:
    """▲ Parents before their children: once a parent is known not to be drained any more, nobody is attached to what
    came of it; so who reads a child meanwhile is closed by its own seek, and waits. What splits and merges have made
    since the look at the layout is sought too: ▲ also what the layout known here does not show yet. Others may have
    read and acked there, which would not come again."""
    sought: dict[str, None] = {}
    while True:
        while waves := unsought(layout := await session.directory.layout(topic, deadline), sought):
            for paths in waves:
                requests = [pb.Seek(segment=path, subscription=subscription, start=start) for path in paths]
                await _all(_seek_segment(session, request, deadline) for request in requests)
                sought.update(dict.fromkeys(paths))
        if not await _is_outdated(session, layout, deadline):
            return
        if deadline.passed:
            raise deadline.expired(f"waiting for the new layout of {topic}: a segment has been sealed")
        await session.directory.wait_change(min(LAYOUT_WAIT_S, deadline.remaining()))


async def _is_outdated(session: Session, layout: TopicLayout, deadline: Deadline) -> bool:
    """Whether an owner knows better than the layout that its segment is sealed."""
    active = [segment for segment in layout.segments.values() if segment.state == ACTIVE]
    found = await asyncio.gather(
        *(ask_reach(session, one, committed=False, min_revision=0, deadline=deadline) for one in active),
        return_exceptions=True,
    )
    for answer in found:
        if isinstance(answer, BaseException):
            raise answer
    reaches = [answer for answer in found if isinstance(answer, Reach)]
    return any(is_outdated(one, reach) for one, reach in zip(active, reaches, strict=True))


def unsought(layout: TopicLayout, sought: Iterable[str]) -> list[list[str]]:
    """Paths of the segments of a layout that have not been `sought`, in groups: each behind all its parents' ones."""
    done = dict.fromkeys(sought)
    waves: list[list[str]] = []
    depths: dict[int, int] = {}
    for segment_id in sorted(layout.segments):  # a parent's id is below its children's
        segment = layout.segments[segment_id]
        if segment.path in done:
            continue
        depth = 1 + max((depths.get(parent, -1) for parent in segment.parents), default=-1)
        depths[segment_id] = depth
        if depth == len(waves):
            waves.append([])
        waves[depth].append(segment.path)
    return waves


async def _all(work: Iterable[Coroutine[None, None, None]]) -> None:
    """Raises the first failure, once all have ended."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _seek_segment(session: Session, request: pb.Seek, deadline: Deadline) -> None:
    async def ask() -> None:
        try:
            link = await session.directory.owner_link(request.segment, deadline)
            await link.call(pb.Command(seek=request), timeout_s=min(CALL_TIMEOUT_S, deadline.remaining()))
        except TopicNotFound as error:
            # Of the topic, or of this segment: nothing of that one is left to be read, and it goes from the layout.
            if session.directory.known_layout(topic_of_segment(request.segment)) is None:
                raise
            if session.directory.segment(request.segment) is not None:
                raise NotOwner(f"segment://{request.segment} is about to leave its topic: {error}") from error

    await session.repeat(f"seeking subscription {request.subscription} on segment://{request.segment}", deadline, ask)
