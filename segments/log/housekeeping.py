"""Looking after what a segment keeps: aborted sidecars, rolling by age, trimming, and what a crash has cut short.

One round of one segment is a sequence of steps of which each may be the last before a crash, or before the segment is
lost; the next owner's rounds begin with what is half done. Source: DESIGN §6 ("sidecar"), §8 ("Retention").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Final, Protocol

import structlog

from segments.layout.directory import Directory, topic_path_of
from segments.ledger.ledger import LedgerFailed
from segments.log.ledgers import SegmentLog
from segments.log.retention import (
    Least,
    Retention,
    StampsAhead,
    ages_ms,
    expired,
    first_kept,
    kept_ledgers,
    overlap_of,
    retention_of,
    roll_due,
    share_left,
)
from segments.log.settings import BrokerSettings
from txnstore import keys, records
from txnstore.access.paging import in_pages, in_parts
from txnstore.records import LedgerInfo, LedgerRecord
from txnstore.store import MAX_COMMIT_OPS, MetadataStore
from txnstore.writes.op_transitions import clean_up_ops, plan_clean_up, read_clean_up_verdict
from txnwire.errors import DataCorrupt, InternalError, OutcomeUnknown, TxnError
from txnwire.ids import EARLIEST, Position
from txnwire.names import SegmentName
from txnwire.ports import Clock
from txnwire.tasks import defect, restarted
from watchers.visibility import AbortedKey, TransactionBuffer

log = structlog.get_logger(__name__)

RECORDS_AT_ONCE: Final = MAX_COMMIT_OPS - clean_up_ops()
NAMES_AT_ONCE: Final = 1000
LISTS_AT_ONCE: Final = 50
"""Ledger lists: the head of one may be 20 KB."""


@dataclass(frozen=True, slots=True)
class KeepingStatistics:
    """Since this broker owns the segment. `skipped_entries`: trimmed before a reader or consumer had read them."""

    trimmed_ledgers: int = 0
    trimmed_bytes: int = 0
    sidecars: int = 0
    records_moved: int = 0
    rolled_by_age: int = 0
    skipped_entries: int = 0

    def plus(self, other: KeepingStatistics) -> KeepingStatistics:
        return KeepingStatistics(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


class KeptSegment(Protocol):
    """What of a segment housekeeping works on."""

    path: str
    epoch: int
    ledgers: SegmentLog
    buffer: TransactionBuffer
    cursors_held: asyncio.Lock
    """Held by whoever moves a cursor back, and by whoever takes what every cursor has passed."""

    def check(self) -> None: ...
    def lost(self, error: TxnError) -> None: ...
    @property
    def may_roll(self) -> bool:
        """Whether the disk has room for another ledger."""

    async def roll(self) -> None: ...
    async def checkpoint(self) -> None:
        """What is known of producers goes beside the newest ledger; of a sealed segment beside an empty one."""

    async def drained(self) -> Position | None:
        """The last position that every subscription of the topic is done with; None where there is none."""

    def unread_below(self, below: Position) -> int:
        """How many entries before `below` readers and consumers have yet to read, summed over them."""

    def follow_trim(self) -> None:
        """Cursors go on at the first position kept."""

    @property
    def open_bytes(self) -> int: ...


class Housekeeping:
    """Of one segment."""

    def __init__(self, store: MetadataStore, clock: Clock, settings: BrokerSettings, segment: KeptSegment) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._segment = segment
        self._ledgers = segment.ledgers
        self._buffer = segment.buffer
        self._ahead = StampsAhead()
        self._trimmed_ledgers = self._trimmed_bytes = self._sidecars = self._moved = self._rolled = self._skipped = 0

    def statistics(self) -> KeepingStatistics:
        return KeepingStatistics(
            self._trimmed_ledgers, self._trimmed_bytes, self._sidecars, self._moved, self._rolled, self._skipped
        )

    async def keep(self, retention: Retention) -> None:
        """One round. Raises what kept it from its end; the next one goes on from there."""
        await self._finish_trim()
        try:
            await self._move_to_sidecar()
        except LedgerFailed as error:
            # ▲ No room for a sidecar must not keep what makes room from going: its records stay in etcd meanwhile.
            log.warning("sidecar_not_written", segment=self._segment.path, error=str(error))
        await self._roll(retention)
        await self._trim(await self._with_share_left(retention))

    async def _with_share_left(self, retention: Retention) -> Retention:
        """▲ A sealed segment has what those behind it leave of the share of its hash range (`share_left`)."""
        if retention.bytes_kept is None or not self._ledgers.ended:
            return retention
        segment = SegmentName.from_path(self._segment.path)
        # ▲ Not the lists of the whole topic: each of its sealed segments would read those of all the others.
        prefix, later = keys.ledger(segment.topic.path) + b"/", dict[bytes, SegmentName]()
        async for page in in_pages(self._store, prefix, keys.prefix_end(prefix), at_once=NAMES_AT_ONCE, keys_only=True):
            names = {one.key: SegmentName.from_path(one.key[len(keys.LEDGER) :].decode()) for one in page}
            later |= {key: name for key, name in names.items() if overlap_of(segment, name)}
            await asyncio.sleep(0)
        others: list[tuple[SegmentName, LedgerRecord]] = []
        for part in in_parts(list(later), self._store.page_size(LISTS_AT_ONCE)):
            _, found = await self._store.get_many(part)
            others += [
                (later[one.key], records.decode(LedgerRecord, one.value, key=one.key))
                for one in found
                if one is not None
            ]
        return retention._replace(bytes_kept=share_left(retention.bytes_kept, segment, others))

    async def forgotten(self, producers: int) -> bool:
        """See `Segment.forgotten`; `producers`: how many are remembered here, which wall-clock time ends too, as in
        `expired`: what is remembered begins its idle time anew with every owner."""
        record = self._ledgers.record
        now_ms = self._clock.wall_ms()
        ages = ages_ms(record.ledgers, now_ms=now_ms, known_ms=self._known_ms())
        age_ms = min(ages.values(), default=now_ms)
        remembered_ms = self._settings.producer_idle_s * 1000 if producers else self._settings.prune_least_age_ms
        if self._ledgers.to_delete or any(info.closed_length != 0 for info in record.ledgers) or age_ms < remembered_ms:
            return False
        path = self._segment.path
        for prefix in (keys.aborted_records(path), keys.writes_by_segment(path), keys.acks_by_segment(path)):
            if (await self._store.range(prefix, keys.prefix_end(prefix), keys_only=True, limit=1)).records:
                return False
        return True

    # ---- sidecars ---------------------------------------------------------------------------------------------------

    async def _move_to_sidecar(self) -> None:
        """Aborted records of what is closed and decided leave etcd for a file beside the last such ledger.

        ▲ Only then: an entry of a transaction that is still open, or whose record is not durable yet, is in no set.
        """
        last = next(
            (
                info
                for info in reversed(kept_ledgers(self._ledgers.record))
                if info.closed_length and Position(info.ledger_id, info.closed_length - 1) <= self._buffer.watermark
            ),
            None,
        )
        if last is None:
            return
        aborted = self._buffer.durable(Position(last.ledger_id, (last.closed_length or 0) - 1))
        if not aborted:
            return
        written: Mapping[AbortedKey, Position]
        if last.aborted:
            written = await self._ledgers.load_sidecar(last)  # listed, but a crash may have left its records in etcd
        else:
            written = await self._ledgers.add_sidecar(last.ledger_id, aborted)
            self._sidecars += 1
        await self._forget(last.ledger_id, written)

    async def _forget(self, ledger_id: int, written: Mapping[AbortedKey, Position]) -> None:
        """▲ Synced and listed: now their records may leave etcd."""
        in_store = self._buffer.durable(self._ledgers.last_confirmed)
        going = {key: position for key, position in written.items() if key in in_store}
        await self._delete_records(list(going))
        self._buffer.moved(ledger_id, going)
        self._moved += len(going)

    async def _delete_records(self, going: list[AbortedKey]) -> None:
        for at in range(0, len(going), RECORDS_AT_ONCE):
            names = [keys.aborted(self._segment.path, *key) for key in going[at : at + RECORDS_AT_ONCE]]
            commit = plan_clean_up(self._segment.path, self._segment.epoch, forget=names)
            read_clean_up_verdict(commit, await self._store.commit(commit))

    # ---- rolling ----------------------------------------------------------------------------------------------------

    async def _roll(self, retention: Retention) -> None:
        least = Least(self._settings.roll_least_age_ms, self._settings.roll_least_bytes)
        due = roll_due(
            self._ledgers.record,
            retention,
            open_bytes=self._segment.open_bytes,
            now_ms=self._clock.wall_ms(),
            least=least,
        )
        due = due or bool(self._segment.open_bytes and self._buffer.records_in_store > self._settings.aborted_in_store)
        if due and self._segment.may_roll:
            await self._segment.roll()
            self._rolled += 1

    # ---- trimming ---------------------------------------------------------------------------------------------------

    async def _trim(self, retention: Retention) -> None:
        if self._ledgers.sealed and not self._ledgers.ended:
            # ▲ The seal may yet be taken back, or its layout be late: there is no place for another footer, and the
            # newest one stands beside a ledger that is closed, so that time, or a stepped clock, would take it.
            return
        if self._ledgers.ended and self._ledgers.record.ledgers:
            every = self._expired(retention, last_sealed_ms=-1)
            if every and every[-1] is self._ledgers.record.ledgers[-1]:
                await self._keep_footer()
        going = self._expired(retention, last_sealed_ms=int(self._settings.producer_idle_s * 1000))
        if not going:
            return
        kept = first_kept(self._ledgers.record, going, bound=await self._bound(retention))
        if kept is None:
            return
        # ▲ What is known of producers stands beside the ledgers: before the newest footer goes there is another one.
        kept = await self._with_new_footer(kept)
        if await self._trim_below(kept, going, retention):
            await self._finish_trim()

    async def _trim_below(self, kept: int, going: list[LedgerInfo], retention: Retention) -> bool:
        """Whether anything before the ledger `kept` went. ▲ A footer takes as long as the disk does: a subscription may
        have been sought back meanwhile, and its messages would be gone behind the answer. So what is drained is looked
        at again, and no cursor goes back until what is trimmed is known."""
        async with self._segment.cursors_held:
            self._segment.check()
            now = first_kept(self._ledgers.record, going, bound=await self._bound(retention))
            if now is None:
                return False
            kept = min(kept, now)
            self._segment.check()
            unread = self._segment.unread_below(Position(kept, 0))
            await self._ledgers.trim(kept)
            self._skipped += unread
            self._segment.follow_trim()
        return True

    async def _bound(self, retention: Retention) -> Position:
        """Nothing behind it may go."""
        bound = self._buffer.watermark
        if not retention.undrained and (drained := await self._segment.drained()) is not None:
            bound = min(bound, drained)
        return bound

    async def _keep_footer(self) -> None:
        """Beside an empty ledger, so that the last one with entries may go. Where there is no room, the others may."""
        try:
            await self._segment.checkpoint()
        except LedgerFailed as error:
            log.warning("footer_not_kept", segment=self._segment.path, error=str(error))

    async def _with_new_footer(self, kept: int) -> int:
        """The ledger that is the first to be kept, `kept` where a new footer stands. Where none could be written, on a
        full disk say, ▲ the newest that stands goes not; raises why where nothing else may go."""
        try:
            await self._segment.checkpoint()
        except LedgerFailed as error:
            footer, _ = await self._ledgers.last_footer()
            first = self._ledgers.trimmed_below or EARLIEST
            bounded = min(kept, footer.ledger_id)
            if not any(first.ledger_id <= info.ledger_id < bounded for info in self._ledgers.record.ledgers):
                raise
            log.warning("trimmed_without_a_new_footer", segment=self._segment.path, error=str(error))
            return bounded
        return kept

    def _expired(self, retention: Retention, *, last_sealed_ms: int) -> list[LedgerInfo]:
        return expired(
            self._ledgers.record,
            retention,
            open_bytes=self._segment.open_bytes,
            now_ms=self._clock.wall_ms(),
            last_sealed_ms=last_sealed_ms,
            known_ms=self._known_ms(),
        )

    def _known_ms(self) -> dict[int, int]:
        return self._ahead.known_ms(
            self._ledgers.record.ledgers, now_ms=self._clock.wall_ms(), now_s=self._clock.monotonic()
        )

    async def _finish_trim(self) -> None:
        """What is trimmed is read no more; its files go, then its aborted records, then its place in the list.

        ▲ R3: an aborted record lives until its data is trimmed. In steps, as a large ledger's records do not fit into
        one etcd transaction; recovery loads what is left of them, which is harmless.
        """
        below = self._ledgers.trimmed_below
        if below is None:
            return
        while records := self._buffer.prunable(below, RECORDS_AT_ONCE):
            await self._delete_records(list(records))
            self._buffer.pruned(records)
        going = self._ledgers.to_delete
        if going:
            listed = {info.ledger_id: info for info in self._ledgers.record.ledgers}
            await self._ledgers.finish_trim()
            self._buffer.trimmed(below)
            self._trimmed_ledgers += len(going)
            self._trimmed_bytes += sum(listed[ledger_id].bytes for ledger_id in going)
            log.info("segment_trimmed", segment=self._segment.path, below=str(below), ledgers=len(going))


class HousekeptSegment(Protocol):
    path: str

    def lost(self, error: TxnError) -> None: ...
    async def keep(self, retention: Retention) -> None: ...


class Housekeeper:
    """The rounds of all segments of a broker, one after the other, in one task."""

    def __init__(
        self, directory: Directory, settings: BrokerSettings, segments: Callable[[], Mapping[str, HousekeptSegment]]
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._segments = segments
        self._due: dict[str, None] = {}
        self._changed = asyncio.Event()
        self._closing = False
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = restarted(self._run_until_closing, name="housekeeping")

    async def close(self, *, timeout_s: float) -> None:
        """End after the segment that is being looked after; what takes longer is cut short, as by a crash."""
        self._closing = True
        self._changed.set()
        task, self._task = self._task, None
        if task is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._ended.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def wake(self, path: str) -> None:
        """Something was closed there, or its topic's policies have changed."""
        self._due[path] = None
        self._changed.set()

    async def _run_until_closing(self) -> None:
        await self._run()
        self._ended.set()
        await asyncio.Event().wait()  # to be cancelled

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        all_due_s = loop.time() + self._settings.housekeeping_s
        while not self._closing:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(all_due_s):
                    await self._changed.wait()
            # ▲ However often one segment wakes this: a busy one, that closes a ledger every few seconds, must not keep
            # the quiet ones from being trimmed, nor what has failed from being tried again.
            everything = loop.time() >= all_due_s
            if everything:
                self._due.update(dict.fromkeys(self._segments()))
            self._changed.clear()
            due, self._due = self._due, {}
            for path in due:
                if not self._closing and (segment := self._segments().get(path)) is not None:
                    await self._keep(segment)
            if everything:
                all_due_s = loop.time() + self._settings.housekeeping_s

    async def _keep(self, segment: HousekeptSegment) -> None:
        try:
            await segment.keep(self._retention(segment.path))
        except (OutcomeUnknown, DataCorrupt, InternalError) as error:
            # ▲ Of a rewrite whose fate is unknown nobody can say what stands now: the next owner reads it.
            segment.lost(error)
        except TxnError as error:
            log.info("housekeeping_waits", segment=segment.path, error=str(error))
        except Exception as error:  # noqa: BLE001  (told, and the segment is given up)
            # A defect that one segment shows ends that segment here, and keeps none of the others.
            defect("housekeeping", segment.path, error)
            segment.lost(InternalError(f"housekeeping of {segment.path} ended: {error!r}"))

    def _retention(self, path: str) -> Retention:
        topology = self._directory.topics().get(topic_path_of(path))
        if topology is None or topology.deleting:
            return Retention()
        name = SegmentName.from_path(path)
        return retention_of(topology.policies, lo=name.lo, hi=name.hi)
