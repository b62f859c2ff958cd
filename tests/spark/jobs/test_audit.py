"""The job audit over real clusters: clean ones are clean, and what is planted in one is found and told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

import txnclient
import txnclient.sync
from pyspark_txnstore.jobs import audit, command_line
from pyspark_txnstore.jobs.audit import COLUMNS
from pyspark_txnstore.jobs.judgement import FINDING, KINDS
from pyspark_txnstore.shared.process_client import close_clients
from tests.cluster import InProcessCluster
from tests.spark.service import Service
from tests.waiting import until_answer, wait_until
from txnclient.producing.producer import producer_impl
from txnstore import keys, records
from txnstore.store import Commit, Delete, Put

pytestmark = pytest.mark.timeout(400)

Message = txnclient.Message[bytes]


def send(client: txnclient.sync.Client, topic: str, number: int, txn: txnclient.sync.Transaction | None = None) -> None:
    with client.producer(topic) as producer:
        producer.send_many([(f"key-{index}", f"{number}-{index}".encode()) for index in range(12)], txn=txn)


def fill(client: txnclient.sync.Client, topic: str, other: str) -> dict[str, str]:
    """Transactions that ended in every way, over two topics, one of which is split. Their ids, by how."""
    for name in (topic, other):
        client.create_topic(name, segments=2, autoscale="off")
    txns = {how: client.begin(timeout=900) for how in ("committed", "aborted", "open")}
    winner, loser = (client.begin(name=f"{topic}/7", timeout=900) for _ in range(2))
    for name in (topic, other):
        for number, txn in enumerate((*txns.values(), winner, loser)):
            send(client, name, number, txn)
        send(client, name, 9)
    with client.producer(topic) as producer:
        producer.send(bytes(6_000_000), key="large", chunk=True, txn=txns["committed"])
    client.split(client.describe_topic(topic).active[0].path)
    send(client, topic, 10, txns["committed"])
    winner.commit(writers=[winner.writer_id])
    txns["committed"].commit()
    txns["aborted"].abort()
    return {how: str(txn.id) for how, txn in txns.items()} | {"named": str(winner.id)}


def received(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """What a consumer keeps of what it was given."""
    return [
        {
            "topic": one.topic,
            "segment": one.segment,
            "position": str(one.position),
            "txn_id": None if one.txn_id is None else str(one.txn_id),
            "producer": one.producer_name,
            "sequence_id": one.sequence_id,
        }
        for one in messages
    ]


def run(capsys: pytest.CaptureFixture[str], url: str, *arguments: str) -> tuple[int, dict[str, int], dict[str, Any]]:
    """Exit code, findings by kind, the whole report."""
    capsys.readouterr()
    code = audit.main(["--service", url, "--json", *arguments])
    told = capsys.readouterr()
    assert told.out, told.err
    report = json.loads(told.out.splitlines()[-1])  # a cluster in this process logs there, too
    return code, {kind: number for kind, number in report["counts"].items() if number}, report


def test_what_was_received_is_held_against_what_is_stored(
    spark: SparkSession,
    service: Service,
    sync_client: txnclient.sync.Client,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = f"{topic}-other"
    txns = fill(sync_client, topic, other)
    code, found, report = run(capsys, service.url, "--topics", f"{topic},{other}")
    assert (code, found) == (command_line.CLEAN, {})
    assert report["transactions"] == {"COMMITTED": 2, "ABORTED": 1, "OPEN": 1}
    assert report["stored"]["messages"] > report["stored"]["shown"] == 2 * 12 * 3 + 12 + 1

    cut = sync_client.snapshot([topic, other])
    with sync_client.reader([topic, other], end=cut) as reader:
        rows = received(reader)
    with sync_client.reader(topic, end="latest", isolation="read_uncommitted") as reader:
        aborted = [row for row in received(reader) if row["txn_id"] == txns["aborted"]]
    assert len(rows) == report["stored"]["shown"]
    (tmp_path / "cut.json").write_text(cut.to_json())
    of_committed = [row for row in rows if row["txn_id"] == txns["committed"]]
    of_none = [row for row in rows if row["txn_id"] is None]
    tampered = [row for row in rows if row is not of_committed[5]]
    tampered += [of_none[0], aborted[3], of_none[1] | {"position": "99:0", "topic": topic}]
    parquet.write_table(pa.Table.from_pylist(tampered), tmp_path / "seen.parquet")
    arguments = ("--seen", str(tmp_path / "seen.parquet"), "--snapshot", str(tmp_path / "cut.json"))
    code, found, report = run(capsys, service.url, *arguments, "--findings", str(tmp_path / "findings"))
    assert (code, found) == (command_line.FINDINGS, {"torn": 1, "aborted": 1, "duplicated": 1})
    assert report["stored"]["unjudged"] == 1  # behind the end of the cut: nobody can tell
    assert report["examples"]["torn"][0]["txn_id"] == txns["committed"]
    assert report["examples"]["torn"][0]["position"] == of_committed[5]["position"]
    assert report["examples"]["aborted"][0]["txn_id"] == txns["aborted"]
    assert report["examples"]["duplicated"][0]["producer"] == of_none[0]["producer"]
    assert parquet.read_table(tmp_path / "findings").num_rows == 3


async def _quiet(client: txnclient.Client, *txn_ids: txnclient.TxnId) -> None:
    """Until nothing of them is left to be cleaned up."""
    for txn_id in txn_ids:
        await until_answer(
            partial(client.transaction_info, txn_id), lambda info: not info["operations"], f"no op records of {txn_id}"
        )


async def test_a_cluster_that_was_tampered_with_is_found_out(
    spark: SparkSession, cluster: InProcessCluster, client: txnclient.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """What READ_COMMITTED readers are shown is wrong: a transaction is aborted in one of its segments only, another one
    that was aborted is not in its own, and a producer sends what it has sent before."""
    here, there = "topic://public/spark/here", "topic://public/spark/there"
    for name in (here, there):
        await client.create_topic(name, autoscale="off")
    committed, aborted = await client.begin(), await client.begin()
    for name in (here, there):
        async with await client.producer(name) as producer:
            for txn in (committed, aborted, None):
                await producer.send_many([b"1", b"2", b"3"], txn=txn)
    await committed.commit()
    await aborted.abort()
    await _quiet(client, committed.id, aborted.id)
    topics = ("--topics", f"{here},{there}")
    code, found, _ = await asyncio.to_thread(run, capsys, cluster.url, *topics)
    assert (code, found) == (command_line.CLEAN, {})

    segments = {name: (await client.describe_topic(name)).active[0].path for name in (here, there)}
    producers = [await client.producer(name, name="twice") for name in (here, there)]
    # One producer of one life, whose dedup nobody has heard of.
    producer_impl(producers[1]).incarnation = producer_impl(producers[0]).incarnation
    for producer in producers:
        await producer.send_many([b"again", b"and again"])
        await producer.close()
    store = cluster.servers["control"].store
    await cluster.stop_server("broker")
    record = await store.get(keys.aborted(segments[here], aborted.id))
    assert record is not None
    forged = records.encode(records.AbortedRecord(max_position=(1, 0)))
    await store.commit(
        Commit(
            puts=(Put(keys.aborted(segments[there], committed.id), forged),),
            deletes=(Delete(record.key),),
        )
    )
    await cluster.start_server("broker", "broker")
    await cluster.wait_ready()
    code, found, report = await asyncio.to_thread(run, capsys, cluster.url, *topics)
    assert (code, found) == (command_line.FINDINGS, {"torn": 1, "aborted": 1, "duplicated": 1})
    torn, visible, twice = (report["examples"][kind][0] for kind in ("torn", "aborted", "duplicated"))
    assert (torn["txn_id"], torn["topic"], torn["stored"], torn["shown"]) == (str(committed.id), there, 6, 3)
    assert (visible["txn_id"], visible["topic"], visible["shown"]) == (str(aborted.id), here, 3)
    assert (twice["producer"], twice["sequence_id"]) == ("twice", 0)
    await asyncio.to_thread(close_clients)


def test_a_report_in_words_names_what_and_where() -> None:
    finding = {
        "kind": "torn", "topic": "topic://a/b/c", "segment": "a/b/c/0000-ffff-0", "position": "1:4", "txn_id": "0001-7",
        "producer": "p", "sequence_id": 12, "stored": 6, "shown": 3, "detail": "3 of 6 messages were shown",
    }  # fmt: skip
    stored = {"entries": 4, "messages": 1200, "shown": 1197, "segments": 2, "unjudged": 1, "writers_forgotten": 0}
    counts = dict.fromkeys(KINDS, 0) | {"torn": 7, "lost": 1}
    examples = {"torn": [finding], "lost": [finding]}
    report = audit.AuditReport(["topic://a/b/c"], 80, stored, {"COMMITTED": 2000}, counts, examples)
    text = report.as_text()
    assert "TORN: 7 committed transactions that were shown only in part" in text
    assert "transaction 0001-7: 3 of 6 messages were shown; segment a/b/c/0000-ffff-0 at 1:4" in text
    assert "… and 6 more" in text
    assert "LOST: 1 messages outside transactions" in text
    assert "2,000 committed" in text
    assert "not judged: 1 entries" in text
    assert report.exit_code(allow_forgotten=True) == command_line.FINDINGS


def test_a_report_tells_every_outcome_and_every_example() -> None:
    stored = dict.fromkeys(("entries", "messages", "shown", "segments", "unjudged", "writers_forgotten"), 0)
    finding: dict[str, Any] = dict.fromkeys(FINDING, 0) | {"txn_id": None, "detail": "seen twice"}
    examples = {"duplicated": [finding | {"position": position} for position in ("1:4", "1:5")]}
    none = dict.fromkeys(KINDS, 0)
    ended = {"OPEN": 3, "COMMITTED": 2, "ABORTED": 1}
    report = audit.AuditReport(
        ["topic://a/b/c", "topic://a/b/d"], 80, stored, ended, none | {"duplicated": 5}, examples
    )
    lines = report.as_text().splitlines()
    assert lines[0] == "topic://a/b/c, topic://a/b/d at revision 80"
    assert lines[2] == "transactions: 1 aborted, 2 committed, 3 open"
    assert [line.split("; ")[1].split(",")[0] for line in lines[4:6]] == ["segment 0 at 1:4", "segment 0 at 1:5"]
    assert lines[4].startswith("    no transaction: seen twice")
    assert lines[6:] == ["    … and 3 more"]
    two = report._replace(counts=none | {"duplicated": 2}, transactions={})
    assert two.as_text().splitlines()[2:4] == ["transactions: none", f"DUPLICATED: 2 {KINDS['duplicated']}"]
    assert "more" not in two.as_text()
    clean = report._replace(counts=none, examples={})
    assert (clean.as_text().splitlines()[-1], clean.exit_code(allow_forgotten=False)) == (
        "clean: every committed message was shown once, and no other message", command_line.CLEAN,
    )  # fmt: skip
    both = report._replace(counts=none, transactions={"UNKNOWN": 2}, stored=stored | {"writers_forgotten": 3})
    assert "not judged by outcome: 5 transactions" in both.as_text()


@pytest.mark.parametrize(("unknown", "writers"), [(3, 0), (0, 3)])
def test_what_is_forgotten_makes_no_clean_report_unless_that_is_allowed(unknown: int, writers: int) -> None:
    stored = {"entries": 0, "messages": 0, "shown": 0, "segments": 0, "unjudged": 0, "writers_forgotten": writers}
    report = audit.AuditReport(["topic://a/b/c"], 80, stored, {"UNKNOWN": unknown}, dict.fromkeys(KINDS, 0), {})
    assert report.exit_code(allow_forgotten=False) == command_line.UNDECIDED
    assert report.exit_code(allow_forgotten=True) == command_line.CLEAN
    assert "3 transactions, forgotten" in report.as_text()
    assert "clean" not in report.as_text()


def test_a_writer_of_a_collected_transaction_is_judged_by_what_its_segments_know(
    spark: SparkSession,
    service: Service,
    sync_client: txnclient.sync.Client,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As of a batch of Spark's: each task's rows in a segment of their own, and one task was tried again."""
    sync_client.create_topic(topic, segments=2, autoscale="off")
    writers = [sync_client.begin(name=f"{topic}/1", timeout=900) for _ in range(3)]
    with sync_client.producer(topic) as producer:
        for number, writer in enumerate(writers):
            producer.send_many([(f"key-{number}", b"%d" % index) for index in range(8)], txn=writer)
    writers[0].commit(writers=[writers[0].writer_id, writers[1].writer_id])
    wait_until(lambda: _is_collected(sync_client, writers[0].id), "the transaction to be collected")
    assert run(capsys, service.url, "--topics", topic)[:2] == (command_line.CLEAN, {})

    cut = sync_client.snapshot([topic])
    (tmp_path / "cut.json").write_text(cut.to_json())
    with sync_client.reader(topic, end=cut) as reader:
        rows = received(reader)
    with sync_client.reader(topic, end="latest", isolation="read_uncommitted") as reader:
        everything = received(reader)
    losing = [row for row in everything if row not in rows]
    assert (len(rows), len(losing)) == (16, 8)
    seen = ("--seen", str(tmp_path / "seen.parquet"), "--snapshot", str(tmp_path / "cut.json"))
    for shown, expected in ((rows[8:], {"torn": 1}), (rows + losing, {"aborted": 1})):
        parquet.write_table(pa.Table.from_pylist(shown), tmp_path / "seen.parquet")
        assert run(capsys, service.url, *seen)[:2] == (command_line.FINDINGS, expected)


def _is_collected(client: txnclient.sync.Client, txn_id: txnclient.TxnId) -> bool:
    info = client.transaction_info(txn_id)
    return info["header"] is None and "writers" not in info


@pytest.mark.parametrize(
    ("missing", "said"), [("--snapshot", "--seen needs --snapshot"), ("columns", f"no column {COLUMNS[3]}")]
)
def test_what_cannot_be_judged_ends_with_2(
    spark: SparkSession,
    service: Service,
    sync_client: txnclient.sync.Client,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    missing: str,
    said: str,
) -> None:
    arguments = ["--service", service.url, "--seen", str(tmp_path / "seen.parquet")]
    if missing == "--snapshot":
        arguments += ["--topics", topic]
    else:
        sync_client.create_topic(topic)
        (tmp_path / "cut.json").write_text(sync_client.snapshot(topic).to_json())
        columns = {name: ["1:1"] for name in COLUMNS if name != "txn_id"}
        parquet.write_table(pa.table(columns), tmp_path / "seen.parquet")
        arguments += ["--snapshot", str(tmp_path / "cut.json")]
    assert audit.main(arguments) == command_line.UNDECIDED
    assert said in capsys.readouterr().err
