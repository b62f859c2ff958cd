"""Cursors: what a subscription has acked in one segment.

Decides which messages count as consumed, and which cursor records are written. Pure. Begin with the theory of
operation in `cursor`.
"""
