"""`txnctl check --repair`: repairs an etcd restored from a backup before any process works with it (E8).

    take every process's right to write, mark the repair as begun → ledger lists, sidecars → open transactions
    → ids and epochs above all that was used → the mark of the data folder → a new identity, by which it is fit again

Each step may be done twice, so an interrupted repair is simply run again; until it ends no other process starts.
`rewound` decides, and says why; this module carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.sidecars import encode_sidecar
from segments.log.ledgers.dedup_footer import covered_by
from segments.log.ledgers.ledger_pages import ListPage, cut
from txnctl.checking import raising
from txnctl.checking.dropped_list import BEGUN_AFTER, DroppedList
from txnctl.checking.dropping import SHOWN, Dropping, few
from txnctl.checking.picture import Picture, expect_readable, take_picture
from txnctl.checking.rewound import (
    Adopted,
    Doomed,
    OnDisk,
    Reckoning,
    RewoundJudge,
    RewoundVerdict,
    adopt,
    is_active,
    start_of,
)
from txnctl.checking.written import AbortedAt, WrittenEntry, read_sidecar, unlisted_sidecars, written_behind
from txnctl.process.store_mark import Mark, StoreMark
from txnstore import keys, records
from txnstore.access.store_client import StoreClient
from txnstore.records import ABORTED, OPEN, REASON_ADMIN, AbortedRecord, Incarnation, LedgerInfo, LedgerRecord
from txnstore.store import Commit, Delete, Put, Read, absent, unchanged_since
from txnstore.writes.transitions import decide, plan_end
from txnwire.errors import DataCorrupt, InternalError, NotAllowed
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.ports import Clock, Random

ADOPTED_AT_ONCE = 1024
"""Ledgers that one commit adds to a list: 170 bytes each at most."""
REPORT = "repairs.log"
"""File in the data folder with the reports of all repairs."""
LEASED = (keys.OWNER, keys.BROKER, keys.TC, keys.TC_MEMBER, keys.LEADER, keys.PIN, keys.SENDER)
"""Records that give processes their rights. ▲ Without its sender key an earlier process cannot write."""

BEGUN_NEWER = "a repair was begun and has not come to its end"
BEGUN_OLDER = f"{BEGUN_NEWER} (the data folder is no newer than etcd)"
BEGUN = (BEGUN_NEWER, BEGUN_OLDER)

Finding = tuple[str, str]


class Repair:
    """One run over one store and the one data folder of its brokers. `store` was connected with `repairing`."""

    def __init__(
        self,
        store: StoreClient,
        ledgers: FileLedgerStore,
        mark: StoreMark,
        clock: Clock,
        random: Random,
        *,
        tcids: int,
        on_progress: Callable[[str], None],
    ) -> None:
        self._store = store
        self._ledgers = ledgers
        self._mark = mark
        self._report = mark.folder / REPORT
        self._clock = clock
        self._random = random
        self._tcids = tcids
        self.on_progress = on_progress
        self._findings: list[Finding] = []
        self.dropped_list = DroppedList(mark.folder / "dropped.jsonl")
        self._lost: dict[TxnId, int] = {}
        self._steps = 1
        self._interrupted = range(0)
        self._floor = 0
        self._folder_revision = 0
        self._folder_is_older = False
        self._mine = absent(keys.INCARNATION)
        """▲ Condition that no other repair has begun; every write compares it. Another repair may have started over, or
        have ended, so that the store's processes work again."""
        self._committed: dict[TxnId, None] = {}
        """The transactions that a sidecar shows as committed."""

    async def run(self, why: str) -> list[Finding]:
        """Returns findings and actions as text. `why`: the reason why etcd is unfit. Raises `StoreUnavailable`,
        `DataCorrupt`, `LedgerFailed`; then run it again."""
        self.on_progress("etcd")
        expect_readable(await take_picture(self._store), LEASED)  # before anything is changed
        begun = await self._begin(why)
        picture = await take_picture(self._store)
        on_disk = await self._on_disk()
        counted = {}
        self.dropped_list = DroppedList(self._mark.folder / f"dropped-{begun.generation}.jsonl")
        self.dropped_list.go_on(self._interrupted, picture)
        self.dropped_list.list_open(picture)
        self._dropping = Dropping(self, picture)
        for segment in picture.segments():
            self.on_progress(f"files of {segment}")
            counted[segment] = await self._count(picture, segment, on_disk.pop(segment, ()))
        await self._dropping.drop_torn(counted, self._folder_revision)
        judge = RewoundJudge(picture)
        for segment in picture.segments():
            self.on_progress(segment)
            await self._repair_segment(picture, judge, segment, counted[segment])
        await self._set_orphans_aside(on_disk, begun.former[-1])
        self._report_lost()
        self.dropped_list.write()
        await self._abort_open(picture)
        tcids = raising.tcids_of(picture, self._tcids, self._lost)
        used = raising.Used(tcids, [*picture.segments(), *on_disk], self._steps, begun.generation)
        self._floor = await raising.raise_ids(self._store, self.put, picture, used, self._floor)
        if self.dropped_list:
            self.find("dropped", self.dropped_list.summary())
        self.find("ids", f"transaction ids of {tcids} coordinator ids, segment ids and all epochs were raised")
        await self._end(begun)
        return self._findings

    def find(self, rule: str, text: str) -> None:
        """▲ Runs also after a half-done repair, because that one's report is lost."""
        self._findings.append((rule, text))
        with self._report.open("a") as report:
            report.write(f"{rule}: {text}\n")

    # ---- begin and end ----------------------------------------------------------------------------------------------

    async def _begin(self, why: str) -> Incarnation:
        """▲ One commit writes another identity, the mark "not fit yet", and the end of every process's right to write:
        running processes are refused from here on, and starting ones are told to wait."""
        found = await self._store.get(keys.INCARNATION)
        if found is None:
            raise InternalError("there is no /incarnation: no server has used this store, there is nothing to repair")
        before = records.decode(Incarnation, found.value, key=keys.INCARNATION)
        mark = self._expect_folder(before)
        self._folder_revision = mark.revision
        revision, _ = await self._store.get_many([keys.INCARNATION])
        # ▲ A continued repair has raised the revision itself.
        self._folder_is_older = before.repair == BEGUN_OLDER if before.repair in BEGUN else revision >= mark.revision
        generation = max(before.generation, mark.generation) + 1
        self._steps = generation - before.generation
        if before.repair in BEGUN:
            self._interrupted = range(min(mark.generation + 1, before.generation), generation)
        self._floor = mark.segment_floor
        begun = Incarnation(
            id=f"{self._random.getrandbits(64):016x}",
            created_ms=self._clock.wall_ms(),
            raft_lead=before.raft_lead,
            generation=generation,
            former=list(dict.fromkeys([*before.former, *mark.former, mark.incarnation, before.id])),
            repair=BEGUN_OLDER if self._folder_is_older else BEGUN_NEWER,
        )
        self._mine = unchanged_since(keys.INCARNATION, found.mod_revision)
        taken = tuple(Delete(prefix, keys.prefix_end(prefix)) for prefix in LEASED)
        self._mine = unchanged_since(keys.INCARNATION, await self._put_identity(begun, taken))
        self.find("store", before.repair or why)
        return begun

    def _expect_folder(self, identity: Incarnation) -> Mark:
        """▲ With an empty folder, or another store's, every ledger would count as trimmed."""
        mark = self._mark.read()
        if mark is None or not mark.knows(identity):
            told = "has no mark of any" if mark is None else f"belongs to etcd store {mark.incarnation}"
            raise NotAllowed(f"the data folder {told}, this is {identity.id}: repair with the folder of its brokers")
        return mark

    async def _end(self, begun: Incarnation) -> None:
        revision, _ = await self._store.get_many([keys.INCARNATION])
        # The mark first: servers refuse a folder that is one step ahead of etcd, but not one that is a step behind.
        self._mark.write(begun, revision, segment_floor=self._floor)
        fit = msgspec.structs.replace(begun, raft_lead=await self._store.raft_lead(), repair="")
        await self._put_identity(fit)
        self.find("store", f"fit again, as store {fit.id} (it was {fit.former[-1]})")

    async def _put_identity(self, identity: Incarnation, deletes: tuple[Delete, ...] = ()) -> int:
        """Returns the revision at which it was written, by this or an earlier attempt."""
        value, read = records.encode(identity), (Read(keys.INCARNATION),)
        result = await self._store.commit(Commit((self._mine,), (Put(keys.INCARNATION, value),), deletes, read))
        if result.succeeded:
            return result.revision
        found = result.reads[0][0] if result.reads[0] else None
        if found is None or found.value != value:
            raise _somebody_else()
        return found.mod_revision

    async def put(self, key: bytes, record: msgspec.Struct) -> None:
        await self._commit(Commit((self._mine,), (Put(key, records.encode(record)),)))

    async def delete(self, key: bytes) -> None:
        await self._commit(Commit((self._mine,), (), (Delete(key),)))

    async def _commit(self, commit: Commit) -> None:
        if not (await self._store.commit(commit)).succeeded:
            raise _somebody_else()

    def now_ms(self) -> int:
        return self._clock.wall_ms()

    async def stamped_ms(self) -> int:
        """The cluster's clock when it was stamped into etcd last, 0 if it never was."""
        found = await self._store.get(keys.CLOCK)
        return 0 if found is None else records.decode(records.ClockStamp, found.value, key=found.key).ms

    async def cut(self, segment: str, ledger_id: int, entries: int, *, present: bool) -> None:
        """▲ Also discards a footer that covers lost entries: with it the segment would take lost entries that are sent
        again for stored. Its knowledge of producers is read from the ledgers instead."""
        footer = await self._ledgers.read_footer(segment, ledger_id)
        if footer is not None and covered_by(footer, f"footer of ledger {ledger_id} of {segment}") > entries:
            await self._ledgers.discard_footer(segment, ledger_id)
        if present:
            await self._ledgers.cut(segment, ledger_id, entries)

    # ---- ledgers ----------------------------------------------------------------------------------------------------

    async def _on_disk(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for segment, _ in await self._ledgers.list():
            if segment not in found:
                found[segment] = list(await self._ledgers.present(segment))
        return found

    async def _count(self, picture: Picture, segment: str, present: Iterable[int]) -> dict[int, OnDisk]:
        """Counts what the files of a segment hold, fencing open ones; reports what is missing."""
        await self._expect_mine()  # before any file is touched
        record = picture.ledgers.get(segment, LedgerRecord(ledgers=[]))
        below = 0 if record.trimmed_below is None else record.trimmed_below[0]
        closed = {info.ledger_id: info for info in record.ledgers if info.closed_length is not None}
        counted: dict[int, OnDisk] = {}
        for ledger_id in present:
            if ledger_id < below:
                continue
            if ledger_id in closed:
                counted[ledger_id] = await self._count_closed(segment, closed[ledger_id])
            else:
                counted[ledger_id] = await self._count_open(segment, ledger_id)
        self._dropping.count(segment, counted, trimmed_since=not self._folder_is_older)
        return counted

    async def _count_open(self, segment: str, ledger_id: int) -> OnDisk:
        try:
            found = await self._ledgers.fence(segment, ledger_id)
        except DataCorrupt as error:
            return await self._count_damaged(segment, ledger_id, error)
        return OnDisk(found.entries, found.bytes)

    async def _count_damaged(self, segment: str, ledger_id: int, error: DataCorrupt) -> OnDisk:
        """A damaged ledger may only be shorter than its earlier count. ▲ Otherwise, if etcd has not gone back, only its
        own segment is not served. A restored etcd could not tell which entries are committed once the ledger is
        fixed."""
        try:
            there = await self._ledgers.look_at(segment, ledger_id)
        except DataCorrupt:
            if not self._folder_is_older:
                raise
            self.find("missing", f"{segment}: open ledger {ledger_id} is damaged, no broker serves it: {error}")
            return OnDisk(0, 0, damaged=True)
        if there is None:
            raise error
        return OnDisk(there.entries, there.bytes, await self._ledgers.counted(segment, ledger_id))

    async def _count_closed(self, segment: str, info: LedgerInfo) -> OnDisk:
        """▲ Keeps the recorded length, unless the ledger is shorter. A damaged one counts as whole: `check` names it,
        and its readers get an error."""
        listed = OnDisk(info.closed_length or 0, info.bytes)
        try:
            there = await self._ledgers.look_at(segment, info.ledger_id)
        except DataCorrupt as error:
            self.find("missing", f"{segment}: ledger {info.ledger_id} is damaged: {error}")
            return listed
        return listed if there is None or there.entries >= listed.entries else OnDisk(there.entries, there.bytes)

    async def _expect_mine(self) -> None:
        found = await self._store.get(keys.INCARNATION)
        if found is None or found.mod_revision != self._mine.value:
            raise _somebody_else()

    async def _repair_segment(
        self, picture: Picture, judge: RewoundJudge, segment: str, counted: dict[int, OnDisk]
    ) -> None:
        await self._expect_mine()
        record = picture.ledgers.get(segment, LedgerRecord(ledgers=[]))
        adopted = adopt(
            record,
            counted,
            active=is_active(picture, segment),
            now_ms=self._clock.wall_ms(),
            steps=self._steps,
            trimmed_since=not self._folder_is_older,
        )
        self._report_ledgers(segment, record, adopted, counted)
        ledgers = await self._dropping.shorten(segment, adopted.record)
        evidence = await unlisted_sidecars(self._ledgers, segment, ledgers)
        doomed, lost = await self._reckon(picture, judge, segment, ledgers, evidence)
        # ▲ In this order: remove a sidecar that lacks newly aborted entries, write the complete one, then list it. A
        # remaining old sidecar would be adopted instead, and the records that contradict it would leave etcd.
        listed_with = {info.ledger_id: info.aborted for info in ledgers.ledgers}
        counts = {}
        for ledger_id, aborted in doomed.by_ledger.items():
            if listed_with[ledger_id] or lost:
                # A sidecar is immutable: others depend on it. A lost one stays listed until all records it listed are
                # in etcd, in case the repair is interrupted.
                await self._put_records(segment, aborted)
            else:
                await self._ledgers.discard_sidecar(segment, ledger_id)
                await self._ledgers.write_sidecar(segment, ledger_id, encode_sidecar(ledger_id, aborted))
                counts[ledger_id] = len(aborted)
        counts.update(dict.fromkeys(lost, 0))
        infos = [
            msgspec.structs.replace(info, aborted=counts.get(info.ledger_id, info.aborted)) for info in ledgers.ledgers
        ]
        changed = msgspec.structs.replace(ledgers, ledgers=infos)
        if changed != record:
            await self._put_list(segment, len(record.ledgers), changed, picture.ledger_pages.get(segment, []))
        # ▲ Also a ledger that an interrupted repair took off the list: the next owner would adopt its positions.
        beside = {*(info.ledger_id for info in record.ledgers if info.aborted), *evidence}
        for info in changed.ledgers:
            if info.ledger_id in beside and not info.aborted:
                await self._ledgers.discard_sidecar(segment, info.ledger_id)

    async def _put_list(self, segment: str, stood: int, record: LedgerRecord, pages: list[ListPage]) -> None:
        """Writes the list in steps that fit one commit, each without a gap: after an interruption the next repair finds
        the rest on the disk again."""
        for length in (*range(stood + ADOPTED_AT_ONCE, len(record.ledgers), ADOPTED_AT_ONCE), None):
            now = cut(segment, msgspec.structs.replace(record, ledgers=record.ledgers[:length]), pages)
            puts = (Put(keys.ledger(segment), records.encode(now.head)), *now.puts)
            if not (await self._store.commit(Commit((self._mine,), puts, now.deletes))).succeeded:
                raise _somebody_else()
            pages = now.pages

    async def _put_records(self, segment: str, aborted: AbortedAt) -> None:
        for (txn_id, writer), position in aborted.items():
            record = AbortedRecord(max_position=(position.ledger_id, position.entry_id))
            await self.put(keys.aborted(segment, txn_id, writer), record)

    async def listed_sidecar(self, segment: str, info: LedgerInfo) -> AbortedAt | None:
        """None if it is lost or damaged, or there is none."""
        try:
            return await read_sidecar(self._ledgers, segment, info.ledger_id) if info.aborted else None
        except DataCorrupt as error:
            self.find("missing", f"{segment}: the sidecar of ledger {info.ledger_id} is damaged: {error}")
            return None

    async def _reckon(
        self, picture: Picture, judge: RewoundJudge, segment: str, record: LedgerRecord, evidence: dict[int, AbortedAt]
    ) -> tuple[Doomed, list[int]]:
        """Also returns ledgers with lost sidecars whose content is known from elsewhere. ▲ Without other sources it is
        unknown whether an entry was aborted: then the sidecars stay listed, and the segment is not served."""
        known: AbortedAt = {}
        lost: list[int] = []
        for info in record.ledgers:
            listed = await self.listed_sidecar(segment, info)
            known.update(listed or {})
            if info.aborted and listed is None:
                lost.append(info.ledger_id)
        reckoning = Reckoning(picture, judge, segment, known)
        decided = start_of(picture, segment)
        start = decided if not self._dropping.dropped and not lost else EARLIEST
        unknown: dict[TxnId, None] = {}
        last: dict[TxnId, int] = {}
        for info in record.ledgers:
            written = await self._entries_of(segment, info, start, lost=bool(lost))
            for position, txn_id, writer, messages in written:
                if messages:
                    self._note(txn_id, judge, writer, segment, messages)
                last[txn_id] = info.ledger_id
                if lost or position > decided or txn_id in self._dropping.dropped:
                    reckoning.entry(txn_id, writer, position, messages)
                if lost and judge.is_unknown(txn_id, writer) and not reckoning.knows(txn_id, writer):
                    unknown[txn_id] = None
        doomed = reckoning.doomed()
        committed: dict[TxnId, None] = {}
        for txn_id, ledger_id in last.items():
            # An aborted transaction that ends in a ledger is listed in its sidecar, once there is one.
            aborted = {one for one, _ in evidence.get(ledger_id, {})}
            if ledger_id in evidence and txn_id not in aborted and self.dropped_list.holds(txn_id):
                committed[txn_id] = None
        self.dropped_list.were_committed([txn_id for txn_id in committed if txn_id not in self._committed])
        self._committed |= committed
        for txn_id, messages in doomed.lost.items():
            self._lost[txn_id] = self._lost.get(txn_id, 0) + messages
        if lost and unknown:
            self.find(
                "missing",
                f"{segment}: the sidecars of ledgers {few(lost)} are lost, so it is not known whether {few(unknown)} "
                "were aborted, and no broker serves the segment",
            )
            return doomed, []
        if lost:
            self.find("sidecars", f"{segment}: those of ledgers {few(lost)} are lost; etcd still has their records")
        return doomed, lost

    def _note(self, txn_id: TxnId, judge: RewoundJudge, writer: int, segment: str, messages: int) -> None:
        if not self.dropped_list.holds(txn_id):
            if judge.verdict(txn_id, writer) is not RewoundVerdict.LOST:
                return
            self.dropped_list.add(txn_id, BEGUN_AFTER)
        self.dropped_list.left(txn_id, segment, messages)

    async def entries(self, segment: str, ledger_id: int, length: int, start: Position) -> list[WrittenEntry]:
        """As `written_behind`."""
        return await written_behind(start, self._ledgers, segment, ledger_id, length)

    async def _entries_of(self, segment: str, info: LedgerInfo, start: Position, *, lost: bool) -> list[WrittenEntry]:
        """▲ A damaged closed ledger may hold an entry of each dropped transaction: the repair aborts them there, too,
        in case the file is put back. Until then readers of the ledger get an error, and the repair goes on. Raises
        `DataCorrupt` if only the entries tell which are committed: etcd has gone back, or sidecars are lost."""
        length = info.closed_length or 0
        try:
            return await self.entries(segment, info.ledger_id, length, start)
        except DataCorrupt:
            if lost or not self._folder_is_older:
                raise
            end = Position(info.ledger_id, length - 1)
            return [WrittenEntry(end, txn_id, records.NO_WRITER, 0) for txn_id in self._dropping.dropped]

    def _report_ledgers(self, segment: str, record: LedgerRecord, adopted: Adopted, counted: dict[int, OnDisk]) -> None:
        if adopted.new:
            entries = sum(counted[ledger_id].entries for ledger_id in adopted.new)
            self.find(
                "ledgers",
                f"{segment}: {entries} entries in ledgers {few(adopted.new)}, written after the backup: kept",
            )
        if trimmed := [one for one in adopted.gone if one not in adopted.missing]:
            self.find(
                "ledgers",
                f"{segment}: the files of ledgers {few(trimmed)} are missing, because of retention or deletion after "
                "the backup (or they are lost): readers begin after them",
            )
        for ledger_id in adopted.missing if segment not in self._dropping.short else ():
            self.find(
                "missing",
                f"{segment}: the file of ledger {ledger_id} is missing, although older ones are there: its data is "
                "lost, and `check` will keep reporting it",
            )
        if record.sealed and adopted.record.sealed is None:
            self.find("layout", f"{segment}: its seal was undone after the backup, and is again")

    async def _set_orphans_aside(self, on_disk: dict[str, list[int]], folder: str) -> None:
        for segment, present in on_disk.items():
            entries = 0
            for ledger_id in present:
                try:
                    entries += (await self._ledgers.fence(segment, ledger_id)).entries
                except DataCorrupt as error:
                    self.find("orphans", f"{segment}: {error}")
            to = await self._ledgers.set_aside(segment, folder)
            self.find(
                "orphans",
                f"{segment}: {entries} entries in files of a segment that belongs to no topic: it was created or "
                f"split off after the backup. They are in {to} now, unchanged; no broker reads them",
            )

    def _report_lost(self) -> None:
        if not self._lost:
            return
        sure = sum(txn_id in self._lost for txn_id in self._committed)
        told = f"{sure} of them are known to have been committed" if sure else "whether they had ended, nothing tells"
        self.find(
            "transactions",
            f"{len(self._lost)} transactions with {sum(self._lost.values())} messages were begun after the backup. "
            f"Etcd has neither them nor their acks, so they are aborted; {told}",
        )
        for txn_id, messages in list(self._lost.items())[:SHOWN]:
            known = ", known to have been committed" if txn_id in self._committed else ""
            self.find("transactions", f"{txn_id}: {messages} messages{known}")

    # ---- etcd -------------------------------------------------------------------------------------------------------

    async def _abort_open(self, picture: Picture) -> None:
        """Aborts transactions open as of the backup: their later outcomes are unknown."""
        count = 0
        for txn_id, header in picture.headers.items():
            if header.state == OPEN:
                now_ms = self._clock.wall_ms()
                decided = decide(header, ABORTED, finalized_ms=now_ms, reason=REASON_ADMIN, writers=None)
                end = plan_end(txn_id, decided, deadline_key=True)
                await self._store.commit(msgspec.structs.replace(end, compares=(*end.compares, self._mine)))
                count += 1
                if count <= SHOWN:
                    self.find("open", f"{txn_id} was open when the backup was taken: aborted")
        if count > SHOWN:
            self.find("open", f"{count} transactions were open when the backup was taken: all aborted")


def _somebody_else() -> InternalError:
    return InternalError("another process changed /incarnation: is another repair running? Wait, and repair again")
