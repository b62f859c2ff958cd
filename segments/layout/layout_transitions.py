"""Plans splits and merges in steps, with a crash possible after each (DESIGN §8). Pure.

    intent in `/topic` ─► each parent's owner writes its seal into `/ledger/<segment>` ─► one CAS of `/topic`
           └─────────► given up: the intent goes ─► the owners of sealed parents undo the seal

▲ The intent comes first: racing requests meet there, and a new controller continues from it. An owner seals only for a
change that `/topic` names, so a late request of a change that was given up can seal nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from segments.layout.topology import SEALED, Topology
from txnstore import keys, records
from txnstore.records import LayoutChange, LedgerRecord, TopicRecord
from txnstore.store import (
    MAX_COMMIT_OPS,
    Commit,
    Compare,
    Delete,
    KeyValue,
    Put,
    Read,
    absent,
    range_is_empty,
    unchanged_since,
)
from txnwire.errors import InvalidArgument, NotAllowed, TopicNotFound
from txnwire.ids import Position
from txnwire.names import TopicName

SPLIT: Final = "split"
MERGE: Final = "merge"
MAX_SEGMENTS: Final = 4096
"""Segments of a topic, including sealed ones: bounds its record, which every layout change rewrites, to some 0.5 MB."""
PATHS_BYTES: Final = 750_000
"""Bytes of all segment paths of a topic: one record (an assignment, a subscription's start) may name them all."""
DRAINED_AT_ONCE: Final = MAX_COMMIT_OPS - 8


@dataclass(frozen=True, slots=True)
class Wanted:
    """A requested split or merge. `parents`: segment ids, for a merge in any order; `at`: the first hash of a split's
    upper child, None for the middle."""

    kind: str
    parents: tuple[int, ...]
    at: int | None = None


@dataclass(frozen=True, slots=True)
class LayoutChanged:
    """A change that is done: the layout's epoch now, and the paths of the sealed parents and of their children, in
    hash order."""

    epoch: int
    parents: tuple[str, ...]
    children: tuple[str, ...]


class Seal(NamedTuple):
    """The answer of a parent's owner: the parent's last entry (`EARLIEST` for none), the mod revision of its `/ledger`
    record, the owner's epoch."""

    end: Position
    ledger_revision: int
    epoch: int


def most_segments(topic: TopicName) -> int:
    """The most segments of a topic, including sealed ones. Long names allow fewer: one record must hold them all."""
    return min(MAX_SEGMENTS, PATHS_BYTES // (len(topic.path) + len("/0000-ffff-") + 24))


def read_topology(record: KeyValue) -> Topology:
    """Parse a topic's record from the store. Raises `DataCorrupt`."""
    topic = TopicName.from_path(record.key[len(keys.TOPIC) :].decode())
    return Topology(topic, records.decode(TopicRecord, record.value, key=record.key))


# ---- asking ---------------------------------------------------------------------------------------------------------


def normalize(topology: Topology, wanted: Wanted) -> Wanted:
    """Put the parents in hash order and resolve the middle to its hash, so that equal requests compare equal. Raises
    `InvalidArgument`."""
    if wanted.kind == SPLIT:
        [parent] = [topology.entry(segment_id) for segment_id in wanted.parents]
        at = (parent.lo + parent.hi + 1) // 2 if wanted.at is None else wanted.at
        return Wanted(SPLIT, (parent.id,), at)
    if wanted.kind != MERGE or len(wanted.parents) != 2:
        raise InvalidArgument(f"{wanted.kind} of {len(wanted.parents)} segments: expected a split of one, a merge of 2")
    lower, upper = sorted((topology.entry(segment_id) for segment_id in wanted.parents), key=lambda one: one.lo)
    return Wanted(MERGE, (lower.id, upper.id))


def find_done(topology: Topology, wanted: Wanted) -> LayoutChanged | None:
    """The result of the requested change, if it is done already: a client may repeat a request whose answer was lost.
    `wanted` comes from `normalize`."""
    parents = [topology.entry(segment_id) for segment_id in wanted.parents]
    made = {tuple(parent.children) for parent in parents}
    if any(parent.state != SEALED for parent in parents) or len(made) != 1:
        return None
    children = [topology.entry(child) for child in made.pop()]
    if wanted.kind == SPLIT and (len(children) != 2 or children[1].lo != wanted.at):
        return None
    if wanted.kind == MERGE and (len(children) != 1 or len(parents) != 2 or parents[0].id == parents[1].id):
        return None
    return _changed(topology, wanted.parents, [child.id for child in children])


def find_joined(topology: Topology, wanted: Wanted) -> LayoutChange | None:
    """The same change, if it is under way already."""
    for change in topology.record.changes:
        if (change.kind, tuple(change.parents), change.at) == (wanted.kind, wanted.parents, wanted.at):
            return change
    return None


def plan_intent(
    record: KeyValue, wanted: Wanted, *, change_id: str, still_held: Compare, now_ms: int
) -> tuple[LayoutChange, Commit]:
    """Put the intent into the topic's record. `wanted` comes from `normalize`, and is neither done nor under way.

    Raises `InvalidArgument` if this layout does not allow the change, `NotAllowed` for too many segments or if another
    change of one of them is under way, `TopicNotFound` for a topic that is being deleted, `DataCorrupt`."""
    topology = read_topology(record)
    if topology.deleting:
        raise TopicNotFound(f"{topology.topic} is being deleted")
    most, to_come = most_segments(topology.topic), 2 * len(topology.record.changes)
    # ▲ Count changes under way as done: else many concurrent changes make a record too large for the store.
    if len(topology.segments) + to_come + 2 > most:
        raise NotAllowed(
            f"{topology.topic} has {len(topology.segments)} segments, sealed ones included, {to_come} to come, of "
            f"{most} at most: what is sealed and empty is pruned once its producers are forgotten; a retention "
            "empties it"
        )
    for change in topology.record.changes:
        for parent in change.parents:
            if parent in wanted.parents:
                raise NotAllowed(
                    f"a {change.kind} of {topology.paths[parent]} is under way: wait for it, then look at the layout"
                )
    _apply(topology, wanted.kind, wanted.parents, wanted.at)  # raises if this layout does not allow it
    intent = LayoutChange(id=change_id, kind=wanted.kind, parents=list(wanted.parents), at=wanted.at, since_ms=now_ms)
    changes = [*topology.record.changes, intent]
    return intent, _rewrite(record, msgspec.structs.replace(topology.record, changes=changes), still_held)


# ---- finishing ------------------------------------------------------------------------------------------------------


def find_change(topology: Topology, change_id: str) -> LayoutChange | None:
    return next((change for change in topology.record.changes if change.id == change_id), None)


def read_sealed(record: KeyValue | None, change_id: str) -> int | None:
    """The mod revision of a parent's `/ledger` record, if it is sealed for this change. Raises `DataCorrupt`."""
    if record is None:
        return None
    ledgers = records.decode(LedgerRecord, record.value, key=record.key)
    return record.mod_revision if ledgers.sealed is not None and ledgers.sealed_by == change_id else None


def plan_layout(record: KeyValue, change: LayoutChange, seals: Mapping[int, int], *, still_held: Compare) -> Commit:
    """The one write that seals the parents for ever and creates their children. `seals`: parent's id → the mod
    revision of its `/ledger` record, in which it is sealed for this change. Raises `DataCorrupt`.

    ▲ The write compares the record that holds the intent, and each parent's seal: an intent given up, or a seal undone
    meanwhile, must not change the layout.
    """
    topology = read_topology(record)
    layout = _apply(topology, change.kind, tuple(change.parents), change.at).record
    changes = [one for one in layout.changes if one.id != change.id]
    commit = _rewrite(record, msgspec.structs.replace(layout, changes=changes), still_held)
    sealed = tuple(unchanged_since(keys.ledger(topology.paths[parent]), seals[parent]) for parent in change.parents)
    return msgspec.structs.replace(commit, compares=(*commit.compares, *sealed))


def find_result(topology: Topology, change: LayoutChange) -> LayoutChanged | None:
    """The result of the change, once it is done."""
    return find_done(topology, Wanted(change.kind, tuple(change.parents), change.at))


def plan_give_up(record: KeyValue, change_id: str, *, still_held: Compare) -> Commit:
    """Remove the intent from the topic's record; the owners then undo the seals made for it."""
    topology = read_topology(record)
    changes = [change for change in topology.record.changes if change.id != change_id]
    return _rewrite(record, msgspec.structs.replace(topology.record, changes=changes), still_held)


# ---- pruning --------------------------------------------------------------------------------------------------------


def find_candidates(topology: Topology, forgotten: Collection[int] = ()) -> list[int]:
    """Sealed segments that may be pruned once their owners have nothing left of them: each parent is gone, being
    pruned, or in `forgotten`. Prunes from the roots on, so that a reader in graph order misses nothing in between."""
    gone = (*topology.record.pruning, *forgotten)
    return [
        one.id
        for one in topology.segments.values()
        if one.state == SEALED and one.id not in gone and all(parent in gone for parent in one.parents)
    ]


def plan_prune(
    record: KeyValue, forgotten: Sequence[int], *, still_held: Compare, never_used: Collection[int] = ()
) -> Commit:
    """Mark segments as being pruned: from now on no broker serves them, and their next owner erases them. ▲ As in a
    deletion, a successor continues from the mark. `never_used`: the segments among them that never held an entry;
    ▲ the others set `lost_id`, for readers that continue from an old snapshot. Raises `InvalidArgument`,
    `DataCorrupt`."""
    topology = read_topology(record)
    pruning = list(topology.record.pruning)
    for one in sorted(forgotten):
        if one not in find_candidates(topology, pruning):
            raise InvalidArgument(f"segment {one} of {topology.topic} is not sealed, or has a parent that stays")
        pruning.append(one)
    lost_id = max((topology.record.lost_id, *(one for one in forgotten if one not in never_used)))
    return _rewrite(record, msgspec.structs.replace(topology.record, pruning=pruning, lost_id=lost_id), still_held)


def plan_pruned(record: KeyValue, segment_id: int, *, still_held: Compare) -> Commit:
    """Remove an erased segment from the graph. ▲ The same etcd transaction compares that no record of it is left, and
    that it has no owner who could write more."""
    topology = read_topology(record)
    path = topology.paths[segment_id]
    commit = _rewrite(record, topology.prune(segment_id).record, still_held)
    nothing = [absent(keys.owner(path)), absent(keys.ledger(path))]
    state = (keys.segment_state(path), keys.writes_by_segment(path), keys.acks_by_segment(path), keys.cursors(path))
    for prefix in state:
        nothing.append(range_is_empty(prefix, keys.prefix_end(prefix)))
    return msgspec.structs.replace(commit, compares=(*commit.compares, *nothing))


def find_pruned(topology: Topology) -> list[int]:
    """Segments that have left the graph but may still have drained records."""
    return [one for one in topology.record.pruning if one not in topology.segments]


def plan_forget_drained(
    record: KeyValue, pruned: Sequence[int], drained: Sequence[bytes], *, still_held: Compare
) -> Commit:
    """Delete the last records of pruned segments; `drained`: all of their remaining keys, at most `DRAINED_AT_ONCE`.
    ▲ Not together with `plan_pruned`: a process that saw the deletion before the new graph would treat the segment as
    undrained, and take its children from their consumers."""
    topology = read_topology(record)
    left = [one for one in topology.record.pruning if one not in pruned]
    commit = _rewrite(record, msgspec.structs.replace(topology.record, pruning=left), still_held)
    return msgspec.structs.replace(commit, deletes=tuple(Delete(key) for key in drained))


def _apply(topology: Topology, kind: str, parents: Sequence[int], at: int | None) -> Topology:
    if kind == SPLIT:
        return topology.split(parents[0], at=at)
    return topology.merge(parents[0], parents[1])


def _changed(topology: Topology, parents: Sequence[int], children: Sequence[int]) -> LayoutChanged:
    in_hash_order = sorted(children, key=lambda child: topology.segments[child].lo)
    paths = topology.paths
    return LayoutChanged(
        topology.epoch, tuple(paths[one] for one in parents), tuple(paths[one] for one in in_hash_order)
    )


def _rewrite(record: KeyValue, topic: TopicRecord, still_held: Compare) -> Commit:
    return Commit(
        compares=(still_held, unchanged_since(record.key, record.mod_revision)),
        puts=(Put(record.key, records.encode(topic)),),
        else_reads=(Read(still_held.key), Read(record.key)),
    )
