"""Transaction keys: the holder of a key, and the one transaction it may have open. Pure.

    absent, -1 ──connect──▶ epoch 0 ──connect──▶ epoch 1 ──delete──▶ epoch 2, a tombstone ──connect──▶ epoch 3 …

Each arrow is one etcd transaction, which aborts the former holder's open transaction. Source: 003, "Key Concepts";
DESIGN §5 (begin) and §9. The newer of two holders is the one that connected later. Every arrow and every begin compares
the key's record as read, so late requests, and those that the older holder sent before, fail their compare.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from txnstore import keys, records
from txnstore.records import ABORTED, REASON_FENCED, Header, TransactionKey
from txnstore.store import (
    Commit,
    CommitVerdict,
    Compare,
    Delete,
    KeyValue,
    Put,
    Read,
    Relation,
    Target,
    absent,
    created_at,
    unchanged_since,
    version_is,
)
from txnstore.writes.transitions import decide, decision_of, read_begin_verdict
from txnwire.errors import ExpiredTransaction, InvalidTxnState, NotAllowed
from txnwire.ids import TxnId

NEVER_USED: Final = -1
"""The epoch of a key without a record."""


class KeyState(NamedTuple):
    """A key's record as last read or written; `mod_revision` 0: there is none."""

    record: TransactionKey
    mod_revision: int

    @property
    def txn_id(self) -> TxnId | None:
        """The newest transaction begun by the present holder; it may have ended."""
        return None if self.record.txn_id is None else TxnId.parse(self.record.txn_id)

    @property
    def deleted(self) -> bool:
        return self.record.deleted_ms != 0


UNUSED: Final = KeyState(TransactionKey(epoch=NEVER_USED), 0)


def read_key(record: KeyValue | None) -> KeyState:
    """Raises `DataCorrupt`."""
    if record is None:
        return UNUSED
    return KeyState(records.decode(TransactionKey, record.value, key=record.key), record.mod_revision)


# ---- connect and delete ---------------------------------------------------------------------------------------------


def check_connect(state: KeyState, epoch: int, attempt: str) -> int | None:
    """The epoch that this attempt got already; None: the key may be taken.

    ▲ Raises `NotAllowed` if the key has moved on from `epoch`, the one the connect names: a late connect must not fence
    a holder that took the key after it was sent.
    """
    record = state.record
    if record.epoch == epoch:
        return None
    if record.epoch == epoch + 1 and record.attempt == attempt and not state.deleted:
        return record.epoch
    moved = "was deleted" if state.deleted else "has a newer holder"
    raise NotAllowed(
        f"the transaction key {moved} (epoch {record.epoch}, this client's is {epoch + 1}); connect again to take it "
        "back"
    )


def plan_connect(
    key: bytes, state: KeyState, attempt: str, *, now_ms: int, open_header: KeyValue | None = None
) -> tuple[Commit, KeyState]:
    """Make the sender of `attempt` the holder, and abort `open_header`, the former holder's open transaction. Also
    returns the resulting state, without its mod revision. `open_header` None: the transaction that `state` names has
    ended."""
    record = TransactionKey(epoch=state.record.epoch + 1, attempt=attempt, since_ms=now_ms)
    return _plan_move(key, state, record, now_ms, open_header), KeyState(record, 0)


def plan_delete_key(
    key: bytes, state: KeyState, *, now_ms: int, open_header: KeyValue | None = None
) -> tuple[Commit, KeyState]:
    """Fence the holder and leave a tombstone. ▲ The epoch rises and the record stays: a key made again must not give
    out an epoch twice."""
    record = TransactionKey(epoch=state.record.epoch + 1, since_ms=state.record.since_ms, deleted_ms=now_ms)
    return _plan_move(key, state, record, now_ms, open_header), KeyState(record, 0)


def _plan_move(
    key: bytes, state: KeyState, record: TransactionKey, now_ms: int, open_header: KeyValue | None
) -> Commit:
    # ▲ The record as read: a begin of the old holder that lands first changes it, so the next try sees that begin and
    # aborts it; one that lands later is refused.
    compares: list[Compare] = [unchanged_since(key, state.mod_revision)]
    puts = [Put(key, records.encode(record))]
    deletes: list[Delete] = []
    else_reads = [Read(key)]
    if open_header is not None:
        opened = records.decode(Header, open_header.value, key=open_header.key)
        fenced = decide(opened, ABORTED, finalized_ms=now_ms, reason=REASON_FENCED, writers=None)
        compares.append(version_is(open_header.key, 1))
        puts.append(Put(open_header.key, records.encode(fenced)))
        deletes.append(Delete(keys.deadline(opened.timeout_ms, keys.txn_of(open_header.key))))
        else_reads.append(Read(open_header.key))
    return Commit(
        compares=tuple(compares),
        puts=tuple(puts),
        deletes=tuple(deletes),
        else_reads=tuple(else_reads),
        reserve=state.mod_revision != 0,
    )


def is_open(header: KeyValue | None) -> bool:
    return header is not None and header.version == 1


# ---- begin ----------------------------------------------------------------------------------------------------------


class KeyedBegin(NamedTuple):
    """The data of a begin: its key's record, the holder's epoch, and its number in that epoch (from 1)."""

    key: bytes
    epoch: int
    number: int


class Earlier(NamedTuple):
    """This begin was made before. `open`: whether its transaction still is."""

    txn_id: TxnId
    header: Header | None
    open: bool


def check_holder(state: KeyState, begin: KeyedBegin) -> None:
    """Raises `ExpiredTransaction` if the key has another holder now, or was deleted; `NotAllowed` for a late begin: the
    holder has begun another transaction since."""
    if state.record.epoch != begin.epoch or state.deleted:
        raise ExpiredTransaction(
            f"this client was fenced: its transaction key {'was deleted' if state.deleted else 'has a newer holder'} "
            f"(epoch {state.record.epoch}, this client's is {begin.epoch}); connect again to take it back"
        )
    if begin.number < state.record.begins:
        raise NotAllowed(f"begin {begin.number} of this holder comes late: it has made {state.record.begins} by now")


def check_begin(state: KeyState, header: KeyValue | None, begin: KeyedBegin, attempt: str) -> Earlier | None:
    """None: it may be begun. `header`: that of the transaction `state` names, read after it; None if it is deleted.

    Raises as `check_holder`, and `InvalidTxnState` while that transaction is open. ▲ One at a time: a connect can only
    abort the one its record names.
    """
    check_holder(state, begin)
    txn_id = state.txn_id
    if txn_id is None:
        return None
    found = None if header is None else records.decode(Header, header.value, key=header.key)
    if begin.number == state.record.begins and (found is None or found.attempt == attempt):
        return Earlier(txn_id, found, header is not None and decision_of(header) is None)
    if is_open(header) or begin.number == state.record.begins:
        raise InvalidTxnState(
            f"transaction {txn_id} of this transaction key is open: a client with a key has one at a time, end it first"
        )
    return None


def plan_begin_keyed(
    txn_id: TxnId, tc_epoch: int, header: Header, begin: KeyedBegin, state: KeyState
) -> tuple[Commit, KeyState]:
    """Begin a transaction of a key: the header as in `plan_begin`, and the key's record, ▲ unchanged since it was read:
    a late begin, or one of an earlier epoch, never lands. Also returns the resulting state, without its mod revision.

    ▲ A begin whose answer is lost is repeated under the same id, and not aborted: its client gets that id.
    """
    key, record = keys.txn(txn_id), msgspec.structs.replace(state.record, txn_id=str(txn_id), begins=begin.number)
    before = state.txn_id
    # Not open: decided, or deleted. The store checks it, so that the usual begin takes no read.
    ended = () if before is None else (Compare(keys.txn(before), Target.VERSION, Relation.NOT_EQUAL, 1),)
    reads = () if before is None else (Read(keys.txn(before)),)
    commit = Commit(
        compares=(absent(key), created_at(keys.tc(txn_id.tcid), tc_epoch), _unchanged(begin.key, state), *ended),
        puts=(Put(key, records.encode(header)), Put(begin.key, records.encode(record))),
        else_reads=(Read(key), Read(begin.key), *reads),
        partition_key=key[len(keys.TXN) :],
        reserve=False,
    )
    return commit, KeyState(record, 0)


def _unchanged(key: bytes, state: KeyState) -> Compare:
    return unchanged_since(key, state.mod_revision)


class KeyedVerdict(NamedTuple):
    """`begun`: by this commit, now or by an earlier sending; `landed` as in `read_begin_verdict`. Not `begun`: continue
    from `state` and `before`, the header of the transaction that it names, or named when this was sent."""

    begun: bool
    landed: Header | None
    state: KeyState | None
    before: KeyValue | None


def read_begin_keyed_verdict(commit: Commit, result: CommitVerdict, txn_id: TxnId, attempt: str) -> KeyedVerdict:
    """Raises `NotOwner`, `InternalError` as `read_begin_verdict` does. `state` is None if an earlier sending began it:
    the key may have moved on since."""
    if result.succeeded:
        put = commit.puts[1]
        record = records.decode(TransactionKey, put.value, key=put.key)
        return KeyedVerdict(True, None, KeyState(record, result.revision), None)
    own, found, *rest = ((one[0] if one else None) for one in result.reads)
    before = rest[0] if rest else None
    state = read_key(found)
    if own is None and (state.mod_revision != commit.compares[2].value or is_open(before)):
        return KeyedVerdict(False, None, state, before)
    return KeyedVerdict(True, read_begin_verdict(result, txn_id, attempt), None, None)
