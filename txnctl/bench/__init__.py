"""`txnctl bench`: load on a running cluster, and what it answers to it."""
