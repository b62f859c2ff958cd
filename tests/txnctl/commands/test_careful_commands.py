"""Commands with care: what nobody got stays unacked, limits hold, flags are passed on, nothing goes unasked."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

import txnclient
from pyspark_txnstore.sink.batch_names import micro_batch_name, stream_sink
from tests.cluster import InProcessCluster
from tests.txnctl.command_line import done, on_a_terminal, txnctl
from txnctl.commands.shared.lines import MAX_LINE_BYTES

TOPIC = "topic://public/default/orders"
NOBODY = "txn://127.0.0.1:1"

# ---- pipes ----------------------------------------------------------------------------------------------------------


async def test_what_the_reader_of_a_pipe_did_not_get_stays_unacked(cluster: InProcessCluster) -> None:
    """▲ It had gone before anything was printed: whoever reads next is given all of it."""
    await done("topics", "create", TOPIC, url=cluster.url)
    await done("produce", TOPIC, url=cluster.url, stdin="one\ntwo\n")
    reader, writer = os.pipe()
    os.close(reader)
    consuming = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "txnctl", "consume", TOPIC, "-s", "s", "--count", "2", "--url", cluster.url),
        stdout=writer,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(writer)
    _, err = await asyncio.wait_for(consuming.communicate(), 60)
    assert (consuming.returncode, err) == (0, b"")
    again = await done("consume", TOPIC, "-s", "s", "--count", "2", "--timeout", "20", url=cluster.url)
    assert again.out == "one\ntwo\n"


async def test_no_more_than_the_count_is_printed_and_acked(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, url=cluster.url)
    await done("produce", TOPIC, url=cluster.url, stdin="one\ntwo\nthree\n")
    first = await done("consume", TOPIC, "-s", "s", "--count", "1", url=cluster.url)
    rest = await done("consume", TOPIC, "-s", "s", "--count", "2", "--timeout", "20", url=cluster.url)
    assert (first.out, rest.out) == ("one\n", "two\nthree\n")


async def test_who_gets_no_more_is_told_what_an_open_transaction_holds_back(
    cluster: InProcessCluster,
) -> None:
    read = ["consume", TOPIC, "-s", "billing", "--idle", "0.5", "--count", "4"]
    await done("topics", "create", TOPIC, url=cluster.url)
    async with txnclient.connect(cluster.url) as client, await client.producer(TOPIC) as producer:
        txn = await client.begin()
        await producer.send(b"held", txn=txn)
        await producer.send_many([b"a", b"b"])
        waiting = await txnctl(*read, url=cluster.url)
        assert (waiting.code, waiting.out) == (0, "")
        assert "not acked by the subscription: 3 messages" in waiting.err
        assert "txnctl transactions hanging" in waiting.err
        await txn.commit()
        assert (await done(*read[:4], "--count", "3", url=cluster.url)).out == "held\na\nb\n"
        nothing = await txnctl(*read, url=cluster.url)
        assert (nothing.code, "not acked" in nothing.err) == (0, False)


async def test_a_line_that_is_too_long_stops_produce_and_is_told(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, url=cluster.url)
    stopped = await txnctl("produce", TOPIC, url=cluster.url, stdin="one\n" + "x" * (MAX_LINE_BYTES + 100_000))
    assert (stopped.code, "line 2 is longer than" in stopped.err) == (2, True)
    assert "1 message sent" in stopped.err


# ---- what is asked for ----------------------------------------------------------------------------------------------


async def test_policies_that_are_false_are_policies_too(cluster: InProcessCluster) -> None:
    async def policies() -> object:
        return (await done("topics", "describe", TOPIC, "-o", "json", url=cluster.url)).json["policies"]

    await done("topics", "create", TOPIC, "--retention-bytes", "1000000", "--trim-undrained", url=cluster.url)
    assert await policies() == {"retention_bytes": 1_000_000, "trim_undrained": True}
    await done("topics", "update", TOPIC, "--no-trim-undrained", url=cluster.url)
    assert await policies() == {"retention_bytes": 1_000_000, "trim_undrained": False}
    both = await txnctl("topics", "update", TOPIC, "--retention-ms", "1", "--drop", "retention_ms", url=cluster.url)
    assert (both.code, "retention_ms is both set and dropped" in both.err) == (2, True)
    assert await policies() == {"retention_bytes": 1_000_000, "trim_undrained": False}


async def test_transactions_are_listed_by_owner_and_age_and_aborted_by_an_operator(cluster: InProcessCluster) -> None:
    async with cluster.connect() as client:
        txn = await client.begin(timeout=60)
        of_owner, of_nobody, of_any_age, old = await asyncio.gather(
            *(
                done("transactions", "list", *words, "-o", "json", url=cluster.url)
                for words in (
                    ("--owner", "anonymous"),
                    ("--owner", "somebody-else"),
                    ("--older-than", "0"),
                    ("--older-than", "3600"),
                )
            )
        )
        assert [[row["txn"] for row in one.json] for one in (of_owner, of_nobody, of_any_age, old)] == [
            [str(txn.id)],
            [],
            [str(txn.id)],
            [],
        ]
        await done("transactions", "abort", str(txn.id), url=cluster.url)
        told = await done("transactions", "describe", str(txn.id), url=cluster.url)
        assert told.out.startswith(f"{txn.id}: ABORTED, reason: admin\n")


async def test_a_subscription_with_consumers_is_deleted_by_force_alone(cluster: InProcessCluster) -> None:
    words = ("subscriptions", "delete", TOPIC, "billing")
    async with cluster.connect() as client:
        await client.create_topic(TOPIC)
        async with await client.consumer(TOPIC, "billing"):
            refused = await txnctl(*words, url=cluster.url)
            assert (refused.code, "NotAllowed" in refused.err) == (1, True)
            await done(*words, "--force", url=cluster.url)
    assert (await done("subscriptions", "list", TOPIC, "-o", "json", url=cluster.url)).json == []


async def test_another_server_is_asked_where_the_first_one_is_down(cluster: InProcessCluster) -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"txn://127.0.0.1:{taken.getsockname()[1]},{cluster.url.removeprefix('txn://')}"
        assert [row["broker"] for row in (await done("brokers", "list", "-o", "json", url=url)).json] == ["broker"]


async def test_all_segments_are_drawn_where_that_is_asked_for(cluster: InProcessCluster) -> None:
    path = TOPIC.removeprefix("topic://")
    await done("topics", "create", TOPIC, "--autoscale", "off", url=cluster.url)
    for segment in ("0000-ffff-0", "0000-7fff-1", "8000-ffff-2"):
        await done("topics", "split", f"{path}/{segment}", url=cluster.url)
    drawn = await done("topics", "describe", TOPIC, url=cluster.url)
    whole = await done("topics", "describe", TOPIC, "--all", url=cluster.url)
    assert ("0000-ffff-0" in drawn.out, "1 older segment more" in drawn.out) == (False, True)
    assert ("0000-ffff-0" in whole.out, "older segment" in whole.out) == (True, False)


async def test_x1_a_checkpoint_is_told_with_what_the_sink_has_committed(
    cluster: InProcessCluster, tmp_path: Path
) -> None:
    """Of the first batch by an earlier version, under its name for it; of the next one by a copy of the checkpoint."""
    query = "7d0e2f6a-0d5c-4c39-9f0c-0f6f1c8f9b11"
    names = [micro_batch_name(stream_sink("sink", TOPIC), query, number) for number in range(3)]
    (tmp_path / "metadata").write_text(f'{{"id": "{query}"}}')
    for folder, text in (("offsets", "v1\n{}\n-"), ("commits", "v1\n{}")):
        (tmp_path / folder).mkdir()
        for number in range(2):
            (tmp_path / folder / str(number)).write_text(text)
    async with cluster.connect() as client:
        for name in (names[0].former, names[2].text):
            await (await client.begin(name=name)).commit()
    words = ("spark", "checkpoint", str(tmp_path), "--sink-name", "sink", "--topic", TOPIC)
    told, said = await asyncio.gather(done(*words, "-o", "json", url=cluster.url), done(*words, url=cluster.url))
    assert [(one["transaction"], one["outcome"]) for one in told.json["batches"]] == [
        (names[0].former, "COMMITTED"),
        (names[1].text, None),
    ]
    restart = told.json["restart"]
    assert (restart["batch"], restart["transaction"], restart["outcome"]) == (2, names[2].text, "COMMITTED")
    assert f"But {names[2].text} is COMMITTED already" in said.out


# ---- what is asked before -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (("keys", "delete", "etl"), "fence the holder of transaction key etl of anonymous?"),
        (("subscriptions", "delete", TOPIC, "billing"), f"Delete subscription billing of {TOPIC}?"),
        (("names", "delete", "job/1"), "forget the name job/1? A program that begins one again does its work again"),
        (("names", "delete", "--prefix", "job/"), "forget all names that start with 'job/'? A program"),
    ],
    ids=["keys", "subscriptions", "a name", "names"],
)
def test_at_a_terminal_nothing_that_cannot_be_undone_goes_unasked(words: tuple[str, ...], question: str) -> None:
    code, shown = on_a_terminal(*words, "--url", NOBODY, columns=200, answer="n\n")
    assert (code, question in shown) == (1, True), shown
    assert "no server answers" not in shown
