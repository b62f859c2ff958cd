"""The simulation: a whole cluster in one thread and virtual time, run from a seed, under faults, and judged.

    world  <-  judges | faults  <-  clients  <-  workloads  <-  seeking  <-  running  <-  mutants

Decides when each process runs, what fails, and what counts as a violation. Imports every package; none imports it.
Begin with `running.scenario`, which assembles one run, then `world.loop` (time and scheduling).
"""
