"""The header of a transaction: all its transitions, and the coordinators' etcd writes that make them.

    absent ──begin──▶ OPEN ──end──▶ COMMITTED ──collect──▶ absent, known by its outcome bits
                        └────end──▶ ABORTED   ──collect──▶ absent, known by its outcome bits

A header is put once OPEN and once decided, so `version == 1` *is* "OPEN" and an OPEN header never changes. Pure: each
`plan_…` returns one `Commit`, each `read_…` turns its `CommitVerdict` into a verdict or an error. Source: DESIGN §5;
PIP-471 "Transaction Coordinator V5". Participants' writes are in `txnstore.writes.op_transitions`, collection in
`txnstore.writes.collection_transitions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from txnstore import keys, records
from txnstore.records import ABORTED, COMMITTED, OPEN, Header, TxnSeq
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
from txnstore.writes.writer_lists import pack, unpack
from txnwire.errors import ExpiredTransaction, InternalError, InvalidTxnState, NotOwner
from txnwire.ids import TxnId

LEGAL: Final = {OPEN: (COMMITTED, ABORTED), COMMITTED: (), ABORTED: ()}
"""State → the states it may change to. A decided state never changes."""

WRITERS_SHOWN: Final = 4
"""Writers shown in an error's message."""


class RecordedDecision(NamedTuple):
    """How a transaction ended. `revision` is that of its decision, 0 if only the collected outcome is known. `note`: of
    its commit, None if it has none."""

    state: str
    revision: int
    reason: str | None = None
    writers: tuple[str, ...] | None = None
    note: str | None = None


def decide(
    header: Header,
    state: str,
    *,
    finalized_ms: int,
    reason: str | None,
    writers: Sequence[str] | None,
    note: str | None = None,
) -> Header:
    """The decided form of an OPEN header; raises `InvalidTxnState` for a transition that is not in `LEGAL`."""
    if state not in LEGAL[header.state]:
        raise InvalidTxnState(f"a transaction that is {header.state} cannot become {state}")
    if state == COMMITTED:
        reason = None
    return Header(
        state=state,
        timeout_ms=header.timeout_ms,
        created_ms=header.created_ms,
        finalized_ms=finalized_ms,
        owner=header.owner,
        name=header.name,
        txn_key=header.txn_key,
        key_epoch=header.key_epoch,
        attempt=header.attempt,
        reason=reason,
        writers=None if writers is None or state != COMMITTED else pack(writers),
        note=note if state == COMMITTED else None,
    )


# ---- begin ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _tc_owned(tcid: int, epoch: int) -> Compare:
    return created_at(keys.tc(tcid), epoch)


def plan_begin(txn_id: TxnId, tc_epoch: int, header: Header) -> Commit:
    """Put the OPEN header of a fresh id. `tc_epoch` is the create revision of `/tc/<tcid>` under the caller's lease.

    `read_begin_verdict` reads its parts. Refused with `StoreFull` above the soft limit (`reserve` is False).
    """
    key = keys.txn(txn_id)
    return Commit(
        compares=(absent(key), _tc_owned(txn_id.tcid, tc_epoch)),
        puts=(Put(key, records.encode(header)),),
        else_reads=(Read(key),),
        partition_key=key[len(keys.TXN) :],
        reserve=False,
    )


def read_begin_verdict(result: CommitVerdict, txn_id: TxnId, attempt: str) -> Header | None:
    """None: this sending began it. A header: an earlier sending had landed, and this is its current state.

    Raises `NotOwner` when the TCID has another owner (definitely not begun), `InternalError` if the id was used twice.
    """
    if result.succeeded:
        return None
    if not result.reads[0]:
        raise NotOwner(f"coordinator id {txn_id.tcid} has another owner by now: look it up and begin there")
    found = result.reads[0][0]
    header = records.decode(Header, found.value, key=found.key)
    # ▲ A lost begin is repeated under its attempt: only that distinguishes our own header from a foreign one.
    if header.attempt != attempt or not result.repeated:
        raise InternalError(f"transaction id {txn_id} was given out twice: found attempt {header.attempt}")
    return header


# ---- end ------------------------------------------------------------------------------------------------------------


def plan_end(txn_id: TxnId, decided: Header, *, deadline_key: bool, tc_epoch: int | None = None) -> Commit:
    """Decide an open transaction; `decided` comes from `decide`.

    `deadline_key`: it has, or may have, an index key to delete with it. `tc_epoch` is given by sweeps: a coordinator
    that was paused and has lost the TCID must not act on its old view of sessions and deadlines. A client's own
    decision needs no ownership: the compare of the header is enough.
    """
    key = keys.txn(txn_id)
    compares: tuple[Compare, ...] = (version_is(key, 1),)
    else_reads: tuple[Read, ...] = (Read(key),)
    if tc_epoch is not None:
        compares = (*compares, _tc_owned(txn_id.tcid, tc_epoch))
    return Commit(
        compares=compares,
        puts=(Put(key, records.encode(decided)),),
        deletes=(Delete(keys.deadline(decided.timeout_ms, txn_id)),) if deadline_key else (),
        else_reads=else_reads,
        partition_key=key[len(keys.TXN) :],
    )


class EndVerdict(NamedTuple):
    """`decision` None: there is no header (never begun, or collected). `mine`: this commit made it, now or by an
    earlier sending; so a decision is counted once."""

    decision: RecordedDecision | None
    mine: bool


def read_end_verdict(commit: Commit, result: CommitVerdict, decided: Header) -> EndVerdict:
    """The verdict on an end. Raises `NotOwner` for a sweep's commit whose TCID is another's: still open."""
    if result.succeeded:
        writers = None if decided.writers is None else unpack(decided.writers)
        return EndVerdict(RecordedDecision(decided.state, result.revision, decided.reason, writers, decided.note), True)
    if not result.reads[0]:
        return EndVerdict(None, False)
    found = result.reads[0][0]
    if found.version == 1:
        if len(commit.compares) > 1:
            raise NotOwner(f"{commit.compares[1].key.decode()} has another owner by now: the sweep is its business")
        raise InternalError(f"{found.key.decode()}: the end of an OPEN transaction was refused")
    return EndVerdict(decision_of(found), result.repeated and found.value == commit.puts[0].value)


def decision_of(record: KeyValue) -> RecordedDecision | None:
    """The decision in a header record, None while it is OPEN. Its revision is that of the header's second put."""
    if record.version == 1:
        return None
    header = records.decode(Header, record.value, key=record.key)
    writers = None if header.writers is None else unpack(header.writers)
    return RecordedDecision(header.state, record.mod_revision, header.reason, writers, header.note)


def check_end(
    txn_id: TxnId, decision: RecordedDecision, state: str, writers: Sequence[str] | None, note: str | None = None
) -> RecordedDecision:
    """Answer a request for `state` on a decided transaction: the same decision again is ok, with the first revision.

    Raises `ExpiredTransaction` if it was fenced, `InvalidTxnState` for the opposite decision, another list of writers
    or another note, saying why it ended (scenarios D1, D2). A commit without a note matches any note: earlier versions
    of clients, coordinators and collectors have none.
    """
    if decision.reason == records.REASON_FENCED:
        raise ExpiredTransaction(f"transaction {txn_id} was fenced by a newer holder of its transaction key")
    if decision.state != state:
        why = f" (reason: {decision.reason})" if decision.reason else ""
        raise InvalidTxnState(f"transaction {txn_id} is {decision.state} already{why}: it cannot become {state}")
    if state == COMMITTED and not _same_writers(decision.writers, writers):
        raise InvalidTxnState(
            f"transaction {txn_id} is COMMITTED already, with another list of writers: "
            f"{_writers_text(decision.writers)}, asked for {_writers_text(writers)}"
        )
    if state == COMMITTED and None not in (note, decision.note) and note != decision.note:
        raise InvalidTxnState(
            f"transaction {txn_id} is COMMITTED already, with another note: {decision.note!r}, asked for {note!r}"
        )
    return decision


def _same_writers(first: Sequence[str] | None, second: Sequence[str] | None) -> bool:
    if first is None or second is None:
        return first is second
    return sorted(first) == sorted(second)


def _writers_text(writers: Sequence[str] | None) -> str:
    """For messages: lists a few writers, counts many."""
    if writers is None:
        return "all"
    if not writers:
        return "none"
    shown = ", ".join(sorted(writers)[:WRITERS_SHOWN])
    return shown if len(writers) <= WRITERS_SHOWN else f"{len(writers)} of them ({shown}, …)"


# ---- ids ------------------------------------------------------------------------------------------------------------


class TcSeq(NamedTuple):
    """`/txn-seq/<tcid>` as last read or written: the record and its mod revision (0: absent)."""

    record: TxnSeq
    mod_revision: int


FIRST_SEQ: Final = TcSeq(TxnSeq(next=1), 0)


def read_seq(record: KeyValue | None) -> TcSeq:
    if record is None:
        return FIRST_SEQ
    return TcSeq(records.decode(TxnSeq, record.value, key=record.key), record.mod_revision)


def plan_seq(tcid: int, tc_epoch: int, seq: TcSeq, *, take: int = 0, indexed_below: int | None = None) -> Commit:
    """Take a block of `take` ids, advance the late-index mark, or both: one record, one writer.

    ▲ It compares the TCID epoch (a coordinator that lost the TCID must not move the mark) and the record as read; and a
    block counts as taken only if *this* commit succeeded: one whose reply was lost is never used.
    """
    mark = seq.record.indexed_below if indexed_below is None else max(indexed_below, seq.record.indexed_below)
    record = TxnSeq(next=seq.record.next + take, indexed_below=mark)
    key = keys.txn_seq(tcid)
    return Commit(
        compares=(_tc_owned(tcid, tc_epoch), unchanged_since(key, seq.mod_revision)),
        puts=(Put(key, records.encode(record)),),
        else_reads=(Read(keys.tc(tcid)), Read(key)),
    )


class SeqVerdict(NamedTuple):
    """`applied`: the block taken is [before.next, seq.next). Not applied: continue from `seq`."""

    applied: bool
    seq: TcSeq


def read_seq_verdict(commit: Commit, result: CommitVerdict, tcid: int) -> SeqVerdict:
    """Raises `NotOwner` when the TCID has another owner. A refusal never yields ids, whoever moved the record: an
    earlier sending of this commit may have, and ▲ a block whose reply was lost is never used."""
    put = commit.puts[0]
    if result.succeeded:
        return SeqVerdict(True, TcSeq(records.decode(TxnSeq, put.value, key=put.key), result.revision))
    owner = result.reads[0][0] if result.reads[0] else None
    if owner is None or owner.create_revision != commit.compares[0].value:
        raise NotOwner(f"coordinator id {tcid} has another owner by now")
    return SeqVerdict(False, read_seq(result.reads[1][0] if result.reads[1] else None))


# ---- late deadline index --------------------------------------------------------------------------------------------


def plan_late_index(txn_id: TxnId, tc_epoch: int, timeout_ms: int) -> Commit:
    """Put the deadline key of a transaction that is still open a second after its begin."""
    key = keys.txn(txn_id)
    return Commit(
        compares=(version_is(key, 1), _tc_owned(txn_id.tcid, tc_epoch)),
        puts=(Put(keys.deadline(timeout_ms, txn_id), b""),),
        else_reads=(Read(key),),
        partition_key=key[len(keys.TXN) :],
    )


class Indexed(Enum):
    """The verdict on a late index put."""

    DONE = "done"
    DECIDED = "decided"
    """The header is final or deleted: there is nothing to index, and an earlier sending's key may be left behind."""
    LOST = "lost"
    """The TCID has another owner."""


def read_late_index_verdict(result: CommitVerdict) -> Indexed:
    if result.succeeded:
        return Indexed.DONE
    header = result.reads[0][0] if result.reads[0] else None
    return Indexed.LOST if header is not None and header.version == 1 else Indexed.DECIDED


def plan_drop_deadline(timeout_ms: int, txn_id: TxnId) -> Commit:
    """Delete a stale deadline key, *if* the header is final or deleted."""
    key = keys.txn(txn_id)
    return Commit(
        compares=(Compare(key, Target.VERSION, Relation.NOT_EQUAL, 1),),
        deletes=(Delete(keys.deadline(timeout_ms, txn_id)),),
        partition_key=key[len(keys.TXN) :],
    )


# ---- coordinator ids ------------------------------------------------------------------------------------------------


def plan_take_tcid(tcid: int, registration: records.RegistrationRecord, lease_id: int) -> Commit:
    """Take a free coordinator id on a lease; its create revision is the TCID epoch."""
    key = keys.tc(tcid)
    return Commit(
        compares=(absent(key),),
        puts=(Put(key, msgspec.json.encode(registration), lease_id),),
        else_reads=(Read(key),),
    )


def plan_join(registration: records.RegistrationRecord, lease_id: int, found: KeyValue | None) -> Commit:
    """Join the coordinators. It replaces the record `found` of a predecessor of the same id; ▲ compared, so that a
    namesake that has come since keeps its place."""
    key = keys.tc_member(registration.id)
    return Commit(
        compares=(unchanged_since(key, 0 if found is None else found.mod_revision),),
        puts=(Put(key, msgspec.json.encode(registration), lease_id),),
        else_reads=(Read(key),),
    )


def plan_give_up_tcid(tcid: int, tc_epoch: int) -> Commit:
    """Free a coordinator id for another coordinator, if it still has the epoch that was taken."""
    key = keys.tc(tcid)
    return Commit(compares=(created_at(key, tc_epoch),), deletes=(Delete(key),))


def read_take_verdict(result: CommitVerdict, lease_id: int) -> int | None:
    """The TCID epoch, or None if another coordinator has it. It is mine only if its *lease id* is mine."""
    if result.succeeded:
        return result.revision
    found = result.reads[0][0] if result.reads[0] else None
    return found.create_revision if found is not None and found.lease == lease_id else None
