"""What changes together, in one commit, is followed each by each: of topics, of owners and of assignments."""

from __future__ import annotations

import asyncio
import dataclasses

from msgspec.structs import replace

from segments.layout.assignment import consumer_id
from segments.layout.topology import create_record
from tests.segments.brokering import TOPIC, Cluster
from tests.segments.gates import GatedStore, gate_stores
from tests.segments.owner.seals import touch
from tests.waiting import until, until_answer
from txnstore import keys, records
from txnstore.records import AssignmentRecord
from txnstore.store import Commit, Delete, Put
from txnwire.errors import NotAllowed
from txnwire.names import TopicName

TOPICS = [TopicName("public", "nyc", name) for name in ("a", "b", "c")]


async def test_of_topics_that_are_marked_together_every_segment_is_erased(memory_cluster: Cluster) -> None:
    """▲ The deletion of one that is left out waits for its owner for ever."""
    cluster = memory_cluster
    paths = [path for topic in TOPICS for path in await cluster.create_topic(topic, segments=2)]
    node = await cluster.start()
    await until(lambda: len(node.broker.segments) == len(paths))
    marked = records.encode(replace(create_record(2, policies={}, created_ms=1), deleting_ms=1))
    await cluster.store.commit(Commit(puts=tuple(Put(keys.topic(topic.path), marked) for topic in TOPICS)))

    async def left() -> list[str]:
        return [path for path in paths if await cluster.store.get(keys.ledger(path)) is not None]

    await until_answer(left, lambda found: not found, "every ledger list to go", within_s=20)


async def test_the_segments_of_a_new_topic_are_taken_over_side_by_side(memory_cluster: Cluster) -> None:
    """One whose ledger or disk is slow delays no other."""
    cluster = memory_cluster
    gate_stores(cluster)
    node = await cluster.start(settings=dataclasses.replace(cluster.settings, claim_retry_s=3600.0))
    store: GatedStore = node.store  # type: ignore[assignment]
    store.hold(lambda commit: any(put.key.startswith(keys.OWNER) for put in commit.puts))
    paths = await cluster.create_topic(segments=3)
    await until(lambda: store.waiting == 3, within_s=20)
    store.open()
    await until(lambda: node.broker.segments.keys() == set(paths))


async def test_a_claim_that_meets_a_change_of_its_topic_is_made_again_at_once(memory_cluster: Cluster) -> None:
    """Who waits for the segment hears of no failure."""
    cluster = memory_cluster
    gate_stores(cluster)
    node = await cluster.start()
    store: GatedStore = node.store  # type: ignore[assignment]
    store.hold(lambda commit: any(put.key.startswith(keys.OWNER) for put in commit.puts))
    [path] = await cluster.create_topic()
    waiting = asyncio.ensure_future(node.broker.segment(path))
    await until(lambda: store.waiting == 1)
    await touch(cluster)
    store.open()
    assert (await waiting).path == path


async def test_of_owners_that_go_together_every_segment_is_served_under_a_new_epoch(memory_cluster: Cluster) -> None:
    """▲ One that is left out would be served under an epoch that has ended."""
    cluster = memory_cluster
    paths = await cluster.create_topic(segments=3)
    node = await cluster.start()
    await until(lambda: len(node.broker.segments) == 3)
    before = {path: segment.epoch for path, segment in node.broker.segments.items()}
    await cluster.store.commit(Commit(deletes=tuple(Delete(keys.owner(path)) for path in paths)))
    await until(
        lambda: {path for path, segment in node.broker.segments.items() if segment.epoch > before[path]} == set(paths),
        within_s=20,
    )


async def test_of_assignments_that_change_together_every_former_holder_is_closed(memory_cluster: Cluster) -> None:
    cluster, names = memory_cluster, ("one", "two", "three")
    [path] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    holders = [await cluster.subscribe(client, path, name=name) for name in names]
    moved = records.encode(AssignmentRecord(epoch=2, consumers={consumer_id("c2", 7): [path]}))
    await cluster.store.commit(Commit(puts=tuple(Put(keys.assignment(TOPIC.path, name), moved) for name in names)))
    await until(lambda: all(isinstance(holder.closed, NotAllowed) for holder in holders), within_s=20)
