"""What an ack names: positions, and indexes within an entry as a bitmap; to and from the wire and op records. Pure.

A bitmap is an int, least significant bit = index 0. `WHOLE` (all ones) stands for the whole entry whatever its count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from txnstore.records import Op
from txnwire.ids import Position, TxnId
from txnwire.proto import txn_pb2 as pb

WHOLE: Final = -1


class AckPosition(NamedTuple):
    """`messages`: in the entry (0: unknown, whole entries only). `indexes`: bitmap of the acked ones, or `WHOLE`."""

    position: Position
    messages: int
    indexes: int = WHOLE


class AckOp(NamedTuple):
    """One ack op record, read back: what recovery restores into `PendingAcks`."""

    key: bytes
    txn_id: TxnId
    writer: int
    cumulative: bool
    positions: tuple[AckPosition, ...]


def from_wire(positions: Iterable[pb.AckPosition]) -> tuple[AckPosition, ...]:
    """Raises `InvalidArgument` for indexes outside the entry or a position that cannot be."""
    raise NotImplementedError


def to_op_positions(positions: Iterable[AckPosition]) -> list[tuple[int, int, int, str]]:
    """For `records.Op.positions`."""
    raise NotImplementedError


def ack_op_record(
    segment: str, subscription: str, positions: Sequence[AckPosition], *, cumulative: bool, writer: int
) -> Op:
    """The op record of an ack; `messages` counts what it acks (a whole entry of unknown count as one)."""
    raise NotImplementedError


def from_op(key: bytes, op: Op) -> AckOp:
    """Raises `DataCorrupt` naming the key where the record is not that of an ack."""
    raise NotImplementedError


def bitmap_bytes(indexes: int, count: int) -> bytes:
    """LSB first, as on the wire (`DeliveredEntry.skip`, `AckPosition.indexes`); `WHOLE` and 0 become b""."""
    raise NotImplementedError
