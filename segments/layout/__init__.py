"""What topics look like: their segments, who owns them, who subscribes to them, and the etcd writes that change it.

Decides which changes of a layout are legal and how each is written. Imports `txnstore` and `txnwire` alone. Begin with
`topology` (the graph of segments, pure), then `layout_transitions` (splits and merges) and `directory` (what a process
follows of all topics).
"""
