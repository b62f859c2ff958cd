"""Starts at messages of segments that the topic does not have, at the broker."""

from __future__ import annotations

import msgspec
import pytest

from segments.layout.topology import Topology, create_record
from tests.segments.brokering import TOPIC, Client, Cluster, Node
from txnstore import keys, records
from txnstore.records import TopicRecord
from txnstore.store import Commit, Put
from txnwire.errors import InvalidArgument
from txnwire.names import TopicName
from txnwire.proto import txn_pb2 as pb

PATH = TOPIC.path

ELSEWHERE = {
    "another topic": ("public/default/another/0000-ffff-0", "belongs to topic://public/default/another"),
    "an earlier life": (f"{PATH}/0000-ffff-3", "deleted"),
    "a pruned segment": (f"{PATH}/0000-ffff-5", "pruned"),
    "none that was": (f"{PATH}/0000-ffff-9", "never was"),
}


async def prepared(cluster: Cluster) -> tuple[str, Node, Client]:
    """A topic whose record says that ids began at 4, and of which 4 to 6 were pruned."""
    await cluster.create_topic()
    key = keys.topic(PATH)
    found = await cluster.store.get(key)
    assert found is not None
    record = records.decode(TopicRecord, found.value, key=key)
    [entry] = record.segments
    entry = msgspec.structs.replace(entry, id=7)
    record = msgspec.structs.replace(record, segments=[entry], next_segment_id=8, first_segment_id=4)
    await cluster.store.commit(Commit(puts=(Put(key, records.encode(record)),)))
    node = await cluster.start()
    return f"{PATH}/0000-ffff-7", node, await cluster.connect(node)


@pytest.mark.parametrize("elsewhere", ELSEWHERE)
async def test_a_seek_at_a_message_of_elsewhere_is_refused_before_anything_moves(
    memory_cluster: Cluster, elsewhere: str
) -> None:
    """▲ It would mean "earliest" and reset every cursor. Whatever the client has looked at."""
    segment, _, client = await prepared(memory_cluster)
    consumer = await memory_cluster.subscribe(client, segment)
    await (await client.producer(segment)).send("a")
    await consumer.wait("a")
    await consumer.ack(*consumer.messages)
    path, said = ELSEWHERE[elsewhere]
    with pytest.raises(InvalidArgument, match=said):
        await client.call(seek=pb.Seek(segment=segment, subscription="sub", start=pb.Start(segment=path, ledger_id=1)))
    await (await client.producer(segment, "other")).send("b")
    await consumer.wait("a", "b")  # it is still attached


async def test_a_reader_at_a_message_of_an_earlier_topic_of_the_name_is_refused(memory_cluster: Cluster) -> None:
    segment, _, client = await prepared(memory_cluster)
    for elsewhere, (path, said) in ELSEWHERE.items():
        start = pb.Start(segment=path, ledger_id=1)
        if elsewhere in ("another topic", "a pruned segment"):
            await client.reader(
                segment, start=start
            )  # it may have begun there, of several topics, or before the pruning
            continue
        with pytest.raises(InvalidArgument, match=said):
            await client.reader(segment, start=start)


def test_the_record_of_a_topic_tells_its_segments_from_those_of_an_earlier_one() -> None:
    topic = TopicName.parse("topic://public/default/t")
    record = create_record(1, policies={}, created_ms=1, first_segment_id=4)
    topology = Topology(topic, record)
    topology.check_has(f"{topic.path}/0000-ffff-4")
    assert topology.is_of_earlier_life(3)
    assert not topology.is_pruned(3)
    before = Topology(topic, msgspec.structs.replace(record, first_segment_id=-1))  # written by an earlier version
    with pytest.raises(InvalidArgument, match=r"pruned, or belonged to a deleted topic"):
        before.check_has(f"{topic.path}/0000-ffff-3")
