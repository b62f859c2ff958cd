"""The footer beside a ledger: a snapshot of the dedup state of producers, up to some entry of that ledger."""

from __future__ import annotations

import msgspec

from txnstore.records import LedgerInfo
from txnwire.errors import DataCorrupt


class DedupFooter(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The footer's payload: `dedup` is the cumulative snapshot of everything up to entry `entries` - 1 of the ledger.

    Beside an open ledger it is a checkpoint; beside a closed one `entries` is its length."""

    v: int = 1
    ledger_id: int
    entries: int
    dedup: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(DedupFooter).decode


def encode_footer(ledger_id: int, entries: int, dedup: bytes) -> bytes:
    return _encode(DedupFooter(ledger_id=ledger_id, entries=entries, dedup=dedup))


def decode_footer(raw: bytes, info: LedgerInfo, segment: str) -> DedupFooter:
    """The footer beside the listed ledger `info`. Raises `DataCorrupt` if it is damaged or covers something else."""
    where = f"footer of ledger {info.ledger_id} of {segment}"
    try:
        footer = _decode(raw)
    except msgspec.DecodeError as error:
        raise DataCorrupt(f"{where}: {error}") from error
    if footer.v != 1 or footer.ledger_id != info.ledger_id or not 0 <= footer.entries <= (info.closed_length or 0):
        raise DataCorrupt(
            f"{where}: version {footer.v} over {footer.entries} entries of ledger {footer.ledger_id}, expected "
            f"version 1 over at most {info.closed_length} entries of ledger {info.ledger_id}"
        )
    return footer


def covered_by(footer: bytes, where: str) -> int:
    """How many entries of its ledger a footer covers. Raises `DataCorrupt`."""
    try:
        return _decode(footer).entries
    except msgspec.DecodeError as error:
        raise DataCorrupt(f"{where}: {error}") from error
