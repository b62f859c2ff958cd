"""Broken rules of the client library, and of queues as their consumers see them."""
