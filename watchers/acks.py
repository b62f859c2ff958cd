"""What an ack names: positions, and indexes within an entry as a bitmap; to and from the wire and op records. Pure.

A bitmap is an int, least significant bit = index 0. `WHOLE` (all ones) stands for the whole entry whatever its count;
a bitmap that names every message of its entry is always turned into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from txnstore import keys
from txnstore.records import Op
from txnwire.errors import DataCorrupt, InvalidArgument
from txnwire.ids import Position, TxnId
from txnwire.proto import txn_pb2 as pb
from watchers.outcomes import NO_WRITER

WHOLE: Final = -1

ACK: Final = "ack"


class AckPosition(NamedTuple):
    """`messages`: in the entry (0: unknown, whole entries only). `indexes`: bitmap of the acked ones, or `WHOLE`."""

    position: Position
    messages: int
    indexes: int = WHOLE


class AckOp(NamedTuple):
    """One ack op record, read back: what recovery restores into `PendingAcks`. `consumer`: who acked, if known."""

    key: bytes
    txn_id: TxnId
    writer: int
    cumulative: bool
    positions: tuple[AckPosition, ...]
    consumer: str | None = None


def ack_position(position: Position, messages: int, indexes: int) -> AckPosition:
    """With `indexes` brought into its one form. Raises `InvalidArgument` for indexes outside the entry."""
    if position.ledger_id < 0 or position.entry_id < 0:
        raise InvalidArgument(f"ack of {position}: there is no entry at that position")
    if indexes == WHOLE or indexes == 0:
        return AckPosition(position, messages)
    if indexes < 0 or indexes >> messages:
        raise InvalidArgument(f"ack of {position}: indexes {indexes:#x} are not all below its {messages} messages")
    return AckPosition(position, messages, WHOLE if indexes == (1 << messages) - 1 else indexes)


def from_wire(positions: Iterable[pb.AckPosition]) -> tuple[AckPosition, ...]:
    """Raises `InvalidArgument` for indexes outside the entry or a position that cannot be."""
    return tuple(
        ack_position(Position(one.ledger_id, one.entry_id), one.count, int.from_bytes(one.indexes, "little"))
        for one in positions
    )


def bitmap_bytes(indexes: int) -> bytes:
    """LSB first, as on the wire (`DeliveredEntry.skip`, `AckPosition.indexes`); `WHOLE` and 0 become b""."""
    return b"" if indexes <= 0 else indexes.to_bytes((indexes.bit_length() + 7) // 8, "little")


def to_op_positions(positions: Iterable[AckPosition]) -> list[tuple[int, int, int, str]]:
    """For `records.Op.positions`."""
    return [(*one.position, one.messages, bitmap_bytes(one.indexes).hex()) for one in positions]


def ack_op_record(
    segment: str,
    subscription: str,
    positions: Sequence[AckPosition],
    *,
    cumulative: bool,
    writer: int,
    consumer: str | None = None,
) -> Op:
    """The op record of an ack; `messages` counts what it names (a whole entry of unknown count as one)."""
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
    """Raises `DataCorrupt` naming the key where the record is not that of an ack."""
    if op.kind != ACK or not op.positions:
        raise DataCorrupt(f"{key.decode(errors='replace')}: expected an ack op with positions, found kind {op.kind!r}")
    try:
        positions = tuple(
            ack_position(Position(ledger_id, entry_id), messages, int.from_bytes(bytes.fromhex(text), "little"))
            for ledger_id, entry_id, messages, text in op.positions
        )
        writer = NO_WRITER if op.writer is None else int(op.writer, 16)
    except ValueError as error:
        raise DataCorrupt(f"{key.decode(errors='replace')}: not an ack op record: {error}") from error
    return AckOp(key, keys.op_parts(key)[0], writer, op.cumulative, positions, op.consumer)
