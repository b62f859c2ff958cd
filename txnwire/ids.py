"""Transaction ids, positions, message ids and the routing hash.

Source: DESIGN §3; the two 64-bit halves of a TxnID on the wire are PIP-31's "TxnID".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import xxhash

from txnwire.errors import InvalidArgument
from txnwire.names import SegmentName

MAX_TCID = 0xFFFF
MAX_COUNTER = 0xFFFF_FFFF_FFFF_FFFF
HASH_SPACE = 0x1_0000

_TXN_ID = re.compile(r"([0-9a-f]{4})-([0-9a-f]{16})\Z")
_POSITION = re.compile(r"(0|[1-9][0-9]{0,17}):(-1|0|[1-9][0-9]{0,17})\Z")
_INDEX = re.compile(r"(0|[1-9][0-9]{0,8})\Z")


class TxnId(NamedTuple):
    """128 bits: the coordinator id in the high 16, a counter from 1 in the low 64. Text: `0003-00000000000004d2`.

    Tuples compare as their etcd keys do, so key order is creation order within one coordinator.
    """

    tcid: int
    counter: int

    def __str__(self) -> str:
        return f"{self.tcid:04x}-{self.counter:016x}"

    @property
    def most_bits(self) -> int:
        return self.tcid << 48

    @property
    def least_bits(self) -> int:
        return self.counter

    @staticmethod
    def parse(text: str) -> TxnId:
        """Parse `0003-00000000000004d2`; raises `InvalidArgument` for anything else, counter 0 included."""
        match = _TXN_ID.match(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidArgument(f"transaction id {text!r}: expected tttt-cccccccccccccccc in lower-case hex digits")
        counter = int(match[2], 16)
        if counter == 0:
            raise InvalidArgument(f"transaction id {text!r} was never given out: counters start at 1")
        return TxnId(int(match[1], 16), counter)

    @staticmethod
    def from_bits(most: int, least: int) -> TxnId:
        """From the wire's two halves; the 48 bits between TCID and counter must be zero."""
        if most & 0xFFFF_FFFF_FFFF or least == 0:
            raise InvalidArgument(f"transaction id bits {most:#x}, {least:#x} were never given out")
        return TxnId(most >> 48, least)


class Position(NamedTuple):
    """`ledger_id:entry_id` in one segment; entry id -1 is the place before the first entry of a ledger."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"

    @staticmethod
    def parse(text: str) -> Position:
        """Parse `7:42`; raises `InvalidArgument`."""
        match = _POSITION.match(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidArgument(f"position {text!r}: expected <ledger id>:<entry id>")
        return Position(int(match[1]), int(match[2]))


EARLIEST = Position(0, -1)
"""The position before every entry of any segment: ledger ids start at 1."""


class MessageId(NamedTuple):
    """One message: its segment (path form), the entry's position and the index within the entry."""

    segment: str
    position: Position
    index: int  # type: ignore[assignment]  # the field's usual name; it hides the unused tuple.index

    def __str__(self) -> str:
        return f"{self.segment}@{self.position}:{self.index}"

    @staticmethod
    def parse(text: str) -> MessageId:
        """Parse `tenant/namespace/name/0000-ffff-0@7:42:0`; raises `InvalidArgument` that names the wrong part."""
        segment, at, rest = text.rpartition("@") if isinstance(text, str) else ("", "", "")
        position, _, index = rest.rpartition(":")
        if not at or _INDEX.match(index) is None:
            raise InvalidArgument(f"message id {text!r}: expected <segment>@<ledger>:<entry>:<index>")
        SegmentName.from_path(segment)
        return MessageId(segment, Position.parse(position), int(index))


def hash_key(key: bytes) -> int:
    """The 16-bit routing hash of a message key: `xxh3_64(key) & 0xffff`."""
    return xxhash.xxh3_64_intdigest(key) & 0xFFFF


def hash_keys(keys: Iterable[bytes]) -> list[int]:
    """`hash_key` of each, in bulk."""
    return [digest & 0xFFFF for digest in map(xxhash.xxh3_64_intdigest, keys)]
