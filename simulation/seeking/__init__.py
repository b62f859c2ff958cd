"""Seeks, rewinds, joins and leaves on one stream subscription, and a model of what it owes its consumers.

Decides which messages are due after each seek. Imports `workloads` and below. Begin with `seek_model`.
"""
