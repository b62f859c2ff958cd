"""The values in etcd: one-line JSON with stable field order and `"v":1` first (DESIGN §4).

All records pass through `encode` and `decode`. A record with an unknown version, or that does not parse, raises
`DataCorrupt` naming its key; unknown fields of a known version are ignored, so that a newer writer may add some.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar, cast

import msgspec

from txnwire.errors import DataCorrupt, InvalidArgument
from txnwire.ids import TxnId

OPEN: Final = "OPEN"
COMMITTED: Final = "COMMITTED"
ABORTED: Final = "ABORTED"

REASON_CLIENT: Final = "client"
REASON_TIMEOUT: Final = "timeout"
REASON_FENCED: Final = "fenced"
REASON_ADMIN: Final = "admin"
REASON_LOST: Final = "lost"
"""It was committed, and a repair found a part of it missing in the data folder."""
REASON_SESSION: Final = "session"
"""Its client vanished: no connection and no announcement within the grace (DESIGN §9)."""
REASON_UNANSWERED: Final = "unanswered"
"""Its begin stayed unanswered so long that the client got another id (DESIGN §4)."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """`/txn/<txnId>`. Written once OPEN, once decided: `version == 1` *is* OPEN (DESIGN §5).

    `timeout_ms`, `created_ms`, `finalized_ms`: absolute epoch milliseconds. `attempt`: hex, the identity under which a
    lost begin is repeated. `writers`: None counts all, a list only these (`txnstore.writes.writer_lists`). `note`: the
    note of a named transaction's commit, None also in records of earlier versions."""

    v: int = 1
    state: str
    timeout_ms: int
    created_ms: int
    finalized_ms: int = 0
    owner: str = "anonymous"
    name: str | None = None
    txn_key: str | None = None
    key_epoch: int | None = None
    attempt: str = ""
    reason: str | None = None
    writers: list[str] | None = None
    end_attempt: str | None = None
    note: str | None = None


NO_WRITER = 0
"""The writer of entries and ops that name none (DESIGN §10)."""


class Op(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`/txn-op/<txnId>/<seq>`. `positions` of an ack: `[ledger_id, entry_id, count, hex bitmap of indexes or ""]`; for
    a cumulative ack `cumulative` is true and there is exactly one. A write's position is not known yet. `consumer`: who
    acked, `name@incarnation`; the segment's next owner must know whose acks are pending."""

    v: int
    kind: str
    segment: str
    subscription: str | None = None
    consumer: str | None = None
    cumulative: bool = False
    positions: list[tuple[int, int, int, str]] | None = None
    producer: str | None = None
    sequence_id: int | None = None
    writer: str | None = None
    messages: int = 0
    bytes: int = 0


class TxnSeq(msgspec.Struct, frozen=True, kw_only=True):
    """`/txn-seq/<tcid>`: `next` is the first counter of the next block to be taken; every open transaction with a
    counter below `indexed_below` has its deadline key."""

    v: int = 1
    next: int
    indexed_below: int = 1


class TxnName(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`/txn-name/<name>`; in etcd a `CollectedName` once it has an `outcome`. `keep_ms`: how long it is kept after
    collection; 0: the 30 days of earlier versions. `keep_newest`: kept for ever while it is the newest commit of its
    prefix; ▲ True by default, because earlier versions promised that without writing it."""

    v: int
    txn_id: str
    outcome: str | None = None
    writers: list[str] | None = None
    note: str | None = None
    collected_ms: int = 0
    keep_ms: int = 0
    keep_newest: bool = True


class CollectedName(msgspec.Struct, frozen=True, array_like=True):
    """`/txn-name/<name>` of a collected transaction, as a list, because there are many of them for long:

        [2,"3-4d2","C",1796000000,604800]

    `txn`: coordinator id and counter, hex; `outcome`: `C` or `A`; `collected_s`: epoch seconds, `keep_s`: seconds, both
    rounded up; then, without what is default at the end, `newest`, `writers` and `note`. Read as a `TxnName`."""

    v: int
    txn: str
    outcome: Literal["C", "A"]
    collected_s: int
    keep_s: int = 0
    newest: Literal[0, 1] = 0
    writers: list[str] | None = None
    note: str | None = None


class NameCounts(msgspec.Struct, frozen=True, kw_only=True):
    """`/txn-name-counts`: how many names each namespace had at `counted_ms`, those that are the fullest; `others`: the
    number of all other names. The elected sweeper writes it."""

    v: int = 1
    counted_ms: int
    namespaces: dict[str, int]
    others: int = 0


class OutcomeBlock(msgspec.Struct, frozen=True, kw_only=True):
    """`/txn-outcome/<tcid>/<block>`: base64 bitmaps, LSB first, of 4 096 ids; `touched_ms` for its 7 days."""

    v: int = 1
    decided: str
    committed: str
    touched_ms: int


class AbortedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`max_position` `[ledger_id, entry_id]`, or None if unknown (▲ §5: leftovers of an ownerless segment)"""

    v: int = 1
    max_position: tuple[int, int] | None


class Watermark(msgspec.Struct, frozen=True, kw_only=True):
    v: int = 1
    position: tuple[int, int]


class SegmentEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a topic's DAG; `state` ACTIVE or SEALED; hash range inclusive."""

    id: int
    lo: int
    hi: int
    state: str
    parents: list[int]
    children: list[int]


class LayoutChange(msgspec.Struct, frozen=True, kw_only=True):
    """A split or merge that was accepted and is neither done nor given up (DESIGN §8). `kind`: `"split"` or `"merge"`;
    `parents`: ids of the active segments it seals; `at`: the first hash of a split's upper child; `id`: hex, identifies
    it in the seals of its parents; `since_ms`: absolute epoch milliseconds."""

    id: str
    kind: str
    parents: list[int]
    at: int | None = None
    since_ms: int = 0


class TopicRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`/topic/<topic>`: the DAG whose active leaves tile 0000–ffff exactly (DESIGN §8). `created_segments`: how many
    the topic was created with; a repeated creation is compared with it and `policies`. `deleting_ms`: when its deletion
    began (absolute epoch milliseconds), 0 while it lives. `changes`: splits and merges under way, no two of one
    segment. `pruning`: ids of sealed segments being pruned: their owners erase them; an id no longer in `segments` has
    drained records left. `lost_id`: segments above it that have left `segments` never held anything; one at or below it
    may have had entries trimmed. `first_segment_id`: a lower id belonged to an earlier topic of this name; -1 in
    records of earlier versions."""

    v: int = 1
    epoch: int
    next_segment_id: int
    segments: list[SegmentEntry]
    policies: dict[str, Any] = {}
    created_ms: int = 0
    created_segments: int = 0
    deleting_ms: int = 0
    changes: list[LayoutChange] = []
    pruning: list[int] = []
    lost_id: int = -1
    first_segment_id: int = -1


class SegmentIds(msgspec.Struct, frozen=True, kw_only=True):
    """`/segment-ids`: no deleted topic had a segment with id `floor` or above. New topics begin there, so that no id of
    a deleted topic is reused under the same name."""

    v: int = 1
    floor: int


PAGED: Final = 2
"""The version of a ledger list whose older part is in pages."""


class LedgerInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`closed_length`: its entries once closed, None while open. `opened_ms`, `closed_ms`: absolute epoch milliseconds.
    `aborted`: number of aborted records in its sidecar and no longer in etcd; 0: it has no sidecar. `newest_ms`: the
    latest publish time in it, by its producers' clocks; None while unknown. `messages`: in it, in all its entries; None
    while unknown (an older broker closed it, or a dead one left it to be closed)."""

    ledger_id: int
    closed_length: int | None = None
    bytes: int = 0
    store: str = "file"
    opened_ms: int = 0
    closed_ms: int = 0
    aborted: int = 0
    newest_ms: int | None = None
    messages: int | None = None


class LedgerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`/ledger/<segment>`. `sealed`: the end position of a sealed segment. `sealed_by`: the `LayoutChange` it was
    sealed for; if the topic's record no longer has it and the segment is active, the change was given up and the seal
    is undone. `trimmed_below`: first position kept; ledgers before it are no longer read, and leave the list once
    deleted. `trimmed_through`: the last trimmed entry, which tells a reader whether it has read all trimmed entries or
    missed some. `paged`: number of ledgers, all older than these, in `/ledger-page/<segment>/…`; `paged_bytes`: bytes
    of the kept ones among them. With pages `v` is 2: a reader without pages must not take the rest for the whole.
    `made`: the open ledger whose file surely exists; any other listed ledger without a file may never have had one."""

    v: int = 1
    ledgers: list[LedgerInfo]
    sealed: tuple[int, int] | None = None
    trimmed_below: tuple[int, int] | None = None
    trimmed_through: tuple[int, int] | None = None
    sealed_by: str | None = None
    paged: int = 0
    paged_bytes: int = 0
    made: int | None = None


class LedgerPage(msgspec.Struct, frozen=True, kw_only=True):
    """`/ledger-page/<segment>/<ledger id>`: closed ledgers, oldest first, moved out of the head
    (`segments.log.ledgers.ledger_pages`)."""

    v: int = 1
    ledgers: list[LedgerInfo]


class CursorMark(msgspec.Struct, frozen=True, kw_only=True):
    """`/cursor/<segment>/<subscription>/mark`: everything at or below `position` is acked. `seeks`: number of seeks so
    far."""

    v: int = 1
    position: tuple[int, int]
    seeks: int = 0


class CursorBlock(msgspec.Struct, frozen=True, kw_only=True):
    """`/cursor/<segment>/<subscription>/<ledger>-<n>`: entries of one ledger from `first_entry` on. `acked`: hex
    bitmap, LSB first, of entries acked completely. `partial`: `[entry_id, messages, hex bitmap of acked indexes]`."""

    v: int = 1
    ledger_id: int
    first_entry: int
    acked: str
    partial: list[tuple[int, int, str]] = []


class SubscriptionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`start`: `{"kind": "earliest"|"latest"|"timestamp"|"message_id", …}`; `latest` and `timestamp` are resolved at
    creation into `positions`: segment path → `[ledger_id, entry_id]` of the last entry *not* delivered. `deleting_ms`:
    when its deletion began, 0 while it lives."""

    v: int = 1
    type: str
    start: dict[str, Any]
    positions: dict[str, tuple[int, int]] = {}
    properties: dict[str, str] = {}
    created_ms: int = 0
    deleting_ms: int = 0


class AssignmentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`/assignment/<topic>/<subscription>`: `consumers` are `name@incarnation` (hex), each with its segments' paths."""

    v: int = 1
    epoch: int
    consumers: dict[str, list[str]]


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """`/drained/<topic>/<subscription>/<segment id>`: the subscription has consumed all of a sealed segment, through
    `end`, so its children may be read. The segment's owner writes it with or after the cursor that proves it; it is
    deleted with a seek back, the subscription, the topic, or the segment."""

    v: int = 1
    end: tuple[int, int]


class LoadSample(msgspec.Struct, frozen=True, kw_only=True):
    """`/load/<segment>`: messages and bytes per second received over the last `window_s` seconds; `taken_ms`: absolute
    epoch milliseconds, by the owner's clock."""

    v: int = 1
    messages_in_per_s: float
    bytes_in_per_s: float
    window_s: float
    taken_ms: int


class TransactionKey(msgspec.Struct, frozen=True, kw_only=True):
    """`/txn-key/<owner>&<key>` (003, "Transaction key"; DESIGN §9). `epoch` counts its holders up, for ever, from 0;
    `txn_id`: the newest transaction begun under it, the `begins`th of this epoch; `attempt`: the connect that got
    `epoch`, hex; `since_ms`: when it did; `deleted_ms`: when it became a tombstone, 0 while it is in use. Times are
    absolute epoch milliseconds."""

    v: int = 1
    epoch: int
    txn_id: str | None = None
    attempt: str = ""
    since_ms: int = 0
    deleted_ms: int = 0
    begins: int = 0


class OwnerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`/owner/<segment>`: on the broker's lease; the key's create revision is the ownership epoch."""

    v: int = 1
    broker: str
    address: str


class RegistrationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`/tc/<tcid>`, `/leader/<what>`: the holder's id and address."""

    v: int = 1
    id: str
    address: str


class BrokerRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """`/broker/<id>`: id and address; `leaving`: it hands its segments over, and others claim them."""

    v: int = 1
    id: str
    address: str
    leaving: bool = False


class DataFolder(msgspec.Struct, frozen=True, kw_only=True):
    """`/data-folder`: the folder of file ledgers (`id`: from its marker file), and where it was first seen."""

    v: int = 1
    id: str
    broker: str
    path: str


class GcHorizon(msgspec.Struct, frozen=True, kw_only=True):
    """The highest decision revision whose header has been collected."""

    v: int = 1
    revision: int


class Incarnation(msgspec.Struct, frozen=True, kw_only=True):
    """`/incarnation`: a random id made at the store's first use, and again with every repair; ledgers carry it (DESIGN
    §4, last rule). `raft_lead`: the least number of entries by which etcd's log was then ahead of its revision, None if
    unknown (`txnstore.access.lineage`); `generation`: number of repairs; `former`: its earlier ids, oldest first;
    `repair`: why it must be repaired before use, empty if it is fit."""

    v: int = 1
    id: str
    created_ms: int
    raft_lead: int | None = None
    generation: int = 0
    former: list[str] = []
    repair: str = ""


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """`/pin/<process>`: the oldest revision a process still reads at, on its lease; compaction spares it."""

    v: int = 1
    revision: int


class CompactionMark(msgspec.Struct, frozen=True, kw_only=True):
    """`/compaction`: rewritten by the compacting process to get a revision (`txnstore.maintenance`)."""

    v: int = 1
    by: str
    time_ms: int


class ClockStamp(msgspec.Struct, frozen=True, kw_only=True):
    """`/clock`: the cluster's time when it was written. `leaps`: (the clock after a leap, the leap's size), ms."""

    v: int = 1
    ms: int
    leaps: tuple[tuple[int, int], ...] = ()


RecordT = TypeVar("RecordT", bound=msgspec.Struct)

_encoder = msgspec.json.Encoder()
_decoders: dict[type, msgspec.json.Decoder[Any]] = {}
_VERSIONS: Final[dict[type, tuple[int, ...]]] = {LedgerRecord: (1, PAGED), CollectedName: (2,)}
"""The versions of records that have had more than one."""


def encode(record: msgspec.Struct) -> bytes:
    if isinstance(record, TxnName) and record.outcome is not None:
        return _encoder.encode(_collected(record, record.outcome))
    return _encoder.encode(record)


def decode(record_type: type[RecordT], value: bytes, *, key: bytes) -> RecordT:
    """Parse the value of `key`; raises `DataCorrupt` that names the key and the fault."""
    if record_type is TxnName and value.startswith(b"["):
        name: Any = _named(_decode(CollectedName, value, key=key), key)
        return cast(RecordT, name)
    return _decode(record_type, value, key=key)


def _decode(record_type: type[RecordT], value: bytes, *, key: bytes) -> RecordT:
    decoder = _decoders.get(record_type)
    if decoder is None:
        decoder = _decoders[record_type] = msgspec.json.Decoder(record_type)
    try:
        record: RecordT = decoder.decode(value)
    except msgspec.DecodeError as error:
        raise DataCorrupt(f"{key.decode(errors='replace')}: not a {record_type.__name__} record: {error}") from error
    if (version := getattr(record, "v", 1)) not in _VERSIONS.get(record_type, (1,)):
        raise DataCorrupt(f"{key.decode(errors='replace')}: {record_type.__name__} version {version} is not supported")
    return record


def _collected(named: TxnName, outcome: str) -> list[Any]:
    txn_id = TxnId.parse(named.txn_id)
    fields = [2, f"{txn_id.tcid:x}-{txn_id.counter:x}", outcome[0], _rounded_up(named.collected_ms)]
    fields += [_rounded_up(named.keep_ms), int(named.keep_newest), named.writers, named.note]
    while len(fields) > 4 and fields[-1] in (None, 0):  # ▲ not an empty list: a commit that counted no writer
        fields.pop()
    return fields


def _named(collected: CollectedName, key: bytes) -> TxnName:
    tcid, _, counter = collected.txn.partition("-")
    try:
        txn_id = TxnId.parse(f"{tcid.zfill(4)}-{counter.zfill(16)}")
    except InvalidArgument as error:
        raise DataCorrupt(f"{key.decode(errors='replace')}: {error}") from error
    return TxnName(
        v=1,
        txn_id=str(txn_id),
        outcome=COMMITTED if collected.outcome == "C" else ABORTED,
        writers=collected.writers,
        note=collected.note,
        collected_ms=collected.collected_s * 1000,
        keep_ms=collected.keep_s * 1000,
        keep_newest=bool(collected.newest),
    )


def _rounded_up(milliseconds: int) -> int:
    """Round up to seconds: no record is deleted before its time."""
    return -(-milliseconds // 1000)
