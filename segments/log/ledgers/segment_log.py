"""Joins the ledgers of one segment to one log: take-over, rolling, sealing, trimming, reading (DESIGN §6, §7).

`segments.log.ledgers.ledger_list` reads and rewrites the list in `/ledger/<segment>`; `segments.log.ledgers.positions`
counts entries. Ledger ids count up, and a take-over always opens a new ledger, so a position is never used twice.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import structlog

from segments.ledger.ledger import LedgerFailed, LedgerStore, LedgerWriter, Recovered
from segments.ledger.ledger_evidence import expect_made
from segments.ledger.publish_times import PublishTimes
from segments.ledger.sidecars import decode_sidecar, encode_sidecar
from segments.log.ledgers.dedup_footer import decode_footer, encode_footer
from segments.log.ledgers.ledger_folder import expect_evidence, expect_last
from segments.log.ledgers.ledger_list import LedgerList
from segments.log.ledgers.ledger_pages import PAGE_LEDGERS
from segments.log.ledgers.message_counts import CountedRange, MessageCounts
from segments.log.ledgers.positions import LogPositions
from segments.log.ledgers.retention import kept_ledgers
from txnstore.records import LedgerInfo, LedgerRecord
from txnstore.store import KeyValue, MetadataStore
from txnwire.errors import DataCorrupt, InvalidArgument, NotOwner, SegmentSealed
from txnwire.ids import EARLIEST, Position
from watchers.visibility import AbortedKey

log = structlog.get_logger(__name__)

FIRST_LEDGER_ID = 1
DELETED_AT_ONCE: Final = 1024
"""Ledgers whose files are deleted before the list forgets them."""


class SegmentLog:
    """Runs the log of one segment. All writes compare the ownership epoch `epoch`. Call `take_over` first; `writer` is
    None while sealed."""

    def __init__(
        self,
        store: MetadataStore,
        ledger_store: LedgerStore,
        segment: str,
        *,
        epoch: int,
        incarnation: str,
        wall_ms: Callable[[], int] = lambda: 0,
        page_ledgers: int = PAGE_LEDGERS,
    ) -> None:
        self._ledger_store = ledger_store
        self._segment = segment
        self._incarnation = incarnation
        self._wall_ms = wall_ms
        self._rewriting = asyncio.Lock()
        """Held from planning a record until it is written: the log may roll during a trim."""
        self._store = store
        self._list = LedgerList(store, segment, epoch=epoch, page_ledgers=page_ledgers)
        self._record = LedgerRecord(ledgers=[])
        self._positions = LogPositions()
        self.times = PublishTimes()
        self.counts = MessageCounts()
        self.writer: LedgerWriter | None = None
        self._abandoned: LedgerWriter | None = None
        self.ended = False
        """Whether the topic's layout lists the segment as sealed; the broker sets it, for ever."""
        self._last_confirmed = EARLIEST

    @property
    def record(self) -> LedgerRecord:
        return self._record

    @property
    def sealed(self) -> bool:
        """Whether the segment has a seal. It may still be undone, until the layout lists it as sealed too (`ended`)."""
        return self._record.sealed is not None

    @property
    def revision(self) -> int:
        """The mod revision of `/ledger/<segment>`."""
        return self._list.revision

    @property
    def end(self) -> Position | None:
        """The segment's last entry, once that is final: it has a seal, and the layout lists it as sealed. ▲ Until then
        report no end to readers: the seal may be undone."""
        return Position(*self._record.sealed) if self.ended and self._record.sealed is not None else None

    @property
    def last_confirmed(self) -> Position:
        """The last entry that may be exposed; `(ledger, -1)` or EARLIEST if there is none after a ledger's start.
        ▲ Never beyond the closed length of a ledger taken over, nor beyond the last confirmed entry of the open one."""
        if self.writer is not None and self.writer.last_confirmed >= 0:
            return Position(self.writer.ledger_id, self.writer.last_confirmed)
        return self._last_confirmed

    @property
    def entries(self) -> int:
        """Number of confirmed entries in the kept ledgers."""
        return self._positions.rank(self.last_confirmed)

    async def take_over(self) -> None:
        """Fence and close the ledgers that an earlier owner left open, then open a new one.

        ▲ Writes the closed lengths to `/ledger` before it returns, thus before any entry is served.
        Raises `NotOwner`, `DataCorrupt`, `LedgerFailed`, `StoreUnavailable`.
        """
        await self._list.load()
        record = self._list.record
        closed = [await self._closed(info, record.made) for info in record.ledgers]
        if closed != record.ledgers:
            await expect_evidence(self._store, self._segment, closed)
        else:
            await expect_last(self._ledger_store, self._segment, record)
        if record.sealed is not None:
            self._adopt(msgspec.structs.replace(record, ledgers=closed))
            return
        next_id = max((info.ledger_id for info in closed), default=FIRST_LEDGER_ID - 1) + 1
        kept = await self._without_empty(closed)
        if record.trimmed_below is not None:
            next_id = max(next_id, record.trimmed_below[0])
        await self._rewrite(msgspec.structs.replace(record, ledgers=[*kept, self._opened(next_id)]))
        self.writer = await self._make(next_id)

    async def _make(self, ledger_id: int) -> LedgerWriter:
        """Create a listed ledger. ▲ Appends nothing before the list records it as `made`: until then a missing file
        counts as never created."""
        writer = await self._ledger_store.create(self._segment, ledger_id, incarnation=self._incarnation)
        try:
            await self._rewrite(msgspec.structs.replace(self._record, made=ledger_id))
        except BaseException:
            writer.abandon()
            raise
        return writer

    def _opened(self, ledger_id: int) -> LedgerInfo:
        return LedgerInfo(ledger_id=ledger_id, store=self._ledger_store.kind, opened_ms=self._wall_ms())

    async def _without_empty(self, closed: list[LedgerInfo]) -> list[LedgerInfo]:
        """Delete the empty ledgers before the last one; returns the others. Their ids are never reused, and a writer of
        one that still lives finds it deleted, which fences it too.

        ▲ Keeps one with a footer: it holds the dedup state of producers whose ledgers were to be trimmed. ▲ Keeps one
        with a listed sidecar: without it, aborted entries of earlier ledgers would be read. Deletes files before the
        list forgets them: a crash in between leaves a name without a file, never the reverse."""
        empty = []
        for info in closed[:-1]:
            if info.closed_length or info.aborted:
                continue
            if await self._ledger_store.read_footer(self._segment, info.ledger_id) is None:
                try:
                    await self._ledger_store.delete(self._segment, info.ledger_id)
                except LedgerFailed as error:  # it may stay: the next owner tries again
                    log.warning("empty_ledger_not_deleted", segment=self._segment, error=str(error))
                else:
                    empty.append(info)
        going = {info.ledger_id for info in empty}
        return [info for info in closed if info.ledger_id not in going]

    async def _closed(self, info: LedgerInfo, made: int | None) -> LedgerInfo:
        if info.closed_length is not None:
            return info
        recovered = await self._ledger_store.fence(self._segment, info.ledger_id)
        expect_made(self._segment, info.ledger_id, recovered, made)
        return msgspec.structs.replace(
            info, closed_length=recovered.entries, bytes=recovered.bytes, closed_ms=self._wall_ms()
        )

    async def roll(self, footer: bytes) -> None:
        """Close the open ledger with `footer` and open the next. Nothing may be appended meanwhile."""
        async with self._rewriting:
            await self._go_on(await self._close_writer(footer))

    async def seal(self, footer: bytes, change_id: str, look: Callable[[], Awaitable[KeyValue | None]]) -> bool:
        """Close the open ledger with `footer`, and write the seal for a layout change. Nothing may be appended
        meanwhile. `look` reads the topic's record from the store, and returns None once it no longer names the change.

        ▲ The seal compares that record as unchanged, so a late request of a change that was given up seals nothing. In
        that case returns False, and the log continues in the next ledger. Raises as `roll`.
        """
        async with self._rewriting:
            closed = await self._close_writer(footer)
            end = tuple(self._last_confirmed)
            while (topic := await look()) is not None:
                record = msgspec.structs.replace(self._record, ledgers=closed, sealed=end, sealed_by=change_id)
                if await self._rewrite_while(record, topic):
                    return True
            await self._go_on(closed)
            return False

    async def unseal(self, topic: KeyValue) -> bool:
        """Undo the seal and continue in a new ledger, ▲ only if the record `topic`, which no longer names the change
        and lists the segment as active, is unchanged since it was read. Raises as `roll`."""
        async with self._rewriting:
            first = max([FIRST_LEDGER_ID, *(info.ledger_id + 1 for info in self._record.ledgers)])
            if self._record.trimmed_below is not None:
                first = max(first, self._record.trimmed_below[0])
            record = msgspec.structs.replace(
                self._record, ledgers=[*self._record.ledgers, self._opened(first)], sealed=None, sealed_by=None
            )
            if not await self._rewrite_while(record, topic):
                return False
            self.writer = await self._make(first)
            return True

    async def _go_on(self, closed: list[LedgerInfo]) -> None:
        """Open the ledger after the one just closed."""
        opened = self._opened(closed[-1].ledger_id + 1)
        await self._rewrite(msgspec.structs.replace(self._record, ledgers=[*closed, opened]))
        self.writer = await self._make(opened.ledger_id)

    async def close(self, footer: Callable[[], bytes]) -> None:
        """End this ownership gracefully: a successor finds the ledger closed with a whole footer. ▲ Calls `footer` only
        under the lock: the log may have rolled before, and a footer beside another ledger is corruption."""
        async with self._rewriting:
            if self.writer is not None:
                await self._rewrite(msgspec.structs.replace(self._record, ledgers=await self._close_writer(footer())))

    async def _close_writer(self, footer: bytes) -> list[LedgerInfo]:
        writer = self.writer
        if writer is None:
            raise SegmentSealed(f"{self._segment} has no open ledger")
        closed = await writer.close(footer)
        self._last_confirmed = self.last_confirmed
        self._positions.closed(writer.ledger_id, closed.entries)
        self.writer = None
        info = msgspec.structs.replace(
            self._record.ledgers[-1],
            closed_length=closed.entries,
            bytes=closed.bytes,
            closed_ms=self._wall_ms(),
            newest_ms=self.times.newest_ms(writer.ledger_id, closed.entries),
            messages=self.counts.total(writer.ledger_id, closed.entries),
        )
        return [*self._record.ledgers[:-1], info]

    def abandon(self) -> None:
        """Release the log at once; afterwards only `record_end` may write."""
        if self.writer is not None:
            self.writer.abandon()
            self._last_confirmed = self.last_confirmed
            self._abandoned, self.writer = self.writer, None

    async def unrecorded_end(self) -> Recovered | None:
        """After `abandon`: the open ledger's end, if a sync and storing it failed. Waits for a running sync."""
        return None if self._abandoned is None else await self._abandoned.unrecorded_end()

    async def record_end(self) -> None:
        """After `abandon`, while the epoch is still ours: ▲ write an end that the disk could not store to `/ledger`.
        Else a successor would count entries that only the page cache holds. Repeatable after any error, even if an
        earlier try lands meanwhile. Raises `NotOwner`, and as `MetadataStore.commit`."""
        writer, end = self._abandoned, await self.unrecorded_end()
        if writer is None or end is None:
            return

        def with_end(record: LedgerRecord) -> LedgerRecord | None:
            last = record.ledgers[-1] if record.ledgers else None
            if last is None or last.ledger_id != writer.ledger_id or last.closed_length is not None:
                return None
            closed = msgspec.structs.replace(
                last, closed_length=end.entries, bytes=end.bytes, closed_ms=self._wall_ms()
            )
            return msgspec.structs.replace(record, ledgers=[*record.ledgers[:-1], closed])

        async with self._rewriting:
            await self._list.rewrite_stored(with_end)
            self._adopt(self._list.record)

    # ---- aborted sidecars -------------------------------------------------------------------------------------------

    async def load_sidecars(self) -> dict[int, dict[AbortedKey, Position]]:
        """The aborted records in the sidecars of the kept ledgers, by ledger.

        Raises `DataCorrupt` if one is missing or damaged: its records are gone from etcd."""
        listed = [info for info in kept_ledgers(self._record) if info.aborted]
        return {info.ledger_id: await self.load_sidecar(info) for info in listed}

    async def load_sidecar(self, info: LedgerInfo) -> dict[AbortedKey, Position]:
        where = f"the sidecar of ledger {info.ledger_id} of {self._segment}"
        raw = await self._ledger_store.read_sidecar(self._segment, info.ledger_id)
        if raw is None:
            raise DataCorrupt(f"{where} is missing: {info.aborted} aborted records were in it")
        aborted = decode_sidecar(raw, info.ledger_id, where)
        if len(aborted) != info.aborted:
            raise DataCorrupt(f"{where} holds {len(aborted)} aborted records, /ledger says {info.aborted}")
        return aborted

    async def add_sidecar(
        self, ledger_id: int, aborted: Mapping[AbortedKey, Position]
    ) -> Mapping[AbortedKey, Position]:
        """Write `aborted` beside a closed ledger without a sidecar and list it; returns the sidecar's content.

        ▲ Sync, then list; only then may the records leave etcd. A sidecar that a predecessor wrote but did not list
        wins: it holds only records that are still in etcd. Raises as `_rewrite`, `LedgerFailed`, `DataCorrupt`.
        """
        data = encode_sidecar(ledger_id, aborted)
        where = f"the sidecar of ledger {ledger_id} of {self._segment}"
        written = decode_sidecar(
            await self._ledger_store.write_sidecar(self._segment, ledger_id, data), ledger_id, where
        )
        if written:
            await self._change(ledger_id, aborted=len(written))
        return written

    async def _change(self, ledger_id: int, *, aborted: int) -> None:
        async with self._rewriting:
            ledgers = [
                msgspec.structs.replace(info, aborted=aborted) if info.ledger_id == ledger_id else info
                for info in self._record.ledgers
            ]
            await self._rewrite(msgspec.structs.replace(self._record, ledgers=ledgers))

    # ---- trimming ---------------------------------------------------------------------------------------------------

    @property
    def trimmed_below(self) -> Position | None:
        """The first position kept, None if nothing was trimmed."""
        at = self._record.trimmed_below
        return None if at is None else Position(*at)

    @property
    def trimmed_through(self) -> Position:
        """The last entry that was trimmed, `EARLIEST` if none was."""
        at = self._record.trimmed_through
        return EARLIEST if at is None else Position(*at)

    @property
    def to_delete(self) -> tuple[int, ...]:
        """Trimmed ledgers that are still listed: their files are to be deleted."""
        below = self._record.trimmed_below
        if below is None:
            return ()
        ledgers = self._record.ledgers
        return tuple(info.ledger_id for info in ledgers[: bisect_left(ledgers, below[0], key=_id)])

    async def trim(self, first_kept: int) -> None:
        """Trim the ledgers before `first_kept`. ▲ Records the trim first, so that no later owner reads them; only
        then may `finish_trim` delete their files."""
        async with self._rewriting:
            below = (first_kept, 0)
            if self._record.trimmed_below is None or self._record.trimmed_below < below:
                going = [one for one in self._record.ledgers if one.ledger_id < first_kept and one.closed_length]
                through = self._record.trimmed_through
                if going:
                    through = (going[-1].ledger_id, (going[-1].closed_length or 0) - 1)
                trimmed = msgspec.structs.replace(self._record, trimmed_below=below, trimmed_through=through)
                await self._rewrite(trimmed)

    async def finish_trim(self) -> None:
        """Delete the files of trimmed ledgers, then their rows in the list. Idempotent; a crash in between leaves them
        listed. Works in steps, as one commit can delete only a limited number of pages."""
        while going := self.to_delete[:DELETED_AT_ONCE]:
            for ledger_id in going:
                await self._ledger_store.delete(self._segment, ledger_id)
            async with self._rewriting:
                kept = self._record.ledgers[bisect_right(self._record.ledgers, going[-1], key=_id) :]
                await self._rewrite(msgspec.structs.replace(self._record, ledgers=kept))

    # ---- footers ----------------------------------------------------------------------------------------------------

    async def checkpoint(self, dedup: bytes, entries: int) -> None:
        """Write beside the open ledger the dedup snapshot that covers its first `entries` entries."""
        if self.writer is not None:
            footer = self.footer(self.writer.ledger_id, entries, dedup)
            await self._ledger_store.write_footer(self._segment, self.writer.ledger_id, footer)

    async def keep_footer(self, dedup: bytes) -> None:
        """For a sealed segment: write the dedup snapshot beside a new empty ledger, so that the last one with entries
        may be trimmed. ▲ Writes the footer before it lists the ledger; nothing is ever appended to it."""
        async with self._rewriting:
            last = self._record.ledgers[-1]
            if not last.closed_length:
                return  # an empty one exists: it has the footer of the seal
            beside = msgspec.structs.replace(
                last, ledger_id=last.ledger_id + 1, closed_length=0, bytes=0, aborted=0, newest_ms=None, messages=0
            )
            footer = self.footer(beside.ledger_id, 0, dedup)
            await self._ledger_store.write_footer(self._segment, beside.ledger_id, footer)
            await self._rewrite(msgspec.structs.replace(self._record, ledgers=[*self._record.ledgers, beside]))

    async def write_closed_footer(self, dedup: bytes) -> None:
        """Write the footer that a dead predecessor could not write, covering its whole last ledger."""
        closed = [info for info in self._record.ledgers if info.closed_length]
        if closed:
            info = closed[-1]
            footer = self.footer(info.ledger_id, info.closed_length or 0, dedup)
            await self._ledger_store.write_footer(self._segment, info.ledger_id, footer)

    @staticmethod
    def footer(ledger_id: int, entries: int, dedup: bytes) -> bytes:
        return encode_footer(ledger_id, entries, dedup)

    async def last_footer(self) -> tuple[Position, bytes | None]:
        """The last position that the newest dedup snapshot covers, and the snapshot; `(EARLIEST, None)` for none."""
        for info in reversed(self._record.ledgers):
            if self.writer is not None and info.ledger_id == self.writer.ledger_id:
                continue
            raw = await self._ledger_store.read_footer(self._segment, info.ledger_id)
            if raw is not None:
                footer = decode_footer(raw, info, self._segment)
                return Position(info.ledger_id, footer.entries - 1), footer.dedup
        return EARLIEST, None

    # ---- positions, reading -----------------------------------------------------------------------------------------

    def next_after(self, position: Position) -> Position:
        """The position after `position`: that of an existing entry, or of the next append. From a trimmed position it
        leads to the first kept one."""
        return self._positions.next_after(position, sealed=self.sealed)

    def contains(self, position: Position) -> bool:
        """Whether there is a confirmed entry at `position`."""
        length = self._positions.length(position.ledger_id)
        if length is None or position.entry_id < 0:
            return False
        return position.entry_id < length if length >= 0 else position <= self.last_confirmed

    def entries_between(self, low: Position, high: Position) -> int:
        """The number of entries in (low, high]."""
        return self._positions.rank(high) - self._positions.rank(low)

    def ranges(self, after: Position, last: Position) -> Iterator[CountedRange]:
        """The entries in (after, last], which is confirmed, by ledger."""
        return self._positions.ranges(after, last)

    def nth(self, index: int) -> Position:
        """The position of the entry with `index` entries before it."""
        return self._positions.nth(index) or self.next_after(self.last_confirmed)

    async def read(self, first: Position, last: Position, *, max_bytes: int) -> list[tuple[Position, bytes]]:
        """At least one entry from `first`, which exists, up to `last` at most, all of one ledger.

        ▲ Never beyond the closed length. ▲ Refuses the open ledger after `abandon`: who goes on from what it found
        would ask for the same entry for ever. Raises `NotOwner`, `DataCorrupt`, `InvalidArgument`."""
        ledger_id = first.ledger_id
        length = self._positions.length(ledger_id)
        if length is None:
            raise InvalidArgument(f"{self._segment} has no ledger {ledger_id}: it may have been trimmed")
        writer = self.writer if self.writer is not None and self.writer.ledger_id == ledger_id else None
        if writer is None and length < 0:
            raise NotOwner(f"{self._segment} has no open ledger here any more: look up the owner again")
        end = length - 1 if writer is None else writer.last_confirmed
        if last.ledger_id == ledger_id:
            end = min(end, last.entry_id)
        found: Sequence[tuple[int, bytes]]
        if writer is None:
            found = await self._ledger_store.read(self._segment, ledger_id, first.entry_id, end, max_bytes=max_bytes)
        else:
            found = await writer.read(first.entry_id, end, max_bytes=max_bytes)
        return [(Position(ledger_id, entry_id), entry) for entry_id, entry in found]

    def settle(self, position: Position) -> Position:
        """A position to read at; moved to the next ledger if its own was closed before that position."""
        return self.next_after(Position(position.ledger_id, position.entry_id - 1))

    async def _rewrite(self, record: LedgerRecord) -> None:
        await self._list.rewrite(record)
        self._adopt(record)

    async def _rewrite_while(self, record: LedgerRecord, topic: KeyValue) -> bool:
        """See `LedgerList.rewrite_while`."""
        rewritten = await self._list.rewrite_while(record, topic)
        if rewritten:
            self._adopt(record)
        return rewritten

    def _adopt(self, record: LedgerRecord) -> None:
        self._record = record
        kept = kept_ledgers(record)
        self.times.listed(kept)
        self.counts.listed(kept)
        self._positions.listed(kept, record.trimmed_below)
        closed = [info for info in kept if info.closed_length]
        last = Position(closed[-1].ledger_id, (closed[-1].closed_length or 0) - 1) if closed else EARLIEST
        # ▲ Never back to the beginning because everything was trimmed: reported positions must not be ahead of it.
        self._last_confirmed = max(self._last_confirmed, last, self._positions.floor)
        if record.sealed is not None:
            # ▲ Nor beyond the seal: snapshots of different owners and controllers would disagree on the end.
            self._last_confirmed = Position(*record.sealed)


def _id(info: LedgerInfo) -> int:
    return info.ledger_id
