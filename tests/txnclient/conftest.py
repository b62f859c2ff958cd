"""The real cluster of `tests/cluster.py`, for the tests that ask for it."""

from tests.cluster import client, cluster

__all__ = ["client", "cluster"]
