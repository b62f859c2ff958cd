"""The wire: ids, names, errors, entries, commands and connections, shared by all processes and clients.

Decides wire formats and which numbers a peer may send. Imports no package of the project. Begin with `ports` (the small
interfaces for all I/O), then `ids`, `errors`, `entry` (the format of a batch) and `calls`/`serving`.
"""
