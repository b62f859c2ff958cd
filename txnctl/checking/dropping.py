"""Drops what is missing in the data folder, for a repair: first whole transactions, then the ends of ledgers.

`missing` decides what is missing and what can be known of it. This module carries it out, in an order that may be
interrupted anywhere: headers say that a transaction was dropped, then each segment drops the rest of it, then the lists
are shortened. A repeated repair finds the headers and goes on.

▲ Only the segment's watermark and aborted records tell what an open ledger held. They are shortened last, before the
list: a repeated repair that found them short would take all the rest for complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

from segments.log.ledgers.retention import kept_ledgers
from txnctl.checking.doubtful import decided_since, doubtful
from txnctl.checking.dropped_list import LOST_PART, DroppedList
from txnctl.checking.missing import Shortfall, block_within, shortened, shortfalls, torn, within
from txnctl.checking.picture import Picture
from txnctl.checking.rewound import OnDisk, RewoundJudge, RewoundVerdict
from txnctl.checking.written import WrittenEntry
from txnstore import keys
from txnstore.records import (
    ABORTED,
    NO_WRITER,
    REASON_LOST,
    AbortedRecord,
    CursorBlock,
    LedgerInfo,
    LedgerRecord,
    Watermark,
)
from txnwire.errors import DataCorrupt
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.names import SegmentName

SHOWN: Final = 20


class Repairing(Protocol):
    """The part of the repair that dropping uses. Every write checks that no other repair has begun."""

    def find(self, rule: str, text: str) -> None: ...
    @property
    def dropped_list(self) -> DroppedList: ...
    async def stamped_ms(self) -> int: ...
    def on_progress(self, what: str, /) -> None: ...
    def now_ms(self) -> int: ...
    async def put(self, key: bytes, record: msgspec.Struct) -> None: ...
    async def delete(self, key: bytes) -> None: ...
    async def cut(self, segment: str, ledger_id: int, entries: int, *, present: bool) -> None: ...
    async def listed_sidecar(
        self, segment: str, info: LedgerInfo
    ) -> dict[tuple[TxnId, int | None], Position] | None: ...
    async def entries(self, segment: str, ledger_id: int, length: int, start: Position) -> list[WrittenEntry]: ...


class Dropping:
    """`short`: segments and what is missing of them; `dropped`: transactions aborted for that, also by an interrupted
    repair before."""

    def __init__(self, repair: Repairing, picture: Picture) -> None:
        self._repair = repair
        self._picture = picture
        self.short: dict[str, list[Shortfall]] = {}
        self.dropped: dict[TxnId, None] = {
            txn_id: None for txn_id, header in picture.headers.items() if header.reason == REASON_LOST
        }

    def count(self, segment: str, on_disk: Mapping[int, OnDisk], *, trimmed_since: bool) -> None:
        short = shortfalls(self._picture, segment, on_disk, trimmed_since=trimmed_since)
        if short:
            self.short[segment] = short
        for one in short:
            self._repair.find("missing", str(one))

    async def drop_torn(self, counted: Mapping[str, Mapping[int, OnDisk]], folder_revision: int) -> None:
        """▲ Transactions that lost a part are aborted everywhere before anything is served again: here in their
        headers, and in each segment with their remaining entries, even below its watermark."""
        if not self.short:
            await self._drop_doubtful(counted, folder_revision)
            return
        short = [one for some in self.short.values() for one in some]
        found = torn(self._picture, short, await self._left(counted), folder_revision=folder_revision)
        await self._drop(found.dropped)
        self._repair.find(
            "torn",
            f"{sum(one.expected - one.found for one in short)} entries or more are missing, in {len(self.short)} "
            f"segments. {len(found.dropped)} committed transactions that lost a part, or may have, are aborted "
            "everywhere; messages that they had acked by then stay acked. Lost plain messages, and transactions of "
            "which no entry is left, cannot be listed",
        )
        if found.unsure:
            self._repair.find(
                "unsure",
                f"{len(found.unsure)} transactions were committed at about the time of the folder's last mark, or "
                "after it, and collected, so it is not known whether they lost a part. Their remaining messages STAY "
                f"VISIBLE: {few(found.unsure)}",
            )

    async def _drop(self, found: Mapping[TxnId, str]) -> None:
        for txn_id, why in found.items():
            self._repair.dropped_list.add(txn_id, LOST_PART, header=self._picture.headers[txn_id], why=why)
        self._repair.dropped_list.write()
        for number, (txn_id, why) in enumerate(found.items()):
            before = self._picture.headers[txn_id]
            header = msgspec.structs.replace(before, state=ABORTED, reason=REASON_LOST, writers=None)
            await self._repair.put(keys.txn(txn_id), header)
            self._picture.headers[txn_id] = header
            self.dropped[txn_id] = None
            if number < SHOWN:
                self._repair.find("torn", f"{txn_id} was committed and is aborted everywhere: {why}")

    async def _drop_doubtful(self, counted: Mapping[str, Mapping[int, OnDisk]], folder_revision: int) -> None:
        """▲ Also if no entry is known to be missing, when the folder may have been copied before etcd."""
        if not decided_since(self._picture, folder_revision):
            return
        ended_ms = await self._repair.stamped_ms()
        left = await self._left(counted)
        judge = RewoundJudge(self._picture)
        if any(judge.verdict(txn_id, NO_WRITER) is RewoundVerdict.LOST for txn_id, _ in left):
            return  # the folder holds what was begun later: etcd is the older one
        found = doubtful(self._picture, left, folder_revision=folder_revision, ended_ms=ended_ms)
        await self._drop(found)
        if found:
            self._repair.find(
                "torn",
                f"{len(found)} committed transactions are aborted everywhere: the data folder was copied before etcd, "
                "as far as its mark tells, so it may lack a part of them. Messages that they had acked by then stay "
                "acked",
            )

    async def _left(self, counted: Mapping[str, Mapping[int, OnDisk]]) -> dict[tuple[TxnId, str], int]:
        """Remaining entries of each transaction in each segment. Reads everything, so it is done only after a loss."""
        left: dict[tuple[TxnId, str], int] = {}
        for segment, ledgers in counted.items():
            self._repair.on_progress(f"what is left of {segment}")
            for ledger_id, there in ledgers.items():
                if there.damaged:
                    continue
                try:
                    entries = await self._repair.entries(segment, ledger_id, there.entries, EARLIEST)
                except DataCorrupt as error:
                    self._repair.find("missing", f"{segment}: ledger {ledger_id} is damaged: {error}")
                    continue
                for _, txn_id, _, _ in entries:
                    left[txn_id, segment] = left.get((txn_id, segment), 0) + 1
        return left

    async def shorten(self, segment: str, record: LedgerRecord) -> LedgerRecord:
        """Returns the ledger list without the missing entries. ▲ First it sets every other record in etcd that names a
        missing entry to the last remaining one.

        ▲ Cursors of whole segments too: a repair writes their marks at its end, after the lists, so an interrupted
        repair has left them as they were."""
        short = self.short.get(segment, [])
        changed = shortened(record, short, now_ms=self._repair.now_ms())
        ledgers = kept_ledgers(changed)
        await self._shorten_cursors(segment, ledgers)
        if not short:
            return record
        if changed.sealed is not None:
            sealed = within(Position(*changed.sealed), ledgers)
            changed = msgspec.structs.replace(changed, sealed=_pair(sealed))
            await self._shorten_drained(segment, sealed)
        for one in short:
            await self._repair.cut(segment, one.ledger_id, one.found, present=one.present)
        changed = await self._shorten_sidecars(segment, changed, [one.ledger_id for one in short])
        await self._shorten_state(segment, ledgers)
        return changed

    async def _shorten_sidecars(self, segment: str, record: LedgerRecord, short: list[int]) -> LedgerRecord:
        """▲ The list in a shortened ledger's sidecar goes back into etcd, with all aborted records: the sidecar also
        lists entries of older ledgers, and is deleted with its own. A lost sidecar stays listed: the segment's repair
        handles it."""
        infos = []
        for info in record.ledgers:
            there = await self._repair.listed_sidecar(segment, info) if info.ledger_id in short else None
            for (txn_id, writer), position in (there or {}).items():
                self._picture.aborted[segment, txn_id, writer] = AbortedRecord(max_position=_pair(position))
            infos.append(info if there is None else msgspec.structs.replace(info, aborted=0))
        return msgspec.structs.replace(record, ledgers=infos)

    async def _shorten_state(self, segment: str, ledgers: list[LedgerInfo]) -> None:
        picture = self._picture
        if (mark := picture.watermarks.get(segment)) is not None:
            changed = Watermark(position=_pair(within(Position(*mark.position), ledgers)))
            await self._repair.put(keys.watermark(segment), changed)
            picture.watermarks[segment] = changed
        for (where, txn_id, writer), aborted in picture.aborted.items():
            if where == segment and aborted.max_position is not None:
                left = _pair(within(Position(*aborted.max_position), ledgers))
                await self._repair.put(keys.aborted(segment, txn_id, writer), AbortedRecord(max_position=left))

    async def _shorten_cursors(self, segment: str, ledgers: list[LedgerInfo]) -> None:
        """The repair writes the marks, with their raised counts."""
        for (where, name), mark in self._picture.marks.items():
            if where == segment:
                left = _pair(within(Position(*mark.position), ledgers))
                self._picture.marks[where, name] = msgspec.structs.replace(mark, position=left)
        # Not of one that is damaged: its length is unknown, and its acks count once it is mended.
        lengths = {info.ledger_id: info.closed_length for info in ledgers if info.closed_length is not None}
        for (where, subscription), blocks in self._picture.blocks.items():
            for name, block in blocks.items():
                if where == segment and block.ledger_id in lengths:
                    key = keys.cursor_block(segment, subscription, name)
                    await self._shorten_block(key, block, lengths[block.ledger_id])

    async def _shorten_block(self, key: bytes, block: CursorBlock, length: int) -> None:
        """▲ Keeps its own key: a block and its pages are records of one ledger, and name the same first entry."""
        left = block_within(block, length)
        if left is None:
            await self._repair.delete(key)
        elif left != block:
            await self._repair.put(key, left)

    async def _shorten_drained(self, segment: str, end: Position) -> None:
        name = SegmentName.from_path(segment)
        for (topic, subscription, segment_id), drained in self._picture.drained.items():
            if topic == name.topic.path and segment_id == name.segment_id:
                changed = msgspec.structs.replace(drained, end=_pair(end))
                await self._repair.put(keys.drained(topic, subscription, segment_id), changed)


def _pair(position: Position) -> tuple[int, int]:
    return position.ledger_id, position.entry_id


def few(numbers: Iterable[object]) -> str:
    told = [str(number) for number in numbers]
    return ", ".join(told if len(told) <= SHOWN else [*told[:SHOWN], f"… {len(told)} in all"])
