"""The complete list of transactions that a repair has aborted, as a file beside its report.

A JSON object a line. `txn`; `because`: `open at the backup`, `begun after the backup`, or `lost a part` (`why` says
more); `was_committed`: true if it is known to have been committed, null if nothing tells; what its header told, if etcd
had it: `owner`, `name`, `begun`, `committed`; `messages` that its segments still hold: segment → number.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from segments.ledger.ledger_files import replace_file
from txnctl.checking.picture import Picture
from txnstore.records import ABORTED, COMMITTED, OPEN, REASON_LOST, Header
from txnwire.errors import DataCorrupt
from txnwire.ids import TxnId

OPEN_AT_BACKUP: Final = "open at the backup"
BEGUN_AFTER: Final = "begun after the backup"
LOST_PART: Final = "lost a part"


class Dropped(msgspec.Struct, kw_only=True):
    txn: str
    because: str
    why: str | None = None
    was_committed: bool | None = None
    owner: str | None = None
    name: str | None = None
    begun: str | None = None
    committed: str | None = None
    messages: dict[str, int] = {}


class DroppedList:
    """`path`: of a repair's own file; an earlier repair's stays.

    ▲ It is written before the transactions are aborted: a repeated repair finds their headers aborted, and only the
    list of the interrupted repair tells which of them were committed or open before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._all: dict[TxnId, Dropped] = {}
        self._counted_before: dict[TxnId, dict[str, int]] = {}
        """Messages by the list of an interrupted repair. It may have dropped them by now."""
        self._committed_before: dict[TxnId, None] = {}
        """Known by the list of an interrupted repair to have been committed. What told that may be gone by now."""

    def __len__(self) -> int:
        return len(self._all)

    def add(self, txn_id: TxnId, because: str, *, header: Header | None = None, why: str | None = None) -> None:
        """`header`: as etcd had it before the repair."""
        found = Dropped(txn=str(txn_id), because=because, why=why)
        if txn_id in self._committed_before:
            found.was_committed = True
        if header is not None:
            found.owner, found.name, found.begun = header.owner, header.name, _time(header.created_ms)
            if header.state == COMMITTED:
                found.was_committed, found.committed = True, _time(header.finalized_ms)
        self._all[txn_id] = found

    def go_on(self, interrupted: Iterable[int], picture: Picture) -> None:
        """Takes over what interrupted repairs of these numbers have listed, as far as it was aborted. Raises `OSError`,
        `DataCorrupt`."""
        for number in interrupted:
            path = self.path.with_name(f"dropped-{number}.jsonl")
            # Without the end of a line that was cut off by a kill.
            for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
                try:
                    found = msgspec.json.decode(line, type=Dropped)
                except msgspec.DecodeError as error:
                    raise DataCorrupt(f"{path}: {error}: move it to another folder and repair again") from error
                txn_id = TxnId.parse(found.txn)
                if found.was_committed:
                    self._committed_before[txn_id] = None
                if _was_aborted(found, picture.headers.get(txn_id)):
                    self._counted_before[txn_id], found.messages = found.messages, {}
                    self._all[txn_id] = found

    def list_open(self, picture: Picture) -> None:
        for txn_id, header in picture.headers.items():
            if header.state == OPEN:
                self.add(txn_id, OPEN_AT_BACKUP, header=header)

    def holds(self, txn_id: TxnId) -> bool:
        return txn_id in self._all

    def left(self, txn_id: TxnId, segment: str, messages: int) -> None:
        """Notes that so many of its messages stay in that segment, and that no reader gets them."""
        there = self._all[txn_id].messages
        there[segment] = there.get(segment, 0) + messages

    def were_committed(self, txn_ids: Collection[TxnId]) -> None:
        """Durable when it returns. ▲ The repair replaces the records that tell it. It appends to the file: to write the
        whole list for each segment would take too long. Raises `OSError`."""
        for txn_id in txn_ids:
            self._all[txn_id].was_committed = True
        if txn_ids:
            if not self.path.exists():
                replace_file(self.path, b"")
            with self.path.open("ab") as file:
                file.write(self._lines(txn_ids))
                file.flush()
                os.fsync(file.fileno())

    def summary(self) -> str:
        """For the operator, in one sentence each."""
        counts = dict.fromkeys((OPEN_AT_BACKUP, BEGUN_AFTER, LOST_PART), 0)
        for one in self._all.values():
            counts[one.because] += 1
        sure = sum(one.was_committed is True for one in self._all.values())
        told = ", ".join(f"{number:,} {because}" for because, number in counts.items() if number)
        rest = len(self._all) - sure
        parts = [f"{sure:,} of them are known to have been committed"] * (sure > 0)
        parts += [f"whether {rest:,} of them had been committed, nothing tells"] * (rest > 0)
        return (
            f"{len(self._all):,} transactions are aborted for good ({told}): {'; '.join(parts)}. Their ids, and "
            f"details of each: {self.path}"
        )

    def write(self) -> None:
        """Durable when it returns; no file without a transaction. Raises `OSError`."""
        if self._all:
            replace_file(self.path, self._lines(sorted(self._all)))

    def _lines(self, txn_ids: Iterable[TxnId]) -> bytes:
        return b"".join(msgspec.json.encode(self._counted(txn_id)) + b"\n" for txn_id in txn_ids)

    def _counted(self, txn_id: TxnId) -> Dropped:
        one = self._all[txn_id]
        return msgspec.structs.replace(one, messages=self._counted_before.get(txn_id, {}) | one.messages)


def _was_aborted(one: Dropped, header: Header | None) -> bool:
    """Whether an interrupted repair has done what it had listed; no header: it may be collected by now."""
    return header is None or (header.reason == REASON_LOST if one.because == LOST_PART else header.state == ABORTED)


def _time(epoch_ms: int) -> str | None:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds") if epoch_ms else None
