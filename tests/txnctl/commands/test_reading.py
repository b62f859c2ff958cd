"""`txnctl read`, `topics peek` and `subscriptions create`: messages without a subscription, and the other way round."""

from __future__ import annotations

import asyncio
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.txnctl.command_line import done, start, txnctl
from tests.waiting import until
from txnctl.commands import reading
from txnwire.ids import Position
from txnwire.snapshot import SegmentBounds, Snapshot, TopicBounds

TOPIC = "topic://public/default/orders"


async def values(cluster: InProcessCluster, *more: str) -> list[str]:
    return (await done("read", TOPIC, *more, url=cluster.url)).out.split()


async def later_than(time_ms: int) -> int:
    """A moment, in ms, after `time_ms` and before whatever is sent from now on."""
    await until(lambda: int(time.time() * 1000) > time_ms + 1, "a later moment")
    return int(time.time() * 1000)


async def test_read_leaves_nothing_behind_and_ends_with_what_is_committed(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, "--segments", "2", url=cluster.url)
    await done("produce", TOPIC, url=cluster.url, stdin="one\ntwo\nthree\n")
    async with cluster.connect() as client, await client.producer(TOPIC) as producer:
        txn = await client.begin()
        await producer.send(b"open", txn=txn)
        assert sorted(await values(cluster)) == ["one", "three", "two"]
        assert sorted(await values(cluster, "--isolation", "read_uncommitted")) == ["one", "open", "three", "two"]
        await txn.abort()
    assert len(await values(cluster, "--count", "2")) == 2
    assert (await done("subscriptions", "list", TOPIC, "-o", "json", url=cluster.url)).json == []


async def test_read_between_times_and_snapshots(cluster: InProcessCluster, tmp_path: Path) -> None:
    """▲ A transaction that goes on behind the time is left out whole."""
    await done("topics", "create", TOPIC, "--segments", "2", url=cluster.url)
    async with cluster.connect() as client, await client.producer(TOPIC) as producer:
        txn = await client.begin()
        await producer.send(b"before", key="a")
        await producer.send(b"across-1", key="a", txn=txn)
        first_ms = await later_than(0)
        await later_than(first_ms)
        await producer.send(b"across-2", key="b", txn=txn)
        await producer.send(b"between", key="b")
        await txn.commit()
        taken = tmp_path / "snapshot.json"
        taken.write_text((await done("snapshot", TOPIC, "-o", "json", url=cluster.url)).out)
        second_ms = await later_than(int(time.time() * 1000))
        await later_than(second_ms)
        await producer.send(b"after", key="a")
    everything = ["across-1", "across-2", "after", "before", "between"]
    assert sorted(await values(cluster)) == everything
    assert await values(cluster, "--at", str(first_ms)) == ["before"]
    assert sorted(await values(cluster, "--at", str(taken))) == ["across-1", "across-2", "before", "between"]
    assert sorted(await values(cluster, "--to", str(second_ms))) == ["across-1", "across-2", "before", "between"]
    assert await values(cluster, "--from", str(taken)) == ["after"]
    when = datetime.fromtimestamp(second_ms / 1000, UTC).isoformat()
    assert await values(cluster, "--from", when) == ["after"]
    assert await values(cluster, "--to", "2020-01-01T00:00") == []


@pytest.mark.parametrize("at_once", [1, 100])
async def test_of_several_transactions_that_go_on_behind_a_time_none_is_read_by_halves(
    cluster: InProcessCluster, client: txnclient.Client, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """However many messages come at once, of what is read and of what came behind."""
    monkeypatch.setattr(reading, "AT_ONCE", at_once)
    await client.create_topic(TOPIC)
    async with await client.producer(TOPIC) as producer:
        late = [await client.begin() for _ in range(3)]
        for number, txn in enumerate(late):
            await producer.send(b"plain-%d" % number)
            await producer.send(b"across", txn=txn)
        until_ms = await later_than(int(time.time() * 1000))
        await later_than(until_ms)
        for txn in late:
            await producer.send(b"across", txn=txn)
            await txn.commit()
    found = [
        one.value
        async for messages in reading._between(client, TOPIC, "earliest", until_ms, False, "read_committed")
        for one in messages
    ]
    assert found == [b"plain-0", b"plain-1", b"plain-2"]
    assert len(await reading._newest(client, TOPIC, 7)) == 7
    assert len(await values(cluster)) == 9


async def test_produce_and_read_go_on_behind_what_comes_at_once(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, url=cluster.url)
    count = reading.AT_ONCE + 1
    await done("produce", TOPIC, url=cluster.url, stdin=f"{'x' * 300}\n" * count)
    assert len(await values(cluster)) == count


def test_peek_begins_before_the_end_of_every_segment_of_every_topic() -> None:
    at = {f"public/default/orders/{name}": Position(5, 9) for name in ("0000-7fff-0", "8000-ffff-1")}
    bounds = TopicBounds(1, {path: SegmentBounds(end, end) for path, end in at.items()})
    end = Snapshot(revision=1, topics={TOPIC: bounds, f"{TOPIC}-2": bounds})
    start = reading._before(end, 4, 0)
    assert start is not None
    assert [[one.end for one in topic.segments.values()] for topic in start.topics.values()] == [
        [Position(5, 5)] * 2
    ] * 2


async def test_follow_goes_on_until_it_is_told_to_stop(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, url=cluster.url)
    await done("produce", TOPIC, url=cluster.url, stdin="one\n")
    process = await start("read", TOPIC, "--follow", url=cluster.url)
    assert process.stdout is not None
    async with asyncio.timeout(60):
        assert await process.stdout.readline() == b"one\n"
        await done("produce", TOPIC, url=cluster.url, stdin="two\n")
        assert await process.stdout.readline() == b"two\n"
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--at", "2026-11-22T10:00", "--follow"], "leave out --from, --to and --follow"),
        (["--to", "2026-11-22T10:00", "--follow"], "--follow has no end"),
        (["--from", "nowhere"], "--from: 'nowhere': expected 'earliest'"),
        (["--to", "earliest"], "--to earliest: expected a snapshot's file or a time"),
        (["--at", "README.md"], "README.md is no snapshot"),
    ],
)
async def test_wrong_bounds_are_told(words: list[str], said: str) -> None:
    refused = await txnctl("read", TOPIC, *words, "--url", "txn://127.0.0.1:1")
    assert (refused.code, said in refused.err) == (2, True), refused


async def test_peek_shows_the_newest_also_behind_new_ledgers(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, "--segments", "2", url=cluster.url)
    empty = await done("topics", "peek", TOPIC, url=cluster.url)
    assert (empty.out, "nothing is committed" in empty.err) == ("", True)
    async with cluster.connect() as client, await client.producer(TOPIC, compression=None) as producer:
        for number in range(7):
            await producer.send(b"%d" % number, key=str(number))
            await asyncio.sleep(0.002)  # two segments: of one millisecond's messages none is the newer
    await cluster.restart_server("broker")  # the newest ledgers are empty now
    shown = await done("topics", "peek", TOPIC, "-n", "4", "-o", "json", url=cluster.url)
    assert [row["value"] for row in shown.json] == ["3", "4", "5", "6"]
    table = await done("topics", "peek", TOPIC, "-n", "100", url=cluster.url)
    assert len(table.out.splitlines()) == 1 + 7
    assert (await done("subscriptions", "list", TOPIC, "-o", "json", url=cluster.url)).json == []


class MostlyTrimmed:
    """A client of a topic of which retention has taken all ledgers but the third, which has one message; its own
    reader."""

    ended = False

    async def snapshot(self, topic: str) -> Snapshot:
        at = SegmentBounds(Position(3, 0), Position(3, 0))
        return Snapshot(revision=1, topics={topic: TopicBounds(1, {"public/default/orders/0000-ffff-0": at})})

    async def reader(self, topic: str, *, start: Snapshot | str, end: object, isolation: str) -> MostlyTrimmed:
        if isinstance(start, Snapshot):
            (one,) = start.topics[topic].segments.values()
            if one.end.ledger_id < 3:
                raise txnclient.DataTrimmed("retention has taken what stands there")
        return self

    async def __aenter__(self) -> MostlyTrimmed:
        self.ended = False
        return self

    async def __aexit__(self, *error: object) -> None: ...

    async def receive_many(self, at_most: int, *, timeout: float) -> list[Any]:
        self.ended = True
        return [SimpleNamespace(publish_time_ms=1, position=Position(3, 0))]


async def test_peek_shows_what_retention_has_left() -> None:
    """It looks for more than there is, further back, where nothing stands any more."""
    newest = await reading._newest(cast(Any, MostlyTrimmed()), TOPIC, 10)
    assert [one.position for one in newest] == [Position(3, 0)]


async def test_a_created_subscription_keeps_what_comes(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, url=cluster.url)
    await done("produce", TOPIC, url=cluster.url, stdin="old\n")
    made = await done("subscriptions", "create", TOPIC, "audit", "--start", "latest", url=cluster.url)
    assert made.out == f"audit on {TOPIC}: created\n"
    await done("produce", TOPIC, url=cluster.url, stdin="new\n")
    again = await done("subscriptions", "create", TOPIC, "audit", "-o", "json", url=cluster.url)
    assert again.json == {"topic": TOPIC, "subscription": "audit", "type": "stream", "created": False}
    other = await txnctl("subscriptions", "create", TOPIC, "audit", "--type", "queue", url=cluster.url)
    assert (other.code, "is there already, of type stream" in other.err) == (1, True), other
    read = await done("consume", TOPIC, "-s", "audit", "--count", "1", "--timeout", "20", url=cluster.url)
    assert read.out == "new\n"
    assert "subscription audit stays" in read.err
    assert f"`txnctl subscriptions delete {TOPIC} audit` deletes it" in read.err
