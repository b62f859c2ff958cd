"""The metadata store: every key and record in etcd, every write that changes them, and the client that sends them.

`keys` and `records` say what etcd holds, and `store` what a store is asked; `access` is how it is asked, `etcd` and
`memory` answer, and `writes` builds the conditional commits. Imports `txnwire` alone. Begin with `store`, `keys` and
`records`.
"""
