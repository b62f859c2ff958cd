"""Whole clusters on one machine: `txnctl dev`, the supervisor of its processes, and what is checked before.

Decides in which order processes start and stop, and when one is restarted. Imports `process`. Begin with `dev`.
"""
