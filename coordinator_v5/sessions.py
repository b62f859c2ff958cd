"""Which client holds which transactions, and whether it is still there. Pure. Source: DESIGN §9.

A session is one client object over all its connections. A session without a connection, and a transaction that nobody
has claimed since a take-over, get the grace and then lose their transactions; named ones only end at their deadline.

Times are *awake* seconds: a clock that the sweeper moves on by at most its own cadence. After a long pause of this
process announcements may still sit unread in its sockets, and nobody may be judged by the time that was slept through.
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
"""Transactions of an announcement that are looked at in one go."""


class SessionConnection(Protocol):
    """What of a connection matters here (`txnwire.calls.Peer`)."""

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
        """Ids announced before their TCID was loaded here, each by what: a list of the client, or its life here before
        the TCID was lost."""
        self.announcement: Announcement | None = None
        """The newest."""
        self.announcing = asyncio.Lock()
        """Held while one is worked on."""
        self.lost_at: float | None = None


class Announcement:
    """One list of a client, while it is worked on and as long as what it names is awaited."""

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
        """By attempt: a begin may be repeated here whose answer a predecessor could not give any more."""

    def __len__(self) -> int:
        return len(self._sessions)

    def connected(self, connection: SessionConnection) -> ClientSession:
        """The connection's session; it is alive while it has one."""
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
        """Its TCID is ours no longer. Should that come back to us, a client that stayed need not announce it again."""
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
            # ▲ By that connection, also where its life here before was of one: a list that named it may be worked on
            # still, and whatever is of an earlier connection when it ends is called unclaimed.
            by = session.announced.pop(txn.txn_id, None)
            self.opened(txn, session, None if by is None else by.connection)

    def adopt(self, attempt: str, tcid: int, connection: SessionConnection) -> OwnedTransaction | None:
        """The transaction that this attempt of a begin has already made under a predecessor, from now on this
        session's (D7)."""
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
        """Its client has shown that it knows of the transaction."""
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
        """The client lists what it has open: known here, or of TCIDs that are not loaded (yet).

        What it does not list and began on an earlier connection is a begin whose answer it never got: it goes after the
        grace, unless the same attempt is repeated in the meantime.

        In turns: a client may have a quarter of a million open. ▲ So each part is looked up when its turn has come: a
        transaction may end meanwhile, its TCID be loaded or lost.
        """
        session = self.connected(connection)
        announcement = session.announcement = Announcement(connection)
        # ▲ One of the same connection is worked on to its end: a client that gets no answer in time asks again, and
        # none of its lists would ever come to their last parts.
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
        # A list is complete: what an earlier one named and this one does not is not waited for any more.
        async for told in in_turns(earlier, ANNOUNCED_AT_ONCE):
            if not self._counts(announcement, session):
                return
            for txn_id, by in told:
                # ▲ Not what has been put there since: of a TCID that was lost while this list was worked on.
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
        """▲ Not once a newer connection's list is there, which says it all again; nor once its connection is gone: what
        it names would be claimed for ever by a session that nobody ends."""
        newest, connection = session.announcement, announcement.connection
        return newest is not None and newest.connection is connection and connection in session.connections

    def _listed(self, txn: OwnedTransaction, session: ClientSession, connection: SessionConnection) -> None:
        if txn.header.name is not None:
            return  # everybody's who joined it: it belongs to no session
        if txn.session is None and txn.header.owner == connection.owner:
            self.opened(txn, session, connection)
        if txn.session is session:
            self.claimed(txn, connection)

    def vanished(self, now: float, limit: int) -> list[OwnedTransaction]:
        """At most `limit` transactions whose client has been gone for longer than the grace, again and again until they
        have ended; not those that somebody is ending."""
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
