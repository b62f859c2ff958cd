"""`txnctl check`: checks that etcd and the ledgers agree, and repairs an etcd that was restored from a backup.

Decides what is broken, and which transactions a repair aborts. Imports `segments.ledger`, `segments.log` and
`txnstore`. Begin with `everything` (the check), then `repair`.
"""
