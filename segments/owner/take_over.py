"""Recovers a segment under a new ownership epoch (DESIGN §6, "Recovery"; scenarios R1, R2, R5, R6).

Theory of operation:

1. The broker has claimed `/owner/<segment>`; its create revision is the epoch. Every etcd write of the take-over
   compares the epoch, so an owner that was slow changes nothing.
2. Fence and close the ledger that the predecessor left open, write its length into `/ledger`, open a new one. ▲ After
   that the predecessor acks nothing more, and nothing beyond that length is ever served.
3. Join the decision watch, ▲ before any transactional state is read: a decision made while the segment loads is kept
   for it. ▲ Not before its ledgers are there: on a disk that hangs, all decisions of the cluster would be kept.
4. Read what etcd has of the segment, at one revision R: watermark, aborted records, op records, cursors, and the
   headers of their transactions (`watchers.recovery`). Aborted records that left etcd come from the sidecars.
5. Scan entry headers. An open transaction holds readers back from its own first entry on. The transaction buffer needs
   the entries behind the watermark. ▲ Dedup needs those behind the last footer, which may begin before it.
6. Load cursors and ▲ restore pending acks before any consumer attaches.
7. Apply what was decided up to R, ▲ before the first read: the aborted set is complete from the start. Then apply the
   decisions that came since, and serve.
8. On an error or a cancellation anywhere in between, leave the watch and abandon the ledger (R4). The next owner starts
   from 1; each step may be repeated.

The cost grows with open transactions and with the tail that is scanned, never with history.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import structlog

from segments.layout.subscription_records import STREAM
from segments.ledger.ledger import LedgerFailed, LedgerStore
from segments.log.ledgers.segment_log import SegmentLog
from segments.log.sends.dedup import Dedup
from segments.log.sends.dedup_turns import snapshot_in_turns
from segments.log.sends.sending import SendReply
from segments.owner.broker_wide import BrokerContext
from segments.owner.recovered_state import RecoveredState
from segments.owner.segment import Segment, SegmentOwnership
from txnwire.entry import parse_metadata, txn_of
from txnwire.errors import SubscriptionNotFound, TxnError
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.numbers import numbers_of
from txnwire.proto import txn_pb2 as pb
from txnwire.turns import in_turns, turn_size
from watchers.decisions import DecisionMembership
from watchers.outcomes import Decision
from watchers.recovery import SegmentState, load_state
from watchers.visibility import TransactionBuffer

log = structlog.get_logger(__name__)

SCAN_BYTES = 4 * 1024 * 1024
ENTRIES_AT_ONCE = 1000
DECISIONS_AT_ONCE = 200
ACKS_AT_ONCE = 500
FOOTER_AFTER_ENTRIES = 1024
"""After scanning more entries than this for dedup, the closed ledger gets its missing footer: no second scan."""


class _Joining:
    """Stands in for the segment while it is made: no decision is delivered before `Membership.loaded`."""

    def __init__(self) -> None:
        self.segment: Segment | None = None

    def decide(self, decision: Decision) -> None:
        if self.segment is not None:
            self.segment.decide(decision)

    def header_absent(self, txn_id: TxnId) -> None:
        if self.segment is not None:
            self.segment.header_absent(txn_id)


async def take_over_segment(
    path: str,
    epoch: int,
    shared: BrokerContext,
    ledger_store: LedgerStore,
    *,
    incarnation: str,
    may_ack: Callable[[], bool],
    on_lost: Callable[[Segment, TxnError], None],
    on_doubt: Callable[[Segment], None],
) -> Segment:
    """Recover and start a segment. On any error or cancellation it leaves no watch and no open ledger behind (R4).

    Raises `NotOwner`, `DataCorrupt` (R5), `StoreUnavailable`, `Timeout`, `LedgerFailed`.
    """
    begun_s = shared.clock.monotonic()
    joining = _Joining()
    membership: DecisionMembership | None = None
    ledgers = SegmentLog(
        shared.store,
        ledger_store,
        path,
        epoch=epoch,
        incarnation=incarnation,
        wall_ms=shared.clock.wall_ms,
        page_ledgers=shared.settings.ledger_page,
    )
    ownership = SegmentOwnership(may_ack=may_ack, on_lost=on_lost, on_doubt=on_doubt)
    try:
        await ledgers.take_over()
        membership = shared.decisions.join(joining)
        state = await load_state(shared.store, path, epoch)
        await membership.expect(state.open_transactions)
        recovered, scanned = await _recover(state, ledgers, membership, shared, now_s=begun_s)
        segment = joining.segment = Segment(path, epoch, shared, recovered, ownership)
        await _load_subscriptions(segment, state)
        await _apply_decisions(segment, state)
        await membership.loaded(state.open_transactions)
    except BaseException:
        if membership is not None:
            membership.leave()
        ledgers.abandon()
        raise
    shared.decisions.loaded_at(state.revision)
    segment.start()
    segment.recovery_s = round(shared.clock.monotonic() - begun_s, 3)
    _log_take_over(segment, state, scanned)
    return segment


async def _recover(
    state: SegmentState,
    ledgers: SegmentLog,
    membership: DecisionMembership,
    shared: BrokerContext,
    *,
    now_s: float,
) -> tuple[RecoveredState, int]:
    """The segment's state without its subscriptions, and the number of entries scanned for it."""
    buffer = await state.transaction_buffer(last_confirmed=ledgers.last_confirmed, fenced_below=_fenced_below(ledgers))
    # ▲ Aborted records that have left etcd for sidecars must be loaded before the first read.
    for ledger_id, aborted in (await ledgers.load_sidecars()).items():
        buffer.in_sidecar(ledger_id, aborted)
        await asyncio.sleep(0)
    dedup: Dedup[SendReply] = Dedup(idle_s=shared.settings.producer_idle_s)
    scanned = await _scan(ledgers, state.watermark, buffer, dedup, now_s=now_s)
    recovered = RecoveredState(
        ledgers=ledgers, buffer=buffer, dedup=dedup, watermark=state.watermark_record, membership=membership
    )
    return recovered, scanned


def _log_take_over(segment: Segment, state: SegmentState, scanned: int) -> None:
    log.info(
        "segment_taken_over",
        segment=segment.path,
        epoch=segment.epoch,
        open_transactions=len(state.open_transactions),
        leftovers=len(state.decisions),
        scanned_entries=scanned,
        seconds=segment.recovery_s,
    )


def _fenced_below(ledgers: SegmentLog) -> Position:
    """The place before the ledger that this owner opened: opening it fenced everything older."""
    return ledgers.last_confirmed if ledgers.writer is None else Position(ledgers.writer.ledger_id, -1)


async def _scan(
    ledgers: SegmentLog,
    watermark: Position,
    buffer: TransactionBuffer,
    dedup: Dedup[SendReply],
    *,
    now_s: float,
) -> int:
    """Read the headers of the tail; returns their number. An open transaction pins at its own first entry here (R1).

    ▲ Rebuild dedup from the last footer, not from the watermark: entries below the watermark are decided, but their
    producers may still resend them.
    """
    covered, snapshot = await ledgers.last_footer()
    if snapshot is not None:
        dedup.restore(snapshot, now_s)
    replayed = scanned = 0
    async for position, metadata in _headers(ledgers, min(watermark, covered)):
        scanned += 1
        if scanned % turn_size(ENTRIES_AT_ONCE) == 0:  # one read holds tens of thousands of small entries
            await asyncio.sleep(0)
        if position > watermark and (txn_id := txn_of(metadata)) is not None:
            buffer.scanned(txn_id, metadata.writer, position)
        if position > covered:
            replayed += 1
            dedup.replay(metadata.producer, metadata.incarnation, metadata.sequence_id, metadata.count, position, now_s)
            if (numbers := numbers_of(metadata)) is not None:
                dedup.numbered.stored(metadata.producer, metadata.incarnation, numbers, now_s)
    if replayed > FOOTER_AFTER_ENTRIES:
        try:
            await ledgers.write_closed_footer(await snapshot_in_turns(dedup, now_s))
        except LedgerFailed as error:  # ▲ a full disk may have room for all else: the next owner scans again
            log.warning("closed_footer_not_written", entries=replayed, error=str(error))
    return scanned


async def _headers(ledgers: SegmentLog, after: Position) -> AsyncIterator[tuple[Position, pb.EntryMetadata]]:
    end = ledgers.last_confirmed
    at = ledgers.next_after(after)
    while at <= end:
        for position, data in await ledgers.read(at, end, max_bytes=SCAN_BYTES):
            yield position, parse_metadata(data)
            at = position
        at = ledgers.next_after(at)


async def _load_subscriptions(segment: Segment, state: SegmentState) -> None:
    """Load cursors, and ▲ restore every pending ack (P5) before any consumer attaches."""
    for name in state.subscriptions:
        table, stored = segment.subscriptions, state.cursor_blocks.get(name, ())
        try:
            definition = await table.definition(name)
        except SubscriptionNotFound:
            # Deleted: its remaining acks must still be decided and cleaned up.
            type, cursor = STREAM, table.cursor(None, EARLIEST, stored)
        else:
            type, cursor = definition.type, await table.stored_cursor(definition, stored)
        subscription = table.add(name, type, cursor, await state.pending_acks(name, cursor))
        subscription.rolled()
        async for part in in_turns(state.ack_ops.get(name, ()), ACKS_AT_ONCE):
            for op in part:
                subscription.restored(op.txn_id, op.consumer)
    async for written in in_turns(state.written):
        for txn_id in written:
            segment.pipeline.gate.loaded(txn_id)


async def _apply_decisions(segment: Segment, state: SegmentState) -> None:
    """Apply decided leftovers, ▲ before the first read: the aborted set is complete from the start (R2)."""
    async for part in in_turns(state.decisions, DECISIONS_AT_ONCE):
        for decision in part:
            segment.decide(decision)
