"""Transaction keys: only the newest client that names a key is served; all older ones are fenced at once.

Any coordinator serves any key: the record and its compares decide. A key still hashes to one coordinator id, so that
its holders meet at one process, which can then close the older one's connection. Source: 003; DESIGN §9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from coordinator_v5.begins import BeginHandler
from coordinator_v5.ends import EndHandler
from coordinator_v5.naming.names import Begun
from coordinator_v5.sessions import ClientSession, SessionConnection
from coordinator_v5.state import CoordinatorState
from coordinator_v5.statistics import HeldKeyStatistics
from coordinator_v5.transactions import OwnedTcid, OwnedTransaction, Phase
from txnstore import keys
from txnstore.records import ABORTED, OPEN, REASON_FENCED, Header
from txnstore.store import Commit, CommitVerdict, KeyValue, MetadataStore
from txnstore.writes.key_transitions import (
    Earlier,
    KeyedBegin,
    KeyedVerdict,
    KeyState,
    check_begin,
    check_connect,
    check_holder,
    is_open,
    plan_begin_keyed,
    plan_connect,
    plan_delete_key,
    read_begin_keyed_verdict,
    read_key,
)
from txnstore.writes.transitions import RecordedDecision
from txnwire.errors import ExpiredTransaction, NotAllowed, NotOwner, OutcomeUnknown, Timeout, TxnError
from txnwire.ids import TxnId
from txnwire.ports import Clock

SHOWN: Final = 1000
"""Keys listed one by one in a coordinator's statistics; the others are only counted."""


class KeyConnection(SessionConnection, Protocol):
    """The part of a holder's connection that keys need (`txnwire.transport.calls.Peer`)."""

    def disconnect(self, reason: TxnError) -> None: ...


class _Holder:
    __slots__ = ("connection", "epoch", "since_ms", "state", "tcid")

    def __init__(self, taken: KeyState, connection: KeyConnection, tcid: int) -> None:
        self.tcid = tcid
        """The TCID that its key hashes to."""
        self.epoch = taken.record.epoch
        self.since_ms = taken.record.since_ms
        self.connection = connection
        self.state: KeyState | None = taken
        """The key's record if known, so that the usual begin takes no read."""


class TransactionKeys:
    def __init__(self, state: CoordinatorState, begins: BeginHandler, ends: EndHandler) -> None:
        self._state = state
        self._begins = begins
        self._ends = ends
        self._holders: dict[bytes, _Holder] = {}
        """Holders connected here, by the key's record."""
        self._of_connection: dict[KeyConnection, dict[bytes, None]] = {}
        self._creating: dict[bytes, asyncio.Future[KeyedVerdict | TxnError]] = {}
        """Begins in flight from here; one per key, which outlives its caller."""

    # ---- connect ----

    async def epoch(self, key: str, owner: str) -> int:
        """The epoch of a key, to pass to a connect; -1: it was never used."""
        state = read_key(await self._state.store.get(keys.txn_key(owner, key), timeout_s=self._state.settings.answer_s))
        return state.record.epoch

    async def connect(self, key: str, *, tcid: int, epoch: int, attempt: str, connection: KeyConnection) -> int:
        """Make this client the holder of `key` if its epoch is still `epoch`; returns the next epoch. The former holder
        is fenced, its open transaction aborted, its connection closed. A repeated attempt gets the same answer, and
        makes `connection` the holder's; so a client that has lost its connection keeps its epoch.

        Raises `NotAllowed` if the key has moved on, `Timeout` (ask again with the same attempt), `StoreUnavailable`,
        `StoreFull`."""
        limit_s = self._state.settings.answer_s
        try:
            async with asyncio.timeout(limit_s):
                state = await self._take(keys.txn_key(connection.owner, key), epoch, attempt)
        except (TimeoutError, OutcomeUnknown):
            raise Timeout(f"the connect of {key!r} was not answered within {limit_s} s: ask again") from None
        self._holds(keys.txn_key(connection.owner, key), state, connection, tcid)
        return state.record.epoch

    async def _take(self, name: bytes, epoch: int, attempt: str) -> KeyState:
        store, clock = self._state.store, self._state.clock
        state, header = await look(store, name)
        while check_connect(state, epoch, attempt) is None:
            opened = header if is_open(header) else None
            commit, taken = plan_connect(name, state, attempt, now_ms=clock.wall_ms(), open_header=opened)
            result = await store.commit(commit, timeout_s=self._state.settings.answer_s)
            if result.succeeded:
                if opened is not None:
                    self._fenced(keys.txn_of(opened.key), result.revision)
                return taken._replace(mod_revision=result.revision)
            state, header = await look(store, name)
        return state

    def _fenced(self, txn_id: TxnId, revision: int) -> None:
        decision = RecordedDecision(ABORTED, revision, REASON_FENCED)
        txn = self._state.find(txn_id)
        if txn is None:
            self._ends.count(decision)
        else:
            self._ends.finish(txn, decision, mine=True)

    def _holds(self, name: bytes, state: KeyState, connection: KeyConnection, tcid: int) -> None:
        """▲ If the answers of two connects come in the wrong order, the higher epoch stays. Nobody is noted for a TCID
        lost meanwhile: `lost` has run, and nothing else would drop the holder here once it has moved on."""
        if tcid not in self._state.tcids:
            return
        epoch, before = state.record.epoch, self._holders.get(name)
        if before is not None and before.epoch > epoch:
            raise NotAllowed(f"the transaction key has a newer holder by now, of epoch {before.epoch}")
        self._holders[name] = _Holder(state, connection, tcid)
        self._of_connection.setdefault(connection, {})[name] = None
        if before is not None and before.connection is not connection:
            self._forget(before.connection, name)
            if before.epoch < epoch:
                before.connection.disconnect(
                    ExpiredTransaction(f"fenced: its transaction key has a newer holder, of epoch {epoch}")
                )

    def _forget(self, connection: KeyConnection, name: bytes) -> None:
        held = self._of_connection.get(connection, {})
        held.pop(name, None)
        if not held:
            self._of_connection.pop(connection, None)

    def lost(self, tcid: int) -> None:
        """Another coordinator has the TCID: holders meet there, and announce themselves."""
        for name in [name for name, holder in self._holders.items() if holder.tcid == tcid]:
            self._forget(self._holders.pop(name).connection, name)

    def disconnected(self, connection: KeyConnection) -> None:
        """Its client keeps its keys and their epochs; only this coordinator no longer knows its connection."""
        for name in self._of_connection.pop(connection, {}):
            if self._holders[name].connection is connection:
                del self._holders[name]

    # ---- begin ----

    async def begin(
        self,
        tc: OwnedTcid,
        *,
        key: str,
        epoch: int,
        number: int,
        timeout_ms: int,
        attempt: str,
        connection: SessionConnection,
    ) -> Begun:
        """Begin the `number`th transaction of the holder of this epoch. A repeated begin finds the transaction it made,
        through any coordinator, and its decision if it has ended (D7).

        Raises `ExpiredTransaction` if the key has another holder, `InvalidTxnState` while another transaction of it is
        open, `NotAllowed` if it comes late; `Overloaded`, `StoreFull`, `StoreUnavailable`; `Timeout`: it may yet be
        begun, under its own id, and is not aborted then."""
        started, limit_s = self._state.clock.monotonic(), self._state.settings.answer_s
        asked = KeyedBegin(keys.txn_key(connection.owner, key), epoch, number)
        session = self._state.sessions.connected(connection)
        try:
            async with asyncio.timeout(limit_s):
                begun = await self._begin(tc, asked, key, timeout_ms, attempt, connection, session)
        except TimeoutError:
            raise Timeout(f"the begin of {key!r} was not answered within {limit_s} s: ask again") from None
        self._state.counters.begin_latency.observe(self._state.clock.monotonic() - started)
        return begun

    async def _begin(
        self,
        tc: OwnedTcid,
        asked: KeyedBegin,
        key: str,
        timeout_ms: int,
        attempt: str,
        connection: SessionConnection,
        session: ClientSession,
    ) -> Begun:
        known = self._known(asked)
        while True:
            if known is None:
                known, before = await look(self._state.store, asked.key)
                earlier = check_begin(known, before, asked, attempt)
                if earlier is not None:
                    return self._earlier(earlier, connection)
            check_holder(known, asked)
            self._begins.check_room(tc)
            counter = None if asked.key in self._creating else await self._begins.next_id(tc)
            creating = self._creating.get(asked.key)
            if creating is None and counter is not None:
                wall_ms = self._state.cluster.wall_ms()
                header = Header(
                    state=OPEN,
                    timeout_ms=wall_ms + timeout_ms,
                    created_ms=wall_ms,
                    owner=connection.owner,
                    txn_key=key,
                    key_epoch=asked.epoch,
                    attempt=attempt,
                )
                txn = self._create(tc, counter, header, asked, known, connection, session)
                creating = self._creating[asked.key]
                await asyncio.wait((creating,))
                verdict = _raised(creating)
                if verdict.begun and (verdict.landed is None or verdict.landed.state == OPEN):
                    return Begun(txn.txn_id, header.timeout_ms)
            elif creating is not None:
                await asyncio.wait((creating,))
                _raised(creating)
            known = None

    def _known(self, asked: KeyedBegin) -> KeyState | None:
        """The record as last heard of; None if this begin may repeat an earlier one."""
        holder = self._holders.get(asked.key)
        if holder is None or holder.state is None or holder.epoch != asked.epoch:
            return None
        return holder.state if holder.state.record.begins < asked.number else None

    def _earlier(self, earlier: Earlier, connection: SessionConnection) -> Begun:
        deadline_ms = 0 if earlier.header is None else earlier.header.timeout_ms
        if not earlier.open:
            state = ABORTED if earlier.header is None else earlier.header.state
            return Begun(earlier.txn_id, deadline_ms, joined=True, decision=RecordedDecision(state, 0))
        txn = self._state.find(earlier.txn_id)
        if txn is not None:
            session = self._state.sessions.connected(connection)
            if txn.session is None:
                self._state.sessions.opened(txn, session, connection)
            if txn.session is session:
                self._state.sessions.claimed(txn, connection)
        return Begun(earlier.txn_id, deadline_ms, joined=True)

    def _create(
        self,
        tc: OwnedTcid,
        counter: int,
        header: Header,
        asked: KeyedBegin,
        known: KeyState,
        connection: SessionConnection,
        session: ClientSession,
    ) -> OwnedTransaction:
        """Send the begin. ▲ It goes on until it is definite, even without a waiter (DESIGN §4)."""
        state = self._state
        now, left_s = state.clock.monotonic(), (header.timeout_ms - header.created_ms) / 1000
        txn = OwnedTransaction(
            tc, TxnId(tc.tcid, counter), header, phase=Phase.BEGINNING, begun_at=now, due=now + left_s
        )
        tc.add(txn)
        creating = self._creating[asked.key] = asyncio.get_running_loop().create_future()
        commit, _ = plan_begin_keyed(txn.txn_id, tc.epoch, header, asked, known)
        state.submit(commit, partial(self._created, txn, asked, commit, creating, connection, session))
        return txn

    def _created(
        self,
        txn: OwnedTransaction,
        asked: KeyedBegin,
        commit: Commit,
        creating: asyncio.Future[KeyedVerdict | TxnError],
        connection: SessionConnection,
        session: ClientSession,
        future: asyncio.Future[CommitVerdict],
    ) -> None:
        self._creating.pop(asked.key, None)
        answer: KeyedVerdict | TxnError
        try:
            answer = read_begin_keyed_verdict(commit, future.result(), txn.txn_id, txn.header.attempt)
        except TxnError as error:
            answer = error
            txn.tc.remove(txn)
            if isinstance(error, NotOwner):
                self._state.counters.cas_reject += 1
                self._begins.lost(txn.tc)
        else:
            holder = self._holders.get(asked.key)
            if holder is not None and holder.epoch == asked.epoch:
                holder.state = answer.state if answer.begun else None
            if answer.begun:
                self._opened(txn, connection, session, answer.landed)
            else:
                self._state.counters.cas_conflict += 1
                txn.tc.remove(txn)
        creating.set_result(answer)

    def _opened(
        self, txn: OwnedTransaction, connection: SessionConnection, session: ClientSession, landed: Header | None
    ) -> None:
        state = self._state
        state.counters.begun += 1
        state.counters.cas_ok += 1
        if txn.phase is Phase.ENDED:
            return  # fenced before its begin was answered
        txn.phase = Phase.OPEN
        if landed is not None and landed.state != OPEN:
            # Fenced elsewhere meanwhile: this end is refused, and returns the decision.
            self._ends.sweep_end(txn, ABORTED, REASON_FENCED)
            return
        if session.connections:
            state.sessions.opened(txn, session, connection)
        else:
            state.sessions.taken_over(txn, state.awake_s)  # its client may yet come back and announce it
        if txn.tc.lost:
            state.sessions.dropped(txn)

    # ---- queries ----

    def __len__(self) -> int:
        return len(self._holders)

    def epoch_held(self, owner: str, key: str) -> int | None:
        """The epoch of a key whose holder is connected here."""
        holder = self._holders.get(keys.txn_key(owner, key))
        return None if holder is None else holder.epoch

    def held(self) -> Sequence[HeldKeyStatistics]:
        """Keys whose holders are connected here, the first `SHOWN` of them."""
        now_ms = self._state.clock.wall_ms()
        found: list[HeldKeyStatistics] = []
        for name, holder in self._holders.items():
            if len(found) == SHOWN:
                break
            found.append(
                HeldKeyStatistics(*keys.txn_key_parts(name), holder.epoch, max(0, now_ms - holder.since_ms) / 1000)
            )
        return found


async def look(store: MetadataStore, name: bytes) -> tuple[KeyState, KeyValue | None]:
    """A key's stored record and, read after it, the header of the transaction it names."""
    state = read_key(await store.get(name))
    txn_id = state.txn_id
    return state, None if txn_id is None else await store.get(keys.txn(txn_id))


async def delete(store: MetadataStore, clock: Clock, *, owner: str, key: str, epoch: int) -> KeyState:
    """Delete a key whose epoch is `epoch`: its holder is fenced, its open transaction aborted; any process may do it.
    Repeating it is harmless. Raises `NotAllowed` if the key has moved on, or was never used."""
    name = keys.txn_key(owner, key)
    while True:
        state, header = await look(store, name)
        if state.deleted and state.record.epoch in (epoch, epoch + 1):
            return state
        if state.record.epoch != epoch or not state.mod_revision:
            raise NotAllowed(
                f"the transaction key {key!r} of {owner} is not as it was (epoch {epoch}): it is at epoch "
                f"{state.record.epoch} by now"
            )
        opened = header if is_open(header) else None
        commit, deleted = plan_delete_key(name, state, now_ms=clock.wall_ms(), open_header=opened)
        result = await store.commit(commit)
        if result.succeeded:
            return deleted._replace(mod_revision=result.revision)


def _raised(creating: asyncio.Future[KeyedVerdict | TxnError]) -> KeyedVerdict:
    answer = creating.result()
    if isinstance(answer, TxnError):
        raise answer
    return answer
