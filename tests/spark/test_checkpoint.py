"""What a checkpoint tells, and what it says a restart does; those that Spark writes: `test_checkpoint_of_spark.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pyspark_txnstore.checkpoint import Restart, checkpoint_folder, read_checkpoint, restart, stretches
from pyspark_txnstore.shared.offset_codec import Isolation, encode_offset
from pyspark_txnstore.source import first_batch
from txnclient import Snapshot
from txnclient.reading.snapshot import SegmentBounds, TopicBounds
from txnctl.cli import app
from txnwire.errors import DataCorrupt, InvalidArgument
from txnwire.ids import Position, TxnId

QUERY = "7d0e2f6a-0d5c-4c39-9f0c-0f6f1c8f9b11"
TOPIC, SEGMENT = "topic://t/n/name", "t/n/name/0000-ffff-0"
OPEN = TxnId(1, 5)


def cut(end: int, *, revision: int = 7, pending: tuple[TxnId, ...] = ()) -> Snapshot:
    bounds = SegmentBounds(Position(1, end), Position(1, end))
    return Snapshot(revision, {TOPIC: TopicBounds(1, {SEGMENT: bounds})}, pending)


COMMITTED: Isolation = "read_committed"
FIRST = first_batch.ending(first_batch.initial(cut(3), COMMITTED), cut(5, revision=8), COMMITTED)
SECOND = first_batch.ending(FIRST, cut(9, revision=9, pending=(OPEN,)), COMMITTED)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    return tmp_path


def plan(folder: Path, number: int, *ends: Mapping[str, Any] | str, done: bool = True, form: str = "v1") -> None:
    texts = [end if isinstance(end, str) else json.dumps(end) for end in ends]
    if form == "v2":
        texts = [f"{number}:{text}" for number, text in enumerate(texts)]
    for name in ("offsets", "commits"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "offsets" / str(number)).write_text("\n".join([form, '{"batchWatermarkMs":0}', *texts]))
    (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
    if done:
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


@pytest.mark.parametrize(
    ("planned", "done", "expected"),
    [
        ([], [], Restart(0, again=False)),
        ([0], [], Restart(0, again=True)),
        ([0], [0], Restart(1, again=False)),
        ([0, 1], [0], Restart(1, again=True)),
        ([4, 5], [4, 5], Restart(6, again=False)),
        ([4, 5], [], Restart(5, again=True)),
        ([5], [5], Restart(6, again=False)),
        ([9, 10], [9, 10], Restart(11, again=False)),  # by their numbers, not their names
        ([9, 10], [9], Restart(10, again=True)),
    ],
)
def test_the_last_batch_runs_again_unless_it_is_done(
    folder: Path, planned: list[int], done: list[int], expected: Restart
) -> None:
    for number in planned:
        plan(folder, number, SECOND, done=number in done)
    assert restart(read_checkpoint(folder, last=3)) == expected


def test_a_batch_whose_beginning_is_missing_cannot_run_again(folder: Path) -> None:
    plan(folder, 3, SECOND)
    plan(folder, 5, SECOND, done=False)
    found = restart(read_checkpoint(folder, last=3))
    assert (found.batch, found.again) == (5, True)
    assert found.obstacle is not None
    assert "offsets/4" in found.obstacle


@pytest.mark.parametrize("form", ["v1", "v2"])
def test_batches_are_told_segment_by_segment(folder: Path, form: str) -> None:
    """The first from where its own end says it began; other sources as they are."""
    plan(folder, 0, FIRST, '{"logOffset":0}', form=form)
    plan(folder, 1, SECOND, "-", form=form)
    found = read_checkpoint(folder, last=5)
    assert (found.query_id, found.done) == (QUERY, 1)
    first, second = found.batches
    [one] = stretches(found, first)
    assert (one.source, one.topic, one.segment, one.begin, one.end) == ("0", TOPIC, SEGMENT, "1:3", "1:5")
    [one] = stretches(found, second)
    assert (one.begin, one.end) == ("1:5", "1:9")
    assert [(end.source, end.is_ours) for end in second.ends] == [("0", True), ("1", False)]
    assert first.ends[1].text == '{"logOffset":0}'


def test_batches_of_several_topics_and_segments_are_told_in_order(folder: Path) -> None:
    """What a batch adds first is from its beginning."""
    at = {number: SegmentBounds(Position(1, number), Position(1, number)) for number in (5, 9)}
    other, child, sibling = "topic://t/n/other", "t/n/other/0000-7fff-1", "t/n/other/8000-ffff-2"
    first = Snapshot(8, {other: TopicBounds(1, {sibling: at[5]}), TOPIC: TopicBounds(1, {SEGMENT: at[5]})})
    both = TopicBounds(2, {sibling: at[9], child: at[5]._replace(sealed=True)})
    second = Snapshot(9, {other: both, TOPIC: TopicBounds(1, {SEGMENT: at[9]})})
    plan(folder, 0, encode_offset(first))
    plan(folder, 1, encode_offset(second))
    found = read_checkpoint(folder, last=5)
    assert [one[1:] for one in stretches(found, found.batches[1])] == [
        (TOPIC, SEGMENT, "1:5", "1:9", "1:9", False),
        (other, child, None, "1:5", "1:5", True),
        (other, sibling, "1:5", "1:9", "1:9", False),
    ]
    assert [one.begin for one in stretches(found, found.batches[0])] == [None, None]
    plan(folder, 2, encode_offset(second))
    found = read_checkpoint(folder, last=5)
    assert [(one.begin, one.end) for one in stretches(found, found.batches[2])] == [
        ("1:9", "1:9"),
        ("1:5", "1:5"),
        ("1:9", "1:9"),
    ]


def test_sources_that_have_not_begun_or_no_more_than_begun_hide_none_of_those_behind_them(folder: Path) -> None:
    begun = first_batch.initial(None, COMMITTED)
    plan(folder, 0, "-", begun, FIRST, "-", FIRST)
    plan(folder, 1, "-", begun, SECOND, FIRST, SECOND)
    found = read_checkpoint(folder, last=5)
    told = [[(one.source, one.begin, one.end) for one in stretches(found, batch)] for batch in found.batches]
    assert told == [
        [("2", "1:3", "1:5"), ("4", "1:3", "1:5")],
        [("2", "1:5", "1:9"), ("3", "1:3", "1:5"), ("4", "1:5", "1:9")],
    ]


def test_of_a_long_checkpoint_the_newest_are_read(folder: Path) -> None:
    plan(folder, 0, "damaged")
    for number in range(1, 6):
        plan(folder, number, SECOND)
    assert [batch.number for batch in read_checkpoint(folder, last=2).batches] == [3, 4, 5]


def test_a_batch_that_the_query_forgets_meanwhile_is_left_out(folder: Path) -> None:
    """Listed, and gone when it is read."""
    for number in (1, 2):
        plan(folder, number, SECOND)
    (folder / "offsets" / "1").unlink()
    (folder / "offsets" / "1").symlink_to("gone")
    assert [batch.number for batch in read_checkpoint(folder, last=2).batches] == [2]


def test_a_stream_that_has_only_begun_has_an_end_and_no_rows(folder: Path) -> None:
    plan(folder, 0, first_batch.initial(cut(3), COMMITTED))
    plan(folder, 1, encode_offset(None))
    found = read_checkpoint(folder, last=2)
    assert stretches(found, found.batches[1]) == []
    begun = stretches(found, found.batches[0])
    assert begun
    assert [one.begin for one in begun] == [one.end for one in begun]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("metadata", b"{}", "metadata is damaged: expected"),
        ("metadata", b'{"id":"query 1"}', "metadata is damaged"),
        ("metadata", b"\xff", "metadata is damaged"),
        ("offsets/0", b"", "expected three lines or more"),
        ("offsets/0", b"\xff\xfe\n\n", "damaged"),
        ("offsets/0", b"v9\n{}\n{}", "expected v1 or v2, found 'v9'"),
        ("offsets/0", b"v1\n{}\n{", "offsets/0 is damaged"),
        ("offsets/0", b"v1\n{}\n" + b"[" * 100_000, "offsets/0 is damaged"),
        ("offsets/0", b"v2\n{}\n{}", "expected <source>:<offset>"),
        ("offsets/0", json.dumps(SECOND).join(["v1\n{}\n", ""]).replace('"revision": 9', '"revision": 8').encode(),
         '"revision" is 8, its cut has 9'),
        ("offsets/0", b'v1\n{}\n{"v":3,"cut":""}', "not an offset that this version"),
        ("offsets/0", ("v1\n{}\n" + json.dumps({**FIRST, "from": 5})).encode(), "it begins from 5"),
    ],
)  # fmt: skip
def test_what_is_damaged_is_told_with_its_file(folder: Path, name: str, data: bytes, message: str) -> None:
    plan(folder, 0, SECOND)
    (folder / name).write_bytes(data)
    with pytest.raises(DataCorrupt, match=message):
        read_checkpoint(folder, last=1)


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match="is no checkpoint of Spark's"):
        read_checkpoint(tmp_path, last=1)


def test_a_folder_that_is_not_there_is_a_wrong_argument(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["spark", "checkpoint", str(tmp_path / "nowhere")])
    assert type(found.exception) is InvalidArgument
    assert str(found.exception) == f"{tmp_path / 'nowhere'}: there is no such folder"


def test_a_checkpoint_is_a_folder_of_this_machine() -> None:
    for text in ("/data/a b", "file:/data/a%20b", "file:///data/a%20b", "file://localhost/data/a b"):
        assert checkpoint_folder(text) == Path("/data/a b")
    assert checkpoint_folder("ck/one") == Path("ck/one")
    for text in ("s3a://bucket/ck", "hdfs://host/ck"):
        with pytest.raises(InvalidArgument, match=r"a checkpoint in a (s3a|hdfs) store is not read here"):
            checkpoint_folder(text)
    for text in ("file:ck", "file://host/ck"):
        with pytest.raises(InvalidArgument, match="expected a path, or file:///"):
            checkpoint_folder(text)


def told(folder: Path, *words: str) -> str:
    found = CliRunner().invoke(app, ["spark", "checkpoint", str(folder), *words])
    assert found.exit_code == 0, found
    return found.output


def test_the_command_says_where_a_query_stands_and_what_a_restart_does(folder: Path) -> None:
    plan(folder, 0, FIRST)
    assert "continues with batch 1, from where batch 0 ended: all of it is done" in told(folder)
    plan(folder, 1, SECOND, done=False)
    said = told(folder)
    assert f"query {QUERY}" in said
    assert "runs batch 1 again, from begin to end as above: Spark has not noted that it is done" in said
    [line] = [line.split() for line in said.splitlines() if SEGMENT in line]
    assert line == ["0", TOPIC, SEGMENT, "1:5", "1:9", "1:9", "no"]
    answer = json.loads(told(folder, "-o", "json", "--last", "1"))
    assert answer["restart"] == {"batch": 1, "again": True, "obstacle": None}
    [batch] = answer["batches"]
    assert (batch["batch"], batch["spark_commit"]) == (1, False)
    assert batch["sources"][0]["pending"] == [str(OPEN)]
    assert batch["offsets"][0]["begin"] == "1:5"
    (folder / "offsets" / "0").unlink()
    assert "a restart fails: batch 1 is to run again, and offsets/0" in told(folder)


def test_the_command_tells_of_a_query_that_has_planned_nothing(folder: Path) -> None:
    assert "a restart begins with batch 0" in told(folder)
