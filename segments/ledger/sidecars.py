"""Encodes a closed ledger's aborted records as a file beside it instead of in etcd (DESIGN §6, last lines). Pure.

The sidecar of ledger L holds the aborted records whose highest position lies in L, or below it and in no earlier
sidecar. Such a transaction may have entries in earlier ledgers too; those are trimmed before L, so the sidecars of the
kept ledgers cover all kept entries.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from txnwire.errors import DataCorrupt
from txnwire.ids import Position, TxnId
from watchers.visibility import AbortedKey


class _Sidecar(msgspec.Struct, frozen=True, array_like=True):
    """`aborted`: coordinator id, counter, writer (None: all), ledger id and entry id of the highest position."""

    v: int
    ledger_id: int
    aborted: list[tuple[int, int, int | None, int, int]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Sidecar).decode


def encode_sidecar(ledger_id: int, aborted: Mapping[AbortedKey, Position]) -> bytes:
    rows = [
        (txn_id.tcid, txn_id.counter, writer, position.ledger_id, position.entry_id)
        for (txn_id, writer), position in aborted.items()
    ]
    return _encode(_Sidecar(1, ledger_id, rows))


def decode_sidecar(data: bytes, ledger_id: int, where: str) -> dict[AbortedKey, Position]:
    """Raises `DataCorrupt` that names `where`."""
    try:
        found = _decode(data)
    except msgspec.DecodeError as error:
        raise DataCorrupt(f"{where}: not a sidecar: {error}") from error
    if found.v != 1 or found.ledger_id != ledger_id:
        raise DataCorrupt(
            f"{where}: version {found.v} of ledger {found.ledger_id}, expected version 1 of ledger {ledger_id}"
        )
    return {
        (TxnId(tcid, counter), writer): Position(ledger, entry)
        for tcid, counter, writer, ledger, entry in found.aborted
    }
