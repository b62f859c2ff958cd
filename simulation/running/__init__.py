"""Running many seeds: one scenario, jobs in worker processes, reduction of failures, totals.

Decides which workloads and faults a seed has. Imports every other room but `mutants`. Begin with `scenario`.
"""
