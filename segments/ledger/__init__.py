"""Implements ledgers: append-only files of entries, how they are closed, fenced and validated, and their folder.

Decides what is durable on disk. Imports `txnwire` alone: it knows no owners, transactions or subscriptions. Begin with
`ledger` (the port), then `ledger_format` (bytes) and `file_ledger_writer` (the order of writes and syncs).
"""
