"""Deletes topics and subscriptions: every etcd write of it, in steps; a crash may follow each. Pure.

A deletion is a mark in the record (`deleting_ms`), then everything else of the marked topic or subscription, then the
record itself:

    topic          mark ─► each segment's owner: files, records of transactions, cursors, `/ledger` ─► the record
    subscription   mark ─► each segment's owner: acks of transactions, cursors                      ─► the record

Any successor continues from the mark; nothing new begins under it. The record goes last, together with everything that
only the controller writes. Source: DESIGN §5 ("deleting a topic or subscription removes all of its records"), scenarios
S8 and P9.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from txnstore import keys, records
from txnstore.records import LedgerRecord, SegmentIds, SubscriptionRecord, TopicRecord
from txnstore.store import (
    MAX_COMMIT_OPS,
    Commit,
    CommitVerdict,
    Compare,
    Delete,
    KeyValue,
    Put,
    Read,
    Relation,
    Target,
    created_at,
    range_is_empty,
    unchanged_since,
)
from txnstore.writes.op_transitions import clean_up_ops, plan_clean_up
from txnwire.errors import NotOwner
from txnwire.ids import TxnId

KEYS_AT_ONCE: Final = 500
"""Keys deleted by one range: bounds how long etcd is busy with it."""
TRANSACTIONS_AT_ONCE: Final = (MAX_COMMIT_OPS - clean_up_ops()) // 2


def present(key: bytes) -> Compare:
    return Compare(key, Target.VERSION, Relation.GREATER, 0)


# ---- the mark -------------------------------------------------------------------------------------------------------


def plan_mark_topic(record: KeyValue, *, still_held: Compare, now_ms: int) -> Commit | None:
    """Mark a topic as being deleted; None if it is already. Raises `DataCorrupt`."""
    topic = records.decode(TopicRecord, record.value, key=record.key)
    if topic.deleting_ms:
        return None
    return _rewrite(record, msgspec.structs.replace(topic, deleting_ms=now_ms), still_held)


def plan_mark_subscription(record: KeyValue, *, still_held: Compare, now_ms: int) -> Commit | None:
    """As `plan_mark_topic`, for a subscription."""
    subscription = records.decode(SubscriptionRecord, record.value, key=record.key)
    if subscription.deleting_ms:
        return None
    return _rewrite(record, msgspec.structs.replace(subscription, deleting_ms=now_ms), still_held)


def _rewrite(record: KeyValue, value: msgspec.Struct, still_held: Compare) -> Commit:
    return Commit(
        compares=(still_held, unchanged_since(record.key, record.mod_revision)),
        puts=(Put(record.key, records.encode(value)),),
        else_reads=(Read(still_held.key), Read(record.key)),
    )


# ---- the end, by the controller -------------------------------------------------------------------------------------


def plan_forget_topic(topic_path: str, record: KeyValue, ids: KeyValue | None, *, still_held: Compare) -> Commit:
    """Delete the record of a topic whose segments have nothing left, with all that the controller wrote.

    ▲ The same transaction compares that nothing is left, and that no segment has an owner who could write more. ▲ It
    also raises `/segment-ids` (`ids`): the next topic of this name then gets ids never used before, so that no late
    write, zombie or old message id of this one ever names a segment of that.
    """
    topic = records.decode(TopicRecord, record.value, key=record.key)
    below = f"{topic_path}/".encode()
    compares = [still_held, unchanged_since(record.key, record.mod_revision)]
    for prefix in (
        keys.OWNER,
        keys.LEDGER,
        keys.LEDGER_PAGE,
        keys.SEGMENT_STATE,
        keys.WRITES_BY_SEGMENT,
        keys.ACKS_BY_SEGMENT_SUBSCRIPTION,
    ):
        compares.append(range_is_empty(prefix + below, keys.prefix_end(prefix + below)))
    puts: tuple[Put, ...] = ()
    if topic.next_segment_id > segment_id_floor(ids):
        compares.append(unchanged_since(keys.SEGMENT_IDS, 0 if ids is None else ids.mod_revision))
        puts = (Put(keys.SEGMENT_IDS, records.encode(SegmentIds(floor=topic.next_segment_id))),)
    deletes = [Delete(record.key)]
    for prefix in (keys.SUBSCRIPTION, keys.ASSIGNMENT, keys.DRAINED, keys.CURSOR, keys.LOAD):
        deletes.append(Delete(prefix + below, keys.prefix_end(prefix + below)))
    return Commit(
        compares=tuple(compares),
        puts=puts,
        deletes=tuple(deletes),
        else_reads=(Read(still_held.key), Read(record.key)),
    )


def segment_id_floor(ids: KeyValue | None) -> int:
    """The first segment id a new topic may use. Raises `DataCorrupt`."""
    return 0 if ids is None else records.decode(SegmentIds, ids.value, key=ids.key).floor


def plan_forget_subscription(topic_path: str, record: KeyValue, *, still_held: Compare) -> Commit:
    """Delete the records of a subscription once every segment's owner has reported that nothing is left there."""
    name = record.key.rpartition(b"/")[2].decode()
    drained = keys.drained_by_subscription(topic_path, name)
    return Commit(
        compares=(still_held, unchanged_since(record.key, record.mod_revision)),
        deletes=(
            Delete(record.key),
            Delete(keys.assignment(topic_path, name)),
            # ▲ With the record: for a new subscription of the same name no segment is drained.
            Delete(drained, keys.prefix_end(drained)),
        ),
        else_reads=(Read(still_held.key), Read(record.key)),
    )


def read_step(commit: Commit, result: CommitVerdict) -> bool:
    """Whether a step of the controller is done. False: read the records again. Raises `NotOwner` once another leads.

    The records decide whether a step is done, never its verdict alone: after a repeat it may have landed unanswered.
    """
    if result.succeeded:
        return True
    holder = result.reads[0][0] if result.reads[0] else None
    if holder is None or holder.create_revision != commit.compares[0].value:
        raise NotOwner("this process is the controller no longer; look it up again")
    return False


# ---- the remains of a segment, by its owner -------------------------------------------------------------------------


class SegmentRemains(NamedTuple):
    """Keys and transactions of one page; an empty one ends the work. `acked`: (subscription, transaction)."""

    written: Sequence[TxnId] = ()
    acked: Sequence[tuple[str, TxnId]] = ()
    keys: Sequence[bytes] = ()

    def __bool__(self) -> bool:
        return bool(self.written or self.acked or self.keys)


def plan_erase(segment: str, owner_epoch: int, remains: SegmentRemains) -> list[Commit]:
    """Delete everything found in one page, under the ownership epoch, in commits of any order.

    Op records are deleted by the range of their transaction and participant, decided or not: an open transaction simply
    ends, and finds nothing to do here.
    """
    commits = []
    pairs: list[tuple[str | None, TxnId]] = [(None, txn_id) for txn_id in remains.written]
    pairs += remains.acked
    for at in range(0, len(pairs), TRANSACTIONS_AT_ONCE):
        chunk = pairs[at : at + TRANSACTIONS_AT_ONCE]
        commits.append(
            plan_clean_up(
                segment,
                owner_epoch,
                writes=[txn_id for name, txn_id in chunk if name is None],
                acks=[(name, txn_id) for name, txn_id in chunk if name is not None],
            )
        )
    if remains.keys:
        commits.append(_owned_deletes(segment, owner_epoch, [Delete(min(remains.keys), max(remains.keys) + b"\0")]))
    return commits


def plan_ledger_list(segment: str, owner_epoch: int, found: KeyValue, record: LedgerRecord) -> Commit:
    """Rewrite the ledger list before its files are deleted."""
    owner = keys.owner(segment)
    return Commit(
        compares=(created_at(owner, owner_epoch), unchanged_since(found.key, found.mod_revision)),
        puts=(Put(found.key, records.encode(record)),),
        else_reads=(Read(owner),),
    )


def plan_forget_segment(segment: str, owner_epoch: int) -> Commit:
    """The last step: delete the ledger list, whose files are already deleted, the watermark, and the ownership."""
    last = (keys.ledger(segment), keys.watermark(segment), keys.load(segment), keys.owner(segment))
    return _owned_deletes(segment, owner_epoch, (Delete(key) for key in last))


def _owned_deletes(segment: str, owner_epoch: int, deletes: Iterable[Delete]) -> Commit:
    owner = keys.owner(segment)
    return Commit(compares=(created_at(owner, owner_epoch),), deletes=tuple(deletes), else_reads=(Read(owner),))


def check_owned(commit: Commit, result: CommitVerdict) -> None:
    """Raises `NotOwner` if a step of the owner was refused: another owner continues it."""
    if not result.succeeded:
        owner = commit.compares[0].key.decode()
        raise NotOwner(f"this broker no longer owns {owner}: had epoch {commit.compares[0].value}")
