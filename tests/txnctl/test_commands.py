"""Every command against a cluster: what it shows, in tables and JSON, and how it refuses (API.md, "Command line")."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

import txnclient
from tests.cluster import InProcessCluster, running_cluster
from tests.txnctl.command_line import Done, done, txnctl

TOPIC = "topic://public/default/orders"
UNKNOWN = "0001-0000000000ffff00"


@pytest.fixture
async def producer(cluster: InProcessCluster, client: txnclient.Client) -> AsyncIterator[txnclient.Producer]:
    await client.create_topic(TOPIC, segments=2)
    async with await client.producer(TOPIC) as opened:
        yield opened


def lines_with(text: str, part: str) -> list[str]:
    return [line for line in text.splitlines() if part in line]


async def test_topics_are_created_listed_described_and_counted(cluster: InProcessCluster) -> None:
    created = await done("topics", "create", TOPIC, "--segments", "3", url=cluster.url)
    assert "3 segments, layout epoch 1" in created.out
    await done("produce", TOPIC, url=cluster.url, stdin="a\nb\nc\n")
    again, listed, drawn, described, counted, table = await asyncio.gather(
        done("topics", "create", TOPIC, "--segments", "3", url=cluster.url),
        done("topics", "list", "-o", "json", url=cluster.url),
        done("topics", "describe", TOPIC, url=cluster.url),
        done("topics", "describe", TOPIC, "-o", "json", url=cluster.url),
        done("topics", "stats", TOPIC, "-o", "json", url=cluster.url),
        done("topics", "stats", TOPIC, url=cluster.url),
    )
    assert again.out == created.out
    assert listed.json == [{"topic": TOPIC}]
    assert len(drawn.out.splitlines()) == 3 + 3  # a line a segment, however long
    assert len(lines_with(drawn.out, "active  broker")) == 3
    segments = described.json["segments"]
    assert (segments[0]["lo"], segments[-1]["hi"]) == (0, 0xFFFF)
    assert {segment["state"] for segment in segments} == {"ACTIVE"}
    assert sum(row["entries"] for row in counted.json["segments"]) >= 1
    assert all(segment["descriptor"] in table.out for segment in segments)


async def test_subscriptions_show_what_is_pending(cluster: InProcessCluster, producer: txnclient.Producer) -> None:
    await producer.send_many([(f"k{n}", b"v") for n in range(20)])
    async with cluster.connect() as other, await other.consumer(TOPIC, "billing", name="worker-1") as consumer:
        messages = await consumer.receive_many(20, timeout=5.0)
        txn = await other.begin()
        await consumer.ack(messages[:1], txn=txn)
        listed, described, table = await asyncio.gather(
            done("subscriptions", "list", TOPIC, "-o", "json", url=cluster.url),
            done("subscriptions", "describe", TOPIC, "billing", "-o", "json", url=cluster.url),
            done("subscriptions", "describe", TOPIC, "billing", url=cluster.url),
        )
        await txn.abort()
    (row,) = listed.json
    assert (row["subscription"], row["type"], row["start"]) == ("billing", "stream", "earliest")
    assert row["consumers"][0].startswith("worker-1@")
    segments = described.json["segments"]
    assert {row["assigned_to"].partition("@")[0] for row in segments} == {"worker-1"}
    assert sum(row["pending_acks"] for row in segments) == 1
    assert [txns for row in segments if (txns := row["pending_in"])] == [[str(txn.id)]]
    assert sum(row["backlog"] for row in segments) >= 1
    assert str(txn.id) in table.out


async def test_named_transactions_are_described_by_name_also_when_collected(etcd: str, tmp_path: Path) -> None:
    async with (
        running_cluster(etcd, tmp_path, header_retention_s=0.5) as cluster,
        cluster.connect() as client,
        client.producer((await client.create_topic(TOPIC)).topic) as producer,
    ):
        shared = await client.begin(name="job-7/42", keep=timedelta(days=7), keep_newest=True)
        await client.begin(name="job-7/42", keep=timedelta(days=1))  # joins: the first one's counts
        await producer.send(b"x", txn=shared)
        by_name = await done("transactions", "describe", "--name", "job-7/42", url=cluster.url)
        assert f"{shared.id}: OPEN" in by_name.out
        assert "name job-7/42" in by_name.out
        assert f"{shared.writer_id:016x}" in by_name.out
        await shared.commit(writers=[shared.writer_id], note="rows=3")
        async with asyncio.timeout(30):
            while (
                "collected"
                not in (told := await done("transactions", "describe", "--name", "job-7/42", url=cluster.url)).out
            ):
                assert "1 writers count" in told.out
                assert "note rows=3" in told.out
        assert f"1 writers count: {shared.writer_id:016x}" in told.out
        json = await done("transactions", "describe", "--name", "job-7/42", "-o", "json", url=cluster.url)
        assert (json.json["txn"], json.json["outcome"]) == (str(shared.id), "COMMITTED")
        assert (json.json["writers"], json.json["note"]) == ([f"{shared.writer_id:016x}"], "rows=3")
        assert (json.json["keep_ms"], json.json["keep_newest"]) == (7 * 86_400_000, True)
        assert "known for 7 days, 0:00:00 after its end, and for ever while it is the newest" in told.out
        unknown = await txnctl("transactions", "describe", "--name", "job-8/1", url=cluster.url)
        assert (unknown.code, "never begun" in unknown.err) == (1, True)
        for words in ([], [str(shared.id), "--name", "job-7/42"]):
            assert (await txnctl("transactions", "describe", *words, url=cluster.url)).code == 2


async def test_transactions_are_listed_and_described(cluster: InProcessCluster, producer: txnclient.Producer) -> None:
    async with cluster.connect() as other:
        txn = await other.begin(timeout=50.0)
        (await producer.send(b"plain"), await (await other.producer(TOPIC)).send(b"x", key="k", txn=txn))
        listed, none, described, table = await asyncio.gather(
            done("transactions", "list", "--state", "open", "-o", "json", url=cluster.url),
            done("transactions", "list", "--state", "COMMITTED", url=cluster.url),
            done("transactions", "describe", str(txn.id), "-o", "json", url=cluster.url),
            done("transactions", "describe", str(txn.id), url=cluster.url),
        )
        segment = described.json["operations"][0]["segment"]
        in_segment = await done(
            "transactions", "list", "--segment", f"segment://{segment}", "-o", "json", url=cluster.url
        )
        await txn.commit()
        await (await other.begin()).abort()
        cut = await done("transactions", "list", "--limit", "1", url=cluster.url)
    assert len(cut.out.splitlines()) == 2
    assert "the first 1 only: --limit shows more" in cut.err
    (row,) = listed.json
    assert (row["txn"], row["state"], row["owner"]) == (str(txn.id), "OPEN", "anonymous")
    assert 0 < row["timeout_in_s"] <= 50
    assert none.out == ""
    assert "no such transactions" in none.err
    assert [row["txn"] for row in in_segment.json] == [str(txn.id)]
    (op,) = described.json["operations"]
    assert (op["kind"], op["messages"]) == ("write", 1)
    assert described.json["outcome"] == "OPEN"
    assert f"{txn.id}: OPEN" in table.out
    assert "owner anonymous, begun" in table.out
    after = await done("transactions", "describe", str(txn.id), url=cluster.url)
    assert f"{txn.id}: COMMITTED" in after.out
    refused = await txnctl("transactions", "abort", str(txn.id), url=cluster.url)
    assert (refused.code, "COMMITTED already" in refused.err) == (1, True)


async def test_e6_hanging_names_the_oldest_open_transaction_and_a_forced_abort_frees_the_readers(
    cluster: InProcessCluster, producer: txnclient.Producer
) -> None:
    """What it holds back, where, how many entries behind, for whom, and whose it is; then the next one in line."""
    async with cluster.connect() as other, await other.consumer(TOPIC, "billing") as consumer:
        writer = await other.producer(TOPIC)
        oldest, younger = await other.begin(timeout=60.0), await other.begin(timeout=60.0)
        await writer.send(b"of the oldest", key="k", txn=oldest)
        await writer.send(b"of the younger", key="k", txn=younger)
        for number in range(3):
            await producer.send(b"plain %d" % number, key="k")
        assert await consumer.receive_many(10, timeout=0.2) == []
        found = await hanging(cluster, 2)
        first, second = found.json
        assert (first["txn"], first["owner"], first["state"]) == (str(oldest.id), "anonymous", "OPEN")
        assert (first["why"], first["waiting"]) == ("holds readers back", ["billing"])
        assert first["entries_behind"] == 4
        assert first["held_at"].count(":") == 1
        assert first["age_s"] >= 0
        assert (second["txn"], second["entries_behind"]) == (str(younger.id), 3)
        assert str(oldest.id) in second["why"]
        table, drawn = await asyncio.gather(
            done("transactions", "hanging", "--older-than", "0", url=cluster.url),
            done("topics", "describe", TOPIC, url=cluster.url),
        )
        for part in (str(oldest.id), first["segment"], first["held_at"], "billing", "anonymous"):
            assert part in lines_with(table.out, str(oldest.id))[0]
        assert lines_with(drawn.out, f"held at {first['held_at']} by {oldest.id} of anonymous, 4 entries behind it")

        aborted = await done("transactions", "abort", str(oldest.id), url=cluster.url)
        assert aborted.out == f"{oldest.id}: ABORTED\n"
        assert (await hanging(cluster, 1)).json[0]["why"] == "holds readers back"
        await younger.commit()
        got = await consumer.receive_many(4, timeout=10.0)
        while len(got) < 4:
            got += await consumer.receive_many(4 - len(got), timeout=10.0)
        assert [m.value for m in got] == [b"of the younger", b"plain 0", b"plain 1", b"plain 2"]
        with pytest.raises(txnclient.InvalidTxnState):
            await oldest.commit()
    assert "nothing hangs" in (await hanging(cluster, 0)).err
    usual = await done("transactions", "hanging", url=cluster.url)
    assert usual.err == "nothing hangs that was begun more than 5 s ago (--older-than)\n"


async def hanging(cluster: InProcessCluster, rows: int) -> Done:
    """Once so many transactions are said to hang: the broker follows decisions, and cleans up, a moment later."""
    async with asyncio.timeout(30):
        while True:
            found = await done("transactions", "hanging", "--older-than", "0", "-o", "json", url=cluster.url)
            if len(found.json) == rows:
                return found if rows else await done("transactions", "hanging", "--older-than", "0", url=cluster.url)


async def test_lines_go_through_a_pipe_in_transactions_and_by_key(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, "--segments", "2", url=cluster.url)
    lines = "".join(f'{{"customer": "c{n % 5}", "n": {n}}}\n' for n in range(250))
    sent = await done("produce", TOPIC, "--txn", "100", "--key-field", "customer", url=cluster.url, stdin=lines)
    assert f"250 messages sent to {TOPIC}" in sent.err
    values, rows = await asyncio.gather(
        done("consume", TOPIC, "-s", "plain", "--count", "250", url=cluster.url),
        done("consume", TOPIC, "-s", "whole", "--count", "250", "-o", "json", url=cluster.url),
    )
    assert sorted(values.out.splitlines()) == sorted(lines.splitlines())
    messages = [msgspec.json.decode(line) for line in rows.out.splitlines()]
    assert len({message["txn_id"] for message in messages}) == 3
    for key in {message["key"] for message in messages}:
        numbers = [msgspec.json.decode(m["value"])["n"] for m in messages if m["key"] == key]
        assert numbers == list(range(int(key[1:]), 250, 5))
    empty = await done("consume", TOPIC, "-s", "plain", "--idle", "0.2", url=cluster.url)
    assert empty.out == ""  # what was printed was acked


async def test_a_line_without_its_key_stops_produce_and_says_how_far_it_came(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, url=cluster.url)
    words = ["produce", TOPIC, "--txn", "2", "--key-field", "k"]
    good = '{"k": 1}\n{"k": 2}\n{"k": 3}\n'
    stopped = await asyncio.gather(
        *(txnctl(*words, url=cluster.url, stdin=f"{good}{bad}\n") for bad in ("not json", "[1]", '{"other": 1}'))
    )
    for one in stopped:
        assert one.code == 2
        assert "2 messages sent" in one.err
        assert "txnctl: line 4: " in one.err


async def test_consume_ends_quietly_when_its_reader_has_gone(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, url=cluster.url)
    await done("produce", TOPIC, url=cluster.url, stdin="".join(f"{n}\n" for n in range(20_000)))
    command = f"{sys.executable} -m txnctl consume {TOPIC} -s head --idle 5 --url {cluster.url} | head -1"
    process = await asyncio.create_subprocess_shell(
        command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert (out, err) == (b"0\n", b"")


def documented(command: str) -> list[set[str]]:
    """The field lists of a command's row in docs/commands.md, in their order, then all that it names."""
    text = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    (row,) = (line for line in text.splitlines() if line.startswith(f"| `{command}"))
    quoted = [set(fields.strip("{}").split(", ")) for fields in re.findall(r"`([^`]*)`", row.split("|")[2])]
    return [*(fields for fields in quoted if len(fields) > 1), {"v", *(name for fields in quoted for name in fields)}]


async def test_what_is_documented_is_there(cluster: InProcessCluster, producer: txnclient.Producer) -> None:
    async with cluster.connect() as other, await other.consumer(TOPIC, "billing"):
        txn = await other.begin()
        await (await other.producer(TOPIC)).send(b"x", key="k", txn=txn)
        commands = {
            "topics describe": [TOPIC],
            "topics stats": [TOPIC],
            "subscriptions list": [TOPIC],
            "subscriptions describe": [TOPIC, "billing"],
            "transactions list": [],
            "transactions describe": [str(txn.id)],
            "transactions hanging": ["--older-than", "0"],
            "transactions stats": [],
            "brokers list": [],
            "snapshot": [TOPIC],
        }
        words = [[*command.split(), *more, "-o", "json"] for command, more in commands.items()]
        answers = await asyncio.gather(*(done(*one, url=cluster.url) for one in words))
        await txn.abort()
    for command, answer in zip(commands, answers, strict=True):
        (whole, *parts, named) = documented(command)
        shown = answer.json[0] if isinstance(answer.json, list) else answer.json
        assert whole <= set(shown) <= named, f"{command}: not told of {set(shown) - named}"
        for rows in (shown.get("segments"), shown.get("coordinators")):
            if isinstance(rows, list):
                assert parts[0] <= set(rows[0]) <= named, f"{command}: not told of {set(rows[0]) - named}"
    held = next(segment["pinned_by"] for segment in answers[0].json["segments"] if segment["pinned_by"])
    assert set(held[0]) == documented("topics describe")[2]


REFUSED = [
    (["topics", "create", "orders"], 2, "expected topic://tenant/namespace/name"),
    (["topics", "create", "topic://a/b/bad name"], 2, "'bad name' is not a legal name"),
    (["topics", "create", TOPIC, "--segments", "5"], 1, "exists with another shape"),
    (["topics", "describe", "topic://a/b/none"], 1, "txnctl topics list"),
    (["topics", "stats", "topic://a/b/none"], 1, "txnctl topics list"),
    (["topics", "list", TOPIC], 2, "expected nothing, tenant/ or tenant/namespace/"),
    (["subscriptions", "list", "topic://a/b/none"], 1, "does not exist"),
    (["subscriptions", "describe", TOPIC, "none"], 1, "txnctl subscriptions list"),
    (["snapshot", TOPIC, "topic://a/b/none"], 1, "does not exist"),
    (["snapshot"], 2, "TOPIC"),
    (["transactions", "describe", "nonsense"], 2, "lower-case hex digits"),
    (["transactions", "describe", UNKNOWN], 1, "nothing is known of transaction"),
    (["transactions", "abort", UNKNOWN], 1, "never given out"),
    (["transactions", "abort", "nonsense"], 2, "lower-case hex digits"),
    (["transactions", "list", "--state", "WRONG"], 2, "expected one of OPEN, COMMITTED, ABORTED"),
    (["transactions", "list", "--segment", "nonsense"], 2, "expected segment://"),
    (["transactions", "list", "--segment", "segment://a/b/none/0000-ffff-0"], 1, "does not exist"),
    (["transactions", "list", "--segment", f"segment://{TOPIC[8:]}/1234-ffff-77"], 1, "NameNotFound: segment://"),
    (["topics", "split", f"{TOPIC[8:]}/1234-ffff-77"], 1, "has no segment 1234-ffff-77"),
    (["topics", "merge", f"{TOPIC[8:]}/1234-ffff-77", f"{TOPIC[8:]}/0000-1233-76"], 1, "has no segment 1234-ffff-77"),
    (["topics", "split", "a/b/none/0000-ffff-0"], 1, "does not exist"),
    (["topics", "update", "topic://a/b/none", "--retention-ms", "60000"], 1, "does not exist"),
    (["topics", "delete", "topic://a/b/none", "--yes"], 1, "does not exist"),
    (["subscriptions", "seek", TOPIC, "none", "earliest"], 1, "SubscriptionNotFound"),
    (["subscriptions", "delete", TOPIC, "none", "--yes"], 1, "SubscriptionNotFound"),
    (["transactions", "describe", "--name", "none"], 1, "no transaction is known by the name"),
    (["keys", "get", "none"], 1, "has no transaction key 'none'"),
    (["keys", "delete", "none", "--yes"], 1, "has no transaction key 'none'"),
    (["transactions", "list", "--older-than", "-1"], 2, "--older-than"),
    (["produce", "topic://a/b/none"], 1, "does not exist"),
    (["consume", "topic://a/b/none", "-s", "s"], 1, "does not exist"),
    (["consume", TOPIC, "-s", "bad name"], 2, "not a legal name"),
    (["consume", TOPIC, "-s", "s", "--start", "nowhere"], 2, "expected 'earliest'"),
    (["consume", TOPIC], 2, "--subscription"),
    (["nosuch"], 2, "No such command"),
]


async def test_what_is_wrong_is_refused_in_one_line_that_says_what_to_do(
    cluster: InProcessCluster, producer: txnclient.Producer
) -> None:
    gate = asyncio.Semaphore(3)

    async def refused(words: list[str]) -> Done:
        async with gate:
            return await txnctl(*words, url=cluster.url)

    answers = await asyncio.gather(*(refused(words) for words, _, _ in REFUSED))
    for (words, code, said), answer in zip(REFUSED, answers, strict=True):
        assert (answer.code, said in answer.err) == (code, True), f"{words}: {answer}"
        assert len(answer.err.splitlines()) == 1 or "Usage:" in answer.err, f"{words}: {answer}"
        assert answer.out == "", words


async def test_a_wrong_address_is_said_at_once_by_every_command_that_has_one(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"txn://127.0.0.1:{taken.getsockname()[1]}"
        answers = await asyncio.gather(
            txnctl("topics", "list", url=url),
            txnctl("transactions", "hanging", url=url),
            txnctl("produce", TOPIC, url=url, stdin="x\n"),
            txnctl("topics", "list", url="http://127.0.0.1:1"),
            txnctl("check", "--etcd", "nonsense", "--data-dir", str(tmp_path)),
            txnctl("check", "--data-dir", str(tmp_path / "none")),
        )
    for answer in answers[:3]:
        assert answer.code == 1
        assert "Is the cluster running?" in answer.err
    assert (answers[3].code, "expected txn://host:port" in answers[3].err) == (2, True)
    assert (answers[4].code, "expected http://host:port" in answers[4].err) == (2, True)
    assert (answers[5].code, "there is no such folder" in answers[5].err) == (2, True)
