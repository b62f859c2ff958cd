"""What tests of sealing begin, hold back and look for."""

from __future__ import annotations

from segments.layout.layout_transitions import (
    SPLIT,
    Wanted,
    normalize,
    plan_give_up,
    plan_intent,
    read_topology,
)
from segments.owner.segment import Segment
from tests.segments.brokering import TOPIC, Cluster, Node
from tests.segments.changing import ledgers_of, topology_of
from tests.waiting import until, until_answer
from txnstore import keys, records
from txnstore.records import LedgerRecord
from txnstore.store import Commit, Compare, Put, Relation, Target
from txnwire.errors import (
    NotOwner,
)

KEY = keys.topic(TOPIC.path)


ALWAYS = Compare(KEY, Target.VERSION, Relation.GREATER, 0)


def seals(commit: Commit) -> bool:
    return any(
        put.key.startswith(keys.LEDGER) and records.decode(LedgerRecord, put.value, key=put.key).sealed is not None
        for put in commit.puts
    )


async def begin(cluster: Cluster, path: str, change_id: str = "c1") -> str:
    """The intent of a split, as a controller puts it."""
    record = await cluster.store.get(KEY)
    assert record is not None
    topology = read_topology(record)
    [segment_id] = [one for one, found in topology.paths.items() if found == path]
    wanted = normalize(topology, Wanted(SPLIT, (segment_id,)))
    change, commit = plan_intent(record, wanted, change_id=change_id, still_held=ALWAYS, now_ms=1)
    assert (await cluster.store.commit(commit)).succeeded
    return change.id


async def give_up(cluster: Cluster, change_id: str = "c1") -> None:
    record = await cluster.store.get(KEY)
    assert record is not None
    assert (await cluster.store.commit(plan_give_up(record, change_id, still_held=ALWAYS))).succeeded


async def touch(cluster: Cluster) -> None:
    """Some other change of the topic's record."""
    record = await cluster.store.get(KEY)
    assert record is not None
    await cluster.store.commit(Commit(puts=(Put(KEY, record.value),)))


async def serving(node: Node, path: str) -> Segment:
    await until(lambda: path in node.broker.segments)
    return node.broker.segments[path]


async def eventually_split(cluster: Cluster, parent: str) -> None:
    await until_answer(lambda: topology_of(cluster), lambda found: found.epoch != 1, "the split", within_s=10)
    topology = await topology_of(cluster)
    assert not topology.record.changes
    assert len(topology.active) == 2
    assert (await ledgers_of(cluster, parent)).sealed is not None


def raise_not_owner(segment: str) -> None:
    raise NotOwner(f"nobody serves {segment}")
