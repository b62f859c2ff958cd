"""Faults injected into processes and their hosts' clocks."""

from __future__ import annotations

import asyncio

from simulation.faults.scene import DATA, FaultKind, Scene
from simulation.faults.steps import STEPS
from simulation.faults.strikes import LAST_STRIKE_S
from simulation.world.sim_disk import DiskFaults


async def kill_a_server(scene: Scene) -> None:
    process = scene.any_of(scene.servers)
    process.kill()
    await scene.for_a_while(0.01, 6.0)
    process.start()


async def stop_a_server(scene: Scene) -> None:
    """Stops in order: segments and coordinator ids are handed over, also in the middle of a split."""
    scene.any_of(scene.servers).stop()


async def kill_a_client(scene: Scene) -> None:
    process = scene.any_of(scene.clients)
    process.kill()
    await scene.for_a_while(0.01, 15.0)
    process.start()


async def kill_all_of_a_kind(scene: Scene) -> None:
    """Kills all brokers, all coordinators, or all servers at one moment; they come back one by one."""
    names = scene.chance.choice((scene.brokers, scene.controls, scene.servers))
    scene.told.append(" ".join(names))
    processes = [scene.world.processes[name] for name in names]
    for process in processes:
        process.kill()
    for process in processes:
        await scene.for_a_while(0.01, 3.0)
        process.start()


async def host_failure(scene: Scene) -> None:
    """A server's or client's host fails: no peer is notified, no connection refused; its disk, on another machine,
    stays."""
    process = scene.any_of((*scene.servers, *scene.servers, *scene.clients))
    process.fail_with_host()
    await scene.for_a_while(0.05, 15.0)
    process.start()


async def no_brokers_for_long(scene: Scene) -> None:
    """▲ Half of the clients go with the brokers: their open transactions are aborted, and fall due for collection while
    their segments have no owner."""
    clients = [name for name in scene.clients if scene.chance.random() < 0.5]
    processes = [scene.world.processes[name] for name in (*scene.brokers, *clients)]
    for process in processes:
        process.kill()
    await scene.for_a_while(18.0, 24.0)
    for process in processes:
        process.start()


async def power_failure(scene: Scene) -> None:
    """Power fails on the machine with the disk, and on every broker there."""
    processes = [scene.world.processes[name] for name in scene.brokers]
    for process in processes:
        process.fail_with_host()
    scene.world.disk(DATA).power_failure()
    await scene.for_a_while(0.5, 12.0)
    for process in processes:
        process.start()


async def pause(scene: Scene) -> None:
    """Pauses a process for up to more than a lease: when it wakes it may be a zombie."""
    process = scene.any_of((*scene.servers, *scene.clients))
    process.pause()
    await scene.for_a_while(0.1, 16.0)
    process.resume()


async def stutter(scene: Scene) -> None:
    """▲ Pauses a process again and again for a moment, each time between two steps of something else."""
    process = scene.any_of((*scene.servers, *scene.servers, *scene.clients))
    longest_s = scene.chance.choice((0.01, 0.1, 2.0))
    until = scene.world.loop.time() + scene.chance.uniform(0.5, 6.0)
    while scene.world.loop.time() < until:
        process.pause()
        await scene.for_a_while(0.0005, longest_s)
        process.resume()
        await scene.for_a_while(0.0001, 0.05)


async def drifting_clock(scene: Scene) -> None:
    """A wall clock runs too fast or too slow; the deviation stays."""
    process = scene.any_of((*scene.servers, *scene.clients))
    share = scene.chance.choice((-0.5, -0.01, 0.01, 0.5, 3.0))
    scene.told.append(f"{share:+.0%}")
    process.clock.drift(share)
    await scene.for_a_while(2.0, 30.0)
    process.clock.drift(0.0)


async def wall_clock(scene: Scene) -> None:
    """A wall clock is stepped by an hour, forth or back; this may neither abort nor keep anything (D6)."""
    process = scene.any_of((*scene.servers, *scene.clients))
    process.clock.step_ms = scene.chance.choice((-3_600_000, 3_600_000, 0))
    scene.told.append(f"by {process.clock.step_ms} ms")


async def strike_at_a_change(scene: Scene) -> None:
    armed = scene.strikes.arm(scene.chance, scene.chance.choice((1, 1, 3)))
    await scene.for_a_while(1.0, 10.0)
    scene.strikes.disarm(armed)
    await scene.for_a_while(LAST_STRIKE_S, LAST_STRIKE_S)  # until the last process struck is back


async def strike_at_a_step(scene: Scene) -> None:
    """Strikes at one kind of step, once or several times: servers' writes to etcd, to the disk, or their requests."""
    step, hits = scene.chance.choice(STEPS), scene.chance.choice((1, 1, 3, 8))
    skip = scene.chance.choice((0, 0, 3, 40))
    scene.told.append(f"{hits} of {step} behind {skip}")
    armed = scene.strikes.arm(scene.chance, hits, (step,), skip)
    await scene.for_a_while(2.0, 12.0)
    scene.strikes.disarm(armed)
    await scene.for_a_while(LAST_STRIKE_S, LAST_STRIKE_S)  # until the last process struck is back


async def slow_take_overs(scene: Scene) -> None:
    """▲ Brokers hand over again and again while transactions with writes there go on. A new owner's disk reads, which
    follow its etcd reads, take long: the transactions are decided while it loads."""
    longest_s = scene.chance.choice((0.1, 0.3, 1.0))
    over = scene.world.disk(DATA).inject(DiskFaults(read_s=(longest_s / 10, longest_s)))
    for _ in range(scene.chance.choice((1, 2, 4))):
        scene.any_of(scene.brokers).stop()
        await scene.for_a_while(1.5, 4.0)
    over()


async def unheard_seals(scene: Scene) -> None:
    """▲ For a while clients get no answers about stored entries, and a broker that seals a segment meanwhile dies right
    after: only the seal tells the next owner what the segment holds of each producer (L7)."""
    span_s = scene.chance.choice((1.0, 2.5, 5.0))
    scene.told.append(f"{span_s:g} s")
    for link in scene.world.network.links():
        if link.ends[1].host in scene.brokers and link.ends[0].host in scene.clients:
            link.lose_replies(1, span_s)
    armed = scene.strikes.arm(scene.chance, 3, ("seal",), how="kill")
    await asyncio.sleep(span_s)
    scene.strikes.disarm(armed)
    await scene.for_a_while(LAST_STRIKE_S, LAST_STRIKE_S)  # until the last process struck is back


KINDS = {
    "kill a server": FaultKind(kill_a_server, weight=2),
    "stop a server": FaultKind(stop_a_server),
    "strike at a change": FaultKind(strike_at_a_change, weight=5),
    "strike at a step": FaultKind(strike_at_a_step, weight=6),
    "kill all of a kind": FaultKind(kill_all_of_a_kind),
    "slow take-overs": FaultKind(slow_take_overs),
    "unheard seals": FaultKind(unheard_seals),
    "host failure": FaultKind(host_failure),
    "stutter": FaultKind(stutter),
    "drifting clock": FaultKind(drifting_clock),
    "kill a client": FaultKind(kill_a_client),
    "no brokers for long": FaultKind(no_brokers_for_long),
    "power failure": FaultKind(power_failure),
    "pause": FaultKind(pause, weight=2),
    "wall clock": FaultKind(wall_clock),
}
