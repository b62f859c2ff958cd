"""Named transactions: get-or-create by one etcd transaction. Pure. Source: DESIGN §5 (begin) and §10.

A name record names the transaction that everyone who begins the name joins; after an abort the next to begin gets a
fresh one. Its outcome and writers are taken over at collection (`collection_transitions.name_rewrite`).
"""

from __future__ import annotations

from typing import NamedTuple

from txnstore import keys, records
from txnstore.records import ABORTED, COMMITTED, Header, TxnName
from txnstore.store import (
    Commit,
    CommitResult,
    Compare,
    Delete,
    KeyValue,
    Put,
    Read,
    absent,
    created_at,
    unchanged_since,
)
from txnstore.transitions import Decision, decision_of, read_begin_verdict
from txnwire.errors import OutcomeUnknown
from txnwire.ids import TxnId


class NameState(NamedTuple):
    """`txn_id` None: the name is free. Otherwise who begins it joins that one; `decision` None while it is open."""

    txn_id: TxnId | None
    decision: Decision | None = None


def read_name(record: KeyValue | None, header: KeyValue | None) -> NameState:
    """What a name stands for; `header` is that of the transaction the record names, None if it is gone.

    Read the record first, the header after it. Raises `OutcomeUnknown` where the header is gone and the record has no
    outcome: it has been collected in between (read both again), or by hand.
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


def outcome_by_name(record: KeyValue | None, txn_id: TxnId) -> Decision | None:
    """How a collected transaction ended, by the record of its name; None where that names another by now, or nobody."""
    if record is None:
        return None
    named = records.decode(TxnName, record.value, key=record.key)
    return _collected(named) if named.txn_id == str(txn_id) else None


def _collected(named: TxnName) -> Decision | None:
    if named.outcome is None:
        return None
    return Decision(named.outcome, 0, None, None if named.writers is None else tuple(named.writers))


def plan_begin_named(txn_id: TxnId, tc_epoch: int, header: Header, name: str, record: KeyValue | None) -> Commit:
    """Begin a free name: the header as in `plan_begin`, and the name record, unchanged since it was read as free.

    No compare of the aborted predecessor is needed: a decision never changes, and its collection rewrites the record.
    ▲ A begin whose answer is lost is repeated under the same id and is not aborted: others may have joined it.
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
            Put(name_key, records.encode(TxnName(v=1, txn_id=str(txn_id)))),
        ),
        else_reads=(Read(key), Read(name_key)),
        partition_key=key[len(keys.TXN) :],
        reserve=False,
    )


class NameRetention:
    """Which name records may go: those collected before `before_ms` (epoch ms). ▲ Of each prefix (up to the last `/`)
    the newest commit stays for ever: a query that comes back after a year must find the batch it has written.

    An aborted one stands for a free name just as no record does, and one that is not collected may yet abort: neither
    makes an older commit of its prefix go. Show it every record, then ask."""

    def __init__(self, before_ms: int, limit: int) -> None:
        self._before_ms = before_ms
        self._limit = limit
        self._newest: dict[bytes, tuple[int, KeyValue, TxnName]] = {}
        """By prefix. The newest by its create revision: ▲ a wall clock may be stepped."""
        self._expired: list[tuple[bytes, int]] = []

    def saw(self, record: KeyValue) -> None:
        """Raises `DataCorrupt`."""
        named = records.decode(TxnName, record.value, key=record.key)
        if named.outcome == COMMITTED:
            prefix, commit = record.key.rpartition(b"/")[0], (record.create_revision, record, named)
            newest = self._newest.get(prefix, commit)
            self._newest[prefix] = max(newest, commit, key=lambda one: one[0])
            if newest is commit:
                return
            _, record, named = min(newest, commit, key=lambda one: one[0])
        if named.outcome is not None and named.collected_ms < self._before_ms and len(self._expired) < self._limit:
            self._expired.append((record.key, record.mod_revision))

    def expired(self) -> list[tuple[bytes, int]]:
        """(key, mod revision) of at most `limit` records, for `plan_expire_name`."""
        return self._expired


def plan_expire_name(key: bytes, mod_revision: int, guard: Compare) -> Commit:
    """Forget a name. `guard`: of the elected role, compared with every write of it."""
    return Commit(compares=(unchanged_since(key, mod_revision), guard), deletes=(Delete(key),))


class NamedVerdict(NamedTuple):
    """`begun`: the name stands for this transaction now; `landed` as in `read_begin_verdict`. Not `begun`: somebody
    else was faster, go on from `record`."""

    begun: bool
    landed: Header | None
    record: KeyValue | None


def read_begin_named_verdict(commit: Commit, result: CommitResult, txn_id: TxnId, attempt: str) -> NamedVerdict:
    """Raises `NotOwner`, `InternalError` as `read_begin_verdict` does."""
    if result.succeeded:
        return NamedVerdict(True, None, None)
    record = result.reads[1][0] if result.reads[1] else None
    expected = commit.compares[2].value
    if not result.reads[0] and (0 if record is None else record.mod_revision) != expected:
        return NamedVerdict(False, None, record)
    return NamedVerdict(True, read_begin_verdict(result, txn_id, attempt), record)
