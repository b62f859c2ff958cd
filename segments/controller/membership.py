"""Keeps the members of one stream subscription, and plans its next assignment record (DESIGN §8). Pure.

Etcd holds the last assignment record. Only memory holds which members are connected, and until when a disconnected one
may return. A consumer is a `name@incarnation` (`segments.layout.assignment.consumer_id`); one name has one incarnation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from segments.layout.assignment import assign, consumer_name
from txnstore.records import AssignmentRecord
from txnwire.errors import NotAllowed, Overloaded

MAX_CONSUMERS = 1000
_REPLACED_REMEMBERED = 1000


class GroupMembership:
    """Holds the members and the confirmed record of one subscription. Times are monotonic seconds.

    Attributes: `record`, `mod_revision`: the record known to be in etcd (None and 0: none so far).
    """

    def __init__(self, record: AssignmentRecord | None, mod_revision: int, *, gone_at: float) -> None:
        """Every consumer in `record` is a member without a connection, given up at `gone_at`."""
        self.record = record
        self.mod_revision = mod_revision
        self._epoch = record.epoch if record else 0
        self._gone_at: dict[str, float | None] = dict.fromkeys(self.assigned, gone_at)
        self._replaced: dict[str, None] = {}

    @property
    def assigned(self) -> Mapping[str, Sequence[str]]:
        """Consumer → segment paths, as confirmed."""
        return self.record.consumers if self.record else {}

    def is_member(self, consumer: str) -> bool:
        return consumer in self._gone_at

    def join(self, consumer: str, *, again: bool = False) -> tuple[str, ...]:
        """Add a connected `consumer`. Returns the other incarnations of its name, which it replaces at once.

        Raises `NotAllowed` if it was itself replaced, so that two processes with one name do not take turns;
        `Overloaded` past `MAX_CONSUMERS`. ▲ `again`: it was a member before, so a present member of its name has
        replaced it, perhaps under another controller: a consumer that wakes up late must not take the name back.
        """
        name = consumer_name(consumer)
        if consumer in self._replaced:
            raise NotAllowed(f"consumer {consumer} was replaced by another that joined with the name {name}")
        replaced = tuple(other for other in self._gone_at if other != consumer and consumer_name(other) == name)
        if again and replaced:
            raise NotAllowed(f"consumer {consumer} was replaced by {replaced[0]}, which joined with the name {name}")
        if not replaced and consumer not in self._gone_at and len(self._gone_at) >= MAX_CONSUMERS:
            raise Overloaded(f"the subscription has {MAX_CONSUMERS} consumers already, the most that are allowed")
        for other in replaced:
            del self._gone_at[other]
            self._replaced[other] = None
        while len(self._replaced) > _REPLACED_REMEMBERED:
            del self._replaced[next(iter(self._replaced))]
        self._gone_at[consumer] = None
        return replaced

    def leave(self, consumer: str) -> None:
        self._gone_at.pop(consumer, None)

    def disconnect(self, consumer: str, *, gone_at: float) -> None:
        """The connection of `consumer` is gone: give it up at `gone_at` unless it joins again."""
        if consumer in self._gone_at:
            self._gone_at[consumer] = gone_at

    def connected(self) -> tuple[str, ...]:
        """Members without a call of `disconnect` since they joined."""
        return tuple(consumer for consumer, gone_at in self._gone_at.items() if gone_at is None)

    def expire(self, now: float) -> tuple[str, ...]:
        """Give up the members whose time is over, and return them."""
        gone = tuple(c for c, gone_at in self._gone_at.items() if gone_at is not None and gone_at <= now)
        for consumer in gone:
            del self._gone_at[consumer]
        return gone

    def next_expiry(self) -> float | None:
        return min((gone_at for gone_at in self._gone_at.values() if gone_at is not None), default=None)

    def plan(self, segments: Sequence[str]) -> AssignmentRecord | None:
        """The next record to write, with the next epoch; None if the confirmed one is right already.

        A replaced consumer's segments go to its successor; all others keep theirs as far as balance allows.
        """
        by_name = {consumer_name(consumer): consumer for consumer in self._gone_at}
        previous = {by_name.get(consumer_name(c), c): held for c, held in self.assigned.items()}
        wanted = assign(tuple(self._gone_at), segments, previous)
        if wanted == self.assigned:
            return None
        return AssignmentRecord(epoch=self._epoch + 1, consumers=wanted)

    def confirm(self, record: AssignmentRecord | None, mod_revision: int) -> None:
        """`record` is in etcd at `mod_revision`: written now, or found there. Epochs never go back."""
        self.record = record
        self.mod_revision = mod_revision
        self._epoch = max(self._epoch, record.epoch if record else 0)
