"""Whole clusters on one machine: `txnctl dev`, the supervisor of its processes, and what is checked before.

Begin with `dev`.
"""
