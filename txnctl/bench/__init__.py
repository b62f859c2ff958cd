"""`txnctl bench`: puts load on a running cluster and measures its answers."""
