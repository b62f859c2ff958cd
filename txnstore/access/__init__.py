"""A careful etcd client, shared by the real and the simulated etcd: group commit, watches, leases, pages.

Decides which requests may be repeated and which commits share a request. Imports `store`, `keys` and `records`. Begin
with the theory of operation in `group_commit`, then `store_client` and `following` (watches that survive a lost
connection and compaction).
"""
