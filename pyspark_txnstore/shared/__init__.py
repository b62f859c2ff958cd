"""Shared by source and sink: options, positions as Spark keeps them, the client of a process, folders of versions.

Imports no other room. Begin with `options`.
"""
