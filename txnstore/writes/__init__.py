"""The conditional commits that change records: headers, ops, names, keys, collection, deletion. Pure.

Decides the compares of each change, so that a late or repeated request changes nothing. Begin with `transitions`, the
header of a transaction.
"""
