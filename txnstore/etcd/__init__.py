"""The real etcd: connections with fail-over, commits as protobuf bytes, watch streams, an etcd of our own.

Decides what an answer or an error of etcd means. Imports `access`. Begin with `backend`, then `connection`.
"""
