"""Shared by the clients of all workloads: the plan of a run, the life of a client process, the record of what it did,
careless calls, and the readings at the end.

Decides which calls a client makes and which of them it cancels. Imports `faults`, `judges` and `world`. Begin with
`life`.
"""
