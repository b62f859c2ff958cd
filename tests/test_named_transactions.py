"""Named transactions end to end: real client, servers, etcd, ledgers and gRPC (DESIGN §10, SCENARIOS A5)."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import txnclient
from tests.cluster import InProcessCluster, running_cluster
from tests.processes import read_all
from tests.waiting import until_answer
from txnclient import Transaction, TransactionState
from txnclient.transactions.transaction import transaction_impl
from txnctl.commands.shared.asking import asking
from txnstore.writes.writer_lists import MAX_LISTED

TOPIC = "topic://public/default/parts"
NAME = "sink/query-7/42"
EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "named_transaction.py"


async def send(client: txnclient.Client, txn: Transaction, *values: bytes, topic: str = TOPIC) -> None:
    async with await client.producer(topic) as producer:
        for value in values:
            await producer.send(value, key=value.decode(), txn=txn)


async def test_two_clients_join_one_transaction_and_the_list_decides(cluster: InProcessCluster) -> None:
    async with cluster.connect() as one, cluster.connect() as two:
        await one.create_topic(TOPIC, segments=3)
        first, second, third = await one.begin(name=NAME), await two.begin(name=NAME), await two.begin(name=NAME)
        assert first.id == second.id == third.id
        assert [txn.joined for txn in (first, second, third)] == [False, True, True]
        assert len({first.writer_id, second.writer_id, third.writer_id}) == 3
        await send(one, first, b"a1", b"a2")
        await send(two, second, b"b1", b"b2")
        await send(two, third, b"c1", b"c2")
        assert await read_all(one, TOPIC) == []
        result = await first.commit(writers=[first.writer_id, third.writer_id])
        assert result.writers == tuple(sorted([first.writer_id, third.writer_id]))
        assert sorted(await read_all(one, TOPIC)) == [b"a1", b"a2", b"c1", b"c2"]
        with pytest.raises(txnclient.TxnConflict, match="COMMITTED"):
            await send(two, second, b"late")
        joined = await two.begin(name=NAME)
        assert (joined.state, joined.id, joined.writers) == (TransactionState.COMMITTED, first.id, result.writers)
        assert await joined.commit(writers=result.writers) == result
        with pytest.raises(txnclient.InvalidTxnState, match="COMMITTED"):
            await send(two, joined, b"later")
        assert sorted(await read_all(two, TOPIC)) == [b"a1", b"a2", b"c1", b"c2"]


async def test_an_absent_list_counts_all_an_empty_one_none_and_after_an_abort_it_starts_afresh(
    cluster: InProcessCluster,
) -> None:
    async with cluster.connect() as one, cluster.connect() as two:
        await one.create_topic(TOPIC, segments=2)
        for number, writers in enumerate((None, ())):
            name = f"job/{number}"
            first, second = await one.begin(name=name), await two.begin(name=name)
            await send(one, first, b"%d-a" % number)
            await send(two, second, b"%d-b" % number)
            result = await second.commit(writers=writers)
            assert (result.writers, second.writers) == (writers, writers)
        assert sorted(await read_all(one, TOPIC)) == [b"0-a", b"0-b"]
        first, second = await one.begin(name="job/2"), await two.begin(name="job/2")
        await send(two, second, b"2-b")
        await first.abort()
        with pytest.raises(txnclient.InvalidTxnState, match="ABORTED"):
            await second.commit(writers=[second.writer_id])
        assert second.state == TransactionState.ABORTED
        fresh = await two.begin(name="job/2")
        assert (fresh.joined, fresh.id == second.id) == (False, False)
        await send(two, fresh, b"2-c")
        await fresh.commit(writers=[fresh.writer_id])
        assert sorted(await read_all(one, TOPIC)) == [b"0-a", b"0-b", b"2-c"]


async def test_a5_another_list_is_refused_and_says_how_it_has_committed(cluster: InProcessCluster) -> None:
    """Two drivers of one job, each with its own winners: one wins, the other learns who."""
    async with cluster.connect() as one, cluster.connect() as two:
        await one.create_topic(TOPIC)
        first, second = await one.begin(name=NAME), await two.begin(name=NAME)
        answers = await asyncio.gather(
            first.commit(writers=[first.writer_id]), second.commit(writers=[second.writer_id]), return_exceptions=True
        )
        won = first if not isinstance(answers[0], BaseException) else second
        lost = second if won is first else first
        refused = answers[1] if won is first else answers[0]
        assert isinstance(refused, txnclient.InvalidTxnState)
        assert f"{won.writer_id:016x}" in str(refused)
        assert f"{lost.writer_id:016x}" in str(refused)
        assert (lost.state, lost.writers) == (TransactionState.COMMITTED, (won.writer_id,))
        assert (await lost.commit(writers=[won.writer_id])).revision > 0
        assert await lost.abort() == "COMMITTED"


async def test_leaving_goes_without_ending_it_and_a_failed_writer_ends_it_for_nobody_else(
    cluster: InProcessCluster,
) -> None:
    async with cluster.connect() as driver:
        await driver.create_topic(TOPIC)
        shared = await driver.begin(name=NAME)
        with pytest.raises(txnclient.InvalidArgument, match="end it for all"):
            async with driver.transaction(name=NAME):
                raise AssertionError("the block ran")
        async with cluster.connect() as worker:
            good = await worker.begin(name=NAME)
            await send(worker, good, b"good")
        async with cluster.connect() as worker, await worker.producer(TOPIC) as producer:
            bad = await worker.begin(name=NAME)
            await producer.send(b"bad", txn=bad)
            transaction_impl(bad).failed(txnclient.MessageTooLarge("one of its sends failed"))
            with pytest.raises(txnclient.MessageTooLarge):
                await bad.commit()
            assert bad.state == TransactionState.OPEN
        assert (await driver.outcomes([shared.id]))[shared.id] == "OPEN"
        await shared.commit(writers=[good.writer_id])
        assert await read_all(driver, TOPIC) == [b"good"]


async def test_what_a_losing_writer_has_acked_is_delivered_again(cluster: InProcessCluster) -> None:
    """Pending acks are held by writer: of those that do not count the messages go back, by the broker's own doing."""
    async with cluster.connect() as client:
        await client.create_topic(TOPIC)
        async with await client.producer(TOPIC) as producer:
            for number in range(4):
                await producer.send(b"%d" % number)
        async with await client.consumer(TOPIC, "tasks") as consumer:
            messages = await consumer.receive_many(4, timeout=5.0)
            while len(messages) < 4:
                messages += await consumer.receive_many(4 - len(messages), timeout=5.0)
            driver, winner, loser = [await client.begin(name=NAME) for _ in range(3)]
            await consumer.ack(messages[:2], txn=winner)
            await consumer.ack(messages[1:], txn=loser)
            await driver.commit(writers=[winner.writer_id])
            again = [(await consumer.receive(timeout=5.0)).value for _ in range(2)]
            assert again == [b"2", b"3"]
            with pytest.raises(txnclient.Timeout):
                await consumer.receive(timeout=0.5)


async def test_take_over_with_losers_undecided_and_decided(cluster: InProcessCluster) -> None:
    """A new owner finds the writers of an open one in the ledger, and those that lost before as aborted records."""
    async with cluster.connect() as one, cluster.connect() as two:
        await one.create_topic(TOPIC, segments=2)
        before, loser = await one.begin(name="job/1"), await two.begin(name="job/1")
        await send(one, before, b"1-kept-a", b"1-kept-b")
        await send(two, loser, b"1-lost-a", b"1-lost-b")
        await before.commit(writers=[before.writer_id])
        kept, lost = await one.begin(name="job/2", timeout=300), await two.begin(name="job/2")
        await send(one, kept, b"2-kept-a", b"2-kept-b")
        await send(two, lost, b"2-lost-a", b"2-lost-b")
        await cluster.restart_server("broker")
        expected = [b"1-kept-a", b"1-kept-b"]
        assert sorted(await read_all(one, TOPIC)) == expected
        await send(two, lost, b"2-lost-c")
        await kept.commit(writers=[kept.writer_id])
        expected += [b"2-kept-a", b"2-kept-b"]
        assert sorted(await read_all(one, TOPIC)) == expected
        await cluster.restart_server("broker")
        assert sorted(await read_all(one, TOPIC)) == expected


async def test_more_losers_in_one_segment_than_one_write_of_clean_up_takes(cluster: InProcessCluster) -> None:
    """▲ Their aborted records are durable before the ops of any of them go, and over a take-over in the midst of it."""
    async with cluster.connect() as client:
        await client.create_topic(TOPIC)
        async with await client.producer(TOPIC) as producer:
            shared = [await client.begin(name=NAME) for _ in range(250)]
            await asyncio.gather(*(producer.send(b"%d" % number, txn=txn) for number, txn in enumerate(shared)))
        await shared[7].commit(writers=[shared[7].writer_id, shared[200].writer_id])
        await cluster.restart_server("broker")
        assert sorted(await read_all(client, TOPIC)) == [b"200", b"7"]
        async with asking(cluster.url) as ask:
            await until_answer(
                lambda: ask.ask("store.counts"), lambda counts: not counts["ops"], "no op records", within_s=30
            )
        await cluster.restart_server("broker")
        assert sorted(await read_all(client, TOPIC)) == [b"200", b"7"]


async def test_v8_a_queue_delivers_what_counts_and_gives_back_what_losers_acked(cluster: InProcessCluster) -> None:
    async with cluster.connect() as client:
        await client.create_topic(TOPIC)
        winner, loser = await client.begin(name="job/1"), await client.begin(name="job/1")
        await send(client, winner, b"won-1", b"won-2")
        await send(client, loser, b"lost-1", b"lost-2")
        async with await client.consumer(TOPIC, "tasks", type="queue") as consumer:
            await winner.commit(writers=[winner.writer_id])
            messages = [await consumer.receive(timeout=5.0) for _ in range(2)]
            assert sorted(message.data for message in messages) == [b"won-1", b"won-2"]
            kept, lost = await client.begin(name="job/2"), await client.begin(name="job/2")
            await consumer.ack(messages[0], txn=kept)
            await consumer.ack(messages[1], txn=lost)
            await kept.commit(writers=[kept.writer_id])
            again = await consumer.receive(timeout=5.0)
            assert (again.data, again.redelivery_count) == (messages[1].data, 1)
            with pytest.raises(txnclient.Timeout):
                await consumer.receive(timeout=0.3)


async def test_v5_a_snapshot_holds_the_writers_that_counted_at_its_revision(cluster: InProcessCluster) -> None:
    async with cluster.connect() as client:
        await client.create_topic(TOPIC, segments=2)
        first, loser = await client.begin(name="job/1"), await client.begin(name="job/1")
        later, never = await client.begin(name="job/2"), await client.begin(name="job/2")
        for txn, value in ((first, b"1-won"), (loser, b"1-lost"), (later, b"2-won"), (never, b"2-lost")):
            await send(client, txn, value, value + b"!")
        await first.commit(writers=[first.writer_id])
        before = await client.snapshot([TOPIC])
        await later.commit(writers=[later.writer_id])
        after = await client.snapshot([TOPIC])

        async def shown(end: txnclient.Snapshot, start: txnclient.Snapshot | str = "earliest") -> list[bytes]:
            async with await client.reader([TOPIC], start=start, end=end) as reader:
                return sorted([message.data async for message in reader])

        assert await shown(before) == [b"1-won", b"1-won!"]
        assert await shown(after, before) == [b"2-won", b"2-won!"]
        assert await shown(after) == [b"1-won", b"1-won!", b"2-won", b"2-won!"]


async def test_the_coordinator_s_end_between_joining_and_committing_changes_nothing(cluster: InProcessCluster) -> None:
    async with cluster.connect() as one, cluster.connect() as two:
        await one.create_topic(TOPIC)
        driver, worker = await one.begin(name=NAME, timeout=300), await two.begin(name=NAME)
        await send(two, worker, b"before")
        await cluster.restart_server("control")
        later = await two.begin(name=NAME)
        assert (later.id, later.joined) == (driver.id, True)
        await send(two, later, b"after")
        result = await driver.commit(writers=[worker.writer_id, later.writer_id])
        await cluster.restart_server("control")
        assert await driver.commit(writers=[later.writer_id, worker.writer_id]) == result
        told = await two.begin(name=NAME)
        assert (told.state, told.writers, (await told.commit(writers=result.writers)).revision) == (
            TransactionState.COMMITTED,
            result.writers,
            result.revision,
        )
        assert sorted(await read_all(two, TOPIC)) == [b"after", b"before"]


async def test_one_commits_exactly_the_transaction_that_others_tell_of(cluster: InProcessCluster) -> None:
    """▲ Not whatever the name stands for by now: a fresh one, begun after theirs was aborted, would commit nothing."""
    async with cluster.connect() as worker, cluster.connect() as driver:
        await worker.create_topic(TOPIC)
        shared = await worker.begin(name=NAME)
        await send(worker, shared, b"theirs")
        told = await driver.attach(str(shared.id), name=NAME)
        await told.commit(writers=[shared.writer_id])
        assert await read_all(driver, TOPIC) == [b"theirs"]
        aborted = await worker.begin(name="job/2")
        await aborted.abort()
        fresh = await worker.begin(name="job/2")
        with pytest.raises(txnclient.InvalidTxnState, match="ABORTED"):
            await (await driver.attach(aborted.id, name="job/2")).commit(writers=[aborted.writer_id])
        assert (await driver.outcomes([fresh.id]))[fresh.id] == "OPEN"


async def told_behind_collection(client: txnclient.Client, writers: Sequence[int]) -> Transaction:
    """The name's transaction as it is told once its header is collected."""

    async def told() -> tuple[Transaction, int]:
        txn = await client.begin(name=NAME)
        return txn, (await txn.commit(writers=writers)).revision

    found = await until_answer(told, lambda one: not one[1], "a collected header", within_s=30, longest_poll_s=0.1)
    return found[0]


async def test_twenty_thousand_writers_are_listed_and_kept_and_one_more_is_refused(etcd: str, tmp_path: Path) -> None:
    """A header and a name record of 380 KB, through a real etcd and its limits; and what they show once collected."""
    writers = [number << 32 | 0xFFFF for number in range(MAX_LISTED)]
    async with (
        running_cluster(etcd, tmp_path, header_retention_s=0.5) as cluster,
        cluster.connect() as client,
    ):
        shared = await client.begin(name=NAME)
        with pytest.raises(txnclient.InvalidArgument, match="20001 runs of ids"):
            await shared.commit(writers=[*writers, 1])
        result = await shared.commit(writers=writers)
        assert len(result.writers or ()) == MAX_LISTED
        told = await told_behind_collection(client, writers)
        assert told.writers == result.writers
        with pytest.raises(txnclient.InvalidTxnState, match="another list"):
            await told.commit()


async def test_more_writers_are_listed_where_their_ids_follow_each_other(etcd: str, tmp_path: Path) -> None:
    """A Spark batch of more tasks than a record can name one by one; what each writer showed, also once collected."""
    writers = [7 << 28 | number for number in range(60_000)]
    async with (
        running_cluster(etcd, tmp_path, header_retention_s=0.5) as cluster,
        cluster.connect() as client,
    ):
        await client.create_topic(TOPIC)
        producer = await client.producer(TOPIC)
        for number, value in ((59_999, b"last"), (60_000, b"no winner")):
            txn = await client.begin(name=NAME, attempt=b"run", writer_id=7 << 28 | number)
            assert not txn.joined, "all of one attempt are one begin"
            await producer.send(value, txn=txn)
            await txn.flush()
        with pytest.raises(txnclient.InvalidArgument, match="200001 writers"):
            await txn.commit(writers=range(1, 200_002))
        result = await txn.commit(writers=writers)
        assert result.writers == tuple(writers)
        assert await read_all(client, TOPIC) == [b"last"]
        told = await told_behind_collection(client, writers)
        assert told.writers == result.writers


async def test_the_example_runs_and_a_second_run_of_the_job_writes_nothing(cluster: InProcessCluster) -> None:
    """A driver and worker processes: one part is written twice at once, one fails halfway and is tried again."""
    said = await run_example(cluster.url, "night-1")
    assert "4 writers count" in said
    assert "400 lines of 4 parts are visible" in said
    assert "nothing to do" in await run_example(cluster.url, "night-1")
    async with cluster.connect() as client:
        assert len(await read_all(client, "topic://public/default/named-transaction")) == 400


async def test_what_the_docs_show_of_named_transactions_is_so(cluster: InProcessCluster) -> None:
    """The snippet of docs/client.md."""
    text = (EXAMPLE.parent.parent / "docs" / "client.md").read_text()
    (snippet,) = re.findall(r"```python\n(shared = .*?)```", text, re.DOTALL)
    body = "\n".join(f"    {line}" for line in snippet.splitlines())
    names: dict[str, Any] = {}
    exec(f"async def shown(client, producer):\n{body}", names)
    async with cluster.connect() as client:
        await client.create_topic(TOPIC)
        async with await client.producer(TOPIC) as producer:
            await names["shown"](client, producer)
        assert await read_all(client, TOPIC) == [b"part 1"]


async def run_example(url: str, job: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), "--url", url, "--job", job, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return said.decode()
