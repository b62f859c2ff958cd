"""Keeps one segment's log: its ledger list, the path of a send, deduplication, caching, retention and erasing.

Decides in which order entries become durable and visible. Imports `layout` and `ledger`.
Its rooms: `sends` (the path of a send, whose order of durability `sends.send_order` states) and `ledgers` (the log as
one sequence over many ledgers). Begin with `sends.pipeline`, which handles every send, then `ledgers.segment_log`.
"""
