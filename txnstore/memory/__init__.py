"""An exact etcd in this process's memory, for unit tests and the simulation. Never used in production.

Decides as etcd does: revisions, compares, leases and watches. Imports `store` and `access`. Begin with `memory_etcd`,
then `mvcc`.
"""
