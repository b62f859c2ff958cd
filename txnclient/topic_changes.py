"""Changing and deleting topics and subscriptions, at the controller: requests that may be repeated until definite."""

from __future__ import annotations

import json
from typing import Final

from txnclient.deadlines import Deadline
from txnclient.session import Session
from txnwire.errors import (
    ConnectionLost,
    InvalidArgument,
    OutcomeUnknown,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
    TxnError,
)
from txnwire.names import TopicName, validate_name
from txnwire.proto import txn_pb2 as pb

CALL_TIMEOUT_S = 15.0
"""Of one request to the controller, which itself gives up on waiting after 10 s; the call goes on until its own time is
up."""


class Unchanged:
    """The type of `UNCHANGED`."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
"""A policy that `Client.update_topic` leaves as it is; None takes one away."""


def policies_json(**policies: object) -> str:
    """The policies that are given, as the wire has them. Raises `InvalidArgument` where there are none."""
    given = {name: value for name, value in policies.items() if not isinstance(value, Unchanged)}
    if not given:
        raise InvalidArgument("no policy to change: name at least one, None takes one away")
    return json.dumps(given)


async def update_topic(session: Session, topic: str, policies: str) -> None:
    name = str(TopicName.parse(topic))
    command = pb.Command(update_topic=pb.UpdateTopic(topic=name, policies_json=policies))
    await _ask_controller(session, f"changing {name}", command)


async def delete_topic(session: Session, topic: str, *, force: bool) -> None:
    name = str(TopicName.parse(topic))
    command = pb.Command(delete_topic=pb.DeleteTopic(topic=name, force=force))
    await _ask_controller(session, f"deleting {name}", command, gone=TopicNotFound)


async def delete_subscription(session: Session, topic: str, subscription: str, *, force: bool) -> None:
    name = str(TopicName.parse(topic))
    request = pb.DeleteSubscription(
        topic=name, subscription=validate_name(subscription, part="subscription"), force=force
    )
    what = f"deleting subscription {subscription} of {name}"
    await _ask_controller(session, what, pb.Command(delete_subscription=request), gone=SubscriptionNotFound)


async def _ask_controller(
    session: Session, what: str, command: pb.Command, *, gone: type[TxnError] | None = None
) -> None:
    """`gone`: what a repeated deletion is told once the first one, whose answer was lost, has done it."""
    deadline: Deadline = session.deadline()
    unanswered = False

    async def attempt() -> None:
        nonlocal unanswered
        link = await session.directory.controller_link(deadline)
        try:
            await link.call(command, timeout_s=min(CALL_TIMEOUT_S, deadline.remaining()))
        except (Timeout, ConnectionLost, OutcomeUnknown):
            unanswered = True
            raise
        except TxnError as error:
            if not unanswered or gone is None or not isinstance(error, gone):
                raise

    await session.repeat(what, deadline, attempt)
