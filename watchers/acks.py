"""The positions of an ack, with indexes within an entry as a bitmap; conversion to and from the wire and op records.
Pure.

A bitmap is an int, least significant bit = index 0. `WHOLE` (all ones) stands for the whole entry whatever its count; a
bitmap that names every message of its entry always becomes `WHOLE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from txnstore import keys
from txnstore.records import Op
from txnwire.errors import DataCorrupt, InvalidArgument
from txnwire.ids import Position, TxnId
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_ENTRY_MESSAGES
from watchers.outcomes import NO_WRITER

WHOLE: Final = -1

ACK: Final = "ack"


class AckPosition(NamedTuple):
    """`messages`: in the entry (0: unknown, whole entries only). `indexes`: bitmap of the acked ones, or `WHOLE`."""

    position: Position
    messages: int
    indexes: int = WHOLE


Block = tuple[int, int]

BLOCK_ENTRIES: Final = 4096
"""Entries whose acks share one bitmap."""


def block_of(position: Position) -> Block:
    """(ledger, number) of the block that holds an ack of `position`."""
    return position.ledger_id, position.entry_id // BLOCK_ENTRIES


def bit_of(position: Position) -> int:
    """The bit of `position` in its block's bitmap."""
    return 1 << position.entry_id % BLOCK_ENTRIES


def lowest(bits: int, count: int) -> int:
    """The lowest `count` of the set bits, by halving."""
    least, most = 0, bits.bit_length()
    while least < most:
        middle = (least + most) // 2
        if (bits & ((1 << middle) - 1)).bit_count() < count:
            least = middle + 1
        else:
            most = middle
    return bits & ((1 << least) - 1)


def trailing_ones(bits: int) -> int:
    """How many of a bitmap's first bits are set."""
    return (~bits & (bits + 1)).bit_length() - 1


def bitmap_of(text: str) -> int:
    """A bitmap as records hold it, in hex."""
    return int.from_bytes(bytes.fromhex(text), "little")


class LeftOut(NamedTuple):
    """The entries that a cumulative ack leaves out. `first`: the first of them. `whole`: those left out completely,
    as bitmaps by block (dozens for a hundred thousand entries). `parts`: entries left out in part, in order."""

    first: Position
    whole: Mapping[Block, int]
    parts: Sequence[AckPosition]


class AckOp(NamedTuple):
    """One ack op record, read back: what recovery restores into `PendingAcks`. `consumer`: who acked, if known."""

    key: bytes
    txn_id: TxnId
    writer: int
    cumulative: bool
    positions: tuple[AckPosition, ...]
    consumer: str | None = None


def names_all(indexes: int, messages: int) -> bool:
    """Whether a bitmap names each of `messages` messages. ▲ Its cost depends on the bitmap only: a mask built from the
    count that a peer claims could take all memory and time."""
    return indexes.bit_length() == messages == indexes.bit_count()


def ack_position(position: Position, messages: int, indexes: int) -> AckPosition:
    """An `AckPosition` with normalized `indexes`. Raises `InvalidArgument` for indexes outside the entry, or a number
    of messages that no entry has."""
    if position.ledger_id < 0 or position.entry_id < 0:
        raise InvalidArgument(f"ack of {position}: there is no entry at that position")
    if not 0 <= messages <= MAX_ENTRY_MESSAGES:
        # ▲ Checked before anything is computed from it.
        raise InvalidArgument(f"ack of {position}: {messages} messages, an entry has at most {MAX_ENTRY_MESSAGES}")
    if indexes == WHOLE or indexes == 0:
        return AckPosition(position, messages)
    if indexes < 0 or indexes.bit_length() > messages:
        raise InvalidArgument(f"ack of {position}: not all of its indexes are below its {messages} messages")
    return AckPosition(position, messages, WHOLE if names_all(indexes, messages) else indexes)


def from_wire(positions: Iterable[pb.AckPosition]) -> tuple[AckPosition, ...]:
    """Raises `InvalidArgument` for indexes outside the entry or an impossible position."""
    return tuple(_from_wire(one) for one in positions)


def _from_wire(one: pb.AckPosition) -> AckPosition:
    position = Position(one.ledger_id, one.entry_id)
    if len(one.indexes) > MAX_ENTRY_MESSAGES // 8 + 1:
        raise InvalidArgument(f"ack of {position}: a bitmap of {len(one.indexes)} bytes names more than an entry has")
    return ack_position(position, one.count, int.from_bytes(one.indexes, "little"))


def bitmap_bytes(indexes: int) -> bytes:
    """LSB first, as on the wire (`DeliveredEntry.skip`, `AckPosition.indexes`); `WHOLE` and 0 become b""."""
    return b"" if indexes <= 0 else indexes.to_bytes((indexes.bit_length() + 7) // 8, "little")


def to_op_positions(positions: Iterable[AckPosition]) -> list[tuple[int, int, int, str]]:
    """The form stored in `records.Op.positions`."""
    return [(*one.position, one.messages, bitmap_bytes(one.indexes).hex()) for one in positions]


MAX_OP_BYTES: Final = 900_000
"""Largest size of the positions in one ack's record: the record and its keys must fit one commit."""

_POSITION_BYTES: Final = 56
"""A position's numbers and the JSON around them."""


def check_op_size(positions: Iterable[AckPosition]) -> None:
    """Raises `InvalidArgument` if one op record could not hold the ack. ▲ Call it before anything is reserved."""
    size = sum(
        _POSITION_BYTES + (0 if one.indexes == WHOLE else one.indexes.bit_length() // 4 + 2) for one in positions
    )
    if size > MAX_OP_BYTES:
        raise InvalidArgument(
            f"an ack in a transaction whose positions and bitmaps take {size} bytes: at most {MAX_OP_BYTES} fit one "
            "record, send several"
        )


def ack_op_record(
    segment: str,
    subscription: str,
    positions: Sequence[AckPosition],
    *,
    cumulative: bool,
    writer: int,
    consumer: str | None = None,
) -> Op:
    """The op record of an ack; `messages` counts the messages it names (a whole entry of unknown count as one)."""
    return Op(
        v=1,
        kind=ACK,
        segment=segment,
        subscription=subscription,
        consumer=consumer,
        cumulative=cumulative,
        positions=to_op_positions(positions),
        writer=None if writer == NO_WRITER else f"{writer:016x}",
        messages=sum(one.messages or 1 if one.indexes == WHOLE else one.indexes.bit_count() for one in positions),
    )


def from_op(key: bytes, op: Op) -> AckOp:
    """Raises `DataCorrupt` naming the key if the record is not that of an ack."""
    if op.kind != ACK or not op.positions:
        raise DataCorrupt(f"{key.decode(errors='replace')}: expected an ack op with positions, found kind {op.kind!r}")
    try:
        positions = tuple(
            ack_position(
                Position(ledger_id, entry_id),
                min(messages, MAX_ENTRY_MESSAGES),  # the record may be older than the bound
                int.from_bytes(bytes.fromhex(text), "little"),
            )
            for ledger_id, entry_id, messages, text in op.positions
        )
        writer = NO_WRITER if op.writer is None else int(op.writer, 16)
    except ValueError as error:
        raise DataCorrupt(f"{key.decode(errors='replace')}: not an ack op record: {error}") from error
    return AckOp(key, keys.op_parts(key)[0], writer, op.cumulative, positions, op.consumer)
