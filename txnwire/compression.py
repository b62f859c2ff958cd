"""Compression of entry blocks: zstd for size, lz4 for speed, none if it does not pay.

It takes no sample first: both codecs give up early on a block that does not shrink. Measured on 128 KiB of random
bytes, zstd takes 15 µs and lz4 9 µs, against 164 and 77 µs on JSON: a sample would cost as much as the attempt.
"""

from __future__ import annotations

import threading
from typing import Final

import lz4.block
import zstandard

from txnwire.errors import InvalidArgument, TxnError
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_BLOCK_BYTES

COMPRESS_FROM_BYTES: Final = 512
"""Below this, zstd's frame and time cost more than it saves."""

MIN_SAVING: Final = 16
"""Compression must save at least 1/`MIN_SAVING` of the block, or readers decompress for nothing."""

MAX_LEVEL: Final = 9
"""Highest zstd level. The event loop compresses blocks: 128 KiB of JSON take 0.16 ms at level 1, 1.8 ms at level 9."""


class _Codecs(threading.local):
    """zstd contexts, which are expensive to make and must not be used by two threads at once."""

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor()

    def compressor(self, level: int) -> zstandard.ZstdCompressor:
        found = self.compressors.get(level)
        if found is None:
            if not 1 <= level <= MAX_LEVEL:
                raise InvalidArgument(f"compression level {level}: expected 1 to {MAX_LEVEL}")
            found = self.compressors[level] = zstandard.ZstdCompressor(level=level)
        return found


_codecs = _Codecs()


def compress(block: bytes, wish: pb.Compression, level: int) -> tuple[bytes, pb.Compression]:
    """The block in its stored form, and the compression used. A small block, or one that hardly shrinks, is unchanged.

    `level`: zstd's, 1 to `MAX_LEVEL`. Raises `InvalidArgument` for another one.
    """
    if wish == pb.COMPRESSION_NONE or len(block) < COMPRESS_FROM_BYTES:
        return block, pb.COMPRESSION_NONE
    if wish == pb.COMPRESSION_LZ4:
        compressed: bytes = lz4.block.compress(block, store_size=False)
    else:
        compressed = _codecs.compressor(level).compress(block)
    if len(compressed) > len(block) - len(block) // MIN_SAVING:
        return block, pb.COMPRESSION_NONE
    return compressed, wish


def decompress(stored: bytes, compression: pb.Compression, block_bytes: int, error: type[TxnError]) -> bytes:
    """The decompressed block; never more than `block_bytes` or `MAX_BLOCK_BYTES`, whatever the data claim. Raises
    `error` unless they are a block of that size."""
    if block_bytes > MAX_BLOCK_BYTES:
        raise error(f"entry block: {block_bytes} bytes are promised, the limit is {MAX_BLOCK_BYTES}")
    if compression == pb.COMPRESSION_ZSTD:
        return _unzstd(stored, block_bytes, error)
    if compression == pb.COMPRESSION_LZ4:
        return _unlz4(stored, block_bytes, error)
    raise error(f"entry metadata: compression {compression} is unknown to this version of txnstore")


def _unzstd(stored: bytes, block_bytes: int, error: type[TxnError]) -> bytes:
    try:
        claimed = zstandard.frame_content_size(stored)
        if claimed != block_bytes:
            raise error(f"entry block: zstd frame of {claimed} bytes, the metadata promises {block_bytes}")
        return _codecs.decompressor.decompress(stored)
    except zstandard.ZstdError as cause:
        raise error(f"entry block: {cause}") from cause


def _unlz4(stored: bytes, block_bytes: int, error: type[TxnError]) -> bytes:
    try:
        block: bytes = lz4.block.decompress(stored, uncompressed_size=block_bytes)
        return block
    except lz4.block.LZ4BlockError as cause:
        raise error(f"entry block: lz4: {cause}") from cause
