"""Snapshots end to end: real client, servers, etcd, ledgers and gRPC (DESIGN §10)."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import re
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import txnclient
import txnclient.sync
from tests.cluster import InProcessCluster
from tests.waiting import grown, until
from txnclient import Snapshot
from txnclient.reading.snapshot import Span
from txnwire.ids import EARLIEST

ORDERS, INVOICES = "topic://acme/orders/placed", "topic://globex/billing/invoices"
TOPICS = (ORDERS, INVOICES)
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "snapshot_read.py"


async def values(
    client: txnclient.Client, topics: Sequence[str] = TOPICS, *, end: Snapshot, start: Snapshot | None = None
) -> list[bytes]:
    """Everything between two snapshots, or up to one, sorted."""
    async with asyncio.timeout(20), client.reader(topics, start=start or "earliest", end=end) as reader:
        return sorted([message.value async for message in reader])


async def send(client: txnclient.Client, topic: str, value: bytes, txn: txnclient.Transaction | None = None) -> None:
    async with await client.producer(topic) as producer:
        for key in ("a", "b", "c"):
            await producer.send(value, key=key, txn=txn)


async def test_a_snapshot_holds_what_was_committed_and_keeps_holding_just_that(client: txnclient.Client) -> None:
    for topic in TOPICS:
        await client.create_topic(topic, segments=2)
    committed, aborted, pending = [await client.begin() for _ in range(3)]
    for topic in TOPICS:
        await send(client, topic, b"pending", pending)
        await send(client, topic, b"committed", committed)
        await send(client, topic, b"aborted", aborted)
        await send(client, topic, b"plain")
    result = await committed.commit()
    await aborted.abort()
    snapshot = await client.snapshot(TOPICS)
    assert snapshot.revision >= result.revision
    assert snapshot.pending == (pending.id,)
    expected = [b"committed"] * 6 + [b"plain"] * 6
    assert await values(client, end=snapshot) == expected
    await pending.commit()
    await send(client, ORDERS, b"later")
    assert await values(client, end=snapshot) == expected, "what was committed later is not in it"
    assert await values(client, end=Snapshot.from_json(snapshot.to_json())) == expected
    assert await values(client, [INVOICES], end=snapshot) == expected[::2]


async def test_from_one_snapshot_to_the_next_comes_what_was_committed_between_them(client: txnclient.Client) -> None:
    """Also what lay before the old ends: entries that were pending then and have committed since."""
    for topic in TOPICS:
        await client.create_topic(topic, segments=2)
    straddling, dropped, endless = [await client.begin() for _ in range(3)]
    await send(client, ORDERS, b"straddling", straddling)
    await send(client, ORDERS, b"dropped", dropped)
    await send(client, ORDERS, b"endless", endless)
    await send(client, ORDERS, b"first")
    first = await client.snapshot(TOPICS)
    await send(client, INVOICES, b"straddling", straddling)
    await send(client, INVOICES, b"endless", endless)
    await straddling.commit()
    await dropped.abort()
    await send(client, INVOICES, b"second")
    second = await client.snapshot(TOPICS)
    await send(client, ORDERS, b"third")
    third = await client.snapshot(TOPICS)
    assert await values(client, end=first) == [b"first"] * 3
    assert await values(client, start=first, end=second) == [b"second"] * 3 + [b"straddling"] * 6
    assert await values(client, start=second, end=third) == [b"third"] * 3
    assert await values(client, start=first, end=third) == [b"second"] * 3 + [b"straddling"] * 6 + [b"third"] * 3
    assert await values(client, start=second, end=second) == []
    with pytest.raises(txnclient.InvalidArgument, match=r"newer|earlier one"):
        await values(client, start=third, end=second)


PARTS = 6
"""Messages of one transaction: three keys in each of two topics."""


async def write_transactions(client: txnclient.Client, name: bytes, ended: list[bytes], stop: asyncio.Event) -> None:
    """One transaction after another over all segments of both topics, every fourth aborted."""
    async with await client.producer(ORDERS) as orders, await client.producer(INVOICES) as invoices:
        number = 0
        while not stop.is_set():
            number += 1
            value = b"%s-%d" % (name, number)
            try:
                txn = await client.begin()
                for key in ("a", "b", "c"):
                    await asyncio.gather(*(one.send(value, key=key, txn=txn) for one in (orders, invoices)))
                await (txn.commit() if number % 4 else txn.abort())
            except txnclient.TxnError:
                continue  # its broker went away in the middle: whichever way it ended, it ended whole
            if number % 4:
                ended.append(value)


async def test_snapshots_taken_under_load_hold_every_transaction_whole_or_not_at_all(cluster: InProcessCluster) -> None:
    """Several writers, cuts one after another, the broker replaced in the middle. What follows from one snapshot to the
    next adds up to the last one, nothing twice."""
    async with cluster.connect() as client:
        for topic in TOPICS:
            await client.create_topic(topic, segments=2)
        stop, ended = asyncio.Event(), list[bytes]()
        snapshots: list[tuple[Snapshot, list[bytes]]] = []
        async with asyncio.TaskGroup() as tasks:
            for writer in range(4):
                tasks.create_task(write_transactions(client, b"%d" % writer, ended, stop))
            for number in range(12):
                if number == 6:
                    await cluster.restart_server("broker")
                before, more = list(ended), grown(ended, 2)
                snapshots.append((await client.snapshot(TOPICS), before))
                await until(more, "two more transactions", within_s=20)
            stop.set()
        assert sum(bool(snapshot.pending) for snapshot, _ in snapshots) > 5, "nothing was under way"
        read: Counter[bytes] = Counter()
        last: Snapshot | None = None
        for snapshot, before in snapshots:
            alone = Counter(await values(client, end=snapshot))
            assert sorted(set(alone.values())) in ([], [PARTS]), "a transaction is torn"
            assert not [value for value in before if value not in alone], "what had been committed is in it"
            read.update(await values(client, start=last, end=snapshot))
            assert read == alone, "what followed since the last one and it are this one"
            last = snapshot
        assert len(read) >= 20, "hardly anything was committed: this proves nothing"
        assert not [value for value in read if int(value.split(b"-")[1]) % 4 == 0], "an aborted one was read"


async def test_following_from_a_snapshot_on(client: txnclient.Client) -> None:
    """Without an end: what was pending and what came later, as it commits; nothing that the snapshot holds."""
    await client.create_topic(ORDERS, segments=2)
    pending, dropped = await client.begin(), await client.begin()
    await send(client, ORDERS, b"pending", pending)
    await send(client, ORDERS, b"dropped", dropped)
    await send(client, ORDERS, b"held")
    snapshot = await client.snapshot(ORDERS)
    async with client.reader(ORDERS, start=snapshot) as reader:
        await dropped.abort()
        await pending.commit()
        await send(client, ORDERS, b"later")
        found = [(await reader.receive(timeout=10)).value for _ in range(6)]
        assert sorted(found) == [b"later"] * 3 + [b"pending"] * 3
        with pytest.raises(txnclient.Timeout):
            await reader.receive(timeout=0.2)
    async with client.reader(ORDERS, start=snapshot, end="latest") as reader:
        assert sorted([message.value async for message in reader]) == sorted(found)


async def test_v5_bounded_reads_pass_over_what_they_leave_out_and_end(client: txnclient.Client) -> None:
    """The entries a reader leaves out use up its permits, and it goes on behind them all the same."""
    await client.create_topic(ORDERS)
    empty = await client.snapshot([ORDERS])
    assert await values(client, [ORDERS], end=empty) == []
    pending = await client.begin()
    async with await client.producer(ORDERS, batch_bytes=1) as producer:
        for number in range(30):
            await producer.send(b"%d" % number, txn=pending)
        await producer.send(b"behind them")
    snapshot = await client.snapshot([ORDERS])
    async with asyncio.timeout(20), client.reader(ORDERS, end=snapshot, prefetch=4) as reader:
        assert [message.value async for message in reader] == [b"behind them"]
        assert reader.ended
    await pending.abort()
    assert await values(client, [ORDERS], end=snapshot) == [b"behind them"]


async def test_v5_latest_lookup_by_time_and_bounded_reads_over_aborted_gaps(client: txnclient.Client) -> None:
    """A gap in the middle that is wider than the reader's permits, one at the end, and an open transaction behind."""
    await client.create_topic(ORDERS)
    async with await client.producer(ORDERS, batch_bytes=1) as producer:

        async def gap(ended: bool) -> txnclient.Transaction:
            txn = await client.begin()
            for _ in range(20):
                await producer.send(b"never", txn=txn)
            if ended:
                await txn.abort()
            return txn

        await producer.send(b"before")
        await asyncio.sleep(0.01)  # so that the publish times differ
        await gap(ended=True)
        await producer.send(b"between")
        await gap(ended=True)
        still_open = await gap(ended=False)
        await producer.send(b"behind")

    async def read(**options: Any) -> list[bytes]:
        async with asyncio.timeout(20), client.reader(ORDERS, prefetch=4, **options) as reader:
            return [message.value async for message in reader]

    snapshot = await client.snapshot(ORDERS)
    for end in ("latest", snapshot):
        assert await read(end=end) == [b"before", b"between", b"behind"]
    assert await read(start="latest", end="latest") == []
    async with client.reader(ORDERS) as reader:
        first = await reader.receive(timeout=10)
        second = await reader.receive(timeout=10)
    assert await read(start=first.publish_time_ms + 1, end="latest") == [b"between", b"behind"]
    assert await read(start=second.id, end=snapshot) == [b"between", b"behind"]
    async with client.reader(ORDERS, start="latest") as reader:
        await still_open.abort()
        assert (await reader.receive(timeout=10)).value == b"behind"


@pytest.mark.parametrize("committed_at", ["before", "after"])
async def test_writers_of_a_named_transaction_that_do_not_count_are_in_no_snapshot(
    cluster: InProcessCluster, committed_at: str
) -> None:
    async with cluster.connect() as client, cluster.connect() as other:
        await client.create_topic(ORDERS)
        holding = await client.begin()
        await send(client, ORDERS, b"holding", holding)  # so that the rest lies behind the read position
        winner, loser = await client.begin(name="job/1"), await other.begin(name="job/1")
        await send(client, ORDERS, b"winner", winner)
        await send(other, ORDERS, b"loser", loser)
        if committed_at == "before":
            await winner.commit(writers=[winner.writer_id])
        first = await client.snapshot(ORDERS)
        if committed_at == "after":
            await winner.commit(writers=[winner.writer_id])
        second = await client.snapshot(ORDERS)
        in_first = [b"winner"] * 3 if committed_at == "before" else []
        assert await values(client, [ORDERS], end=first) == in_first
        assert await values(client, [ORDERS], start=first, end=second) == ([] if in_first else [b"winner"] * 3)
        assert second.losers == ((loser.id, loser.writer_id),)
        await holding.abort()


async def test_a_snapshot_waits_for_a_segment_without_an_owner(cluster: InProcessCluster) -> None:
    async with cluster.connect() as client:
        await client.create_topic(ORDERS, segments=2)
        await send(client, ORDERS, b"here")
        await cluster.stop_server("broker")
        taking = asyncio.ensure_future(client.snapshot(ORDERS))
        await asyncio.sleep(0.3)
        assert not taking.done()
        await cluster.start_server("broker", "broker")
        assert await values(client, [ORDERS], end=await taking) == [b"here"] * 3


async def test_what_cannot_be_is_refused_with_a_reason(cluster: InProcessCluster) -> None:
    async with cluster.connect(timeout=2.0) as client:
        await client.create_topic(ORDERS)
        await client.create_topic(INVOICES)
        await send(client, ORDERS, b"here")
        snapshot = await client.snapshot(ORDERS)
        with pytest.raises(txnclient.TopicNotFound):
            await client.snapshot([ORDERS, "topic://acme/orders/none"])
        for topics, options, complaint in (
            ([INVOICES], {"end": snapshot}, "not in the snapshot"),
            ([ORDERS], {"end": snapshot, "start": "latest"}, "after every snapshot"),
            ([ORDERS], {"end": snapshot, "isolation": "read_uncommitted"}, "read_committed"),
            ([ORDERS], {"end": "tomorrow"}, "a Snapshot"),
        ):
            with pytest.raises(txnclient.InvalidArgument, match=complaint):
                await client.reader(topics, **options)
        elsewhere = Snapshot.from_json(snapshot.to_json().replace('"end":"1:', '"end":"9:'))
        with pytest.raises(txnclient.InvalidArgument, match="another cluster"):
            await values(client, [ORDERS], end=elsewhere)
        # ▲ E8: a repaired store gives revisions again, and has another identity.
        assert snapshot.store
        restored = dataclasses.replace(snapshot, store="before the repair")
        for options in ({"end": restored}, {"start": restored}):
            with pytest.raises(txnclient.InvalidArgument, match="restored from a backup"):
                await (await client.reader(ORDERS, **options)).receive()
        gone = Snapshot.from_json(snapshot.to_json().replace("0000-ffff-", "0000-ffff-77"))
        with pytest.raises(txnclient.InvalidArgument, match="no longer exists"):
            await values(client, [ORDERS], end=gone)


async def test_a_snapshot_of_a_topic_that_was_made_again_is_refused_at_once(cluster: InProcessCluster) -> None:
    """▲ The next topic of the name has fewer layouts behind it, and whoever waits for more obeys a timeout by asking
    again, for ever."""
    async with cluster.connect(timeout=10.0) as client:
        await client.create_topic(ORDERS)
        await client.split((await client.describe_topic(ORDERS)).active[0].name)
        await send(client, ORDERS, b"here")
        cut = await client.snapshot(ORDERS)
        path, bounds = next((path, one) for path, one in cut.segments.items() if one.end > EARLIEST)
        await client.delete_topic(ORDERS, force=True)
        await client.create_topic(ORDERS)
        for options in ({"end": cut}, {"start": cut}):
            with pytest.raises(txnclient.DataTrimmed, match="created again"):
                await client.reader(ORDERS, **options)
        with pytest.raises(txnclient.DataTrimmed, match="created again"):
            await anext(client.read_entries(path, after=EARLIEST, end=bounds.end, span=Span(None, cut)))


async def test_the_example_keeps_its_books_balanced_over_two_runs(cluster: InProcessCluster, tmp_path: Path) -> None:
    state = tmp_path / "balance.json"
    for run in range(2):
        process = await asyncio.create_subprocess_exec(
            sys.executable, EXAMPLE, "--url", cluster.url, "--state", str(state), "--reports", "2", stdout=PIPE
        )
        output, _ = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0
        lines = output.decode().splitlines()
        assert len(lines) == 4
        assert all(line.endswith("sum 0") for line in lines[:3])
        assert int(lines[3].split()[0]) > 5
        if run == 0:
            first = json.loads(state.read_text())["snapshot"]["revision"]
    assert json.loads(state.read_text())["snapshot"]["revision"] > first


async def test_what_the_docs_show_of_snapshots_is_so(cluster: InProcessCluster) -> None:
    """The snippet of docs/client.md, with something committed before each of its snapshots."""
    text = (EXAMPLE.parent.parent / "docs" / "client.md").read_text()
    (snippet,) = re.findall(r"```python\n(orders, invoices = .*?)```", text, re.DOTALL)
    topic, later = "topic://public/guide/orders", "later = await client.snapshot"
    lines = snippet.replace(later, f"await send(client, {topic!r}, b'second')\n{later}").splitlines()
    body = "\n".join(f"    {line}" for line in [*lines, "return so_far, since"])
    names = {"txnclient": txnclient, "send": send}
    exec(f"async def shown(client):\n{body}", names)
    async with cluster.connect() as client:
        for name in (topic, "topic://public/guide/invoices"):
            await client.create_topic(name)
        await send(client, topic, b"first")
        so_far, since = await names["shown"](client)  # type: ignore[operator]
    assert [message.value for message in so_far] == [b"first"] * 3
    assert [message.value for message in since] == [b"second"] * 3


async def test_a_value_sent_in_pieces_is_in_a_snapshot_whole_or_not_at_all(client: txnclient.Client) -> None:
    """Its pieces lie before and behind the first snapshot's end."""
    await client.create_topic(ORDERS)
    large = random.Random(1).randbytes(12 * 1024 * 1024)
    async with await client.producer(ORDERS) as producer:
        txn = await client.begin()
        sending = asyncio.ensure_future(producer.send(large, chunk=True, txn=txn))
        reach = 0
        while reach == 0:  # its first pieces are stored
            first = await client.snapshot(ORDERS)
            reach = max(bounds.end.entry_id + 1 for bounds in first.segments.values())
        await sending
        await producer.send(b"behind")
        before = await client.snapshot(ORDERS)
        await txn.commit()
        after = await client.snapshot(ORDERS)
    assert first.pending == before.pending == (txn.id,)
    assert await values(client, [ORDERS], end=first) == []
    assert await values(client, [ORDERS], end=before) == [b"behind"]
    assert await values(client, [ORDERS], start=first, end=after) == sorted([b"behind", large])
    assert await values(client, [ORDERS], start=before, end=after) == [large]
    assert await values(client, [ORDERS], end=after) == sorted([b"behind", large])


async def test_a_snapshot_outlives_the_controller_it_was_asked_of(cluster: InProcessCluster) -> None:
    async with cluster.connect() as client:
        await client.create_topic(ORDERS)
        await send(client, ORDERS, b"here")
        restarting = asyncio.ensure_future(cluster.restart_server("control"))
        taken = [await client.snapshot(ORDERS)]
        while not restarting.done():
            taken.append(await client.snapshot(ORDERS))
        await restarting
        for snapshot in (taken[0], taken[-1]):
            assert await values(client, [ORDERS], end=snapshot) == [b"here"] * 3


async def test_snapshots_without_await(cluster: InProcessCluster) -> None:
    def work() -> list[bytes]:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(ORDERS)
            with client.producer(ORDERS) as producer:
                producer.send(b"first")
                before = client.snapshot(ORDERS)
                producer.send(b"second")
            later = client.snapshot([ORDERS])
            with client.reader(ORDERS, start=before, end=later) as reader:
                return [message.value for message in reader]

    assert await asyncio.to_thread(work) == [b"second"]
