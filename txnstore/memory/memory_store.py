"""`MemoryStore`: the production store client over an in-memory etcd, with faults in between (DESIGN §13).

All simulated processes share one `MemoryEtcd`; each has its own `MemoryStore`. The client half (group commit, repeats,
resuming watches, leases, pins) is the same code as over the real etcd.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeVar

import msgspec

from txnstore.access.backend import Fenced, RangePage, Refused, RequestFence, StoreStatus, Unanswered
from txnstore.access.grouping import GroupMember, ops_of
from txnstore.access.store_client import StoreClient
from txnstore.etcd.wire import CommitEncoder
from txnstore.memory.memory_etcd import Arrival, MemoryEtcd, MemoryWatchStream
from txnstore.store import Commit, CommitVerdict, Compacted, KeyValue, Put, unchanged_since
from txnwire.errors import TxnError
from txnwire.ports import Clock, Random

ATTEMPT_TIMEOUT_S: Final = 5.0

_encoder = CommitEncoder(b"/txnstore")
_NESTED_BYTES: Final = 10
"""Bytes around a nested transaction."""

T = TypeVar("T")


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of one request. All times in seconds, `arrive_s` and `fail_s` from its sending.

    | | |
    |---|---|
    | answered | `Fate(arrive_s=0.001, answer_s=0.002)` |
    | lost before it was applied | `Fate(arrive_s=None, fail_s=1.0)` |
    | applied, its answer lost | `Fate(arrive_s=0.001, fail_s=1.0)` |
    | landed late, after the client gave it up | `Fate(arrive_s=5.0, fail_s=1.0)` |

    `fail_s`: when the client sees `Unanswered`; None leaves it to the client's own time limit per request.
    """

    arrive_s: float | None = 0.0
    answer_s: float = 0.0
    fail_s: float | None = None


NO_FAULT: Final = Fate()


class Faults(Protocol):
    """Decides the fate of requests of every `MemoryStore` that has one; `client` is the store's name."""

    def fate(self, request: str, client: str) -> Fate:
        """`request`: commit, fence, read, watch, grant, keep_alive, revoke, status, compact, defragment or disarm."""

    def watch_delay_s(self, client: str) -> float:
        """How long after a change its delivery to this client's watches starts."""


_ADMISSION_PAUSE_S: Final = 0.02


class MemoryBackend:
    """`txnstore.access.backend.Backend` over a `MemoryEtcd`."""

    def __init__(self, etcd: MemoryEtcd, client: str, faults: Faults | None) -> None:
        self._etcd = etcd
        self._client = client
        self._faults = faults
        self._connected = True
        self._admitted = True
        self._admission = asyncio.Lock()
        self._waiting: list[asyncio.Future[None]] = []
        self._unanswered: dict[asyncio.Future[object], None] = {}
        self._streams: dict[MemoryWatchStream, None] = {}
        self._stop_cuts = etcd.on_cut(self._cut)

    @property
    def max_txn_ops(self) -> int:
        return self._etcd.max_txn_ops

    @property
    def pages_divided_by(self) -> int:
        return self._etcd.pages_divided_by

    def disconnect(self) -> None:
        """Cut it off from every endpoint until `reconnect`: unanswered requests end so, no more are sent."""
        self._connected = False
        self._cut()

    def reconnect(self) -> None:
        self._connected = True
        self._wake_waiting()

    def cut_watches(self) -> None:
        """Cuts only its watches; requests continue."""
        for stream in list(self._streams):
            stream.lose()
        self._streams.clear()

    def forget(self) -> None:
        """The simulated process was killed: no caller waits for answers any more, the server drops its watches."""
        self._stop_cuts()
        for stream in self._streams:
            stream.lose()

    @property
    def connected(self) -> bool:
        return self._connected and self._etcd.running

    async def wait_ready(self) -> None:
        """As the client of a real etcd: after an unanswered request it first asks for a sign of life."""
        await self._wait_connected()
        while not self._admitted:
            async with self._admission:
                await self._wait_connected()
                if not self._admitted:
                    await self._admit()

    def why_not_ready(self) -> str:
        return "no etcd endpoint is connected"

    async def _wait_connected(self) -> None:
        while not self.connected:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            self._etcd.when_started(self._wake_waiting)
            await waiter

    async def _admit(self) -> None:
        try:
            await self._request("admission", lambda: None)
            self._admitted = True
        except Unanswered:
            await asyncio.sleep(_ADMISSION_PAUSE_S)

    async def wait_unfit(self) -> TxnError:
        never: asyncio.Future[TxnError] = asyncio.get_running_loop().create_future()  # this etcd has no backups
        return await never

    def known_as(self, incarnation: str) -> None:
        """Does nothing: only this etcd ever answers here."""

    async def raft_lead(self) -> int | None:
        return None

    def encode(self, commit: Commit) -> bytes:
        """As sent to etcd, whose limit counts these bytes."""
        return _encoder.transaction(commit)

    async def commit(
        self, members: Sequence[GroupMember], *, repeated: bool, fence: RequestFence | None = None
    ) -> list[CommitVerdict]:
        def apply() -> list[CommitVerdict]:
            if fence is not None and self._fence_of(fence.key) != fence.revision:
                raise Fenced(f"{fence} was raised before this request came")
            self._check_commit(members, 0 if fence is None else 1)
            if any(member.commit.puts for member in members):
                self._etcd.check_quota()
            return self._etcd.mvcc.commit([member.commit for member in members])

        results = await self._request("commit", apply, tuple([member.commit for member in members]))
        if repeated:
            return [CommitVerdict(r.succeeded, r.revision, r.reads, True) for r in results]
        return results

    def _check_commit(self, members: Sequence[GroupMember], fences: int) -> None:
        sizes = [len(member.wire) for member in members]
        ops = [ops_of(member.commit) for member in members]
        if len(members) == 1:
            self._etcd.check_request(ops=ops[0] + fences, nested_ops=0, size=sizes[0])
        else:
            size = sum(sizes) + _NESTED_BYTES * len(sizes)
            self._etcd.check_request(ops=len(members), nested_ops=max(ops), size=size)

    async def raise_fence(self, fence: RequestFence, lease: int) -> int:
        def apply() -> int:
            self._etcd.check_quota()
            put = Put(fence.key, b"", lease)
            self._etcd.mvcc.commit([Commit((unchanged_since(fence.key, fence.revision),), (put,))])
            return self._fence_of(fence.key)

        return await self._request("fence", apply)

    def _fence_of(self, key: bytes) -> int:
        found = self._etcd.mvcc.get(key)
        return 0 if found is None else found.mod_revision

    async def read_many(self, keys: Sequence[bytes], revision: int) -> tuple[int, list[KeyValue | None]]:
        def apply() -> tuple[int, list[KeyValue | None]]:
            self._etcd.check_request(ops=len(keys), nested_ops=0, size=sum(map(len, keys)))
            mvcc = self._etcd.mvcc
            return mvcc.revision, [mvcc.get(key, revision) for key in keys]

        return await self._request("read", apply)

    async def read_page(self, start: bytes, end: bytes, *, revision: int, limit: int, keys_only: bool) -> RangePage:
        def apply() -> RangePage:
            records, more = self._etcd.mvcc.range(start, end, revision, limit)
            if keys_only:
                records = [msgspec.structs.replace(record, value=b"") for record in records]
            return RangePage(self._etcd.mvcc.revision, tuple(records), more)

        return await self._request("read", apply)

    async def read_pages(self, ranges: Sequence[tuple[bytes, bytes]], *, revision: int, limit: int) -> list[RangePage]:
        def apply() -> list[RangePage]:
            mvcc = self._etcd.mvcc
            self._etcd.check_request(ops=len(ranges), nested_ops=0, size=sum(len(one) for one, _ in ranges))
            found = [mvcc.range(start, end, revision, limit) for start, end in ranges]
            return [RangePage(mvcc.revision, tuple(records), more) for records, more in found]

        return await self._request("read", apply)

    async def count(self, start: bytes, end: bytes) -> int:
        return await self._request("read", lambda: self._etcd.mvcc.count(start, end))

    async def open_watch(self, start: bytes, end: bytes, from_revision: int) -> MemoryWatchStream:
        def apply() -> MemoryWatchStream:
            return self._etcd.open_watch(start, end, from_revision, self._watch_delay_s)

        stream = await self._request("watch", apply)
        self._streams = {one: None for one in self._streams if not one.lost}  # closed ones would stay otherwise
        self._streams[stream] = None
        return stream

    async def grant(self, ttl_s: int) -> tuple[int, float]:
        return await self._request("grant", lambda: self._etcd.grant(ttl_s))

    async def keep_alive(self, lease_id: int) -> float:
        return await self._request("keep_alive", lambda: self._etcd.keep_alive(lease_id))

    async def revoke(self, lease_id: int) -> None:
        await self._request("revoke", lambda: self._etcd.revoke(lease_id))

    async def status(self) -> StoreStatus:
        return await self._request("status", self._etcd.status)

    async def compact(self, revision: int) -> None:
        def apply() -> None:
            with suppress(Compacted):
                self._etcd.compact(revision)

        await self._request("compact", apply)

    async def defragment(self) -> None:
        await self._request("defragment", self._etcd.defragment)

    async def disarm(self) -> None:
        await self._request("disarm", self._etcd.disarm)

    async def close(self) -> None:
        self._stop_cuts()
        self._connected = False
        self._cut()

    def _watch_delay_s(self) -> float:
        return self._faults.watch_delay_s(self._client) if self._faults else 0.0

    async def _request(self, name: str, apply: Callable[[], T], commits: tuple[Commit, ...] = ()) -> T:
        """Send the request, which arrives even if the caller has given up, and wait for the answer."""
        if not (self._connected and self._etcd.running):
            raise Unanswered("not connected")
        loop = asyncio.get_running_loop()
        fate = self._faults.fate(name, self._client) if self._faults else NO_FAULT
        answer: asyncio.Future[T] = loop.create_future()

        def arrive() -> None:
            outcome = _outcome_of(apply)
            self._etcd.met(
                Arrival(
                    request=name, client=self._client, commits=commits, outcome=outcome, late=answer.done(),
                    unheard=fate.fail_s is not None, answered_s=fate.answer_s,
                )
            )  # fmt: skip
            if fate.fail_s is None:
                self._etcd.call_later(fate.answer_s, lambda: _answer(answer, outcome))

        if fate.arrive_s is not None:
            self._etcd.call_later(fate.arrive_s, lambda: self._etcd.arrive(arrive))
        else:
            self._etcd.met(Arrival(request=name, client=self._client, commits=commits, lost=True, unheard=True))
        fail_s = ATTEMPT_TIMEOUT_S if fate.fail_s is None else fate.fail_s
        timer = loop.call_later(fail_s, _answer, answer, Unanswered(f"{name}: no answer"))
        self._unanswered[answer] = None  # type: ignore[index]
        try:
            return await answer
        except Unanswered:
            self._admitted = False
            raise
        finally:
            timer.cancel()
            del self._unanswered[answer]  # type: ignore[arg-type]

    def _cut(self) -> None:
        for answer in list(self._unanswered):
            _answer(answer, Unanswered("the connection was lost"))
        self.cut_watches()

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class MemoryStore(StoreClient):
    """`MetadataStore` over a `MemoryEtcd`. `name` identifies this client's requests for `faults`; `backend` has
    `disconnect` and `reconnect`."""

    def __init__(
        self, etcd: MemoryEtcd, clock: Clock, random: Random, *, name: str = "client", faults: Faults | None = None
    ) -> None:
        self.memory_backend = MemoryBackend(etcd, name, faults)
        super().__init__(self.memory_backend, clock, random, quota_bytes=etcd.quota_bytes)
        self.etcd = etcd


def _outcome_of(apply: Callable[[], T]) -> T | Refused | Compacted | Fenced:
    try:
        return apply()
    except (Refused, Compacted, Fenced) as refusal:
        return refusal


def _answer(answer: asyncio.Future[T], outcome: T | BaseException) -> None:
    if answer.done():
        return
    if isinstance(outcome, BaseException):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
