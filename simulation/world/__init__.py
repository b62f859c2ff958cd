"""The simulated world: loop, processes, hosts, disks, network, the store's troubles, and guards for determinism.

Decides the order of all that happens in virtual time. Imports no other room. Begin with `loop`, then `world`.
"""
