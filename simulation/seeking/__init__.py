"""Seeks, rewinds, joins and leaves on one stream subscription, and a model of what it owes its consumers.

Begin with `seek_model`.
"""
