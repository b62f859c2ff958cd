"""The metadata store: every key and record in etcd, every write that changes them, and the client that sends them.

Decides what a record says and which writes are possible. `keys` and `records` define what etcd holds, and `store` the
interface of a store; `access` sends the requests, `etcd` and `memory` answer them, and `writes` builds the conditional
commits. Imports `txnwire` alone. Begin with `store`, `keys` and `records`.
"""
