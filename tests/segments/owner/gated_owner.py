"""An owner whose store and disk are gated."""

from __future__ import annotations

from segments.broker.broker import Broker
from tests.segments.brokering import Client, Cluster
from tests.segments.gates import GatedLedgers, GatedStore


class Gated:
    """A broker with gates, a connection to it and a segment's path."""

    def __init__(self, cluster: Cluster, segment: str, client: Client) -> None:
        self.cluster = cluster
        self.segment = segment
        self.client = client
        self.broker: Broker = cluster.nodes[-1].broker
        self.store: GatedStore = cluster.nodes[-1].store  # type: ignore[assignment]
        self.ledgers: GatedLedgers = cluster.nodes[-1].ledgers  # type: ignore[assignment]
