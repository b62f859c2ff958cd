"""The client side of one transaction: tracks its sends and acks, and ends it.

Source: PIP-31, "Transaction flow"; API.md: what commit and abort do with sends and acks under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from txnclient.connection.deadlines import Deadline
from txnclient.connection.links import Link
from txnclient.connection.session import Session
from txnclient.transactions.commit_request import check_note, checked_writers, listed, same_again
from txnclient.transactions.outcome import CommitResult, Joined, TransactionState
from txnclient.transactions.roles import Ender, KeyHolder, TransactionParticipant
from txnwire.errors import (
    ExpiredTransaction,
    InvalidArgument,
    InvalidTxnState,
    NotAllowed,
    ProducerFenced,
    Timeout,
    TxnAborted,
    TxnConflict,
    TxnDecided,
    TxnError,
    TxnTimedOut,
    again,
)
from txnwire.ids import TxnId
from txnwire.proto import txn_pb2 as pb

ABORT_ON_CLOSE_S = 2.0
"""How long closing a client, or leaving `transaction()` by an exception, waits for aborts. The service aborts the rest
after the grace."""

_OPEN = TransactionState.OPEN
_ENDED = frozenset((TransactionState.COMMITTED, TransactionState.ABORTED, TransactionState.LEFT))
_SENDS_NOTHING = frozenset((TransactionState.ABORTING, TransactionState.ABORTED, TransactionState.LEFT))

_log = logging.getLogger("txnclient")


class TransactionImpl:
    """Implements one `Transaction`, which documents the public calls: counts what is under way in it, and ends it."""

    def __init__(
        self,
        session: Session,
        ender: Ender,
        txn_id: TxnId,
        *,
        expires_at: float,
        link: Link,
        joined: Joined | None = None,
        holder: KeyHolder | None = None,
    ) -> None:
        """`expires_at`: on the monotonic clock; the service has certainly aborted it after that. `link`: where it was
        begun. `joined`: set for a named one. `holder`: set for a client with a transaction key."""
        self.id = txn_id
        self.name = None if joined is None else joined.name
        self.writer_id = 0 if joined is None else joined.writer_id
        """The writer that this object sends and acks as; random for each begin of a name, 0 without one."""
        self.joined = joined is not None and joined.joined
        """Whether another begin had created the named transaction."""
        self.expires_at = expires_at
        self.link = link
        self.abandoned = False
        """Whether the close of its client has aborted it. ▲ Its user may take it for committed."""
        self.begun_s = session.clock.monotonic()
        """When this object was made, on the monotonic clock."""
        self._session = session
        self._ender = ender
        self._holder = holder
        self._state = _OPEN
        self._participants: dict[TransactionParticipant, None] = {}
        self._under_way = 0
        self._failure: TxnError | None = None
        self._settled: asyncio.Future[None] | None = None
        self._result: CommitResult | None = None
        self._counted: tuple[int, ...] | None = None
        """The writers listed by a commit."""
        self._note: str | None = None
        self._asked = False
        """Whether a coordinator may have been asked to commit it."""
        self._settling = False
        if joined is not None and joined.result is not None:
            self._state, self._result = TransactionState.COMMITTED, joined.result

    @property
    def state(self) -> TransactionState:
        return self._state

    @property
    def result(self) -> CommitResult | None:
        return self._result

    @property
    def writers(self) -> tuple[int, ...] | None:
        return None if self._result is None else self._result.writers

    @property
    def note(self) -> str | None:
        return None if self._result is None else self._result.note

    async def flush(self, *, timeout: float | None = None) -> None:
        """See `Transaction.flush`."""
        self._session.expect_here()
        self.check_open("flush")
        await self._wait_flushed(self._session.deadline(timeout))
        if self._failure is not None:
            raise _in_vain(self._failure)
        if self.aborting:
            raise self.withdrawn("flush")  # ▲ withdrawn sends are not stored, though no caller waits for them

    async def commit(
        self, *, writers: Iterable[int] | None = None, note: str | None = None, timeout: float | None = None
    ) -> CommitResult:
        """See `Transaction.commit`."""
        self._session.expect_here()
        counted = checked_writers(writers, self.id, self.name)
        check_note(note, self.id, self.name)
        if self._result is not None:
            return same_again(self._result, counted, note, self.id)
        deadline = self._session.deadline(timeout)
        if self._state is TransactionState.ABORTING and self._asked:
            await self._find_out(deadline)
            if self._result is not None:
                return same_again(self._result, counted, note, self.id)
        if self._state not in (_OPEN, TransactionState.COMMITTING):
            why = ", because its client was closed" if self.abandoned else ""
            raise InvalidTxnState(f"transaction {self.id} cannot commit: it is {self._state.value}{why}")
        self._state = TransactionState.COMMITTING
        self._counted, self._note = counted, note
        try:
            return await self._commit(counted, note, deadline)
        except TxnError:
            raise
        except BaseException:
            self.settle_later()
            raise

    async def _find_out(self, deadline: Deadline) -> None:
        """▲ Settle an abort that follows a cancelled commit: the transaction must not be reported as aborted while that
        commit may still decide. Raises `Timeout`."""
        try:
            await self.abort(timeout=deadline.remaining())
        except InvalidTxnState as error:
            _log.debug("transaction %s: %s", self.id, error)

    async def _commit(self, counted: tuple[int, ...] | None, note: str | None, deadline: Deadline) -> CommitResult:
        if counted is None or self.writer_id in counted:
            await self._complete(deadline)
            if self._result is not None:
                return same_again(self._result, counted, note, self.id)
        else:
            for participant in list(self._participants):
                participant.withdraw(self)
        if self.aborting:
            raise InvalidTxnState(f"transaction {self.id} cannot commit: it was aborted meanwhile")
        self._asked, self._state = True, TransactionState.COMMITTING
        try:
            reply = await self._ender.end(self, pb.TXN_ACTION_COMMIT, deadline, writers=counted, note=note)
        except InvalidTxnState as error:
            await self._ended_otherwise(deadline)
            if self._state is TransactionState.COMMITTING and not isinstance(error, ExpiredTransaction):
                # ▲ It may have committed with other writers: an abort and the same work again would double it.
                raise Timeout(f"{error}; how it has ended is not known yet: commit again to ask") from None
            raise await self._reason(self._as_ended(error), deadline) from None
        return self._committed(CommitResult(reply.revision, listed(reply), reply.note or None))

    async def _complete(self, deadline: Deadline) -> None:
        """Wait until all its sends and acks here are stored; raises the error of one that failed."""
        await self._wait_flushed(deadline)
        if self._failure is None:
            return
        failure = _in_vain(self._failure)
        if self.name is not None:
            if self._state is TransactionState.COMMITTING:  # ▲ C5: an abort or leave made meanwhile must stay
                self._state = _OPEN
            raise failure
        await self._abort_after(failure, deadline)
        if self._result is not None:
            return  # ▲ an earlier commit, whose answer was lost, has decided: its work must not be done again
        if self._session.clock.monotonic() >= self.expires_at and not isinstance(failure, ExpiredTransaction):
            # Sends and acks fail because it has ended: a commit after the deadline must raise the same error with or
            # without them.
            raise TxnTimedOut(self._too_late()) from failure
        raise failure

    async def _wait_flushed(self, deadline: Deadline) -> None:
        if self._under_way:
            for participant in list(self._participants):
                participant.flush(self)
            await self._wait_settled(deadline)

    def _too_late(self) -> str:
        return f"transaction {self.id} cannot commit: its timeout has passed, so it is aborted"

    def _as_ended(self, error: InvalidTxnState) -> TxnError:
        """The error of a commit that another decision has come before."""
        if isinstance(error, ExpiredTransaction):
            return error
        if self._state is TransactionState.COMMITTED:
            return TxnDecided(str(error))
        if self._state is not TransactionState.ABORTED:
            return error
        if self._session.clock.monotonic() >= self.expires_at:
            return TxnTimedOut(f"{self._too_late()}: {error}")
        return TxnAborted(str(error))

    async def _reason(self, error: TxnError, deadline: Deadline) -> TxnError:
        return error if self._holder is None else await self._holder.expired_instead(error, deadline)

    async def reason(self, error: TxnError) -> TxnError:
        """Returns the error to raise for a send's or ack's `error`: `ExpiredTransaction` if fencing caused it."""
        return await self._reason(error, self._session.deadline())

    def _committed(self, result: CommitResult) -> CommitResult:
        self._session.committed_at(result.revision)
        self._result = result
        self._over(TransactionState.COMMITTED, result.revision)
        return result

    async def _ended_otherwise(self, deadline: Deadline) -> None:
        """It has ended differently than requested: aborted or, for a named one, with other writers."""
        if self.name is None:
            self._over(TransactionState.ABORTED, await self._aborted_at(deadline))
            return
        try:
            await self._find_out_named(deadline)
        except TxnError as error:
            _log.debug("how transaction %s has ended: %s", self.id, error)  # still COMMITTING: call again

    async def _find_out_named(self, deadline: Deadline) -> None:
        try:
            reply = await self._ender.end(self, pb.TXN_ACTION_ABORT, deadline)
        except InvalidTxnState:
            self._over_committed(await self._ender.committed_as(self, deadline))
        else:
            self._over(TransactionState.ABORTED, reply.revision)

    async def _committed_as(self, deadline: Deadline) -> CommitResult | None:
        """How it committed although an abort was requested; None if unknown."""
        try:
            if self.name is not None:
                return await self._ender.committed_as(self, deadline)
            return CommitResult((await self._ender.end(self, pb.TXN_ACTION_COMMIT, deadline)).revision)
        except TxnError as error:
            _log.debug("how transaction %s has committed: %s", self.id, error)
            return CommitResult(0) if self.name is None else None

    def _over_committed(self, result: CommitResult | None) -> None:
        if result is None:
            self._over(TransactionState.COMMITTED)
        else:
            self._committed(result)

    async def _aborted_at(self, deadline: Deadline) -> int:
        """The revision at which another party aborted it, 0 if unknown. ▲ Consumers start over only if it is known: a
        broker that has not followed the abort would go on after the messages acked here, out of order."""
        try:
            return (await self._ender.end(self, pb.TXN_ACTION_ABORT, deadline)).revision
        except TxnError as error:
            _log.debug("when transaction %s was aborted: %s", self.id, error)
            return 0

    async def abort(self, *, timeout: float | None = None) -> None:
        """See `Transaction.abort`. Raises `TxnDecided` if it has committed."""
        self._session.expect_here()
        if self._state in (TransactionState.ABORTED, TransactionState.LEFT):
            return
        if self._state is TransactionState.COMMITTED:
            raise TxnDecided(f"transaction {self.id} cannot abort: it has committed")
        try:
            await self._abort(self._session.deadline(timeout))
        except TxnError:
            raise
        except BaseException:
            self.settle_later()
            raise

    async def leave(self, *, timeout: float | None = None) -> None:
        """See `Transaction.leave`."""
        self._session.expect_here()
        if self.name is None:
            raise InvalidArgument(f"transaction {self.id} has no name, so no other writer would end it: abort it")
        if self._state in (TransactionState.COMMITTED, TransactionState.ABORTED):
            return
        deadline = self._session.deadline(timeout)  # refused before anything is withdrawn
        self._state = TransactionState.LEFT
        for participant in list(self._participants):
            participant.withdraw(self)
        await self._wait_settled(deadline)

    async def abort_because(self, error: BaseException) -> None:
        """Try to abort for a short time. A failure adds a note to `error`, and the abort goes on in the background."""
        try:
            await self.abort(timeout=min(ABORT_ON_CLOSE_S, self._session.timeout_s))
        except ExpiredTransaction as expired:
            if type(error) is not ExpiredTransaction:
                error.add_note(f"and transaction {self.id} was fenced: {expired}")
        except InvalidTxnState:
            error.add_note(f"transaction {self.id} had committed before")
        except TxnError as failure:
            error.add_note(f"and aborting transaction {self.id} failed: {type(failure).__name__}: {failure}")

    # ---- without its caller -----------------------------------------------------------------------------------------

    @property
    def undecided(self) -> bool:
        """Whether its end was requested and is not known."""
        return self._state is TransactionState.COMMITTING or self._state is TransactionState.ABORTING

    @property
    def ended(self) -> bool:
        """Whether nothing is left to settle: its end is known, or it was left."""
        return self._state in _ENDED

    def settle_later(self) -> None:
        """Settle it in the background, until its end is known or its time is up. ▲ C1, C5: it is aborted even if a
        commit may be on its way, and the first of both decides: else it could commit long after its caller has given up
        and done the work again in another transaction. A named one has other writers: it goes on, and a commit that may
        be on its way is repeated."""
        if not self._session.is_here:  # a forked child leaves it to its parent
            return
        if self.name is None and self._state in (_OPEN, TransactionState.COMMITTING):
            self._state = TransactionState.ABORTING
        elif self._state is TransactionState.COMMITTING and not self._asked:
            self._state = _OPEN
        if self.undecided and not self._settling:
            self._settling = True
            self._ender.settle(self)

    async def ask_again(self, *, timeout: float) -> None:
        """Repeat the requested commit or abort. Raises as that does."""
        if self._state is TransactionState.COMMITTING:
            await self.commit(writers=self._counted, note=self._note, timeout=timeout)
        else:
            await self.abort(timeout=timeout)

    # ---- how it ends ------------------------------------------------------------------------------------------------

    async def _abort(self, deadline: Deadline) -> None:
        self._state = TransactionState.ABORTING
        for participant in list(self._participants):
            participant.withdraw(self)
        try:
            reply = await self._ender.end(self, pb.TXN_ACTION_ABORT, deadline)
        except ExpiredTransaction:
            self._over(TransactionState.ABORTED)
            raise
        except InvalidTxnState as error:
            self._over_committed(await self._committed_as(deadline))
            raise TxnDecided(str(error)) from None
        # Reads wait for this too: until an owner has followed the abort, it hides messages committed behind it.
        self._session.committed_at(reply.revision)
        expired = await self._expired_by(reply, deadline)
        # Resends are pointless now; the answers to the rest are on their way.
        for participant in list(self._participants):
            participant.withdraw(self)
        try:
            await self._wait_settled(deadline)
        except Timeout as error:
            # It is aborted, and only reporting that redelivers its acked messages: a hanging broker must not delay it.
            _log.debug("transaction %s is aborted: %s", self.id, error)
        finally:
            self._over(TransactionState.ABORTED, reply.revision)
        if expired is not None:
            raise expired

    async def _expired_by(self, reply: pb.EndTxnOk, deadline: Deadline) -> ExpiredTransaction | None:
        """The fencing error for a transaction aborted so long ago that only its key can tell the cause."""
        if self._holder is None or reply.revision:
            return None
        error = await self._holder.expired_instead(InvalidTxnState(f"transaction {self.id} was aborted"), deadline)
        return error if isinstance(error, ExpiredTransaction) else None

    async def _abort_after(self, failure: TxnError, deadline: Deadline) -> None:
        """Abort because of `failure`, which the caller raises, unless fencing has caused it. A failing abort only adds
        a note to it."""
        try:
            await self._abort(deadline)
        except ExpiredTransaction as expired:
            raise expired from failure
        except TxnError as error:
            failure.add_note(f"and aborting transaction {self.id} failed: {type(error).__name__}: {error}")

    def _over(self, state: TransactionState, revision: int = 0) -> None:
        self._state = state
        self._ender.forget(self)
        participants, self._participants = self._participants, {}
        # ▲ Acks of a writer that does not count come back, as after an abort; also if the counting writers are unknown:
        # the broker never redelivers acks that count, and the others must come in order.
        happened = (
            state is TransactionState.COMMITTED
            and self._result is not None
            and (self.writers is None or self.writer_id in self.writers)
        )
        for participant in participants:
            participant.ended(self, happened, revision)

    # ---- for its participants ---------------------------------------------------------------------------------------

    @property
    def aborting(self) -> bool:
        """Whether it can only abort, has aborted or was left, so unsent messages need not be sent."""
        return self._state in _SENDS_NOTHING

    def expect_here(self) -> None:
        """Raises `InvalidArgument` in another event loop. ▲ C7: its own loop counts what is under way; its commit could
        miss calls of another thread."""
        self._session.expect_here()

    def check_open(self, doing: str) -> None:
        """Raises `InvalidTxnState` unless it is open; `doing`: e.g. "send". `ExpiredTransaction` if its client is known
        to be fenced."""
        expired = None if self._holder is None else self._holder.expired()
        if expired is not None:
            raise expired
        if self._state is not _OPEN:
            raise InvalidTxnState(f"cannot {doing} in transaction {self.id}: it is {self._state.value}")

    def check_goes_on(self, doing: str) -> None:
        """As `check_open`, for the rest of an operation that began while it was open. ▲ C2: a commit waits for it."""
        if self._state is not _OPEN and self._state is not TransactionState.COMMITTING:
            raise self.withdrawn(doing)

    def withdrawn(self, doing: str) -> InvalidTxnState:
        """The error for an operation it did not wait for; `doing`: e.g. "send"."""
        ended = "was aborted" if self.aborting else f"is {self._state.value}"
        if self._state is TransactionState.LEFT:
            ended = "was left"
        return InvalidTxnState(f"cannot {doing} in transaction {self.id}: it {ended}, and this was not sent")

    def started(self, participant: TransactionParticipant | None) -> None:
        """`participant` has an entry or an ack under way in it; `finished` is called once for it. None: an operation
        made of several participants' parts, which ends on its own."""
        self._under_way += 1
        if participant is not None:
            self._participants[participant] = None

    def involves(self, participant: TransactionParticipant) -> None:
        """`participant` must hear of its end."""
        self._participants[participant] = None

    def failed(self, error: TxnError) -> None:
        """▲ C1: a send or ack of it has failed, or may have: the transaction can only abort."""
        if self._failure is None:
            self._failure = error

    def finished(self, error: TxnError | None) -> None:
        """One started operation is done, withdrawn, or failed with `error`: then it can only abort."""
        self._under_way -= 1
        if error is not None:
            self.failed(error)
        if not self._under_way and self._settled is not None:
            self._settled.set_result(None)
            self._settled = None

    async def _wait_settled(self, deadline: Deadline) -> None:
        while self._under_way:
            if deadline.passed:
                raise deadline.expired(f"transaction {self.id}: {self._under_way} sends and acks are still unanswered")
            if self._settled is None:
                self._settled = self._session.loop.create_future()
            await asyncio.wait((self._settled,), timeout=deadline.remaining())

    def __repr__(self) -> str:
        named = "" if self.name is None else f", name={self.name!r}, writer_id={self.writer_id:#018x}"
        return f"Transaction({self.id}, {self._state.value}{named})"


FENCED_LIKE = (TxnConflict, NotAllowed, ProducerFenced)
"""Errors that a fenced client may get before it learns of the fencing: its acked messages come again, its transaction's
header is collected, its successor has its segments and its producers' names."""


async def reason_of(error: TxnError, txn: TransactionImpl | None) -> TxnError:
    """Returns the error to raise for one of `FENCED_LIKE` from a send or ack in `txn`."""
    return error if txn is None else await txn.reason(error)


def check_transaction(txn: TransactionImpl, doing: str) -> None:
    """As `check_open`, for the application's `txn` argument: `InvalidArgument` if it belongs to another event loop."""
    txn.expect_here()
    txn.check_open(doing)


def _in_vain(failure: TxnError) -> TxnError:
    """Returns the error of a flush or commit for a send or ack that has failed before. ▲ Never retriable, though the
    failure itself may be: a caller that repeats the commit while the error is retriable would do so until the deadline.
    Work that failed for another reason would fail again in the next transaction: its error asks for no repeat."""
    error = again(failure)
    if error.retriable:
        error.retriable, error.requires_abort = False, True
    return error
