"""The objects that all segments of one broker share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from segments.layout.topology import Topology
from segments.log.measures import Measures
from segments.log.room import FreeSpace
from segments.log.sends.sending import Budget
from segments.log.settings import BrokerSettings
from segments.subscription.shares import CacheShares, DeliveryShares
from txnstore.store import MetadataStore
from txnwire.ports import Clock
from watchers.clean_up import CleanUp
from watchers.decisions import DecisionWatch


@dataclass(slots=True, kw_only=True, eq=False)
class BrokerContext:
    """Holds the broker's shared objects. The broker makes it and passes it to each of its segments."""

    store: MetadataStore
    clock: Clock
    settings: BrokerSettings
    decisions: DecisionWatch
    clean_up: CleanUp
    budget: Budget
    room: FreeSpace
    shares: DeliveryShares
    caches: CacheShares
    measures: Measures
    op_counter: Callable[[], int]
    topology: Callable[[str], Topology | None]
    """Returns the layout of a topic (by path), as this process knows it."""
    wake_housekeeping: Callable[[str], None]
    """Called with a segment's path when one of its ledgers was closed."""
