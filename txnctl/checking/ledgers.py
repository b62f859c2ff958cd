"""Compares closed ledgers with `/ledger`: every counted entry exists, whole, and there are no unknown files."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable

from segments.layout.topology import Topology
from segments.ledger.ledger import LedgerStore, Recovered
from segments.ledger.ledger_evidence import REPAIR
from segments.ledger.sidecars import decode_sidecar
from segments.log.ledgers.ledger_list import read_list
from segments.log.ledgers.retention import kept_ledgers
from txnctl.checking.missing import Shortfall, shortfalls
from txnctl.checking.picture import Picture
from txnctl.checking.rewound import OnDisk
from txnstore import keys, records
from txnstore.records import LedgerInfo, LedgerRecord, TopicRecord
from txnstore.store import KeyValue, MetadataStore
from txnwire.errors import TxnError
from txnwire.ids import Position
from txnwire.names import SegmentName

READ_BYTES = 4 * 1024 * 1024


class Now:
    """The newest state of etcd, so that changes since the picture are not reported as faults."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def is_kept(self, segment: str, ledger_id: int) -> bool:
        """Whether the ledger is still needed: it may have been trimmed, or its topic deleted."""
        name = SegmentName.from_path(segment)
        key, topic = keys.ledger(segment), keys.topic(name.topic.path)
        revision, (found, layout) = await self._store.get_many([key, topic])
        record = None if found is None else await self._whole(segment, found, revision)
        if layout is None or record is None:
            return False
        topology = Topology(name.topic, records.decode(TopicRecord, layout.value, key=topic))
        listed = any(one.ledger_id == ledger_id for one in kept_ledgers(record))
        return listed and not topology.is_going(name.segment_id)

    async def is_listed(self, segment: str, ledger_id: int) -> bool:
        """Whether the ledger is one of the segment's: a ledger is listed before its file is made."""
        revision, (found,) = await self._store.get_many([keys.ledger(segment)])
        record = None if found is None else await self._whole(segment, found, revision)
        return record is not None and any(one.ledger_id == ledger_id for one in record.ledgers)

    async def _whole(self, segment: str, head: KeyValue, revision: int) -> LedgerRecord:
        return (await read_list(self._store, segment, head, revision))[0]


async def broken_ledgers(
    picture: Picture,
    ledgers: LedgerStore,
    on_progress: Callable[[str], None],
    *,
    now: Now | None = None,
) -> AsyncIterator[tuple[str, str]]:
    """All violations as (rule, finding). Open ledgers belong to their owners and are not read, nor are ledgers that are
    trimmed or being erased. `now`: read again before a finding is reported, if the cluster is at work."""
    listed = {(segment, one.ledger_id): one for segment, record in picture.ledgers.items() for one in record.ledgers}
    going = picture.going()
    for segment, record in picture.ledgers.items():
        for info in kept_ledgers(record) if segment not in going else ():
            if info.closed_length:
                on_progress(f"{segment} ledger {info.ledger_id}")
            for rule, finding in await _broken(ledgers, segment, info):
                if now is None or await now.is_kept(segment, info.ledger_id):
                    yield rule, finding
    async for short in missing_entries(picture, ledgers, on_progress, closed=False):
        if not short.exact and (now is None or await now.is_kept(short.segment, short.ledger_id)):
            yield "nothing_acknowledged_is_missing", f"{short}; {REPAIR}"
    for segment, ledger_id in await ledgers.list():
        if (segment, ledger_id) in listed or _may_be_new(picture, segment, ledger_id):
            continue
        if now is None or not await now.is_listed(segment, ledger_id):
            yield "ledger_files_are_listed", f"{segment} has a file of ledger {ledger_id}, which /ledger does not list"


async def missing_entries(
    picture: Picture, ledgers: LedgerStore, on_progress: Callable[[str], None], *, closed: bool
) -> AsyncIterator[Shortfall]:
    """Finds entries that etcd knows and the files lack, in open ledgers, and with `closed` in all ledgers. Only reads;
    a damaged ledger is another finding."""
    going = picture.going()
    for segment, record in picture.ledgers.items():
        on_disk: dict[int, OnDisk] = {}
        for info in kept_ledgers(record) if segment not in going else ():
            on_disk[info.ledger_id] = OnDisk(info.closed_length or 0, info.bytes)
            if info.closed_length is None or (closed and info.closed_length):
                on_progress(f"{segment} ledger {info.ledger_id}")
                try:
                    there = await ledgers.look_at(segment, info.ledger_id)
                except TxnError:
                    there = Recovered(info.closed_length or sys.maxsize, 0)
                if there is None:
                    del on_disk[info.ledger_id]
                elif info.closed_length is None or there.entries < info.closed_length:
                    on_disk[info.ledger_id] = OnDisk(there.entries, there.bytes)
        if segment not in going:
            for one in shortfalls(picture, segment, on_disk, trimmed_since=False):
                yield one


async def missing_sidecars(picture: Picture, ledgers: LedgerStore) -> AsyncIterator[tuple[str, int]]:
    """(segment, ledger id) of listed sidecars that do not exist. A damaged one is another finding."""
    going = picture.going()
    for segment, record in picture.ledgers.items():
        for info in kept_ledgers(record) if segment not in going else ():
            try:
                missing = info.aborted and await ledgers.read_sidecar(segment, info.ledger_id) is None
            except TxnError:
                continue
            if missing:
                yield segment, info.ledger_id


async def _broken(ledgers: LedgerStore, segment: str, info: LedgerInfo) -> list[tuple[str, str]]:
    found = []
    if info.closed_length and (finding := await _unreadable(ledgers, segment, info)) is not None:
        found.append(("closed_ledgers_are_whole", finding))
    if info.aborted and (finding := await _unreadable_sidecar(ledgers, segment, info)) is not None:
        found.append(("sidecars_are_whole", finding))
    return found


def _may_be_new(picture: Picture, segment: str, ledger_id: int) -> bool:
    """A ledger one above the last may be newer than the picture, and its segment too."""
    record = picture.ledgers.get(segment)
    if segment not in picture.segments():
        return False
    last = 0 if record is None else max((info.ledger_id for info in record.ledgers), default=0)
    return ledger_id > last


async def _unreadable_sidecar(ledgers: LedgerStore, segment: str, info: LedgerInfo) -> str | None:
    """▲ Its records are gone from etcd: without it aborted entries would be read as committed (DESIGN §6)."""
    where = f"the sidecar of {segment} ledger {info.ledger_id}"
    try:
        raw = await ledgers.read_sidecar(segment, info.ledger_id)
        if raw is None:
            return f"{where} is missing: {info.aborted} aborted records were in it"
        aborted = decode_sidecar(raw, info.ledger_id, where)
    except TxnError as error:
        return str(error)
    end = Position(info.ledger_id, info.closed_length or 0)
    beyond = [txn_id for (txn_id, _), position in aborted.items() if position >= end]
    if len(aborted) != info.aborted or beyond:
        return f"{where} holds {len(aborted)} aborted records of {info.aborted}, {len(beyond)} of them beyond its end"
    return None


async def _unreadable(ledgers: LedgerStore, segment: str, info: LedgerInfo) -> str | None:
    first, length = 0, info.closed_length or 0
    try:
        while first < length:
            entries = await ledgers.read(segment, info.ledger_id, first, length - 1, max_bytes=READ_BYTES)
            ids = [entry_id for entry_id, _ in entries]
            if ids != list(range(first, first + len(ids))) or not ids:
                return f"{segment} ledger {info.ledger_id}: entry {first} is missing of {length}"
            first += len(ids)
    except TxnError as error:
        return f"{segment} ledger {info.ledger_id}: {error}"
    return None
