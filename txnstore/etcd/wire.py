"""Encodes commits as etcd's protobuf bytes, by hand and once: joining a group means joining bytes (DESIGN §4).

A protobuf object per compare and put would cost several times the rest of a commit in Python.
`tests/txnstore/etcd/test_wire.py` reads the bytes back with the generated messages. Field numbers are those of
`rpc.proto`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txnstore.store import Commit, Delete, Read, Relation, Target


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_SMALL: Final = [_varint(number) for number in range(1 << 14)]
_SMALL_END: Final = len(_SMALL)


def varint(number: int) -> bytes:
    """A non-negative number below 2^64 (etcd's int64s: revisions, versions, lease ids)."""
    return _SMALL[number] if number < _SMALL_END else _varint(number)


def framed(tag: bytes, body: bytes) -> bytes:
    """A length-delimited field."""
    return tag + varint(len(body)) + body


# Compare: result (1), target (2) and the tag of key (3), by [relation][target]
_COMPARE_HEADS: Final = [
    [b"\x08" + _SMALL[relation] + b"\x10" + _SMALL[target] + b"\x1a" for target in range(max(Target) + 1)]
    for relation in Relation
]
# Compare: version (4), create_revision (5), mod_revision (6) or lease (8), by target
_NUMBER_TAGS: Final = {0: b"\x20", 1: b"\x28", 2: b"\x30", 4: b"\x40"}
_NUMBER_TAG: Final = [_NUMBER_TAGS.get(target, b"") for target in range(max(Target) + 1)]
_RANGE_END: Final = b"\x82\x04"  # Compare.range_end (64)


class CommitEncoder:
    """Serializes commits with every key under `prefix`. The hot path of all writes: written inline, without calls."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix

    def transaction(self, commit: Commit) -> bytes:
        """A `TxnRequest`: compare (1), success (2), failure (3)."""
        prefix, parts = self._prefix, []
        for compare in commit.compares:
            key, number, target = prefix + compare.key, compare.value, compare.target
            body = _COMPARE_HEADS[compare.relation][target] + varint(len(key)) + key + _NUMBER_TAG[target]
            body += _SMALL[number] if number < _SMALL_END else _varint(number)
            if compare.range_end is not None:
                body += framed(_RANGE_END, prefix + compare.range_end)
            size = len(body)
            parts.append(b"\x0a" + (_SMALL[size] if size < _SMALL_END else _varint(size)) + body)
        for put in commit.puts:  # `RequestOp.request_put` (2) with key (1), value (2), lease (3)
            key, value = prefix + put.key, put.value
            body = b"\x0a" + varint(len(key)) + key + b"\x12" + varint(len(value)) + value
            if put.lease:
                body += b"\x18" + varint(put.lease)
            framing = varint(len(body))
            parts.append(b"\x12" + varint(1 + len(framing) + len(body)) + b"\x12" + framing + body)
        if commit.deletes:
            parts += [framed(b"\x12", framed(b"\x1a", self._span(delete))) for delete in commit.deletes]
        if commit.else_reads:
            parts += [framed(b"\x1a", framed(b"\x0a", self._span(read))) for read in commit.else_reads]
        return b"".join(parts)

    def _span(self, span: Delete | Read) -> bytes:
        """`DeleteRangeRequest` and `RangeRequest` agree on key (1) and range_end (2)."""
        body = framed(b"\x0a", self._prefix + span.key)
        if span.range_end is not None:
            body += framed(b"\x12", self._prefix + span.range_end)
        return body


def group(transactions: Sequence[bytes]) -> bytes:
    """A `TxnRequest` of nested ones: success branch, each in a `RequestOp.request_txn` (4)."""
    parts: list[bytes] = []
    for transaction in transactions:
        size = varint(len(transaction))
        parts += (b"\x12", varint(1 + len(size) + len(transaction)), b"\x22", size, transaction)
    return b"".join(parts)
