"""A careful etcd client, shared by the real and the simulated etcd: group commit, watches, leases, pages.

Decides which requests may be repeated and which commits share a request. Imports `store`, `keys` and `records`. Begin
with `store_client`, then `group_commit` and `following` (watches that survive a lost connection and compaction).
"""
