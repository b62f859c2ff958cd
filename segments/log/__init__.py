"""Keeps one segment's log: its ledger list, the path of a send, deduplication, caching, retention and erasing.

Decides in which order entries become durable and visible. Imports `layout` and `ledger`.
Begin with `pipeline`, which handles every send, then `ledgers` (the log as one sequence over many ledgers).
"""
