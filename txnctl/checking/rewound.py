"""Decides about ledgers that know more than an etcd restored from a backup (E8). Pure.

The policy and its reasons (docs/operations.md has them for users):

- *What etcd does not know as committed is aborted*, whatever other hints there are. A transaction's acks are in etcd
  alone: its writes without them would tear it, and their inputs are delivered again.
- *Plain messages are kept.* They were acknowledged, they are in the ledgers, and nothing else depends on them.
- *Nothing is used twice*: ids of transactions, segments and ledgers, epochs of keys, layouts and assignments.
- *Nothing is deleted* but wrong sidecars: those written after the backup do not list what is aborted now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from segments.layout.topology import ACTIVE
from segments.log.ledgers.retention import kept_ledgers
from txnctl.checking.picture import Picture
from txnstore import keys, records
from txnstore.records import NO_WRITER, LedgerInfo, LedgerRecord, TopicRecord, TxnSeq
from txnstore.writes.writer_lists import holds
from txnwire.ids import EARLIEST, Position, TxnId

IDS_STEP: Final = 1 << 40
"""Transaction ids go on at the next multiple of this: enough for a three-year-old backup at 10 000 a second."""
EPOCH_STEP: Final = 1 << 20
"""Added to every epoch and count that may have risen since the backup, once for each repair that the backup does not
know of, and once for this one (`steps`)."""


class RewoundVerdict(Enum):
    KEPT = "kept"
    ABORTED = "aborted"  # etcd knows it as aborted, or as open: it is aborted with the repair
    LOST = "lost"  # etcd does not know it: begun after the backup


class RewoundJudge:
    """Decides what becomes of each transaction's entries, by what etcd knows."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._writers = {
            TxnId.parse(name.txn_id): name.writers for name in picture.names.values() if name.outcome is not None
        }

    def verdict(self, txn_id: TxnId, writer: int) -> RewoundVerdict:
        header = self._picture.headers.get(txn_id)
        if header is not None:
            return self._counted(header.state, header.writers, writer)
        outcomes = self._picture.outcomes.get((txn_id.tcid, txn_id.counter // keys.OUTCOMES_PER_BLOCK))
        state = None if outcomes is None else outcomes.state_of(txn_id.counter)
        if state is not None:
            return self._counted(state, self._writers.get(txn_id), writer)
        ids = self._picture.id_blocks.get(txn_id.tcid)
        # ▲ Every id below the late-index mark had begun or never will: without a header it was collected, so its
        # aborted record exists if it was aborted. An id above has begun since the backup.
        return RewoundVerdict.KEPT if ids is not None and txn_id.counter < ids.indexed_below else RewoundVerdict.LOST

    @staticmethod
    def _counted(state: str, writers: Sequence[str] | None, writer: int) -> RewoundVerdict:
        if state != records.COMMITTED or (writers is not None and not holds(writers, writer)):
            return RewoundVerdict.ABORTED
        return RewoundVerdict.KEPT

    def is_unknown(self, txn_id: TxnId, writer: int) -> bool:
        """Whether only its aborted record could tell: its header was collected, and its outcome or its list of counting
        writers has expired."""
        if txn_id in self._picture.headers:
            return False
        outcomes = self._picture.outcomes.get((txn_id.tcid, txn_id.counter // keys.OUTCOMES_PER_BLOCK))
        state = None if outcomes is None else outcomes.state_of(txn_id.counter)
        return state is None or (state == records.COMMITTED and writer != NO_WRITER and txn_id not in self._writers)

    def loses_writer(self, txn_id: TxnId) -> bool:
        """Whether only some of its writers, not all, are aborted."""
        header = self._picture.headers.get(txn_id)
        if header is not None:
            return header.state == records.COMMITTED
        outcomes = self._picture.outcomes.get((txn_id.tcid, txn_id.counter // keys.OUTCOMES_PER_BLOCK))
        return outcomes is not None and outcomes.state_of(txn_id.counter) == records.COMMITTED


class OnDisk(NamedTuple):
    """The content of a fenced ledger file. `counted`: the count of an earlier owner that fenced it, if higher.
    `damaged`: the content is unknown, so it stays open in its list, and its segment is not served."""

    entries: int
    bytes: int
    counted: int = 0
    damaged: bool = False


class Adopted(NamedTuple):
    """The future list. `new`: ledgers it did not have; `gone`: ledgers without files; `missing`: gone ledgers with
    newer ones kept beside them, so that retention has not taken them."""

    record: LedgerRecord
    new: tuple[int, ...]
    gone: tuple[int, ...]
    missing: tuple[int, ...]


def adopt(
    record: LedgerRecord,
    on_disk: Mapping[int, OnDisk],
    *,
    active: bool,
    now_ms: int,
    steps: int = 1,
    trimmed_since: bool = True,
) -> Adopted:
    """Returns the ledger list that matches the disk, with all ledgers closed.

    A listed, non-empty ledger without a file has been trimmed since the backup if all older ones are gone as well and
    `trimmed_since`: in a folder older than etcd it is lost. `active`: the layout's state of the segment; an uncompleted
    seal is undone if entries came behind it."""
    listed = {info.ledger_id: info for info in kept_ledgers(record)}
    last = max((info.ledger_id for info in record.ledgers), default=0)
    new = tuple(ledger_id for ledger_id in sorted(on_disk) if ledger_id > last) if active or not record.sealed else ()
    gone = tuple(
        info.ledger_id for info in listed.values() if info.closed_length != 0 and info.ledger_id not in on_disk
    )
    ledgers = [_closed(info, on_disk.get(info.ledger_id), now_ms) for info in listed.values()]
    ledgers += [_closed(LedgerInfo(ledger_id=one, opened_ms=now_ms), on_disk[one], now_ms) for one in new]
    first_there = min((info.ledger_id for info in ledgers if info.ledger_id in on_disk), default=None)
    trimmed = tuple(one for one in gone if trimmed_since and (first_there is None or one < first_there))
    below, through = record.trimmed_below, record.trimmed_through
    if trimmed:
        # ▲ If no ledger is left, the segment must not reuse the ids of ledgers that were made since and are gone.
        below = (first_there if first_there is not None else max(trimmed) + steps * EPOCH_STEP, 0)
        ended = listed[trimmed[-1]]
        through = (ended.ledger_id, max((ended.closed_length or 0) - 1, 0))
        ledgers = [info for info in ledgers if info.ledger_id >= below[0]]
    changed = msgspec.structs.replace(record, ledgers=ledgers, trimmed_below=below, trimmed_through=through)
    if record.sealed and active and new:
        changed = msgspec.structs.replace(changed, sealed=None, sealed_by=None)
    missing = tuple(one for one in gone if one not in trimmed and listed[one].closed_length)
    return Adopted(changed, new, gone, missing)


def _closed(info: LedgerInfo, found: OnDisk | None, now_ms: int) -> LedgerInfo:
    held = found or OnDisk(0, 0)
    if info.closed_length is not None or held.damaged:
        return info
    return msgspec.structs.replace(info, closed_length=held.entries, bytes=held.bytes, closed_ms=now_ms)


class Doomed(NamedTuple):
    """Result for one segment. `by_ledger`: what to write beside each ledger as aborted, with its highest position
    there; `lost`: messages of each transaction unknown to etcd."""

    by_ledger: dict[int, dict[tuple[TxnId, int | None], Position]]
    lost: dict[TxnId, int]


class Reckoning:
    """Takes the entries of one segment in order: those behind its watermark, and what else a repair has dropped."""

    def __init__(
        self, picture: Picture, judge: RewoundJudge, segment: str, known: Iterable[tuple[TxnId, int | None]]
    ) -> None:
        """`known`: what is aborted already, by the listed sidecars."""
        self._picture = picture
        self._judge = judge
        self._segment = segment
        self._known: dict[tuple[TxnId, int | None], None] = dict.fromkeys(known)
        self._known.update((key[1:], None) for key in picture.aborted if key[0] == segment)
        self._last: dict[tuple[TxnId, int | None], Position] = {}
        self._lost: dict[TxnId, int] = {}
        self._decided = start_of(picture, segment)

    def knows(self, txn_id: TxnId, writer: int) -> bool:
        """Whether it is aborted already."""
        return (txn_id, None) in self._known or (txn_id, writer) in self._known

    def entry(self, txn_id: TxnId, writer: int, position: Position, messages: int) -> None:
        verdict = self._judge.verdict(txn_id, writer)
        if verdict is RewoundVerdict.KEPT:
            return
        key = (txn_id, writer if self._judge.loses_writer(txn_id) else None)
        if position > self._decided and key not in self._last and (txn_id, self._segment) in self._picture.write_index:
            # A participant finishes transactions that have op records. ▲ Not at or below the watermark, where it does
            # not look: a commit lets the watermark pass before its op records go; a repair may have dropped it since.
            return
        if verdict is RewoundVerdict.LOST:  # a repeated repair reports it again
            self._lost[txn_id] = self._lost.get(txn_id, 0) + messages
        if key not in self._known and (txn_id, None) not in self._known:
            self._last[key] = position

    def doomed(self) -> Doomed:
        by_ledger: dict[int, dict[tuple[TxnId, int | None], Position]] = {}
        for key, position in self._last.items():
            by_ledger.setdefault(position.ledger_id, {})[key] = position
        return Doomed(by_ledger, self._lost)


def raised_ids(record: TxnSeq | None, generation: int) -> TxnSeq:
    """▲ `generation`: the store's from now on. A backup restored once more does not know the ids given out after its
    first repair."""
    record = record or TxnSeq(next=1)
    return msgspec.structs.replace(record, next=max(record.next // IDS_STEP + 1, generation) * IDS_STEP)


def raised_topic(record: TopicRecord, highest_on_disk: int, steps: int) -> TopicRecord:
    """Raises its next segment id above all that have files, and its layout epoch above all that were given out."""
    return msgspec.structs.replace(
        record,
        epoch=record.epoch + steps * EPOCH_STEP,
        next_segment_id=max(record.next_segment_id, highest_on_disk + 1),
    )


def start_of(picture: Picture, segment: str) -> Position:
    """Up to here etcd durably knew everything that is aborted."""
    mark = picture.watermarks.get(segment)
    return EARLIEST if mark is None else Position(*mark.position)


def is_active(picture: Picture, segment: str) -> bool:
    return any(
        entry.state == ACTIVE
        for topology in picture.topics.values()
        for segment_id, entry in topology.segments.items()
        if topology.paths[segment_id] == segment
    )
