"""A small world to take snapshot cuts in: an etcd, transactions, segments with their owners and those that once were.

Real are the key space, the transaction buffers, a segment's answers to a cut, the cut and what takes it. The world
itself is simple enough to be judged by hand: it knows every entry that was ever stored and every decision.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from segments.controller.cut import Resolved, Tail
from segments.layout.topology import SEALED, Topology, create_record
from segments.owner.segment_cuts import SegmentCuts
from tests.segments.virtual_time import LoopClock
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate, MemoryStore
from txnstore.memory.mvcc import Mvcc
from txnstore.records import GcHorizon, Header, Incarnation, OwnerRecord
from txnstore.store import Commit, Delete, Put
from txnwire.errors import NotOwner, TxnError
from txnwire.ids import Position, TxnId
from txnwire.names import TopicName
from txnwire.snapshot import Snapshot
from watchers.outcomes import Decision
from watchers.visibility import AbortedKey, TransactionBuffer

TOPICS = (TopicName("acme", "orders", "placed"), TopicName("globex", "billing", "invoices"))
WRITERS = (1, 2)

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """One stored entry; `txn_id` None for a plain one. `revision`: the store's when it was acked."""

    segment: str
    position: Position
    txn_id: TxnId | None
    writer: int


@dataclass(eq=False)
class Flight:
    """One write between "before its op is sent" and its ack."""

    txn_id: TxnId | None
    writer: int
    recorded: bool = False
    position: Position | None = None


class OwnerModel:
    """A broker's half of one segment. `current` until a successor fences it; then it answers on, not knowing."""

    def __init__(self, world: World, segment: SegmentModel, epoch: int, ledger_id: int) -> None:
        self.world = world
        self.segment = segment
        self.epoch = epoch
        self.ledger_id = ledger_id
        self.appended = 0
        self.flights: list[Flight] = []
        self.delivered = len(world.decisions)
        """How many of all decisions have been delivered here."""
        self.followed = world.mvcc.revision
        self.buffer = segment.load()
        self.cuts = SegmentCuts(
            segment.path, self.buffer, LoopClock(), check=self.check, wait_followed=self.wait_followed, wait_s=60.0
        )
        self.told = False
        """That it is not the owner any more."""

    def check(self) -> None:
        if self.told:
            raise NotOwner(f"{self.segment.path} has another owner")

    @property
    def current(self) -> bool:
        return self.segment.owners[-1] is self

    async def wait_followed(self, revision: int) -> None:
        while self.followed < revision:
            await asyncio.sleep(0)

    # ---- what may happen to it

    def start(self, txn_id: TxnId, writer: int) -> None:
        try:
            self.buffer.op_started(txn_id, writer)
        except TxnError:
            return
        self.flights.append(Flight(txn_id, writer))

    def record(self, flight: Flight) -> None:
        """etcd's verdict on its op: compares header and owner."""
        assert flight.txn_id is not None
        if self.current and flight.txn_id not in self.world.decided:
            flight.recorded = True
            self.segment.ops[flight.txn_id] = None
        else:
            self.flights.remove(flight)
            self.buffer.op_refused(flight.txn_id)
            self.cuts.woken()

    def append(self, flight: Flight) -> None:
        flight.position = Position(self.ledger_id, self.appended)
        self.appended += 1
        if flight.txn_id is not None:
            self.buffer.appended(flight.txn_id, flight.writer, flight.position)
        self.flights.remove(flight)
        self.flights.append(flight)  # in the order of positions

    def confirm(self) -> None:
        """Sync, check the fence, ack the first that is appended."""
        flight = next(one for one in self.flights if one.position is not None)
        assert flight.position is not None
        self.flights.remove(flight)
        self.segment.store(flight)
        self.buffer.confirmed(flight.position)
        if flight.txn_id is not None:
            self.buffer.op_finished(flight.txn_id)
            self.cuts.woken()

    def deliver(self) -> None:
        """The watch brings the next decision; without one, the headers that are held are read again."""
        if self.delivered < len(self.world.decisions):
            decision = self.world.decisions[self.delivered]
            self.delivered += 1
            self.buffer.decided(decision)
            self.followed = max(self.followed, decision.revision)
        else:
            self.followed = self.world.mvcc.revision
        self.cuts.woken()

    def clean_up(self) -> None:
        if self.current:
            batch = self.buffer.clean_up_batch(10)
            self.segment.cleaned(batch_of=[(one.decision.txn_id, one.aborted) for one in batch])
            self.buffer.cleaned(batch)

    def choices(self) -> Iterable[Callable[[], None]]:
        yield self.deliver
        yield self.deliver
        if self.current and any(one.position is not None for one in self.flights):
            yield self.confirm
        for flight in self.flights:
            if flight.txn_id is not None and not flight.recorded:
                yield lambda flight=flight: self.record(flight)  # type: ignore[misc]
            elif flight.position is None:
                yield lambda flight=flight: self.append(flight)  # type: ignore[misc]


class SegmentModel:
    def __init__(self, world: World, path: str) -> None:
        self.world = world
        self.path = path
        self.log: list[Entry] = []
        self.ops: dict[TxnId, None] = {}
        """Transactions with an op record here."""
        self.aborted: dict[AbortedKey, Position | None] = {}
        self.owners: list[OwnerModel] = []
        self.sealed = False
        """Nothing is begun in it."""

    def take_over(self, survivors: int) -> None:
        """A new owner fences the last one; of what was appended and not acked, the first `survivors` are found."""
        if self.owners:
            tail = [one for one in self.owners[-1].flights if one.position is not None]
            for flight in tail[:survivors]:
                self.store(flight)
        self.world.write(Delete(keys.owner(self.path)))
        epoch = self.world.write(Put(keys.owner(self.path), records.encode(OwnerRecord(broker="b", address="b:1"))))
        if not self.owners:
            self.world.write(Put(keys.ledger(self.path), b"{}"))
        owner = OwnerModel(self.world, self, epoch, len(self.owners) + 1)
        self.owners.append(owner)

    def progress(self, zombies: bool) -> Iterable[Callable[[], None]]:
        for owner in self.owners:
            if owner.current or zombies:
                yield from owner.choices()

    def store(self, flight: Flight) -> None:
        assert flight.position is not None
        self.log.append(Entry(self.path, flight.position, flight.txn_id, flight.writer))

    def load(self) -> TransactionBuffer:
        last = self.log[-1].position if self.log else Position(0, -1)
        buffer = TransactionBuffer(self.path, last_confirmed=last, aborted=self.aborted, fenced_below=last)
        for txn_id in self.ops:
            buffer.loaded(txn_id)
        for entry in self.log:
            if entry.txn_id is not None:
                buffer.scanned(entry.txn_id, entry.writer, entry.position)
        for txn_id in self.ops:
            if txn_id in self.world.decided:
                buffer.decided(self.world.decided[txn_id])
        return buffer

    def cleaned(self, batch_of: Iterable[tuple[TxnId, Iterable[tuple[int | None, Position]]]]) -> None:
        for txn_id, aborted in batch_of:
            self.ops.pop(txn_id, None)
            for writer, position in aborted:
                self.aborted[txn_id, writer] = position


@dataclass
class World:
    """`draw` picks one of so many; every step of the world is one call of it and one thing that happens."""

    draw: Callable[[int], int]
    steps_left: int
    zombies: bool = True
    open: dict[TxnId, bool] = field(default_factory=dict)
    """Transactions that are open → whether they have writers."""
    decided: dict[TxnId, Decision] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    segments: dict[str, SegmentModel] = field(default_factory=dict)
    topologies: dict[TopicName, Topology] = field(default_factory=dict)
    begun: int = 0

    def __post_init__(self) -> None:
        self.etcd = MemoryEtcd(LoopClock())
        self.store = MemoryStore(self.etcd, LoopClock(), random.Random(0), faults=self)
        self.write(Put(keys.INCARNATION, records.encode(Incarnation(id="world", created_ms=0))))
        for topic in TOPICS:
            self.put_layout(Topology(topic, create_record(1, policies={}, created_ms=0)))

    @property
    def mvcc(self) -> Mvcc:
        return self.etcd.mvcc

    def write(self, *changes: Put | Delete) -> int:
        puts = tuple(one for one in changes if isinstance(one, Put))
        deletes = tuple(one for one in changes if isinstance(one, Delete))
        return self.mvcc.commit([Commit(puts=puts, deletes=deletes)])[0].revision

    def put_layout(self, topology: Topology) -> None:
        self.topologies[topology.topic] = topology
        self.write(Put(keys.topic(topology.topic.path), records.encode(topology.record)))
        for number, path in topology.paths.items():
            if path not in self.segments:
                self.segments[path] = SegmentModel(self, path)
                if self.draw(2) or not topology.segments[number].parents:
                    self.segments[path].take_over(survivors=0)

    # ---- memory_store.Faults: the world goes on before every request

    def fate(self, request: str, client: str) -> Fate:
        if request == "read":
            self.step()
        return NO_FAULT

    def watch_delay_s(self, client: str) -> float:
        return 0.0

    # ---- what happens

    def step(self) -> None:
        if self.steps_left > 0:
            self.steps_left -= 1
            self.happen()
        else:
            self.drain()

    def drain(self) -> None:
        """Everything that is under way comes to its end; nothing new begins."""
        for segment in self.segments.values():
            if not segment.owners:
                segment.take_over(survivors=0)
            for owner in segment.owners:
                owner.told = not owner.current
                while progress := [one for one in list(owner.choices()) if one != owner.deliver]:
                    progress[0]()
                while owner.delivered < len(self.decisions):
                    owner.deliver()
                owner.deliver()

    def happen(self) -> None:
        """One thing: mostly writes and what brings them on, seldom a change of owner or a split."""
        kind = self.draw(24)
        if kind < 11:
            self.pick([one for segment in self.segments.values() for one in segment.progress(self.zombies)])()
        elif kind < 13 or not self.open:
            self.begin()
        elif kind < 17:
            self.start_write()
        elif kind < 18:
            self.plain()
        elif kind < 21:
            self.decide()
        elif kind < 22:
            self.pick([one for one in self.segments.values() if one.owners]).owners[-1].clean_up()
        elif kind < 23:
            self.collect()
        elif self.draw(2) and len(self.segments) < 7:
            if self.draw(3):
                self.split()
            else:
                self.merge()
        else:
            segment = self.pick(list(self.segments.values()))
            if len(segment.owners) < 3:
                segment.take_over(self.draw(3))

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.draw(len(choices))]

    def begin(self) -> None:
        self.begun += 1
        txn_id = TxnId(0, self.begun)
        self.open[txn_id] = self.draw(3) == 0
        self.write(Put(keys.txn(txn_id), records.encode(Header(state="OPEN", timeout_ms=1, created_ms=0))))

    def start_write(self) -> None:
        txn_id = self.pick(list(self.open))
        if not self.active_paths:
            return
        owner = self.segments[self.pick(self.active_paths)].owners[-1]
        owner.start(txn_id, self.pick(WRITERS) if self.open[txn_id] else 0)

    @property
    def active_paths(self) -> list[str]:
        paths = [path for topology in self.topologies.values() for path in topology.active_paths]
        return [path for path in paths if not self.segments[path].sealed and self.segments[path].owners]

    def plain(self) -> None:
        if self.active_paths:
            self.segments[self.pick(self.active_paths)].owners[-1].flights.append(Flight(None, 0))

    def decide(self) -> None:
        txn_id = self.pick(list(self.open))
        writers: frozenset[int] | None = None
        committed = self.draw(3) > 0
        if self.open.pop(txn_id) and committed:
            writers = frozenset(WRITERS[: self.draw(3)])
        header = Header(
            state="COMMITTED" if committed else "ABORTED",
            timeout_ms=1,
            created_ms=0,
            writers=None if writers is None else [f"{one:016x}" for one in sorted(writers)],
        )
        revision = self.write(Put(keys.txn(txn_id), records.encode(header)))
        self.decided[txn_id] = Decision(txn_id, committed, revision, writers)
        self.decisions.append(self.decided[txn_id])

    def collect(self) -> None:
        """Headers that are final and have no op left; everything else stays."""
        for decision in self.decisions:
            if not any(decision.txn_id in segment.ops for segment in self.segments.values()):
                horizon = records.encode(GcHorizon(revision=decision.revision))
                self.write(Delete(keys.txn(decision.txn_id)), Put(keys.GC_HORIZON, horizon))

    def split(self) -> None:
        """The owner finishes what is in flight, then seals; the children are new segments."""
        topology = self.topologies[self.pick(TOPICS)]
        parent = self.pick(topology.active)
        self.seal(topology.paths[parent.id])
        self.put_layout(topology.split(parent.id))

    def merge(self) -> None:
        topology = self.topologies[self.pick(TOPICS)]
        if len(topology.active) > 1:
            at = self.draw(len(topology.active) - 1)
            lower, upper = topology.active[at : at + 2]
            for parent in (lower, upper):
                self.seal(topology.paths[parent.id])
                if self.draw(2):
                    self.step()  # between the two seals, and between them and the layout
            if self.topologies[topology.topic] is topology:
                self.put_layout(topology.merge(lower.id, upper.id))
            else:  # another change came first: this one is given up
                for parent in (lower, upper):
                    sealed = self.topologies[topology.topic].segments[parent.id].state == SEALED
                    self.segments[topology.paths[parent.id]].sealed = sealed

    def seal(self, path: str) -> None:
        self.segments[path].sealed = True
        if not self.segments[path].owners:
            self.segments[path].take_over(survivors=0)  # who seals owns it
        owner = self.segments[path].owners[-1]
        while progress := [one for one in list(owner.choices()) if one != owner.deliver]:
            progress[0]()

    # ---- segments.controller.snapshots.SegmentQuestions

    async def resolved(self, segment: str) -> Resolved:
        for _ in range(1 if self.draw(4) else 1 + self.draw(10)):  # now and then a slow one: much happens meanwhile
            self.step()
        owner = self._asked(segment)
        return Resolved(owner.epoch, owner.cuts.begin())

    async def tail(self, segment: str, revision: int, resolved: Position) -> Tail:
        self.step()
        owner = self._asked(segment)
        answering = asyncio.ensure_future(owner.cuts.answer(revision, resolved))
        while not answering.done():
            self.step()
            await asyncio.sleep(0)
        cut = answering.result()
        return Tail(owner.epoch, cut.end, cut.undecided, cut.aborted)

    def _asked(self, segment: str) -> OwnerModel:
        """Mostly the owner; now and then one that does not know yet that it is no more."""
        owners = self.segments[segment].owners
        if not owners:
            raise NotOwner(f"{segment} has no owner yet")
        if len(owners) > 1 and self.steps_left > 0 and self.draw(3) == 0:
            return owners[-2]
        return owners[-1]

    # ---- the truth, and what a reader of a snapshot is shown

    def committed_at(self, revision: int) -> list[Entry]:
        """Every transactional entry that had been committed at `revision`."""
        found = []
        for entry in self.entries():
            decision = self.decided.get(entry.txn_id) if entry.txn_id is not None else None
            if decision is not None and decision.revision <= revision and decision.counts(entry.writer):
                found.append(entry)
        return found

    def entries(self) -> list[Entry]:
        return [entry for segment in self.segments.values() for entry in segment.log]

    def shown(self, entry: Entry) -> bool:
        """Whether the owner leaves it in: `ISOLATION_SNAPSHOT`."""
        if entry.txn_id is None:
            return True
        return not self.segments[entry.segment].owners[-1].buffer.is_aborted(entry.txn_id, entry.writer)

    def in_snapshot(self, snapshot: Snapshot, entry: Entry) -> bool:
        bounds = snapshot.bounds(entry.segment)
        if bounds is None or entry.position > bounds.end:
            return False
        return entry.txn_id is None or snapshot.counts(entry.txn_id, entry.writer)
