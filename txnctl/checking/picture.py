"""Reads everything in etcd at one revision, decoded and by kind; an undecodable record is a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from segments.layout.topology import Topology
from segments.log.ledgers.ledger_pages import ListPage, join, read_page
from txnstore import keys, records
from txnstore.access.paging import in_pages
from txnstore.store import KeyValue, MetadataStore
from txnstore.writes.collection_transitions import OutcomeBitmap, read_outcomes
from txnwire.errors import DataCorrupt, TxnError
from txnwire.ids import TxnId
from txnwire.names import SegmentName, TopicName


@dataclass
class Picture:
    """One consistent view. Segments and topics by path; `ops` by (transaction, segment, subscription or None)."""

    revision: int = 0
    headers: dict[TxnId, records.Header] = field(default_factory=dict)
    header_revisions: dict[TxnId, int] = field(default_factory=dict)
    ops: dict[tuple[TxnId, str, str | None], int] = field(default_factory=dict)
    write_index: dict[tuple[TxnId, str], None] = field(default_factory=dict)
    ack_index: dict[tuple[TxnId, str, str], None] = field(default_factory=dict)
    outcomes: dict[tuple[int, int], OutcomeBitmap] = field(default_factory=dict)
    id_blocks: dict[int, records.TxnSeq] = field(default_factory=dict)
    watermarks: dict[str, records.Watermark] = field(default_factory=dict)
    aborted: dict[tuple[str, TxnId, int | None], records.AbortedRecord] = field(default_factory=dict)
    topics: dict[str, Topology] = field(default_factory=dict)
    ledgers: dict[str, records.LedgerRecord] = field(default_factory=dict)
    """Whole lists, joined from their parts."""
    ledger_pages: dict[str, list[ListPage]] = field(default_factory=dict)
    cursors: dict[tuple[str, str], int] = field(default_factory=dict)
    subscriptions: dict[tuple[str, str], records.SubscriptionRecord] = field(default_factory=dict)
    assignments: dict[tuple[str, str], records.AssignmentRecord] = field(default_factory=dict)
    owners: dict[str, KeyValue] = field(default_factory=dict)
    marks: dict[tuple[str, str], records.CursorMark] = field(default_factory=dict)
    blocks: dict[tuple[str, str], dict[str, records.CursorBlock]] = field(default_factory=dict)
    names: dict[str, records.TxnName] = field(default_factory=dict)
    txn_keys: dict[bytes, records.TransactionKey] = field(default_factory=dict)
    drained: dict[tuple[str, str, int], records.Drained] = field(default_factory=dict)
    loads: dict[str, records.LoadSample] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def segments(self) -> dict[str, None]:
        """Paths of every segment of every topic."""
        return {path: None for topology in self.topics.values() for path in topology.paths.values()}

    def going(self) -> dict[str, None]:
        """Segments that are being erased: their files go first, then their records one by one."""
        return {
            path: None
            for topology in self.topics.values()
            for segment_id, path in topology.paths.items()
            if topology.is_going(segment_id)
        }


def _header(picture: Picture, record: KeyValue) -> None:
    txn_id = keys.txn_of(record.key)
    picture.headers[txn_id] = records.decode(records.Header, record.value, key=record.key)
    picture.header_revisions[txn_id] = record.mod_revision


def _op(picture: Picture, record: KeyValue) -> None:
    records.decode(records.Op, record.value, key=record.key)
    place = keys.op_parts(record.key)
    picture.ops[place] = picture.ops.get(place, 0) + 1


def _write_index(picture: Picture, record: KeyValue) -> None:
    segment = _between(record.key, keys.WRITES_BY_SEGMENT)
    picture.write_index[keys.txn_of(record.key), SegmentName.from_path(segment).path] = None


def _ack_index(picture: Picture, record: KeyValue) -> None:
    segment, subscription, txn_id = keys.ack_index_parts(record.key)
    picture.ack_index[txn_id, SegmentName.from_path(segment).path, subscription] = None


def _deadline(_: Picture, record: KeyValue) -> None:
    keys.deadline_parts(record.key)  # a stale one is no fault: the sweep deletes it


def _outcome(picture: Picture, record: KeyValue) -> None:
    tcid, block = (int(part, 16) for part in record.key[len(keys.TXN_OUTCOME) :].decode().split("/"))
    picture.outcomes[tcid, block] = read_outcomes(tcid, block, record)


def _id_block(picture: Picture, record: KeyValue) -> None:
    tcid = int(record.key[len(keys.TXN_SEQ) :], 16)
    picture.id_blocks[tcid] = records.decode(records.TxnSeq, record.value, key=record.key)


def _segment_state(picture: Picture, record: KeyValue) -> None:
    path, what = keys.segment_state_parts(record.key)
    if what == "watermark":
        picture.watermarks[path] = records.decode(records.Watermark, record.value, key=record.key)
        return
    txn_id, writer = keys.aborted_parts(record.key)
    picture.aborted[path, txn_id, writer] = records.decode(records.AbortedRecord, record.value, key=record.key)


def _topic(picture: Picture, record: KeyValue) -> None:
    path = record.key[len(keys.TOPIC) :].decode()
    decoded = records.decode(records.TopicRecord, record.value, key=record.key)
    picture.topics[path] = Topology(TopicName.from_path(path), decoded)


def _ledger(picture: Picture, record: KeyValue) -> None:
    path = record.key[len(keys.LEDGER) :].decode()
    picture.ledgers[path] = records.decode(records.LedgerRecord, record.value, key=record.key)


def _ledger_page(picture: Picture, record: KeyValue) -> None:
    path, _ = keys.ledger_page_parts(record.key)
    picture.ledger_pages.setdefault(path, []).append(read_page(record))


def _join_pages(picture: Picture) -> None:
    """While a list is being erased its pages go before its head."""
    going = picture.going()
    for path in {**picture.ledger_pages, **{path: None for path, one in picture.ledgers.items() if one.paged}}:
        if path in going:
            continue
        try:
            head = picture.ledgers.get(path, records.LedgerRecord(ledgers=[]))
            picture.ledgers[path] = join(path, head, picture.ledger_pages.get(path, []))
        except TxnError as error:
            picture.ledgers.pop(path, None)
            picture.unreadable.append(str(error))


def _cursor(picture: Picture, record: KeyValue) -> None:
    segment, subscription, block = keys.cursor_parts(record.key)
    place = (segment, subscription)
    picture.cursors[place] = picture.cursors.get(place, 0) + 1
    if block == "mark":
        picture.marks[place] = records.decode(records.CursorMark, record.value, key=record.key)
    else:
        decoded = records.decode(records.CursorBlock, record.value, key=record.key)
        picture.blocks.setdefault(place, {})[block] = decoded


def _subscription(picture: Picture, record: KeyValue) -> None:
    topic, name = keys.topic_and_name(record.key)
    picture.subscriptions[topic, name] = records.decode(records.SubscriptionRecord, record.value, key=record.key)


def _assignment(picture: Picture, record: KeyValue) -> None:
    topic, name = keys.topic_and_name(record.key)
    picture.assignments[topic, name] = records.decode(records.AssignmentRecord, record.value, key=record.key)


def _owner(picture: Picture, record: KeyValue) -> None:
    records.decode(records.OwnerRecord, record.value, key=record.key)
    picture.owners[record.key[len(keys.OWNER) :].decode()] = record


def _registration(_: Picture, record: KeyValue) -> None:
    records.decode(records.RegistrationRecord, record.value, key=record.key)


def _broker(_: Picture, record: KeyValue) -> None:
    records.decode(records.BrokerRegistration, record.value, key=record.key)


def _name(picture: Picture, record: KeyValue) -> None:
    picture.names[keys.txn_name_text(record.key)] = records.decode(records.TxnName, record.value, key=record.key)


def _txn_key(picture: Picture, record: KeyValue) -> None:
    picture.txn_keys[record.key] = records.decode(records.TransactionKey, record.value, key=record.key)


def _drained(picture: Picture, record: KeyValue) -> None:
    topic, subscription, segment_id = keys.drained_parts(record.key)
    decoded = records.decode(records.Drained, record.value, key=record.key)
    picture.drained[topic, subscription, segment_id] = decoded


def _load(picture: Picture, record: KeyValue) -> None:
    path = record.key[len(keys.LOAD) :].decode()
    picture.loads[path] = records.decode(records.LoadSample, record.value, key=record.key)


def _pin(_: Picture, record: KeyValue) -> None:
    records.decode(records.Pin, record.value, key=record.key)


READERS: dict[bytes, Callable[[Picture, KeyValue], None]] = {
    keys.TXN: _header,
    keys.TXN_OP: _op,
    keys.WRITES_BY_SEGMENT: _write_index,
    keys.ACKS_BY_SEGMENT_SUBSCRIPTION: _ack_index,
    keys.TXN_BY_DEADLINE: _deadline,
    keys.TXN_OUTCOME: _outcome,
    keys.TXN_NAME: _name,
    keys.TXN_SEQ: _id_block,
    keys.SEGMENT_STATE: _segment_state,
    keys.TOPIC: _topic,
    keys.LEDGER: _ledger,
    keys.LEDGER_PAGE: _ledger_page,
    keys.CURSOR: _cursor,
    keys.SUBSCRIPTION: _subscription,
    keys.ASSIGNMENT: _assignment,
    keys.OWNER: _owner,
    keys.BROKER: _broker,
    keys.TC: _registration,
    keys.TC_MEMBER: _registration,
    keys.LEADER: _registration,
    keys.PIN: _pin,
    keys.TXN_KEY: _txn_key,
    keys.DRAINED: _drained,
    keys.LOAD: _load,
}


SINGLE: tuple[bytes, ...] = (
    keys.GC_HORIZON,
    keys.INCARNATION,
    keys.COMPACTION,
    keys.SEGMENT_IDS,
    keys.DATA_FOLDER,
    keys.CLOCK,
    keys.TXN_NAME_COUNTS,
)
RECORDS_AT_ONCE = 5000
PASSED_OVER: tuple[bytes, ...] = (keys.SENDER,)
"""Prefixes of records without content: of senders only the revision counts."""


def gaps() -> list[tuple[bytes, bytes]]:
    """The key ranges that hold none of our keys, in order."""
    known = [(prefix, keys.prefix_end(prefix)) for prefix in (*READERS, *PASSED_OVER)]
    known += [(key, key + b"\0") for key in SINGLE]
    found, at = [], b"\0"
    for start, end in sorted(known):
        if at < start:
            found.append((at, start))
        at = max(at, end)
    return [*found, (at, b"\xff")]


def _between(key: bytes, prefix: bytes) -> str:
    return key[len(prefix) :].decode().rpartition("/")[0]


def _add(picture: Picture, read: Callable[[Picture, KeyValue], None], found: Iterable[KeyValue]) -> None:
    for record in found:
        try:
            read(picture, record)
        except (TxnError, ValueError, IndexError, msgspec.DecodeError) as error:
            picture.unreadable.append(f"{record.key.decode(errors='replace')}: {error}")


async def take_picture(store: MetadataStore) -> Picture:
    """Reads every prefix at one revision, which stays pinned: for a large store this takes longer than compaction
    waits. Raises `StoreUnavailable`."""
    revision, _ = await store.get_many([keys.INCARNATION])
    picture = Picture(revision)
    with store.pin(revision):
        for prefix, read in READERS.items():
            end = keys.prefix_end(prefix)
            async for page in in_pages(store, prefix, end, at_once=RECORDS_AT_ONCE, revision=revision):
                _add(picture, read, page)
        _join_pages(picture)
        for start, end in gaps():
            pages = in_pages(store, start, end, at_once=RECORDS_AT_ONCE, revision=revision, keys_only=True)
            async for page in pages:
                picture.unknown += [record.key.decode(errors="replace") for record in page]
    return picture


def expect_readable(picture: Picture, passing: Iterable[bytes]) -> None:
    """Raises `DataCorrupt` for records that cannot be read, except under the prefixes `passing`, whose records do not
    stay. ▲ The repair would take the rest for lost: set a topic's files aside, or abort a committed transaction."""
    starts = tuple(prefix.decode() for prefix in (*passing, keys.LOAD))
    unreadable = [one for one in picture.unreadable if not one.startswith(starts)]
    if unreadable:
        more = f", and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
        raise DataCorrupt(
            f"etcd holds records that cannot be read: {unreadable[0]}{more} (`check` lists them). Nothing is "
            "repaired, because their contents would count as lost. If this program is older than the servers, use "
            "theirs. If records are damaged, delete those that you can lose, and repair again"
        )


def picture_of(revision: int, between: Callable[[bytes, bytes], Iterable[KeyValue]]) -> Picture:
    """The picture of a store in memory at this revision; `between`: its records from one key up to another."""
    picture = Picture(revision)
    for prefix, read in READERS.items():
        _add(picture, read, between(prefix, keys.prefix_end(prefix)))
    _join_pages(picture)
    for start, end in gaps():
        picture.unknown += [record.key.decode(errors="replace") for record in between(start, end)]
    return picture
