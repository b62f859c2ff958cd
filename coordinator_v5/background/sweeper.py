"""Periodic work on transactions: deadlines, vanished clients, the late index, overdue answers.

Source: DESIGN §5 (deadlines, late index) and §9. One synchronous `sweep` plans everything; callbacks take the answers
to its writes, so a store that hangs delays only what depends on it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import structlog

from coordinator_v5.background.take_over import deadline_of
from coordinator_v5.begins import BeginHandler
from coordinator_v5.ends import EndHandler
from coordinator_v5.state import CoordinatorState
from coordinator_v5.transactions import OwnedTcid, OwnedTransaction, Phase
from txnstore import keys
from txnstore.access.paging import in_pages
from txnstore.records import ABORTED, REASON_SESSION, REASON_TIMEOUT
from txnstore.store import CommitVerdict, KeyValue
from txnstore.writes.transitions import (
    Indexed,
    decision_of,
    plan_drop_deadline,
    plan_late_index,
    read_late_index_verdict,
)
from txnwire.errors import DataCorrupt, TxnError
from txnwire.ids import TxnId
from txnwire.tasks import all_of

log = structlog.get_logger()

INDEXED_AT_ONCE: Final = 500
INDEX_AGAIN_S: Final = 5.0
"""Pause after a deadline key was refused: a full etcd refuses them all, and each refusal costs it a log entry."""
STALE_AFTER_S: Final = 60.0
"""A deadline key this far past its time is checked: its owner has dropped it or is about to."""


class Sweeper:
    def __init__(self, state: CoordinatorState, begins: BeginHandler, ends: EndHandler) -> None:
        self._state = state
        self._begins = begins
        self._ends = ends
        self._turn = 0
        self._index_at = float("-inf")
        """Until this time no deadline key is put: an earlier put has failed."""

    async def run(self) -> None:
        settings = self._state.settings
        while True:
            await asyncio.sleep(settings.behind_s if self._behind else settings.sweep_s)
            self.sweep()

    def sweep(self) -> None:
        """One round. After a late round all deadlines that passed are served, but time that this process slept does not
        make a client vanish (D6)."""
        state = self._state
        now = state.clock.monotonic()
        state.swept(now)
        index_at_once = INDEXED_AT_ONCE if now >= self._index_at else 0
        for tc in self._in_turn():
            for txn in tc.due(now, self._room):
                self._ends.sweep_end(txn, ABORTED, REASON_TIMEOUT)
            for txn in tc.to_index(now, state.settings.index_after_s, index_at_once):
                self._index(tc, txn)
            self._begins.advance_mark(tc, now)
        for txn in state.sessions.vanished(state.awake_s, self._room):
            self._ends.sweep_end(txn, ABORTED, REASON_SESSION)
        self._begins.sweep(now)
        self._ends.sweep(now)

    @property
    def _room(self) -> int:
        """How many aborts that no client asked for may be sent now: without the bound a crowd of them would delay every
        client's requests. None shortly after the store has refused one."""
        if self._state.clock.monotonic() < self._ends.sweep_at:
            return 0
        return max(0, self._state.settings.swept_at_once - self._state.counters.sweeping)

    @property
    def _behind(self) -> bool:
        """Whether the last round used all the room, so that something may be overdue."""
        return self._state.counters.sweeping >= self._state.settings.swept_at_once

    def _in_turn(self) -> list[OwnedTcid]:
        """Starts with another TCID each round, so that a crowd in one does not keep the others waiting."""
        tcids = list(self._state.tcids.values())
        self._turn += 1
        first = self._turn % max(1, len(tcids))
        return tcids[first:] + tcids[:first]

    def _index(self, tc: OwnedTcid, txn: OwnedTransaction) -> None:
        txn.indexing = txn.deadline_key = True
        commit = plan_late_index(txn.txn_id, tc.epoch, txn.header.timeout_ms)
        self._state.submit(commit, partial(self._indexed, txn))

    def _indexed(self, txn: OwnedTransaction, future: asyncio.Future[CommitVerdict]) -> None:
        txn.indexing = False
        try:
            verdict = read_late_index_verdict(future.result())
        except TxnError as error:
            now = self._state.clock.monotonic()
            if now >= self._index_at:  # log one warning for all that were sent together
                self._index_at = now + INDEX_AGAIN_S
                log.warning("deadline key not written", txn=str(txn.txn_id), error=str(error))
            return
        if verdict is Indexed.DONE:
            txn.tc.indexed(txn)
        elif verdict is Indexed.LOST:
            self._begins.lost(txn.tc)
        elif txn.phase is Phase.OPEN and txn.ending is None:
            # Another coordinator has decided it; the abort is refused, and returns the decision.
            self._ends.sweep_end(txn, ABORTED, REASON_TIMEOUT)

    # ---- decisions of other coordinators ----

    async def reconcile(self) -> None:
        """Read the headers of transactions open for long: any coordinator may have ended them."""
        now = self._state.clock.monotonic()
        at_once = self._state.store.page_size(self._state.settings.headers_at_once)
        for tc in list(self._state.tcids.values()):
            aged = [
                txn
                for txn in tc.aged.values()
                if txn.phase is Phase.OPEN and now - txn.begun_at >= self._state.settings.reconcile_every_s
            ]
            for at in range(0, len(aged), at_once):
                await self._reconcile(aged[at : at + at_once])

    async def _reconcile(self, txns: list[OwnedTransaction]) -> None:
        _, found = await self._state.store.get_many([keys.txn(txn.txn_id) for txn in txns])
        for txn, record in zip(txns, found, strict=True):
            try:
                decision = None if record is None else decision_of(record)
            except DataCorrupt as error:
                log.error("unreadable header left alone", error=str(error))
                continue
            if decision is not None and txn.ending is None:
                self._ends.finish(txn, decision, mine=False)

    # ---- deadline keys left behind ----

    async def drop_stale_deadlines(self) -> int:
        """Delete deadline keys long past their time whose header is final or deleted; returns how many.

        Bounded by the time in the key. With a wall clock stepped ahead it finds keys of open transactions and leaves
        them.
        """
        now_ms = max(self._state.cluster.wall_ms(), self._state.clock.wall_ms())
        until_ms = now_ms - int(STALE_AFTER_S * 1000)
        if until_ms <= 0:
            return 0
        end = keys.TXN_BY_DEADLINE + f"{until_ms:013d}".encode()
        dropped, at_once = 0, self._state.settings.headers_at_once
        async for page in in_pages(self._state.store, keys.TXN_BY_DEADLINE, end, at_once=at_once, keys_only=True):
            parts = [part for record in page if (part := deadline_of(record.key)) is not None]
            others = [(timeout_ms, txn_id) for timeout_ms, txn_id in parts if self._state.find(txn_id) is None]
            if others:
                dropped += await self._drop_stale(others)
        return dropped

    async def _drop_stale(self, parts: list[tuple[int, TxnId]]) -> int:
        _, headers = await self._state.store.get_many([keys.txn(txn_id) for _, txn_id in parts])
        stale = [part for part, header in zip(parts, headers, strict=True) if _is_over(header)]
        results = await all_of(
            self._state.store.commit(plan_drop_deadline(timeout_ms, txn_id)) for timeout_ms, txn_id in stale
        )
        return sum(result.succeeded for result in results)


def _is_over(header: KeyValue | None) -> bool:
    return header is None or header.version != 1
