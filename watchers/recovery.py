"""Reads a segment's transactional state for a new owner: everything at one revision R (DESIGN §6, "Recovery").

Before that, the segment has joined the decision watch, taken ownership and fenced the old ledger. Then

    state = await load_state(store, segment, owner_epoch)        watermark, aborted, indexes, ops, cursors, headers at R
    buffer = await state.transaction_buffer(last_confirmed=…, fenced_below=…)
    for each entry behind state.watermark: buffer.scanned(txn_id, writer, position)
    pending = await state.pending_acks(subscription, cursor)     cursor from state.cursor_blocks[subscription]
    for decision in state.decisions: decide(decision)            decided leftovers; aborted ones before the first read
    await membership.loaded(state.open_transactions)             decisions after R

Write ops are not read: an entry names its transaction and writer itself, and an op without an entry needs only its
deletion. Cost: open and not yet cleaned transactions, never history.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from txnstore import keys, records
from txnstore.access.paging import in_pages, in_parts
from txnstore.records import AbortedRecord, Header, Op, Watermark
from txnstore.store import Compacted, KeyValue, MetadataStore
from txnwire.errors import NotOwner, Timeout
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.turns import in_turns, turn_size
from watchers import acks
from watchers.acks import AckOp
from watchers.outcomes import Decision
from watchers.pending_acks import CursorView, PendingAcks
from watchers.visibility import AbortedKey, TransactionBuffer

READ_AT_ONCE: Final = 500
"""Records of a page, or ranges or headers of one request."""
POSITIONS_AT_ONCE: Final = 250
"""Positions of acks restored without a pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentState:
    """State as of `revision`. `decisions`: of transactions with leftovers here, in revision order. `open_transactions`:
    those without a decision (▲ `absent_headers` among them: still pinned). `written`: transactions with writes here.
    `ack_ops` and `cursor_blocks`: by subscription, in key order."""

    segment: str
    owner_epoch: int
    revision: int
    watermark: Position
    watermark_record: KeyValue | None
    aborted: Mapping[AbortedKey, Position | None]
    written: Sequence[TxnId]
    ack_ops: Mapping[str, Sequence[AckOp]]
    cursor_blocks: Mapping[str, Sequence[KeyValue]]
    decisions: Sequence[Decision]
    open_transactions: Sequence[TxnId]
    absent_headers: Sequence[TxnId]

    async def transaction_buffer(self, *, last_confirmed: Position, fenced_below: Position) -> TransactionBuffer:
        """A buffer with every transaction of the write index registered; call `scanned`, then `decided`, before any
        read.
        """
        buffer = TransactionBuffer(
            self.segment,
            watermark=self.watermark,
            last_confirmed=last_confirmed,
            aborted=self.aborted,
            fenced_below=fenced_below,
        )
        async for part in in_turns(self.written):
            for txn_id in part:
                buffer.loaded(txn_id)
        return buffer

    async def pending_acks(self, subscription: str, cursor: CursorView) -> PendingAcks:
        """The subscription's pending acks, with every ack op restored (P5)."""
        pending, positions = PendingAcks(self.segment, subscription, cursor), 0
        for op in self.ack_ops.get(subscription, ()):
            pending.restore(op)
            positions += len(op.positions)
            if positions >= turn_size(POSITIONS_AT_ONCE):
                positions = 0
                await asyncio.sleep(0)
        return pending

    @property
    def subscriptions(self) -> Sequence[str]:
        """Subscriptions with cursor records or ack ops here, in order of name."""
        return sorted({**self.cursor_blocks, **self.ack_ops})


async def load_state(
    store: MetadataStore, segment: str, owner_epoch: int, *, timeout_s: float = 30.0, at_once: int = READ_AT_ONCE
) -> SegmentState:
    """Reads any amount of state: `timeout_s` bounds the time without an answer of the store, `at_once` the size of one
    request.

    Raises `NotOwner` if the segment has another owner at R, `DataCorrupt` naming the key of a record that does not
    parse, `StoreUnavailable`, `Timeout`."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s) as limit:
            while True:
                loading = _Loading(
                    store, segment, owner_epoch, at_once, lambda: limit.reschedule(loop.time() + timeout_s)
                )
                try:
                    return await loading.load()
                except Compacted:
                    continue  # compaction overtook a slow read: read all again, at a newer revision
    except TimeoutError:
        raise Timeout(
            f"the transactional state of {segment} was not read: no answer from etcd within {timeout_s} s"
        ) from None


class _Loading:
    """One attempt, at one revision. Calls `went_on` with every page read, where other tasks run too."""

    def __init__(
        self, store: MetadataStore, segment: str, owner_epoch: int, at_once: int, went_on: Callable[[], None]
    ) -> None:
        self._store = store
        self._segment = segment
        self._owner_epoch = owner_epoch
        self._at_once = at_once
        self._went_on = went_on
        self._revision = 0

    async def load(self) -> SegmentState:
        segment = self._segment
        self._revision, (owner, watermark) = await self._store.get_many([keys.owner(segment), keys.watermark(segment)])
        self._check_owner(owner)
        self._went_on()
        with self._store.pin(self._revision):
            aborted: dict[AbortedKey, Position | None] = {}
            async for page in self._pages(keys.aborted_records(segment)):
                aborted |= {keys.aborted_parts(record.key): _max_position(record) for record in page}
            written = [
                keys.txn_of(record.key)
                async for page in self._pages(keys.writes_by_segment(segment))
                for record in page
            ]
            acked = [
                _ack_index_parts(record.key)
                async for page in self._pages(keys.acks_by_segment(segment))
                for record in page
            ]
            blocks = [record async for page in self._pages(keys.cursors(segment)) for record in page]
            ack_ops = await self._ack_ops(acked)
            headers = await self._headers(list(dict.fromkeys([*written, *(txn_id for _, txn_id in acked)])))
        decisions = [one for one in headers.values() if isinstance(one, Decision)]
        return SegmentState(
            segment=segment,
            owner_epoch=self._owner_epoch,
            revision=self._revision,
            watermark=_watermark(watermark),
            watermark_record=watermark,
            aborted=aborted,
            written=written,
            ack_ops=ack_ops,
            cursor_blocks=_by_subscription(blocks),
            decisions=sorted(decisions, key=lambda decision: decision.revision),
            open_transactions=[txn_id for txn_id, one in headers.items() if not isinstance(one, Decision)],
            absent_headers=[txn_id for txn_id, one in headers.items() if one is None],
        )

    def _check_owner(self, owner: KeyValue | None) -> None:
        if owner is None or owner.create_revision != self._owner_epoch:
            now = "nobody" if owner is None else f"epoch {owner.create_revision}"
            raise NotOwner(f"this broker no longer owns {self._segment}: had epoch {self._owner_epoch}, now {now}")

    async def _pages(self, prefix: bytes) -> AsyncIterator[tuple[KeyValue, ...]]:
        end, revision = keys.prefix_end(prefix), self._revision
        async for page in in_pages(self._store, prefix, end, at_once=self._at_once, revision=revision):
            await self._pause()
            yield page
        self._went_on()

    async def _pause(self) -> None:
        self._went_on()
        await asyncio.sleep(0)

    async def _ack_ops(self, acked: Sequence[tuple[str, TxnId]]) -> dict[str, list[AckOp]]:
        """One range per (subscription, transaction), many in one request: their keys are not adjacent."""
        ops: dict[str, list[AckOp]] = {}
        for part in in_parts(acked, self._store.page_size(self._at_once)):
            prefixes = [keys.ack_ops(txn_id, self._segment, subscription) for subscription, txn_id in part]
            ranges = [(prefix, keys.prefix_end(prefix)) for prefix in prefixes]
            found = await self._store.ranges(ranges, revision=self._revision)
            for (subscription, _), ranged in zip(part, found, strict=True):
                ops.setdefault(subscription, []).extend(
                    acks.from_op(record.key, records.decode(Op, record.value, key=record.key)) for record in ranged
                )
            await self._pause()
        return ops

    async def _headers(self, txn_ids: Sequence[TxnId]) -> dict[TxnId, Decision | Header | None]:
        """Each decided, still open, or ▲ absent: an absent one is held like an open one."""
        headers: dict[TxnId, Decision | Header | None] = {}
        for part in in_parts(txn_ids, self._store.page_size(self._at_once)):
            _, found = await self._store.get_many([keys.txn(txn_id) for txn_id in part], revision=self._revision)
            for txn_id, record in zip(part, found, strict=True):
                headers[txn_id] = _decision_or_open(txn_id, record)
            await self._pause()
        return headers


def _decision_or_open(txn_id: TxnId, record: KeyValue | None) -> Decision | Header | None:
    if record is None:
        return None
    header = records.decode(Header, record.value, key=record.key)
    return header if record.version == 1 else Decision.from_header(txn_id, header, record.mod_revision)


def _watermark(record: KeyValue | None) -> Position:
    if record is None:
        return EARLIEST
    return Position(*records.decode(Watermark, record.value, key=record.key).position)


def _max_position(record: KeyValue) -> Position | None:
    position = records.decode(AbortedRecord, record.value, key=record.key).max_position
    return None if position is None else Position(*position)


def _ack_index_parts(key: bytes) -> tuple[str, TxnId]:
    """(subscription, transaction) of an ack index key."""
    return keys.ack_index_parts(key)[1:]


def _by_subscription(blocks: Sequence[KeyValue]) -> dict[str, list[KeyValue]]:
    found: dict[str, list[KeyValue]] = {}
    for record in blocks:
        found.setdefault(keys.cursor_parts(record.key)[1], []).append(record)
    return found
