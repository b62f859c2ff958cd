"""How far a subscription is behind, and where it stands: what the owners of its segments answer, through any server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from txnclient.connection import any_server
from txnclient.connection.session import Session
from txnclient.consuming.places.positions import Positions, topic_positions
from txnwire.errors import SubscriptionNotFound, TopicNotFound
from txnwire.proto import txn_pb2 as pb


@dataclass(frozen=True, slots=True)
class SegmentLag:
    """`messages`: not acked in the segment. `seconds`: age of the oldest of them, 0 if there is none, by the clock of
    its producer. None: not known, because the segment's owner did not answer, or has much to read before it knows."""

    messages: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a whole subscription: all its messages that are not acked, and the age in seconds of the oldest.
    `segments` has the lag of each segment, by path. None: it is not known for a segment, or for a topic that a pattern
    has found."""

    messages: int | None
    seconds: float | None
    segments: Mapping[str, SegmentLag]


async def subscription_lag(
    session: Session, topics: Sequence[str], subscription: str, *, by_pattern: bool = False
) -> Lag:
    """`by_pattern`: topics come and go. Raises `SubscriptionNotFound`, `TopicNotFound`, `Timeout`."""
    answers = await asyncio.gather(*(_of_topic(session, topic, subscription, by_pattern) for topic in topics))
    segments = {path: lag for answer in answers if answer is not None for path, lag in answer.items()}
    if None in answers:
        return Lag(None, None, segments)
    messages = [one.messages for one in segments.values() if one.messages is not None]
    ages_s = [one.seconds for one in segments.values() if one.seconds is not None]
    return Lag(
        sum(messages) if len(messages) == len(segments) else None,
        max(ages_s, default=0.0) if len(ages_s) == len(segments) else None,
        segments,
    )


async def _of_topic(session: Session, topic: str, subscription: str, by_pattern: bool) -> dict[str, SegmentLag] | None:
    """None: not known. A topic that a pattern has just found has no subscription before the consumer has joined it, and
    a deleted topic has none. ▲ Both are no error, because an error could end the consumer."""
    try:
        rows = (await _ask(session, "subscriptions.lag", topic, subscription))["segments"]
    except (SubscriptionNotFound, TopicNotFound):
        if not by_pattern:
            raise
        return None
    return {row["segment"]: SegmentLag(row["lag_messages"], row["lag_seconds"]) for row in rows}


async def subscription_positions(session: Session, topics: Sequence[str], subscription: str) -> Positions:
    """The positions up to which the subscription has acked everything. Raises `SubscriptionNotFound`, `TopicNotFound`;
    `Timeout` while a segment has no owner: ▲ positions without that segment would read all of it again."""
    asked = (_ask(session, "subscriptions.positions", topic, subscription) for topic in topics)
    answers = await asyncio.gather(*asked)
    return Positions({topic: topic_positions(answer) for topic, answer in zip(topics, answers, strict=True)})


async def _ask(session: Session, question: str, topic: str, subscription: str) -> dict[str, Any]:
    arguments = json.dumps({"v": 1, "topic": topic, "subscription": subscription})
    command = pb.Command(admin_request=pb.AdminRequest(what=question, args_json=arguments))
    what = f"asking for {question} of {subscription} on {topic}"
    reply = await any_server.call(session, command, what, role="admin")
    answer: dict[str, Any] = json.loads(reply.admin_reply.reply_json)
    return answer
