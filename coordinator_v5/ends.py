"""End: one compare-and-set decides, for any caller. Source: DESIGN §5 (end) and §9; PIP-471 `endTxn`.

Transactions of TCIDs owned here are ended from memory, without a task or a read; all others by the stored records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog

from coordinator_v5.state import CoordinatorState
from coordinator_v5.transactions import EndReply, EndRequest, OwnedTcid, OwnedTransaction, Phase
from txnstore import keys
from txnstore.records import (
    COMMITTED,
    REASON_CLIENT,
    REASON_SESSION,
    REASON_TIMEOUT,
    REASON_UNANSWERED,
    Header,
    decode,
)
from txnstore.store import Commit, CommitVerdict
from txnstore.writes.collection_transitions import block_of, read_outcomes
from txnstore.writes.name_transitions import outcome_by_name
from txnstore.writes.transitions import (
    RecordedDecision,
    check_end,
    decide,
    decision_of,
    plan_end,
    read_end_verdict,
    read_seq,
)
from txnwire.errors import NotOwner, OutcomeUnknown, StoreFull, StoreUnavailable, Timeout, TxnError, TxnNotFound
from txnwire.ids import TxnId

log = structlog.get_logger()

RETRY_S: Final = 0.5
"""Pause after a failed abort of a transaction that is overdue or whose begin was never answered."""

SWEPT: Final = (REASON_TIMEOUT, REASON_SESSION, REASON_UNANSWERED)
"""Reasons of aborts that no client asked for."""


class EndHandler:
    def __init__(self, state: CoordinatorState) -> None:
        self._state = state
        self._pending: dict[EndRequest, None] = {}
        """In the order of `started_at`."""
        self.sweep_at = float("-inf")
        """The sweeper sends no abort before: the store has just refused one."""

    @property
    def pending(self) -> int:
        return len(self._pending)

    def end(
        self,
        txn: OwnedTransaction,
        state: str,
        *,
        reason: str | None,
        writers: Sequence[str] | None,
        note: str | None,
        reply: EndReply,
    ) -> None:
        """Decide a transaction of ours; calls `reply` with the decision, or with the error that prevented it."""
        request = EndRequest(txn, state, reason, writers, note, reply, self._state.clock.monotonic())
        self._pending[request] = None
        txn.waiters.append(request)
        # One unanswered write of a header at a time (▲ §4; the store holds a second one back): later requests are
        # answered from the first one's verdict.
        if txn.ending is None:
            self._send(txn, state, reason, writers, note, None)

    def sweep_end(self, txn: OwnedTransaction, state: str, reason: str) -> None:
        """End a transaction that no client asked to end.

        ▲ Compares the TCID epoch: after a pause another coordinator may own the TCID, and the client be alive there.
        """
        if txn.ending is None and not txn.tc.lost:
            self._send(txn, state, reason, None, None, txn.tc.epoch)

    def sweep(self, now: float) -> None:
        """Answer `Timeout` to requests that have waited too long; the decision continues until it is definite."""
        limit_s = self._state.settings.answer_s
        for request in list(self._pending):
            if now - request.started_at < limit_s:
                break
            request.txn.waiters.remove(request)
            txn_id = request.txn.txn_id
            self._reply(request, Timeout(f"the end of {txn_id} was not answered within {limit_s} s: ask again"))

    def _send(
        self,
        txn: OwnedTransaction,
        state: str,
        reason: str | None,
        writers: Sequence[str] | None,
        note: str | None,
        tc_epoch: int | None,
    ) -> None:
        wall_ms = self._state.clock.wall_ms()
        decided = decide(txn.header, state, finalized_ms=wall_ms, reason=reason, writers=writers, note=note)
        self._state.counters.sweeping += reason in SWEPT
        # A late index put may be in flight: its key may land before this end, which has to delete it. So may one of a
        # successor that this coordinator, asleep, has not heard of.
        old = self._state.clock.monotonic() - txn.begun_at >= self._state.settings.index_after_s
        commit = plan_end(txn.txn_id, decided, deadline_key=txn.deadline_key or old, tc_epoch=tc_epoch)
        txn.ending = decided
        self._state.submit(commit, partial(self._ended, txn, commit, decided))

    def _ended(
        self, txn: OwnedTransaction, commit: Commit, decided: Header, future: asyncio.Future[CommitVerdict]
    ) -> None:
        txn.ending = None
        waiters, txn.waiters = txn.waiters, []
        counters = self._state.counters
        counters.sweeping -= decided.reason in SWEPT
        try:
            verdict = read_end_verdict(commit, future.result(), decided)
        except NotOwner:
            counters.cas_reject += 1
            self._state.drop(txn.tc)
            self._end_again(txn, waiters)
            return
        except TxnError as error:
            now = self._state.clock.monotonic()
            if decided.reason in SWEPT and isinstance(error, StoreUnavailable | StoreFull):
                self.sweep_at = now + RETRY_S
            # ▲ Also if this is the second try of an abort that is owed before the deadline.
            owed = decided.reason in (REASON_TIMEOUT, REASON_UNANSWERED)
            if (now >= txn.due or owed) and not txn.tc.lost:
                txn.tc.watch_deadline(txn, now + RETRY_S)
            for request in waiters:
                self._reply(request, error)
            return
        if verdict.decision is None:
            counters.cas_reject += 1
            self._gone(txn, waiters)
            return
        self._compared(mine=verdict.mine)
        self.finish(txn, verdict.decision, mine=verdict.mine)
        for request in waiters:
            self._reply(request, _answer(txn.txn_id, verdict.decision, request))

    def _end_again(self, txn: OwnedTransaction, waiters: Sequence[EndRequest]) -> None:
        """A sweep's end was refused for its TCID epoch: ends that clients asked for meanwhile need no ownership."""
        for request in waiters:
            txn.waiters.append(request)
            if txn.ending is None:
                self._send(txn, request.state, request.reason, request.writers, request.note, None)

    def _gone(self, txn: OwnedTransaction, waiters: Sequence[EndRequest]) -> None:
        """The header has been collected: another coordinator has owned the TCID for more than the retention."""
        log.warning("the header of an open transaction is missing", txn=str(txn.txn_id))
        self._state.sessions.ended(txn)
        txn.tc.remove(txn)
        for request in waiters:
            self._reply(request, NotOwner(f"transaction {txn.txn_id} was ended elsewhere: ask its coordinator"))

    def finish(self, txn: OwnedTransaction, decision: RecordedDecision, *, mine: bool) -> None:
        """A transaction of ours is decided, by us or (not `mine`) by another coordinator."""
        if txn.phase is Phase.ENDED:
            return
        self._state.sessions.ended(txn)
        txn.tc.remove(txn)
        if mine:
            self.count(decision)
        if not txn.tc.lost:
            saw_final(txn.tc, txn.txn_id, decision, txn.header, self._state.clock.monotonic())

    def _compared(self, *, mine: bool) -> None:
        self._state.counters.cas_ok += mine
        self._state.counters.cas_conflict += not mine

    def count(self, decision: RecordedDecision) -> None:
        counters = self._state.counters
        if decision.state == COMMITTED:
            counters.committed += 1
            return
        counters.aborted += 1
        reason = decision.reason or REASON_CLIENT
        counters.aborted_by[reason] = counters.aborted_by.get(reason, 0) + 1
        counters.timed_out += decision.reason == REASON_TIMEOUT
        counters.vanished += decision.reason == REASON_SESSION

    def _reply(self, request: EndRequest, answer: RecordedDecision | TxnError) -> None:
        self._pending.pop(request, None)
        counters = self._state.counters
        latency = counters.commit_latency if request.state == COMMITTED else counters.abort_latency
        latency.observe(self._state.clock.monotonic() - request.started_at)
        request.reply(answer)

    # ---- transactions not in memory ----

    async def end_by_store(
        self,
        txn_id: TxnId,
        state: str,
        *,
        reason: str | None,
        writers: Sequence[str] | None,
        name: str = "",
        note: str | None = None,
    ) -> RecordedDecision:
        """Decide a transaction that is not in memory, or return its decision: of another coordinator's TCID, or ended
        already. Raises `InvalidTxnState`, `ExpiredTransaction`, `OutcomeUnknown`, `TxnNotFound`, `Timeout`."""
        timeout_s = self._state.settings.answer_s
        key = keys.txn(txn_id)
        record = await self._state.store.get(key, timeout_s=timeout_s)
        if record is None:
            return await self._end_collected(txn_id, state, writers, name, note)
        decision = decision_of(record)
        if decision is None:
            opened = decode(Header, record.value, key=key)
            wall_ms = self._state.clock.wall_ms()
            decided = decide(opened, state, finalized_ms=wall_ms, reason=reason, writers=writers, note=note)
            commit = plan_end(txn_id, decided, deadline_key=True)
            try:
                result = await self._state.store.commit(commit, timeout_s=timeout_s)
            except OutcomeUnknown as error:
                raise Timeout(f"the end of {txn_id} was not answered within {timeout_s} s: ask again") from error
            verdict = read_end_verdict(commit, result, decided)
            decision = verdict.decision
            if decision is None:
                return await self._end_collected(txn_id, state, writers, name, note)
            self._compared(mine=verdict.mine)
            if verdict.mine:
                self.count(decision)
        return check_end(txn_id, decision, state, writers, note)

    async def _end_collected(
        self, txn_id: TxnId, state: str, writers: Sequence[str] | None, name: str, note: str | None
    ) -> RecordedDecision:
        decision, writers_known = await self.collected(txn_id, name)
        if state == decision.state == COMMITTED and not writers_known:
            # ▲ Only the name record of a named transaction says which writers counted, never the bitmap.
            if name or writers is not None:
                raise OutcomeUnknown(f"transaction {txn_id} is COMMITTED and collected: which writers counted is lost")
            return decision
        return check_end(txn_id, decision, state, writers, note)

    async def collected(self, txn_id: TxnId, name: str = "") -> tuple[RecordedDecision, bool]:
        """The outcome of an id without a header, and whether the record of its `name` gives its writers. Raises
        `TxnNotFound` if the id was surely never given out, else `OutcomeUnknown` if its outcome is no longer known
        (D5)."""
        tc = self._state.tcids.get(txn_id.tcid)
        wanted = [keys.outcome_block(txn_id), keys.txn_seq(txn_id.tcid), *([keys.txn_name(name)] if name else [])]
        # Collection changes the block and the name record in one etcd transaction: both hold the outcome, or neither.
        _, found = await self._state.store.get_many(wanted, timeout_s=self._state.settings.answer_s)
        named = outcome_by_name(found[2], txn_id) if name else None
        if named is not None:
            return named, True
        state = read_outcomes(txn_id.tcid, block_of(txn_id.counter), found[0]).state_of(txn_id.counter)
        if state is not None:
            return RecordedDecision(state, 0), False
        if txn_id.counter >= read_seq(found[1]).record.next or (tc is not None and tc.never_given_out(txn_id.counter)):
            raise TxnNotFound(f"transaction {txn_id} was never given out")
        raise OutcomeUnknown(f"transaction {txn_id} is not known: it ended long ago, or its begin never took place")


def _answer(txn_id: TxnId, decision: RecordedDecision, request: EndRequest) -> RecordedDecision | TxnError:
    try:
        return check_end(txn_id, decision, request.state, request.writers, request.note)
    except TxnError as error:
        return error


def saw_final(tc: OwnedTcid, txn_id: TxnId, decision: RecordedDecision, header: Header, now: float) -> None:
    """Start a decided transaction's retention."""
    committed = decision.state == COMMITTED
    writers = len(decision.writers or ())
    tc.saw_final(txn_id.counter, committed, decision.revision, now=now, name=header.name, writers=writers)
