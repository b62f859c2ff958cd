"""Which cuts an export goes on from, and to which. Without Spark and without a cluster."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from pyspark_txnstore.jobs import command_line, export
from pyspark_txnstore.jobs.command_line import JobFailed
from pyspark_txnstore.jobs.export_folder import ExportFolder
from pyspark_txnstore.source import cuts
from txnclient import Snapshot
from txnclient.reading.snapshot import SegmentBounds, TopicBounds
from txnwire.errors import Timeout, TopicNotFound
from txnwire.ids import EARLIEST, Position, TxnId

TOPIC, LATER = "topic://t/n/name", "topic://t/n/name-2"
PARENT, LEFT, RIGHT = (f"t/n/name/{one}" for one in ("0000-ffff-0", "0000-7fff-1", "8000-ffff-2"))
END, EMPTY = SegmentBounds(Position(1, 9), Position(1, 9)), SegmentBounds(EARLIEST, EARLIEST)
ABORTED = TxnId(0, 1)


def cut(revision: int, epoch: int, segments: dict[str, SegmentBounds], lost_id: int = -1) -> Snapshot:
    return Snapshot(revision, {TOPIC: TopicBounds(epoch, segments, lost_id)})


WHOLE = cut(5, 1, {PARENT: END})
SPLIT = cut(7, 2, {PARENT: END._replace(sealed=True), LEFT: EMPTY, RIGHT: EMPTY})
TRIMMED = cut(9, 2, {LEFT: END._replace(end=Position(2, 0)), RIGHT: EMPTY}, lost_id=0)


class Cluster:
    """A cluster where a topic is created between two lists, and of which the one transaction has aborted."""

    def __init__(self, *lists: list[str]) -> None:
        self._lists = list(lists)

    def list_topics(self) -> list[str]:
        return self._lists.pop(0) if len(self._lists) > 1 else self._lists[0]

    def snapshot(self, topics: Sequence[str]) -> Snapshot:
        if gone := [topic for topic in topics if topic not in self._lists[-1]]:
            raise TopicNotFound(f"{gone[0]} is being deleted")
        return Snapshot(5, {topic: TopicBounds(1, {}) for topic in topics})

    def outcomes(self, asked: Sequence[TxnId]) -> dict[TxnId, str]:
        return dict.fromkeys(asked, "ABORTED")


@pytest.fixture
def began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends the job where it would start Spark."""

    def fail(*_: object) -> NoReturn:
        raise JobFailed("it reads")

    monkeypatch.setattr(export, "spark_session", fail)


def run(folder: Path, last: Snapshot, now: Snapshot, *more: str) -> int:
    made = folder / "made"
    made.mkdir()
    ExportFolder(str(folder)).add(made, 1, last)
    kept = folder / "_now.json"
    kept.write_text(now.to_json())
    return export.main(["--service", "txn://h:1", "--output", str(folder), "--snapshot", str(kept), *more])


def test_an_export_goes_on_to_another_layout_though_nothing_was_sent(
    began: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """▲ What was split must be known of before retention takes it, or that would look like a loss."""
    assert WHOLE.obstacle(TRIMMED) is not None
    assert SPLIT.obstacle(TRIMMED) is None
    run(tmp_path, WHOLE, SPLIT)
    assert "it reads" in capsys.readouterr().err


def test_an_export_without_anything_new_stays_where_it_is(
    began: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, SPLIT, cut(8, 2, dict(SPLIT.segments))) == command_line.CLEAN
    assert "nothing new" in capsys.readouterr().out


@pytest.mark.parametrize("left_out", [TOPIC, LATER])
def test_a_topic_that_was_exported_so_far_is_not_left_out(
    began: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], left_out: str
) -> None:
    """▲ Its place would be lost, and all of it exported once more when it is named again."""
    elsewhere = {LATER: TopicBounds(1, {"t/n/name-2/0000-ffff-0": END})}
    both = Snapshot(5, {**WHOLE.topics, **elsewhere})
    kept = {topic: bounds for topic, bounds in both.topics.items() if topic != left_out}
    run(tmp_path, both, Snapshot(7, kept))
    assert f"{left_out} was exported to {tmp_path} so far" in capsys.readouterr().err


def test_an_export_passes_over_what_is_lost_where_that_is_allowed(
    began: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, WHOLE, TRIMMED)
    assert "cannot be continued, use another folder: " in capsys.readouterr().err
    shutil.rmtree(tmp_path / "increment=000001")
    run(tmp_path, WHOLE, TRIMMED, "--allow-data-loss")
    assert "it reads" in capsys.readouterr().err


@pytest.mark.parametrize("outcome", ["ABORTED", "COMMITTED"])
def test_x2_what_an_aborted_transaction_held_back_is_no_loss_of_an_export(
    monkeypatch: pytest.MonkeyPatch,
    began: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    outcome: str,
) -> None:
    """▲ As in a stream: all that counts in the parent was exported, and retention has taken it since."""
    held_back = SegmentBounds(Position(1, 3), Position(1, 9), sealed=True)
    last = Snapshot(7, {TOPIC: TopicBounds(2, {**SPLIT.segments, PARENT: held_back})}, pending=(ABORTED,))
    client = Cluster([TOPIC])
    monkeypatch.setattr(client, "outcomes", lambda asked: dict.fromkeys(asked, outcome))
    monkeypatch.setattr(cuts, "client_of", lambda *_, **__: client)
    run(tmp_path, last, TRIMMED)
    expected = "it reads" if outcome == "ABORTED" else "cannot be continued, use another folder: "
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lists", "topics"),
    [(([TOPIC], [TOPIC, LATER]), [TOPIC, LATER]), (([TOPIC, LATER], [TOPIC]), [TOPIC])],
    ids=["created", "deleted"],
)
def test_x2_a_job_takes_a_cut_of_all_topics_of_its_pattern(
    monkeypatch: pytest.MonkeyPatch, lists: tuple[list[str], ...], topics: list[str]
) -> None:
    """▲ A topic created behind the list may hold a part of a transaction that the cut has."""
    client = Cluster(*lists)
    monkeypatch.setattr(command_line, "client_of", lambda *_, **__: client)
    parser = command_line.job_parser("example", None)
    command_line.add_service(parser)
    command_line.add_cut(parser)
    args = parser.parse_args(["--service", "txn://h:1", "--topics-pattern", ".*"])
    assert sorted(command_line.cut_of(args).topics) == topics


def asked(monkeypatch: pytest.MonkeyPatch, client: Cluster, *topics: str) -> Snapshot:
    monkeypatch.setattr(command_line, "client_of", lambda *_, **__: client)
    parser = command_line.job_parser("example", None)
    command_line.add_service(parser)
    command_line.add_cut(parser)
    return command_line.cut_of(parser.parse_args(["--service", "txn://h:1", *topics]))


def test_a_job_whose_topics_are_not_there_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobFailed, match=r"no topic's name is matched by 'topic://x\.\*'"):
        asked(monkeypatch, Cluster([TOPIC]), "--topics-pattern", "topic://x.*")
    with pytest.raises(TopicNotFound, match=LATER):
        asked(monkeypatch, Cluster([TOPIC]), "--topics", f"{TOPIC},{LATER}")
    found = asked(monkeypatch, Cluster([LATER, TOPIC, f"{TOPIC}/3"]), "--topics-pattern", ".*name(-2)?")
    assert list(found.topics) == [TOPIC, LATER]


def test_a_job_whose_topics_come_and_go_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = [[TOPIC], [TOPIC, LATER]] * cuts.ATTEMPTS
    with pytest.raises(Timeout, match=f"in each of {cuts.ATTEMPTS} attempts"):
        asked(monkeypatch, Cluster(*lists), "--topics-pattern", ".*")
