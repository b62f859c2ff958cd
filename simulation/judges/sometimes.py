"""Rare branches, each of which some run must reach: a green run is green about something (DESIGN §13).

One table names them. They are detected from outside: from etcd's requests and changes, servers' logs, clients' errors
and disks' operations. Production code has no part in it. `Report.reached` has every name, with 0 for branches that a
run did not reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from simulation.judges.refusals import REFUSALS, refusal
from txnstore import keys
from txnstore.access.backend import Fenced, Reason, Refused
from txnstore.memory.memory_etcd import Arrival, MemoryEtcd
from txnstore.records import (
    ABORTED,
    COMMITTED,
    OPEN,
    AbortedRecord,
    CursorBlock,
    Header,
    LedgerRecord,
    Op,
    SubscriptionRecord,
    TopicRecord,
    TxnName,
    decode,
)
from txnstore.store import CommitVerdict, Compacted, Event, EventKind, KeyValue
from txnwire.ids import TxnId
from txnwire.names import SegmentName

ARRIVALS = (
    "request to etcd lost",
    "commit applied, its answer lost",
    "late write landed",
    "late write refused by a compare",
    "late grant of a lease",
    "full etcd refused a put",
    "put on a lease that was gone",
    "request refused by its sending fence",
    "watch compacted away",
    "one of several in a request refused, the others applied",
)  # fmt: skip
CHANGES = (
    "decided before an op of it was answered",
    "decided over a seal",
    "acks, and ops on three segments, in one commit",
    "commit that leaves a writer out",
    "aborted at its deadline",
    "aborted because its client vanished",
    "aborted because its begin went unanswered",
    "aborted by the next holder of its key",
    "open longer than a second: deadline key",
    "name begun afresh after an abort",
    "name took over the outcome of a collected header",
    "name forgotten when its time was over",
    "aborted record of a segment without an owner",
    "aborted record of one writer",
    "sidecar written",
    "trimmed",
    "part of an entry acked",
    "sealed segment taken by a later owner",
    "open ledger taken over",
    "ledgers given up to a page",
    "page of ledgers trimmed",
    "topic deleted with open transactions",
    "subscription deleted with acks pending",
    "changed hands with an open transaction in it",
)  # fmt: skip
LOGGED = {
    "lease is gone": "lease gone under a live process",
    "lease_lost": "broker lost its lease and went on",
    "segment_lost": "owner learnt that it was none any more",
    "take_over_failed": "take-over failed and was tried again",
    "hand_over_incomplete": "hand-over left something to the successor",
    "ownership_forgotten": "own ownership found that nobody remembered",
    "election_revoking_former_self": "a former life's lease revoked",
    "broker_revoking_former_self": "a former broker's lease revoked",
    "snapshot_started_over": "snapshot started over",
    "clean_up_compare_lost": "clean-up planned anew after a lost compare",
    "clean_up_waits": "clean-up waited for etcd",
    "housekeeping_waits": "housekeeping waited",
    "consumer_given_up": "consumer given up by the controller",
    "controller_deposed": "controller deposed",
    "sweeper_deposed": "sweeper deposed",
    "layout_change_given_up": "layout change given up",
    "seal_taken_back": "seal taken back by its owner",
    "not_sealed": "owner refused to seal",
    "etcd soft limit": "soft limit of etcd crossed",
    "etcd has space again": "alarm of a full etcd taken back",
    "pinned revision not reported, trying again": "pin not reported",
    "autoscale_split": "split by its load",
    "autoscale_merge": "merged by its load",
}
"""Event of a log line → the branch."""
MET = {
    "StoreFull": "client refused by a full etcd",
    "TxnConflict": "transaction lost a conflict",
    "InvalidTxnState": "end answered with the other outcome",
    "Overloaded": "client told to come later",
    "NotAllowed": "client refused by a changed layout or key",
}
"""Error of a client → the branch."""
DISK = {
    "refused": "append of a former owner refused by its fence",
    "failed": "sync failed and killed its ledger",
    "torn": "power failed under unsynced data",
}
"""Event of a file → the branch."""

AGAIN = "name used again while its deletion went on, of whose last step nobody had heard"
UNHEARD_S = 1.5
"""Longest time until a client repeats a request that was applied with its answer lost."""

BRANCHES: tuple[str, ...] = (
    *ARRIVALS, *REFUSALS, *CHANGES, *LOGGED.values(), *MET.values(), *DISK.values(),
    "op whose entry was never stored", "outcome told by the last question alone", "large value in pieces",
    "message moved to the dead letters", "step of a stream read again",
    "shown by the step behind the one that had it pending", "call cancelled by its caller",
    "let go of while it was open", "subscription used again while it was deleted",
    "controller again behind the term of another one, with a consumer connected all along",
    AGAIN,
)  # fmt: skip
"""What `Sometimes` counts. The branches of layouts are in `layout_work.RARE`, counted by their judge."""

_REASONS = {
    "timeout": "aborted at its deadline",
    "session": "aborted because its client vanished",
    "unanswered": "aborted because its begin went unanswered",
    "fenced": "aborted by the next holder of its key",
}


@dataclass(slots=True)
class _Txn:
    """What is known of an undecided transaction. `answered_at`: when the answer to its last op arrives."""

    segments: dict[str, None] = field(default_factory=dict)
    subscriptions: dict[str, None] = field(default_factory=dict)
    writers: dict[str, None] = field(default_factory=dict)
    answered_at: float = 0.0


class Sometimes:
    """Call it with everything; `counts` has all of `BRANCHES`."""

    def __init__(self, etcd: MemoryEtcd, now: float = 0.0) -> None:
        self.counts: dict[str, int] = dict.fromkeys(BRANCHES, 0)
        self._etcd = etcd
        self._now = now
        self._open: dict[TxnId, _Txn] = {}
        self._names: dict[bytes, str] = {}
        self._ledgers: dict[str, LedgerRecord] = {}
        self._gone_unheard: dict[bytes, float] = {}
        """Records of topics and subscriptions deleted by a request whose answer was lost → when"""
        self._put_ops: dict[tuple[str, str, int], None] = {}
        """(segment, producer, sequence id) of every write op that was put"""

    def reached(self, branch: str, times: int = 1) -> None:
        self.counts[branch] += times

    def logged(self, event: object) -> None:
        if isinstance(event, str) and (branch := LOGGED.get(event)) is not None:
            self.counts[branch] += 1

    def clients_met(self, errors: Mapping[str, int]) -> None:
        for error, count in errors.items():
            if (branch := MET.get(error)) is not None:
                self.counts[branch] += count

    def disk_did(self, what: Mapping[str, int]) -> None:
        for one, branch in DISK.items():
            self.counts[branch] += what[one]

    def entries_stand(self, stored: Iterable[tuple[str, str, int]]) -> None:
        """At the end: (segment, producer, sequence id) of every entry in a ledger."""
        there = dict.fromkeys(stored)
        whole = {path: None for path, record in self._ledgers.items() if record.trimmed_below is None}
        missing = sum(1 for op in self._put_ops if op[0] in whole and op not in there)
        self.reached("op whose entry was never stored", missing)

    # ---- requests ---------------------------------------------------------------------------------------------------

    def met(self, at: float, arrival: Arrival) -> None:
        """▲ Called before the next request: the values that a refused request was compared with are looked up now."""
        outcome = arrival.outcome
        if arrival.lost:
            self.reached("request to etcd lost")
        elif isinstance(outcome, Refused):
            if outcome.reason is Reason.FULL:
                self.reached("full etcd refused a put")
            elif outcome.reason is Reason.LEASE_GONE:
                self.reached("put on a lease that was gone")
        elif isinstance(outcome, Fenced):
            self.reached("request refused by its sending fence")
        elif isinstance(outcome, Compacted):
            if arrival.request == "watch":
                self.reached("watch compacted away")
        elif arrival.request == "grant" and arrival.late:
            self.reached("late grant of a lease")
        elif arrival.request == "commit" and isinstance(outcome, list):
            self._met_commit(at, arrival, outcome)

    def _met_commit(self, at: float, arrival: Arrival, results: Sequence[CommitVerdict]) -> None:
        held = sum(1 for result in results if result.succeeded)
        self.counts["commit applied, its answer lost"] += bool(held and arrival.unheard and not arrival.late)
        self.counts["late write landed"] += bool(held and arrival.late)
        self.counts["one of several in a request refused, the others applied"] += 0 < held < len(results)
        for commit, result in zip(arrival.commits, results, strict=True):
            if not result.succeeded:
                self.counts["late write refused by a compare"] += arrival.late
                failing = self._etcd.mvcc.failing(commit)
                if (branch := refusal(commit, failing, self._etcd.mvcc.get)) is not None:
                    self.reached(branch)
            elif arrival.unheard and commit.deletes:
                names = [one.key for one in commit.deletes if one.key.startswith((keys.SUBSCRIPTION, keys.TOPIC))]
                self._gone_unheard |= dict.fromkeys(names, at)
            elif commit.puts and commit.puts[0].key.startswith(keys.TXN_OP):
                txn = self._open.get(keys.op_parts(commit.puts[0].key)[0])
                if txn is not None:
                    heard = float("inf") if arrival.unheard or arrival.late else at + arrival.answered_s
                    txn.answered_at = max(txn.answered_at, heard)

    # ---- changes ----------------------------------------------------------------------------------------------------

    def saw(self, at: float, events: Sequence[Event]) -> None:
        """Everything that changed at one revision."""
        self._now = at
        for event in events:
            key = event.record.key
            if key in self._gone_unheard and event.kind is EventKind.PUT:
                self.counts[AGAIN] += at - self._gone_unheard.pop(key) < UNHEARD_S
            if event.kind is EventKind.DELETE:
                self.counts["name forgotten when its time was over"] += key.startswith(keys.TXN_NAME)
                if key.startswith(keys.LEDGER):
                    self._ledgers.pop(key[len(keys.LEDGER) :].decode(), None)
                elif key.startswith(keys.LEDGER_PAGE):
                    trimmed = self._ledgers.get(keys.ledger_page_parts(key)[0])
                    self.counts["page of ledgers trimmed"] += trimmed is not None and trimmed.paged > 0
            elif key.startswith(keys.TXN_OP):
                self._op(event.record)
            elif key.startswith(keys.TXN):
                self._header(event.record)
            elif key.startswith(keys.TXN_BY_DEADLINE):
                self.reached("open longer than a second: deadline key")
            elif key.startswith(keys.TXN_NAME):
                self._name(event.record)
            elif key.startswith(keys.SEGMENT_STATE) and keys.segment_state_parts(key)[1] != "watermark":
                self._aborted(event.record)
            elif key.startswith(keys.LEDGER):
                self._ledger(event.record)
            elif key.startswith(keys.CURSOR) and not key.endswith(b"/mark"):
                if decode(CursorBlock, event.record.value, key=key).partial:
                    self.reached("part of an entry acked")
            elif key.startswith(keys.OWNER):
                self._owner(key[len(keys.OWNER) :].decode())
            elif key.startswith(keys.TOPIC):
                self._topic(event.record)
            elif key.startswith(keys.SUBSCRIPTION):
                self._subscription(event.record)

    def _header(self, record: KeyValue) -> None:
        header = decode(Header, record.value, key=record.key)
        txn_id = keys.txn_of(record.key)
        if header.state == OPEN:
            self._open[txn_id] = _Txn()
            return
        txn = self._open.pop(txn_id, _Txn())
        if txn.answered_at > self._now:
            self.reached("decided before an op of it was answered")
        if any(path in self._ledgers and self._ledgers[path].sealed is not None for path in txn.segments):
            self.reached("decided over a seal")
        if header.state == COMMITTED:
            if len(txn.segments) > 2 and txn.subscriptions:
                self.reached("acks, and ops on three segments, in one commit")
            if header.writers is not None and any(writer not in header.writers for writer in txn.writers):
                self.reached("commit that leaves a writer out")
        elif header.state == ABORTED and (branch := _REASONS.get(header.reason or "")) is not None:
            self.reached(branch)

    def _op(self, record: KeyValue) -> None:
        txn_id, segment, subscription = keys.op_parts(record.key)
        op = decode(Op, record.value, key=record.key)
        txn = self._open.get(txn_id)
        if txn is not None:
            txn.segments[segment] = None
            if subscription is not None:
                txn.subscriptions[subscription] = None
            if op.writer is not None:
                txn.writers[op.writer] = None
        if subscription is None and op.producer is not None and op.sequence_id is not None:
            self._put_ops[segment, op.producer, op.sequence_id] = None

    def _name(self, record: KeyValue) -> None:
        name = decode(TxnName, record.value, key=record.key)
        before = self._names.get(record.key)
        self._names[record.key] = name.txn_id
        if before is not None and before != name.txn_id:
            self.reached("name begun afresh after an abort")
        elif name.outcome is not None:
            self.reached("name took over the outcome of a collected header")

    def _aborted(self, record: KeyValue) -> None:
        _, writer = keys.aborted_parts(record.key)
        self.counts["aborted record of one writer"] += writer is not None
        if decode(AbortedRecord, record.value, key=record.key).max_position is None:
            self.reached("aborted record of a segment without an owner")

    def _ledger(self, record: KeyValue) -> None:
        path = record.key[len(keys.LEDGER) :].decode()
        now, before = decode(LedgerRecord, record.value, key=record.key), self._ledgers.get(path)
        self._ledgers[path] = now
        if before is not None:
            had = {one.ledger_id for one in before.ledgers if one.aborted}
            self.counts["sidecar written"] += any(one.aborted and one.ledger_id not in had for one in now.ledgers)
            self.counts["ledgers given up to a page"] += now.paged > before.paged
            self.counts["trimmed"] += now.trimmed_below != before.trimmed_below

    def _owner(self, path: str) -> None:
        known = self._ledgers.get(path)
        if known is None:
            return
        self.counts["sealed segment taken by a later owner"] += known.sealed is not None
        self.counts["open ledger taken over"] += any(one.closed_length is None for one in known.ledgers)
        held = any(path in txn.segments for txn in self._open.values())
        self.counts["changed hands with an open transaction in it"] += held

    def _topic(self, record: KeyValue) -> None:
        topic = record.key[len(keys.TOPIC) :].decode()
        if decode(TopicRecord, record.value, key=record.key).deleting_ms:
            paths = [path for txn in self._open.values() for path in txn.segments]
            self.counts["topic deleted with open transactions"] += any(
                SegmentName.from_path(path).topic.path == topic for path in paths
            )

    def _subscription(self, record: KeyValue) -> None:
        if not decode(SubscriptionRecord, record.value, key=record.key).deleting_ms:
            return
        topic, _, subscription = record.key[len(keys.SUBSCRIPTION) :].decode().rpartition("/")
        for txn in self._open.values():
            if subscription in txn.subscriptions and any(path.startswith(f"{topic}/") for path in txn.segments):
                self.reached("subscription deleted with acks pending")
                return
