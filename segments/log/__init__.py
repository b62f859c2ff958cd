"""Keeps one segment's log: its ledger list, the path of a send, deduplication, caching, retention and erasing.

Decides in which order entries become durable and visible. Imports `layout` and `ledger`.
Begin with the theory of operation in `send_order` (what must be durable before what is told), then `pipeline`, which
handles every send, and `ledgers` (the log as one sequence over many ledgers).
"""
