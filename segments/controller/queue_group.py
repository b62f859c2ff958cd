"""A queue subscription at the elected controller: every consumer reads every segment that is not drained, parents and
children alike, so nothing is assigned or fenced.

Etcd holds only the subscription's record. The controller sends the segments to consumers that join, and again when the
layout changes.
"""

from __future__ import annotations

from segments.controller.membership import MAX_CONSUMERS
from segments.controller.stream_group import ConsumerLink
from segments.layout.assignment import parse_consumer_id, undrained
from segments.layout.directory import Directory
from txnwire.errors import InvalidArgument, Overloaded, TopicNotFound, TxnError
from txnwire.proto import txn_pb2 as pb


class QueueGroup:
    """Sends the members of one queue their segments during one term. `links`: connected members, over all terms."""

    def __init__(
        self, directory: Directory, *, topic_path: str, subscription: str, links: dict[str, ConsumerLink]
    ) -> None:
        self._directory = directory
        self._topic_path = topic_path
        self._subscription = subscription
        self._links = links
        self._told: dict[str, tuple[int, tuple[str, ...]]] = {}
        """By consumer: the layout epoch and segments sent last."""
        self._isolations: dict[str, int] = {}
        """By consumer, if it has named one."""
        self._ended: TxnError | None = None

    async def join(
        self, consumer: str, link: ConsumerLink, *, again: bool = False, isolation: int | None = None
    ) -> pb.Assignment:
        """Add `consumer`. A repeated join changes nothing. Raises `InvalidArgument` (another `isolation` than the
        others'), `Overloaded`, `TopicNotFound`, or the error given to `close`."""
        if self._ended is not None:
            raise self._ended
        if isolation is not None:
            self._check_isolation(consumer, isolation)
        if consumer not in self._links and len(self._links) >= MAX_CONSUMERS:
            raise Overloaded(f"the subscription has {MAX_CONSUMERS} consumers already, the most that are allowed")
        assignment = self._assignment(consumer)
        if assignment is None:
            raise TopicNotFound(f"topic://{self._topic_path} does not exist")
        self._links[consumer] = link
        if isolation is not None:
            self._isolations[consumer] = isolation
        self._told[consumer] = (assignment.epoch, tuple(assignment.segments))
        return assignment

    def _check_isolation(self, consumer: str, isolation: int) -> None:
        for other, others in self._isolations.items():
            if other != consumer and other in self._links and others != isolation:
                raise InvalidArgument(
                    f"the consumers of queue {self._subscription} share its messages, so they read with one isolation: "
                    f"{consumer} asks for {_name(isolation)}, {other} has {_name(others)}"
                )

    async def leave(self, consumer: str) -> None:
        self._forget(consumer)

    def disconnected(self, consumer: str, *, grace_s: float) -> None:
        """Forget it at once, without grace: brokers redeliver its messages once they miss its connection."""
        self._forget(consumer)

    def _forget(self, consumer: str) -> None:
        self._links.pop(consumer, None)
        self._told.pop(consumer, None)
        self._isolations.pop(consumer, None)

    def refresh(self) -> None:
        """Send consumers the present segments: the layout may have changed, or a segment was drained."""
        for consumer, link in self._links.items():
            assignment = self._assignment(consumer)
            if assignment is None:
                return
            told = (assignment.epoch, tuple(assignment.segments))
            if told != self._told.get(consumer) and told[0] >= self._told.get(consumer, told)[0]:
                self._told[consumer] = told
                link.push(pb.Command(assignment=assignment))

    def _assignment(self, consumer: str) -> pb.Assignment | None:
        topology = self._directory.topics().get(self._topic_path)
        if topology is None:
            return None
        name, incarnation = parse_consumer_id(consumer)
        return pb.Assignment(
            topic=f"topic://{self._topic_path}",
            subscription=self._subscription,
            consumer=name,
            incarnation=incarnation,
            epoch=topology.epoch,
            segments=undrained(topology, self._directory.drained(self._topic_path, self._subscription)),
        )

    async def close(self, error: TxnError) -> None:
        """The term is over, or the subscription is being deleted."""
        self._ended = error


def _name(isolation: int) -> str:
    if isolation not in pb.Isolation.values():
        return str(isolation)
    return pb.Isolation.Name(isolation).removeprefix("ISOLATION_").lower()
