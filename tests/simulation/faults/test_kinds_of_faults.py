"""Each kind of fault does what its name says, leaves everything else alone, and puts back what it changed.

A world of idle processes that hold connections to each other and watch etcd is looked at every few milliseconds while
one fault is at work. What may be looked at is a *facet*, a name with a value; the table says of each kind which facets
it must change, and whatever else it changes is an error. What a facet means in itself, that a route which is cut lets
nothing through, say, stands in the tests of the layers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import pytest

from simulation.faults.nemesis import KINDS
from simulation.faults.scene import DATA, Scene
from simulation.faults.strikes import Strikes
from simulation.world.loop import SimLoop
from simulation.world.sim_disk import DiskFaults
from simulation.world.sim_ledger import SimLedgerStore
from simulation.world.world import Ports, World
from txnstore import keys, records
from txnstore.records import LedgerRecord, OwnerRecord
from txnstore.store import Commit, Put
from txnwire.errors import TxnError
from txnwire.ids import TxnId
from txnwire.ports import Connection

BROKERS, CONTROLS, CLIENTS = ("broker-1", "broker-2"), ("control-1", "control-2"), ("client-1", "client-2")
SERVERS, ALL = (*CONTROLS, *BROKERS), (*CONTROLS, *BROKERS, *CLIENTS)
SEGMENT = "public/sim/in/0000-ffff-0"
TXN = TxnId.parse("0000-0000000000000001")
LOOKS_EVERY_S = 0.03
LEAST_SEEDS, SEEDS = 2, range(1, 25)
"""As many at least, and until they have shown all that the kind must do."""
HEARD_S, ENDED_S = 0.6, 3.0
"""Behind its end: what it did last is seen; all is as it was, whoever was stopped was started again."""


class Does(NamedTuple):
    """Patterns of facets, each for the whole name. `must`: each is seen to change, with one seed or another; `may`:
    what comes of that. `stays`: what is not put back."""

    must: tuple[str, ...]
    may: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()


PROCESS, SERVER, BROKER, CLIENT = ".*", "(?:control|broker)-.", "broker-.", "client-."
STRUCK = (f"process {SERVER}", f"muted {SERVER}")
STRUCK_SELDOM = (f"paused {SERVER}", f"etcd of {SERVER}", f"route {SERVER} {CLIENT}")
TABLE: dict[str, Does] = {
    # network
    "cut": Does((f"route {PROCESS} {PROCESS}",)),
    "cut a connection": Does((f"route {PROCESS} {PROCESS}",)),
    "isolate a server": Does((f"route {SERVER} {PROCESS}", f"route {PROCESS} {SERVER}")),
    "slow host": Does((f"slow {PROCESS} {PROCESS}",)),
    "lagging connections": Does(("lag",)),
    "reset": Does(("link .*",)),
    "lose replies": Does((f"muted {PROCESS}",), ("link .*",)),
    "mute a broker": Does((f"muted {BROKER}", f"process {BROKER}"), ("link client-. broker-.",)),
    # disk
    "slow disk": Does(("disk sync_s", "disk slow_share", "disk read_s")),
    "stalled disk": Does(("disk stalled",)),
    "failing disk": Does(("disk failing_share",)),
    "disk failing silently": Does(("disk failing_share", "disk unrecorded_share")),
    "folder gone": Does(("disk gone", f"process {BROKER}"), stays=(f"process {BROKER}",)),
    "full disk": Does(("disk full",)),
    "failing reads": Does(("disk read_failing_share",)),
    "wrong reads": Does(("disk flip_share", f"process {BROKER}")),
    "flipped bits": Does(("damaged", f"process {BROKER}")),
    # etcd
    "lose etcd": Does((f"etcd of {SERVER}",)),
    "etcd unanswered": Does((f"requests of (?:everybody|{SERVER})",)),
    "etcd renews only": Does(("requests of everybody", "watches of everybody")),
    "etcd restart": Does(("etcd down", "watch of .*")),
    "etcd pause": Does(("etcd paused",)),
    "etcd compaction": Does(("compacted", "watches of everybody", "watch of .*")),
    "etcd full": Does(("quota",)),
    "etcd election": Does(("etcd paused", "watch of .*")),
    "one way to etcd": Does((f"requests of {SERVER}", f"watches of {SERVER}")),
    "slow etcd": Does((f"pause of (?:everybody|{SERVER})",)),
    "starved watches": Does((f"watches of {SERVER}", "compacted"), (f"watch of {PROCESS}",)),
    "cut watches": Does((f"watch of {SERVER}",)),
    "early expiry": Does(("leases",)),
    "late expiry": Does(("late leases", f"process {SERVER}", f"etcd of {SERVER}"), (f"dark {SERVER}", "leases")),
    "slow watches": Does((f"watches of (?:everybody|{SERVER})",)),
    # controllers
    "term unheard of": Does(("etcd of control-1", "process control-2", "compacted"), (f"watch of {PROCESS}",)),
    "steps unheard of": Does(("requests of control-1",)),
    # processes
    "kill a server": Does(("process control-.", "process broker-.")),
    "stop a server": Does(("process control-.", "process broker-.")),
    "kill all of a kind": Does(("process control-.", "process broker-.")),
    "kill a client": Does(("process client-.",)),
    "host failure": Does((f"process {PROCESS}", f"dark {PROCESS}"), ("leases",)),
    "no brokers for long": Does(("process broker-1", "process broker-2", "process client-."), ("leases",)),
    "power failure": Does(("process broker-1", "process broker-2", "torn"), (f"dark {BROKER}", "leases")),
    "pause": Does((f"paused {PROCESS}",)),
    "stutter": Does((f"paused {PROCESS}",)),
    "drifting clock": Does((f"drift of {PROCESS}", f"clock of {PROCESS}"), stays=(f"clock of {PROCESS}",)),
    "wall clock": Does((f"clock of {PROCESS}",), stays=(f"clock of {PROCESS}",)),
    "strike at a change": Does(STRUCK, STRUCK_SELDOM),
    "strike at a step": Does(STRUCK, STRUCK_SELDOM),
    "slow take-overs": Does(("disk read_s", f"process {BROKER}")),
    "unheard seals": Does((f"muted {BROKER}", f"process {BROKER}"), ("link client-. broker-.",)),
}


class House:
    """The world, and its parts that faults are injected into."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.world = World(loop, 2 * seed)  # whose clocks agree
        for name in ALL:
            self.world.add(name, self._live).start()
        self.strikes = Strikes(self.world)
        self.links: dict[int, str] = {}
        self.lost: dict[str, None] = {}
        self.leases = {name: self.world.etcd.grant(60)[0] for name in SERVERS}

    async def _live(self, ports: Ports) -> None:
        """Hold a connection to every server, serve those of others, watch etcd, until asked to stop."""
        name = ports.owner.name.partition(".")[0]
        if name in SERVERS:
            await ports.transport.listen(f"{name}:1", _hold)
        work = [asyncio.create_task(_connect(ports, other)) for other in SERVERS if other != name]
        work.append(asyncio.create_task(_watch(ports)))
        await ports.stopping.wait()
        for task in work:
            task.cancel()
        await asyncio.wait(work)

    async def furnish(self) -> None:
        """Ledgers with something unsynced in them, and records of which strikes learn who is who."""
        self._put(keys.owner(SEGMENT), records.encode(OwnerRecord(broker=BROKERS[0], address=f"{BROKERS[0]}:1")))
        ledgers = SimLedgerStore(self.world.disk(DATA))
        for ledger_id in range(1, 9):
            writer = await ledgers.create(SEGMENT, ledger_id, incarnation="1")
            writer.append(b"synced")
            await writer.sync()
            await ledgers.write_sidecar(SEGMENT, ledger_id + 100, b"sidecar")
        for file in self.world.disk(DATA).files.values():
            file.data += b"unsynced" * 8

    async def work(self) -> None:
        """Steps for whoever strikes at them: of all kinds that a change of a layout has, and others."""
        world, turn = self.world, 0
        while True:
            await asyncio.sleep(0.1)
            turn += 1
            for key in (keys.watermark(SEGMENT), keys.op(keys.write_ops(TXN, SEGMENT), 7, turn), keys.txn(TXN)):
                self._put(key, b"")
            self._put(keys.cursor_block(SEGMENT, "s", "mark"), b"")
            sealed = LedgerRecord(ledgers=[], sealed=(1, turn)) if turn % 2 else LedgerRecord(ledgers=[])
            self._put(keys.ledger(SEGMENT), records.encode(sealed))
            for what in ("sync", "footer", "sidecar", "create"):
                world.disk(DATA).tell(what, SEGMENT)
            for name, lease in self.leases.items():
                if world.processes[name].undisturbed:
                    world.etcd.keep_alive(lease)

    def _put(self, key: bytes, value: bytes) -> None:
        def apply() -> None:
            self.world.etcd.mvcc.commit([Commit(puts=(Put(key, value),))])

        self.world.etcd.arrive(apply)

    # ---- facets

    def facets(self) -> Iterator[tuple[str, object]]:
        """Those that are not as usual, or that change for good."""
        yield from self._of_processes()
        yield from self._of_the_network()
        yield from self._of_the_disk()
        yield from self._of_requests()
        etcd = self.world.etcd
        yield "etcd down", not etcd.running
        yield "etcd paused", etcd.paused
        yield "quota", etcd.quota_bytes
        yield "compacted", etcd.mvcc.compacted
        yield "leases", tuple(etcd.leases())
        latest = self.world.loop.time() + 60.5
        yield "late leases", any(lease.expires_at > latest for lease in etcd._leases.values())

    def _of_processes(self) -> Iterator[tuple[str, object]]:
        for name, process in self.world.processes.items():
            ports = process._ports
            yield f"process {name}", (process.life, process.alive, ports is not None and ports.stopping.is_set())
            yield f"paused {name}", process.paused
            yield f"drift of {name}", process.clock._drift
            yield f"clock of {name}", process.clock.step_ms
            if ports is not None:
                backend = ports.store.memory_backend
                yield f"etcd of {name}", backend._connected
                if backend._connected and self.world.etcd.running and backend._streams:
                    yield f"watch of {name}", tuple(backend._streams)

    def _of_the_network(self) -> Iterator[tuple[str, object]]:
        network = self.world.network
        yield from ((f"route {source} {target}", "cut") for source, target in network._cuts)
        yield from ((f"slow {source} {target}", "slow") for source, target in network._slow)
        yield from ((f"dark {host}", "dark") for host in network._dark)
        standing = {link.number: link for link in network.links()}
        for number, link in standing.items():
            self.links[number] = f"link {link.ends[0].host} {link.ends[1].host}"
            for end in link.ends:
                if end.muted:
                    yield f"muted {end.host}", "muted"
        self.lost.update((name, None) for number, name in self.links.items() if number not in standing)
        yield from ((name, "lost") for name in self.lost)
        yield "lag", any(link.lag is not None for link in standing.values())

    def _of_the_disk(self) -> Iterator[tuple[str, object]]:
        disk, usual = self.world.disk(DATA), DiskFaults()
        for faults in disk._troubles.values():
            for field in dataclasses.fields(faults):
                if getattr(faults, field.name) != getattr(usual, field.name):
                    yield f"disk {field.name}", getattr(faults, field.name)
        yield "damaged", len(disk._damaged)
        yield "torn", disk.did["torn"]

    def _of_requests(self) -> Iterator[tuple[str, object]]:
        for trouble in self.world.store_faults._troubles.values():
            for client in trouble.clients or ("everybody",):
                if trouble.share:
                    yield f"requests of {client}", trouble
                if trouble.pause_s[1]:
                    yield f"pause of {client}", trouble
                if trouble.watch_share:
                    yield f"watches of {client}", trouble


async def _hold(connection: Connection) -> None:
    while True:
        await connection.receive()


async def _connect(ports: Ports, other: str) -> None:
    while True:
        with suppress(TxnError):
            connection = await ports.transport.connect(f"{other}:1", timeout_s=1.0)
            await connection.receive()
        await asyncio.sleep(0.2)


async def _watch(ports: Ports) -> None:
    async for _ in ports.store.watch(b"\0", b"\xff", from_revision=ports.store.memory_backend._etcd.mvcc.revision + 1):
        pass


FOR_GOOD = re.compile(r"link .*|watch of .*|compacted|leases|torn")
"""What nobody can put back."""


def changed(house: House, usual: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in house.facets() if value != usual.get(name)}


def follows(facet: str, seen: dict[str, object]) -> bool:
    """Whether a connection or a watch has gone with its process, its host's route or its etcd."""
    kind, *names = facet.replace("watch of", "watch").split()
    if kind == "link":
        source, target = names
        cut = f"route {source} {target}" in seen or f"route {target} {source}" in seen
        return cut or any(f"{what} {name}" in seen for name in names for what in ("process", "muted"))
    return kind == "watch" and any(f"{what} {names[0]}" in seen for what in ("process", "etcd of"))


def inject(kind: str, seed: int) -> tuple[dict[str, object], dict[str, object]]:
    """What has changed while one fault of this kind was at work, and what had not been put back long behind it."""
    loop = SimLoop(seed)  # type: ignore[abstract]

    async def main() -> tuple[dict[str, object], dict[str, object]]:
        house = House(loop, seed)
        await asyncio.sleep(0.5)
        await house.furnish()
        working = asyncio.create_task(house.work())
        await asyncio.sleep(0.5)
        usual, seen = dict(house.facets()), dict[str, object]()
        usual_process = {name: value for name, value in usual.items() if name.startswith("process ")}
        scene = Scene(house.world, random.Random(f"{kind} {seed}"), BROKERS, CONTROLS, CLIENTS, house.strikes)
        fault = asyncio.ensure_future(KINDS[kind].strike(scene))
        while not fault.done():
            await asyncio.sleep(LOOKS_EVERY_S)
            seen |= changed(house, usual)
        fault.result()
        working.cancel()
        for _ in range(int(HEARD_S / LOOKS_EVERY_S)):
            seen |= changed(house, usual)
            await asyncio.sleep(LOOKS_EVERY_S)
        await asyncio.sleep(ENDED_S)
        later = {name: value for name, value in changed(house, usual).items() if not FOR_GOOD.fullmatch(name)}
        for name, value in usual_process.items():
            if name in later and later[name][1:] == value[1:]:  # type: ignore[index]
                del later[name]  # it lives again
        return seen, later

    found = loop.run_until_complete(main())
    loop.close()
    return found


@pytest.mark.parametrize("kind", TABLE)
def test_a_fault_does_what_it_is_called_and_leaves_the_rest_alone(kind: str) -> None:
    does, missing = TABLE[kind], list(TABLE[kind].must)
    allowed = re.compile("|".join((*does.must, *does.may)))
    for seed in SEEDS:
        seen, later = inject(kind, seed)
        strange = [name for name in seen if not allowed.fullmatch(name) and not follows(name, seen)]
        assert strange == [], f"seed {seed} changes what it is not to change: {strange}; all: {sorted(seen)}"
        left = [name for name in later if not any(re.fullmatch(pattern, name) for pattern in does.stays)]
        assert left == [], f"seed {seed} has not put back {left}"
        missing = [pattern for pattern in missing if not any(re.fullmatch(pattern, name) for name in seen)]
        if not missing and seed >= LEAST_SEEDS:
            return
    raise AssertionError(f"{kind}: nothing that matches {missing} changes with any of {len(SEEDS)} seeds")


def test_every_kind_of_fault_has_its_row() -> None:
    assert {*TABLE} == {*KINDS}
