"""Begins and ends transactions at their coordinators, and keeps the session alive there (DESIGN §5, §9).

A coordinator aborts the open transactions of a client that neither keeps its stream nor announces its session again to
the owner of their TCIDs. So the client keeps a connection to every coordinator of an open transaction, and announces
the open ids after each new connection and when a TCID has moved.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import Final

from txnclient.connection.deadlines import Backoff, Deadline
from txnclient.connection.links import Link
from txnclient.connection.session import TRANSIENT, Session
from txnclient.transactions.commit_request import listed
from txnclient.transactions.outcome import CommitResult, Joined
from txnclient.transactions.settling import BackgroundSettling
from txnclient.transactions.transaction_impl import TransactionImpl
from txnclient.transactions.transaction_keys import HeldKey
from txnwire.errors import ConnectionLost, InvalidArgument, NotOwner, OutcomeUnknown, Timeout, TxnError, TxnNotFound
from txnwire.ids import TxnId, hash_key
from txnwire.names import validate_txn_name
from txnwire.proto import txn_pb2 as pb

MAX_ATTEMPT_BYTES: Final = 32
MIN_KEEP: Final = timedelta(minutes=1)
MAX_KEEP: Final = timedelta(days=36_525)
MAX_TIMEOUT_S: Final = MAX_KEEP.total_seconds()
"""The longest timeout that a caller may ask for; the service has a maximum of its own, which is far lower."""

ATTEMPT_TIMEOUT_S = 10.0
"""Timeout of one request to one coordinator; the call tries others until its own deadline."""

ANNOUNCE_TIMEOUT_S = 3.0
"""Well below the grace of 10 s."""

EXPIRY_SLACK_S = 30.0
"""How long past its deadline a transaction that was never ended is still announced."""

FORGET_FROM = 1024
"""Number of open transactions from which expired ones are removed."""

_log = logging.getLogger("txnclient")


class Coordinators:
    """Begins, ends and announces one client's transactions at the coordinators."""

    def __init__(self, session: Session, *, transaction_key: str | None = None) -> None:
        """Raises `InvalidArgument`. A `transaction_key` must be taken before the first begin."""
        self._session = session
        self._directory = session.directory
        self.key = None if transaction_key is None else HeldKey(session, transaction_key, self)
        self.settling = BackgroundSettling(session)
        self._open: dict[TxnId, TransactionImpl] = {}
        self._listed: dict[TxnId, bytes] = {}
        """Each of `_open` encoded for an announcement: one announcement may hold hundreds of thousands, and only
        joining encoded parts is fast enough."""
        self._forget_at = FORGET_FROM
        self._turn = session.random.getrandbits(16)
        self._announced: dict[int, Link] = {}
        """TCID → the link over which its coordinator knows of every transaction of this client."""
        self._addresses: dict[int, str] = {}
        self._announcing: dict[str, asyncio.Task[None]] = {}
        """By address."""
        self._woken = asyncio.Event()
        self._directory.listen(self._cluster_changed)

    def start(self) -> None:
        self._session.tasks.keep(self._keep_announced, name="announcements")

    @property
    def open_transactions(self) -> list[TransactionImpl]:
        return list(self._open.values())

    # ---- begin ------------------------------------------------------------------------------------------------------

    async def begin(self, timeout_s: float, deadline: Deadline, *, apart: bool = False) -> TransactionImpl:
        """Begin at the next coordinator in turn, or with a transaction key at the key's one, unless `apart` from it.
        Raises `Timeout`, `StoreFull`, `InvalidArgument`."""
        _check_timeout(timeout_s)
        if self.key is not None and not apart:
            return await self.key.begin(timeout_s, deadline)
        known = self._directory.coordinators
        if known:
            self._turn += 1
            tcid, address = known[self._turn % len(known)]
            link = self._session.links.ready(address)
            if link is not None:  # the fast path
                command = self._new_txn(tcid, timeout_s)
                began = self._session.clock.monotonic()
                try:
                    answer = link.call_nowait(command, timeout_s=min(ATTEMPT_TIMEOUT_S, deadline.remaining()))
                    reply = await asyncio.shield(answer)
                except TRANSIENT as error:
                    if deadline.passed:
                        raise self._session.give_up("beginning a transaction", deadline, error) from error
                    return await self._undone_if_cancelled(self._begin_again(command, error, timeout_s, deadline))
                except asyncio.CancelledError:
                    self.settling.undo(lambda: self._begun_late(command, answer, link, began + timeout_s))
                    raise
                return self.begun(reply.new_txn_ok, link, began + timeout_s)
        return await self._undone_if_cancelled(self._begin_again(None, None, timeout_s, deadline))

    async def _undone_if_cancelled(self, beginning: Coroutine[object, object, TransactionImpl]) -> TransactionImpl:
        """If the caller is cancelled, the begin goes on within its own time, and its transaction is aborted."""
        task = self._session.loop.create_task(beginning, name="begin")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self.settling.undo(lambda: task)
            raise

    async def _begun_late(
        self, command: pb.Command, answer: asyncio.Future[pb.Command], link: Link, expires_at: float
    ) -> TransactionImpl:
        """The transaction of a begin whose caller has gone. A begin without an answer is repeated under its attempt."""
        deadline = self._session.deadline()

        async def ask() -> tuple[pb.Command, Link]:
            owner = await self._owner_link(command.new_txn.tc_id, deadline)
            return await owner.call(command, timeout_s=min(ATTEMPT_TIMEOUT_S, deadline.remaining())), owner

        try:
            reply = await answer
        except (ConnectionLost, Timeout):
            reply, link = await self._session.repeat("asking for a begin that was cancelled", deadline, ask)
        return self.begun(reply.new_txn_ok, link, expires_at)

    def _new_txn(self, tcid: int, timeout_s: float) -> pb.Command:
        attempt = self._session.random.getrandbits(64).to_bytes(8, "little")
        return pb.Command(new_txn=pb.NewTxn(tc_id=tcid, timeout_ms=max(1, round(timeout_s * 1000)), attempt=attempt))

    async def _begin_again(
        self, command: pb.Command | None, failed: TxnError | None, timeout_s: float, deadline: Deadline
    ) -> TransactionImpl:
        """Repeat an unanswered begin under its own attempt while that coordinator can be reached: it then answers with
        the same transaction and leaves no second one open (SCENARIOS D7). Otherwise begin elsewhere, under a new
        attempt."""
        session = self._session
        unanswered = command if isinstance(failed, (ConnectionLost, Timeout)) else None

        async def attempt() -> TransactionImpl:
            nonlocal unanswered
            link: Link | None = None
            if unanswered is not None:
                command = unanswered
                unanswered = None
                link = await self._owner_link(command.new_txn.tc_id, deadline)
            else:
                known = self._directory.coordinators
                if not known:
                    raise ConnectionLost("no coordinator is up")
                self._turn += 1
                tcid, address = known[self._turn % len(known)]
                link = await session.links.get(address, deadline)
                command = self._new_txn(tcid, timeout_s)
            began = session.clock.monotonic()
            try:
                reply = await link.call(command, timeout_s=min(ATTEMPT_TIMEOUT_S, deadline.remaining()))
            except (ConnectionLost, Timeout):
                unanswered = command
                raise
            return self.begun(reply.new_txn_ok, link, began + timeout_s)

        return await session.repeat("beginning a transaction", deadline, attempt)

    def begun(
        self, reply: pb.NewTxnOk, link: Link, expires_at: float, *, holder: HeldKey | None = None
    ) -> TransactionImpl:
        """Add it to the transactions that are announced, and aborted when this client closes."""
        txn_id = TxnId.from_bits(reply.txnid_most_bits, reply.txnid_least_bits)
        txn = TransactionImpl(self._session, self, txn_id, expires_at=expires_at, link=link, holder=holder)
        self._open[txn_id] = txn
        self._listed[txn_id] = _as_announced(txn_id)
        if len(self._open) > self._forget_at:
            self._forget_expired()
        if link.closed:
            self._woken.set()
        return txn

    async def begin_named(
        self,
        name: str,
        timeout_s: float,
        deadline: Deadline,
        *,
        keep: timedelta | None = None,
        keep_newest: bool = False,
        attempt: bytes | None = None,
        writer_id: int | None = None,
    ) -> TransactionImpl:
        """Join or begin the transaction of this name, as a new writer. Raises as `begin` does.

        Every begin of one name asks the same coordinator first, so joiners do not race; but any may answer. A lost
        begin is repeated under one attempt at any coordinator, because the name leads to the same transaction."""
        _check_timeout(timeout_s)
        validate_txn_name(name)
        if self.key is not None:
            raise InvalidArgument(
                f"the named transaction {name!r} would be everybody's, and no new holder of the transaction key "
                f"{self.key.key!r} could fence it: begin it in a client without a key"
            )
        session = self._session
        attempt_id = session.random_u64().to_bytes(8, "little") if attempt is None else _checked_attempt(attempt)
        writer = session.random_u64() if writer_id is None else _checked_writer(writer_id)
        request = pb.NewTxn(
            name=name,
            timeout_ms=max(1, round(timeout_s * 1000)),
            attempt=attempt_id,
            keep_ms=0 if keep is None else _checked_keep_ms(keep),
            keep_newest=keep_newest,
        )
        turn = hash_key(name.encode())

        async def ask() -> TransactionImpl:
            nonlocal turn
            turn += 1
            ok, link, began = await self._ask_name(request, turn, deadline)
            return self._joined(ok, link, name, writer, began + timeout_s)

        return await session.repeat(f"beginning {name!r}", deadline, ask)

    async def _ask_name(self, request: pb.NewTxn, turn: int, deadline: Deadline) -> tuple[pb.NewTxnOk, Link, float]:
        known = self._directory.coordinators
        if not known:
            raise ConnectionLost("no coordinator is up")
        tcid, address = known[turn % len(known)]
        link = await self._session.links.get(address, deadline)
        command = pb.Command(new_txn=request)
        command.new_txn.tc_id = tcid
        began = self._session.clock.monotonic()
        reply = await link.call(command, timeout_s=min(ATTEMPT_TIMEOUT_S, deadline.remaining()))
        return reply.new_txn_ok, link, began

    def _joined(self, ok: pb.NewTxnOk, link: Link, name: str, writer_id: int, expires_at: float) -> TransactionImpl:
        """Make the object without adding it to the session: it is neither announced nor aborted on close."""
        result = _result(ok)
        if result is not None:
            self._session.committed_at(result.revision)
        # The first begin set its deadline, in wall-clock time: assume the later of the two.
        left_s = (ok.deadline_ms - self._session.clock.wall_ms()) / 1000
        expires_at = max(expires_at, self._session.clock.monotonic() + left_s)
        txn_id = TxnId.from_bits(ok.txnid_most_bits, ok.txnid_least_bits)
        joined = Joined(name, writer_id, ok.joined, result)
        return TransactionImpl(self._session, self, txn_id, expires_at=expires_at, link=link, joined=joined)

    async def attach(self, txn_id: TxnId, name: str, deadline: Deadline) -> TransactionImpl:
        """Attach to a transaction by its id, without looking up the name."""
        tries = itertools.count()
        link = await self._session.repeat(
            f"attaching to transaction {txn_id}",
            deadline,
            lambda: self._link_to_end(txn_id.tcid, next(tries), deadline),
        )
        joined = Joined(validate_txn_name(name), self._session.random_u64(), joined=True)
        # ▲ Its deadline is not known: with a guessed one the client would call it timed out while it is open.
        return TransactionImpl(self._session, self, txn_id, expires_at=math.inf, link=link, joined=joined)

    async def committed_as(self, txn: TransactionImpl, deadline: Deadline) -> CommitResult | None:
        """How a named transaction committed. It must be known as committed, so a begin of the name creates nothing.
        None if the name's outcome is no longer kept. Raises transient errors such as `Timeout`: repeat it."""
        if txn.name is None:
            return None
        attempt_id = self._session.random_u64().to_bytes(8, "little")
        request = pb.NewTxn(name=txn.name, timeout_ms=1000, attempt=attempt_id, known_only=True)
        turn = hash_key(txn.name.encode())

        async def ask() -> pb.NewTxnOk:
            nonlocal turn
            turn += 1
            ok, _, _ = await self._ask_name(request, turn, deadline)
            return ok

        try:
            ok = await self._session.repeat(f"asking how {txn.name!r} has committed", deadline, ask)
        except TxnNotFound:
            return None
        return _result(ok) if TxnId.from_bits(ok.txnid_most_bits, ok.txnid_least_bits) == txn.id else None

    async def _owner_link(self, tcid: int, deadline: Deadline) -> Link:
        address = self._directory.coordinator_address(tcid)
        if address is None:
            raise NotOwner(f"coordinator {tcid} has no owner at the moment")
        return await self._session.links.get(address, deadline)

    # ---- end --------------------------------------------------------------------------------------------------------

    async def end(
        self,
        txn: TransactionImpl,
        action: pb.TxnAction,
        deadline: Deadline,
        *,
        writers: Sequence[int] | None = None,
        note: str | None = None,
    ) -> pb.EndTxnOk:
        """End `txn`; repeats at any coordinator until the outcome is definite: repeating a decision is ok.

        Raises `InvalidTxnState` (it has ended the other way), `TxnNotFound`, `OutcomeUnknown`; `Timeout`: not known
        yet."""
        most, least = txn.id.most_bits, txn.id.least_bits
        command = pb.Command(end_txn=pb.EndTxn(txnid_most_bits=most, txnid_least_bits=least, action=action))
        if txn.name is not None:
            command.end_txn.name = txn.name
            command.end_txn.note = note or ""
            if writers is not None:
                command.end_txn.writers.writers.extend(writers)
                command.end_txn.writers.SetInParent()
        link = txn.link
        if not link.closed:
            try:
                reply = await link.call_nowait(command, timeout_s=min(ATTEMPT_TIMEOUT_S, deadline.remaining()))
            except TRANSIENT as error:
                if deadline.passed:
                    raise deadline.expired(f"ending transaction {txn.id}", error) from error
            else:
                return reply.end_txn_ok
        tries = itertools.count()

        async def attempt() -> pb.EndTxnOk:
            # ▲ The try counts before it connects: otherwise every try would ask the same unreachable server.
            link = await self._link_to_end(txn.id.tcid, next(tries), deadline)
            reply = await link.call(command, timeout_s=min(ATTEMPT_TIMEOUT_S, deadline.remaining()))
            return reply.end_txn_ok

        try:
            return await self._session.repeat(f"ending transaction {txn.id}", deadline, attempt)
        except TRANSIENT as error:
            if isinstance(error, Timeout):
                raise
            if self._session.closed:
                raise OutcomeUnknown(f"this client was closed before it knew how transaction {txn.id} ended") from error
            # An earlier attempt may have succeeded although the last one did not.
            raise deadline.expired(f"ending transaction {txn.id}", error) from error

    async def _link_to_end(self, tcid: int, tries: int, deadline: Deadline) -> Link:
        """A link to the TCID's owner first, then to the others in turn: any coordinator may end any transaction."""
        owner = self._directory.coordinator_address(tcid)
        addresses = list(dict.fromkeys(a for a in (owner, *(a for _, a in self._directory.coordinators)) if a))
        if not addresses:
            raise ConnectionLost("no coordinator is up")
        return await self._session.links.get(addresses[tries % len(addresses)], deadline)

    def settle(self, txn: TransactionImpl) -> None:
        self.settling.settle(txn)

    def forget(self, txn: TransactionImpl) -> None:
        self._open.pop(txn.id, None)
        self._listed.pop(txn.id, None)

    def _forget_expired(self) -> None:
        """Forget transactions that this client never ended and that the service ended long ago."""
        now = self._session.clock.monotonic()
        for txn in [txn for txn in self._open.values() if txn.expires_at + EXPIRY_SLACK_S < now]:
            self.forget(txn)
        self._forget_at = max(FORGET_FROM, 2 * len(self._open))

    # ---- the session ------------------------------------------------------------------------------------------------

    def link_opened(self, link: Link) -> None:
        """Announce this client's open transactions first on a new connection to a coordinator."""
        if "coordinator" in link.caller.hello_ok.roles:
            link.when_lost(self._woken.set)
            tcids, answered = self._send_announcement(link)
            answered.add_done_callback(lambda answered: self._announcement_answered(link, tcids, answered))

    def _cluster_changed(self) -> None:
        addresses = dict(self._directory.coordinators)
        for tcid in self._announced.copy():
            if addresses.get(tcid) != self._addresses.get(tcid):
                del self._announced[tcid]
        self._addresses = addresses
        self._woken.set()

    async def _keep_announced(self) -> None:
        """Announce to each coordinator in its own task: an unreachable one must not delay the others past the grace."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            for address in self._unannounced():
                if address not in self._announcing:
                    work = self._announce_until_heard(address)
                    self._announcing[address] = self._session.tasks.start(work, name=f"announcements at {address}")

    async def _announce_until_heard(self, address: str) -> None:
        backoff = Backoff(self._session.random)
        try:
            await self._announce_at(address)
            while address in self._unannounced():
                await asyncio.sleep(backoff.next_s())
                await self._announce_at(address)
        finally:
            del self._announcing[address]
            self._woken.set()  # the TCIDs may have moved meanwhile

    def _unannounced(self) -> list[str]:
        """Addresses of coordinators of open transactions without an announcement on their current connection."""
        self._forget_expired()
        found: dict[str, None] = {}
        for tcid in dict.fromkeys(txn_id.tcid for txn_id in self._open):
            address = self._directory.coordinator_address(tcid)
            if address is not None:
                link = self._session.links.ready(address)
                if link is None or self._announced.get(tcid) is not link:
                    found[address] = None
        if self.key is not None and self.key.unannounced:
            found[self.key.address() or ""] = None
        return list(found)

    async def _announce_at(self, address: str) -> None:
        try:
            link = await self._session.links.get(address, Deadline(self._session.clock, ANNOUNCE_TIMEOUT_S))
            tcids, answered = self._send_announcement(link)
        except TxnError as error:
            _log.debug("announcing the session to %s: %s", address, error)
            return
        await asyncio.wait((answered,))
        self._announcement_answered(link, tcids, answered)
        if self.key is not None and self.key.unannounced and self.key.address() == address:
            await self.key.announce(Deadline(self._session.clock, ANNOUNCE_TIMEOUT_S))

    def _send_announcement(self, link: Link) -> tuple[list[int], asyncio.Future[pb.Command]]:
        """Announce all open transactions, also to a coordinator that owns only some of these TCIDs: after the grace it
        aborts this session's transactions that are not in the list."""
        tcids = [tcid for tcid, address in self._directory.coordinators if address == link.address]
        command = pb.Command(announce_session=pb.AnnounceSession())
        command.announce_session.MergeFromString(b"".join(self._listed.values()))
        return tcids, link.call_nowait(command, timeout_s=ANNOUNCE_TIMEOUT_S)

    def _announcement_answered(self, link: Link, tcids: list[int], answered: asyncio.Future[pb.Command]) -> None:
        error = None if answered.cancelled() else answered.exception()
        if error is not None or answered.cancelled():
            _log.debug("announcing the session to %s: %s", link.address, error)
            self._woken.set()
            return
        for tcid in tcids:
            self._announced[tcid] = link


def _as_announced(txn_id: TxnId) -> bytes:
    """An encoded announcement of this one alone: concatenated ones form one announcement of all (a repeated field)."""
    bits = pb.TxnIdBits(txnid_most_bits=txn_id.most_bits, txnid_least_bits=txn_id.least_bits)
    return pb.AnnounceSession(open=[bits]).SerializeToString()


def _result(ok: pb.NewTxnOk) -> CommitResult | None:
    """How a named transaction has committed; None while it is open."""
    return CommitResult(ok.revision, listed(ok), ok.note or None) if ok.state == pb.TXN_STATE_COMMITTED else None


def _check_timeout(timeout_s: object) -> None:
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= MAX_TIMEOUT_S:  # nan is neither
        raise InvalidArgument(
            f"a transaction's timeout is a positive number of seconds, not {timeout_s!r:.80} (100 years at most)"
        )


def _checked_attempt(attempt: bytes) -> bytes:
    if not isinstance(attempt, bytes) or not 0 < len(attempt) <= MAX_ATTEMPT_BYTES:
        raise InvalidArgument(f"attempt is 1 to {MAX_ATTEMPT_BYTES} bytes, not {attempt!r:.80}")
    return attempt


def _checked_keep_ms(keep: timedelta) -> int:
    if not isinstance(keep, timedelta) or not MIN_KEEP <= keep <= MAX_KEEP:
        raise InvalidArgument(f"keep is {keep!r:.80}: expected a timedelta of a minute to 100 years")
    return int(keep.total_seconds() * 1000)


def _checked_writer(writer_id: int) -> int:
    """Raises `InvalidArgument`. ▲ 0 is reserved for entries outside named transactions."""
    if not isinstance(writer_id, int) or not 0 < writer_id < 1 << 64:
        raise InvalidArgument(f"writer_id is a positive 64-bit number, not {writer_id!r:.80}")
    return writer_id
