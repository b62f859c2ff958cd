"""Splits and merges, end to end: transactions across them, whoever dies in their midst, topics deleted under them."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from segments.layout.layout_transitions import SPLIT, Wanted, normalize, plan_intent, read_topology
from tests.cluster import InProcessCluster
from tests.lagging import HeldDecisions, create_over_both, reads_beside
from tests.test_deletion import files_of, findings, keys_naming
from tests.waiting import until, until_answer
from txnstore import keys
from txnstore.writes.deletion_transitions import present
from txnwire.errors import InvalidArgument, TopicNotFound

TOPIC = "topic://public/nyc/flights"
KEYS = [f"key-{number}" for number in range(8)]


async def active(client: txnclient.Client) -> list[str]:
    """Names, in hash order."""
    return [segment.name for segment in (await client.describe_topic(TOPIC)).active]


async def write(producer: txnclient.Producer[bytes], what: str, txn: txnclient.Transaction | None = None) -> None:
    for key in KEYS:
        await producer.send(f"{what} {key}".encode(), key=key, txn=txn)


def of(*whats: str) -> set[bytes]:
    return {f"{what} {key}".encode() for what in whats for key in KEYS}


async def read_all(client: txnclient.Client) -> list[bytes]:
    async with client.reader(TOPIC, end="latest") as reader:
        return [message.value async for message in reader]


@pytest.mark.parametrize("change", ["split", "merge"])
@pytest.mark.parametrize("restart", [False, True], ids=["", "owner restarts"])
async def test_s1_s2_transactions_across_a_change_commit_and_abort_whole(
    lagging: tuple[InProcessCluster, HeldDecisions], change: str, restart: bool
) -> None:
    """What they wrote before and after, in parents and children of two brokers, becomes visible together or
    never, in no read in part: not as they end, however late an owner hears of it; nobody waits."""
    cluster, second = lagging
    async with cluster.connect() as client, cluster.connect() as reading:
        await create_over_both(client, TOPIC, segments=2)
        async with client.producer(TOPIC) as producer, reads_beside(reading, TOPIC) as reads:
            committed, aborted, ended_before = [await client.begin() for _ in range(3)]
            await write(producer, "before", committed)
            await write(producer, "aborted before", aborted)
            await write(producer, "of its own", ended_before)
            await ended_before.commit()
            names = await active(client)
            layout = await (client.split(names[0]) if change == "split" else client.merge(*names))
            assert len(layout.active) == (3 if change == "split" else 1)
            if restart:
                await cluster.restart_server("broker")
            await write(producer, "after", committed)
            await write(producer, "aborted after", aborted)
            await write(producer, "plain")
            await reads.another()
            assert reads.found[-1].keys() == {ended_before.id}
            second.open.clear()
            await asyncio.gather(committed.commit(), aborted.abort())
            await reads.another()
            second.open.set()
            assert reads.found[-1] == {ended_before.id: len(KEYS), committed.id: 2 * len(KEYS)}
        found = await read_all(client)
        assert len(found) == len(set(found))
        assert set(found) == of("before", "after", "of its own", "plain")
        assert await findings(cluster) == []


async def test_a_change_asked_for_twice_is_made_once(client: txnclient.Client) -> None:
    await client.create_topic(TOPIC, segments=1)
    [name] = await active(client)
    first, second = await asyncio.gather(client.split(name), client.split(name, at=0x8000))
    assert first.epoch == second.epoch == 2
    assert (await client.split(name.removeprefix("segment://"))).epoch == 2
    with pytest.raises(InvalidArgument, match="it is SEALED, not ACTIVE"):
        await client.split(name, at=5)
    with pytest.raises(InvalidArgument, match=r"1\.\.65535"):
        await client.split(name, at=0)
    with pytest.raises(InvalidArgument, match="different topics"):
        await client.merge(name, "segment://public/nyc/delays/0000-ffff-0")
    with pytest.raises(InvalidArgument, match="has no segment"):
        await client.split("segment://public/nyc/flights/0000-ffff-9")
    with pytest.raises(TopicNotFound):
        await client.split("segment://public/nyc/nowhere/0000-ffff-0")


async def test_s8_a_topic_is_deleted_amid_its_changes_and_leaves_nothing(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    """Sealed parents with an open and an aborted transaction, a split under way: no key and no file is left."""
    await client.create_topic(TOPIC, segments=2)
    async with client.producer(TOPIC) as producer:
        open_txn, aborted = await client.begin(), await client.begin()
        await write(producer, "open", open_txn)
        await write(producer, "aborted", aborted)
        await client.split((await active(client))[0])
        await client.merge(*(await active(client))[1:])
        await aborted.abort()
        await write(producer, "open", open_txn)
    under_way = asyncio.ensure_future(client.split((await active(client))[0]))
    await asyncio.sleep(0)
    await client.delete_topic(TOPIC, force=True)
    store = cluster.servers["control"].store
    assert await keys_naming(store, "public/nyc/flights") == []
    assert files_of(cluster.data_dir, TOPIC) == []
    [ended] = await asyncio.gather(under_way, return_exceptions=True)
    assert isinstance(ended, TopicNotFound | InvalidArgument | txnclient.TopicLayout)
    await open_txn.commit()
    assert await findings(cluster) == []
    assert (await client.create_topic(TOPIC, segments=1)).active[0].segment_id >= 5


async def test_s10_the_controller_is_replaced_while_layouts_change(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    """Every change that was asked for stands in the end, once."""
    await client.create_topic(TOPIC, segments=4)
    await cluster.start_server("second", "controller")
    changes = [asyncio.ensure_future(client.split(name)) for name in await active(client)]
    await cluster.restart_server("control")
    await asyncio.gather(*changes)
    await until(lambda: len(cluster.servers["broker"].server.broker.segments) == 12)  # type: ignore[union-attr]
    layout = await client.describe_topic(TOPIC)
    assert len(layout.active) == 8
    assert layout.epoch == 5
    assert await findings(cluster) == []


async def test_s10_an_intent_that_nobody_drives_is_found(cluster: InProcessCluster, client: txnclient.Client) -> None:
    """The elected controller follows the topics' records."""
    await client.create_topic(TOPIC, segments=1)
    store, key = cluster.servers["control"].store, keys.topic(TOPIC.removeprefix("topic://"))
    record = await store.get(key)
    assert record is not None
    wanted = normalize(read_topology(record), Wanted(SPLIT, (0,)))
    _, intent = plan_intent(record, wanted, change_id="c1", still_held=present(key), now_ms=1)
    assert (await store.commit(intent)).succeeded
    await until_answer(
        lambda: client.describe_topic(TOPIC),
        lambda layout: layout.epoch != 1,
        "the split that was intended",
        within_s=10,
    )
    assert len(await active(client)) == 2
