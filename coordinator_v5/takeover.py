"""What a coordinator reads when it has taken TCIDs: open transactions first, then the headers left to collect.

Nothing is replayed. A predecessor can begin nothing more (its begins compare the TCID epoch), so everything open is
found by its deadline key or stands above the late-index mark. Source: DESIGN §5 (late index) and §9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog

from coordinator_v5.begins import Begins
from coordinator_v5.ends import saw_final
from coordinator_v5.state import State
from coordinator_v5.transactions import OwnedTcid, Phase, Transaction
from txnstore import keys, records
from txnstore.records import Header
from txnstore.store import KeyValue, MetadataStore
from txnstore.transitions import decision_of, read_seq
from txnwire.errors import DataCorrupt
from txnwire.ids import MAX_COUNTER, TxnId

log = structlog.get_logger()

HEADERS_AT_ONCE: Final = 1000


async def load(state: State, begins: Begins, taken: Mapping[int, int]) -> list[OwnedTcid]:
    """Read what stands in the store about the TCIDs in `taken` (TCID → epoch) and begin to serve them.

    Raises `StoreUnavailable`; then nothing has changed and it may be called again."""
    store, settings = state.store, state.settings
    tcids = sorted(taken)
    _, seqs = await store.get_many([keys.txn_seq(tcid) for tcid in tcids])
    owned = [
        OwnedTcid(tcid, taken[tcid], read_seq(seq), id_block=settings.id_block)
        for tcid, seq in zip(tcids, seqs, strict=True)
    ]
    by_tcid = {tc.tcid: tc for tc in owned}
    end = keys.prefix_end(keys.TXN_BY_DEADLINE)
    deadlines = await store.range(keys.TXN_BY_DEADLINE, end, keys_only=True)
    indexed = [txn_id for _, txn_id in map(keys.deadline_parts, (record.key for record in deadlines.records))]
    indexed = sorted({txn_id: None for txn_id in indexed if txn_id.tcid in by_tcid})
    headers = (await store.get_many([keys.txn(txn_id) for txn_id in indexed]))[1] if indexed else []
    for tc in owned:
        start = keys.txn(TxnId(tc.tcid, tc.seq.record.indexed_below))
        above = await store.range(start, keys.txn(TxnId(tc.tcid, MAX_COUNTER)) + b"\0")
        for txn_id, record in zip(indexed, headers, strict=True):
            if txn_id.tcid == tc.tcid and record is not None and txn_id.counter < tc.seq.record.indexed_below:
                _found(state, tc, record, indexed=True)
        for record in above.records:
            _found(state, tc, record, indexed=False)
    for tc in owned:
        state.tcids[tc.tcid] = tc
        for txn in tc.open_transactions():
            state.sessions.taken_over(txn, state.awake_s)
        begins.take_block(tc)
    return owned


def _found(state: State, tc: OwnedTcid, record: KeyValue, *, indexed: bool) -> None:
    """An open transaction joins those watched; its deadline is converted to the monotonic clock here, once."""
    now, wall_ms = state.clock.monotonic(), state.clock.wall_ms()
    txn_id = keys.txn_of(record.key)
    try:
        header = records.decode(Header, record.value, key=record.key)
        decision = decision_of(record)
    except DataCorrupt as error:
        log.error("unreadable header left alone", error=str(error))
        return
    if decision is not None:
        saw_final(tc, txn_id, decision, header, now)
        return
    # A wall clock that differs from the predecessor's can shorten a deadline, but never stretch it.
    left_ms = min(header.timeout_ms - wall_ms, header.timeout_ms - header.created_ms)
    due = now + max(0, left_ms) / 1000
    # Deadline keys of transactions above the mark may or may not exist: they are put again, and deleted with the end.
    txn = Transaction(tc, txn_id, header, phase=Phase.OPEN, begun_at=now, due=due)
    tc.add(txn, indexed=indexed)
    txn.deadline_key = True
    if not txn.on_heap:
        tc.watch_deadline(txn, due)


async def walk_finals(state: State, tc: OwnedTcid) -> None:
    """Find the decided headers below the mark that predecessors have not collected, in bounded pages of ids."""
    counters = await _header_counters(state.store, tc)
    for at in range(0, len(counters), HEADERS_AT_ONCE):
        if tc.lost:
            return
        page = counters[at : at + HEADERS_AT_ONCE]
        start, end = keys.txn(TxnId(tc.tcid, page[0])), keys.txn(TxnId(tc.tcid, page[-1])) + b"\0"
        found = await state.store.range(start, end)
        for record in found.records:
            counter = keys.txn_of(record.key).counter
            if tc.find(counter) is None and counter not in tc.finals:
                if record.version == 1:
                    _missed(state, tc, record)
                else:
                    _found(state, tc, record, indexed=False)


async def _header_counters(store: MetadataStore, tc: OwnedTcid) -> list[int]:
    """Keys only: how many headers there are is not bounded, their keys are small."""
    start, end = keys.txn(TxnId(tc.tcid, 0)), keys.txn(TxnId(tc.tcid, tc.seq.record.indexed_below))
    found = await store.range(start, end, keys_only=True)
    return [keys.txn_of(record.key).counter for record in found.records]


def _missed(state: State, tc: OwnedTcid, record: KeyValue) -> None:
    """An open header below the mark without a deadline key: no rule of ours leaves one, a restored backup may."""
    log.warning("open transaction below the late-index mark", txn=str(keys.txn_of(record.key)))
    _found(state, tc, record, indexed=False)
    txn = tc.find(keys.txn_of(record.key).counter)
    if txn is not None:
        state.sessions.taken_over(txn, state.awake_s)
