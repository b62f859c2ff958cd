"""A queue subscription at the elected controller: every consumer has every segment, so nothing is assigned or fenced.

Nothing of it is written to etcd but the subscription's record; consumers that join are told the segments, and told
again when the layout changes.
"""

from __future__ import annotations

from segments.directory import Directory
from segments.membership import MAX_CONSUMERS
from segments.stream_group import Link
from txnwire.errors import Overloaded, TopicNotFound, TxnError
from txnwire.proto import txn_pb2 as pb


class QueueGroup:
    """Members during one term of the controller. `links`: the connected ones, over all terms."""

    def __init__(self, directory: Directory, *, topic_path: str, subscription: str, links: dict[str, Link]) -> None:
        self._directory = directory
        self._topic_path = topic_path
        self._subscription = subscription
        self._links = links
        self._epoch = 0
        self._ended: TxnError | None = None

    async def join(self, consumer: str, link: Link) -> pb.Assignment:
        """Take `consumer` in. Joining again changes nothing. Raises `Overloaded`, `TopicNotFound`, or what ended it."""
        if self._ended is not None:
            raise self._ended
        if consumer not in self._links and len(self._links) >= MAX_CONSUMERS:
            raise Overloaded(f"the subscription has {MAX_CONSUMERS} consumers already, the most that are allowed")
        assignment = self._assignment(consumer)
        if assignment is None:
            raise TopicNotFound(f"topic://{self._topic_path} does not exist")
        self._links[consumer] = link
        self._epoch = max(self._epoch, assignment.epoch)
        return assignment

    async def leave(self, consumer: str) -> None:
        self._links.pop(consumer, None)

    def disconnected(self, consumer: str, *, grace_s: float) -> None:
        """Nobody waits for it: what it had goes to the others as soon as the brokers miss it."""
        self._links.pop(consumer, None)

    def refresh(self) -> None:
        """The layout may have changed: every consumer is told the segments there are now."""
        for consumer, link in self._links.items():
            assignment = self._assignment(consumer)
            if assignment is None or assignment.epoch <= self._epoch:
                return
            link.push(pb.Command(assignment=assignment))
        topology = self._directory.topics().get(self._topic_path)
        self._epoch = max(self._epoch, topology.epoch if topology else 0)

    def _assignment(self, consumer: str) -> pb.Assignment | None:
        topology = self._directory.topics().get(self._topic_path)
        if topology is None:
            return None
        return pb.Assignment(
            topic=f"topic://{self._topic_path}",
            subscription=self._subscription,
            consumer=consumer.partition("@")[0],
            epoch=topology.epoch,
            segments=topology.paths.values(),
        )

    async def close(self, error: TxnError) -> None:
        """The term is over, or the subscription is being deleted."""
        self._ended = error
