"""`produce` and `consume` in pipes: any bytes, counts that are not reached, and Ctrl-C."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.cluster import InProcessCluster
from tests.processes import read_all
from tests.txnclient.lossy_transport import LossyTransport
from tests.txnctl.command_line import done, start, txnctl
from tests.waiting import until_answer, until_turn
from txnctl.commands.piping import _send, _Sent
from txnctl.commands.shared.lines import Input, PipedMessage
from txnwire.clock import SystemClock
from txnwire.transport.grpc_transport import GrpcTransport

TOPIC = "topic://public/default/orders"


async def test_any_bytes_come_out_as_they_went_in(cluster: InProcessCluster) -> None:
    """NUL-ended messages with newlines, carriage returns and no UTF-8 in them; and again through JSON."""
    await done("topics", "create", TOPIC, url=cluster.url)
    other = TOPIC + "-copied"
    await done("topics", "create", other, url=cluster.url)
    messages = [b"two\nlines\r\n", b"\xff\xfe", b"", b"tail\r"]
    process = await start("produce", TOPIC, "-0", url=cluster.url)
    await process.communicate(b"\0".join(messages) + b"\0")
    assert process.returncode == 0
    process = await start("consume", TOPIC, "-s", "raw", "--count", "4", "--null", url=cluster.url)
    out, _ = await process.communicate()
    assert out.split(b"\0")[:-1] == messages
    rows = await done("consume", TOPIC, "-s", "rows", "--count", "4", "-o", "json", url=cluster.url)
    sent = await done("produce", other, "-i", "json", "--txn", "3", "-o", "json", url=cluster.url, stdin=rows.out)
    assert sent.json == {"topic": other, "messages": 4, "transactions": 2}
    process = await start("consume", other, "-s", "raw", "--count", "4", "--null", url=cluster.url)
    out, _ = await process.communicate()
    assert out.split(b"\0")[:-1] == messages


async def test_queue_and_uncommitted_are_read_too(cluster: InProcessCluster) -> None:
    async with cluster.connect() as client:
        await client.create_topic(TOPIC)
        async with await client.producer(TOPIC) as producer:
            txn = await client.begin()
            await producer.send(b"open", txn=txn)
            await producer.send(b"plain")
            queue, dirty = await asyncio.gather(
                done(
                    "consume", TOPIC, "-s", "q", "--type", "queue", "--count", "1", "--timeout", "20", url=cluster.url
                ),
                done(
                    *("consume", TOPIC, "-s", "d", "--isolation", "read_uncommitted", "--count", "2"), url=cluster.url
                ),
            )
            await txn.abort()
    assert queue.out == "plain\n"
    assert dirty.out == "open\nplain\n"


async def test_v8_a_queue_shows_what_it_sets_aside_and_is_not_said_to_wait(cluster: InProcessCluster) -> None:
    async with cluster.connect() as client:
        await client.create_topic(TOPIC)
        async with (
            await client.producer(TOPIC) as producer,
            await client.consumer(TOPIC, "jobs", type="queue") as queue,
            await client.consumer(TOPIC, "ledger"),
        ):
            txn = await client.begin()
            await producer.send(b"open", txn=txn)
            await producer.send(b"plain")
            assert (await queue.receive(timeout=20)).value == b"plain"
            listed, hanging, described, table = await asyncio.gather(
                done("subscriptions", "list", TOPIC, "-o", "json", url=cluster.url),
                done("transactions", "hanging", "--older-than", "0", "-o", "json", url=cluster.url),
                done("subscriptions", "describe", TOPIC, "jobs", "-o", "json", url=cluster.url),
                done("subscriptions", "describe", TOPIC, "jobs", url=cluster.url),
            )
            await txn.abort()
    assert [(row["subscription"], row["type"], len(row["consumers"])) for row in listed.json] == [
        ("jobs", "queue", 1),
        ("ledger", "stream", 1),
    ]
    assert [row["waiting"] for row in hanging.json] == [["ledger"]]
    (row,) = described.json["segments"]
    assert (row["unacked"], row["set_aside"], row["delayed"], len(row["consumers"])) == (1, 1, 0, 1)
    _, header, values = table.out.splitlines()
    assert header.split() == [
        *("segment", "consumers", "mark_delete", "lag_messages", "lag_seconds", "backlog", "unacked", "set_aside"),
        *("delayed", "pending_acks"),
        "pending_in",
    ]
    assert values.split()[1] == "1"


async def test_a_count_that_is_not_reached_in_time_is_told(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, url=cluster.url)
    await done("produce", TOPIC, url=cluster.url, stdin="one\n")
    short = await txnctl("consume", TOPIC, "-s", "s", "--count", "2", "--timeout", "1", url=cluster.url)
    assert (short.code, short.out) == (1, "one\n")
    assert "1 of 2 messages came within 1 s" in short.err
    over = await done("consume", TOPIC, "-s", "s", "--timeout", "0.3", url=cluster.url)
    assert over.out == ""


async def test_ctrl_c_ends_consume_with_what_it_printed_acked(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, url=cluster.url)
    await done("produce", TOPIC, url=cluster.url, stdin="one\n")
    process = await start("consume", TOPIC, "-s", "s", url=cluster.url)
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 20) == b"one\n"
    async with cluster.connect() as client:  # printed is not acked yet
        await until_answer(
            lambda: client.admin("subscriptions.describe", topic=TOPIC, subscription="s"),
            lambda answer: not answer["segments"][0]["backlog"],
            "the ack",
            within_s=20,
        )
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, err) == (130, b"")


async def test_ctrl_c_ends_produce_and_says_how_far_it_came(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, url=cluster.url)
    process = await start("produce", TOPIC, "--txn", "2", url=cluster.url)
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\nthree\n")
    await done("consume", TOPIC, "-s", "s", "--count", "2", "--timeout", "20", url=cluster.url)
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, out, err) == (130, b"", f"2 messages sent to {TOPIC}\n".encode())


async def test_ctrl_c_counts_the_transaction_whose_commit_is_on_its_way(cluster: InProcessCluster) -> None:
    """▲ Who goes on from the count that is told would send it again."""
    transport = LossyTransport(GrpcTransport(SystemClock()))
    async with cluster.connect(transport=transport) as client:
        await client.create_topic(TOPIC)
        async with client.producer(TOPIC) as producer:
            sent = _Sent(TOPIC, 2, Input.LINES, None)
            messages = [PipedMessage(None, b"one"), PipedMessage(None, b"two")]
            transport.lose["end_txn_ok"] = 1
            sending = asyncio.create_task(_send(client, producer, sent, messages, timeout_s=60.0))
            await until_turn(lambda: not transport.lose["end_txn_ok"], "the answer to be lost")
            assert (sending.done(), sent.messages) == (False, 0)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert (sent.messages, sent.transactions) == (2, 1)
        assert await read_all(client, TOPIC) == [b"one", b"two"]
