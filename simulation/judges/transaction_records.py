"""The records of transactions as they stand at one revision, kept from the changes of a store. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from txnstore import keys
from txnstore.records import (
    AbortedRecord,
    GcHorizon,
    Header,
    OwnerRecord,
    RegistrationRecord,
    SubscriptionRecord,
    TopicRecord,
    TxnName,
    TxnSeq,
    decode,
)
from txnstore.store import Event, EventKind, KeyValue
from txnstore.writes.collection_transitions import OutcomeBitmap, read_outcomes
from txnwire.ids import TxnId


class KeptHeader(NamedTuple):
    """A header as it was put."""

    header: Header
    version: int
    mod_revision: int


class SegmentOwner(NamedTuple):
    broker: str
    epoch: int


class TcOwner(NamedTuple):
    """`first_id`: ids below it belong to earlier owners."""

    id: str
    first_id: int


class OpHolder(NamedTuple):
    """The holder of a transaction's ops: the writes of a segment, or the acks of one of its subscriptions."""

    txn_id: TxnId
    segment: str
    subscription: str | None

    def __str__(self) -> str:
        of = "writes" if self.subscription is None else f"acks of {self.subscription}"
        return f"{self.txn_id} in {self.segment}, {of},"


@dataclass(slots=True)
class RevisionChange:
    """Changes of one revision: mostly the former records, by key."""

    headers: dict[bytes, KeptHeader | None] = field(default_factory=dict)
    seqs: dict[int, TxnSeq | None] = field(default_factory=dict)
    names: dict[str, TxnName | None] = field(default_factory=dict)
    ops: list[bytes] = field(default_factory=list)
    """Put ones."""
    participants: dict[OpHolder, None] = field(default_factory=dict)
    """Holders whose ops or index key have changed."""
    cleared: dict[OpHolder, None] = field(default_factory=dict)
    deadlines: list[bytes] = field(default_factory=list)
    """Put ones."""
    unplaced: list[tuple[str, TxnId]] = field(default_factory=list)
    """Aborted records put without a position."""
    horizon_fell: bool = False


class Records:
    def __init__(self) -> None:
        self.headers: dict[bytes, KeptHeader] = {}
        self.given_out: dict[TxnId, None] = {}
        """Every id that ever had a header."""
        self.used: dict[bytes, None] = {}
        """Every op key that ever existed."""
        self.ops: dict[OpHolder, dict[bytes, None]] = {}
        self.ops_of: dict[TxnId, dict[OpHolder, None]] = {}
        self.indexed: dict[OpHolder, None] = {}
        self.owners: dict[str, SegmentOwner] = {}
        self.tcs: dict[int, TcOwner] = {}
        self.seqs: dict[int, TxnSeq] = {}
        self.deadlines: dict[TxnId, int] = {}
        self.names: dict[str, TxnName] = {}
        self.names_made: dict[str, int] = {}
        """Create revision, also of deleted records."""
        self.aborted: dict[tuple[str, TxnId], None] = {}
        """Every transaction that ever had an aborted record in a segment."""
        self.horizon = 0
        self._outcomes: dict[bytes, OutcomeBitmap] = {}
        self._going: dict[str, None] = {}
        """Topics that are or were being deleted, or that have such a subscription."""
        self._kinds: tuple[tuple[bytes, Callable[[RevisionChange, Event], None]], ...] = (
            (keys.TXN_OP, self._op),
            (keys.TXN, self._header),
            (keys.WRITES_BY_SEGMENT, self._index),
            (keys.ACKS_BY_SEGMENT_SUBSCRIPTION, self._index),
            (keys.OWNER, self._owner),
            (keys.TC, self._tc),
            (keys.TXN_SEQ, self._seq),
            (keys.TXN_BY_DEADLINE, self._deadline),
            (keys.TXN_NAME, self._name),
            (keys.TXN_OUTCOME, self._outcome),
            (keys.SEGMENT_STATE, self._state),
            (keys.GC_HORIZON, self._horizon),
            (keys.TOPIC, self._topic),
            (keys.SUBSCRIPTION, self._subscription),
        )

    def apply(self, events: Sequence[Event]) -> RevisionChange | None:
        """None if none of these records changed."""
        changed: RevisionChange | None = None
        for event in events:
            for prefix, note in self._kinds:
                if event.record.key.startswith(prefix):
                    changed = changed or RevisionChange()
                    note(changed, event)
                    break
        return changed

    def outcome(self, txn_id: TxnId) -> str | None:
        found = self._outcomes.get(keys.outcome_block(txn_id))
        return None if found is None else found.state_of(txn_id.counter)

    def is_going(self, segment: str) -> bool:
        """Whether its topic, or a subscription of it, is or was being deleted: then its records are simply deleted."""
        return segment.rpartition("/")[0] in self._going

    # ---- one event ----

    def _header(self, changed: RevisionChange, event: Event) -> None:
        record = event.record
        changed.headers.setdefault(record.key, self.headers.get(record.key))
        if event.kind is EventKind.DELETE:
            self.headers.pop(record.key, None)
        else:
            header = decode(Header, record.value, key=record.key)
            self.headers[record.key] = KeptHeader(header, record.version, record.mod_revision)

    def _op(self, changed: RevisionChange, event: Event) -> None:
        key = event.record.key
        participant = OpHolder(*keys.op_parts(key))
        changed.participants[participant] = None
        if event.kind is EventKind.PUT:
            changed.ops.append(key)
            changed.cleared.pop(participant, None)
            self.ops.setdefault(participant, {})[key] = None
            self.ops_of.setdefault(participant.txn_id, {})[participant] = None
            return
        left = self.ops.get(participant, {})
        left.pop(key, None)
        if not left:
            changed.cleared[participant] = None
            self.ops.pop(participant, None)
            of_txn = self.ops_of.get(participant.txn_id, {})
            of_txn.pop(participant, None)
            if not of_txn:
                self.ops_of.pop(participant.txn_id, None)

    def _index(self, changed: RevisionChange, event: Event) -> None:
        key = event.record.key
        writes = key.startswith(keys.WRITES_BY_SEGMENT)
        parts = key[len(keys.WRITES_BY_SEGMENT if writes else keys.ACKS_BY_SEGMENT_SUBSCRIPTION) :].decode().split("/")
        subscription = None if writes else parts[-2]
        participant = OpHolder(TxnId.parse(parts[-1]), "/".join(parts[:4]), subscription)
        changed.participants[participant] = None
        if event.kind is EventKind.PUT:
            self.indexed[participant] = None
        else:
            self.indexed.pop(participant, None)

    def _owner(self, _: RevisionChange, event: Event) -> None:
        segment = event.record.key[len(keys.OWNER) :].decode()
        if event.kind is EventKind.DELETE:
            self.owners.pop(segment, None)
        else:
            owner = decode(OwnerRecord, event.record.value, key=event.record.key)
            self.owners[segment] = SegmentOwner(owner.broker, event.record.create_revision)

    def _tc(self, _: RevisionChange, event: Event) -> None:
        tcid = int(event.record.key[len(keys.TC) :], 16)
        if event.kind is EventKind.DELETE:
            self.tcs.pop(tcid, None)
        else:
            taken = decode(RegistrationRecord, event.record.value, key=event.record.key)
            self.tcs[tcid] = TcOwner(taken.id, self.seqs[tcid].next if tcid in self.seqs else 1)

    def _seq(self, changed: RevisionChange, event: Event) -> None:
        tcid = int(event.record.key[len(keys.TXN_SEQ) :], 16)
        changed.seqs[tcid] = self.seqs.get(tcid)
        self.seqs[tcid] = decode(TxnSeq, event.record.value, key=event.record.key)

    def _deadline(self, changed: RevisionChange, event: Event) -> None:
        timeout_ms, txn_id = keys.deadline_parts(event.record.key)
        if event.kind is EventKind.PUT:
            self.deadlines[txn_id] = timeout_ms
            changed.deadlines.append(event.record.key)
        else:
            self.deadlines.pop(txn_id, None)

    def _name(self, changed: RevisionChange, event: Event) -> None:
        name = keys.unquote_text(event.record.key[len(keys.TXN_NAME) :].decode())
        changed.names[name] = self.names.get(name)
        if event.kind is EventKind.PUT:
            self.names[name] = decode(TxnName, event.record.value, key=event.record.key)
            self.names_made[name] = event.record.create_revision
        else:
            self.names.pop(name, None)

    def _outcome(self, _: RevisionChange, event: Event) -> None:
        key = event.record.key
        tcid, block = key[len(keys.TXN_OUTCOME) :].decode().split("/")
        found = event.record if event.kind is EventKind.PUT else None
        self._outcomes[key] = read_outcomes(int(tcid, 16), int(block, 16), found)

    def _state(self, changed: RevisionChange, event: Event) -> None:
        segment, what = keys.segment_state_parts(event.record.key)
        if what == "watermark" or event.kind is EventKind.DELETE:
            return
        txn_id, _ = keys.aborted_parts(event.record.key)
        self.aborted[segment, txn_id] = None
        if decode(AbortedRecord, event.record.value, key=event.record.key).max_position is None:
            changed.unplaced.append((segment, txn_id))

    def _horizon(self, changed: RevisionChange, event: Event) -> None:
        horizon = decode(GcHorizon, event.record.value, key=event.record.key).revision
        changed.horizon_fell |= horizon < self.horizon
        self.horizon = horizon

    def _topic(self, _: RevisionChange, event: Event) -> None:
        self._note_going(event.record, event.record.key[len(keys.TOPIC) :].decode(), event, TopicRecord)

    def _subscription(self, _: RevisionChange, event: Event) -> None:
        topic = event.record.key[len(keys.SUBSCRIPTION) :].decode().rpartition("/")[0]
        self._note_going(event.record, topic, event, SubscriptionRecord)

    def _note_going(
        self, record: KeyValue, topic: str, event: Event, kind: type[TopicRecord] | type[SubscriptionRecord]
    ) -> None:
        if event.kind is EventKind.DELETE or decode(kind, record.value, key=record.key).deleting_ms:
            self._going[topic] = None
