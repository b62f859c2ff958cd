"""Reads a topic's subscriptions from the store, for listings and the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from txnstore import keys
from txnstore.access.paging import in_pages
from txnstore.records import AssignmentRecord, SubscriptionRecord, decode
from txnstore.store import KeyValue, MetadataStore
from txnwire.errors import DataCorrupt, SubscriptionNotFound

AT_ONCE: Final = 100
"""Subscriptions per read: the assignment of a topic with thousands of segments takes hundreds of KB."""


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """One subscription's records; `assignment` is None before a consumer joins. Owners know positions and backlogs."""

    name: str
    record: SubscriptionRecord
    assignment: AssignmentRecord | None

    def consumers_of_segments(self) -> dict[str, str]:
        """Segment path → id (`name@incarnation`) of the consumer that the segment is assigned to."""
        consumers = self.assignment.consumers if self.assignment else {}
        return {segment: consumer for consumer, held in reversed(consumers.items()) for segment in held}


async def list_subscriptions(
    store: MetadataStore, topic_path: str, unreadable: dict[str, str] | None = None
) -> list[SubscriptionInfo]:
    """Every subscription of a topic, by name, each with its assignment of the same revision. With `unreadable`, one
    whose records cannot be read is added to it, name → what is wrong. Raises `StoreUnavailable`, `DataCorrupt`."""
    prefix = keys.subscriptions(topic_path)
    infos: list[SubscriptionInfo] = []
    async for page in in_pages(store, prefix, keys.prefix_end(prefix), at_once=AT_ONCE, keys_only=True):
        names = [record.key[len(prefix) :].decode(errors="replace") for record in page]
        wanted = [
            key for name in names for key in (keys.subscription(topic_path, name), keys.assignment(topic_path, name))
        ]
        _, found = await store.get_many(wanted)
        for name, record, assignment in zip(names, found[::2], found[1::2], strict=True):
            if record is None:  # deleted since
                continue
            try:
                infos.append(_info(name, record, assignment))
            except DataCorrupt as error:
                if unreadable is None:
                    raise
                unreadable[name] = str(error)
    return infos


async def describe_subscription(store: MetadataStore, topic_path: str, name: str) -> SubscriptionInfo:
    """Raises `SubscriptionNotFound`, `StoreUnavailable`, `DataCorrupt`."""
    key, assigned = keys.subscription(topic_path, name), keys.assignment(topic_path, name)
    _, (record, assignment) = await store.get_many([key, assigned])
    if record is None:
        raise SubscriptionNotFound(
            f"topic://{topic_path} has no subscription {name}; `txnctl subscriptions list` shows those it has"
        )
    return _info(name, record, assignment)


def _info(name: str, record: KeyValue, assignment: KeyValue | None) -> SubscriptionInfo:
    return SubscriptionInfo(
        name,
        decode(SubscriptionRecord, record.value, key=record.key),
        decode(AssignmentRecord, assignment.value, key=assignment.key) if assignment is not None else None,
    )
