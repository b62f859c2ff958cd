"""What a careful etcd client does, once for the real and the simulated etcd: group commit, watches, leases, pages.

Decides what may be repeated and what shares a request. Imports `store`, `keys` and `records`. Begin with
`store_client`, then `group_commit` and `following` (watches that survive a lost connection and compaction).
"""
