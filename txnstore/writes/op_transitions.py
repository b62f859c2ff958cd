"""The etcd writes of participants: op records, clean-up, watermark, and leftovers of segments without an owner.

Pure: each `plan_…` returns one `Commit`, each `read_…` turns its `CommitVerdict` into a verdict or an error. Source:
DESIGN §5 (write / ack op, clean-up, "Collection never guesses"); PIP-471 `/txn-op` records. The header's own
transitions are in `txnstore.writes.transitions`.

A participant deletes all its ops of one transaction by one range, so a transaction of 10 000 operations is cleaned with
two deletes per participant (scenario A3).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from txnstore import keys, records
from txnstore.records import AbortedRecord, Header, Op, Watermark
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
    version_is,
)
from txnwire.errors import ExpiredTransaction, InternalError, NotOwner, TxnConflict
from txnwire.ids import Position, TxnId


class Rewrite(NamedTuple):
    """A record that replaces the one read at `mod_revision`; 0: it must still be absent (▲ §4: compared)."""

    key: bytes
    value: bytes
    mod_revision: int


def aborted_rewrite(
    segment: str, txn_id: TxnId, writer: int | None, max_position: Position | None, mod_revision: int = 0
) -> Rewrite:
    """`/segment-state/<segment>/aborted/…`. Position None: unknown (leftovers only)."""
    value = records.encode(AbortedRecord(max_position=max_position))
    return Rewrite(keys.aborted(segment, txn_id, writer), value, mod_revision)


def watermark_rewrite(segment: str, position: Position, mod_revision: int) -> Rewrite:
    """`/segment-state/<segment>/watermark`: all below is decided, and every aborted record there is durable."""
    return Rewrite(keys.watermark(segment), records.encode(Watermark(position=position)), mod_revision)


# ---- publish and ack ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _owned(segment: str, owner_epoch: int) -> tuple[Compare, Read]:
    key = keys.owner(segment)
    return created_at(key, owner_epoch), Read(key)


def plan_write_op(
    txn_id: TxnId, segment: str, owner_epoch: int, counter: int, op: Op, *, first_in_segment: bool
) -> Commit:
    """Record one write of an open transaction, before the entry is appended (DESIGN §6: op, append, ack).

    `counter` is per broker process and never restarts. ▲ The first op of (segment, transaction) carries the index key,
    and no further op is sent before it is confirmed; so an index key exists exactly while ops do.
    """
    index = keys.write_index(segment, txn_id) if first_in_segment else None
    return _plan_op(
        txn_id, segment, owner_epoch, keys.op(keys.write_ops(txn_id, segment), owner_epoch, counter), op, index
    )


def plan_ack_op(
    txn_id: TxnId,
    segment: str,
    subscription: str,
    owner_epoch: int,
    counter: int,
    op: Op,
    *,
    first_in_subscription: bool,
) -> Commit:
    """Record acks of an open transaction; the index is per (segment, subscription). Otherwise as `plan_write_op`."""
    index = keys.ack_index(segment, subscription, txn_id) if first_in_subscription else None
    op_key = keys.op(keys.ack_ops(txn_id, segment, subscription), owner_epoch, counter)
    return _plan_op(txn_id, segment, owner_epoch, op_key, op, index)


def _plan_op(txn_id: TxnId, segment: str, owner_epoch: int, op_key: bytes, op: Op, index_key: bytes | None) -> Commit:
    header_key = keys.txn(txn_id)
    owned, read_owner = _owned(segment, owner_epoch)
    put = Put(op_key, records.encode(op))
    return Commit(
        # ▲ Version 1 *is* OPEN, compared in the same etcd transaction: no late write lands after a decision. ▲ The op
        # key must be absent: two keys made in one request share a create revision, so only absence distinguishes a
        # repeat of this op from a second use of its counter.
        compares=(version_is(header_key, 1), owned, absent(op_key)),
        puts=(put,) if index_key is None else (put, Put(index_key, b"")),
        else_reads=(Read(header_key), read_owner, Read(op_key)),
        partition_key=header_key[len(keys.TXN) :],
        reserve=False,
    )


def read_op_verdict(commit: Commit, result: CommitVerdict, txn_id: TxnId) -> None:
    """Return if the op is recorded; else raise, and then it definitely never will be.

    `TxnConflict`: the transaction is decided, collected or was never begun. `ExpiredTransaction`: it was fenced.
    `NotOwner`: the segment has another owner. An op found in place after a repeat is this one: it landed unanswered.
    """
    if result.succeeded:
        return
    header, owner, own_op = (found[0] if found else None for found in result.reads)
    if own_op is not None:
        if result.repeated:
            return
        raise InternalError(f"op key {own_op.key.decode()} was used twice by one broker process: {own_op.value!r}")
    if header is None:
        raise TxnConflict(f"transaction {txn_id} is not open: it has ended and been collected, or was never begun")
    if header.version != 1:
        raise decided_error(txn_id, records.decode(Header, header.value, key=header.key))
    epoch = commit.compares[1].value
    now = "nobody" if owner is None else f"epoch {owner.create_revision}"
    raise NotOwner(f"this broker no longer owns {commit.compares[1].key.decode()}: had epoch {epoch}, now {now}")


def decided_error(txn_id: TxnId, header: Header) -> TxnConflict | ExpiredTransaction:
    """Why an operation of a decided transaction is refused."""
    why = f" (reason: {header.reason})" if header.reason else ""
    if header.reason == records.REASON_FENCED:
        return ExpiredTransaction(f"transaction {txn_id} was fenced by a newer holder of its transaction key")
    return TxnConflict(f"transaction {txn_id} is {header.state}{why}: it takes no further operations")


# ---- clean-up -------------------------------------------------------------------------------------------------------


def clean_up_ops(*, writes: int = 0, acks: int = 0, rewrites: int = 0, forget: int = 0) -> int:
    """The number of operations that `plan_clean_up` of these items takes of `store.MAX_COMMIT_OPS`."""
    return 1 + 2 * (writes + acks) + rewrites + forget


def plan_clean_up(
    segment: str,
    owner_epoch: int,
    *,
    writes: Sequence[TxnId] = (),
    acks: Sequence[tuple[str, TxnId]] = (),
    rewrites: Sequence[Rewrite] = (),
    forget: Sequence[bytes] = (),
) -> Commit:
    """One batch of durable clean-up of one segment, over any number of transactions.

    `writes`: transactions whose write ops (and index key) are deleted. `acks`: the same per (subscription,
    transaction). `rewrites`: aborted records, cursor blocks and the watermark. `forget`: keys to delete (aborted
    records whose data is trimmed, or that a synced sidecar holds). ▲ The caller puts an aborted record into the batch
    that deletes its op, or into an earlier one that has succeeded. The batch is cut so that `clean_up_ops` stays within
    `store.MAX_COMMIT_OPS`.
    """
    owned, read_owner = _owned(segment, owner_epoch)
    deletes = [Delete(key) for key in forget]
    for txn_id in writes:
        prefix = keys.write_ops(txn_id, segment)
        deletes += (Delete(prefix, keys.prefix_end(prefix)), Delete(keys.write_index(segment, txn_id)))
    for subscription, txn_id in acks:
        prefix = keys.ack_ops(txn_id, segment, subscription)
        deletes += (Delete(prefix, keys.prefix_end(prefix)), Delete(keys.ack_index(segment, subscription, txn_id)))
    return Commit(
        # ▲ Every rewrite compares the revision it was read at: a late old value must never overwrite a new one.
        compares=(owned, *(unchanged_since(item.key, item.mod_revision) for item in rewrites)),
        puts=tuple(Put(item.key, item.value) for item in rewrites),
        deletes=tuple(deletes),
        else_reads=(read_owner, *(Read(item.key) for item in rewrites)),
    )


def read_clean_up_verdict(commit: Commit, result: CommitVerdict) -> dict[bytes, KeyValue | None] | None:
    """None: the batch is durable (every rewritten record then has `mod_revision == result.revision`, unless
    `result.succeeded` is False: an earlier sending landed; `clean_up_revisions` tells). A dict: a record had changed;
    it holds the current record of each rewritten key, to decide again. Raises `NotOwner`."""
    if result.succeeded:
        return None
    found = [one[0] if one else None for one in result.reads]
    owner, epoch = found[0], commit.compares[0].value
    if owner is None or owner.create_revision != epoch:
        now = "nobody" if owner is None else f"epoch {owner.create_revision}"
        raise NotOwner(f"this broker no longer owns {commit.compares[0].key.decode()}: had epoch {epoch}, now {now}")
    if result.repeated and all(
        record is not None and record.value == put.value for record, put in zip(found[1:], commit.puts, strict=True)
    ):
        # Only the owner writes these records and it still is: an earlier sending of this batch has landed.
        return None
    return {put.key: record for put, record in zip(commit.puts, found[1:], strict=True)}


def clean_up_revisions(commit: Commit, result: CommitVerdict) -> dict[bytes, int]:
    """The mod revisions of the rewritten records after a batch whose verdict was None."""
    if result.succeeded:
        return {put.key: result.revision for put in commit.puts}
    return {found[0].key: found[0].mod_revision for found in result.reads[1:] if found}
