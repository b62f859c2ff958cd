"""One server process: its settings, roles, health, metrics and end.

Decides when a process serves and when it ends. Begin with `serve` (a process), then `server` (its roles assembled).
"""
