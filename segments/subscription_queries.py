"""What the store holds of a topic's subscriptions, for listings and the command line."""

from __future__ import annotations

from dataclasses import dataclass

from txnstore import keys
from txnstore.records import AssignmentRecord, SubscriptionRecord, decode
from txnstore.store import MetadataStore
from txnwire.errors import SubscriptionNotFound


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """`assignment` is None where no consumer has joined yet. Positions and backlogs are the segment owners' to tell."""

    name: str
    record: SubscriptionRecord
    assignment: AssignmentRecord | None

    def consumer_of(self, segment: str) -> str | None:
        """The consumer id (`name@incarnation`) that a segment is assigned to."""
        consumers = self.assignment.consumers if self.assignment else {}
        return next((consumer for consumer, held in consumers.items() if segment in held), None)


async def list_subscriptions(store: MetadataStore, topic_path: str) -> list[SubscriptionInfo]:
    """Every subscription of a topic, by name, at one revision. Raises `StoreUnavailable`, `DataCorrupt`."""
    prefix, assigned = keys.subscriptions(topic_path), keys.assignment(topic_path, "")
    found = await store.range(prefix, keys.prefix_end(prefix))
    assignments = await store.range(assigned, keys.prefix_end(assigned), revision=found.revision)
    by_name = {
        record.key[len(assigned) :]: decode(AssignmentRecord, record.value, key=record.key)
        for record in assignments.records
    }
    return [
        SubscriptionInfo(
            record.key[len(prefix) :].decode(),
            decode(SubscriptionRecord, record.value, key=record.key),
            by_name.get(record.key[len(prefix) :]),
        )
        for record in found.records
    ]


async def describe_subscription(store: MetadataStore, topic_path: str, name: str) -> SubscriptionInfo:
    """Raises `SubscriptionNotFound`, `StoreUnavailable`, `DataCorrupt`."""
    key, assigned = keys.subscription(topic_path, name), keys.assignment(topic_path, name)
    _, (record, assignment) = await store.get_many([key, assigned])
    if record is None:
        raise SubscriptionNotFound(
            f"topic://{topic_path} has no subscription {name}; `txnctl subscriptions list` shows those it has"
        )
    return SubscriptionInfo(
        name,
        decode(SubscriptionRecord, record.value, key=key),
        decode(AssignmentRecord, assignment.value, key=assigned) if assignment is not None else None,
    )
