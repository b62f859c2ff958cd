"""A pytest plugin, which users' tests get a running cluster and a fresh namespace from: docs/cookbook.md.

Decides when a cluster starts and ends, and which namespace a test has. pytest loads `plugin` in every session of an
environment that has the client. So it imports nothing of ours until a fixture is asked for, and lies beside
`txnclient`, not in it: importing that brings gRPC. Of ours it may import `txnclient`; the servers it only starts. Begin
with `plugin`.
"""
