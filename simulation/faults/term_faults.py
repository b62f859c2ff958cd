"""What befalls whoever leads the controllers: terms that nobody hears of, steps whose end it does not hear of."""

from __future__ import annotations

from simulation.faults.scene import FaultKind, Scene
from simulation.world.store_faults import APPLIED, Trouble


async def term_unheard_of(scene: Scene) -> None:
    """▲ Who leads loses etcd for longer than its lease. The one that follows gives up who does not come, and is dead
    before the first one has etcd again, which leads once more: etcd was compacted meanwhile, so it hears of no other
    term. Its connections to clients have stood all the while, so neither do they."""
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
    """▲ Of some commits that the controller sends it never hears that they were applied, and does them again: names
    that it has deleted are used again meanwhile."""
    leader = scene.strikes.leader("controller")
    scene.told.append(leader)
    over = scene.world.store_faults.inject(Trouble((leader,), ("commit",), share=0.4, fates=(APPLIED,)))
    await scene.for_a_while(2.0, 8.0)
    over()


KINDS = {
    "term unheard of": FaultKind(term_unheard_of, weight=2),
    "steps unheard of": FaultKind(steps_unheard_of),
}
