"""A decision watch for tests."""

from __future__ import annotations

from txnstore.memory.memory_store import NO_FAULT, Fate
from txnwire.ids import TxnId
from watchers.decisions import DecisionSettings

A, B, C = TxnId(0, 1), TxnId(0, 2), TxnId(7, 1)


OFTEN = DecisionSettings(reconcile_interval_s=0.02, held_long_s=0.0, reconcile_pause_s=0.0)


NEVER = DecisionSettings(reconcile_interval_s=3600.0)


class Late:
    """Events come a day late."""

    def fate(self, request: str, client: str) -> Fate:
        return NO_FAULT

    def watch_delay_s(self, client: str) -> float:
        return 86400.0
