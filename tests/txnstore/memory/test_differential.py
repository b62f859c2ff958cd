"""The in-memory etcd against a real one: the same random requests; every answer, record and event must be the same.

Requests are sent below group commit, so that groups it would never form (members in each other's way) are tried too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from txnstore.access.backend import Backend, Reason, Refused, WatchStream
from txnstore.access.grouping import GroupMember
from txnstore.etcd.backend import EtcdBackend
from txnstore.etcd.connection import EtcdConnection
from txnstore.etcd.embedded_etcd import EmbeddedEtcd, EtcdCommand, free_port
from txnstore.etcd.settings import EtcdSettings
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryBackend
from txnstore.store import (
    Commit,
    CommitVerdict,
    Compacted,
    Compare,
    Delete,
    Event,
    KeyValue,
    Put,
    Read,
    Relation,
    Target,
)
from txnwire.clock import SystemClock

KEYS = [b"/k/" + bytes([letter]) for letter in b"abcdefg"]
EVERYTHING = (b"/", b"0")
STEPS = 120


@dataclass
class Side:
    """One backend; revisions are told relative to where the run began, leases by the order of their granting."""

    backend: Backend
    base: int = 0
    leases: list[int] = field(default_factory=list)

    def absolute(self, revision: int) -> int:
        return revision + self.base if revision > 0 else 0

    def relative(self, revision: int) -> int:
        return revision - self.base if revision else 0

    def lease(self, number: int) -> int:
        return self.leases[number - 1] if number else 0

    def record(self, found: KeyValue) -> KeyValue:
        created, modified = self.relative(found.create_revision), self.relative(found.mod_revision)
        lease = self.leases.index(found.lease) + 1 if found.lease else 0
        return KeyValue(found.key, found.value, found.version, created, modified, lease)

    def commit(self, commit: Commit) -> GroupMember:
        """A member as the wire has it, without the checks that `GroupMember` makes of a commit."""
        compares = [Compare(c.key, c.target, c.relation, self._number(c), c.range_end) for c in commit.compares]
        puts = [Put(put.key, put.value, self.lease(put.lease)) for put in commit.puts]
        mine = Commit(tuple(compares), tuple(puts), commit.deletes, commit.else_reads)
        member = GroupMember(Commit(), b"")
        member.commit, member.wire = mine, self.backend.encode(mine)
        return member

    def _number(self, compare: Compare) -> int:
        match compare.target:
            case Target.CREATE | Target.MOD:
                return self.absolute(compare.value)
            case Target.LEASE:
                return self.lease(compare.value)
        return compare.value

    def result(self, result: CommitVerdict) -> CommitVerdict:
        reads = tuple(tuple(self.record(record) for record in read) for read in result.reads)
        return CommitVerdict(result.succeeded, self.relative(result.revision), reads, result.repeated)

    def event(self, event: Event) -> Event:
        return Event(event.kind, self.record(event.record))


class Chance:
    """What is tried: few keys and small numbers, so that members meet and compares hold about as often as not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.revision = 0
        self.leases = 0

    def key(self) -> bytes:
        return self.random.choice(KEYS)

    def span(self) -> tuple[bytes, bytes | None]:
        first, last = sorted((self.key(), self.key()))
        dice = self.random.random()
        if dice < 0.6:
            return first, None
        return (first, last + b"\0") if dice < 0.9 else EVERYTHING

    def compare(self) -> Compare:
        target, relation = self.random.choice(list(Target)), self.random.choice(list(Relation))
        if self.random.random() < 0.4:
            relation = Relation.EQUAL
        near = max(1, self.revision - self.random.randrange(4))
        value = {
            Target.VERSION: self.random.randrange(3),
            Target.CREATE: self.random.choice((0, near)),
            Target.MOD: self.random.choice((0, near)),
            Target.LEASE: self.random.randrange(self.leases + 1),
        }[target]
        start, end = self.span()
        return Compare(start, target, relation, value, end)

    def commit(self) -> Commit:
        some = self.random.randrange
        lease = self.random.randrange(self.leases + 1) if self.random.random() < 0.4 else 0
        puts = [Put(self.key(), self.random.randbytes(some(5)), lease) for _ in range(some(3))]
        deletes = [Delete(*self.span()) for _ in range(max(0, some(4) - 2))]
        compares = [self.compare() for _ in range(some(3))]
        reads = [Read(*self.span()) for _ in range(some(3))]
        return Commit(tuple(compares), tuple(puts), tuple(deletes), tuple(reads))


class Run:
    """Both sides, the requests sent so far, and the watches opened so far."""

    def __init__(self, seed: int, real: Side, memory: Side) -> None:
        self.chance = Chance(seed)
        self.sides = (real, memory)
        self.watches: list[tuple[int, Sequence[WatchStream]]] = []
        self.oldest = 0

    async def step(self) -> None:
        dice = self.chance.random.random()
        if dice < 0.6:
            await self.write()
        elif dice < 0.75:
            await self.read()
        elif dice < 0.8:
            await self.grant()
        elif dice < 0.85 and self.chance.leases:
            await self.revoke()
        elif dice < 0.9:
            await self.watch()
        elif dice < 0.93:
            await self.compact()
        else:
            await self.read_keys()

    async def write(self) -> None:
        commits = [self.chance.commit() for _ in range(self.chance.random.choice((1, 1, 2, 3, 5)))]

        async def send(side: Side) -> list[CommitVerdict] | str:
            try:
                results = await side.backend.commit([side.commit(commit) for commit in commits], repeated=False)
            except Refused as refusal:
                return refusal.reason.value
            return [side.result(result) for result in results]

        answer = await self.same(send, commits)
        if isinstance(answer, list):
            self.chance.revision = answer[0].revision

    async def read(self) -> None:
        (start, end), limit = self.chance.span(), self.chance.random.choice((0, 1, 3))
        revision = self.some_revision()

        async def send(side: Side) -> object:
            try:
                page = await side.backend.read_page(
                    start, end or b"0", revision=side.absolute(revision), limit=limit, keys_only=limit == 1
                )
            except (Compacted, Refused) as error:
                return type(error)
            return side.relative(page.revision), [side.record(record) for record in page.records], page.more

        await self.same(send, ("read", start, end, limit, revision))

    async def read_keys(self) -> None:
        revision = self.some_revision()

        async def send(side: Side) -> object:
            try:
                at, records = await side.backend.read_many(KEYS, side.absolute(revision))
            except (Compacted, Refused) as error:
                return type(error)
            return side.relative(at), [None if record is None else side.record(record) for record in records]

        await self.same(send, ("read keys", revision))

    def some_revision(self) -> int:
        return self.chance.random.choice((0, 0, self.chance.random.randrange(self.chance.revision + 2)))

    async def grant(self) -> None:
        for side in self.sides:
            lease_id, _ = await side.backend.grant(60)
            side.leases.append(lease_id)
        self.chance.leases += 1

    async def revoke(self) -> None:
        number = self.chance.random.randrange(self.chance.leases) + 1

        async def send(side: Side) -> object:
            await side.backend.revoke(side.lease(number))
            return side.relative((await side.backend.read_many(KEYS, 0))[0])

        self.chance.revision = int(str(await self.same(send, ("revoke", number))))

    async def compact(self) -> None:
        """Up to a revision that is not itself a deletion's: see `test_compaction_at_a_deletion`."""
        if self.chance.revision - self.oldest < 5:
            return
        mark = Commit(puts=(Put(KEYS[3], b"mark"),))
        (result,) = await self.sides[1].backend.commit([self.sides[1].commit(mark)], repeated=False)
        await self.sides[0].backend.commit([self.sides[0].commit(mark)], repeated=False)
        self.oldest = self.chance.revision = self.sides[1].relative(result.revision)
        await self.drain()
        for side in self.sides:
            await side.backend.compact(side.absolute(self.oldest))

    async def watch(self) -> None:
        first = self.chance.random.randrange(max(1, self.oldest - 1), self.chance.revision + 2)
        start, end = self.chance.span()
        streams = [
            await side.backend.open_watch(start, end or start + b"\0", side.absolute(first)) for side in self.sides
        ]
        self.watches.append((first, streams))

    async def drain(self) -> None:
        """Write a last event into every watched range, then compare everything every watch has said until then."""
        marks = Commit(puts=tuple(Put(key, b"end") for key in KEYS))
        for side in self.sides:
            (result,) = await side.backend.commit([side.commit(marks)], repeated=False)
            self.chance.revision = side.relative(result.revision)
        for first, streams in self.watches:
            real, memory = [
                await events_until(side, stream, self.chance.revision)
                for side, stream in zip(self.sides, streams, strict=True)
            ]
            assert memory == real, f"watch from {first}"
        await self.close()

    async def close(self) -> None:
        for _, streams in self.watches:
            for stream in streams:
                await stream.close()
        self.watches.clear()

    async def same(self, send: object, what: object) -> object:
        real, memory = [await send(side) for side in self.sides]  # type: ignore[operator]
        assert memory == real, what
        return real


async def events_until(side: Side, stream: WatchStream, revision: int) -> list[Event] | str:
    """Up to the end that `drain` has written into every range there is."""
    events: list[Event] = []
    async with asyncio.timeout(10):
        while not events or side.relative(events[-1].record.mod_revision) < revision:
            try:
                events += await stream.receive()
            except Compacted:
                return "compacted"
    return [side.event(event) for event in events]


@pytest.fixture
async def real(etcd_process: EmbeddedEtcd) -> AsyncIterator[EtcdBackend]:
    connection = EtcdConnection(EtcdSettings(endpoints=(etcd_process.url,), development=True), SystemClock())
    backend = EtcdBackend(connection, b"/differential")
    await backend.open()
    yield backend
    await backend.close()


@pytest.fixture
async def default_sides(tmp_path: Path) -> AsyncIterator[tuple[Side, Side]]:
    """With the limits that etcd has by default."""
    command = EtcdCommand(data_dir=tmp_path / "etcd", client_port=free_port(), max_txn_ops=128)
    process, memory = EmbeddedEtcd(command), MemoryBackend(MemoryEtcd(SystemClock(), max_txn_ops=128), "memory", None)
    await process.start()
    backend = EtcdBackend(
        EtcdConnection(EtcdSettings(endpoints=(process.url,), development=True), SystemClock()), b"/limits"
    )
    try:
        await backend.open()
        yield Side(backend), Side(memory)
    finally:
        await memory.close()
        await backend.close()
        await process.stop()


@pytest.fixture
async def sides(real: EtcdBackend) -> AsyncIterator[tuple[Side, Side]]:
    memory = MemoryBackend(MemoryEtcd(SystemClock()), "memory", None)
    yield Side(real), Side(memory)
    await memory.close()


REQUESTS = [  # members, puts of each, bytes of each put, whether it is refused
    (1, 1, 1_500_000, False),
    (1, 1, 1_580_000, True),
    (15, 1, 100_000, False),
    (16, 1, 100_000, True),
    (1, 127, 10, False),
    (1, 129, 10, True),
    (100, 28, 10, False),
    (100, 29, 10, True),
    (127, 1, 10, False),
    (128, 1, 10, True),
    (129, 1, 10, True),
]


async def test_a_request_too_large_or_of_too_many_operations_is_refused_by_both(
    default_sides: tuple[Side, Side],
) -> None:
    """No write of ours may ever meet it, so the simulation must be able to."""
    for request in REQUESTS:
        members, puts, size, refused = request
        commits = [
            Commit(puts=tuple(Put(b"/k/%03d/%03d" % (member, put), bytes(size)) for put in range(puts)))
            for member in range(members)
        ]
        for side in default_sides:
            refusal = await refusal_of(side, commits)
            assert (refusal is not None) == refused, (request, side.backend, refusal)
            if refusal is not None:
                assert refusal.reason is Reason.MALFORMED
                assert ("too large" in str(refusal)) == (size > 10)


async def refusal_of(side: Side, commits: Sequence[Commit]) -> Refused | None:
    try:
        await side.backend.commit([side.commit(commit) for commit in commits], repeated=False)
    except Refused as refusal:
        return refusal
    return None


async def test_random_requests_have_the_same_answers(sides: tuple[Side, Side]) -> None:
    for seed in range(30):
        for side in sides:
            await side.backend.commit([side.commit(Commit(deletes=(Delete(*EVERYTHING),)))], repeated=False)
            (result,) = await side.backend.commit([side.commit(Commit(puts=(Put(b"/k/a", b""),)))], repeated=False)
            side.base = result.revision
            side.leases = []
        run = Run(seed, *sides)
        for _ in range(STEPS):
            await run.step()
        await run.drain()
