"""Lists the settings of a broker that an operator may tune. Bounds are per segment unless the name says otherwise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    lease_ttl_s: float = 10.0
    """The longest time that a dead broker's segments stay unowned."""
    ledger_roll_bytes: int = 64 * 1024 * 1024
    """Size at which a ledger is closed and the next one opened."""
    ledger_page: int = 256
    """Ledgers in one page of a segment's ledger list (`segments.log.ledgers.ledger_pages`)."""
    checkpoint_entries: int = 2048
    """Entries after which the dedup snapshot beside the open ledger is renewed: bounds the scan of a recovery."""
    segment_inflight_bytes: int = 32 * 1024 * 1024
    """Entries admitted but not yet stored; beyond it a send is refused with `Overloaded`."""
    broker_inflight_bytes: int = 256 * 1024 * 1024
    """The same over all segments of the broker."""
    min_free_bytes: int = 1024 * 1024 * 1024
    """On the disk of the ledgers; below it, or below a twentieth of the disk if that is less, sends are refused with
    `StoreFull` (`segments.log.room`)."""
    tail_cache_bytes: int = 8 * 1024 * 1024
    """The newest entries, kept in memory for readers at the tail."""
    broker_cache_bytes: int = 256 * 1024 * 1024
    """The same over all segments of the broker; they share it (`segments.subscription.shares`)."""
    read_bytes: int = 1024 * 1024
    """The most that one read for one consumer takes from a ledger."""
    deliver_bytes: int = 1024 * 1024
    """Size at which deliveries are sent as one push."""
    connection_pending_bytes: int = 4 * 1024 * 1024
    """Deliveries queued on one connection before dispatch to it pauses."""
    broker_deliveries_bytes: int = 512 * 1024 * 1024
    """Read ahead for, or queued to, all consumers of the broker, which share it: as they do, the three bounds before
    this one shrink (`segments.subscription.shares`)."""
    max_ack_positions: int = 10_000
    """Positions in one ack."""
    queue_unacked_entries: int = 20_000
    """Entries that one consumer of a queue holds unacked; beyond it the consumer gets none before it acks or nacks."""
    queue_places: int = 200_000
    """Entries whose positions a queue subscription keeps (with consumers, set aside, delayed); beyond it the queue
    reads no further."""
    queue_cursor_blocks: int = 256
    """Blocks of 4 096 positions: how far a queue may get ahead of its oldest unacked message, for example the first one
    of a long transaction. Beyond it the queue reads no further."""
    partial_acks_bytes: int = 4 * 1024 * 1024
    """Store space of a subscription's partly acked entries. Beyond it a queue reads no further, and a stream's partial
    acks of more entries are refused with `Overloaded`."""
    seek_wait_s: float = 10.0
    """How long a seek waits for acks in open transactions to be decided."""
    cursor_flush_s: float = 1.0
    """Shortest pause between two writes of plain acks and the watermark, unless clean-up writes them too."""
    producer_idle_s: float = 7 * 24 * 3600.0
    """How long a producer without a connection is remembered."""
    recover_wait_s: float = 5.0
    """How long a request waits for a segment that is being taken over."""
    follow_wait_s: float = 10.0
    """How long a request waits for the decision watch to reach the revision it names."""
    claim_retry_s: float = 1.0
    """Pause between tries to register; also the longest pause between checks for segments to claim or to yield."""
    settle_s: float = 5.0
    """How long a broker must have had a segment too many before that segment moves; a segment that its own broker
    leaves unowned for twice as long may be taken by any other."""
    hand_over_s: float = 5.0
    """Time to finish entries in flight when the broker closes."""
    prune_least_age_ms: int = 60_000
    """Lowest age for pruning a sealed segment that never got a send or has forgotten its producers, so that a client
    moving from it to its children still finds it."""
    seal_wait_s: float = 5.0
    """How long entries in flight may delay a seal; the segment's producers wait meanwhile."""
    housekeeping_s: float = 30.0
    """Pause between housekeeping rounds; a closed ledger starts one too."""
    roll_least_age_ms: int = 60_000
    """Lowest age at which a ledger is closed by age, however short the topic's retention."""
    roll_least_bytes: int = 1024 * 1024
    """Lowest size at which a ledger is closed by size, however small the topic's retention."""
    load_sample_s: float = 10.0
    """Pause between checks whether a segment's load has changed enough to be published; 0: never."""
    lag_sample_s: float = 15.0
    """Pause between counts of how far subscriptions are behind, for the metrics; 0: never."""
    aborted_in_store: int = 4096
    """Aborted records of the open ledger in etcd; beyond it that ledger is closed, so that its sidecar takes them:
    bounds the number that a recovery reads."""
