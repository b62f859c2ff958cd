"""What a broker answers on the wire: producing, consuming, acks, positions, statistics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from segments.broker import Broker
from txnwire.calls import Handler, Peer

AdminAnswer = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class BrokerService:
    """A `txnwire.calls.Service`. Handlers: open_producer, send, close_producer, subscribe, flow, ack, close_consumer,
    segment_positions. Pushes: deliver, rewind, end_of_segment, consumer_closed, producer_closed.

    `flow`, `close_producer` and `close_consumer` may be pushes (request id 0) or requests (answered with Ok).
    `admin` answers `admin_request`s by their `what`: "segment.stats" {"segment"?: path}, "subscription.stats"
    {"segment": path, "subscription"?: name}; whoever serves `admin_request` looks here too.
    """

    def __init__(self, broker: Broker) -> None:
        raise NotImplementedError

    @property
    def handlers(self) -> Mapping[str, Handler]:
        raise NotImplementedError

    @property
    def admin(self) -> Mapping[str, AdminAnswer]:
        raise NotImplementedError

    def disconnected(self, peer: Peer) -> None:
        raise NotImplementedError
