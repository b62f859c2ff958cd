"""Numbered producers of the client over real servers: what is sent again is stored once, and only one life sends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

import txnclient
from segments.log.sends.dedup import Dedup
from tests.cluster import InProcessCluster
from tests.segments.virtual_time import virtual_time
from tests.txnclient.producing.channels.test_moving_with_cluster import active, change_at_random
from tests.txnclient.scripted_server import TOPIC, Cluster, connected
from tests.txnclient.test_with_cluster import new_topic, read_all
from tests.waiting import until
from txnclient.producing.channels import source_ids
from txnclient.producing.channels.numbered import ASK_AGAIN_S
from txnclient.producing.producer import producer_impl
from txnwire.ids import HASH_SPACE, Position, hash_key
from txnwire.protocol import MAX_VALUE_BYTES

NAME = "importer-7"
UNKNOWN = Position(0, -1)


def numbered(client: txnclient.Client, topic: str, **options: object) -> txnclient.client.Opening[txnclient.Producer]:
    return client.producer(topic, **({"name": NAME, "sequence_id": -1} | options))  # type: ignore[call-overload]


async def send(producer: txnclient.Producer, ids: Sequence[int]) -> list[txnclient.MessageId]:
    return await asyncio.gather(*(producer.send(b"%d" % one, key=f"k{one % 7}", sequence_id=one) for one in ids))


async def stored(client: txnclient.Client, topic: str) -> list[int]:
    messages = await read_all(client, topic)
    assert [message.value for message in messages] == [b"%d" % message.sequence_id for message in messages]
    return sorted(message.sequence_id for message in messages)


async def test_what_is_sent_again_after_a_restart_of_program_and_broker_is_stored_once(
    cluster: InProcessCluster,
) -> None:
    async with cluster.connect() as client:
        topic = await new_topic(client, 3)
        producer = await numbered(client, topic)
        assert producer.last_sequence_id == -1
        ids = await send(producer, range(0, 100, 2))
        assert len(set(ids)) == 50
        assert producer.last_sequence_id == 98
    await cluster.restart_server("broker")
    async with cluster.connect() as client:
        producer = await numbered(client, topic)
        again = await send(producer, range(0, 120, 2))
        assert {one.position for one in again[:50]} == {UNKNOWN}
        assert UNKNOWN not in {one.position for one in again[50:]}
        assert await stored(client, topic) == list(range(0, 120, 2))
        assert producer.last_sequence_id == 118


async def test_a_source_that_awaits_each_send_is_told_exactly_where_to_go_on(client: txnclient.Client) -> None:
    topic = await new_topic(client, 3)
    async with numbered(client, topic) as producer:
        for one in (5, 8, 13):
            await producer.send(b"%d" % one, sequence_id=one)
    async with numbered(client, topic) as producer:
        assert producer.last_sequence_id == 13


async def test_over_splits_and_merges_every_ancestor_is_asked(cluster: InProcessCluster) -> None:
    """(d) Ids lie in segments that were split, and in parents of ones that were merged since."""
    async with cluster.connect() as client:
        topic = await new_topic(client, 2)
        sent: list[int] = []
        for life in range(4):
            async with numbered(client, topic) as producer:
                await send(producer, range(0, 40 * (life + 1)))
                changing = asyncio.ensure_future(change_at_random(client, topic, Random(life), 3))
                await send(producer, range(40 * (life + 1), 40 * (life + 1) + 20))
                await changing
            sent = list(range(40 * (life + 1) + 20))
            if life == 1:
                await cluster.restart_server("broker")
        assert await stored(client, topic) == sent


@pytest.mark.parametrize("same_client", [True, False])
async def test_of_two_lives_the_later_one_sends_and_the_earlier_one_ends(
    cluster: InProcessCluster, same_client: bool
) -> None:
    """(i), (c) Also while the earlier one waits for room, and as it is closed."""
    async with cluster.connect() as client, cluster.connect() as another:
        topic = await new_topic(client, 2)
        first = await numbered(client, topic)
        await send(first, range(10))
        second = await numbered(client if same_client else another, topic)
        with pytest.raises(txnclient.ProducerFenced) as told:
            await first.send(b"10", key="k", sequence_id=10)
        assert not told.value.retriable
        with pytest.raises(txnclient.ProducerFenced) as told:
            first.send_nowait(b"11", key="k", sequence_id=11)
        assert told.value.fatal
        async with asyncio.timeout(4):
            await first.close()
        await send(second, range(15))
        await second.close()
        assert await stored(client, topic) == list(range(15))


async def test_a_fenced_producer_whose_sends_wait_for_room_ends_at_once(cluster: InProcessCluster) -> None:
    """(c)"""
    async with cluster.connect() as client, cluster.connect() as another:
        topic = await new_topic(client)
        first = await numbered(client, topic, buffer_bytes=40)
        await first.send(b"0", key="k", sequence_id=0)
        await cluster.stop_server("broker")
        sends = [asyncio.ensure_future(first.send(b"%d" % one, key="k", sequence_id=one)) for one in range(1, 8)]
        await asyncio.sleep(0.05)
        opening = asyncio.ensure_future(_opened(numbered(another, topic)))
        await cluster.start_server("broker", "broker")
        async with asyncio.timeout(25):
            second = await opening
            for outcome in await asyncio.gather(*sends, return_exceptions=True):
                assert isinstance(outcome, txnclient.MessageId | txnclient.ProducerFenced), outcome
            await _closed(first)
        await send(second, range(8))
        assert await stored(client, topic) == list(range(8))


async def _opened(opening: txnclient.client.Opening[txnclient.Producer]) -> txnclient.Producer:
    return await opening


async def _closed(producer: txnclient.Producer) -> None:
    try:
        await producer.close()
    except txnclient.ProducerFenced:
        pass


async def test_an_earlier_life_stores_nothing_in_a_segment_that_came_after_it_was_fenced(
    cluster: InProcessCluster,
) -> None:
    """(d) It has never heard of it, and the new segment has not heard of the name: the ancestor refuses."""
    async with cluster.connect() as client, cluster.connect() as another:
        topic = await new_topic(client)
        first = await numbered(client, topic)
        second = await numbered(another, topic)
        [segment] = await active(client, topic)
        await client.split(segment.name)
        await until(lambda: len(producer_impl(first)._channels.current().layout.active) == 2)
        with pytest.raises(txnclient.ProducerFenced):
            await first.send(b"0", key="k", sequence_id=0)
        await send(second, range(4))
        assert await stored(client, topic) == list(range(4))


async def test_a_send_that_was_cancelled_or_timed_out_may_be_called_again_and_is_stored_once(
    cluster: InProcessCluster,
) -> None:
    """(f)"""
    async with cluster.connect() as client:
        topic = await new_topic(client)
        producer = await numbered(client, topic)
        await producer.send(b"0", key="k", sequence_id=0)
        await cluster.stop_server("broker")
        client._session.timeout_s = 0.5
        cancelled = asyncio.ensure_future(producer.send(b"1", key="k", sequence_id=1))
        await asyncio.sleep(0)
        cancelled.cancel()
        for _ in range(2):
            with pytest.raises(txnclient.Timeout, match="send it again"):
                await producer.send(b"1", key="k", sequence_id=1)
        with pytest.raises(txnclient.Timeout):
            await producer.send(b"2", key="k", sequence_id=2)
        shared = producer.send_nowait(b"1", key="k", sequence_id=1)
        await cluster.start_server("broker", "broker")
        assert (await shared).position != UNKNOWN
        async with asyncio.timeout(20):
            while True:
                try:
                    await send(producer, [1, 2, 3])
                    break
                except txnclient.Timeout:
                    continue
        assert await stored(client, topic) == [0, 1, 2, 3]
        assert producer.last_sequence_id == 3


async def test_an_id_that_found_no_room_may_be_sent_again_behind_later_ones(client: txnclient.Client) -> None:
    topic = await new_topic(client)
    producer = await numbered(client, topic, buffer_bytes=40)
    first = producer.send_nowait(b"0" * 30, key="k", sequence_id=0)
    with pytest.raises(txnclient.WouldBlock):
        producer.send_nowait(b"1", key="k", sequence_id=1)
    waiting = asyncio.ensure_future(producer.send(b"1", key="k", sequence_id=1))
    await asyncio.sleep(0)
    waiting.cancel()
    await first
    await producer.send(b"2", key="k", sequence_id=2)
    assert producer.last_sequence_id == 0, "1 was given and is not stored"
    await producer.send(b"1", key="k", sequence_id=1)
    assert producer.last_sequence_id == 2
    await producer.close()
    async with numbered(client, topic) as again:
        assert again.last_sequence_id >= 1


@virtual_time
async def test_a_repeated_send_ends_with_the_first_one_that_found_no_room() -> None:
    """(c) Nobody else would end it: the id is not under way any more."""
    async with connected() as (cluster, client):
        producer = await numbered(client, TOPIC, buffer_bytes=40)
        cluster.servers["broker:1"].hold["send"] = held = asyncio.Event()
        first = producer.send_nowait(b"0" * 30, key="k", sequence_id=0)
        waiting = asyncio.ensure_future(producer.send(b"1" * 30, key="k", sequence_id=1))
        await asyncio.sleep(0.01)
        again = producer.send_nowait(b"1" * 30, key="k", sequence_id=1)
        waiting.cancel()
        await asyncio.sleep(1.0)
        assert again.done()
        with pytest.raises(txnclient.Timeout, match="send it again"):
            await again
        held.set()
        await first
        await producer.send(b"1", key="k", sequence_id=1)
        assert producer.last_sequence_id == 1


@pytest.mark.parametrize("stored", [True, False])
@virtual_time
async def test_all_repeated_sends_of_one_id_end_with_the_first_one(stored: bool) -> None:
    """(f) However many there are, and also if one of them was cancelled."""
    async with connected() as (cluster, client):
        producer = await numbered(client, TOPIC)
        server = cluster.servers["broker:1"]
        server.hold["send"] = held = asyncio.Event()
        first = producer.send_nowait(b"0", key="k", sequence_id=0)
        again = [producer.send_nowait(b"0", key="k", sequence_id=0) for _ in range(4)]
        again.pop(1).cancel()
        await asyncio.sleep(0.1)
        if not stored:
            server.refuse["send"] = [txnclient.NotAllowed("not here")]
        held.set()
        await asyncio.wait([first, *again], timeout=5.0)
        if stored:
            assert [one.result() for one in again] == [await first] * 3
        else:
            assert [type(one.exception()) for one in (first, *again)] == [txnclient.NotAllowed] * 4


@virtual_time
async def test_a_producer_closed_while_it_asks_for_its_name_opens_nothing_any_more() -> None:
    """(e) Its name would count as in use for as long as the connection lives."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await numbered(client, TOPIC)
        server.hold["take_name"] = held = asyncio.Event()
        sending = asyncio.ensure_future(producer.send(b"1", key="k", sequence_id=1))
        await asyncio.sleep(2.0)
        with pytest.raises(txnclient.ConnectionLost):
            await producer.close()  # waits for 5 s; the name is asked for again meanwhile
        with pytest.raises(txnclient.ConnectionLost):
            await sending
        held.set()
        await asyncio.sleep(10.0)
        assert server.seen["open_producer"] == server.seen["close_producer"]


async def test_a_bounded_number_of_ids_goes_ahead_of_one_that_is_not_stored(
    client: txnclient.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_ids, "MOST_AHEAD", 10)
    topic = await new_topic(client, 2)
    producer = await numbered(client, topic)
    async with asyncio.timeout(20):
        await send(producer, range(300))
    assert await stored(client, topic) == list(range(300))


async def test_calls_that_do_not_fit_a_numbered_producer_are_refused(client: txnclient.Client) -> None:
    """(h)"""
    topic = await new_topic(client)
    with pytest.raises(txnclient.InvalidArgument, match="needs a name"):
        await client.producer(topic, sequence_id=0)
    with pytest.raises(txnclient.InvalidArgument, match="expected the last id"):
        await numbered(client, topic, sequence_id=-2)
    ordinary = await client.producer(topic)
    with pytest.raises(txnclient.InvalidArgument, match="does not number"):
        await ordinary.send(b"v", sequence_id=1)
    producer = await numbered(client, topic, sequence_id=10)
    assert producer.last_sequence_id == 10
    assert (await producer.send(b"v", sequence_id=10)).position == UNKNOWN
    with pytest.raises(txnclient.InvalidArgument, match="give each send"):
        await producer.send(b"v")
    with pytest.raises(txnclient.InvalidArgument, match="one by one"):
        await producer.send_many([b"v"])
    with pytest.raises(txnclient.InvalidArgument, match="chunk"):
        await producer.send(b"v", sequence_id=11, chunk=True)
    async with client.transaction() as txn:
        with pytest.raises(txnclient.InvalidArgument, match="outside transactions"):
            await producer.send(b"v", sequence_id=11, txn=txn)
        await ordinary.send(b"in one", txn=txn)
    await producer.send(b"20", sequence_id=20)
    with pytest.raises(txnclient.InvalidArgument, match="ascend"):
        await producer.send(b"15", sequence_id=15)
    await producer.send(b"21", sequence_id=21)
    with pytest.raises(txnclient.NotAllowed, match="numbers its messages"):
        await (await client.producer(topic, name=NAME)).send(b"v")


async def test_a_topic_made_again_knows_nothing_of_the_name(client: txnclient.Client) -> None:
    topic = await new_topic(client)
    first = await numbered(client, topic)
    await send(first, range(5))
    await client.delete_topic(topic, force=True)
    with pytest.raises(txnclient.TopicNotFound):
        await send(first, [5])
    await client.create_topic(topic)
    async with numbered(client, topic) as again:
        assert again.last_sequence_id == -1
        await send(again, range(2))
    assert await stored(client, topic) == [0, 1]


@virtual_time
async def test_a_broker_of_an_older_release_is_refused_with_a_clear_error() -> None:
    """(g) It answers a command that it does not know with `InvalidArgument`."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.refuse["take_name"] = [txnclient.InvalidArgument("the command has no body known to this version")]
        with pytest.raises(txnclient.NotAllowed, match="update all brokers"):
            await numbered(client, TOPIC)
        producer = await numbered(client, TOPIC)
        server.refuse["take_name"] = [txnclient.InvalidArgument("the segment has moved to one")]
        with pytest.raises(txnclient.NotAllowed, match="update all brokers"):
            await producer.send(b"v", sequence_id=1)
        assert not any(cluster.stored.values())


@virtual_time
async def test_a_numbered_producer_ends_with_its_first_failure() -> None:
    """Behind it, a later id of the same key would be stored, and `last_sequence_id` would never move again."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await numbered(client, TOPIC)
        await producer.send(b"0", key="k", sequence_id=0)
        server.refuse["send"] = [txnclient.StoreFull("no room")]
        with pytest.raises(txnclient.StoreFull):
            await producer.send(b"1", key="k", sequence_id=1)
        with pytest.raises(txnclient.StoreFull) as told:
            await producer.send(b"2", key="k", sequence_id=2)
        assert told.value.fatal
        await producer.close()
        async with numbered(client, TOPIC) as again:
            assert again.last_sequence_id == 0


@virtual_time
async def test_an_opening_asks_the_children_of_a_segment_that_was_sealed_before_this_client_heard_of_it() -> None:
    """(d) A former life may write to them already."""
    async with connected() as (cluster, client):
        former = await numbered(client, TOPIC)
        cluster.seal(0, told=False)
        opening = asyncio.ensure_future(_opened(numbered(client, TOPIC)))
        await asyncio.sleep(5.0)
        assert not opening.done()
        cluster.split(0)
        await (await opening).close()
        asked = [one.take_name.segment for one in cluster.servers["broker:1"].commands if one.HasField("take_name")]
        assert set(cluster.topology.paths.values()) <= set(asked)
        with pytest.raises(txnclient.ProducerFenced):
            await former.send(b"late", key="k", sequence_id=1)


@virtual_time
async def test_a_life_that_slept_asks_every_segment_before_it_goes_on() -> None:
    """The segment that it writes to has forgotten the later life, which writes elsewhere."""
    async with connected() as (cluster, client):
        former = await numbered(client, TOPIC)
        later = await numbered(client, TOPIC)
        await asyncio.sleep(ASK_AGAIN_S + 1)
        forgetful = cluster.servers["broker:1"].dedups[cluster.topology.paths[0]].numbered
        assert forgetful.expire(float("inf"), (), limit=10) == 1
        key = next(f"k{number}" for number in range(100) if hash_key(b"k%d" % number) < HASH_SPACE // 2)
        with pytest.raises(txnclient.ProducerFenced):
            await former.send(b"late", key=key, sequence_id=1)
        await later.send(b"1", key=key, sequence_id=1)
        assert [len(entries) for entries in cluster.stored.values()] == [1, 0]


@virtual_time
async def test_a_name_that_one_segment_refuses_is_taken_everywhere_again() -> None:
    """(i) Whatever the segments behind it have answered: a life that has a segment to itself stores an id again."""
    async with connected() as (cluster, client):
        later = cluster.clock.wall_ms() + 3_600_000
        first = cluster.servers["broker:1"].dedups[cluster.topology.paths[0]].numbered
        assert first.take(NAME, later, 1, 0.0)
        async with numbered(client, TOPIC) as producer:
            await send(producer, range(20))
        assert {first.epoch_of(NAME), *(dedup.numbered.epoch_of(NAME) for dedup in _dedups(cluster))} == {later + 1}


def _dedups(cluster: Cluster) -> list[Dedup[Any]]:
    return list(cluster.servers["broker:1"].dedups.values())


@virtual_time
async def test_an_ancestor_that_did_not_answer_is_asked_again_before_a_new_segment_is_written_to() -> None:
    """(d) It alone knows that the life was fenced."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        former = await numbered(client, TOPIC)
        cluster.seal(0, told=False)
        cluster.split(0)
        parent = server.dedups[cluster.topology.paths[0]].numbered
        assert parent.take(NAME, cluster.clock.wall_ms() + 1000, 1, 0.0)
        server.refuse["take_name"] = [txnclient.NotOwner("the segment is being handed over")]
        key = next(f"k{number}" for number in range(100) if hash_key(b"k%d" % number) < HASH_SPACE // 2)
        with pytest.raises(txnclient.ProducerFenced):
            await former.send(b"late", key=key, sequence_id=1)
        assert not any(cluster.stored.values())


@virtual_time
async def test_repeated_sends_that_gave_up_are_not_kept_while_the_first_one_is_under_way() -> None:
    async with connected(timeout=0.5) as (cluster, client):
        producer = await numbered(client, TOPIC)
        cluster.servers["broker:1"].hold["send"] = held = asyncio.Event()
        first = producer.send_nowait(b"0", key="k", sequence_id=0)
        for _ in range(20):
            with pytest.raises(txnclient.Timeout):
                await producer.send(b"0", key="k", sequence_id=0)
        life = producer_impl(producer).life
        assert life is not None
        assert len(life._waiting[0]) <= 1
        held.set()
        await first


async def test_of_openings_at_one_moment_one_sends_in_the_end(client: txnclient.Client) -> None:
    topic = await new_topic(client, 3)
    openings = await asyncio.gather(*(_opened(numbered(client, topic)) for _ in range(4)), return_exceptions=True)
    sent = 0
    for producer in openings:
        assert isinstance(producer, txnclient.Producer | txnclient.ProducerFenced), producer
        if isinstance(producer, txnclient.Producer):
            try:
                await send(producer, range(10))
                sent += 1
            except txnclient.ProducerFenced:
                pass
            await _closed(producer)
    assert sent == 1
    assert await stored(client, topic) == list(range(10))


@pytest.mark.parametrize(
    "wrong", [{"compression": "gzip"}, {"compression": ["lz4"]}, {"linger_ms": float("nan")}, {"serializer": "xml"}]
)
@virtual_time
async def test_an_opening_that_is_refused_takes_no_name_from_the_producer_that_has_it(wrong: dict[str, Any]) -> None:
    """▲ A slip in a program that is started beside a running one would end that."""
    async with connected() as (_, client):
        running = await numbered(client, TOPIC)
        await running.send(b"1", sequence_id=1)
        with pytest.raises(txnclient.InvalidArgument):
            await numbered(client, TOPIC, **wrong)
        await running.send(b"2", sequence_id=2)


@virtual_time
async def test_ids_far_apart_and_their_messages_fit_into_one_entry() -> None:
    """▲ The batch was larger than an entry may be, and ended the producer."""
    random, count, step = Random(1), 10_000, 1 << 47
    async with connected() as (cluster, client):
        producer = await numbered(client, TOPIC, batch_bytes=MAX_VALUE_BYTES, compression=None)
        for one in range(count):
            value = random.randbytes(MAX_VALUE_BYTES // count - 26)
            producer.send_nowait(value, key="k", properties={"a": ""}, event_time_ms=1, sequence_id=one * step)
        await producer.flush()
        assert producer.last_sequence_id == (count - 1) * step
        assert sum(last - first + 1 for stored in cluster.stored.values() for first, last, _ in stored) == count
