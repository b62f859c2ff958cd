"""The entry codec: what one client batch looks like on the wire, in a ledger and at the consumer (DESIGN §7, "Entry").

    entry = header (16 bytes, little endian) · metadata (protobuf EntryMetadata) · block (see `txnwire.block`)

    header: magic "TX" | version u8 | flags u8 (0) | crc32c u32 | metadata_len u32 | block_len u32

The crc32c covers everything behind its own field; what stands before it must have one certain value. So every flipped
bit is found. A broker reads header and metadata only (`parse_metadata`); the same bytes go from client to ledger to
consumer, which decodes the block in bulk (`decode_block`).
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import Final

import google_crc32c
import zstandard
from google.protobuf.message import DecodeError

from txnwire import block as blocks
from txnwire.block import Block, OutgoingMessage
from txnwire.errors import DataCorrupt, InvalidArgument, MessageTooLarge, TxnError
from txnwire.ids import TxnId, hash_key
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import ENTRY_VERSION, MAX_BLOCK_BYTES, MAX_ENTRY_BYTES

__all__ = ["Block", "OutgoingMessage", "decode_block", "encode_entry", "parse_metadata", "txn_of", "verify"]

_HEADER: Final = struct.Struct("<2sBBIII")
_LENGTHS: Final = struct.Struct("<II")
_CRC_END: Final = 8
_MAGIC: Final = b"TX"
_COMPRESS_FROM_BYTES: Final = 512
"""Below this zstd's own frame and the time for it outweigh what it saves."""
_MIN_SAVING: Final = 16
"""Compression must save one part in so many, or every reader pays for nothing."""


def encode_entry(
    messages: Sequence[OutgoingMessage],
    *,
    producer: str,
    incarnation: int,
    sequence_id: int,
    publish_time_ms: int,
    txn_id: TxnId | None = None,
    writer: int = 0,
    compression: pb.Compression = pb.COMPRESSION_NONE,
    level: int = 1,
) -> bytes:
    """One entry of one or more messages, `sequence_id` being the first one's; the others follow without a gap.

    `compression` is a wish: a small block, or one that zstd (`level` 1 to 3) hardly shrinks, is stored as it is.
    `hash_lo`/`hash_hi` of the metadata span the keys' hashes; with no key at all lo is 1 and hi is 0.
    Raises `MessageTooLarge` past `MAX_VALUE_BYTES` a value or `MAX_ENTRY_BYTES` in all, `InvalidArgument` if empty.
    """
    if not messages:
        raise InvalidArgument("an entry holds at least one message: none were given")
    block = blocks.encode_block(messages)
    block_bytes = len(block)
    if compression == pb.COMPRESSION_ZSTD:
        block, compression = _compress(block, level)
    hash_lo, hash_hi = _hash_range(messages)
    metadata = pb.EntryMetadata(
        producer=producer,
        incarnation=incarnation,
        sequence_id=sequence_id,
        count=len(messages),
        txnid_most_bits=0 if txn_id is None else txn_id.most_bits,
        txnid_least_bits=0 if txn_id is None else txn_id.least_bits,
        writer=writer,
        publish_time_ms=publish_time_ms,
        compression=compression,
        hash_lo=hash_lo,
        hash_hi=hash_hi,
        block_bytes=block_bytes,
    ).SerializeToString()
    return _seal(metadata, block)


def _seal(metadata: bytes, block: bytes) -> bytes:
    body = b"".join((_LENGTHS.pack(len(metadata), len(block)), metadata, block))
    if len(body) + _CRC_END > MAX_ENTRY_BYTES:
        raise MessageTooLarge(f"a batch makes an entry of {len(body) + _CRC_END} bytes, the limit is {MAX_ENTRY_BYTES}")
    return b"TX%c\0%b%b" % (ENTRY_VERSION, google_crc32c.value(body).to_bytes(4, "little"), body)


def _hash_range(messages: Sequence[OutgoingMessage]) -> tuple[int, int]:
    hashes = [hash_key(message.key) for message in messages if message.key is not None]
    return (min(hashes), max(hashes)) if hashes else (1, 0)


class _Codecs(threading.local):
    """zstd contexts, which are dear to make and must not be used by two threads at once."""

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor()

    def compressor(self, level: int) -> zstandard.ZstdCompressor:
        found = self.compressors.get(level)
        if found is None:
            if level not in (1, 2, 3):
                raise InvalidArgument(f"compression level {level}: expected 1, 2 or 3")
            found = self.compressors[level] = zstandard.ZstdCompressor(level=level)
        return found


_codecs = _Codecs()


def _compress(block: bytes, level: int) -> tuple[bytes, pb.Compression]:
    if len(block) < _COMPRESS_FROM_BYTES:
        return block, pb.COMPRESSION_NONE
    compressed = _codecs.compressor(level).compress(block)
    if len(compressed) > len(block) - len(block) // _MIN_SAVING:
        return block, pb.COMPRESSION_NONE
    return compressed, pb.COMPRESSION_ZSTD


def _block_start(entry: bytes, error: type[TxnError]) -> int:
    """Check the header against the bytes there are; where the block begins."""
    if len(entry) < _HEADER.size:
        raise error(f"entry header: {len(entry)} bytes where {_HEADER.size} were expected")
    magic, version, flags, _, metadata_len, block_len = _HEADER.unpack_from(entry)
    start: int = _HEADER.size + metadata_len
    if magic == _MAGIC and version == ENTRY_VERSION and not flags and start + block_len == len(entry):
        return start
    if magic != _MAGIC:
        raise error(f"entry magic: {magic!r} where {_MAGIC!r} was expected")
    if version != ENTRY_VERSION:
        raise error(f"entry version {version}: this version of txnstore reads {ENTRY_VERSION}")
    if flags:
        raise error(f"entry flags: {flags:#04x} where none were expected")
    raise error(f"entry lengths: {len(entry)} bytes, its header promises {start + block_len}")


def parse_metadata(entry: bytes, *, error: type[TxnError] = DataCorrupt) -> pb.EntryMetadata:
    """The metadata, from header and metadata only; neither the checksum nor the block is looked at.

    `error` is what is raised, naming the part: `DataCorrupt` for what was stored, and `InvalidArgument` is to be passed
    by whoever reads what a client has just sent.
    """
    return _metadata(entry, _block_start(entry, error), error)


def _metadata(entry: bytes, start: int, error: type[TxnError]) -> pb.EntryMetadata:
    try:
        metadata = pb.EntryMetadata.FromString(entry[_HEADER.size : start])
    except DecodeError as cause:
        raise error(f"entry metadata: {cause}") from cause
    if metadata.count == 0:
        raise error("entry metadata: it counts no messages")
    return metadata


def txn_of(metadata: pb.EntryMetadata) -> TxnId | None:
    """The transaction the entry belongs to, or None. Raises `InvalidArgument` for bits that are no transaction id."""
    least = metadata.txnid_least_bits
    most = metadata.txnid_most_bits
    return TxnId.from_bits(most, least) if least or most else None


def verify(entry: bytes, *, error: type[TxnError] = DataCorrupt) -> None:
    """Check lengths and checksum; raises `error` naming the part that is wrong."""
    _block_start(entry, error)
    _check_crc(entry, error)


def _check_crc(entry: bytes, error: type[TxnError]) -> None:
    expected = int.from_bytes(entry[4:_CRC_END], "little")
    found = google_crc32c.value(entry[_CRC_END:])
    if found != expected:
        raise error(f"entry checksum: crc32c {found:#010x} where the header says {expected:#010x}")


def decode_block(entry: bytes, *, error: type[TxnError] = DataCorrupt) -> Block:
    """Verify the entry, decompress its block and check that it is whole; nothing about the result can fail later."""
    start = _block_start(entry, error)
    _check_crc(entry, error)
    metadata = _metadata(entry, start, error)
    block = blocks.decode_block(_decompressed(entry[start:], metadata, error), error=error)
    if len(block) != metadata.count:
        raise error(f"entry block: {len(block)} messages, the metadata counts {metadata.count}")
    return block


def _decompressed(block: bytes, metadata: pb.EntryMetadata, error: type[TxnError]) -> bytes:
    if metadata.compression == pb.COMPRESSION_ZSTD:
        block = _unzstd(block, metadata.block_bytes, error)
    elif metadata.compression != pb.COMPRESSION_NONE:
        raise error(f"entry metadata: compression {metadata.compression} is unknown to this version of txnstore")
    if len(block) != metadata.block_bytes:
        raise error(f"entry block: {len(block)} bytes, the metadata promises {metadata.block_bytes}")
    return block


def _unzstd(block: bytes, block_bytes: int, error: type[TxnError]) -> bytes:
    """Decompress; never more than was promised, nor than `MAX_BLOCK_BYTES`, whatever the frame itself claims."""
    try:
        claimed = zstandard.frame_content_size(block)
        if claimed != block_bytes or block_bytes > MAX_BLOCK_BYTES:
            raise error(f"entry block: zstd frame of {claimed} bytes, the metadata promises {block_bytes}")
        return _codecs.decompressor.decompress(block)
    except zstandard.ZstdError as cause:
        raise error(f"entry block: {cause}") from cause
