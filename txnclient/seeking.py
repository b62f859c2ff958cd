"""Moving a subscription: every segment's owner is told where to go on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from txnclient.deadlines import Deadline
from txnclient.session import Session
from txnclient.starts import StartArgument, start_to_wire, topics_of
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
    paths: list[str] = []
    for topic in topics_of(topics):
        layout = await session.directory.layout(topic, deadline)
        paths += [segment.path for segment in layout.segments.values()]
    requests = [pb.Seek(segment=path, subscription=subscription, start=on_wire) for path in paths]
    results = await asyncio.gather(
        *(_seek_segment(session, request, deadline) for request in requests), return_exceptions=True
    )
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def _seek_segment(session: Session, request: pb.Seek, deadline: Deadline) -> None:
    async def ask() -> None:
        link = await session.directory.owner_link(request.segment, deadline)
        await link.call(pb.Command(seek=request), timeout_s=min(CALL_TIMEOUT_S, deadline.remaining()))

    await session.repeat(f"seeking subscription {request.subscription} on segment://{request.segment}", deadline, ask)
