"""The real etcd: connections with fail-over, commits as protobuf bytes, watch streams, an etcd of our own.

Decides the meaning of each answer and error of etcd. Imports `access`. Begin with `backend`, then `connection`.
"""
