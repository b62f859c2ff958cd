"""The source: reads a batch or a stream, from cut to cut, as Arrow record batches.

Decides what each micro-batch shows. Imports `shared`. Begin with `stream` (offsets are cuts), then `source`
(partitions) and `columns` (blocks to Arrow without a walk over messages).
"""
