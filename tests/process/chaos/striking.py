"""Carries faults out on real processes, and takes back what lasts."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress

from tests.etcd_members import Tap
from tests.process.chaos.cluster import ChaosCluster
from tests.process.chaos.faults import Fault
from tests.process.chaos.moments import Moments, drawn_for
from txnctl.launch.supervisor import Child

SIGNALS = {
    "kill": signal.SIGKILL,
    "kill together": signal.SIGKILL,
    "kill worker": signal.SIGKILL,
    "stop": signal.SIGTERM,
}
FIND_LEADER_S = 2.0
WAIT_FOR_WRITE_S = 10.0


class Striking:
    """`note` is told what is done to whom."""

    def __init__(
        self, cluster: ChaosCluster, workers: Mapping[str, Child], moments: Moments, note: Callable[[str], None]
    ) -> None:
        self._moments = moments
        self._children = {**cluster.children, **workers}
        self._taps = cluster.taps
        self._etcd = etcd = cluster.etcd
        self._note = note
        self._healing = asyncio.Event()
        self._busy = [asyncio.Lock() for _ in etcd.members]
        """One fault at a time for each member of etcd."""
        self._of_etcd: Mapping[str, Callable[[Sequence[int], float], Awaitable[None]]] = {
            "etcd kill": self._kill_members,
            "etcd pause": self._pause_members,
            "etcd cut from clients": self._cut_from_clients,
            "etcd cut from peers": self._cut_from_peers,
        }

    def heal(self) -> None:
        """What lasts ends now; `strike` returns as soon as that is done."""
        self._healing.set()

    async def strike(self, fault: Fault) -> None:
        """Returns when it is over, and whoever was struck goes on; a process that was killed, by its supervisor."""
        if fault.kind.startswith("etcd"):
            await self._strike_etcd(fault)
            return
        if fault.kind == "strike":
            await self._strike_at(fault)
            return
        self._note(str(fault))
        await self._do(fault.kind, fault.targets, fault.for_s)

    async def _do(self, deed: str, names: Sequence[str], for_s: float) -> None:
        children = [self._children[name] for name in names]
        if deed in SIGNALS:
            for child in children:
                child.signal(SIGNALS[deed])
        elif deed == "reset":
            for name in names:
                self._taps[name].reset()
        elif deed in ("cut", "mute"):
            await self._cut([self._taps[name] for name in names], for_s, mute=deed == "mute")
        else:
            await asyncio.gather(*(self._pause(child, for_s) for child in children))

    async def _strike_at(self, fault: Fault) -> None:
        """Nothing happens where there is no such write for long."""
        write, deed = fault.targets
        chance = random.Random(fault.number)
        moment = asyncio.ensure_future(self._moments.next(write))
        healing = asyncio.ensure_future(self._healing.wait())
        try:
            await asyncio.wait({moment, healing}, timeout=WAIT_FOR_WRITE_S, return_when=asyncio.FIRST_COMPLETED)
            if not moment.done() or healing.done():
                return
            name = moment.result() if chance.random() < 0.8 else None
            name = name or chance.choice(drawn_for(write))
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.002, 0.01)))
            self._note(f"{fault} ({name})")
            await self._do(deed, (name,), fault.for_s)
        finally:
            moment.cancel()
            healing.cancel()

    async def _last(self, for_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await self._healing.wait()

    async def _pause(self, child: Child, for_s: float) -> None:
        pid = child.pid
        child.signal(signal.SIGSTOP)
        await self._last(for_s)
        if pid is not None and child.pid == pid:
            os.kill(pid, signal.SIGCONT)

    # ---- etcd ------------------------------------------------------------------------------------------------------

    async def _strike_etcd(self, fault: Fault) -> None:
        numbers = await self._members(fault.targets[0], random.Random(fault.number))
        async with AsyncExitStack() as stack:
            for number in numbers:
                await stack.enter_async_context(self._busy[number])
            if self._healing.is_set():
                return
            self._note(f"{fault} ({', '.join(f'm{number}' for number in numbers)})")
            await self._of_etcd[fault.kind](numbers, fault.for_s)

    async def _members(self, part: str, chance: random.Random) -> list[int]:
        """In rising order, so that two faults never wait for each other."""
        every = list(range(self._etcd.size))
        leader = chance.choice(every)
        if part in ("leader", "quorum"):
            with suppress(TimeoutError):  # nobody leads: any of them
                async with asyncio.timeout(FIND_LEADER_S):
                    leader = await self._etcd.leader()
        if part == "all":
            return every
        if part == "quorum":
            return sorted([leader, chance.choice([number for number in every if number != leader])])
        return [leader]

    async def _kill_members(self, numbers: Sequence[int], for_s: float) -> None:
        members = [self._etcd.members[number] for number in numbers]
        for member in members:
            member.kill()
        await self._last(for_s)
        await asyncio.gather(*(member.start(timeout_s=90.0) for member in members))

    async def _pause_members(self, numbers: Sequence[int], for_s: float) -> None:
        members = [self._etcd.members[number] for number in numbers]
        await asyncio.gather(*(member.pause() for member in members))
        await self._last(for_s)
        for member in members:
            member.resume()

    async def _cut_from_clients(self, numbers: Sequence[int], for_s: float) -> None:
        await self._cut([self._etcd.taps[number] for number in numbers], for_s)

    async def _cut_from_peers(self, numbers: Sequence[int], for_s: float) -> None:
        """▲ One way: nobody reaches it, while it reaches the others. It hears no heartbeat, and asks for votes."""
        await self._cut([self._etcd.peer_taps[number] for number in numbers], for_s)

    async def _cut(self, taps: Sequence[Tap], for_s: float, *, mute: bool = False) -> None:
        for tap in taps:
            tap.mute() if mute else tap.cut()
        await self._last(for_s)
        for tap in taps:
            tap.join()
