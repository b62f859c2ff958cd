"""Changes and deletes topics and subscriptions at the controller, by requests that may be repeated until definite."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import Session
from txnclient.connection.topic_layout import TopicLayout
from txnwire.errors import (
    ConnectionLost,
    InvalidArgument,
    OutcomeUnknown,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
    TxnError,
)
from txnwire.ids import HASH_SPACE
from txnwire.names import SEGMENT_SCHEME, SegmentName, TopicName, validate_name
from txnwire.proto import txn_pb2 as pb

CALL_TIMEOUT_S = 15.0
"""Timeout of one request to the controller, which stops waiting after 10 s; the call repeats it until its own
deadline."""


CREATE_TIMEOUT_S = 10.0


class Unchanged:
    """The type of `UNCHANGED`."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
"""A policy that `Client.update_topic` leaves as it is; None removes one."""


def policies_json(**policies: object) -> str:
    """The given policies in wire form. Raises `InvalidArgument` if there are none."""
    given = {name: value for name, value in policies.items() if not isinstance(value, Unchanged)}
    if not given:
        raise InvalidArgument("no policy to change: name at least one, None takes one away")
    return json.dumps(given)


async def create_topic(session: Session, topic: str, segments: int, policies: dict[str, object]) -> TopicLayout:
    name = str(TopicName.parse(topic))
    if not isinstance(segments, int) or segments < 1:
        raise InvalidArgument(f"a topic has at least one segment, not {segments!r}")
    if segments > HASH_SPACE:
        raise InvalidArgument(f"{segments} segments: a topic can be divided into {HASH_SPACE} at most")
    command = pb.Command(create_topic=pb.CreateTopic(topic=name, segments=segments, policies_json=json.dumps(policies)))
    deadline = session.deadline()

    async def create() -> None:
        link = await session.directory.controller_link(deadline)
        await link.call(command, timeout_s=min(CREATE_TIMEOUT_S, deadline.remaining()))

    await session.repeat(f"creating {name}", deadline, create)
    return await session.directory.wait_layout(name, deadline)


async def update_topic(session: Session, topic: str, policies: str) -> None:
    name = str(TopicName.parse(topic))

    def command(life: int) -> pb.Command:
        request = pb.UpdateTopic(topic=name, policies_json=policies, life=life, ask=not life)
        return pb.Command(update_topic=request)

    await _change(session, f"changing {name}", command)


async def delete_topic(session: Session, topic: str, *, force: bool) -> None:
    name = str(TopicName.parse(topic))

    def command(life: int) -> pb.Command:
        return pb.Command(delete_topic=pb.DeleteTopic(topic=name, force=force, life=life, ask=not life))

    await _change(session, f"deleting {name}", command, gone=(TopicNotFound,))


async def delete_subscription(session: Session, topic: str, subscription: str, *, force: bool) -> None:
    name = str(TopicName.parse(topic))
    validate_name(subscription, part="subscription")

    def command(life: int) -> pb.Command:
        request = pb.DeleteSubscription(topic=name, subscription=subscription, force=force, life=life, ask=not life)
        return pb.Command(delete_subscription=request)

    await _change(session, f"deleting subscription {subscription} of {name}", command, gone=(SubscriptionNotFound,))


async def split(session: Session, segment: str, at: int | None) -> TopicLayout:
    name = segment_name(segment)
    if at is not None and not 0 < at < HASH_SPACE:
        raise InvalidArgument(f"cannot split {name} at {at!r}: expected the first hash of the upper part, 1..65535")
    command = pb.Command(split_segment=pb.SplitSegment(segment=name.path, at=at or 0))
    return await _change_layout(session, f"splitting {name}", name, command)


async def merge(session: Session, segment_a: str, segment_b: str) -> TopicLayout:
    first, second = segment_name(segment_a), segment_name(segment_b)
    if first.topic != second.topic:
        raise InvalidArgument(f"cannot merge {first} and {second}: they belong to different topics")
    command = pb.Command(merge_segments=pb.MergeSegments(segment_a=first.path, segment_b=second.path))
    return await _change_layout(session, f"merging {first} and {second}", first, command)


def segment_name(text: str) -> SegmentName:
    """Parse `segment://…`, or the path after the scheme. Raises `InvalidArgument`."""
    if not isinstance(text, str):
        raise InvalidArgument(f"a segment's name is a string, not {text!r}")
    if text.startswith(SEGMENT_SCHEME):
        return SegmentName.parse(text)
    if text.count("/") != 3:
        raise InvalidArgument(
            f"segment {text!r}: expected tenant/namespace/topic/<lo>-<hi>-<id>, with segment:// before it or without; "
            "the topic's description shows its segments"
        )
    return SegmentName.from_path(text)


async def _change_layout(session: Session, what: str, segment: SegmentName, command: pb.Command) -> TopicLayout:
    """Split or merge. Repeating the request is harmless: it joins the change under way, or finds it done."""
    deadline = session.deadline()

    async def attempt() -> pb.LayoutChanged:
        link = await session.directory.controller_link(deadline)
        reply = await link.call(command, timeout_s=min(CALL_TIMEOUT_S, deadline.remaining()))
        return reply.layout_changed

    changed = await session.repeat(what, deadline, attempt)
    topic = str(segment.topic)
    layout = await session.directory.layout(topic, deadline)
    while layout.epoch < changed.epoch:
        await session.directory.wait_change(deadline.remaining())
        if deadline.passed:
            raise deadline.expired(f"{what}: hearing of layout epoch {changed.epoch}, which stands", None)
        layout = await session.directory.layout(topic, deadline)
    return layout


async def _call_controller(session: Session, deadline: Deadline, command: pb.Command) -> pb.Command:
    link = await session.directory.controller_link(deadline)
    return await link.call(command, timeout_s=min(CALL_TIMEOUT_S, deadline.remaining()))


async def _change(
    session: Session, what: str, command: Callable[[int], pb.Command], *, gone: tuple[type[TxnError], ...] = ()
) -> None:
    """Change or delete what has the name now, by requests that name its life. `command`: of a life; 0 asks for it.
    `gone`: errors that are the end if an earlier request had no answer, since it may have deleted it.

    ▲ A request that is repeated, or arrives late, would change or delete a new object of the same name: so the first
    request asks which object is there. Controllers of an earlier version make the change at that request and answer
    Ok."""
    deadline = session.deadline()
    life, unanswered = 0, False

    async def attempt() -> None:
        nonlocal life, unanswered
        if not life:
            asked = await _call_controller(session, deadline, command(0))
            if asked.HasField("ok"):
                return
            life = asked.life.life
        try:
            await _call_controller(session, deadline, command(life))
        except (Timeout, ConnectionLost, OutcomeUnknown):
            unanswered = True
            raise
        except gone:
            if not unanswered:
                raise

    await session.repeat(what, deadline, attempt)
