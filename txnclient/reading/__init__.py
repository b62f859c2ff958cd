"""Reading without a subscription: readers, snapshots, ranges of entries in bulk, and waiting for something new.

Decides what a reader between two snapshots shows. Imports `consuming` and below. Begin with `reader_impl`, then
`snapshot`.
"""
