"""Faults injected into the brokers' disk."""

from __future__ import annotations

from simulation.faults.scene import DATA, FaultKind, Scene
from simulation.world.sim_disk import DiskFaults, Part


async def _with(scene: Scene, faults: DiskFaults, shortest_s: float = 0.5, longest_s: float = 8.0) -> None:
    over = scene.world.disk(DATA).inject(faults)
    await scene.for_a_while(shortest_s, longest_s)
    over()


async def slow(scene: Scene) -> None:
    await _with(scene, DiskFaults(sync_s=(0.0002, 0.05), slow_share=0.2, read_s=(0.0, 0.02)))


async def stalled(scene: Scene) -> None:
    """Takes no writes for longer than clients wait and leases last."""
    await _with(scene, DiskFaults(stalled=True), 0.2, 7.0)


async def failing(scene: Scene) -> None:
    """Syncs, creates, fences and small files fail."""
    await _with(scene, DiskFaults(failing_share=scene.chance.choice((0.02, 0.1, 0.5))))


async def failing_silently(scene: Scene) -> None:
    """Syncs fail, and the disk does not record either where a ledger ends: ▲ a successor would count what only the
    kernel has, which the next power failure takes."""
    await _with(scene, DiskFaults(failing_share=0.1, unrecorded_share=scene.chance.choice((0.5, 1.0))))


async def folder_gone(scene: Scene) -> None:
    """▲ The folder is moved away or unmounted, and comes back: nothing acknowledged may count as never made. The
    writers of open ledgers go on without seeing a fence; brokers that start meanwhile refuse."""
    over = scene.world.disk(DATA).inject(DiskFaults(gone=True))
    if scene.chance.random() < 0.5:
        scene.any_of(scene.brokers).kill()
    await scene.for_a_while(0.5, 12.0)
    over()


async def full(scene: Scene) -> None:
    await _with(scene, DiskFaults(full=True))


async def failing_reads(scene: Scene) -> None:
    await _with(scene, DiskFaults(read_failing_share=scene.chance.choice((0.05, 0.3, 1.0))))


async def wrong_reads(scene: Scene) -> None:
    """▲ A bit is wrong as it is read, and right the next time: no client may get a wrong value, and nothing
    acknowledged may be taken for a torn tail."""
    await _with(scene, DiskFaults(flip_share=scene.chance.choice((0.01, 0.1, 0.5))))
    _stop_brokers(scene)


async def flipped_bits(scene: Scene) -> None:
    """▲ Bits flip on the disk, in ledgers, footers and sidecars, and are repaired from a copy later. Meanwhile errors
    name file and offset of the damage; afterwards everything must be there."""
    disk = scene.world.disk(DATA)
    parts: tuple[Part, ...] = ("data", "data", "footer", "sidecar")
    damages = []
    for _ in range(scene.chance.choice((1, 3, 10))):
        keys = list(disk.files)
        part = scene.chance.choice(parts)
        if keys and (damage := disk.damage(key := scene.chance.choice(keys), part, scene.chance)) is not None:
            scene.told.append(f"{part} of {key[0]}/{key[1]} at {damage.offset}")
            damages.append(damage)
    await scene.for_a_while(0.5, 12.0)
    for damage in damages:
        disk.repair(damage)
    _stop_brokers(scene)


def _stop_brokers(scene: Scene) -> None:
    """▲ Brokers do not read again what they have found damaged: after a repair they must be restarted."""
    for name in scene.brokers:
        scene.world.processes[name].stop()


KINDS = {
    "slow disk": FaultKind(slow),
    "stalled disk": FaultKind(stalled),
    "failing disk": FaultKind(failing),
    "disk failing silently": FaultKind(failing_silently),
    "folder gone": FaultKind(folder_gone),
    "full disk": FaultKind(full),
    "failing reads": FaultKind(failing_reads),
    "wrong reads": FaultKind(wrong_reads),
    "flipped bits": FaultKind(flipped_bits),
}
