"""Faults injected into etcd and its network path."""

from __future__ import annotations

import asyncio

from simulation.faults.scene import FaultKind, Scene
from simulation.world.store_faults import APPLIED, LATE, LOST, USUAL_LATE_S, Trouble
from simulation.world.world import World
from txnstore.memory.memory_etcd import DEFAULT_QUOTA_BYTES

REQUESTS = ("commit", "fence", "grant", "keep_alive", "revoke", "read", "watch", "compact", "defragment", "disarm")
FAR_LATE_S = (4.0, 20.0)
"""From the length of a lease to much longer."""
RENEWED_AFTER_S, RENEWED_WITHIN_S, LOOKS_EVERY_S = 1.0, 3.2, 0.1
LEAST_LEFT_S = 2.0
"""Rest of a lease that leaves time for one more renewal after the current one is given up."""


async def lose_etcd(scene: Scene) -> None:
    process = scene.any_of(scene.servers)
    process.disconnect_store()
    await scene.for_a_while(0.05, 14.0)
    process.reconnect_store()


async def _with(scene: Scene, trouble: Trouble, shortest_s: float, longest_s: float) -> None:
    over = scene.world.store_faults.inject(trouble)
    await scene.for_a_while(shortest_s, longest_s)
    over()


def _whose(scene: Scene) -> tuple[str, ...] | None:
    """One server's requests, or all."""
    name = scene.chance.choice((None, None, *scene.servers))
    scene.told.append(name or "everybody's")
    return None if name is None else (name,)


async def unanswered(scene: Scene) -> None:
    """▲ E2: requests of every kind, or of one kind, go unanswered: lost, applied, or landing far more than a lease
    after the client gave up."""
    share = scene.chance.choice((0.02, 0.1, 0.4))
    late_s = scene.chance.choice((USUAL_LATE_S, USUAL_LATE_S, FAR_LATE_S))
    request = scene.chance.choice((None, None, *REQUESTS))
    fates = scene.chance.choice(((LOST, APPLIED, LATE), (LOST, APPLIED, LATE), (APPLIED,), (LATE,)))
    scene.told.append(f"{share:.0%} of {request or 'all requests'} {' or '.join(fates)}")
    requests = None if request is None else (request,)
    trouble = Trouble(_whose(scene), requests, share if request is None else 0.7, fates, late_s)
    await _with(scene, trouble, 0.5, 8.0)
    if LATE in fates and late_s == FAR_LATE_S:
        await scene.for_a_while(FAR_LATE_S[1], FAR_LATE_S[1])  # ▲ ends only after its last request has landed


async def renews_only(scene: Scene) -> None:
    """▲ Etcd renews leases and answers nothing else, as during a defragmentation: requests are lost or land later. No
    process may lose a lease by that."""
    fates = scene.chance.choice(((LOST,), (LATE,), (LOST, APPLIED, LATE)))
    scene.told.append(" or ".join(fates))
    others = (*(request for request in REQUESTS if request != "keep_alive"), "admission", "status")
    trouble = Trouble(None, others, 1.0, fates, watch_share=1.0, watch_s=(2.0, 10.0))
    over = scene.world.store_faults.inject(trouble)
    async with asyncio.TaskGroup() as watching:
        for name in scene.servers:
            watching.create_task(must_renew(scene.world, name))
        await scene.for_a_while(RENEWED_AFTER_S + RENEWED_WITHIN_S, 14.0)
        over()


async def must_renew(world: World, name: str) -> None:
    """A server that holds a lease for some time yet, and that no other fault keeps from renewing it, must ask for
    it."""
    process, sent = world.processes[name], [0]

    def saw(request: str, client: str) -> None:
        sent[0] += request == "keep_alive" and client == name

    await asyncio.sleep(RENEWED_AFTER_S)  # until its requests have gone unanswered
    if process.leases_good_until < process.clock.monotonic() + LEAST_LEFT_S:
        return
    life, undisturbed = process.life, True
    world.store_faults.witnesses.append(saw)
    try:
        for _ in range(int(RENEWED_WITHIN_S / LOOKS_EVERY_S)):
            undisturbed = undisturbed and process.undisturbed and process.life == life
            await asyncio.sleep(LOOKS_EVERY_S)
    finally:
        world.store_faults.witnesses.remove(saw)
    if undisturbed and not sent[0]:
        world.findings.append(f"{name} asked for no renewal of its leases while etcd answered nothing else")


async def one_way(scene: Scene) -> None:
    """A server's requests to etcd are lost though its watches go on; or they are applied, and it gets no answer."""
    name, fate = scene.chance.choice(scene.servers), scene.chance.choice((LOST, APPLIED))
    scene.told.append(f"{name}: {fate}")
    await _with(scene, Trouble((name,), None, 1.0, (fate,), watch_share=float(fate == APPLIED)), 0.3, 12.0)


async def slow(scene: Scene) -> None:
    longest_s = scene.chance.choice((0.05, 0.3, 1.5))
    scene.told.append(f"up to {longest_s:g} s")
    await _with(scene, Trouble(_whose(scene), pause_s=(0.0, longest_s)), 0.5, 8.0)


async def restart(scene: Scene) -> None:
    scene.world.etcd.crash()
    await scene.for_a_while(0.05, 12.0)
    scene.world.etcd.restart()


async def pause(scene: Scene) -> None:
    scene.world.etcd.pause()
    await scene.for_a_while(0.05, 6.0)
    scene.world.etcd.resume()


async def compaction(scene: Scene) -> None:
    """Also under watches that are behind: those resync."""
    await _with(scene, Trouble(watch_share=0.5), 0.1, 2.0)
    _compact(scene)
    if scene.world.etcd.running:
        scene.world.etcd.cut()


def _compact(scene: Scene) -> None:
    etcd = scene.world.etcd
    if etcd.running and etcd.mvcc.compacted < etcd.mvcc.revision:
        etcd.compact(etcd.mvcc.revision)


async def election(scene: Scene) -> None:
    """Etcd has no leader: all requests wait. The new leader restarts all leases, knows some of what was proposed to the
    old one, and watches have to be opened again."""
    etcd = scene.world.etcd
    etcd.pause()
    lost = scene.chance.choice((0.0, 0.3, 1.0))
    await scene.for_a_while(0.1, 6.0)
    etcd.elect(lambda: scene.chance.random() < lost)


async def starved_watches(scene: Scene) -> None:
    """▲ E1: one server gets no watch events for a while though its requests are answered. Some of the events are
    compacted away meanwhile, or its watches are cut in the end."""
    process = scene.any_of(scene.servers)
    over = scene.world.store_faults.inject(Trouble((process.name,), watch_share=1.0, watch_s=(2.0, 10.0)))
    await scene.for_a_while(0.5, 10.0)
    if scene.chance.random() < 0.5:
        scene.told.append("compacted")
        _compact(scene)
        await scene.for_a_while(0.0, 2.0)
    over()
    process.cut_watches()


async def cut_watches(scene: Scene) -> None:
    """One server's watches are cut again and again, while its requests go on."""
    process = scene.any_of(scene.servers)
    for _ in range(scene.chance.choice((1, 3, 12))):
        process.cut_watches()
        await scene.for_a_while(0.0, 0.5)


async def full(scene: Scene) -> None:
    """E3: above the soft limit new work is refused while open work ends; at the quota nothing can be put until the
    maintenance role has made room. Foreign data fills it, and goes away again."""
    etcd = scene.world.etcd
    filled = scene.chance.choice((0.78, 0.9, 1.1))
    scene.told.append(f"to {filled:.0%}")
    etcd.quota_bytes = int(etcd.mvcc.bytes_in_use / filled)
    await scene.for_a_while(1.0, 12.0)
    etcd.quota_bytes = DEFAULT_QUOTA_BYTES


async def early_expiry(scene: Scene) -> None:
    """Leases expire early under live holders: one, or now and then all."""
    leases = scene.world.etcd.leases()
    if leases and scene.chance.random() < 0.8:
        leases = [scene.chance.choice(leases)]
    for lease in leases:
        scene.told.append(f"lease {lease}")
        scene.world.etcd.expire_lease(lease)


async def late_expiry(scene: Scene) -> None:
    """▲ A server is long dead and its leases remain: no process may take what it held, and work goes on once they are
    gone. Or it lives, and does not count on its lease though etcd still has it."""
    etcd, late_s = scene.world.etcd, scene.chance.uniform(2.0, 15.0)
    for lease in etcd.leases():
        etcd.delay_expiry(lease, late_s)
    process = scene.any_of(scene.servers)
    scene.told.append(f"{late_s:.1f} s late")
    if scene.chance.random() < 0.5:
        process.fail_with_host()
        await scene.for_a_while(4.0, 4.0 + late_s)
        process.start()
    else:
        process.disconnect_store()
        await scene.for_a_while(4.0, 4.0 + late_s)
        process.reconnect_store()
    etcd.end_delays()


async def slow_watches(scene: Scene) -> None:
    share = scene.chance.choice((0.05, 0.5, 1.0))
    scene.told.append(f"{share:.0%}")
    await _with(scene, Trouble(_whose(scene), watch_share=share), 0.5, 10.0)


KINDS = {
    "lose etcd": FaultKind(lose_etcd),
    "etcd unanswered": FaultKind(unanswered),
    "etcd renews only": FaultKind(renews_only),
    "etcd restart": FaultKind(restart),
    "etcd pause": FaultKind(pause),
    "etcd compaction": FaultKind(compaction),
    "etcd full": FaultKind(full, weight=2),
    "etcd election": FaultKind(election),
    "one way to etcd": FaultKind(one_way),
    "slow etcd": FaultKind(slow),
    "starved watches": FaultKind(starved_watches),
    "cut watches": FaultKind(cut_watches),
    "early expiry": FaultKind(early_expiry),
    "late expiry": FaultKind(late_expiry),
    "slow watches": FaultKind(slow_watches),
}
