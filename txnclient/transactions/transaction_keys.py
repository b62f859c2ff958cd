"""Holds a client's transaction key: another client that connects with it fences this one. Source: 003; DESIGN §9.

Every holder has an epoch, which it sends in its connects and begins: coordinators refuse requests of an older holder
and late ones. To show that it is alive, the holder keeps a connection to the coordinator that its key hashes to.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Protocol

from txnclient.connection.deadlines import Deadline
from txnclient.connection.links import Link
from txnclient.connection.session import Session
from txnclient.transactions.outcome import TransactionState
from txnclient.transactions.settling import BackgroundSettling
from txnclient.transactions.transaction_impl import TransactionImpl
from txnwire.errors import ConnectionLost, ExpiredTransaction, InvalidTxnState, NotAllowed, TxnDecided, TxnError
from txnwire.ids import hash_key
from txnwire.names import validate_transaction_key
from txnwire.proto import txn_pb2 as pb

CALL_TIMEOUT_S = 10.0
"""Timeout of one request to one coordinator; the call repeats it until its own deadline."""

_log = logging.getLogger("txnclient")


class Beginner(Protocol):
    """Keeps this client's open transactions."""

    def begun(
        self, reply: pb.NewTxnOk, link: Link, expires_at: float, *, holder: HeldKey | None = None
    ) -> TransactionImpl: ...

    @property
    def settling(self) -> BackgroundSettling: ...


class HeldKey:
    """The transaction key of one client. `take` it first; then begin."""

    def __init__(self, session: Session, key: str, beginner: Beginner) -> None:
        """Raises `InvalidArgument`."""
        self.key = validate_transaction_key(key)
        self.epoch: int | None = None
        """This client's holder epoch; None: not yet a holder."""
        self.fenced: ExpiredTransaction | None = None
        """Why it no longer holds the key."""
        self._session = session
        self._beginner = beginner
        self._connect: pb.TcClientConnect | None = None
        """The connect that took the key or will take it; a repeat gets the same answer."""
        self._link: Link | None = None
        """The link over which its coordinator knows it."""
        self._begins = 0
        self._attempt = b""
        """The attempt of an unanswered begin, until its outcome is known."""
        self._beginning = False
        self._undoing: asyncio.Task[None] | None = None
        """Undoes a cancelled begin."""
        self._latest: TransactionImpl | None = None

    # ---- holding it -------------------------------------------------------------------------------------------------

    def address(self) -> str | None:
        """The address of the coordinator that the key hashes to; None while none is up. Any coordinator would work;
        all holders of a key use this one."""
        found = self._coordinator()
        return None if found is None else found[1]

    def _coordinator(self) -> tuple[int, str] | None:
        known = self._session.directory.coordinators
        if not known:
            return None
        # Rendezvous hashing: a TCID without an owner moves only its own keys.
        return max(known, key=lambda one: (hash_key(f"{one[0]:04x}&{self.key}".encode()), one[0]))

    async def take(self, deadline: Deadline) -> None:
        """Become the holder, and fence the previous one. If two connect at once, the later one wins: it reads the epoch
        again if the other was faster. Raises `Timeout`, `StoreFull`, `Unauthorized`."""
        await self._session.repeat(
            f"connecting with transaction key {self.key!r}", deadline, lambda: self._take(deadline)
        )

    async def _take(self, deadline: Deadline) -> None:
        while True:
            link, tcid = await self._link_to_it(deadline)
            if self._connect is None:
                # ▲ Read the epoch first and send it in the connect: a late connect, or one a paused coordinator handles
                # later, must not fence a client that has connected meanwhile.
                asked = pb.TcClientConnect(tc_id=tcid, transaction_key=self.key, epoch=-1)
                epoch = await self._ask(link, asked, deadline)
                attempt = self._session.random_u64().to_bytes(8, "little")
                self._connect = pb.TcClientConnect(transaction_key=self.key, epoch=epoch, attempt=attempt)
            self._connect.tc_id = tcid
            try:
                self.epoch = await self._ask(link, self._connect, deadline)
            except NotAllowed as error:
                _log.debug("another client was first: %s", error)
                self._connect = None
                if deadline.passed:
                    raise deadline.expired(f"connecting with transaction key {self.key!r}", error) from error
            else:
                self._link = link
                return

    async def _ask(self, link: Link, connect: pb.TcClientConnect, deadline: Deadline) -> int:
        command = pb.Command(tc_client_connect=connect)
        reply = await link.call(command, timeout_s=min(CALL_TIMEOUT_S, deadline.remaining()))
        return reply.tc_client_connect_ok.epoch

    async def _link_to_it(self, deadline: Deadline) -> tuple[Link, int]:
        found = self._coordinator()
        if found is None:
            raise ConnectionLost("no coordinator is up")
        tcid, address = found
        return await self._session.links.get(address, deadline), tcid

    @property
    def unannounced(self) -> bool:
        """Whether its coordinator does not know this holder's current connection."""
        if self.epoch is None or self.fenced is not None:
            return False
        address = self.address()
        return address is not None and (self._link is None or self._session.links.ready(address) is not self._link)

    async def announce(self, deadline: Deadline) -> bool:
        """Announce this client over a new connection, and learn whether it is still the holder; False: try again."""
        if self._connect is None or self.fenced is not None:
            return True
        try:
            link, tcid = await self._link_to_it(deadline)
            self._connect.tc_id = tcid
            await self._ask(link, self._connect, deadline)
        except NotAllowed as error:
            self._expire(ExpiredTransaction(f"this client was fenced: {error}"))
        except TxnError as error:
            _log.debug("announcing the holder of %r: %s", self.key, error)
            return False
        else:
            self._link = link
        return True

    def _expire(self, error: ExpiredTransaction) -> None:
        if self.fenced is None:
            self.fenced = error
            _log.warning("transaction key %r: %s", self.key, error)

    def expired(self) -> ExpiredTransaction | None:
        """A new `ExpiredTransaction` if this client was fenced."""
        return None if self.fenced is None else ExpiredTransaction(str(self.fenced))

    async def expired_instead(self, error: TxnError, deadline: Deadline) -> TxnError:
        """Returns the error to raise for a transaction that its holder did not end. After fencing and collection it
        looks like any aborted one; a send or ack made before the client learns of the fencing sees a conflict."""
        if not isinstance(error, ExpiredTransaction):
            # ▲ K1: a coordinator that fences closes the connection, so the first request may fail with that.
            try:
                asking = f"asking for the holder of {self.key!r}"
                await self._session.repeat(asking, deadline, lambda: self._hear(deadline))
            except TxnError as unheard:
                _log.debug("whether this client still holds %r: %s", self.key, unheard)
        return self.expired() or error

    async def _hear(self, deadline: Deadline) -> None:
        if not await self.announce(deadline):
            raise ConnectionLost(f"the coordinator of transaction key {self.key!r} has not answered")

    # ---- begin ------------------------------------------------------------------------------------------------------

    async def begin(self, timeout_s: float, deadline: Deadline) -> TransactionImpl:
        """Begin under the key. Raises `ExpiredTransaction` (fenced), `InvalidTxnState` while another one is open; else
        as any begin."""
        while (undoing := self._undoing) is not None:
            await asyncio.wait((undoing,), timeout=deadline.remaining())
            if not undoing.done():
                raise deadline.expired(f"undoing a begin of the key {self.key!r} that was cancelled")
            if self._undoing is undoing:  # ▲ others wait for it, too
                self._undoing = None
        await self._expect_none_open(deadline)
        self._beginning = True
        try:
            return await self._begin(timeout_s, deadline)
        except asyncio.CancelledError:
            if self._attempt:
                self._undoing = self._beginner.settling.start(self._undo(timeout_s), name="undoing a keyed begin")
            raise
        except ExpiredTransaction as error:
            self._expire(error)
            raise
        finally:
            self._beginning = False

    async def _expect_none_open(self, deadline: Deadline) -> None:
        fenced, latest = self.expired(), self._latest
        if fenced is not None:
            await asyncio.sleep(0)  # ▲ C6: a caller that keeps calling must not block the event loop
            raise fenced
        if self._beginning:
            raise InvalidTxnState(
                f"a transaction of the key {self.key!r} is being begun: a client with a key has one at a time"
            )
        if latest is None or latest.expires_at <= self._session.clock.monotonic():
            return
        if latest.state is TransactionState.ABORTING:
            with suppress(TxnDecided):  # ▲ its own commit came first: that is over, and no reason not to begin
                await latest.abort(timeout=deadline.remaining())
            await self._expect_none_open(deadline)  # ▲ another task may have begun one meanwhile
        elif latest.state in (TransactionState.OPEN, TransactionState.COMMITTING):
            raise InvalidTxnState(
                f"transaction {latest.id} is {latest.state.value}: a client with a transaction key has one at a time; "
                "commit or abort it first"
            )

    async def _begin(self, timeout_s: float, deadline: Deadline) -> TransactionImpl:
        while True:
            resumed = bool(self._attempt)
            if not resumed:
                self._attempt = self._session.random_u64().to_bytes(8, "little")
            ok, link, began = await self._session.repeat(
                "beginning a transaction", deadline, lambda: self._ask_begin(timeout_s, deadline)
            )
            self._begins += 1
            self._attempt = b""
            if ok.state != pb.TXN_STATE_OPEN:
                continue  # it has ended during the begin
            txn = self._latest = self._beginner.begun(ok, link, began + timeout_s, holder=self)
            if not (resumed and ok.joined):
                return txn
            # It belongs to a begin that was given up: its timeout runs since then, and no caller knows it.
            await txn.abort(timeout=deadline.remaining())

    async def _undo(self, timeout_s: float) -> None:
        """▲ Abort the transaction of a cancelled begin as soon as its id is known."""
        deadline = self._session.deadline()
        try:
            ok, link, began = await self._session.repeat(
                "asking for a begin that was cancelled", deadline, lambda: self._ask_begin(timeout_s, deadline)
            )
        except TxnError as error:
            _log.debug("a begin that was cancelled has failed: %s", error)  # the next one resumes it
            return
        self._begins += 1
        self._attempt = b""
        if ok.state == pb.TXN_STATE_OPEN:
            self._latest = self._beginner.begun(ok, link, began + timeout_s, holder=self)
            self._latest.settle_later()

    async def _ask_begin(self, timeout_s: float, deadline: Deadline) -> tuple[pb.NewTxnOk, Link, float]:
        link, tcid = await self._link_to_it(deadline)
        request = pb.NewTxn(
            tc_id=tcid,
            timeout_ms=max(1, round(timeout_s * 1000)),
            attempt=self._attempt,
            transaction_key=self.key,
            key_epoch=self.epoch or 0,
            key_begin=self._begins + 1,
        )
        began = self._session.clock.monotonic()
        reply = await link.call(pb.Command(new_txn=request), timeout_s=min(CALL_TIMEOUT_S, deadline.remaining()))
        return reply.new_txn_ok, link, began
