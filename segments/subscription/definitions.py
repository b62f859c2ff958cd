"""Reads the subscriptions of a topic as the store has them."""

from __future__ import annotations

from typing import Final

import structlog

from txnstore import keys, records
from txnstore.access.paging import in_pages
from txnstore.records import SubscriptionRecord
from txnstore.store import MetadataStore
from txnwire.errors import DataCorrupt

log = structlog.get_logger(__name__)

SUBSCRIPTIONS_AT_ONCE: Final = 1000


async def read_definitions(store: MetadataStore, topic_path: str) -> dict[str, SubscriptionRecord | None]:
    """The definitions by name, without those that are being deleted. ▲ None for an unreadable one, and any name for a
    key that has none: it must stop neither the others nor the segment. Raises `StoreUnavailable`."""
    prefix = keys.subscriptions(topic_path)
    found: dict[str, SubscriptionRecord | None] = {}
    async for page in in_pages(store, prefix, keys.prefix_end(prefix), at_once=SUBSCRIPTIONS_AT_ONCE):
        for one in page:
            name = one.key[len(prefix) :].decode(errors="backslashreplace")
            try:
                definition = records.decode(SubscriptionRecord, one.value, key=one.key)
            except DataCorrupt as error:
                log.error("subscription_unreadable", topic=topic_path, subscription=name, error=str(error))
                found[name] = None
                continue
            if not definition.deleting_ms:
                found[name] = definition
    return found
