"""Describes topics: their segments, owners and subscriptions, and the etcd writes that change these.

Decides which changes of a layout are legal and how each is written. Imports only `txnstore` and `txnwire`. Begin with
`topology` (the graph of segments, pure), then `layout_transitions` (splits and merges) and `directory` (one process's
view of the cluster).
"""
