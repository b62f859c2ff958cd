"""Maintains a segment's ledgers: writes aborted sidecars, rolls by age, trims, and finishes interrupted trims.

A round of one segment is a sequence of steps; a crash, or the loss of the segment, may follow each. The next owner's
rounds begin with the unfinished steps. Source: DESIGN §6 ("sidecar"), §8 ("Retention").
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
from segments.log.ledgers.retention import (
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
from segments.log.ledgers.segment_log import SegmentLog
from segments.log.settings import BrokerSettings
from txnstore import keys, records
from txnstore.access.paging import in_pages, in_parts
from txnstore.records import LedgerInfo, LedgerRecord
from txnstore.store import MAX_COMMIT_OPS, KeyValue, MetadataStore
from txnstore.writes.op_transitions import clean_up_ops, plan_clean_up, read_clean_up_verdict
from txnwire.errors import DataCorrupt, InternalError, InvalidArgument, OutcomeUnknown, TxnError
from txnwire.ids import EARLIEST, Position
from txnwire.names import SegmentName
from txnwire.ports import Clock
from txnwire.tasks import defect, restarted
from watchers.visibility import AbortedKey, TransactionBuffer

log = structlog.get_logger(__name__)

RECORDS_AT_ONCE: Final = MAX_COMMIT_OPS - clean_up_ops()
NAMES_AT_ONCE: Final = 1000
LISTS_AT_ONCE: Final = 50
"""Ledger lists per read: the head of one may take 20 KB."""


@dataclass(frozen=True, slots=True)
class KeepingStatistics:
    """Counts since this broker owns the segment. `skipped_entries`: trimmed before a reader or consumer read them."""

    trimmed_ledgers: int = 0
    trimmed_bytes: int = 0
    sidecars: int = 0
    records_moved: int = 0
    rolled_by_age: int = 0
    skipped_entries: int = 0

    def plus(self, other: KeepingStatistics) -> KeepingStatistics:
        return KeepingStatistics(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


class KeptSegment(Protocol):
    """The part of a segment that housekeeping uses."""

    path: str
    epoch: int
    ledgers: SegmentLog
    buffer: TransactionBuffer
    cursors_held: asyncio.Lock
    """Held while a cursor moves back, and while entries that every cursor has passed are removed."""

    def check(self) -> None: ...
    def lost(self, error: TxnError) -> None: ...
    @property
    def may_roll(self) -> bool:
        """Whether the disk has room for another ledger."""

    async def roll(self) -> None: ...
    async def checkpoint(self) -> None:
        """Write the producers' dedup snapshot beside the newest ledger; for a sealed segment, beside an empty one."""

    async def drained(self) -> Position | None:
        """The last position up to which every subscription of the topic is done; None if there is no subscription."""

    def unread_below(self, below: Position) -> int:
        """How many entries before `below` are still unread, summed over readers and consumers."""

    def follow_trim(self) -> None:
        """Move cursors up to the first position kept."""

    @property
    def open_bytes(self) -> int: ...


class Housekeeping:
    """Runs the maintenance rounds of one segment."""

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
        """Run one round. Raises the error that stopped it; the next round continues from there."""
        await self._finish_trim()
        try:
            await self._move_to_sidecar()
        except LedgerFailed as error:
            # ▲ A full disk without room for a sidecar must not prevent the trim: its records stay in etcd meanwhile.
            log.warning("sidecar_not_written", segment=self._segment.path, error=str(error))
        await self._roll(retention)
        await self._trim(await self._with_share_left(retention))

    async def _with_share_left(self, retention: Retention) -> Retention:
        """▲ A sealed segment keeps what its descendants leave of the share of its hash range (`share_left`)."""
        if retention.bytes_kept is None or not self._ledgers.ended:
            return retention
        segment = SegmentName.from_path(self._segment.path)
        # ▲ Do not read the lists of the whole topic: every sealed segment would read those of all the others.
        prefix, later = keys.ledger(segment.topic.path) + b"/", dict[bytes, SegmentName]()
        async for page in in_pages(self._store, prefix, keys.prefix_end(prefix), at_once=NAMES_AT_ONCE, keys_only=True):
            names = {one.key: _name_of(one.key) for one in page}
            later |= {key: name for key, name in names.items() if name is not None and overlap_of(segment, name)}
            await asyncio.sleep(0)
        others: list[tuple[SegmentName, LedgerRecord]] = []
        for part in in_parts(list(later), self._store.page_size(LISTS_AT_ONCE)):
            _, found = await self._store.get_many(part)
            lists = [(later[one.key], _list_of(one)) for one in found if one is not None]
            others += [(name, record) for name, record in lists if record is not None]
        return retention._replace(bytes_kept=share_left(retention.bytes_kept, segment, others))

    async def forgotten(self, producers: int) -> bool:
        """See `Segment.forgotten`. `producers`: how many are remembered here. Wall-clock age ends that too, as in
        `expired`: under every new owner their idle times start again."""
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
        """Move the aborted records of closed, decided ledgers from etcd to a file beside the last such ledger.

        ▲ Only decided ledgers: an open transaction, or one whose aborted record is not durable yet, is in no sidecar.
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
            written = await self._ledgers.load_sidecar(last)  # listed; after a crash its records may still be in etcd
        else:
            written = await self._ledgers.add_sidecar(last.ledger_id, aborted)
            self._sidecars += 1
        await self._forget(last.ledger_id, written)

    async def _forget(self, ledger_id: int, written: Mapping[AbortedKey, Position]) -> None:
        """▲ Only after the sidecar is synced and listed: delete its records from etcd."""
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
        due = due or bool(self._segment.open_bytes and self._many_aborted())
        if due and self._segment.may_roll:
            await self._segment.roll()
            self._rolled += 1

    def _many_aborted(self) -> bool:
        """Whether the sidecar of the open ledger would take many records out of etcd.

        ▲ Those of closed ledgers do not count: an open transaction keeps them in etcd, and each closed ledger starts
        the next round, so the log would roll without a pause."""
        bound, writer = self._settings.aborted_in_store, self._ledgers.writer
        if writer is None or self._buffer.records_in_store <= bound:
            return False
        return self._buffer.records_from(Position(writer.ledger_id, -1)) > bound

    # ---- trimming ---------------------------------------------------------------------------------------------------

    async def _trim(self, retention: Retention) -> None:
        if self._ledgers.sealed and not self._ledgers.ended:
            # ▲ The seal may yet be undone, or its layout be late: no further footer can be written, and the newest is
            # beside a closed ledger, which time, or a stepped clock, would trim.
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
        # ▲ Footers hold the producers' dedup state: write another one before the newest is deleted.
        kept = await self._with_new_footer(kept)
        if await self._trim_below(kept, going, retention):
            await self._finish_trim()

    async def _trim_below(self, kept: int, going: list[LedgerInfo], retention: Retention) -> bool:
        """Trim before the ledger `kept`; returns whether anything was trimmed.

        ▲ Check again which ledgers are drained, and let no cursor move back before the trim is recorded: a seek that
        moved a cursor back while the footer was written would lose its messages."""
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
        """The last position that may be trimmed."""
        bound = self._buffer.watermark
        if retention.undrained:
            return bound
        try:
            drained = await self._segment.drained()
        except DataCorrupt as error:
            # ▲ It is unknown what a subscription still needs: trim nothing. If this broker gave the segment up, the
            # segment would change its owner in every round.
            log.warning("not_trimmed", segment=self._segment.path, error=str(error))
            return EARLIEST
        return bound if drained is None else min(bound, drained)

    async def _keep_footer(self) -> None:
        """Write the footer beside an empty ledger, so that the last with entries may go. On a full disk it stays."""
        try:
            await self._segment.checkpoint()
        except LedgerFailed as error:
            log.warning("footer_not_kept", segment=self._segment.path, error=str(error))

    async def _with_new_footer(self, kept: int) -> int:
        """Write a new footer; returns the first ledger to keep, `kept` if the footer is written. If it fails, for
        example on a full disk, ▲ keeps the newest existing footer; raises the error if nothing else may go."""
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
        """Delete the aborted records of trimmed ledgers, then their files, then their rows in the list.

        ▲ R3: an aborted record lives until its data is trimmed. Deletes in steps, as a large ledger's records do not
        fit into one etcd transaction; recovery loads the remaining ones, which is harmless.
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


def _name_of(key: bytes) -> SegmentName | None:
    """The segment of a ledger list; None for a key that names no segment: such a list is never trimmed."""
    try:
        return SegmentName.from_path(key[len(keys.LEDGER) :].decode())
    except (InvalidArgument, UnicodeDecodeError) as error:
        log.warning("ledger_list_of_no_segment", key=repr(key), error=str(error))
        return None


def _list_of(record: KeyValue) -> LedgerRecord | None:
    """Another segment's ledger list; ▲ None if it cannot be read: an error would end every segment that it came
    from in each round; only its own owner can handle it. Without the list they keep more, never less."""
    try:
        return records.decode(LedgerRecord, record.value, key=record.key)
    except DataCorrupt as error:
        log.warning("ledger_list_not_read", key=repr(record.key), error=str(error))
        return None


class HousekeptSegment(Protocol):
    path: str

    def lost(self, error: TxnError) -> None: ...
    async def keep(self, retention: Retention) -> None: ...


class Housekeeper:
    """Runs the rounds of all segments of a broker, one after the other, in one task."""

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
        """Finish the current segment's round, then stop; after `timeout_s` interrupt it, as a crash would."""
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
        """Request a round: a ledger was closed there, or its topic's policies have changed."""
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
            # ▲ A wake does not restart the pause: a busy segment that closes a ledger every few seconds must not delay
            # the trim of quiet ones, or the retry of failed rounds.
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
            # ▲ After a rewrite with an unknown outcome this owner does not know the list: the next owner reads it.
            segment.lost(error)
        except TxnError as error:
            log.info("housekeeping_waits", segment=segment.path, error=str(error))
        except Exception as error:  # noqa: BLE001  (reported, and the segment is given up)
            # A defect in one segment ends that segment here, and does not stop the others.
            defect("housekeeping", segment.path, error)
            segment.lost(InternalError(f"housekeeping of {segment.path} ended: {error!r}"))

    def _retention(self, path: str) -> Retention:
        topology = self._directory.topics().get(topic_path_of(path))
        if topology is None or topology.deleting:
            return Retention()
        name = SegmentName.from_path(path)
        return retention_of(topology.policies, lo=name.lo, hi=name.hi)
