"""The entry codec: round trips, metadata without the block, and every kind of damage named (DESIGN §7, "Entry")."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import lz4.block
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.txnwire import strategies
from tests.txnwire.test_block import as_messages
from txnwire.entry import (
    Columns,
    OutgoingMessage,
    Piece,
    _seal,
    decode_block,
    encode_entry,
    parse_metadata,
    piece_of,
    txn_of,
    verify,
)
from txnwire.errors import DataCorrupt, InvalidArgument, MessageTooLarge, TxnError
from txnwire.ids import TxnId, hash_key
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_ENTRY_BYTES, MAX_VALUE_BYTES

SHRINKING = [pb.COMPRESSION_ZSTD, pb.COMPRESSION_LZ4]
compressions = st.sampled_from([pb.COMPRESSION_NONE, *SHRINKING])
batches = st.lists(strategies.messages, min_size=1, max_size=10)


def entry_of(
    messages: Columns | list[OutgoingMessage],
    *,
    txn_id: TxnId | None = None,
    writer: int = 0,
    compression: pb.Compression = pb.COMPRESSION_NONE,
    level: int = 1,
) -> bytes:
    return encode_entry(
        messages,
        producer="producer-1",
        incarnation=2**63 + 1,
        sequence_id=41,
        publish_time_ms=1_700_000_000_000,
        txn_id=txn_id,
        writer=writer,
        compression=compression,
        level=level,
    )


ENTRY = entry_of([OutgoingMessage(b"value", b"key", {"a": "b"}, 5)], txn_id=TxnId(3, 1234), writer=7)
COMPRESSIBLE = [OutgoingMessage(b"the same again " * 100)]


@given(batches, st.none() | strategies.txn_ids, compressions)
def test_what_is_put_in_comes_out(
    batch: list[OutgoingMessage], txn_id: TxnId | None, compression: pb.Compression
) -> None:
    entry = entry_of(batch, txn_id=txn_id, compression=compression)
    verify(entry)
    metadata = parse_metadata(entry)
    assert txn_of(metadata) == txn_id
    assert metadata.count == len(batch)
    assert as_messages(decode_block(entry)) == [m._replace(properties=m.properties or None) for m in batch]


def test_metadata_carry_all_that_a_broker_needs() -> None:
    metadata = parse_metadata(ENTRY)
    assert (metadata.producer, metadata.incarnation, metadata.sequence_id) == ("producer-1", 2**63 + 1, 41)
    assert (txn_of(metadata), metadata.writer, metadata.count) == (TxnId(3, 1234), 7, 1)
    assert metadata.publish_time_ms == 1_700_000_000_000
    assert metadata.compression == pb.COMPRESSION_NONE


def test_metadata_are_read_without_the_block_or_its_checksum() -> None:
    assert parse_metadata(ENTRY[:-1] + b"?") == parse_metadata(ENTRY)


def test_the_hash_range_spans_the_keys() -> None:
    keys = [b"a", b"b", b"c", None]
    metadata = parse_metadata(entry_of([OutgoingMessage(b"", key) for key in keys]))
    hashes = [hash_key(key) for key in keys if key is not None]
    assert (metadata.hash_lo, metadata.hash_hi) == (min(hashes), max(hashes))


def test_the_hash_range_of_no_key_is_empty() -> None:
    metadata = parse_metadata(entry_of([OutgoingMessage(b"")]))
    assert metadata.hash_lo > metadata.hash_hi


@pytest.mark.parametrize("level", [1, 3, 9])
def test_zstd_shrinks_what_it_can(level: int) -> None:
    entry = entry_of(COMPRESSIBLE, compression=pb.COMPRESSION_ZSTD, level=level)
    assert parse_metadata(entry).compression == pb.COMPRESSION_ZSTD
    assert len(entry) < len(entry_of(COMPRESSIBLE)) / 5
    assert decode_block(entry).value(0) == COMPRESSIBLE[0].value


def test_lz4_shrinks_what_it_can() -> None:
    entry = entry_of(COMPRESSIBLE, compression=pb.COMPRESSION_LZ4)
    assert parse_metadata(entry).compression == pb.COMPRESSION_LZ4
    assert len(entry) < len(entry_of(COMPRESSIBLE)) / 5
    assert decode_block(entry).value(0) == COMPRESSIBLE[0].value


@pytest.mark.parametrize("compression", SHRINKING)
@pytest.mark.parametrize("value", [b"a" * 100, Random(1).randbytes(1000)])
def test_what_is_small_or_does_not_shrink_is_stored_as_it_is(value: bytes, compression: pb.Compression) -> None:
    message = [OutgoingMessage(value)]
    assert entry_of(message, compression=compression) == entry_of(message)


@pytest.mark.parametrize("level", [0, 10])
def test_a_compression_level_out_of_bounds_is_refused(level: int) -> None:
    with pytest.raises(InvalidArgument, match=f"level {level}"):
        entry_of(COMPRESSIBLE, compression=pb.COMPRESSION_ZSTD, level=level)


@given(batches)
def test_columns_make_the_same_entry_as_messages(batch: list[OutgoingMessage]) -> None:
    assert entry_of(Columns.of(batch)) == entry_of(batch)


def test_a_piece_of_a_larger_value_says_which() -> None:
    piece = Piece(chunk_id=41, number=2, pieces=3, total_bytes=2**33)
    entry = encode_entry(
        [OutgoingMessage(b"end")], producer="p", incarnation=1, sequence_id=43, publish_time_ms=0, piece=piece
    )
    assert piece_of(parse_metadata(entry)) == piece
    assert piece_of(parse_metadata(ENTRY)) is None


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least one message"):
        entry_of([])


def test_the_largest_value_fits_and_more_does_not() -> None:
    assert len(entry_of([OutgoingMessage(bytes(MAX_VALUE_BYTES), b"key")])) <= MAX_ENTRY_BYTES
    with pytest.raises(MessageTooLarge, match="a value is over"):
        entry_of([OutgoingMessage(bytes(MAX_VALUE_BYTES + 1))])
    with pytest.raises(MessageTooLarge, match="makes an entry of"):
        entry_of([OutgoingMessage(bytes(MAX_VALUE_BYTES // 2))] * 3)


def test_every_flipped_bit_is_found() -> None:
    for bit in range(8 * len(ENTRY)):
        damaged = bytearray(ENTRY)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DataCorrupt, match=r"entry (magic|version|flags|lengths|checksum)"):
            verify(bytes(damaged))
        with pytest.raises(DataCorrupt):
            decode_block(bytes(damaged))


@pytest.mark.parametrize("read", [verify, parse_metadata, decode_block])
def test_every_truncation_is_found_by_everyone_who_reads(read: Callable[[bytes], object]) -> None:
    for length in range(len(ENTRY)):
        with pytest.raises(DataCorrupt, match=r"entry (header|lengths)"):
            read(ENTRY[:length])


def test_bytes_behind_the_entry_are_found() -> None:
    with pytest.raises(DataCorrupt, match="entry lengths"):
        verify(ENTRY + b"\0")


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda e: b"", "entry header: 0 bytes"),
        (lambda e: b"XT" + e[2:], "entry magic"),
        (lambda e: e[:2] + b"\2" + e[3:], "entry version 2: this version of txnstore reads 1"),
        (lambda e: e[:3] + b"\1" + e[4:], "entry flags"),
        (lambda e: e[:8] + b"\xff\xff\xff\xff" + e[12:], "entry lengths"),
        (lambda e: e[:16] + b"\xff" + e[17:], "entry metadata"),
    ],
)
def test_damage_that_concerns_the_metadata_is_named(damage: Callable[[bytes], bytes], named: str) -> None:
    for error in (DataCorrupt, InvalidArgument):
        with pytest.raises(error, match=named):
            parse_metadata(damage(ENTRY), error=error)


@given(st.binary(max_size=100), compressions)
def test_a_checksummed_lie_is_found(block: bytes, compression: pb.Compression) -> None:
    """A broken producer can checksum nonsense: the block must still not be trusted."""
    metadata = pb.EntryMetadata(count=1, compression=compression, block_bytes=len(block))
    with pytest.raises(DataCorrupt, match="block"):
        decode_block(_seal(metadata.SerializeToString(), block))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"count": 0}, "counts no messages"),
        ({"count": 9}, "1 messages, the metadata counts 9"),
        ({"block_bytes": 7}, "the metadata promises 7"),
        ({"compression": 5}, "compression 5 is unknown"),
    ],
)
def test_metadata_that_contradict_the_block_are_found(changes: dict[str, int], named: str) -> None:
    for compression in (pb.COMPRESSION_NONE, pb.COMPRESSION_ZSTD):
        entry = entry_of(COMPRESSIBLE, compression=compression)
        metadata = parse_metadata(entry)
        block = entry[16 + metadata.ByteSize() :]
        for field, value in changes.items():
            setattr(metadata, field, value)
        with pytest.raises(DataCorrupt, match=named):
            decode_block(_seal(metadata.SerializeToString(), block))


def test_a_decompression_bomb_is_not_set_off() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    metadata = pb.EntryMetadata(count=1, compression=pb.COMPRESSION_ZSTD, block_bytes=1 << 28)
    with pytest.raises(DataCorrupt, match="268435456 bytes are promised"):
        decode_block(_seal(metadata.SerializeToString(), bomb))
    metadata.block_bytes = 100
    with pytest.raises(DataCorrupt, match="zstd frame of"):
        decode_block(_seal(metadata.SerializeToString(), bomb))


@pytest.mark.parametrize("promised", [99_999, 100_001])
def test_an_lz4_block_of_another_size_than_promised_is_found(promised: int) -> None:
    block = lz4.block.compress(bytes(100_000), store_size=False)
    metadata = pb.EntryMetadata(count=1, compression=pb.COMPRESSION_LZ4, block_bytes=promised)
    with pytest.raises(DataCorrupt, match="entry block: "):
        decode_block(_seal(metadata.SerializeToString(), block))


def test_metadata_that_are_not_protobuf_are_named() -> None:
    for error in (DataCorrupt, InvalidArgument):
        with pytest.raises(error, match="entry metadata"):
            parse_metadata(_seal(b"\xff\xff", b""), error=error)


def test_bits_that_are_no_transaction_id_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="never given out"):
        txn_of(pb.EntryMetadata(txnid_most_bits=5, txnid_least_bits=1))


@given(st.binary(max_size=80))
def test_random_bytes_give_a_named_error(data: bytes) -> None:
    for read in (verify, parse_metadata, decode_block):
        with pytest.raises(TxnError, match="entry"):
            read(data)
