"""The folder of an export: whatever the moment of a kill, an increment is there with its cut, or it is not."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from pyspark_txnstore.jobs.export_folder import CUT, ExportFolder
from tests.spark.killed_steps import killed_at_each
from txnclient.reading.snapshot import SegmentBounds, Snapshot, TopicBounds
from txnwire.errors import DataCorrupt, InvalidArgument
from txnwire.ids import Position

TOPIC = "topic://public/spark/exported"


def cut_at(end: int) -> Snapshot:
    """Everything up to entry `end` of ledger 1."""
    bounds = SegmentBounds(Position(1, end), Position(1, end))
    return Snapshot(end, {TOPIC: TopicBounds(1, {"public/spark/exported/0000-ffff-0": bounds})})


def export(folder: ExportFolder, end: int) -> None:
    """As the job does it, in two files; the rows are the numbers of the entries."""
    with folder.locked():
        last = folder.last()
        done = 0 if last is None else last.cut.revision
        made = folder.making()
        made.mkdir()
        middle = (done + end) // 2
        for number, rows in enumerate((range(done, middle), range(middle, end))):
            entries = pa.array(rows, pa.int64())
            parquet.write_table(pa.table({"entry": entries}), made / f"part-{number}.parquet")
        folder.add(made, 1 if last is None else last.number + 1, cut_at(end))


def exported(path: Path) -> list[int]:
    """What a reader of the whole folder finds; like Spark, it passes over names with a dot or an underscore."""
    found = path.glob("[!._]*/*.parquet")
    return [row for file in sorted(found) for row in parquet.read_table(file, partitioning=None)["entry"].to_pylist()]


def test_increments_follow_each_other(tmp_path: Path) -> None:
    folder = ExportFolder(str(tmp_path / "new" / "export"))
    for end in (3, 7, 9):
        export(folder, end)
        assert exported(folder.path) == list(range(end))
        assert folder.last_cut() == cut_at(end)
    last = folder.last()
    assert last is not None
    assert (last.number, last.rows) == (3, 2)
    export(folder, 15)
    last = folder.last()
    assert last is not None
    assert (last.number, last.rows) == (4, 6), "of both files"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_step_neither_loses_nor_doubles_a_row(tmp_path: Path, after: bool) -> None:
    def folder(at: int) -> ExportFolder:
        return ExportFolder(str(tmp_path / f"kill-{at}"))

    export(folder(1), 3)
    for at in killed_at_each(lambda at: export(folder(at), 7), after=after, least=8):
        # ▲ At every moment the rows are what the newest cut says.
        assert exported(folder(at).path) == list(range(folder(at).last_cut().revision))
        export(folder(at), 9)
        assert exported(folder(at).path) == list(range(9))
        export(folder(at + 1), 3)


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "report.csv").write_text("1,2\n")
    with pytest.raises(InvalidArgument, match=r"report\.csv"):
        ExportFolder(str(tmp_path)).last()


@pytest.mark.parametrize("text", ["{", "[]", '{"v":2}', '{"v":1,"rows":1,"snapshot":{}}', '{"v":1}'])
def test_a_cut_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    folder = ExportFolder(str(tmp_path))
    export(folder, 3)
    path = tmp_path / "increment=000001" / CUT
    path.write_text(text)
    with pytest.raises(DataCorrupt, match=r"increment=000001/_cut\.json"):
        folder.last()
    path.unlink()
    with pytest.raises(DataCorrupt, match="is missing"):
        folder.last()


def test_nothing_exported_is_told(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InvalidArgument, match="nothing has been exported"):
            ExportFolder(str(folder)).last_cut()


def test_a_path_may_be_a_url(tmp_path: Path) -> None:
    assert ExportFolder(f"file://{tmp_path}").path == ExportFolder(f"file:{tmp_path}").path == tmp_path
    with pytest.raises(InvalidArgument, match="all executors see"):
        ExportFolder("s3a://bucket/export")
