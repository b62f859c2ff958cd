"""The wire: ids, names, errors, entries, commands and connections, as every process and every client uses them.

Decides how bytes look and which numbers a peer may send. Imports nothing of ours. Begin with `ports` (the small
interfaces through which all I/O goes), then `ids`, `errors`, `entry` (what a batch looks like) and `calls`/`serving`.
"""
