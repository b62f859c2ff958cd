"""The state that a take-over passes to the new segment."""

from __future__ import annotations

from dataclasses import dataclass

from segments.log.ledgers.segment_log import SegmentLog
from segments.log.sends.dedup import Dedup
from segments.log.sends.sending import SendReply
from txnstore.store import KeyValue
from watchers.decisions import DecisionMembership
from watchers.visibility import TransactionBuffer


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredState:
    """The recovered state that the segment starts with. `watermark`: its record, None if there is none."""

    ledgers: SegmentLog
    buffer: TransactionBuffer
    dedup: Dedup[SendReply]
    watermark: KeyValue | None
    membership: DecisionMembership
