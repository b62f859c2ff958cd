"""The transaction coordinator: begin and end, and all background work on transactions.

Its memory is only a cache: a successor can read all of it from the store, and every write carries compares that make it
harmless if this process has been replaced. Source: DESIGN §5, §9; PIP-471 "Transaction Coordinator V5".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from coordinator_v5.background.collector import Collector
from coordinator_v5.background.stamping import Stamping
from coordinator_v5.background.sweeper import Sweeper
from coordinator_v5.background.take_over import TakeOver
from coordinator_v5.begins import BeginHandler
from coordinator_v5.ends import EndHandler
from coordinator_v5.naming.names import Begun, NameHandler
from coordinator_v5.naming.transaction_keys import KeyConnection, TransactionKeys
from coordinator_v5.ownership import TcidOwnership
from coordinator_v5.sessions import SessionConnection
from coordinator_v5.settings import CoordinatorSettings
from coordinator_v5.state import CoordinatorState
from coordinator_v5.statistics import CoordinatorStatistics
from coordinator_v5.transactions import EndReply, OwnedTcid, OwnedTransaction, Phase
from txnstore.cluster_clock import ClusterClock
from txnstore.records import ABORTED, COMMITTED, REASON_ADMIN, REASON_CLIENT, RegistrationRecord
from txnstore.store import MetadataStore
from txnstore.writes.name_transitions import KEPT_BY_DEFAULT, Keep
from txnstore.writes.transitions import RecordedDecision
from txnwire.errors import InvalidArgument, NotOwner, StoreUnavailable, TxnError
from txnwire.ids import TxnId
from txnwire.names import validate_transaction_key, validate_txn_name
from txnwire.ports import Clock, Random
from txnwire.tasks import vital

log = structlog.get_logger()

START_TIMEOUT_S = 30.0
CLOSE_GRACE_S = 1.0
OVERDUE_COUNTED = 10_000


T = TypeVar("T")


BegunReply = Callable[[Begun | TxnError], None]


class Coordinator:
    """Begins and ends transactions: `start`, then begin and end, then `close`. Use it from one event loop only."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        random: Random,
        settings: CoordinatorSettings | None = None,
        *,
        id: str,
        address: str,
        cluster_clock: ClusterClock | None = None,
    ) -> None:
        """`cluster_clock`: this process's clock, which the caller keeps running; without one the coordinator runs its
        own.
        """
        self._settings = settings or CoordinatorSettings()
        self._follows_clock = cluster_clock is None
        self._state = CoordinatorState(store, clock, random, self._settings, cluster_clock)
        self._stamping = Stamping(self._state)
        self._ends = EndHandler(self._state)
        self._begins = BeginHandler(self._state, self._ends)
        self._names = NameHandler(self._state, self._begins, self._ends)
        self._keys = TransactionKeys(self._state, self._begins, self._ends)
        self._sweeper = Sweeper(self._state, self._begins, self._ends)
        self._collector = Collector(self._state)
        self._ownership = TcidOwnership(
            store,
            self._settings,
            RegistrationRecord(id=id, address=address),
            on_taken=self._taken,
            on_lost=self._lost,
        )
        self._take_over = TakeOver(self._state, self._begins)
        self._running: asyncio.Task[None] | None = None
        self._closed = False

    # ---- life ----

    async def start(self) -> None:
        """Take the free TCIDs and load them. Raises `StoreUnavailable` if taking them takes longer than 30 s; if
        loading does, it continues in the background, and each id is served once loaded. ▲ If it fails or is cancelled,
        it leaves nothing behind: its caller has nothing to close yet."""
        self._running = vital(self._run(), name="coordinator")
        try:
            await self._running_until(self._ownership.settled)
            if not self._ownership.settled.is_set():
                failed = self._running.exception() if self._running.done() else None
                raise StoreUnavailable(f"coordinator ids were not taken within {START_TIMEOUT_S} s") from failed
            await self._running_until(self._take_over.idle)
        except BaseException:
            await self.close()
            raise

    async def _running_until(self, event: asyncio.Event) -> None:
        """Wait for `event`, at most `START_TIMEOUT_S`, and only while `_run` runs."""
        assert self._running is not None
        waiting = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait((waiting, self._running), timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    async def close(self) -> None:
        """Refuse new requests, wait a second for those in flight, free the TCIDs for others. Idempotent."""
        self._closed = True
        deadline = self._state.clock.monotonic() + CLOSE_GRACE_S
        # A bounded wait at the very end; an event would cost every request.
        while (self._begins.pending or self._ends.pending) and self._state.clock.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await self._ownership.close()

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._ownership.run())
                group.create_task(self._take_over.run())
                group.create_task(self._sweeper.run())
                group.create_task(self._collector.run())
                group.create_task(self._keep_house())
                group.create_task(self._stamping.run())
                if self._follows_clock:
                    group.create_task(self._state.cluster.run())
        except BaseExceptionGroup as errors:
            # A defect of ours: stop acting, so that another coordinator takes over the TCIDs.
            log.critical("coordinator stopped", error=repr(errors.exceptions))
            self._closed = True
            await self._ownership.close()
            raise

    async def _keep_house(self) -> None:
        clock, settings = self._state.clock, self._settings
        reconciled_at = cleaned_at = clock.monotonic()
        while True:
            await asyncio.sleep(settings.sweep_s)
            now = clock.monotonic()
            if self._take_over.to_walk:
                await self._chore(self._take_over.walk)
            if now - reconciled_at >= settings.reconcile_every_s:
                reconciled_at = now
                await self._chore(self._sweeper.reconcile)
            if now - cleaned_at >= settings.housekeeping_every_s:
                cleaned_at = now
                await self._chore(self._sweeper.drop_stale_deadlines)
                await self._chore(self._collector.expire_outcomes)

    async def _chore(self, chore: Callable[[], Awaitable[object]]) -> None:
        """A failed chore does not stop the others."""
        try:
            await chore()
        except TxnError as error:
            log.warning("housekeeping interrupted", error=str(error))

    async def _taken(self, taken: dict[int, int]) -> None:
        for tcid in taken:
            self._lost(tcid)
        self._take_over.add(taken)

    def _lost(self, tcid: int) -> None:
        self._take_over.forget(tcid)
        tc = self._state.tcids.get(tcid)
        if tc is not None:
            self._begins.lost(tc)
        self._keys.lost(tcid)
        self._collector.forget(tcid)

    # ---- begin ----

    def begin_nowait(
        self,
        tcid: int,
        reply: BegunReply,
        *,
        timeout_ms: int = 0,
        attempt: bytes = b"",
        owner: str = "anonymous",
        connection: SessionConnection | None = None,
    ) -> None:
        """Begin a transaction; calls `reply` with its id or an error, possibly before this returns.

        `timeout_ms` is relative, 0 means the default. A repeated `attempt` (up to 32 bytes) of one session gets the
        same answer. Raises `NotOwner`, `InvalidArgument`.
        """
        tc = self._tcid(tcid)
        self._begins.begin(
            tc,
            timeout_ms=self._timeout_ms(timeout_ms),
            attempt=self._attempt(attempt),
            owner=owner,
            session=None if connection is None else self._state.sessions.connected(connection),
            connection=connection,
            reply=lambda answer: reply(_begun(answer)),
        )

    async def begin(
        self,
        tcid: int,
        *,
        timeout_ms: int = 0,
        attempt: bytes = b"",
        owner: str = "anonymous",
        connection: SessionConnection | None = None,
    ) -> Begun:
        """As `begin_nowait`. Also raises `Timeout`, `StoreUnavailable`, `StoreFull`."""
        future: asyncio.Future[Begun] = asyncio.get_running_loop().create_future()
        self.begin_nowait(
            tcid,
            _resolver(future),
            timeout_ms=timeout_ms,
            attempt=attempt,
            owner=owner,
            connection=connection,
        )
        return await future

    async def begin_named(
        self,
        tcid: int,
        *,
        name: str,
        timeout_ms: int = 0,
        attempt: bytes = b"",
        owner: str = "anonymous",
        keep: Keep = KEPT_BY_DEFAULT,
        known_only: bool = False,
    ) -> Begun:
        """Join the transaction of `name`, or begin it under `tcid` (any will do): after a commit it returns the
        outcome, after an abort the name starts afresh (DESIGN §10).

        `timeout_ms` and `keep` count only for the call that begins it; `known_only` begins none. It belongs to no
        session: it ends by a decision or at its deadline. Raises `NotOwner`, `InvalidArgument`, `Timeout`,
        `StoreUnavailable`, `StoreFull`, `TooManyNames`, `OutcomeUnknown`; with `known_only` `TxnNotFound`.
        """
        validate_txn_name(name)
        tc = self._tcid(tcid)
        return await self._names.begin(
            tc,
            name=name,
            timeout_ms=self._timeout_ms(timeout_ms),
            attempt=self._attempt(attempt),
            owner=owner,
            keep=keep,
            known_only=known_only,
        )

    async def begin_keyed(
        self,
        tcid: int,
        *,
        key: str,
        epoch: int,
        number: int,
        connection: SessionConnection,
        timeout_ms: int = 0,
        attempt: bytes = b"",
    ) -> Begun:
        """Begin a transaction of a transaction key, the `number`th (from 1) of the holder with `epoch`. A repeated
        begin finds the transaction it made; if that has ended, `Begun.decision` says how.

        Raises `ExpiredTransaction` (fenced), `InvalidTxnState` (one at a time), `NotAllowed` (it comes late),
        `NotOwner`, `InvalidArgument`, `Timeout`, `StoreUnavailable`, `StoreFull`, `Overloaded`.
        """
        validate_transaction_key(key)
        if number < 1:
            raise InvalidArgument(f"begin {number} of the transaction key {key!r}: they count from 1")
        return await self._keys.begin(
            self._tcid(tcid),
            key=key,
            epoch=epoch,
            number=number,
            timeout_ms=self._timeout_ms(timeout_ms),
            attempt=self._attempt(attempt),
            connection=connection,
        )

    def _tcid(self, tcid: int) -> OwnedTcid:
        tc = self._state.tcids.get(tcid)
        if tc is None or self._closed:
            raise NotOwner(f"this coordinator does not own coordinator id {tcid}: look its owner up again")
        return tc

    def _timeout_ms(self, timeout_ms: int) -> int:
        max_ms = int(self._settings.max_timeout_s * 1000)
        if timeout_ms > max_ms:
            raise InvalidArgument(f"a transaction timeout of {timeout_ms} ms is above the maximum of {max_ms} ms")
        return timeout_ms or min(max_ms, int(self._settings.default_timeout_s * 1000))

    def _attempt(self, attempt: bytes) -> str:
        if len(attempt) > 32:
            raise InvalidArgument(f"an attempt of {len(attempt)} bytes: expected at most 32")
        return attempt.hex() or f"{self._state.random.getrandbits(64):016x}"

    # ---- end ----

    def end_nowait(
        self,
        txn_id: TxnId,
        reply: EndReply,
        *,
        commit: bool,
        writers: Sequence[str] | None = None,
        note: str | None = None,
        forced: bool = False,
    ) -> bool:
        """Decide a transaction that is open here; calls `reply` later with the decision or an error.

        False: it is not in memory (another coordinator's, or ended already), and `reply` is never called: use `end`.
        """
        txn = self._state.find(txn_id)
        if txn is None or txn.phase is not Phase.OPEN:
            return False
        state, reason = _wanted(commit, forced)
        self._ends.end(txn, state, reason=reason, writers=writers, note=note, reply=reply)
        return True

    async def end(
        self,
        txn_id: TxnId,
        *,
        commit: bool,
        writers: Sequence[str] | None = None,
        note: str | None = None,
        forced: bool = False,
        name: str = "",
    ) -> RecordedDecision:
        """Commit or abort any transaction, of any coordinator. A repeated decision gets the first answer.

        `writers`: those that count, 16 hex digits each; None: all. `note`: kept with a commit. `name`: of a named
        transaction, whose record holds its outcome after collection. Raises `InvalidTxnState` (decided otherwise, or
        with other writers or another note; says why), `ExpiredTransaction` (fenced), `TxnNotFound` (never given out),
        `OutcomeUnknown` (too long ago), `Timeout`, `StoreUnavailable`.
        """
        future: asyncio.Future[RecordedDecision] = asyncio.get_running_loop().create_future()
        if self.end_nowait(txn_id, _resolver(future), commit=commit, writers=writers, note=note, forced=forced):
            return await future
        state, reason = _wanted(commit, forced)
        return await self._ends.end_by_store(txn_id, state, reason=reason, writers=writers, name=name, note=note)

    # ---- transaction keys ----

    async def connect_key(self, tcid: int, *, key: str, epoch: int, attempt: bytes, connection: KeyConnection) -> int:
        """Take over a transaction key last read at `epoch`; returns the new epoch. The former holder is fenced.

        Without an `attempt` it only returns the current epoch, -1 for a key never used. `tcid`: the one the key hashes
        to, where its holders meet. Raises `NotAllowed` (the key has moved on), `NotOwner`, `InvalidArgument`,
        `Timeout`, `StoreUnavailable`, `StoreFull`.
        """
        validate_transaction_key(key)
        self._tcid(tcid)
        if not attempt:
            return await self._keys.epoch(key, connection.owner)
        return await self._keys.connect(
            key, tcid=tcid, epoch=epoch, attempt=self._attempt(attempt), connection=connection
        )

    # ---- sessions ----

    async def announce(self, connection: SessionConnection, open_ids: Sequence[TxnId]) -> None:
        """A client lists its open transactions, on a connection of its session (DESIGN §9)."""
        state = self._state
        await state.sessions.announced(
            connection, open_ids, state.find, lambda tcid: tcid in state.tcids, lambda: state.awake_s
        )

    def disconnected(self, connection: KeyConnection) -> None:
        """A connection has ended; when a session's last one ends, its grace begins."""
        self._keys.disconnected(connection)
        self._state.sessions.disconnected(connection, self._state.awake_s)

    # ---- queries ----

    @property
    def owned_tcids(self) -> tuple[int, ...]:
        return tuple(sorted(self._state.tcids))

    @property
    def registered(self) -> bool:
        """Whether its lease is valid; false while etcd does not answer."""
        return self._ownership.registered

    @property
    def namesake(self) -> str | None:
        """The address of another process of this name that holds leases; None if there is none."""
        return self._ownership.namesake

    def key_epoch_held(self, owner: str, key: str) -> int | None:
        """The epoch of a transaction key whose holder is connected here; None if no holder is."""
        return self._keys.epoch_held(owner, key)

    def statistics(self) -> CoordinatorStatistics:
        state, counters = self._state, self._state.counters
        tcids = [state.tcids[tcid] for tcid in sorted(state.tcids)]
        now_ms = state.cluster.wall_ms()
        oldest = min((first for tc in tcids if (first := tc.oldest_created_ms) is not None), default=now_ms)
        return CoordinatorStatistics(
            tcids=tuple(tc.tcid for tc in tcids),
            open=sum(tc.open_count for tc in tcids),
            sessions=len(state.sessions),
            retained=sum(tc.retained for tc in tcids),
            stuck=counters.stuck,
            begun=counters.begun,
            committed=counters.committed,
            aborted=counters.aborted,
            timed_out=counters.timed_out,
            vanished=counters.vanished,
            unanswered=counters.unanswered,
            collected=counters.collected,
            aborted_by=dict(counters.aborted_by),
            oldest_open_s=max(0.0, (now_ms - oldest) / 1000),
            sweeping=counters.sweeping,
            overdue=self._overdue(tcids),
            cas_ok=counters.cas_ok,
            cas_conflict=counters.cas_conflict,
            cas_reject=counters.cas_reject,
            begin_latency=counters.begin_latency.snapshot(),
            commit_latency=counters.commit_latency.snapshot(),
            abort_latency=counters.abort_latency.snapshot(),
            transaction_keys=len(self._keys),
            held_keys=self._keys.held(),
        )

    def _overdue(self, tcids: Sequence[OwnedTcid]) -> int:
        """Counted up to `OVERDUE_COUNTED`: a quarter of a million would take a fifth of a second per call."""
        found, now = self._state.counters.sweeping, self._state.clock.monotonic()
        for tc in tcids:
            found += tc.overdue(now, OVERDUE_COUNTED - found)
        return found


def _begun(answer: OwnedTransaction | TxnError) -> Begun | TxnError:
    return answer if isinstance(answer, TxnError) else Begun(answer.txn_id, answer.header.timeout_ms)


def _wanted(commit: bool, forced: bool) -> tuple[str, str | None]:
    """The requested state, and the recorded reason of an abort."""
    if commit:
        return COMMITTED, None
    return ABORTED, REASON_ADMIN if forced else REASON_CLIENT


def _resolver(future: asyncio.Future[T]) -> Callable[[T | TxnError], None]:
    """A reply that settles `future`, unless its waiter has gone."""

    def reply(answer: T | TxnError) -> None:
        if future.done():
            return
        if isinstance(answer, TxnError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    return reply
