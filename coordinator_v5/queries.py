"""Queries about transactions, answered from the store alone: the four indexes, listings, outcomes, hanging ones.

The four named queries replace PIP-471's secondary indexes; index *keys* exist only where key order is not enough
(DESIGN §4). Everything here is for operators and tools: read-only, no coordinator needed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from txnstore import keys, records
from txnstore.access.paging import in_pages, in_parts
from txnstore.records import OPEN, Header, Op, TransactionKey, TxnName
from txnstore.store import KeyValue, MetadataStore
from txnstore.writes.collection_transitions import block_of, read_outcomes
from txnstore.writes.name_transitions import KEEP_MS, Keep, outcome_by_name
from txnstore.writes.transitions import RecordedDecision, decision_of
from txnwire.errors import TxnError
from txnwire.ids import TxnId

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """A header as stored; `revision` is that of its decision, 0 while it is OPEN."""

    txn_id: TxnId
    header: Header
    revision: int


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A record that cannot be read, in a listing: `key` as text, and what is wrong with it."""

    key: str
    error: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """`record` is None if the header is deleted or never existed; `outcome` then has its decision (None: unknown)."""

    txn_id: TxnId
    record: TransactionRecord | None
    outcome: RecordedDecision | None
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Hanging:
    """A transaction that holds others back: open, or decided with ops that no participant has cleaned up.

    `writes` and `acks` count its op records by segment path and by (segment path, subscription); `ownerless` are its
    segments that have no owner now."""

    record: TransactionRecord
    writes: dict[str, int]
    acks: dict[tuple[str, str], int]
    ownerless: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeyDescription:
    """A transaction key; `header`: of its holder's newest transaction, None if there is none (any more)."""

    owner: str
    key: str
    record: TransactionKey
    header: Header | None


PAGE_HEADERS: Final = 1000
PAGE_KEYS: Final = 5000
_LAST: Final = keys.prefix_end(keys.TXN)


async def writes_by_segment(store: MetadataStore, segment: str) -> list[TxnId]:
    """`idx:writes-by-segment`: transactions with write ops in a segment (path form), in id order."""
    return await _ids_below(store, keys.writes_by_segment(segment))


async def acks_by_segment_subscription(store: MetadataStore, segment: str, subscription: str) -> list[TxnId]:
    """`idx:acks-by-segment-subscription`: transactions with ack ops there, in id order."""
    return await _ids_below(store, keys.acks_by_segment_subscription(segment, subscription))


async def txns_by_deadline(store: MetadataStore, *, until_ms: int) -> list[tuple[int, TxnId]]:
    """`idx:txn-by-deadline`: (deadline, transaction) at or before `until_ms` (epoch ms), earliest first.

    Only transactions that were open for longer than a second have a key."""
    end = keys.TXN_BY_DEADLINE + f"{max(0, until_ms) + 1:013d}".encode()
    found: list[tuple[int, TxnId]] = []
    async for page in in_pages(store, keys.TXN_BY_DEADLINE, end, at_once=PAGE_KEYS, keys_only=True):
        found += [keys.deadline_parts(record.key) for record in page]
    return found


async def txns_by_final_state(
    store: MetadataStore, state: str, *, after: TxnId | None = None, limit: int = 1000
) -> list[TransactionRecord]:
    """`idx:txn-by-final-state`: headers in `state`, in id order, by walking headers; `after` pages on."""
    found: list[TransactionRecord] = []
    async with aclosing(headers(store, after=after)) as walk:
        async for record in walk:
            if record.header.state == state:
                found.append(record)
                if len(found) >= limit:
                    break
    return found


async def headers(
    store: MetadataStore, *, after: TxnId | None = None, unreadable: list[UnreadableRecord] | None = None
) -> AsyncGenerator[TransactionRecord, None]:
    """Every header behind `after`, in id order. Each page is read when needed, at its own revision: headers begun or
    collected since the first page may or may not be among them. With `unreadable`, records that cannot be read are
    added to it, and raise nothing."""
    start = keys.TXN if after is None else keys.txn(after) + b"\0"
    async for page in in_pages(store, start, _LAST, at_once=PAGE_HEADERS):
        for record in page:
            if (found := _readable(record, _record_of, unreadable)) is not None:
                yield found


async def list_transactions(
    store: MetadataStore,
    *,
    now_ms: int,
    state: str | None = None,
    older_than_ms: int = 0,
    owner: str | None = None,
    segment: str | None = None,
    transaction_key: str | None = None,
    limit: int = 1000,
    unreadable: list[UnreadableRecord] | None = None,
) -> list[TransactionRecord]:
    """Headers that match all given conditions, in id order; `segment` (path form): with ops in it. `unreadable`: as in
    `headers`."""
    found: list[TransactionRecord] = []
    candidates = headers(store, unreadable=unreadable)
    if segment is not None:
        candidates = _records(store, await _ids_in_segment(store, segment, unreadable), unreadable)
    async with aclosing(candidates) as walk:
        async for record in walk:
            header = record.header
            if state is not None and header.state != state:
                continue
            if owner is not None and header.owner != owner:
                continue
            if transaction_key is not None and header.txn_key != transaction_key:
                continue
            if now_ms - header.created_ms < older_than_ms:
                continue
            found.append(record)
            if len(found) >= limit:
                break
    return found


async def describe_transaction(store: MetadataStore, txn_id: TxnId, *, ops_limit: int = 1000) -> TransactionDescription:
    """Header, ops (the first `ops_limit` in key order) and outcome of one transaction."""
    key, prefix = keys.txn(txn_id), keys.txn_ops(txn_id)
    _, (header, block) = await store.get_many([key, keys.outcome_block(txn_id)])
    ops = await store.range(prefix, keys.prefix_end(prefix), limit=ops_limit)
    return TransactionDescription(
        txn_id,
        None if header is None else _record_of(header),
        _outcome(txn_id, header, block),
        tuple(records.decode(Op, record.value, key=record.key) for record in ops.records),
    )


class NameAnswer(NamedTuple):
    """The last transaction of a name, and after collection its outcome with its writers. `keep`: as its begin asked."""

    txn_id: TxnId
    collected: RecordedDecision | None
    keep: Keep


async def transaction_named(store: MetadataStore, name: str) -> NameAnswer | None:
    """None if the name is not known (any more)."""
    record = await store.get(keys.txn_name(name))
    if record is None:
        return None
    named = records.decode(TxnName, record.value, key=record.key)
    txn_id = TxnId.parse(named.txn_id)
    return NameAnswer(txn_id, outcome_by_name(record, txn_id), Keep(named.keep_ms or KEEP_MS, named.keep_newest))


async def outcomes(store: MetadataStore, txn_ids: Sequence[TxnId]) -> list[RecordedDecision | None]:
    """The decision of each, from its header or its collected outcome; None: open, unknown or never given out.

    ▲ Header and outcome of one are read at one revision: collection moves the decision from the first to the second."""
    decisions: list[RecordedDecision | None] = []
    for part in in_parts(txn_ids, PAGE_HEADERS):
        wanted = {keys.txn(txn_id): None for txn_id in part} | {keys.outcome_block(txn_id): None for txn_id in part}
        _, found = await store.get_many(list(wanted))
        by_key = dict(zip(wanted, found, strict=True))
        decisions += [_outcome(one, by_key[keys.txn(one)], by_key[keys.outcome_block(one)]) for one in part]
    return decisions


async def transaction_keys(
    store: MetadataStore,
    *,
    owner: str | None = None,
    deleted: bool = False,
    limit: int = 1000,
    unreadable: list[UnreadableRecord] | None = None,
) -> list[KeyDescription]:
    """Transaction keys in the order of owner and key, those of one `owner` or all; `deleted`: tombstones too;
    `unreadable`: as in `headers`."""
    prefix = keys.TXN_KEY if owner is None else keys.txn_key(owner, "")
    found: list[KeyDescription] = []
    async for page in in_pages(store, prefix, keys.prefix_end(prefix), at_once=PAGE_HEADERS):
        found += [one for one in await _keys_of(store, page, unreadable) if deleted or not one.record.deleted_ms]
        if len(found) >= limit:
            break
    return found[:limit]


async def transaction_key(store: MetadataStore, owner: str, key: str) -> KeyDescription | None:
    """One transaction key, also a deleted one; None: it was never used."""
    record = await store.get(keys.txn_key(owner, key))
    return None if record is None else (await _keys_of(store, [record]))[0]


async def _keys_of(
    store: MetadataStore, found: Sequence[KeyValue], unreadable: list[UnreadableRecord] | None = None
) -> list[KeyDescription]:
    decoded = [one for record in found if (one := _readable(record, _key_of, unreadable)) is not None]
    wanted = [keys.TXN + record.txn_id.encode() for _, _, record in decoded if record.txn_id is not None]
    headers_of = (await store.get_many(wanted))[1] if wanted else []
    by_key: dict[bytes, Header] = {}
    for found_header in headers_of:
        if found_header is None:
            continue
        if (header := _readable(found_header, _record_of, unreadable)) is not None:
            by_key[found_header.key] = header.header
    return [
        KeyDescription(owner, key, record, by_key.get(keys.TXN + (record.txn_id or "").encode()))
        for owner, key, record in decoded
    ]


def _key_of(record: KeyValue) -> tuple[str, str, TransactionKey]:
    owner, key = keys.txn_key_parts(record.key)
    return owner, key, records.decode(TransactionKey, record.value, key=record.key)


def _readable(record: KeyValue, read: Callable[[KeyValue], T], unreadable: list[UnreadableRecord] | None) -> T | None:
    """▲ A foreign or damaged record must not hide all others: it goes to `unreadable`."""
    try:
        return read(record)
    except (TxnError, ValueError) as error:
        if unreadable is None:
            raise
        unreadable.append(UnreadableRecord(record.key.decode(errors="replace"), str(error)))
        return None


async def hanging(
    store: MetadataStore,
    *,
    now_ms: int,
    older_than_ms: int,
    limit: int = 100,
    unreadable: list[UnreadableRecord] | None = None,
) -> list[Hanging]:
    """Transactions open, or decided and not cleaned up, for longer than `older_than_ms`; oldest first.

    Reads the deadline keys (every transaction open for more than a second has one) and the keys of op records, so its
    cost is the hanging transactions and the backlog of clean-up, never history. It reads in pages: a transaction that
    changes meanwhile may be shown in its old or its new state. `unreadable`: as in `headers`.
    """
    oldest: dict[TxnId, _Suspect] = {}

    def suspect(record: TransactionRecord, counts: _Counts) -> None:
        since_ms = record.header.created_ms if record.header.state == OPEN else record.header.finalized_ms
        if now_ms - since_ms >= older_than_ms:
            oldest[record.txn_id] = _Suspect(since_ms, record, counts)
        if len(oldest) >= 2 * limit:
            _leave(oldest, limit)

    async for counts in _op_counts(store, unreadable):
        async with aclosing(_records(store, list(counts), unreadable)) as found:
            async for record in found:
                suspect(record, counts[record.txn_id])
    end = keys.prefix_end(keys.TXN_BY_DEADLINE)
    async for page in in_pages(store, keys.TXN_BY_DEADLINE, end, at_once=PAGE_HEADERS, keys_only=True):
        # One dropped for `limit` older ones is read again here, and dropped again.
        named = [_readable(one, lambda record: keys.txn_of(record.key), unreadable) for one in page]
        ids = [txn_id for txn_id in named if txn_id is not None and txn_id not in oldest]
        async with aclosing(_records(store, ids, unreadable)) as found:
            async for record in found:
                if record.header.state == OPEN:
                    suspect(record, ({}, {}))
    _leave(oldest, limit)
    return [await _hanging(store, one.record, *one.counts) for one in oldest.values()]


_Counts = tuple[dict[str, int], dict[tuple[str, str], int]]
"""Numbers of op records: by segment path, and by (segment path, subscription)."""


class _Suspect(NamedTuple):
    since_ms: int
    record: TransactionRecord
    counts: _Counts


def _leave(suspects: dict[TxnId, _Suspect], most: int) -> None:
    """Keep only the oldest, in order."""
    by_age = sorted(suspects.items(), key=lambda item: (item[1].since_ms, item[0]))
    suspects.clear()
    suspects.update(by_age[:most])


async def _op_counts(
    store: MetadataStore, unreadable: list[UnreadableRecord] | None
) -> AsyncGenerator[dict[TxnId, _Counts], None]:
    """Transactions with op records, about a page of records at a time. A transaction's records are adjacent."""
    counts: dict[TxnId, _Counts] = {}
    txn_id: TxnId | None = None
    async for page in in_pages(store, keys.TXN_OP, keys.prefix_end(keys.TXN_OP), at_once=PAGE_KEYS, keys_only=True):
        for op in page:
            parts = _readable(op, lambda record: keys.op_parts(record.key), unreadable)
            if parts is None:
                continue
            txn_id, segment, subscription = parts
            writes, acks = counts.setdefault(txn_id, ({}, {}))
            if subscription is None:
                writes[segment] = writes.get(segment, 0) + 1
            else:
                acks[segment, subscription] = acks.get((segment, subscription), 0) + 1
        if txn_id is None:
            continue
        unfinished = {txn_id: counts.pop(txn_id)}  # the next page may hold more of it
        yield counts
        counts = unfinished
    yield counts


async def _hanging(
    store: MetadataStore, record: TransactionRecord, writes: dict[str, int], acks: dict[tuple[str, str], int]
) -> Hanging:
    segments = list(dict.fromkeys([*writes, *(segment for segment, _ in acks)]))
    owners = (await store.get_many([keys.owner(segment) for segment in segments]))[1] if segments else []
    ownerless = tuple(segment for segment, owner in zip(segments, owners, strict=True) if owner is None)
    return Hanging(record, writes, acks, ownerless)


async def _ids_below(
    store: MetadataStore, prefix: bytes, unreadable: list[UnreadableRecord] | None = None
) -> list[TxnId]:
    found: list[TxnId] = []
    async for page in in_pages(store, prefix, keys.prefix_end(prefix), at_once=PAGE_KEYS, keys_only=True):
        named = [_readable(record, lambda one: keys.txn_of(one.key), unreadable) for record in page]
        found += [txn_id for txn_id in named if txn_id is not None]
    return found


async def _ids_in_segment(store: MetadataStore, segment: str, unreadable: list[UnreadableRecord] | None) -> list[TxnId]:
    writes = await _ids_below(store, keys.writes_by_segment(segment), unreadable)
    acks = await _ids_below(store, keys.acks_by_segment(segment), unreadable)
    return sorted(dict.fromkeys([*writes, *acks]))


async def _records(
    store: MetadataStore, txn_ids: Sequence[TxnId], unreadable: list[UnreadableRecord] | None = None
) -> AsyncGenerator[TransactionRecord, None]:
    for part in in_parts(txn_ids, PAGE_HEADERS):
        _, found = await store.get_many([keys.txn(txn_id) for txn_id in part])
        for record in found:
            if record is not None and (read := _readable(record, _record_of, unreadable)) is not None:
                yield read


def _record_of(record: KeyValue) -> TransactionRecord:
    header = records.decode(Header, record.value, key=record.key)
    return TransactionRecord(keys.txn_of(record.key), header, 0 if record.version == 1 else record.mod_revision)


def _outcome(txn_id: TxnId, header: KeyValue | None, block: KeyValue | None) -> RecordedDecision | None:
    if header is not None:
        return decision_of(header)
    state = read_outcomes(txn_id.tcid, block_of(txn_id.counter), block).state_of(txn_id.counter)
    return None if state is None else RecordedDecision(state, 0)
