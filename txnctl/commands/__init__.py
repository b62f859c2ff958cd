"""The commands of `txnctl` that ask a running cluster, one module each.

Imports the cluster's client and the rooms of `txnctl` below. What the commands share is in `shared`.
"""
