"""The entries of one producer: how messages gather into them, their order in each segment, and which are sent again.

Decides which segment an entry goes to, also while segments split and merge, and what is repeated after a lost
connection. Knows nothing of the buffer and its callers. Begin with `channel` (one segment), then `outbox` and `moving`
(both pure).
"""
