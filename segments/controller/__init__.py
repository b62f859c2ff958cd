"""The controller: one elected process that changes layouts, deletes topics, takes snapshots and assigns consumers.

Decides about topics, their layouts, and the assignments of stream subscriptions. Imports `layout` alone; it asks owners
over the wire. Begin with `controller`, then `layout_changes`, `deletions`, `cut` (snapshots, pure) and `stream_groups`.
"""
