"""Commands that change or count things, and pipes: seek, delete, update, brokers, statistics, errors as JSON."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from tests.cluster import InProcessCluster
from tests.processes import read_all
from tests.txnclient.lossy_transport import LossyTransport
from tests.txnctl.command_line import done, start, txnctl
from txnctl.commands.piping import _send, _Sent
from txnctl.commands.shared.asking import start_of
from txnctl.commands.shared.lines import Input, PipedMessage
from txnctl.main import wants_json
from txnwire.clock import SystemClock
from txnwire.errors import InvalidArgument
from txnwire.ids import MessageId, Position
from txnwire.transport.grpc_transport import GrpcTransport

TOPIC = "topic://public/default/orders"


async def test_a_subscription_is_sought_back_and_deleted(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, url=cluster.url)
    await done("produce", TOPIC, url=cluster.url, stdin="a\nb\nc\n")
    read = ["consume", TOPIC, "-s", "billing"]
    first = await done(*read, "--count", "3", "-o", "json", url=cluster.url)
    assert (await done(*read, "--idle", "0.5", url=cluster.url)).out == ""
    sought = await done("subscriptions", "seek", TOPIC, "billing", "earliest", "-o", "json", url=cluster.url)
    assert sought.json == {"topic": TOPIC, "subscription": "billing", "start": "earliest"}
    assert (await done(*read, "--count", "3", url=cluster.url)).out == "a\nb\nc\n"
    second = msgspec.json.decode(first.out.splitlines()[1])["id"]
    said = await done("subscriptions", "seek", TOPIC, "billing", second, url=cluster.url)
    assert said.out == f"billing on {TOPIC}: goes on at {second}\n"
    assert (await done(*read, "--count", "2", url=cluster.url)).out == "b\nc\n"
    gone = await done("subscriptions", "delete", TOPIC, "billing", "-o", "json", url=cluster.url)
    assert gone.json == {"topic": TOPIC, "subscription": "billing", "deleted": True}
    listed, again, unknown = await asyncio.gather(
        done("subscriptions", "list", TOPIC, "-o", "json", url=cluster.url),
        txnctl("subscriptions", "delete", TOPIC, "billing", url=cluster.url),
        txnctl("subscriptions", "seek", TOPIC, "billing", "latest", url=cluster.url),
    )
    assert listed.json == []
    for refused in (again, unknown):
        assert (refused.code, "SubscriptionNotFound" in refused.err) == (1, True), refused


async def test_segments_are_split_and_merged(cluster: InProcessCluster) -> None:
    policy = {"max_segments": 4, "split_messages_per_s": 5000}
    await done(*("topics", "create", TOPIC, "--autoscale", "max_segments=4,split_messages_per_s=5000"), url=cluster.url)
    path = TOPIC.removeprefix("topic://")
    split = await done(
        "topics", "split", f"segment://{path}/0000-ffff-0", "--at", "9000", "-o", "json", url=cluster.url
    )
    assert split.json == {
        "topic": TOPIC,
        "epoch": 2,
        "parents": [f"{path}/0000-ffff-0"],
        "children": [f"{path}/0000-8fff-1", f"{path}/9000-ffff-2"],
    }
    merged = await done("topics", "merge", f"{path}/0000-8fff-1", f"{path}/9000-ffff-2", url=cluster.url)
    assert merged.out.endswith("merged into 0000-ffff-3, layout epoch 3\n")
    described, sealed, bad, none = await asyncio.gather(
        done("topics", "describe", TOPIC, "-o", "json", url=cluster.url),
        txnctl("topics", "split", f"{path}/9000-ffff-2", url=cluster.url),
        txnctl("topics", "split", f"{path}/0000-ffff-3", "--at", "middle", url=cluster.url),
        txnctl("topics", "split", TOPIC, url=cluster.url),
    )
    assert described.json["policies"] == {"autoscale": policy}
    assert [(one["id"], one["state"], one["parents"]) for one in described.json["segments"]] == [
        (0, "SEALED", []),
        (1, "SEALED", [0]),
        (3, "ACTIVE", [1, 2]),
        (2, "SEALED", [0]),
    ]
    assert (sealed.code, "it is SEALED, not ACTIVE" in sealed.err) == (2, True), sealed
    assert (bad.code, "expected a hash in hex digits" in bad.err) == (2, True), bad
    assert (none.code, f"segment '{TOPIC}': expected tenant/" in none.err) == (2, True), none


async def test_a_topic_gets_policies_and_is_deleted(cluster: InProcessCluster) -> None:
    created = await done(
        *("topics", "create", TOPIC, "--retention-ms", "60000", "--segments", "2", "-o", "json"), url=cluster.url
    )
    assert created.json == {"topic": TOPIC, "segments": 2, "epoch": 1}
    await done("topics", "update", TOPIC, "--retention-bytes", "1000000", "--drop", "retention_ms", url=cluster.url)
    described = await done("topics", "describe", TOPIC, "-o", "json", url=cluster.url)
    assert described.json["policies"] == {"retention_bytes": 1_000_000}
    for autoscale in ("max_segments=8,split_messages_per_s=5000", "off"):
        told = await done("topics", "update", TOPIC, "--autoscale", autoscale, url=cluster.url)
        assert told.out == f"{TOPIC}: autoscale {autoscale}\n"
    told = await done("topics", "update", TOPIC, "--drop", "autoscale", url=cluster.url)
    assert told.out == f"{TOPIC}: autoscale dropped\n"
    drawn, unknown, nothing = await asyncio.gather(
        done("topics", "describe", TOPIC, url=cluster.url),
        txnctl("topics", "update", TOPIC, "--drop", "colour", url=cluster.url),
        txnctl("topics", "update", TOPIC, url=cluster.url),
    )
    assert "retention_bytes 1,000,000" in drawn.out
    assert (unknown.code, "expected one of retention_ms" in unknown.err) == (2, True)
    assert (nothing.code, "no policy to change" in nothing.err) == (2, True)
    async with cluster.connect() as client, await client.consumer(TOPIC, "sub"):
        refused = await txnctl("topics", "delete", TOPIC, url=cluster.url)
        assert (refused.code, "NotAllowed" in refused.err) == (1, True)
        forced = await done("topics", "delete", TOPIC, "--force", url=cluster.url)
    assert forced.out == f"{TOPIC}: deleted\n"
    assert (await done("topics", "list", "-o", "json", url=cluster.url)).json == []


async def test_brokers_and_transactions_are_counted(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, "--segments", "2", url=cluster.url)
    await done("produce", TOPIC, "--txn", "2", url=cluster.url, stdin="a\nb\nc\n")
    async with cluster.connect() as client:
        txn = await client.begin()
        brokers, stats, table, plain = await asyncio.gather(
            done("brokers", "list", "-o", "json", url=cluster.url),
            done("transactions", "stats", "-o", "json", url=cluster.url),
            done("transactions", "stats", url=cluster.url),
            done("brokers", "list", url=cluster.url),
        )
        await txn.abort()
    (broker,) = brokers.json
    assert (broker["broker"], broker["segments"], broker["failed"], broker["not_ready"]) == ("broker", 2, [], None)
    assert broker["connections"] >= 1
    (one,) = stats.json["coordinators"]
    assert (one["coordinator"], one["active"], one["created"], one["committed"]) == ("control", 1, 3, 2)
    assert 0 < one["commit_p50_ms"] <= one["commit_p99_ms"]
    assert stats.json["total"]["committed"] == 2
    assert stats.json["headers"] >= 1
    assert re.search(r"^total +1 +", table.out, re.MULTILINE)
    header, row = plain.out.splitlines()
    assert header.split()[:4] == ["broker", "pid", "address", "segments"]
    assert row.split()[:2] == ["broker", str(os.getpid())]


async def test_a_coordinator_that_does_not_answer_is_named_in_its_row(cluster: InProcessCluster) -> None:
    await cluster.stop_server("broker")
    stats = await done("transactions", "stats", "-o", "json", url=cluster.url)
    assert [row["coordinator"] for row in stats.json["coordinators"]] == ["control"]
    assert (await done("brokers", "list", "-o", "json", url=cluster.url)).json == []


# ---- pipes ----------------------------------------------------------------------------------------------------------


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
        async with asyncio.timeout(20):
            while (await client.admin("subscriptions.describe", topic=TOPIC, subscription="s"))["segments"][0][
                "backlog"
            ]:
                await asyncio.sleep(0.05)
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
            async with asyncio.timeout(20):
                while transport.lose["end_txn_ok"]:
                    await asyncio.sleep(0)
            assert (sending.done(), sent.messages) == (False, 0)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert (sent.messages, sent.transactions) == (2, 1)
        assert await read_all(client, TOPIC) == [b"one", b"two"]


# ---- what is seen ---------------------------------------------------------------------------------------------------


async def test_errors_are_json_for_who_asked_for_json(cluster: InProcessCluster) -> None:
    answers = await asyncio.gather(
        txnctl("topics", "describe", "topic://a/b/none", "-o", "json", url=cluster.url),
        txnctl("topics", "describe", "nonsense", "--output=json", url=cluster.url),
        txnctl("topics", "describe", "--output", "json", url=cluster.url),
        txnctl("nosuch", "-o", "json"),
    )
    told = [msgspec.json.decode(answer.err) for answer in answers]
    assert [answer.code for answer in answers] == [1, 2, 2, 2] == [one["exit_code"] for one in told]
    assert [one["error"] for one in told] == ["TopicNotFound", "InvalidArgument", "Usage", "Usage"]
    assert not any(answer.out for answer in answers)
    assert "does not exist" in told[0]["message"]
    assert told[0]["retriable"] is False


@pytest.mark.parametrize(
    ("words", "json"),
    [
        (["topics", "list", "-o", "json"], True),
        (["topics", "list", "-ojson"], True),
        (["topics", "list", "--output=json"], True),
        (["topics", "list", "-o", "table"], False),
        (["produce", "json"], False),
        (["topics", "list", "-o"], False),
        ([], False),
    ],
)
def test_json_is_told_from_the_words(words: list[str], json: bool) -> None:
    assert wants_json(words) is json


async def test_without_a_command_it_tells_its_commands() -> None:
    told = await txnctl()
    assert "transactions" in told.out + told.err


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("txnctl tr", "transactions"),
        ("txnctl transactions ha", "hanging"),
        ("txnctl consume --isolation read_u", "read_uncommitted"),
    ],
)
def test_the_shell_completes_commands_and_choices(line: str, offered: str) -> None:
    environment = os.environ | {
        "_TXNCTL_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    completed = subprocess.run(
        [Path(sys.executable).parent / "txnctl"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert completed.stdout.split() == [offered]


def test_starts_are_read_as_people_type_them() -> None:
    assert start_of("earliest") == "earliest"
    assert start_of("1700000000000") == 1_700_000_000_000
    assert start_of("a/b/c/0000-ffff-0@7:42:0") == MessageId("a/b/c/0000-ffff-0", Position(7, 42), 0)
    time = start_of("2026-11-20T21:00:00Z")
    assert not isinstance(time, str | int | MessageId)
    assert time.isoformat() == "2026-11-20T21:00:00+00:00"
    assert start_of("2026-11-20T21:00") == datetime(2026, 11, 20, 21).astimezone()
    with pytest.raises(InvalidArgument, match="expected 'earliest', 'latest', milliseconds"):
        start_of("yesterday")


def on_a_terminal(*words: str, columns: int, answer: str = "") -> tuple[int, str]:
    """Run at a pseudo-terminal so many columns wide; exit code and everything shown."""
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("TXN_")}
    environment |= {"COLUMNS": str(columns), "TERM": "xterm-256color", "PYTHONPATH": os.getcwd()}
    process = subprocess.Popen(
        [sys.executable, "-m", "txnctl", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    os.write(ours, answer.encode())
    shown = b""
    try:
        while data := os.read(ours, 4096):
            shown += data
    except OSError:
        pass  # the terminal is gone once the program has ended
    os.close(ours)
    return process.wait(timeout=20), shown.decode()


async def test_colour_and_width_are_for_terminals_alone(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, url=cluster.url)
    words = ("topics", "stats", TOPIC, "--url", cluster.url)
    code, shown = await asyncio.to_thread(on_a_terminal, *words, columns=100)
    assert code == 0
    assert "\x1b[1m" in shown
    plain = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line).rstrip() for line in shown.splitlines()]
    assert max(map(len, plain)) <= 100
    piped = await done(*words[:3], url=cluster.url)
    assert "\x1b" not in piped.out
    assert not re.search(r"[─-╿]", piped.out)
    topic, header, row = piped.out.splitlines()
    assert topic == TOPIC
    assert header.split()[:3] == ["segment", "state", "owner"]
    assert len(header.split()) == len(row.split())


async def test_a_narrow_terminal_gets_blocks_instead_of_a_table_with_columns_cut_off(
    cluster: InProcessCluster,
) -> None:
    await done("topics", "create", TOPIC, url=cluster.url)
    _, shown = await asyncio.to_thread(
        lambda: on_a_terminal("topics", "stats", TOPIC, "--url", cluster.url, columns=60)
    )
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).splitlines()
    assert plain[0] == TOPIC
    assert [line.split()[0] for line in plain[1:]] == [
        *("segment", "state", "owner", "entries", "confirmed", "readable", "open", "producers", "readers"),
        *("read", "to"),
    ]


async def test_at_a_terminal_nothing_is_deleted_without_being_asked(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, url=cluster.url)
    words = ("topics", "delete", TOPIC, "--url", cluster.url)
    code, shown = await asyncio.to_thread(on_a_terminal, *words, columns=100, answer="n\n")
    assert code == 1
    assert f"Delete {TOPIC} with all its messages" in shown
    assert (await done("topics", "list", "-o", "json", url=cluster.url)).json == [{"topic": TOPIC}]
    code, _ = await asyncio.to_thread(on_a_terminal, *words, columns=100, answer="y\n")
    assert code == 0
    assert (await done("topics", "list", "-o", "json", url=cluster.url)).json == []
