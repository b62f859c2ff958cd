"""Sessions: which client holds which transactions, and whether it is still there. Pure. Source: DESIGN §9.

A session is one client object over all its connections. After the grace, a session without a connection loses its
transactions, and so does a transaction that no client has claimed since a take-over; named ones only end at their
deadline.

Times are *awake* seconds: a clock that the sweeper moves on by at most its own cadence. After a long pause of this
process announcements may still sit unread in its sockets, so the pause must not count against clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol

from coordinator_v5.transactions import BeginRequest, OwnedTransaction, Phase
from txnwire.ids import TxnId
from txnwire.turns import in_turns

ANNOUNCED_AT_ONCE: Final = 2000
"""Transactions of an announcement taken without a pause."""


class SessionConnection(Protocol):
    """The part of a connection that sessions need (`txnwire.transport.calls.Peer`)."""

    @property
    def session_id(self) -> bytes: ...
    @property
    def owner(self) -> str: ...


class ClientSession:
    __slots__ = ("announced", "announcement", "announcing", "begins", "connections", "lost_at", "open", "session_id")

    def __init__(self, session_id: bytes) -> None:
        self.session_id = session_id
        self.connections: dict[SessionConnection, None] = {}
        self.open: dict[TxnId, OwnedTransaction] = {}
        self.begins: dict[str, BeginRequest] = {}
        """By attempt, while unanswered or the transaction is open: a repeated begin finds its first answer (D7)."""
        self.announced: dict[TxnId, Announcement | OwnedTransaction] = {}
        """Ids announced before their TCID was loaded here, each with its source: a list of the client, or the
        transaction as held before the TCID was lost."""
        self.announcement: Announcement | None = None
        """The newest one."""
        self.announcing = asyncio.Lock()
        """Held while a list is processed."""
        self.lost_at: float | None = None


class Announcement:
    """One list of a client, kept while it is processed and while transactions that it names are awaited."""

    __slots__ = ("connection",)

    def __init__(self, connection: SessionConnection) -> None:
        self.connection = connection


class Sessions:
    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._sessions: dict[bytes, ClientSession] = {}
        self._lost: dict[bytes, ClientSession] = {}
        self._unclaimed: dict[TxnId, OwnedTransaction] = {}
        self._announced: dict[TxnId, ClientSession] = {}
        self._taken_over: dict[str, OwnedTransaction] = {}
        """By attempt: a client may repeat a begin here that a predecessor could not answer."""

    def __len__(self) -> int:
        return len(self._sessions)

    def connected(self, connection: SessionConnection) -> ClientSession:
        """The connection's session, which is alive while it has a connection."""
        session = self._sessions.get(connection.session_id)
        if session is None:
            session = self._sessions[connection.session_id] = ClientSession(connection.session_id)
        if connection not in session.connections:
            session.connections[connection] = None
            session.lost_at = None
            self._lost.pop(session.session_id, None)
        return session

    def disconnected(self, connection: SessionConnection, now: float) -> None:
        session = self._sessions.get(connection.session_id)
        if session is None or session.connections.pop(connection, connection) is connection:
            return
        if not session.connections:
            session.lost_at = now
            self._lost[session.session_id] = session

    def opened(self, txn: OwnedTransaction, session: ClientSession, connection: object) -> None:
        txn.session, txn.connection = session, connection
        session.open[txn.txn_id] = txn

    def ended(self, txn: OwnedTransaction) -> None:
        self._unclaimed.pop(txn.txn_id, None)
        if self._taken_over and self._taken_over.get(txn.header.attempt) is txn:
            del self._taken_over[txn.header.attempt]
        session, txn.session = txn.session, None
        if session is None:
            return
        session.open.pop(txn.txn_id, None)
        if txn.begin is not None and session.begins.get(txn.begin.attempt) is txn.begin:
            del session.begins[txn.begin.attempt]

    def dropped(self, txn: OwnedTransaction) -> None:
        """The TCID is lost. If it comes back, a connected client need not announce the transaction again."""
        session = txn.session
        self.ended(txn)
        if session is not None and session.connections:
            self._announced[txn.txn_id] = session
            session.announced[txn.txn_id] = txn

    def taken_over(self, txn: OwnedTransaction, now: float) -> None:
        """A transaction found open at a take-over: its client has the grace to announce it, if it has not yet."""
        if txn.header.name is not None:
            return
        self._taken_over[txn.header.attempt] = txn
        session = self._announced.pop(txn.txn_id, None)
        if session is None:
            self._wait_for_claim(txn, now)
        else:
            # ▲ Keep the announcing connection, also one from before the TCID was lost: a list that named it may still
            # be in progress, and at its end it calls the transactions of earlier connections unclaimed.
            by = session.announced.pop(txn.txn_id, None)
            self.opened(txn, session, None if by is None else by.connection)

    def adopt(self, attempt: str, tcid: int, connection: SessionConnection) -> OwnedTransaction | None:
        """The transaction that this attempt of a begin made under a predecessor; now this session's (D7)."""
        txn = self._taken_over.get(attempt)
        if txn is None or txn.txn_id.tcid != tcid or txn.phase is not Phase.OPEN or txn.ending is not None:
            return None
        session = self.connected(connection)
        if txn.header.owner != connection.owner or txn.session not in (None, session):
            return None
        self.opened(txn, session, connection)
        self.claimed(txn, connection)
        return txn

    def claimed(self, txn: OwnedTransaction, connection: object) -> None:
        """Record that the client has shown that it knows the transaction."""
        txn.claim_by, txn.connection = None, connection
        self._unclaimed.pop(txn.txn_id, None)

    async def announced(
        self,
        connection: SessionConnection,
        open_ids: Sequence[TxnId],
        find: Callable[[TxnId], OwnedTransaction | None],
        is_loaded: Callable[[int], bool],
        now: Callable[[], float],
    ) -> None:
        """The client lists its open transactions: known here, or of TCIDs that are not loaded (yet).

        A transaction begun on an earlier connection and not listed is a begin whose answer the client never got: it is
        aborted after the grace, unless the same attempt is repeated meanwhile.

        In parts: a client may have a quarter of a million open.
        ▲ Looks up each part at its turn: meanwhile a transaction may end, and its TCID be loaded or lost.
        """
        session = self.connected(connection)
        announcement = session.announcement = Announcement(connection)
        # ▲ A list of the same connection is processed to its end: a client without a timely answer asks again, and
        # otherwise none of its lists would reach their last parts.
        async with session.announcing:
            if session.announcement is announcement:
                await self._work_on(announcement, session, open_ids, find, is_loaded, now)

    async def _work_on(
        self,
        announcement: Announcement,
        session: ClientSession,
        open_ids: Sequence[TxnId],
        find: Callable[[TxnId], OwnedTransaction | None],
        is_loaded: Callable[[int], bool],
        now: Callable[[], float],
    ) -> None:
        connection = announcement.connection
        earlier = list(session.announced.items())
        async for ids in in_turns(open_ids, ANNOUNCED_AT_ONCE):
            if not self._counts(announcement, session):
                return
            for txn_id in ids:
                txn = find(txn_id)
                if txn is not None:
                    self._listed(txn, session, connection)
                elif not is_loaded(txn_id.tcid):
                    self._announced[txn_id] = session
                    session.announced[txn_id] = announcement
        # A list is complete: ids that only an earlier list named are no longer awaited.
        async for told in in_turns(earlier, ANNOUNCED_AT_ONCE):
            if not self._counts(announcement, session):
                return
            for txn_id, by in told:
                # ▲ Not ids added since, when their TCID was lost while this list was processed.
                if by is not announcement and session.announced.get(txn_id) is by:
                    self._forget_announced(session, txn_id)
        async for txns in in_turns(list(session.open.values()), ANNOUNCED_AT_ONCE):
            if not self._counts(announcement, session):
                return
            for txn in txns:
                of_earlier = txn.session is session and txn.connection is not connection
                if of_earlier and txn.claim_by is None and txn.header.name is None:
                    self._wait_for_claim(txn, now())

    def _counts(self, announcement: Announcement, session: ClientSession) -> bool:
        """▲ Whether to go on with this list. Not after a list of a newer connection, which repeats it all; nor after
        its connection ended: a session that never ends would then claim its transactions for ever."""
        newest, connection = session.announcement, announcement.connection
        return newest is not None and newest.connection is connection and connection in session.connections

    def _listed(self, txn: OwnedTransaction, session: ClientSession, connection: SessionConnection) -> None:
        if txn.header.name is not None:
            return  # a named transaction belongs to no session
        if txn.session is None and txn.header.owner == connection.owner:
            self.opened(txn, session, connection)
        if txn.session is session:
            self.claimed(txn, connection)

    def vanished(self, now: float, limit: int) -> list[OwnedTransaction]:
        """At most `limit` transactions whose client has been gone for longer than the grace, without those being ended.
        It returns them again until they have ended."""
        return list(islice(self._vanished(now), limit))

    def _vanished(self, now: float) -> Iterator[OwnedTransaction]:
        for session in list(self._lost.values()):
            if session.lost_at is None or now - session.lost_at < self._grace_s:
                break
            if not session.open and not session.begins:
                self._forget(session)
            for txn in session.open.values():
                if txn.header.name is None and txn.phase is Phase.OPEN and txn.ending is None:
                    yield txn
        for txn in self._unclaimed.values():
            if txn.claim_by is None or txn.claim_by > now:
                break
            if txn.phase is Phase.OPEN and txn.ending is None:
                yield txn

    def _wait_for_claim(self, txn: OwnedTransaction, now: float) -> None:
        txn.claim_by = now + self._grace_s
        self._unclaimed.pop(txn.txn_id, None)
        self._unclaimed[txn.txn_id] = txn

    def _forget(self, session: ClientSession) -> None:
        del self._sessions[session.session_id]
        del self._lost[session.session_id]
        for txn_id in list(session.announced):
            self._forget_announced(session, txn_id)

    def _forget_announced(self, session: ClientSession, txn_id: TxnId) -> None:
        del session.announced[txn_id]
        if self._announced.get(txn_id) is session:
            del self._announced[txn_id]
