"""What a new owner reads of a segment's transactional state: everything at one revision R (DESIGN §6, "Recovery").

The segment has joined the decision watch, taken ownership and fenced the old ledger before. Then

    state = await load_state(store, segment, owner_epoch)        watermark, aborted, indexes, ops, cursors, headers at R
    buffer = state.transaction_buffer(last_confirmed=…, fenced_below=…)
    for each entry behind state.watermark: buffer.scanned(txn_id, writer, position)
    pending = state.pending_acks(subscription, cursor)           cursor from state.cursor_blocks[subscription]
    for decision in state.decisions: decide(decision)            decided leftovers; aborted ones before the first read
    membership.loaded(state.open_transactions)                   decisions after R

Write ops are not read: an entry names its transaction and writer itself, and what has no entry needs nothing but its
deletion. Cost: open and not yet cleaned transactions, never history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from txnstore import keys, records
from txnstore.records import AbortedRecord, Header, Op, Watermark
from txnstore.store import Compacted, KeyValue, MetadataStore
from txnwire.errors import NotOwner, StoreUnavailable, Timeout
from txnwire.ids import EARLIEST, Position, TxnId
from watchers import acks
from watchers.acks import AckOp
from watchers.outcomes import Decision
from watchers.pending_acks import CursorView, PendingAcks
from watchers.visibility import AbortedKey, TransactionBuffer

OP_RANGES_AT_ONCE: Final = 32

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentState:
    """All as of `revision`. `decisions`: of transactions with leftovers here, in revision order. `open_transactions`:
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

    def transaction_buffer(self, *, last_confirmed: Position, fenced_below: Position) -> TransactionBuffer:
        """With every transaction of the write index registered; feed it `scanned`, then `decided`, before any read."""
        buffer = TransactionBuffer(
            self.segment,
            watermark=self.watermark,
            last_confirmed=last_confirmed,
            aborted=self.aborted,
            fenced_below=fenced_below,
        )
        for txn_id in self.written:
            buffer.loaded(txn_id)
        return buffer

    def pending_acks(self, subscription: str, cursor: CursorView) -> PendingAcks:
        """With every ack op restored (P5)."""
        pending = PendingAcks(self.segment, subscription, cursor)
        for op in self.ack_ops.get(subscription, ()):
            pending.restore(op)
        return pending

    @property
    def subscriptions(self) -> Sequence[str]:
        """Those with cursor records or ack ops here, in order of name."""
        return sorted({**self.cursor_blocks, **self.ack_ops})


async def load_state(store: MetadataStore, segment: str, owner_epoch: int, *, timeout_s: float = 30.0) -> SegmentState:
    """Raises `NotOwner` where the segment has another owner at R, `DataCorrupt` naming the key of a record that does
    not parse, `StoreUnavailable`, `Timeout`."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    return await _Loading(store, segment, owner_epoch).load()
                except Compacted:
                    continue  # a slow read was overtaken by compaction: all of it again, at a newer revision
    except TimeoutError:
        raise Timeout(f"the transactional state of {segment} was not read within {timeout_s} s") from None


class _Loading:
    """One attempt, at one revision."""

    def __init__(self, store: MetadataStore, segment: str, owner_epoch: int) -> None:
        self._store = store
        self._segment = segment
        self._owner_epoch = owner_epoch
        self._revision = 0

    async def load(self) -> SegmentState:
        segment = self._segment
        self._revision, (owner, watermark) = await self._store.get_many([keys.owner(segment), keys.watermark(segment)])
        self._check_owner(owner)
        with self._store.pin(self._revision):
            aborted = await self._range(keys.aborted_records(segment))
            written = [keys.txn_of(record.key) for record in await self._range(keys.writes_by_segment(segment))]
            acked = [_ack_index_parts(record.key) for record in await self._range(keys.acks_by_segment(segment))]
            blocks = await self._range(keys.cursors(segment))
            ack_ops = await self._ack_ops(acked)
            headers = await self._headers(dict.fromkeys([*written, *(txn_id for _, txn_id in acked)]))
        decisions = [one for one in headers.values() if isinstance(one, Decision)]
        return SegmentState(
            segment=segment,
            owner_epoch=self._owner_epoch,
            revision=self._revision,
            watermark=_watermark(watermark),
            watermark_record=watermark,
            aborted={keys.aborted_parts(record.key): _max_position(record) for record in aborted},
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

    async def _range(self, prefix: bytes) -> Sequence[KeyValue]:
        return (await self._store.range(prefix, keys.prefix_end(prefix), revision=self._revision)).records

    async def _ack_ops(self, acked: Sequence[tuple[str, TxnId]]) -> dict[str, list[AckOp]]:
        """One range per (subscription, transaction), some at a time: their keys lie apart from each other."""
        prefixes = [keys.ack_ops(txn_id, self._segment, subscription) for subscription, txn_id in acked]
        found = await _some_at_a_time(OP_RANGES_AT_ONCE, [lambda at=one: self._range(at) for one in prefixes])  # type: ignore[misc]
        ops: dict[str, list[AckOp]] = {}
        for (subscription, _), ranged in zip(acked, found, strict=True):
            ops.setdefault(subscription, []).extend(
                acks.from_op(record.key, records.decode(Op, record.value, key=record.key)) for record in ranged
            )
        return ops

    async def _headers(self, txn_ids: Mapping[TxnId, None]) -> dict[TxnId, Decision | Header | None]:
        """Decided, still open, or ▲ absent: which is to be held like an open one."""
        if not txn_ids:
            return {}
        asked = [keys.txn(txn_id) for txn_id in txn_ids]
        _, found = await self._store.get_many(asked, revision=self._revision)
        return {txn_id: _decision_or_open(txn_id, record) for txn_id, record in zip(txn_ids, found, strict=True)}


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
    return key.split(b"/")[-2].decode(), keys.txn_of(key)


def _by_subscription(blocks: Sequence[KeyValue]) -> dict[str, list[KeyValue]]:
    found: dict[str, list[KeyValue]] = {}
    for record in blocks:
        found.setdefault(record.key.split(b"/")[-2].decode(), []).append(record)
    return found


async def _some_at_a_time(limit: int, requests: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """All answers in order of the requests, with at most `limit` on their way."""
    answers: dict[int, T] = {}
    waiting = iter(enumerate(requests))

    async def work() -> None:
        for index, request in waiting:
            answers[index] = await request()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(limit, len(requests))):
                group.create_task(work())
    except* (Compacted, StoreUnavailable) as failures:
        raise failures.exceptions[0] from None
    return [answers[index] for index in range(len(requests))]
