"""Participants: the transaction state of a segment and a subscription, and how decisions in etcd reach them.

Decides what a READ_COMMITTED reader may see and which acks count. Imports `txnstore` and `txnwire`; knows no segment,
no ledger and no connection. Begin with the theory of operation in `visibility`, then `pending_acks` (both pure),
`decisions` (one watch a process), `clean_up_plans` (what is written behind a decision, pure) and `recovery` (what a new
owner reads).
"""
