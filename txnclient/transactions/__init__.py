"""Transactions as their client holds them: begin, what was done in them, commit, abort, and keys that fence.

Decides whether a transaction may still commit. Imports `connection`. Begin with `transaction`, then `coordinators`.
"""
