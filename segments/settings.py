"""What an operator may tune of a broker. Bounds are per segment unless the name says otherwise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """`lease_ttl_s`: how long a dead broker's segments stay unowned at most. `ledger_roll_bytes`: size at which a ledger
    is closed and the next one begun. `checkpoint_entries`: entries after which the dedup snapshot beside the open ledger
    is renewed, the bound on what recovery scans for it. `segment_inflight_bytes`, `broker_inflight_bytes`: entries
    admitted and not yet stored; beyond either a send is refused with `Overloaded`. `connection_pending_bytes`: deliveries
    queued on one connection before dispatch to it pauses. `cursor_flush_s`: plain acks are persisted this often at most.
    `recover_wait_s`: how long a request waits for a segment that is being taken over. `follow_wait_s`: how long one
    waits for the decision watch to reach a revision. `hand_over_s`: time to finish what is in flight on close.
    """

    lease_ttl_s: float = 10.0
    ledger_roll_bytes: int = 64 * 1024 * 1024
    checkpoint_entries: int = 8192
    segment_inflight_bytes: int = 32 * 1024 * 1024
    broker_inflight_bytes: int = 256 * 1024 * 1024
    tail_cache_bytes: int = 8 * 1024 * 1024
    read_bytes: int = 1024 * 1024
    deliver_bytes: int = 1024 * 1024
    connection_pending_bytes: int = 4 * 1024 * 1024
    max_ack_positions: int = 10_000
    cursor_flush_s: float = 1.0
    producer_idle_s: float = 7 * 24 * 3600.0
    recover_wait_s: float = 5.0
    follow_wait_s: float = 10.0
    claim_retry_s: float = 1.0
    hand_over_s: float = 5.0
