"""The ledgers of one segment as one log: their list in etcd, positions, counts of messages, which to roll and delete.

Decides which ledgers a segment has and which entry comes next. Knows no send and no subscription. Begin with
`segment_log`, then `ledger_list` and `ledger_pages`.
"""
