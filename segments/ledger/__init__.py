"""Ledgers: append-only files of entries, how they are closed, fenced and validated, and the folder they lie in.

Decides what is durable on disk. Knows nothing of segments' owners, transactions or subscriptions. Begin with `ledger`
(the port), then `ledger_format` (bytes) and `file_ledger_writer` (the order of writes and syncs).
"""
