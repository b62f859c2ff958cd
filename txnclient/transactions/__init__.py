"""The client side of transactions: begin, participants, commit, abort, and keys that fence.

Decides whether a transaction may still commit. Imports `connection`. Begin with `transaction_impl`, then
`coordinators`.
"""
