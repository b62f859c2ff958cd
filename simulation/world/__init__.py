"""The simulated world: loop, processes, hosts, disks, network, the store's troubles, and guards for determinism.

Begin with `loop`, then `world`.
"""
