"""One segment's log: its list of ledgers, the way of a send into them, deduplication, caching, retention and erasing.

Decides in which order entries become durable and are told. Imports `layout` and `ledger`.
Begin with `pipeline`, which every send passes, then `ledgers` (the log as one sequence over many ledgers).
"""
