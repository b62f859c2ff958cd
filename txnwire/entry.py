"""The entry codec: what one client batch looks like on the wire, in a ledger and at the consumer (DESIGN §7, "Entry").

    entry = header (16 bytes, little endian) · metadata (protobuf EntryMetadata) · block

    header: magic "TX" | version u8 | flags u8 (0) | crc32c u32 | metadata_len u32 | block_len u32

The crc32c covers everything behind its own field. A broker reads header and metadata only (`parse_metadata`); the same
bytes go from client to ledger to consumer, which decodes the block in bulk (`decode_block`, see `txnwire.block`).
"""

from __future__ import annotations

from collections.abc import Sequence

from txnwire.block import Block, OutgoingMessage
from txnwire.errors import DataCorrupt, TxnError
from txnwire.ids import TxnId
from txnwire.proto import txn_pb2 as pb

__all__ = ["Block", "OutgoingMessage", "decode_block", "encode_entry", "parse_metadata", "txn_of", "verify"]


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

    `compression` is a wish: a small block, or one that zstd (`level` 1 to 3) does not shrink, is stored as it is.
    `hash_lo`/`hash_hi` of the metadata span the keys' hashes; with no key at all lo is 1 and hi is 0.
    Raises `MessageTooLarge` past `MAX_VALUE_BYTES` a value or `MAX_ENTRY_BYTES` in all, `InvalidArgument` if empty.
    """
    raise NotImplementedError


def parse_metadata(entry: bytes, *, error: type[TxnError] = DataCorrupt) -> pb.EntryMetadata:
    """The metadata, from header and metadata only; neither the checksum nor the block is looked at.

    `error` is what is raised, naming the part: `DataCorrupt` for what was stored, and `InvalidArgument` is to be passed
    by whoever reads what a client has just sent.
    """
    raise NotImplementedError


def txn_of(metadata: pb.EntryMetadata) -> TxnId | None:
    """The transaction the entry belongs to, or None. Raises `InvalidArgument` for bits that are no transaction id."""
    raise NotImplementedError


def verify(entry: bytes, *, error: type[TxnError] = DataCorrupt) -> None:
    """Check lengths and checksum; raises `error` naming the part that is wrong."""
    raise NotImplementedError


def decode_block(entry: bytes, *, error: type[TxnError] = DataCorrupt) -> Block:
    """Verify the entry, decompress its block and check that it is whole; the result can be read without surprises."""
    raise NotImplementedError
