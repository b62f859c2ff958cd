"""`txnctl bench`: puts load on a running cluster and measures its answers.

Decides how many calls are under way, and how latencies are counted. Imports the client alone. Begin with `load`.
"""
