"""What the clients of all workloads share: the plan of a run, the life of a client process, the record of what it did,
careless calls, and the readings at the end. Begin with `life`."""
