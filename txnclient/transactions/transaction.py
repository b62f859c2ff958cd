"""A transaction as its client holds it: what was done in it, and how it ends.

Source: PIP-31, "Transaction flow"; API.md for what commit and abort do with sends and acks that are under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from txnclient.connection.deadlines import Deadline
from txnclient.connection.links import Link
from txnclient.connection.session import Session
from txnwire.errors import (
    ExpiredTransaction,
    InvalidArgument,
    InvalidTxnState,
    NotAllowed,
    ProducerFenced,
    Timeout,
    TxnConflict,
    TxnError,
    again,
)
from txnwire.ids import TxnId
from txnwire.names import validate_note
from txnwire.proto import txn_pb2 as pb


class TransactionState(StrEnum):
    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    """`commit()` was called and its outcome is not known yet; calling it again asks again."""
    ABORTING = "ABORTING"
    """It failed or `abort()` was called, and the service has not confirmed it yet; calling that again asks again."""
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


_OPEN = TransactionState.OPEN

_log = logging.getLogger("txnclient")


@dataclass(frozen=True, slots=True)
class CommitResult:
    revision: int
    """Of the metadata store: orders all decisions. 0 where only the collected outcome is known any more."""
    writers: tuple[int, ...] | None = None
    """Of a named transaction: the writers that count, in rising order; None: all."""
    note: str | None = None
    """What its commit has noted; None: nothing."""


@dataclass(frozen=True, slots=True)
class Joined:
    """How a client takes part in a named transaction (DESIGN §10): as which writer, and whether another begin had made
    it. `result`: how it committed, if it had already."""

    name: str
    writer_id: int
    joined: bool = False
    result: CommitResult | None = None


class TransactionParticipant(Protocol):
    """What sends or acks in a transaction: a producer's channel, the acks of a consumed segment."""

    def flush(self, txn: Transaction) -> None:
        """Send what is gathered for it, now."""

    def withdraw(self, txn: Transaction) -> None:
        """Give up what is not under way to a server: it aborts, or commits without this writer."""

    def ended(self, txn: Transaction, committed: bool, revision: int) -> None:
        """It has been decided, at this revision; 0: not known when."""


class Ender(Protocol):
    """Who asks the coordinators to end a transaction."""

    async def end(
        self,
        txn: Transaction,
        action: pb.TxnAction,
        deadline: Deadline,
        *,
        writers: Sequence[int] | None = None,
        note: str | None = None,
    ) -> pb.EndTxnOk: ...

    async def committed_as(self, txn: Transaction, deadline: Deadline) -> CommitResult | None:
        """How a named transaction that is known to have committed did so; None where that cannot be told any more."""

    def forget(self, txn: Transaction) -> None: ...

    def settle(self, txn: Transaction) -> None:
        """Find out how it ends, in the background."""


class KeyHolder(Protocol):
    """Of a client with a transaction key: whether it holds that still."""

    def expired(self) -> ExpiredTransaction | None:
        """What to raise where it was fenced."""

    async def expired_instead(self, error: TxnError, deadline: Deadline) -> TxnError:
        """`error`, or that it was fenced, which is why it came."""


class Transaction:
    """Made by `client.begin()` or `client.transaction()`. Any number of tasks may send and ack in it.

    A named one (`client.begin(name=…)`) is shared with everybody who begins the name; this object is one writer of it.
    What others do to it shows here only when something is asked of it: `state` stays OPEN until then."""

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
        """`expires_at`: on the monotonic clock; past it the service has surely aborted it. `link`: where it was
        begun. `joined`: of a named one. `holder`: of a client with a transaction key."""
        self.id = txn_id
        self.name = None if joined is None else joined.name
        self.writer_id = 0 if joined is None else joined.writer_id
        """As whom this object sends and acks; random for each begin of a name, 0 without one."""
        self.joined = joined is not None and joined.joined
        """Whether somebody else had begun the name."""
        self.expires_at = expires_at
        self.link = link
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
        """The writers that a commit has named."""
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
        """What `commit` has returned; None as long as it is not known to be committed. `result.revision` given to
        another client as `at_least` has it read no older state than this."""
        return self._result

    @property
    def writers(self) -> tuple[int, ...] | None:
        """Of a named transaction that is known to have committed: the writers that count; None: all, or not known."""
        return None if self._result is None else self._result.writers

    @property
    def note(self) -> str | None:
        """Of a named transaction that is known to have committed: what its commit has noted; None: nothing, or not
        known."""
        return None if self._result is None else self._result.note

    async def flush(self, *, timeout: float | None = None) -> None:
        """Wait for every send and ack made in the transaction here; raises the error of one that failed.

        So a writer of a named transaction knows, and may tell whoever commits it, that what it did is all there."""
        self._session.expect_here()
        self.check_open("flush")
        await self._wait_flushed(self._session.deadline(timeout))
        if self._failure is not None:
            raise again(self._failure)

    async def commit(
        self, *, writers: Iterable[int] | None = None, note: str | None = None, timeout: float | None = None
    ) -> CommitResult:
        """Wait for every send and ack made in the transaction, then commit. Committing again gives the same result.

        `writers`, of a named one: the `writer_id`s that count, and whatever any other has sent and acked is treated as
        aborted; None: all, an empty list: none. The first commit decides: `InvalidTxnState` for another list later.
        Only what *this* object has sent and acked is waited for, and only if its writer counts. `note`, of a named one:
        up to 256 bytes of text that whoever finds the name committed is told (`.note`), e.g. what was written.
        `InvalidTxnState` for another note later; a commit without one is never another one for that.

        If a send or ack failed, the transaction is aborted and that error raised (`InvalidTxnState` from it where the
        transaction's own timeout has passed: then it is aborted anyway); a named one stays open then, for it is not
        this writer's alone: commit it without this writer, or abort it. `Timeout`: the outcome is not known yet,
        calling it again asks again. `InvalidTxnState`: it was aborted, and why; `ExpiredTransaction`: by a newer holder
        of the client's transaction key. `timeout` in seconds, None: the client's.
        """
        self._session.expect_here()
        counted = self._listed(writers)
        self._check_note(note)
        if self._result is not None:
            return self._same_again(self._result, counted, note)
        deadline = self._session.deadline(timeout)
        if self._state is TransactionState.ABORTING and self._asked:
            await self._find_out(deadline)
            if self._result is not None:
                return self._same_again(self._result, counted, note)
        if self._state not in (_OPEN, TransactionState.COMMITTING):
            raise InvalidTxnState(f"transaction {self.id} cannot commit: it is {self._state.value}")
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
        """▲ How one ends that is being aborted although a commit was asked for before, and cancelled: it must not be
        called aborted while that may be what decides. Raises `Timeout`."""
        try:
            await self.abort(timeout=deadline.remaining())
        except InvalidTxnState as error:
            _log.debug("transaction %s: %s", self.id, error)

    async def _commit(self, counted: tuple[int, ...] | None, note: str | None, deadline: Deadline) -> CommitResult:
        if counted is None or self.writer_id in counted:
            await self._complete(deadline)
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
            raise await self._reason(error, deadline) from None
        return self._committed(CommitResult(reply.revision, listed(reply), reply.note or None))

    async def _complete(self, deadline: Deadline) -> None:
        """What was made in it here is stored and recorded; raises the error of what could not be."""
        await self._wait_flushed(deadline)
        if self._failure is None:
            return
        failure = again(self._failure)
        if self.name is not None:
            self._state = _OPEN
            raise failure
        await self._abort_after(failure, deadline)
        if self._session.clock.monotonic() >= self.expires_at and not isinstance(failure, ExpiredTransaction):
            # What was made in it fails because it has ended: whether anything was still made must not tell what a
            # commit behind the deadline raises.
            raise InvalidTxnState(
                f"transaction {self.id} cannot commit: its timeout has passed, so it is aborted"
            ) from failure
        raise failure

    async def _wait_flushed(self, deadline: Deadline) -> None:
        if self._under_way:
            for participant in list(self._participants):
                participant.flush(self)
            await self._wait_settled(deadline)

    async def _reason(self, error: TxnError, deadline: Deadline) -> TxnError:
        return error if self._holder is None else await self._holder.expired_instead(error, deadline)

    async def reason(self, error: TxnError) -> TxnError:
        """What to raise for the `error` of a send or ack in it: that its client was fenced, where that is behind it."""
        return await self._reason(error, self._session.deadline())

    def _listed(self, writers: Iterable[int] | None) -> tuple[int, ...] | None:
        if writers is None:
            return None
        if self.name is None:
            raise InvalidArgument(f"transaction {self.id} has no name, so it has no writers: commit it without a list")
        distinct = dict.fromkeys(writers)
        for writer in distinct:
            if not isinstance(writer, int) or not 0 <= writer < 1 << 64:
                raise InvalidArgument(
                    f"{writer!r} is no writer id: expected an unsigned 64-bit number, as `writer_id` is"
                )
        return tuple(sorted(distinct))

    def _check_note(self, note: str | None) -> None:
        if note is None:
            return
        if self.name is None:
            raise InvalidArgument(f"transaction {self.id} has no name, so nobody would find its note: commit without")
        validate_note(note)

    def _same_again(self, result: CommitResult, counted: tuple[int, ...] | None, note: str | None) -> CommitResult:
        if result.writers != counted:
            raise InvalidTxnState(
                f"transaction {self.id} is COMMITTED already, with another list of writers: "
                f"{_shown(result.writers)}, asked for {_shown(counted)}"
            )
        if None not in (note, result.note) and note != result.note:
            raise InvalidTxnState(
                f"transaction {self.id} is COMMITTED already, with another note: {result.note!r}, asked for {note!r}"
            )
        return result

    def _committed(self, result: CommitResult) -> CommitResult:
        self._session.committed_at(result.revision)
        self._result = result
        self._over(TransactionState.COMMITTED, result.revision)
        return result

    async def _ended_otherwise(self, deadline: Deadline) -> None:
        """It has ended in another way than was asked for: aborted, or, where it has a name, with other writers."""
        if self.name is None:
            self._over(TransactionState.ABORTED, await self._aborted_at(deadline))
            return
        try:
            await self._find_out_named(deadline)
        except TxnError as error:
            _log.debug("how transaction %s has ended: %s", self.id, error)  # still COMMITTING: asking again tells

    async def _find_out_named(self, deadline: Deadline) -> None:
        try:
            reply = await self._ender.end(self, pb.TXN_ACTION_ABORT, deadline)
        except InvalidTxnState:
            self._over_committed(await self._ender.committed_as(self, deadline))
        else:
            self._over(TransactionState.ABORTED, reply.revision)

    async def _committed_as(self, deadline: Deadline) -> CommitResult | None:
        """Of one that has committed although its abort was asked for; None where that cannot be told."""
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
        """When somebody else has aborted it, 0 if that cannot be told. ▲ Consumers start over only where that is known:
        a broker that has yet to hear of it would go on behind what was acked here, and out of order."""
        try:
            return (await self._ender.end(self, pb.TXN_ACTION_ABORT, deadline)).revision
        except TxnError as error:
            _log.debug("when transaction %s was aborted: %s", self.id, error)
            return 0

    async def abort(self, *, timeout: float | None = None) -> None:
        """Give up what is not sent, which fails by `InvalidTxnState`, abort, and wait for what was sent as long as time
        allows. Aborting again is ok.

        `InvalidTxnState`: it has committed. `ExpiredTransaction`: it was aborted, by a newer holder of the client's
        transaction key. `Timeout`: not known to be aborted yet, calling it again asks again.
        """
        self._session.expect_here()
        if self._state is TransactionState.ABORTED:
            return
        if self._state is TransactionState.COMMITTED:
            raise InvalidTxnState(f"transaction {self.id} cannot abort: it has committed")
        try:
            await self._abort(self._session.deadline(timeout))
        except TxnError:
            raise
        except BaseException:
            self.settle_later()
            raise

    # ---- without its caller -----------------------------------------------------------------------------------------

    @property
    def undecided(self) -> bool:
        """Whether its end was asked for, and is not known."""
        return self._state is TransactionState.COMMITTING or self._state is TransactionState.ABORTING

    def settle_later(self) -> None:
        """Nobody here goes on with it: its end is found out in the background, until it is known or its time is up.
        ▲ C1, C5: it is aborted, also where a commit may be on its way: then the first of both decides, and nothing
        commits long after its caller has given up, who may do the same again in another transaction. A named one is not
        this writer's alone: it goes on, and a commit that may be on its way is asked for again."""
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
        """For the end that was asked for. Raises as that does."""
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
        except InvalidTxnState:
            self._over_committed(await self._committed_as(deadline))
            raise
        # Reads wait for this, too: until an owner has heard of it, what was committed behind it stays hidden there.
        self._session.committed_at(reply.revision)
        expired = await self._expired_by(reply, deadline)
        # What was to be sent again has no purpose any more; the answers to the rest are on their way.
        for participant in list(self._participants):
            participant.withdraw(self)
        try:
            await self._wait_settled(deadline)
        except Timeout as error:
            # Aborted it is, and only that brings back what was acked in it: a broker that hangs must not keep it away.
            _log.debug("transaction %s is aborted: %s", self.id, error)
        finally:
            self._over(TransactionState.ABORTED, reply.revision)
        if expired is not None:
            raise expired

    async def _expired_by(self, reply: pb.EndTxnOk, deadline: Deadline) -> ExpiredTransaction | None:
        """That it was fenced, of one that was aborted so long ago that nobody knows by whom: only its key tells."""
        if self._holder is None or reply.revision:
            return None
        error = await self._holder.expired_instead(InvalidTxnState(f"transaction {self.id} was aborted"), deadline)
        return error if isinstance(error, ExpiredTransaction) else None

    async def _abort_after(self, failure: TxnError, deadline: Deadline) -> None:
        """Abort because of `failure`, which is what the caller shall hear, unless it was fenced, which is why it failed
        then. A failing abort only adds a note to it."""
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
        # ▲ What a writer that does not count has acked comes back, as after an abort. So it does where nobody can
        # tell who counts: the broker delivers what counts to nobody again, and what does not has to come in order.
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
        """Whether it can only abort, or has: what is not sent yet need not be."""
        return self._state is TransactionState.ABORTING or self._state is TransactionState.ABORTED

    def expect_here(self) -> None:
        """▲ C7: what is under way in it is counted in its own loop: of another thread its commit may miss some."""
        self._session.expect_here()

    def check_open(self, doing: str) -> None:
        """Raises `InvalidTxnState` if nothing may be done in it any more; `doing`: e.g. "send". `ExpiredTransaction`
        where its client is known to be fenced."""
        expired = None if self._holder is None else self._holder.expired()
        if expired is not None:
            raise expired
        if self._state is not _OPEN:
            raise InvalidTxnState(f"cannot {doing} in transaction {self.id}: it is {self._state.value}")

    def check_goes_on(self, doing: str) -> None:
        """As `check_open`, for the rest of what was begun in it while it was open: ▲ C2: a commit waits for that."""
        if self._state is not _OPEN and self._state is not TransactionState.COMMITTING:
            raise self.withdrawn(doing)

    def withdrawn(self, doing: str) -> InvalidTxnState:
        """The error of what it has not waited for; `doing`: e.g. "send"."""
        ended = "was aborted" if self.aborting else f"is {self._state.value}"
        return InvalidTxnState(f"cannot {doing} in transaction {self.id}: it {ended}, and this was not sent")

    def started(self, participant: TransactionParticipant | None) -> None:
        """`participant` has something under way in it: an entry or an ack, which `finished` will be told of once.
        None: something that consists of what participants do, and ends by itself."""
        self._under_way += 1
        if participant is not None:
            self._participants[participant] = None

    def involves(self, participant: TransactionParticipant) -> None:
        """`participant` is to be told of its end."""
        self._participants[participant] = None

    def failed(self, error: TxnError) -> None:
        """▲ C1: something that had to be part of it is not, or nobody knows: it can only abort."""
        if self._failure is None:
            self._failure = error

    def finished(self, error: TxnError | None) -> None:
        """One of what was started is done, or withdrawn, or has failed with `error`: then it can only abort."""
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
"""What a client that was fenced may meet before it hears of that: what it has acked comes again, its transaction's
header is collected, its successor has its segments and its producers' names."""


async def reason_of(error: TxnError, txn: Transaction | None) -> TxnError:
    """Of one of `FENCED_LIKE` for a send or ack in `txn`: what to raise."""
    return error if txn is None else await txn.reason(error)


def check_transaction(txn: Transaction, doing: str) -> None:
    """As `Transaction.check_open`, of what the application has given as `txn`: `InvalidArgument` if it is none, or
    belongs to another event loop than this is called in."""
    if not isinstance(txn, Transaction):
        raise InvalidArgument(f"txn is a transaction, as begin() gives it, not {type(txn).__name__}")
    txn.expect_here()
    txn.check_open(doing)


def listed(reply: pb.EndTxnOk | pb.NewTxnOk) -> tuple[int, ...] | None:
    """The writers that count, as the service tells them: an absent list counts all, an empty one none."""
    return tuple(sorted(reply.writers.writers)) if reply.HasField("writers") else None


def _shown(writers: Sequence[int] | None) -> str:
    return "all" if writers is None else f"{len(writers)} of them"
