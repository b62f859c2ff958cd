"""Begin: ids, the OPEN header, and begins whose answer is lost. Source: DESIGN §4 and §5.

No task per request: a begin is a plan handed to the store's group commit, with a callback that answers.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import structlog

from coordinator_v5.ends import EndHandler
from coordinator_v5.sessions import ClientSession, SessionConnection
from coordinator_v5.state import CoordinatorState
from coordinator_v5.transactions import BeginReply, BeginRequest, OwnedTcid, OwnedTransaction, Phase
from txnstore.records import ABORTED, OPEN, REASON_UNANSWERED, Header
from txnstore.store import Commit, CommitVerdict
from txnstore.writes.transitions import plan_begin, plan_seq, read_begin_verdict, read_seq_verdict
from txnwire.errors import NotOwner, Overloaded, Timeout, TxnError
from txnwire.ids import TxnId

log = structlog.get_logger()

MAX_TRIES: Final = 3
"""Most ids tried for one begin."""
MAX_EXTRA: Final = 8
"""▲ Most begins in flight under a second or third id, over all clients: if the store answers, few wait for long; if it
does not, a fresh id fares no better, and every one of them lands later."""


class BeginHandler:
    def __init__(self, state: CoordinatorState, ends: EndHandler) -> None:
        self._state = state
        self._ends = ends
        self._pending: dict[BeginRequest, None] = {}
        """In the order of `tried_at`."""
        self._extra = 0
        """Headers in flight beyond one per begin."""
        self._awaiting_ids: dict[OwnedTcid, list[asyncio.Future[None]]] = {}

    @property
    def pending(self) -> int:
        return len(self._pending)

    def begin(
        self,
        tc: OwnedTcid,
        *,
        timeout_ms: int,
        attempt: str,
        owner: str,
        session: ClientSession | None,
        connection: SessionConnection | None,
        reply: BeginReply,
    ) -> None:
        """Start a begin; calls `reply` with the transaction or an error.

        A repeated attempt gets the answer of the first, so it leaves no second open transaction (D7)."""
        if session is not None:
            earlier = session.begins.get(attempt)
            if earlier is not None and not (earlier.closed and earlier.tc.lost and earlier.txn is None):
                self._repeated(earlier, connection, reply)
                return
        adopted = None if connection is None else self._state.sessions.adopt(attempt, tc.tcid, connection)
        if adopted is not None:
            reply(adopted)
            return
        self.check_room(tc)
        request = BeginRequest(
            tc,
            timeout_ms=timeout_ms,
            attempt=attempt,
            owner=owner,
            session=session,
            connection=connection,
            reply=reply,
            now=self._state.clock.monotonic(),
        )
        if session is not None:
            session.begins[attempt] = request
        self._pending[request] = None
        self._try(request)

    def check_room(self, tc: OwnedTcid) -> None:
        """Raises `Overloaded` if as many transactions are open as memory and etcd are sized for."""
        most = self._state.settings.max_open
        if tc.open_count >= most:
            raise Overloaded(
                f"{tc.open_count} transactions of coordinator id {tc.tcid} are open, at most {most} may be: end some "
                "(`txnctl transactions hanging` shows the oldest), begin again a little later"
            )

    def sweep(self, now: float) -> None:
        """Retry unanswered begins with a fresh id; answer `Timeout` to those that have waited too long."""
        settings = self._state.settings
        for request in list(self._pending):
            if now - request.tried_at < settings.begin_patience_s:
                break
            if request.tc.lost:
                self._fail(request, _moved(request.tc))
                continue
            if now - request.started_at >= settings.answer_s:
                self._fail(request, Timeout(f"begin was not answered by the store within {settings.answer_s} s"))
                continue
            del self._pending[request]
            self._pending[request] = None
            request.tried_at = now
            if (
                not request.queued
                and request.in_flight < MAX_TRIES
                and (request.in_flight == 0 or self._extra < MAX_EXTRA)
            ):
                self._state.counters.unanswered += 1
                self._try(request)

    def lost(self, tc: OwnedTcid) -> None:
        """The TCID is lost: begins that wait for an id are redirected to the next owner."""
        self._state.drop(tc)
        for request in list(tc.waiting):
            self._fail(request, _moved(tc))
        self._wake(tc, _moved(tc))

    async def next_id(self, tc: OwnedTcid) -> int:
        """A counter reserved for a begin made elsewhere (`coordinator_v5.naming.names`). Raises `NotOwner`, or the
        error that kept it from taking a block of ids."""
        while True:
            counter = self._take_id(tc)
            if counter is not None:
                return counter
            if tc.lost:
                raise _moved(tc)
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._awaiting_ids.setdefault(tc, []).append(granted)
            await granted

    def _wake(self, tc: OwnedTcid, error: TxnError | None) -> None:
        """Wake the callers of `next_id`: they look again, or get `error`."""
        for waiter in self._awaiting_ids.pop(tc, ()):
            if waiter.done():
                continue  # the caller gave up meanwhile
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    def _repeated(self, earlier: BeginRequest, connection: object, reply: BeginReply) -> None:
        earlier.connection = connection
        if earlier.txn is None:
            earlier.replies.append(reply)
            if earlier.closed:
                # ▲ The client got `Timeout` and repeats the begin while its header is in flight: use that header.
                earlier.closed = False
                earlier.started_at = earlier.tried_at = self._state.clock.monotonic()
                self._pending[earlier] = None
            return
        self._state.sessions.claimed(earlier.txn, connection)
        reply(earlier.txn)

    def _try(self, request: BeginRequest) -> None:
        tc, state = request.tc, self._state
        counter = self._take_id(tc)
        if counter is None:
            request.queued = True
            tc.waiting.append(request)
            return
        now, wall_ms = state.clock.monotonic(), state.cluster.wall_ms()
        header = Header(
            state=OPEN,
            timeout_ms=wall_ms + request.timeout_ms,
            created_ms=wall_ms,
            owner=request.owner,
            attempt=request.attempt,
        )
        due = now + request.timeout_ms / 1000
        txn = OwnedTransaction(tc, TxnId(tc.tcid, counter), header, phase=Phase.BEGINNING, begun_at=now, due=due)
        tc.add(txn)
        self._extra += request.in_flight > 0
        request.in_flight += 1
        state.submit(plan_begin(txn.txn_id, tc.epoch, header), partial(self._begun, request, txn))

    def _begun(self, request: BeginRequest, txn: OwnedTransaction, future: asyncio.Future[CommitVerdict]) -> None:
        request.in_flight -= 1
        self._extra -= request.in_flight > 0
        try:
            landed = read_begin_verdict(future.result(), txn.txn_id, txn.header.attempt)
        except TxnError as error:
            self._refused(request, txn, error)
            return
        txn.phase = Phase.OPEN
        self._state.counters.begun += 1
        self._state.counters.cas_ok += 1
        decided = landed is not None and landed.state != OPEN
        if request.closed or decided:
            # ▲ A lost begin was repeated under its own id until definite; its client has another one: abort this.
            self._ends.sweep_end(txn, ABORTED, REASON_UNANSWERED)
        if not request.closed:
            self._try(request) if decided else self._answer(request, txn)
        self._forget_failed(request)

    def _answer(self, request: BeginRequest, txn: OwnedTransaction) -> None:
        self._pending.pop(request, None)
        request.closed = True
        request.txn = txn
        txn.begin = request
        if request.session is not None:
            self._state.sessions.opened(txn, request.session, request.connection)
            if txn.tc.lost:
                self._state.sessions.dropped(txn)
        self._state.counters.begin_latency.observe(self._state.clock.monotonic() - request.started_at)
        replies, request.replies = request.replies, []
        for reply in replies:
            reply(txn)

    def _refused(self, request: BeginRequest, txn: OwnedTransaction, error: TxnError) -> None:
        """Definitely not begun under this id; another id of the same request may still be in flight."""
        txn.tc.remove(txn)
        if isinstance(error, NotOwner):
            self._state.counters.cas_reject += 1
            self.lost(txn.tc)
        if not request.closed and request.in_flight == 0 and not request.queued:
            self._fail(request, error)
        self._forget_failed(request)

    def _fail(self, request: BeginRequest, error: TxnError) -> None:
        self._pending.pop(request, None)
        request.closed = True
        if request.queued:
            request.queued = False
            request.tc.waiting.remove(request)
        self._forget_failed(request)
        replies, request.replies = request.replies, []
        for reply in replies:
            reply(error)

    def _forget_failed(self, request: BeginRequest) -> None:
        """Once no header of a failed begin can land any more, the same attempt counts as a new one."""
        session = request.session
        over = request.closed and request.txn is None and request.in_flight == 0
        if over and session is not None and session.begins.get(request.attempt) is request:
            del session.begins[request.attempt]

    # ---- /txn-seq: blocks of ids and the late-index mark, one record with one writer ----

    def _take_id(self, tc: OwnedTcid) -> int | None:
        """▲ The next block is requested first: its commit carries the late-index mark, which would pass an id that is
        taken but not yet among the transactions."""
        if tc.ids.wants_more:
            self.take_block(tc)
        return tc.ids.take()

    def take_block(self, tc: OwnedTcid) -> None:
        """Request the next block of ids, ahead of time."""
        if not tc.writing_seq and not tc.lost:
            tc.ids.asked = True
            self._write_seq(tc, self._state.settings.id_block)

    def advance_mark(self, tc: OwnedTcid, now: float) -> None:
        """Move the late-index mark on, at most every `mark_every_s`: it bounds a successor's scan."""
        if now - tc.marked_at < self._state.settings.mark_every_s or tc.writing_seq:
            return
        if tc.mark() > tc.seq.record.indexed_below:
            tc.marked_at = now
            self._write_seq(tc, 0)

    def _write_seq(self, tc: OwnedTcid, take: int) -> None:
        tc.writing_seq = True
        commit = plan_seq(tc.tcid, tc.epoch, tc.seq, take=take, indexed_below=tc.mark())
        self._state.submit(commit, partial(self._seq_written, tc, commit))

    def _seq_written(self, tc: OwnedTcid, commit: Commit, future: asyncio.Future[CommitVerdict]) -> None:
        tc.ids.asked = tc.writing_seq = False
        try:
            verdict = read_seq_verdict(commit, future.result(), tc.tcid)
        except NotOwner:
            self.lost(tc)
            return
        except TxnError as error:
            log.warning("id block or mark not written", tcid=tc.tcid, error=str(error))
            for request in list(tc.waiting):
                self._fail(request, error)
            self._wake(tc, error)
            return
        first, tc.seq = tc.seq.record.next, verdict.seq
        # ▲ Only a block whose own commit succeeded is used; a block whose reply was lost is never used.
        if verdict.applied and verdict.seq.record.next > first:
            tc.ids.grant(first, verdict.seq.record.next)
        if tc.ids.wants_more:
            self.take_block(tc)
        while tc.waiting and tc.ids.lowest is not None:
            request = tc.waiting.popleft()
            request.queued = False
            self._try(request)
        self._wake(tc, None)


def _moved(tc: OwnedTcid) -> NotOwner:
    return NotOwner(f"coordinator id {tc.tcid} has another owner by now: look it up")
