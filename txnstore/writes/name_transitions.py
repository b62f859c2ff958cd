"""Named transactions: get-or-create by one etcd transaction. Pure. Source: DESIGN §5 (begin) and §10.

A name record names the one transaction that every begin of the name joins; after an abort the next begin makes a new
one. Collection moves its outcome, writers and note into the record (`collection_transitions.name_rewrite`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from txnstore import keys, records
from txnstore.records import ABORTED, COMMITTED, Header, TxnName
from txnstore.store import (
    Commit,
    CommitVerdict,
    Compare,
    Delete,
    KeyValue,
    Put,
    Read,
    absent,
    created_at,
    unchanged_since,
)
from txnstore.writes.transitions import RecordedDecision, decision_of, read_begin_verdict
from txnstore.writes.writer_lists import unpack
from txnwire.errors import OutcomeUnknown
from txnwire.ids import TxnId

KEEP_MS: Final = 30 * 24 * 3600 * 1000
"""How long an outcome is kept if its record does not say, because an earlier version wrote it."""


class NameState(NamedTuple):
    """`txn_id` None: the name is free. Otherwise a begin joins that transaction; `decision` None while it is open."""

    txn_id: TxnId | None
    decision: RecordedDecision | None = None


def read_name(record: KeyValue | None, header: KeyValue | None) -> NameState:
    """The transaction of a name; `header` is that of the transaction the record names, None if it is deleted.

    Read the record first, the header after it. Raises `OutcomeUnknown` if the header is deleted and the record has no
    outcome: it was collected in between (read both again), or deleted by hand.
    """
    if record is None:
        return NameState(None)
    named = records.decode(TxnName, record.value, key=record.key)
    txn_id = TxnId.parse(named.txn_id)
    decision = _collected(named) if header is None else decision_of(header)
    if header is None and decision is None:
        raise OutcomeUnknown(f"{record.key.decode()}: transaction {txn_id} has no header and no outcome")
    if decision is not None and decision.state == ABORTED:
        return NameState(None)
    return NameState(txn_id, decision)


def outcome_by_name(record: KeyValue | None, txn_id: TxnId) -> RecordedDecision | None:
    """How a collected transaction ended, by the record of its name; None if that names another one by now, or none."""
    if record is None:
        return None
    named = records.decode(TxnName, record.value, key=record.key)
    return _collected(named) if named.txn_id == str(txn_id) else None


def _collected(named: TxnName) -> RecordedDecision | None:
    if named.outcome is None:
        return None
    return RecordedDecision(
        named.outcome, 0, None, None if named.writers is None else unpack(named.writers), named.note
    )


class Keep(NamedTuple):
    """How long the outcome of a name is kept after its collection. `ms` 0: as its namespace is set (in a record:
    `KEEP_MS`). `newest`: for ever while it is the newest commit of its prefix, up to the last `/`."""

    ms: int = 0
    newest: bool = False


KEPT_BY_DEFAULT: Final = Keep()


def plan_begin_named(
    txn_id: TxnId, tc_epoch: int, header: Header, name: str, record: KeyValue | None, keep: Keep
) -> Commit:
    """Begin a free name: the header as in `plan_begin`, and the name record, unchanged since it was read as free.

    No compare of the aborted predecessor is needed: a decision never changes, and its collection rewrites the record. ▲
    A begin whose answer is lost is repeated under the same id and is not aborted: others may have joined it.
    """
    key, name_key = keys.txn(txn_id), keys.txn_name(name)
    return Commit(
        compares=(
            absent(key),
            created_at(keys.tc(txn_id.tcid), tc_epoch),
            unchanged_since(name_key, 0 if record is None else record.mod_revision),
        ),
        puts=(
            Put(key, records.encode(header)),
            Put(name_key, records.encode(TxnName(v=1, txn_id=str(txn_id), keep_ms=keep.ms, keep_newest=keep.newest))),
        ),
        else_reads=(Read(key), Read(name_key)),
        partition_key=key[len(keys.TXN) :],
        reserve=False,
    )


class Expired(NamedTuple):
    """A name record to delete; see `plan_expire_name`."""

    key: bytes
    mod_revision: int


class _Newest(NamedTuple):
    """The newest commit under `prefix` that asked to be kept. `expired` None: its time is not over yet."""

    prefix: bytes
    order: tuple[int, bytes]
    expired: Expired | None


class NameRetention:
    """Decides which name records may be deleted at `now_ms` (epoch ms): those whose requested time since collection is
    over. ▲ If requested, the newest commit of a prefix (up to the last `/`) stays for ever: a query that returns after
    a year must find the batch it has written.

    An aborted name counts as free, like one without a record, and an uncollected one may yet abort: neither makes an
    older commit of its prefix expire. Feed it every record in key order: the names of a prefix are then adjacent, so it
    remembers at most one commit for each `/` of a name."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._newest: list[_Newest] = []
        """For the prefixes of the last key, outermost first."""

    def saw(self, record: KeyValue) -> Expired | None:
        """The record that may be deleted now that this one is known too. Raises `DataCorrupt`."""
        named = records.decode(TxnName, record.value, key=record.key)
        over = named.outcome is not None and named.collected_ms + (named.keep_ms or KEEP_MS) <= self._now_ms
        return self._saw(record, named, named.outcome, over=over)

    def _saw(self, record: KeyValue, named: TxnName, outcome: str | None, *, over: bool) -> Expired | None:
        expired = Expired(record.key, record.mod_revision) if over else None
        if outcome != COMMITTED or not named.keep_newest:
            return expired
        while self._newest and not record.key.startswith(self._newest[-1].prefix):
            self._newest.pop()
        # ▲ By the create revision, because a wall clock may be stepped. The names of one group commit share it.
        one = _Newest(record.key[: record.key.rindex(b"/") + 1], (record.create_revision, record.key), expired)
        if not self._newest or self._newest[-1].prefix != one.prefix:
            self._newest.append(one)
            return None
        other = self._newest[-1]
        self._newest[-1] = max(one, other, key=lambda each: each.order)
        return min(one, other, key=lambda each: each.order).expired


class NameDeletion(NameRetention):
    """Decides which name records a user's request may delete: those of all decided transactions, whatever time is
    left. The newest commit of a prefix stays here, too, if its begin asked for that."""

    def __init__(self) -> None:
        super().__init__(0)

    def saw_ended(self, record: KeyValue, outcome: str) -> Expired | None:
        """▲ `outcome`, of the record or of the header that it names, is never OPEN. A client that begins a
        deleted name does its work again: if the old transaction were still open, both commits would count."""
        named = records.decode(TxnName, record.value, key=record.key)
        return self._saw(record, named, outcome, over=True)


def plan_delete_name(expired: Expired) -> Commit:
    """Delete the name of a decided transaction. ▲ Only if unchanged since it was read: a name that was begun again
    names another transaction, which may be open."""
    return Commit(compares=(unchanged_since(expired.key, expired.mod_revision),), deletes=(Delete(expired.key),))


def plan_expire_name(expired: Expired, guard: Compare) -> Commit:
    """Forget a name. `guard`: that of the elected role, which every write of it compares."""
    return Commit(compares=(unchanged_since(expired.key, expired.mod_revision), guard), deletes=(Delete(expired.key),))


class NamedVerdict(NamedTuple):
    """`begun`: the name belongs to this transaction now; `landed` as in `read_begin_verdict`. Not `begun`: another
    begin was faster, continue from `record`."""

    begun: bool
    landed: Header | None
    record: KeyValue | None


def read_begin_named_verdict(commit: Commit, result: CommitVerdict, txn_id: TxnId, attempt: str) -> NamedVerdict:
    """Raises `NotOwner`, `InternalError` as `read_begin_verdict` does."""
    if result.succeeded:
        return NamedVerdict(True, None, None)
    record = result.reads[1][0] if result.reads[1] else None
    expected = commit.compares[2].value
    if not result.reads[0] and (0 if record is None else record.mod_revision) != expected:
        return NamedVerdict(False, None, record)
    return NamedVerdict(True, read_begin_verdict(result, txn_id, attempt), record)
