"""Whole clusters on one machine: `txnctl dev`, the supervisor of its processes, and the checks before a start.

Decides in which order processes start and stop, and when one is restarted. Imports `process`. Begin with `dev`.
"""
