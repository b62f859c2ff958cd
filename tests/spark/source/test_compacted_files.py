"""Generations on disk: there whole or not at all, one maker at a time, and what is not what it was is told."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from pyspark_txnstore.source import compacted_files
from pyspark_txnstore.source.columns import SCHEMA, arrow_schema
from pyspark_txnstore.source.compacted import Manifest, next_step
from pyspark_txnstore.source.compacted_files import (
    MANIFEST,
    CompactedPart,
    Generations,
    data_files,
    plan_compacted,
    read_part,
)
from txnwire.errors import DataCorrupt, InvalidArgument, NotAllowed
from txnwire.ids import Position
from txnwire.snapshot import SegmentBounds, Snapshot, TopicBounds

TOPIC = "topic://public/default/prices"
SEALED = SegmentBounds(Position(1, 9), Position(1, 9), sealed=True)
ACTIVE = SegmentBounds(Position(1, 9), Position(1, 9))
BOUNDS = {
    "public/default/prices/0000-ffff-0": SEALED,
    "public/default/prices/0000-7fff-1": ACTIVE,
    "public/default/prices/8000-ffff-2": ACTIVE,
}
NOW = Snapshot(10, {TOPIC: TopicBounds(2, BOUNDS)}, store="store-1")
ARROW = arrow_schema(SCHEMA)


def table(rows: int) -> pa.Table:
    columns: dict[str, pa.Array] = {field.name: pa.nulls(rows, field.type) for field in ARROW}
    columns["value"] = pa.array([b"%d" % number for number in range(rows)], pa.binary())
    return pa.table(columns, schema=ARROW)


def make(generations: Generations, number: int, *rows: int, of: Snapshot = NOW) -> Manifest:
    """A generation with a file of so many rows each."""
    step = next_step(of, generations.topic, None, generation=number)
    assert step is not None
    with generations.locked():
        made = generations.making()
        made.mkdir()
        for at, count in enumerate(rows):
            parquet.write_table(table(count), made / f"part-{at}.parquet")
        (made / "_SUCCESS").touch()
        (made / ".part-0.parquet.crc").touch()
        manifest = step.published(data_files(made))
        generations.add(made, manifest)
    return manifest


@pytest.fixture
def generations(tmp_path: Path) -> Generations:
    return Generations(tmp_path, TOPIC)


def read(parts: list[CompactedPart]) -> list[bytes]:
    schema = pa.schema([ARROW.field("value")])
    return [value for part in parts for batch in read_part(part, schema) for value in batch.column(0).to_pylist()]


def test_a_published_generation_is_found_and_read(generations: Generations, tmp_path: Path) -> None:
    manifest = make(generations, 1, 2, 0, 3)
    assert [file.rows for file in manifest.files] == [2, 3]
    assert sorted(os.listdir(generations.path_of(1))) == [MANIFEST, "part-0.parquet", "part-2.parquet"]
    assert generations.manifest(1) == manifest
    assert generations.paths(manifest) == [str(generations.path_of(1) / f"part-{at}.parquet") for at in (0, 2)]
    parts, rest = plan_compacted(tmp_path, NOW)
    assert read(parts) == [b"0", b"1", b"0", b"1", b"2"]
    assert set(rest.segments) == {path for path, one in BOUNDS.items() if one is ACTIVE}


def test_a_file_of_many_batches_is_read_to_its_end(
    generations: Generations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacted_files, "BATCH_ROWS", 2)
    make(generations, 1, 5)
    parts, _ = plan_compacted(tmp_path, NOW)
    assert read(parts) == [b"0", b"1", b"2", b"3", b"4"]


def test_of_a_generation_only_the_keys_that_are_asked_for_are_shown(generations: Generations, tmp_path: Path) -> None:
    make(generations, 1, 2, 3)
    path = generations.path_of(1) / "part-1.parquet"
    keyed = table(3).set_column(0, ARROW.field("key"), pa.array([b"a", None, b"b"], pa.binary()))
    parquet.write_table(keyed, path)
    part = CompactedPart(str(path), 3)
    for names, found in ((["value"], [{"value": b"2"}]), (["key"], [{"key": b"b"}])):
        schema = pa.schema([ARROW.field(name) for name in names])
        assert [row for batch in read_part(part, schema, keys={b"b", b"c"}) for row in batch.to_pylist()] == found
    assert sum(batch.num_rows for batch in read_part(part, pa.schema([]))) == 3
    assert sum(batch.num_rows for batch in read_part(part, pa.schema([]), keys={b"b"})) == 1


def test_what_is_being_made_is_seen_by_nobody_and_goes_with_the_next(generations: Generations, tmp_path: Path) -> None:
    """A job that was killed at any point before the rename."""
    with generations.locked():
        left = generations.making()
        left.mkdir()
        parquet.write_table(table(3), left / "part-0.parquet")
        (left / MANIFEST).write_text("{")
    assert generations.numbers() == []
    parts, rest = plan_compacted(tmp_path, NOW)
    assert (parts, rest) == ([], NOW)
    make(generations, 1, 1)
    assert not left.exists()
    assert sorted(os.listdir(generations.path)) == [".lock", "generation-000001"]


def test_of_two_made_under_one_number_one_is_published(generations: Generations) -> None:
    first = make(generations, 1, 1)
    with pytest.raises(NotAllowed, match="published by another job"):
        make(generations, 1, 2)
    assert generations.manifest(1) == first


def test_a_read_that_a_newer_generation_overtook_says_so(generations: Generations, tmp_path: Path) -> None:
    make(generations, 1, 1)
    parts, _ = plan_compacted(tmp_path, NOW)
    make(generations, 2, 1)
    with generations.locked():
        generations.forget(keep=1)
    with pytest.raises(DataCorrupt, match=r"is gone: .* \(--keep\)"):
        read(parts)


def test_a_generation_that_is_removed_while_it_is_looked_for_leaves_the_one_before(
    generations: Generations, tmp_path: Path
) -> None:
    make(generations, 1, 1)
    generations.path_of(2).mkdir()  # as who has listed it finds it, when its manifest has gone
    parts, _ = plan_compacted(tmp_path, NOW)
    assert read(parts) == [b"0"]


def test_a_generation_that_is_removed_right_after_its_manifest_was_read_leaves_the_newer_one(
    generations: Generations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ It would be told that a file is missing, and to remove the folder."""
    make(generations, 1, 1)
    look = Generations.manifest

    def overtaken(self: Generations, generation: int) -> Manifest:
        found = look(self, generation)
        if generation == 1:
            make(generations, 2, 2)
            with generations.locked():
                generations.forget(keep=1)
        return found

    monkeypatch.setattr(Generations, "manifest", overtaken)
    parts, _ = plan_compacted(tmp_path, NOW)
    assert read(parts) == [b"0", b"1"]


def test_part_of_a_generation_is_never_shown_for_all_of_it(generations: Generations, tmp_path: Path) -> None:
    make(generations, 1, 2, 3)
    parts, _ = plan_compacted(tmp_path, NOW)
    file = generations.path_of(1) / "part-1.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(DataCorrupt, match=f"part-1.parquet has {len(whole) - 1} bytes"):
        plan_compacted(tmp_path, NOW)
    with pytest.raises(DataCorrupt, match=r"part-1\.parquet: ArrowInvalid"):
        read(parts)
    parquet.write_table(table(1), file)
    with pytest.raises(DataCorrupt, match="has 1 rows, its manifest says 3"):
        read(parts)
    file.unlink()
    with pytest.raises(DataCorrupt, match=r"part-1\.parquet is missing, .* remove the folder"):
        plan_compacted(tmp_path, NOW)


def test_a_generation_in_the_place_of_another_is_refused(generations: Generations) -> None:
    make(generations, 1, 1)
    generations.path_of(1).rename(generations.path_of(2))
    with pytest.raises(DataCorrupt, match="belongs to generation 1"):
        generations.manifest(2)


def test_a_snapshot_that_does_not_hold_it_reads_the_ledgers(generations: Generations, tmp_path: Path) -> None:
    make(generations, 1, 2)
    older = replace(NOW, revision=5, topics={TOPIC: TopicBounds(1, {"public/default/prices/0000-ffff-0": ACTIVE})})
    assert plan_compacted(tmp_path, older) == ([], older)


def test_a_snapshot_that_does_not_hold_the_newest_reads_the_one_before(
    generations: Generations, tmp_path: Path
) -> None:
    make(generations, 1, 2)
    later = replace(NOW, revision=20, topics={TOPIC: TopicBounds(2, dict.fromkeys(BOUNDS, SEALED))})
    make(generations, 2, 5, of=later)
    assert [part.rows for part in plan_compacted(tmp_path, later)[0]] == [5]
    assert [part.rows for part in plan_compacted(tmp_path, NOW)[0]] == [2]


def test_a_topic_without_a_generation_hides_none_of_the_topics_behind_it(
    generations: Generations, tmp_path: Path
) -> None:
    make(generations, 1, 3)
    other = "topic://public/default/orders"
    new = TopicBounds(1, {"public/default/orders/0000-ffff-0": ACTIVE})
    parts, rest = plan_compacted(tmp_path, replace(NOW, topics={other: new, **NOW.topics}))
    assert [part.rows for part in parts] == [3]
    assert {topic: len(one.segments) for topic, one in rest.topics.items()} == {other: 1, TOPIC: 2}


def test_of_no_topic_with_a_generation_the_ledgers_are_read_as_well(generations: Generations, tmp_path: Path) -> None:
    """▲ Its rows would be there twice."""
    other = Generations(tmp_path, "topic://public/default/orders")
    sealed = {f"public/default/orders/{name}": SEALED for name in ("0000-7fff-0", "8000-ffff-1")}
    both = replace(NOW, topics={other.topic: TopicBounds(2, sealed), **NOW.topics})
    make(generations, 1, 2, of=both)
    make(other, 1, 3, of=both)
    parts, rest = plan_compacted(tmp_path, both)
    assert [part.rows for part in parts] == [3, 2]
    assert set(rest.segments) == {path for path, one in BOUNDS.items() if one is ACTIVE}


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"there is no folder .*/nowhere"):
        plan_compacted(tmp_path / "nowhere", NOW)
