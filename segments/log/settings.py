"""What an operator may tune of a broker. Bounds are per segment unless the name says otherwise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    lease_ttl_s: float = 10.0
    """How long a dead broker's segments stay unowned at most."""
    ledger_roll_bytes: int = 64 * 1024 * 1024
    """Size at which a ledger is closed and the next one begun."""
    ledger_page: int = 256
    """Ledgers in one page of a segment's ledger list (`segments.log.ledger_pages`)."""
    checkpoint_entries: int = 2048
    """Entries after which the dedup snapshot beside the open ledger is renewed: bounds what recovery scans for it."""
    segment_inflight_bytes: int = 32 * 1024 * 1024
    """Entries admitted and not yet stored; beyond it a send is refused with `Overloaded`."""
    broker_inflight_bytes: int = 256 * 1024 * 1024
    """The same over all segments of the broker."""
    min_free_bytes: int = 1024 * 1024 * 1024
    """On the disk of the ledgers; below it, or below a twentieth of the disk where that is less, sends are refused with
    `StoreFull` (`segments.log.room`)."""
    tail_cache_bytes: int = 8 * 1024 * 1024
    """The newest entries, kept in memory for readers at the tail."""
    broker_cache_bytes: int = 256 * 1024 * 1024
    """The same over all segments of the broker; they share it (`segments.subscription.shares`)."""
    read_bytes: int = 1024 * 1024
    """What one read for one consumer takes from a ledger."""
    deliver_bytes: int = 1024 * 1024
    """Size at which deliveries leave as one push."""
    connection_pending_bytes: int = 4 * 1024 * 1024
    """Deliveries queued on one connection before dispatch to it pauses."""
    broker_deliveries_bytes: int = 512 * 1024 * 1024
    """Read ahead for, or queued to, all consumers of the broker: the three bounds before this one shrink as they share
    it (`segments.subscription.shares`)."""
    max_ack_positions: int = 10_000
    """In one ack."""
    queue_unacked_entries: int = 20_000
    """Of a queue subscription, with one consumer: beyond it that one gets nothing before it acks or nacks."""
    queue_places: int = 200_000
    """What a queue subscription keeps positions of (with consumers, set aside, delayed): beyond it it reads no further.
    """
    queue_cursor_blocks: int = 256
    """Of 4 096 positions: how far a queue may get ahead of its oldest unacked message, the first of a transaction that
    is open long, say. Beyond it it reads no further."""
    partial_acks_bytes: int = 4 * 1024 * 1024
    """Of a subscription: what the entries take of the store that are acked in part. Beyond it a queue reads no further,
    and a stream's acks of parts of more entries are refused with `Overloaded`."""
    seek_wait_s: float = 10.0
    """How long a seek waits for acks in open transactions to be decided."""
    cursor_flush_s: float = 1.0
    """Plain acks and the watermark are persisted this often at most, unless clean-up takes them along."""
    producer_idle_s: float = 7 * 24 * 3600.0
    """How long a producer without a connection is remembered."""
    recover_wait_s: float = 5.0
    """How long a request waits for a segment that is being taken over."""
    follow_wait_s: float = 10.0
    """How long a request waits for the decision watch to reach the revision it names."""
    claim_retry_s: float = 1.0
    """Pause between tries to register; also how often it is looked for segments to claim or to yield, at least."""
    settle_s: float = 5.0
    """How long a segment must have been one too many here before it moves to another broker; what its own broker leaves
    unowned for twice as long, any other takes."""
    hand_over_s: float = 5.0
    """Time to finish what is in flight when the broker closes."""
    prune_least_age_ms: int = 60_000
    """A sealed segment that nothing was ever sent to, or whose producers are forgotten, is forgotten itself at this age
    at the earliest, so that whoever is on the way from it to its children still finds it."""
    seal_wait_s: float = 5.0
    """How long what is in flight may keep a segment from being sealed; its producers wait meanwhile."""
    housekeeping_s: float = 30.0
    """How often retention is looked after, besides whenever a ledger was closed."""
    roll_least_age_ms: int = 60_000
    """However short the retention of a topic, no ledger is closed by age before it has this one."""
    roll_least_bytes: int = 1024 * 1024
    """However small the retention of a topic, no ledger is closed for it before it has this size."""
    load_sample_s: float = 10.0
    """How often it is looked whether the load of a segment has changed enough to be published; 0: never."""
    aborted_in_store: int = 4096
    """Aborted records of a segment in etcd; past it the open ledger is closed, so that its sidecar takes them: a bound
    on what a recovery reads of them."""
