"""Moves a subscription: tells every segment's owner where to go on, parents before their children."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence

from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import Session
from txnclient.connection.topic_layout import ACTIVE, TopicLayout, topic_of_segment
from txnclient.consuming.places.positions import Positions, layout_with, start_in
from txnclient.consuming.places.reader_ends import LAYOUT_WAIT_S, Reach, ask_reach, is_outdated
from txnclient.consuming.places.starts import StartArgument, check_topic_of, start_to_wire, topics_of
from txnwire.errors import NotOwner, TopicNotFound
from txnwire.names import validate_name
from txnwire.proto import txn_pb2 as pb

CALL_TIMEOUT_S = 15.0
"""Timeout of one request to one owner, which itself waits for open transactions for at most 10 s."""


async def seek(
    session: Session, topics: str | Sequence[str], subscription: str, start: StartArgument, deadline: Deadline
) -> None:
    """Seek all segments of the topics; repeating it is harmless. After an error some segments may have moved and others
    not. By positions, topics that they do not name stay where they are."""
    validate_name(subscription, part="subscription")
    start_to_wire(start)  # refuses what is no start
    names = topics_of(topics)
    # ▲ Checked before any topic moves: all other topics would go back to their earliest message.
    check_topic_of(start, names, only=True)
    if isinstance(start, Positions):
        names = [topic for topic in names if topic in start.topics]
        for topic in names:  # ▲ all of them before anything moves
            await layout_with(session, topic, start, deadline)
    await _all(_seek_topic(session, topic, subscription, start, deadline) for topic in names)


async def _seek_topic(
    session: Session, topic: str, subscription: str, start: StartArgument, deadline: Deadline
) -> None:
    """▲ Seeks parents before their children: a child of an undrained parent accepts no consumer, so a consumer that the
    child's own seek closes waits for the parent. ▲ Also seeks segments that splits and merges created meanwhile, even
    if the layout here does not show them yet: messages that consumers acked there would not come again."""
    sought: dict[str, None] = {}
    while True:
        while waves := unsought(layout := await _layout(session, topic, start, deadline), sought):
            for paths in waves:
                starts = {path: _start_in(start, layout, path) for path in paths}
                requests = [pb.Seek(segment=path, subscription=subscription, start=at) for path, at in starts.items()]
                await _all(_seek_segment(session, request, deadline) for request in requests)
                sought.update(dict.fromkeys(paths))
        if not await _is_outdated(session, layout, deadline):
            return
        if deadline.passed:
            raise deadline.expired(f"waiting for the new layout of {topic}: a segment has been sealed")
        await session.directory.wait_change(min(LAYOUT_WAIT_S, deadline.remaining()))


async def _layout(session: Session, topic: str, start: StartArgument, deadline: Deadline) -> TopicLayout:
    if isinstance(start, Positions):  # ▲ the topic may have been deleted and made again meanwhile
        return await layout_with(session, topic, start, deadline)
    return await session.directory.layout(topic, deadline)


def _start_in(start: StartArgument, layout: TopicLayout, path: str) -> pb.Start:
    segment = layout.segment_by_path(path)
    if isinstance(start, Positions) and segment is not None:
        return start_in(start.topics.get(layout.topic), layout, segment)
    return start_to_wire(start)


async def _is_outdated(session: Session, layout: TopicLayout, deadline: Deadline) -> bool:
    """Whether an owner has sealed a segment that the layout shows as active."""
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
    """Paths of the segments of a layout not yet `sought`, in groups: each group after those of its parents."""
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
    """Run all; raises the first failure once all have ended."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _seek_segment(session: Session, request: pb.Seek, deadline: Deadline) -> None:
    async def ask() -> None:
        try:
            link = await session.directory.owner_link(request.segment, deadline)
            await link.call(pb.Command(seek=request), timeout_s=min(CALL_TIMEOUT_S, deadline.remaining()))
        except TopicNotFound as error:
            # The topic is gone, or only this segment: then none of it is left to read, and the layout drops it.
            if session.directory.known_layout(topic_of_segment(request.segment)) is None:
                raise
            if session.directory.segment(request.segment) is not None:
                raise NotOwner(f"segment://{request.segment} is about to leave its topic: {error}") from error

    await session.repeat(f"seeking subscription {request.subscription} on segment://{request.segment}", deadline, ask)
