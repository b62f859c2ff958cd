"""The entry codec: the format of one client batch on the wire, in a ledger and at the consumer (DESIGN §7, "Entry").

    entry = header (16 bytes, little endian) · metadata (protobuf EntryMetadata) · block (see `txnwire.block`)

    header: magic "TX" | version u8 | flags u8 (0) | crc32c u32 | metadata_len u32 | block_len u32

The crc32c covers everything after its own field; the bytes before it must have fixed values. So every flipped bit is
found. A broker reads header and metadata only (`parse_metadata`); the same bytes go from client to ledger to consumer,
which decodes the block in bulk (`decode_block`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import google_crc32c
from google.protobuf.message import DecodeError

from txnwire import block as blocks
from txnwire import compression as compression_codecs
from txnwire.block import Block, Columns, OutgoingMessage
from txnwire.errors import DataCorrupt, InvalidArgument, MessageTooLarge, TxnError
from txnwire.ids import TxnId, hash_keys
from txnwire.numbers import Numbers, steps_of
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import ENTRY_VERSION, MAX_ENTRY_BYTES, MAX_ENTRY_MESSAGES

__all__ = [
    "Block",
    "Columns",
    "OutgoingMessage",
    "Piece",
    "decode_block",
    "encode_entry",
    "parse_metadata",
    "piece_of",
    "txn_of",
    "verify",
]

_HEADER: Final = struct.Struct("<2sBBIII")
_LENGTHS: Final = struct.Struct("<II")
_CRC_END: Final = 8
_MAGIC: Final = b"TX"


class Piece(NamedTuple):
    """Marks an entry's only message as piece `number` (from 0) of `pieces` of a value of `total_bytes`. `chunk_id`, the
    sequence id of the first piece, names the value among its producer's."""

    chunk_id: int
    number: int
    pieces: int
    total_bytes: int


def encode_entry(
    messages: Columns | Sequence[OutgoingMessage],
    *,
    producer: str,
    incarnation: int,
    sequence_id: int,
    publish_time_ms: int,
    txn_id: TxnId | None = None,
    writer: int = 0,
    compression: pb.Compression = pb.COMPRESSION_NONE,
    level: int = 1,
    piece: Piece | None = None,
    numbers: Numbers | None = None,
    deliver_at_ms: int = 0,
) -> bytes:
    """Encode one entry of one or more messages. `sequence_id` is the first message's; the others follow without a gap.
    `numbers`: the ids that a numbered producer gives them, one a message. `deliver_at_ms`: when queues deliver them
    first, in ms since 1970; 0: at once.

    `compression` is a wish: see `txnwire.compression.compress`. `hash_lo`/`hash_hi` of the metadata span the keys'
    hashes; without any key lo is 1 and hi is 0.
    Raises `MessageTooLarge` past `MAX_VALUE_BYTES` per value, `MAX_ENTRY_BYTES` in total or `MAX_ENTRY_MESSAGES`,
    `InvalidArgument` if empty.
    """
    if not messages:
        raise InvalidArgument("an entry holds at least one message: none were given")
    columns = messages if isinstance(messages, Columns) else Columns.of(messages)
    if len(columns.values) > MAX_ENTRY_MESSAGES:
        raise MessageTooLarge(f"a batch of {len(columns.values)} messages: at most {MAX_ENTRY_MESSAGES} make an entry")
    block = blocks.encode_block(columns)
    block_bytes = len(block)
    block, compression = compression_codecs.compress(block, compression, level)
    hash_lo, hash_hi = _hash_range(columns.keys)
    metadata = pb.EntryMetadata(
        producer=producer,
        incarnation=incarnation,
        sequence_id=sequence_id,
        count=len(columns.values),
        txnid_most_bits=0 if txn_id is None else txn_id.most_bits,
        txnid_least_bits=0 if txn_id is None else txn_id.least_bits,
        writer=writer,
        publish_time_ms=publish_time_ms,
        compression=compression,
        hash_lo=hash_lo,
        hash_hi=hash_hi,
        block_bytes=block_bytes,
    )
    if deliver_at_ms:
        metadata.deliver_at_ms = deliver_at_ms
    if piece is not None:
        metadata.chunk_id, metadata.chunk_index, metadata.chunk_count, metadata.chunk_total = piece
    if numbers is not None:
        metadata.name_epoch, metadata.all_below = numbers.name_epoch, numbers.all_below
        metadata.id_steps.extend(steps_of(numbers.ids))
    return _seal(metadata.SerializeToString(), block)


def _seal(metadata: bytes, block: bytes) -> bytes:
    body = b"".join((_LENGTHS.pack(len(metadata), len(block)), metadata, block))
    if len(body) + _CRC_END > MAX_ENTRY_BYTES:
        raise MessageTooLarge(f"a batch makes an entry of {len(body) + _CRC_END} bytes, the limit is {MAX_ENTRY_BYTES}")
    return b"TX%c\0%b%b" % (ENTRY_VERSION, google_crc32c.value(body).to_bytes(4, "little"), body)


def _hash_range(keys: Sequence[bytes | None] | None) -> tuple[int, int]:
    hashes = hash_keys([key for key in keys if key is not None]) if keys is not None else []
    return (min(hashes), max(hashes)) if hashes else (1, 0)


def _block_start(entry: bytes, error: type[TxnError]) -> int:
    """Check the header against the entry's length; returns where the block begins."""
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
    """The metadata; it reads neither the checksum nor the block.

    Raises `error`, which names the part: `DataCorrupt` for stored entries; a reader of a client's new entry passes
    `InvalidArgument`.
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
    """The transaction that the entry belongs to, or None. Raises `InvalidArgument` for bits that are no transaction
    id."""
    least = metadata.txnid_least_bits
    most = metadata.txnid_most_bits
    return TxnId.from_bits(most, least) if least or most else None


def piece_of(metadata: pb.EntryMetadata) -> Piece | None:
    """The piece of a large value that the entry holds; None for an ordinary entry."""
    if not metadata.chunk_count:
        return None
    return Piece(metadata.chunk_id, metadata.chunk_index, metadata.chunk_count, metadata.chunk_total)


def verify(entry: bytes, *, error: type[TxnError] = DataCorrupt) -> None:
    """Check lengths and checksum; raises `error` that names the wrong part."""
    _block_start(entry, error)
    _check_crc(entry, error)


def _check_crc(entry: bytes, error: type[TxnError]) -> None:
    expected = int.from_bytes(entry[4:_CRC_END], "little")
    found = google_crc32c.value(entry[_CRC_END:])
    if found != expected:
        raise error(f"entry checksum: crc32c {found:#010x} where the header says {expected:#010x}")


def decode_block(entry: bytes, *, error: type[TxnError] = DataCorrupt) -> Block:
    """Verify the entry, decompress its block and check it whole; no access to the result can fail later."""
    start = _block_start(entry, error)
    _check_crc(entry, error)
    metadata = _metadata(entry, start, error)
    block = blocks.decode_block(_decompressed(entry[start:], metadata, error), error=error)
    if len(block) != metadata.count:
        raise error(f"entry block: {len(block)} messages, the metadata counts {metadata.count}")
    return block


def _decompressed(block: bytes, metadata: pb.EntryMetadata, error: type[TxnError]) -> bytes:
    if metadata.compression != pb.COMPRESSION_NONE:
        block = compression_codecs.decompress(block, metadata.compression, metadata.block_bytes, error)
    if len(block) != metadata.block_bytes:
        raise error(f"entry block: {len(block)} bytes, the metadata promises {metadata.block_bytes}")
    return block
