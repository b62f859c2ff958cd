"""Shared by source and sink: options, positions as Spark keeps them, the client of a process, folders of versions.

Decides how a query's options and positions are written. Imports no other room. Begin with `options`.
"""
