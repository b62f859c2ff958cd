"""Loads the TCIDs that a coordinator has taken: open transactions first, then the headers left to collect.

Nothing is replayed. A predecessor can begin nothing more (its begins compare the TCID epoch), so every open transaction
has a deadline key or lies above the late-index mark. Source: DESIGN §5 (late index) and §9.

Ids are loaded one after the other and served at once. Each is read in pages with their own time limits, and other tasks
run in between. An error delays only the id it concerns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

import structlog

from coordinator_v5.begins import BeginHandler
from coordinator_v5.ends import saw_final
from coordinator_v5.state import UNREADABLE, CoordinatorState
from coordinator_v5.transactions import OwnedTcid, OwnedTransaction, Phase
from txnstore import keys, records
from txnstore.access.paging import in_pages, in_parts
from txnstore.records import OPEN, Header
from txnstore.store import KeyValue
from txnstore.writes.transitions import decision_of, read_seq
from txnwire.errors import DataCorrupt, TxnError
from txnwire.ids import MAX_COUNTER, TxnId
from txnwire.turns import in_turns

log = structlog.get_logger()

RETRY_S: Final = 0.5


class TakeOver:
    """Loads ids that were taken and are not loaded yet."""

    def __init__(self, state: CoordinatorState, begins: BeginHandler) -> None:
        self._state = state
        self._begins = begins
        self._taken: dict[int, int] = {}
        """TCID → epoch."""
        self._wanted = asyncio.Event()
        self.idle = asyncio.Event()
        """Set while no id is left to load."""
        self.idle.set()
        self.to_walk: list[OwnedTcid] = []
        """Loaded, but for the headers left to collect."""

    def add(self, taken: Mapping[int, int]) -> None:
        self._taken |= taken
        if self._taken:
            self.idle.clear()
            self._wanted.set()

    def forget(self, tcid: int) -> None:
        """The TCID is lost."""
        self._taken.pop(tcid, None)

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._taken:
                await self._load(dict(self._taken))
                if self._taken:
                    await asyncio.sleep(RETRY_S)
            self.idle.set()

    async def _load(self, taken: Mapping[int, int]) -> None:
        """Try each once; failed ones stay."""
        try:
            await self._state.cluster.refresh()  # ▲ before any deadline is judged
            indexed = await self._indexed(taken)
        except TxnError as error:
            log.warning("coordinator ids not loaded, trying again", tcids=sorted(taken), error=str(error))
            return
        for tcid, epoch in sorted(taken.items()):
            try:
                if self._is_taken(tcid, epoch):
                    await self._load_one(tcid, epoch, indexed[tcid])
            except TxnError as error:
                log.warning("coordinator id not loaded, trying again", tcid=tcid, error=str(error))

    def _is_taken(self, tcid: int, epoch: int) -> bool:
        """Whether to load it under this epoch: it may be lost, and taken again, at any await."""
        return self._taken.get(tcid) == epoch

    async def _indexed(self, taken: Collection[int]) -> dict[int, list[int]]:
        """By TCID, the counters of transactions with a deadline key. Reads the keys of all coordinators, without
        values: they are in the order of deadlines."""
        found: dict[int, list[int]] = {tcid: [] for tcid in taken}
        end = keys.prefix_end(keys.TXN_BY_DEADLINE)
        at_once = self._state.settings.keys_at_once
        async for page in in_pages(self._state.store, keys.TXN_BY_DEADLINE, end, at_once=at_once, keys_only=True):
            async for part in in_turns(page):
                for record in part:
                    deadline = deadline_of(record.key)
                    if deadline is not None and deadline[1].tcid in found:
                        found[deadline[1].tcid].append(deadline[1].counter)
            await asyncio.sleep(0)
        return found

    async def _load_one(self, tcid: int, epoch: int, indexed: list[int]) -> None:
        """Read an id's stored state and begin to serve it. Raises `StoreUnavailable`; then nothing has changed."""
        state = self._state
        store, at_once = state.store, state.settings.headers_at_once
        seq = read_seq(await store.get(keys.txn_seq(tcid)))
        tc = OwnedTcid(tcid, epoch, seq, id_block=state.settings.id_block)
        mark = tc.seq.record.indexed_below
        for counters in in_parts(sorted(dict.fromkeys(one for one in indexed if one < mark)), store.page_size(at_once)):
            _, headers = await store.get_many([keys.txn(TxnId(tcid, counter)) for counter in counters])
            if not self._is_taken(tcid, epoch):
                return
            for record in headers:
                if record is not None:
                    _found(state, tc, record, indexed=True)
            await asyncio.sleep(0)
        start, end = keys.txn(TxnId(tcid, mark)), keys.txn(TxnId(tcid, MAX_COUNTER)) + b"\0"
        async for page in in_pages(store, start, end, at_once=at_once):
            for record in page:
                _found(state, tc, record, indexed=False)
            await asyncio.sleep(0)
        if not self._is_taken(tcid, epoch):
            return
        del self._taken[tcid]
        state.tcids[tcid] = tc
        # Without a pause, or a client that announces in between would count as absent. At most `max_open`.
        for txn in tc.undecided():
            state.sessions.taken_over(txn, state.awake_s)
        self._begins.take_block(tc)
        self.to_walk.append(tc)

    async def walk(self) -> None:
        """Find the decided headers that predecessors have not collected, of every id. Raises `StoreUnavailable`."""
        while self.to_walk:
            tc = self.to_walk[0]
            await _walk_finals(self._state, tc)
            self.to_walk = [one for one in self.to_walk if one is not tc]


def deadline_of(key: bytes) -> tuple[int, TxnId] | None:
    """The parts of a deadline key, None for a key that we did not write."""
    try:
        return keys.deadline_parts(key)
    except UNREADABLE as error:
        log.error("unreadable deadline key left alone", key=repr(key), error=str(error))
        return None


def _found(state: CoordinatorState, tc: OwnedTcid, record: KeyValue, *, indexed: bool) -> None:
    """Adds an open transaction to those watched; converts its deadline to the monotonic clock once, here."""
    now = state.clock.monotonic()
    try:
        txn_id = keys.txn_of(record.key)
        header = records.decode(Header, record.value, key=record.key)
        decision = decision_of(record)
        if decision is None and header.state != OPEN:
            # ▲ No coordinator can end such a header: its deadline would end each one that takes the id over.
            raise DataCorrupt(f"/txn/{txn_id} was put once, with state {header.state!r}: expected {OPEN}")
    except UNREADABLE as error:
        log.error("unreadable header left alone", error=str(error))
        return
    if decision is not None:
        saw_final(tc, txn_id, decision, header, now)
        return
    # ▲ By the cluster's clock, which recorded it: a local clock ten minutes ahead would abort all transactions taken
    # over. Between the grace and the timeout: without a stamp, clocks may differ by any amount.
    left_ms = min(state.cluster.left_ms(header.timeout_ms, header.created_ms), header.timeout_ms - header.created_ms)
    due = now + max(state.settings.client_grace_s, left_ms / 1000)
    # Deadline keys of transactions above the mark may or may not exist: they are put again, and deleted with the end.
    txn = OwnedTransaction(tc, txn_id, header, phase=Phase.OPEN, begun_at=now, due=due)
    tc.add(txn, indexed=indexed)
    txn.deadline_key = True
    if not txn.on_heap:
        tc.watch_deadline(txn, due)


async def _walk_finals(state: CoordinatorState, tc: OwnedTcid) -> None:
    """Reads the decided headers below the mark, in pages: their number is not bounded."""
    start, end = keys.txn(TxnId(tc.tcid, 0)), keys.txn(TxnId(tc.tcid, tc.seq.record.indexed_below))
    if start >= end:
        return
    async for page in in_pages(state.store, start, end, at_once=state.settings.headers_at_once):
        if tc.lost:
            return
        for record in page:
            try:
                counter = keys.txn_of(record.key).counter
            except UNREADABLE as error:
                log.error("unreadable header left alone", key=repr(record.key), error=str(error))
                continue
            if tc.find(counter) is None and not tc.retains(counter):
                if record.version == 1:
                    _missed(state, tc, record)
                else:
                    _found(state, tc, record, indexed=False)
        await asyncio.sleep(0)


def _missed(state: CoordinatorState, tc: OwnedTcid, record: KeyValue) -> None:
    """An open header below the mark without a deadline key: our rules never leave one, a restored backup may."""
    log.warning("open transaction below the late-index mark", txn=str(keys.txn_of(record.key)))
    _found(state, tc, record, indexed=False)
    txn = tc.find(keys.txn_of(record.key).counter)
    if txn is not None:
        state.sessions.taken_over(txn, state.awake_s)
