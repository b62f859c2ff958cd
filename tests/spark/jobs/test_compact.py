"""The job `compact` and `option("compacted", …)` with real Spark and a real cluster."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import txnclient.sync
from pyspark_txnstore.jobs import command_line, compact
from pyspark_txnstore.newest import newest_per_key
from pyspark_txnstore.shared.options import SourceOptions
from pyspark_txnstore.source.columns import SCHEMA
from pyspark_txnstore.source.compacted import DataFile, Manifest
from pyspark_txnstore.source.compacted_files import Generations
from tests.spark.service import REPOSITORY, Service
from tests.waiting import wait_until
from txnwire.errors import InvalidArgument
from txnwire.ids import EARLIEST
from txnwire.protocol import MIB
from txnwire.snapshot import SegmentBounds, Snapshot, TopicBounds

pytestmark = pytest.mark.timeout(300)  # many queries, each of them slow on a machine that is busy

Pairs = list[tuple[bytes | None, bytes]]


class Prices:
    """A keyed topic, what was committed in it by rights, and how it is read."""

    def __init__(self, spark: SparkSession, url: str, client: txnclient.sync.Client, topic: str, folder: Path) -> None:
        self.spark = spark
        self.url = url
        self.client = client
        self.topic = topic
        self.folder = folder
        self.committed: Pairs = []
        client.create_topic(topic, segments=1)

    def send(self, rows: Mapping[str, str], *, fate: str = "commit") -> None:
        """In batches of three messages; `fate`: commit, abort or plain."""
        with self.client.producer(self.topic) as producer:
            txn = None if fate == "plain" else self.client.begin()
            items = [(key, value.encode()) for key, value in rows.items()]
            for at in range(0, len(items), 3):
                producer.send_many(items[at : at + 3], txn=txn)
            producer.flush()
            if txn is not None:
                txn.abort() if fate == "abort" else txn.commit()
        if fate != "abort":
            self.committed += [(key.encode(), value) for key, value in items]

    def split(self) -> None:
        """Each active segment."""
        for segment in self.client.describe_topic(self.topic).active:
            self.client.split(segment.name)

    def compact(self, *more: str) -> int:
        return compact.main(["--service", self.url, "--topics", self.topic, "--output", str(self.folder), *more])

    def read(self, *, compacted: bool = True, **options: str) -> DataFrame:
        reader = self.spark.read.format("txnstore").option("service.url", self.url).option("topic", self.topic)
        if compacted:
            reader = reader.option("compacted", "true").option("compactedPath", str(self.folder))
        return reader.options(**options).load()

    def is_kept(self) -> bool:
        """Whether ledgers hold anything still that a reader is shown."""
        with self.client.reader(self.topic, end="latest") as reader:
            return any(True for _ in reader)

    def generations(self) -> list[int]:
        return Generations(self.folder, self.topic).numbers()


def pairs(rows: DataFrame) -> Pairs:
    found = rows.select("key", "value").collect()
    return in_order((row.key and bytes(row.key), bytes(row.value)) for row in found)


def in_order(found: Iterable[tuple[bytes | None, bytes]]) -> Pairs:
    return sorted(found, key=str)


def newest(committed: Pairs) -> Pairs:
    """By the order of writing."""
    state = {key: value for key, value in committed if key is not None}
    return [(key, value) for key, value in state.items() if value]


@pytest.fixture
def prices(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str, tmp_path: Path
) -> Prices:
    return Prices(spark, service.url, sync_client, topic, tmp_path)


def test_sealed_segments_become_the_newest_value_of_every_key_and_every_snapshot_reads_what_it_held(
    prices: Prices, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [f"k{number}" for number in range(20)]
    prices.send({key: f"{key} first" for key in keys})
    prices.send({key: f"{key} aborted" for key in keys}, fate="abort")
    prices.send({key: f"{key} second" for key in keys[:12]}, fate="plain")
    prices.send({keys[0]: "", keys[13]: ""})  # deleted
    keyless: Pairs = [(None, b"without a key"), (None, b"without a key")]
    with prices.client.producer(prices.topic) as producer:
        producer.send_many([value for _, value in keyless])
    older = prices.client.snapshot([prices.topic]).to_json()
    before = list(prices.committed)
    prices.split()
    third = {key: f"{key} third" for key in keys[5:9]}
    prices.send(third)

    assert prices.compact() == 0
    assert "generation 1 of 1 segments: 20 rows" in capsys.readouterr().out
    # One row a key of what was sealed, and the live rest as it is.
    rest: Pairs = [(key.encode(), value.encode()) for key, value in third.items()]
    assert pairs(prices.read()) == in_order([*newest(before), *keyless, *rest])
    assert len(newest(before)) == 18
    # A snapshot from before the segment was sealed reads its ledger.
    assert pairs(prices.read(snapshot=older)) == in_order([*before, *keyless])
    # So does what begins behind something, though it ends late.
    assert pairs(prices.read(startingOffsets=older)) == in_order(rest)

    # The next generation is not for a snapshot from between: in the children it has what came later.
    between = prices.client.snapshot([prices.topic]).to_json()
    prices.split()
    prices.send({keys[0]: "is back", keys[1]: ""})
    assert prices.compact() == 0
    assert "generation 2 of 3 segments: 20 rows" in capsys.readouterr().out
    assert pairs(prices.read(snapshot=between)) == in_order([*newest(before), *keyless, *rest])
    sealed, live = prices.committed[:-2], prices.committed[-2:]
    assert pairs(prices.read()) == in_order([*newest(sealed), *keyless, *live])
    assert pairs(newest_per_key(prices.read())) == in_order([*newest(prices.committed), *keyless])

    # Nothing new: no generation.
    assert prices.compact() == 0
    assert "nothing to do" in capsys.readouterr().out
    assert prices.generations() == [2, 1]


def test_compacted_rows_are_the_messages_as_they_were(prices: Prices) -> None:
    with prices.client.producer(prices.topic, name="teller") as producer, prices.client.transaction() as txn:
        far = int(datetime(2500, 1, 1, tzinfo=UTC).timestamp() * 1000)
        producer.send(b"1", key="a", properties={"unit": "EUR", "x": ""}, event_time_ms=far, txn=txn)
        producer.send(b"2", key=b"\xff\x00", txn=txn)
        producer.send(b"3", txn=txn)
    plain = sorted(prices.read(compacted=False).collect(), key=str)
    prices.split()
    assert prices.compact() == 0
    compacted = prices.read()
    assert compacted.schema == SCHEMA
    assert sorted(compacted.collect(), key=str) == plain
    assert len(plain) == 3
    # Only some of the columns, in an order of one's own.
    some = prices.read(columns="value,txn_id")
    assert sorted(map(tuple, some.collect())) == [(bytearray(one), str(txn.id)) for one in (b"1", b"2", b"3")]


def test_what_is_undecided_is_not_touched_nor_is_what_came_after_it(prices: Prices) -> None:
    with prices.client.producer(prices.topic) as producer:
        producer.send(b"1", key="a")
        txn = prices.client.begin(timeout=300)
        producer.send(b"2", key="a", txn=txn)
        producer.flush()
        prices.split()
        prices.split()
        producer.send(b"", key="a")  # deletes what is open, if it commits
        producer.flush()
        prices.split()
        assert prices.compact() == 0
        assert prices.generations() == []
        assert pairs(prices.read()) == [(b"a", b""), (b"a", b"1")]
        txn.commit()
    assert prices.compact() == 0
    assert prices.generations() == [1]
    manifest = Generations(prices.folder, prices.topic).manifest(1)
    assert len(manifest.compacted) == 7
    assert manifest.rows == 0
    assert pairs(prices.read()) == []


def test_what_was_compacted_outlives_its_ledgers_and_a_gap_is_not_passed_over_in_silence(
    prices: Prices, capsys: pytest.CaptureFixture[str]
) -> None:
    prices.send({"a": "1", "b": "1", "c": "1"})
    prices.split()
    assert prices.compact() == 0
    prices.client.update_topic(prices.topic, retention_ms=1)
    prices.send({"a": "2"})
    prices.split()  # what is sealed is trimmed, uncompacted
    wait_until(lambda: not prices.is_kept(), "retention to take everything", within_s=120.0)
    prices.send({"b": "3"})
    compacted = [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")]
    assert pairs(prices.read()) == in_order([*compacted, (b"b", b"3")])

    assert prices.compact() == 2
    told = capsys.readouterr().err
    assert "retention took something before it was compacted" in told
    assert "--accept-gaps" in told
    assert prices.generations() == [1]
    assert prices.compact("--accept-gaps") == 0
    assert prices.generations() == [2, 1]
    assert pairs(prices.read()) == in_order([*compacted, (b"b", b"3")])
    prices.split()
    assert prices.compact("--afresh") == 0
    assert prices.generations() == [3, 2]
    assert set(pairs(prices.read())) <= {(b"b", b"3")}  # trimmed too, or not yet


def test_what_retention_takes_between_the_plan_and_the_reading_is_a_gap(
    prices: Prices, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prices.send({"a": "1"})
    prices.split()
    assert prices.compact() == 0
    prices.send({"a": "2"})
    prices.split()

    def then_trimmed(args: argparse.Namespace) -> Snapshot:
        snapshot = command_line.snapshot_now(args)
        prices.client.update_topic(prices.topic, retention_ms=1)
        wait_until(lambda: not prices.is_kept(), "retention to take everything", within_s=120.0)
        return snapshot

    monkeypatch.setattr(compact, "snapshot_now", then_trimmed)
    assert prices.compact() == 2
    told = capsys.readouterr().err
    assert "generation 1 may have values of keys that had newer ones (found while reading it)" in told
    assert "--accept-gaps" in told
    assert prices.generations() == [1]


def test_several_topics_each_have_their_own_generations(prices: Prices, tmp_path: Path) -> None:
    other = Prices(prices.spark, prices.url, prices.client, f"{prices.topic}-too", tmp_path)
    prices.send({"a": "1", "b": "1"})
    prices.send({"a": "2"})
    other.send({"a": "1"})
    other.send({"a": "2", "c": "2"})
    prices.split()
    both = ["--service", prices.url, "--topics-pattern", f"{prices.topic}.*", "--output", str(tmp_path)]
    assert compact.main(both) == 0
    assert (prices.generations(), other.generations()) == ([1], [])
    rows = (
        prices.spark.read.format("txnstore")
        .option("service.url", prices.url)
        .option("topicsPattern", f"{prices.topic}.*")
        .option("compacted", "true")
        .option("compactedPath", str(tmp_path))
        .load()
    )
    assert rows.where(f"topic = '{prices.topic}'").count() == 2
    assert rows.where(f"topic = '{other.topic}'").count() == 3
    other.split()
    assert compact.main(both) == 0, "the first topic has nothing new, the one behind it has"
    assert (prices.generations(), other.generations()) == ([1], [1])


def test_the_guides_program_runs(prices: Prices, service: Service) -> None:
    section = (REPOSITORY / "docs" / "spark.md").read_text().partition("## Compaction\n")[2].partition("\n## ")[0]
    command, program = (
        section.partition(f"```{language}\n")[2]
        .partition("```")[0]
        .replace("txn://127.0.0.1:6650", prices.url)
        .replace("topic://public/shop/prices", prices.topic)
        .replace("/mnt/compacted", str(prices.folder))
        for language in ("sh", "python")
    )
    prices.send({"a": "1", "b": "1"})
    prices.split()
    prices.send({"a": "2"})
    start, arguments = command.split("compact ", 1)
    assert start == "python -m pyspark_txnstore.jobs."
    assert compact.main(shlex.split(arguments)) == 0
    names: dict[str, Any] = {"spark": prices.spark, "URL": prices.url}
    exec(compile(program, "docs/spark.md", "exec"), names)
    assert pairs(names["prices"]) == [(b"a", b"1"), (b"a", b"2"), (b"b", b"1")]
    assert pairs(names["state"]) == [(b"a", b"2"), (b"b", b"1")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compacted": "true"}, "option 'compacted' needs 'compactedPath'"),
        ({"compacted": "true", "compactedPath": "s3://b/x"}, "option 'compactedPath': .* a folder that the driver"),
        ({"compacted": "yes", "compactedPath": "/x"}, "option 'compacted': 'yes' is neither true nor false"),
        (
            {"compacted": "true", "compactedPath": "/x", "isolationLevel": "read_uncommitted"},
            "option 'compacted': compacted messages are committed",
        ),
    ],
)
def test_options_that_do_not_go_together_are_told(options: dict[str, str], message: str) -> None:
    given = {"service.url": "txn://127.0.0.1:1", "topic": "topic://public/default/prices", **options}
    with pytest.raises(InvalidArgument, match=message):
        SourceOptions.parse(given, use="read")


def test_a_stream_reads_nothing_compacted() -> None:
    given = {"service.url": "txn://127.0.0.1:1", "topic": "topic://public/default/prices", "compacted": "true"}
    with pytest.raises(InvalidArgument, match="option 'compacted' is not for this: it belongs to read"):
        SourceOptions.parse(given, use="stream read")


# Without Spark


class Unsealed:
    """A cluster of topics in which nothing is sealed."""

    def snapshot(self, topics: list[str]) -> Snapshot:
        bounds = {topic: {f"{topic.removeprefix('topic://')}/0000-ffff-0": SegmentBounds(EARLIEST, EARLIEST)}
                  for topic in topics}  # fmt: skip
        return Snapshot(5, {topic: TopicBounds(1, segments) for topic, segments in bounds.items()}, store="s")


def test_each_topic_without_anything_to_do_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "client_of", lambda *_, **__: Unsealed())
    topics = [f"topic://public/default/{name}" for name in "abc"]
    words = ["--service", "txn://h:1", "--topics", ",".join(topics), "--output", str(tmp_path / "compacted")]
    assert compact.main(words) == command_line.CLEAN
    said = "nothing to do, no segment was sealed and decided since"
    assert capsys.readouterr().out.splitlines() == [f"{topic}: {said}" for topic in topics]
    assert list(tmp_path.iterdir()) == [], "nothing is left of it"


def test_a_generation_is_accounted_for_with_all_of_its_files() -> None:
    files = tuple(DataFile(f"part-{number}.parquet", number * MIB // 2, number) for number in (1, 2, 4))
    manifest = Manifest(7, Snapshot(5, {}), {"a/b/c/0000-7fff-1": 3, "a/b/c/8000-ffff-2": 3}, files)
    text = "generation 7 of 2 segments: 7 rows, 3.5 MiB in 3 files"
    assert compact._account(manifest, []) == text
    assert compact._account(manifest, [5, 4]) == f"{text}; removed 5, 4"


# The merge rule


MERGED = """
    key  | value   | segment | position | sequence_id
    a    | old     | 2       | 9:9      | 900
    a    | new     | 10      | 1:0      | 0            -- ids are numbers: 10 came later than 2
    b    | old     | 2       | 9:100    | 5
    b    | new     | 2       | 10:0     | 6            -- so are ledgers
    c    | old     | 2       | 9:9      | 7
    c    | new     | 2       | 9:10     | 8            -- and entries
    d    | old     | 2       | 9:11     | 9
    d    | new     | 2       | 9:11     | 10           -- two of one entry
    e    | old     | 2       | 9:12     | 11
    e    |         | 2       | 9:13     | 12           -- deleted
    f    |         | 2       | 9:14     | 13
    f    | new     | 2       | 9:15     | 14           -- and back again
    NULL | keyless | 2       | 9:16     | 15
    NULL | keyless | 2       | 9:16     | 16
    NULL |         | 2       | 9:16     | 17           -- deletes nothing, for it has no key
"""


def rows_of(text: str) -> list[tuple[bytes | None, bytes, str, str, str, int]]:
    lines = [line.split("--")[0].split("|") for line in text.strip().splitlines()[1:]]
    return [
        (
            None if key.strip() == "NULL" else key.strip().encode(),
            value.strip().encode(),
            "topic://public/default/prices",
            f"segment://public/default/prices/0000-ffff-{segment.strip()}",
            position.strip(),
            int(sequence_id),
        )
        for key, value, segment, position, sequence_id in lines
    ]


@pytest.mark.parametrize("backwards", [False, True])
def test_the_newest_of_a_key_is_the_last_in_its_log_over_all_segments(spark: SparkSession, backwards: bool) -> None:
    schema = "key binary, value binary, topic string, segment string, position string, sequence_id long"
    rows = rows_of(MERGED)
    frame = spark.createDataFrame(rows[::-1] if backwards else rows, schema)
    keyless = [(None, b""), (None, b"keyless"), (None, b"keyless")]
    newest = [(key, b"new") for key in (b"a", b"b", b"c", b"d", b"f")]
    assert pairs(newest_per_key(frame)) == sorted([*keyless, *newest], key=str)
    assert pairs(newest_per_key(frame, with_deletions=True)) == sorted([*keyless, *newest, (b"e", b"")], key=str)
    assert newest_per_key(frame).columns == frame.columns


def test_what_tells_no_order_is_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(b"a", b"1", "t")], "key binary, value binary, topic string")
    with pytest.raises(InvalidArgument, match="takes the columns segment, position, sequence_id, too"):
        newest_per_key(frame)
