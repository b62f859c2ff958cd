"""The commands of `txnctl` that ask a running cluster, one module each.

Decides which words a command takes and what it prints. Imports the cluster's client and the rooms of `txnctl` below.
What the commands share is in `shared`. Begin with `topics`.
"""
