"""Named transactions: every begin of a name joins its one transaction. Source: DESIGN §4, §10.

Any coordinator serves any name: the name record and its compare decide, under any TCID. Memory answers nothing, as
another coordinator may have ended the transaction: a begin that follows an answered commit returns that commit.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, NamedTuple

from coordinator_v5.begins import BeginHandler
from coordinator_v5.ends import EndHandler
from coordinator_v5.naming.name_bounds import NameBounds
from coordinator_v5.state import CoordinatorState
from coordinator_v5.transactions import OwnedTcid, OwnedTransaction, Phase
from txnstore import keys, records
from txnstore.records import ABORTED, OPEN, REASON_UNANSWERED, Header, TxnName
from txnstore.store import Commit, CommitVerdict, KeyValue
from txnstore.writes.name_transitions import (
    Keep,
    NamedVerdict,
    NameState,
    plan_begin_named,
    read_begin_named_verdict,
    read_name,
)
from txnstore.writes.transitions import RecordedDecision
from txnwire.errors import NotOwner, OutcomeUnknown, Timeout, TxnError, TxnNotFound
from txnwire.ids import TxnId
from txnwire.names import namespace_of

MAX_LOOKS: Final = 3
"""Reads of a name whose transaction is collected meanwhile; one retry is enough unless records were deleted by hand."""


class Begun(NamedTuple):
    """`deadline_ms`: absolute, epoch ms; 0 if collected. `joined`: another begin made it. `decision`: how it ended, if
    it has; an aborted one is never returned for a name."""

    txn_id: TxnId
    deadline_ms: int
    joined: bool = False
    decision: RecordedDecision | None = None


class Found(NamedTuple):
    """A name as stored."""

    state: NameState
    record: KeyValue | None
    header: Header | None


class NameHandler:
    def __init__(self, state: CoordinatorState, begins: BeginHandler, ends: EndHandler) -> None:
        self._state = state
        self._begins = begins
        self._ends = ends
        self._bounds = NameBounds(
            state.store, state.clock, state.settings.names, look_every_s=state.settings.count_names_s
        )
        self._creating: dict[str, asyncio.Future[NamedVerdict | TxnError]] = {}
        """Begins of names in flight from here; one per name, which outlives its caller."""

    async def begin(
        self,
        tc: OwnedTcid,
        *,
        name: str,
        timeout_ms: int,
        attempt: str,
        owner: str,
        keep: Keep,
        known_only: bool = False,
    ) -> Begun:
        """Get or create. A repeated `attempt` finds the transaction it made, through any coordinator (D7).

        Raises `NotOwner`, `Overloaded`, `TooManyNames`, `StoreFull`, `StoreUnavailable`; `Timeout`: it may yet be
        begun, under its own id, and is not aborted then. `OutcomeUnknown`: its records were deleted by hand. With
        `known_only` `TxnNotFound` for a free name."""
        started, limit_s = self._state.clock.monotonic(), self._state.settings.answer_s
        try:
            async with asyncio.timeout(limit_s):
                begun = await self._begin(tc, name, timeout_ms, attempt, owner, None if known_only else keep)
        except TimeoutError:
            raise Timeout(f"the begin of {name!r} was not answered within {limit_s} s: ask again") from None
        self._state.counters.begin_latency.observe(self._state.clock.monotonic() - started)
        return begun

    async def _begin(
        self, tc: OwnedTcid, name: str, timeout_ms: int, attempt: str, owner: str, keep: Keep | None
    ) -> Begun:
        """`keep` None: only a name that is not free."""
        while True:
            found = await self.look(name)
            txn_id, decision = found.state
            if txn_id is not None:
                header = found.header
                joined = header is None or header.attempt != attempt
                return Begun(txn_id, 0 if header is None else header.timeout_ms, joined, decision)
            if keep is None:
                raise TxnNotFound(f"no transaction is known by the name {name!r}: it was aborted, or is forgotten")
            creating = self._creating.get(name)
            if creating is None:
                self._begins.check_room(tc)
                if found.record is None:
                    await self._bounds.check(name)
                counter = await self._begins.next_id(tc)
                creating = self._creating.get(name)
            if creating is None:
                wall_ms = self._state.cluster.wall_ms()
                header = Header(
                    state=OPEN,
                    timeout_ms=wall_ms + timeout_ms,
                    created_ms=wall_ms,
                    owner=owner,
                    name=name,
                    attempt=attempt,
                )
                creating = self._create(tc, counter, header, found.record, keep)
            await asyncio.wait((creating,))
            answer = creating.result()
            if isinstance(answer, TxnError):
                raise answer

    async def look(self, name: str) -> Found:
        """Reads the record first, then the header."""
        store, key = self._state.store, keys.txn_name(name)
        looks = 0
        while True:
            record = await store.get(key)
            header = None
            if record is not None:
                named = records.decode(TxnName, record.value, key=key)
                header = await store.get(keys.txn(TxnId.parse(named.txn_id)))
            looks += 1
            try:
                state = read_name(record, header)
            except OutcomeUnknown:
                if looks < MAX_LOOKS:
                    continue  # collected in between: the record has the outcome now
                raise
            decoded = None if header is None else records.decode(Header, header.value, key=header.key)
            return Found(state, record, decoded)

    # ---- create ----

    def _create(
        self, tc: OwnedTcid, counter: int, header: Header, record: KeyValue | None, keep: Keep
    ) -> asyncio.Future[NamedVerdict | TxnError]:
        """Send the begin of a free name. ▲ It goes on until it is definite, even without a waiter, and its transaction
        is not aborted: others may have joined it by then (DESIGN §4)."""
        state, name = self._state, header.name or ""
        if not keep.ms:
            keep = keep._replace(ms=state.settings.names.keep_ms(namespace_of(name)))
        now, left_s = state.clock.monotonic(), (header.timeout_ms - header.created_ms) / 1000
        txn = OwnedTransaction(
            tc, TxnId(tc.tcid, counter), header, phase=Phase.BEGINNING, begun_at=now, due=now + left_s
        )
        tc.add(txn)
        creating = self._creating[name] = asyncio.get_running_loop().create_future()
        commit = plan_begin_named(txn.txn_id, tc.epoch, header, name, record, keep)
        state.submit(commit, partial(self._created, txn, commit, creating))
        return creating

    def _created(
        self,
        txn: OwnedTransaction,
        commit: Commit,
        creating: asyncio.Future[NamedVerdict | TxnError],
        future: asyncio.Future[CommitVerdict],
    ) -> None:
        self._creating.pop(txn.header.name or "", None)
        answer: NamedVerdict | TxnError
        try:
            answer = read_begin_named_verdict(commit, future.result(), txn.txn_id, txn.header.attempt)
        except TxnError as error:
            answer = error
            txn.tc.remove(txn)
            if isinstance(error, NotOwner):
                self._state.counters.cas_reject += 1
                self._begins.lost(txn.tc)
        else:
            if answer.begun:
                if commit.compares[2].value == 0:  # the name is new
                    self._bounds.begun(txn.header.name or "")
                self._opened(txn, answer.landed)
            else:
                self._state.counters.cas_conflict += 1
                txn.tc.remove(txn)
        creating.set_result(answer)

    def _opened(self, txn: OwnedTransaction, landed: Header | None) -> None:
        txn.phase = Phase.OPEN
        self._state.counters.begun += 1
        self._state.counters.cas_ok += 1
        if landed is not None and landed.state != OPEN:
            # Joined and ended elsewhere before its own begin was definite: this end is refused, and returns the
            # decision.
            self._ends.sweep_end(txn, ABORTED, REASON_UNANSWERED)
