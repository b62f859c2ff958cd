"""One server process: its settings, roles, health, metrics and end.

Decides when a process serves and when it ends. Imports every role. Begin with `serve` (a process), then `server` (its
roles assembled).
"""
