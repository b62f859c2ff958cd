"""The controller: one elected process that changes layouts, deletes topics, takes snapshots and assigns consumers.

Decides what becomes of topics and of stream subscriptions. Imports `layout` alone; what it needs of owners it asks over
the wire. Begin with `controller`, then `layout_changes`, `deletions`, `cut` (snapshots, pure) and `stream_groups`.
"""
