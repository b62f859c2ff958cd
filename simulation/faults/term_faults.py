"""Faults injected into the leading controller: terms that it does not see, steps whose answers it does not get."""

from __future__ import annotations

from simulation.faults.scene import FaultKind, Scene
from simulation.world.store_faults import APPLIED, Trouble


async def term_unheard_of(scene: Scene) -> None:
    """▲ The leader loses etcd for longer than its lease. Its successor gives up consumers that do not join it, and is
    dead before the first leader has etcd again and leads once more. Etcd was compacted meanwhile, so the first leader
    does not see the other term. Its client connections stood all the while, so clients do not see it either."""
    leader = scene.strikes.leader("controller")
    scene.told.append(leader)
    first = scene.world.processes[leader]
    others = [scene.world.processes[name] for name in scene.controls if name != leader]
    first.disconnect_store()
    await scene.for_a_while(*scene.chance.choice(((5.0, 8.0), (15.5, 20.0))))
    for process in others:
        process.kill()
    await scene.for_a_while(4.2, 5.0)  # its lease
    etcd = scene.world.etcd
    if etcd.running and etcd.mvcc.compacted < etcd.mvcc.revision:
        etcd.compact(etcd.mvcc.revision)
    first.reconnect_store()
    await scene.for_a_while(4.0, 6.0)
    for process in others:
        process.start()


async def steps_unheard_of(scene: Scene) -> None:
    """▲ Some commits of the controller are applied without an answer, and it repeats them: names that it has deleted
    are used again meanwhile."""
    leader = scene.strikes.leader("controller")
    scene.told.append(leader)
    over = scene.world.store_faults.inject(Trouble((leader,), ("commit",), share=0.4, fates=(APPLIED,)))
    await scene.for_a_while(2.0, 8.0)
    over()


KINDS = {
    "term unheard of": FaultKind(term_unheard_of, weight=2),
    "steps unheard of": FaultKind(steps_unheard_of),
}
