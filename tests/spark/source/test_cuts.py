"""What is asked of a cluster for a cut, and what is said of topics and segments that it lacks: of each, not of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pyspark_txnstore.shared.offsets import EntryRange
from pyspark_txnstore.shared.options import SourceOptions
from pyspark_txnstore.source import cuts
from pyspark_txnstore.source.boundary_cuts import BoundaryCuts
from pyspark_txnstore.source.columns import SCHEMA
from pyspark_txnstore.source.cuts import Cuts
from pyspark_txnstore.source.limits import HeadScan
from pyspark_txnstore.source.source import plan
from pyspark_txnstore.source.stream import StreamReader
from txnclient import EntryHead, Snapshot
from txnclient.reading.snapshot import SegmentBounds, TopicBounds
from txnwire.errors import ConnectionLost, DataTrimmed, InvalidArgument, TopicNotFound
from txnwire.ids import EARLIEST, Position, TxnId

A, B, C = (f"topic://t/n/{name}" for name in "abc")
NOTHING = SegmentBounds(EARLIEST, EARLIEST)
OPEN = TxnId(1, 5)


def bounds(end: int, *, resolved: int | None = None) -> SegmentBounds:
    return SegmentBounds(Position(1, end if resolved is None else resolved), Position(1, end))


def cut(topics: dict[str, list[SegmentBounds]], *, epoch: int = 1) -> Snapshot:
    """Segments by topic, in halves where there are two."""
    ranges = {1: ["0000-ffff-0"], 2: ["0000-7fff-1", "8000-ffff-2"]}
    found = {}
    for topic, some in topics.items():
        paths = [f"{topic.removeprefix('topic://')}/{name}" for name in ranges[len(some)]]
        found[topic] = TopicBounds(epoch, dict(zip(paths, some, strict=True)))
    return Snapshot(5, found, store="s")


class Pages:
    """An answer in pages, which can be closed."""

    def __init__(self, *pages: list[EntryHead], fails: bool = False) -> None:
        self._pages = iter(pages)
        self._fails = fails
        self.given = self.closed = 0

    def __iter__(self) -> Iterator[list[EntryHead]]:
        return self

    def __next__(self) -> list[EntryHead]:
        page = next(self._pages, None)
        if page is None and self._fails:
            raise ConnectionLost("the broker is gone")
        if page is None:
            raise StopIteration
        self.given += 1
        return page

    def close(self) -> None:
        self.closed += 1


class Cluster:
    """It lists these topics; each has lost the segments named. `answers`: to scans, one after the other."""

    def __init__(self, *topics: str, lost: Sequence[str] = (), epoch: int = 1) -> None:
        self._topics = topics
        self._lost = lost
        self._epoch = epoch
        self.answers: list[Pages] = []
        self.asked: list[dict[str, Any]] = []

    def list_topics(self) -> list[str]:
        return list(self._topics)

    def snapshot(self, topics: list[str] | str) -> Snapshot:
        asked = [topics] if isinstance(topics, str) else topics
        if missing := [topic for topic in asked if topic not in self._topics]:
            raise TopicNotFound(missing[0])
        return cut({topic: [bounds(3)] for topic in asked}, epoch=self._epoch)

    def describe_topic(self, topic: str) -> Cluster:
        return self

    def has_lost(self, path: str) -> bool:
        return path in self._lost

    def scan_entries(self, segment: str, **asked: Any) -> Pages:
        self.asked.append({"segment": segment, **asked})
        return self.answers.pop(0)


def asking(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, **options: str) -> Cuts:
    monkeypatch.setattr(cuts, "client_of", lambda *_, **__: cluster)
    named = options if {"topics", "topicsPattern"} & options.keys() else {"topics": f"{A},{B}", **options}
    return Cuts(SourceOptions.parse({"service.url": "txn://h:1", **named}, use="read"))


def head(entry: int, *, aborted: bool = False) -> EntryHead:
    return EntryHead(Position(1, entry), OPEN, 0, 1, 1, 0, aborted, None)


# Isolation


def test_uncommitted_everything_up_to_each_end_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    held_back = [bounds(9, resolved=3), bounds(7, resolved=2)]
    taken = replace(
        cut({A: held_back, B: held_back}), pending=(OPEN,), aborted=(OPEN,), losers=((OPEN, 1),), counted={OPEN: (2,)}
    )
    everything = cut({A: [bounds(9), bounds(7)], B: [bounds(9), bounds(7)]})
    assert asking(monkeypatch, Cluster(), isolationLevel="read_uncommitted").isolated(taken) == everything
    assert asking(monkeypatch, Cluster()).isolated(taken) == taken


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_uncommitted_no_entry_of_any_page_has_a_transaction(monkeypatch: pytest.MonkeyPatch, isolation: str) -> None:
    cluster = Cluster()
    cluster.answers = [Pages([head(1), head(2, aborted=True)], [head(3), head(4)])]
    asked = asking(monkeypatch, cluster, isolationLevel=isolation)
    found = [one for page in asked.heads("t/n/a/0000-ffff-0", EARLIEST, Position(1, 9), 5) for one in page]
    assert [one.position.entry_id for one in found] == [1, 2, 3, 4]
    is_committed = isolation == "read_committed"
    assert [one.txn_id for one in found] == [OPEN if is_committed else None] * 4
    assert [one.aborted for one in found] == [False, is_committed, False, False]


# Heads


@pytest.mark.parametrize(
    ("options", "trimmed", "asked"),
    [({}, None, "fail"), ({"failOnDataLoss": "false"}, None, "skip"), ({}, "skip", "skip")],
)
def test_what_is_trimmed_is_skipped_where_it_may_be_lost(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], trimmed: str | None, asked: str
) -> None:
    cluster = Cluster()
    cluster.answers = [Pages([head(1)])]
    heads = asking(monkeypatch, cluster, **options).heads("s", EARLIEST, Position(1, 9), 5, trimmed=trimmed)
    assert list(heads) == [[head(1)]]
    assert [(one["trimmed"], one["min_revision"]) for one in cluster.asked] == [(asked, 5)]


def test_a_scan_is_closed_however_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """▲ Open, it keeps a broker's credit for a reader that is gone."""
    cluster = Cluster()
    whole, left, failed = answers = [Pages([head(1)], [head(2)]), Pages([head(1)], [head(2)]), Pages(fails=True)]
    cluster.answers = list(answers)
    asked = asking(monkeypatch, cluster)
    assert len(list(asked.heads("s", EARLIEST, Position(1, 9), 5))) == 2
    assert asked.first_head("s", EARLIEST, Position(1, 9), 5) == head(1)
    with pytest.raises(ConnectionLost) as raised:
        list(asked.heads("s", EARLIEST, Position(1, 9), 5))
    assert [one.closed for one in (whole, left, failed)] == [1, 1, 1], raised
    assert left.given == 1, "brokers read whole entries for a page"


def test_the_first_entry_that_is_kept_is_looked_for_in_each_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.answers = [Pages(), Pages([head(4)], [head(5)]), Pages([head(2)])]
    taken = cut({A: [bounds(9), bounds(7)], B: [bounds(6)]})
    found = asking(monkeypatch, cluster, failOnDataLoss="true").first_kept(taken)
    assert found == {"t/n/a/8000-ffff-2": Position(1, 4), "t/n/b/0000-ffff-0": Position(1, 2)}
    assert [(one["end"], one["trimmed"], one["page_entries"]) for one in cluster.asked] == [
        (Position(1, end), "skip", 1) for end in (9, 7, 6)
    ]


# Where a query begins


def test_a_query_begins_at_what_its_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = cut({A: [bounds(3)], B: [bounds(3)]})
    latest = {"service.url": "txn://h:1", "topics": f"{A},{B}", "startingOffsets": "latest"}
    monkeypatch.setattr(cuts, "client_of", lambda *_, **__: Cluster(A, B))
    assert Cuts(SourceOptions.parse(latest, use="stream read")).first(None) == taken
    cluster = Cluster()  # of which no cut could be taken
    ends = cut({A: [bounds(8)], B: [bounds(9)]})
    cluster.answers = [Pages([head(4)]), Pages()]
    found = asking(monkeypatch, cluster).first(ends)
    assert found is not None
    assert [one.end.entry_id for one in found.segments.values()] == [3, 9], "where it ends is certain already"
    given = cut({A: [bounds(2)], C: [bounds(2)]})
    begins = asking(monkeypatch, cluster, startingOffsets=given.to_json()).first(None)
    assert begins == cut({A: [bounds(2)]})
    assert asking(monkeypatch, Cluster(), topicsPattern="topic://none.*").first(None) is None


def test_topics_may_come_while_not_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    one, both = cut({A: [bounds(3)]}), cut({A: [bounds(3)], B: [bounds(3)]})
    named = asking(monkeypatch, Cluster(A), failOnDataLoss="false")
    assert [named.may_name_others(some) for some in (None, one, both)] == [True, True, False]
    assert [named.names_others(some) for some in (None, one, both)] == [True, False, True]
    by_pattern = asking(monkeypatch, Cluster(A, B), topicsPattern=".*")
    assert by_pattern.may_name_others(both)
    assert [by_pattern.names_others(some) for some in (None, one, both)] == [True, True, False]


def test_of_the_topics_that_are_there_each_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = asking(monkeypatch, Cluster(C, B, A), topicsPattern="topic://t/n/[ab]").take()
    assert taken is not None
    assert list(taken.topics) == [A, B]
    assert asking(monkeypatch, Cluster(C), topicsPattern="topic://t/n/[ab]").take() is None
    for there in ((A, B), (C, A, B)):
        some = asking(monkeypatch, Cluster(*there), topics=f"{A},{B},{C}", failOnDataLoss="false").take()
        assert some is not None
        assert set(some.topics) == set(there)


def test_an_end_has_each_of_the_topics_and_no_other_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asking(monkeypatch, Cluster())
    three = {A: [bounds(3)], B: [bounds(4)], C: [bounds(5)]}
    assert asked.ending(cut(three)) == cut({A: three[A], B: three[B]})
    with pytest.raises(InvalidArgument, match=f"{B} is not in the snapshot at revision 5, of {A}, {C}"):
        asked.ending(cut({C: three[C], A: three[A]}))
    some = asking(monkeypatch, Cluster(), topicsPattern="topic://t/n/[bc]").ending(cut(three))
    assert list(some.topics) == [B, C]


# Losses


def test_each_topic_of_a_checkpoint_that_is_not_read_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = asking(monkeypatch, Cluster(), topics=A)
    ends = cut({A: [bounds(3)], B: [bounds(3)], C: [bounds(3)]})
    with pytest.raises(DataTrimmed, match=f"^{B}, {C}: in the checkpoint's last batch, and not asked for any more"):
        asked.check_topics(ends)
    with pytest.raises(DataTrimmed, match=f"^{A}, {B}: in"):
        asking(monkeypatch, Cluster(), topicsPattern=C).check_topics(ends)
    loose = asking(monkeypatch, Cluster(), topics=A, failOnDataLoss="false")
    for _ in range(2):
        loose.check_topics(ends)
    asked.check_topics(cut({A: [bounds(3)]}))
    assert [f"{B}, {C}: in" in line for line in caplog.messages] == [True]


def test_each_topic_that_is_gone_where_none_is_left_to_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asking(monkeypatch, Cluster(A), topicsPattern=".*")
    for nothing in (None, cut({}), cut({A: [bounds(3)]})):
        asked.check_some_left(nothing)
    with pytest.raises(DataTrimmed, match=f"^{B}, {C}: read so far, and now deleted or not asked for"):
        asked.check_some_left(cut({A: [bounds(3)], B: [bounds(3)], C: [bounds(3)]}))


def test_each_topic_of_a_planned_batch_that_was_deleted_or_made_again_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = cut({A: [bounds(3)], B: [bounds(3)]}, epoch=4)
    assert asking(monkeypatch, Cluster(A, B, epoch=4)).still_there(None, ends) == (None, ends)
    for cluster, named in ((Cluster(), f"{A}, {B}"), (Cluster(A, epoch=4), B), (Cluster(A, B, epoch=3), f"{A}, {B}")):
        with pytest.raises(DataTrimmed, match=f"^{named}: in the checkpoint's last batch, but deleted since"):
            asking(monkeypatch, cluster).still_there(None, ends)


@pytest.mark.parametrize(
    ("segments", "lost", "is_lost"),
    [
        ([NOTHING, bounds(3)], ["8000-ffff-2"], True),
        ([bounds(3), NOTHING], ["0000-7fff-1"], True),
        ([bounds(3), bounds(3)], ["0000-7fff-1", "8000-ffff-2"], True),
        ([bounds(3), bounds(3)], ["0000-7fff-1"], False),
        ([bounds(3), bounds(3)], ["8000-ffff-2"], False),
        ([NOTHING, NOTHING], ["0000-7fff-1", "8000-ffff-2"], False),
    ],
)
def test_a_topic_is_lost_with_all_segments_that_held_anything(
    monkeypatch: pytest.MonkeyPatch, segments: list[SegmentBounds], lost: list[str], is_lost: bool
) -> None:
    asked = asking(monkeypatch, Cluster(lost=[f"t/n/b/{name}" for name in lost]))
    ends = cut({A: [bounds(3)], B: segments})
    if not is_lost:
        asked.check_kept(None, ends)
        return
    with pytest.raises(DataTrimmed, match=f"^{B}: nothing in the snapshot is kept any more"):
        asked.check_kept(None, ends)
    asked.check_kept(ends, ends)


# Plans


def test_a_topic_that_comes_while_a_cut_is_taken_is_in_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(A, B)
    lists = [[A], [A, B]]
    monkeypatch.setattr(cluster, "list_topics", lambda: lists.pop(0) if len(lists) > 1 else lists[0])
    taken = asking(monkeypatch, cluster, topicsPattern=".*").take()
    assert taken is not None
    assert list(taken.topics) == [A, B]


def test_each_segment_is_parted_by_its_own_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.answers = [Pages([head(0), head(1)], [head(2), head(3)]) for _ in range(2)]
    ends = cut({A: [bounds(3)], B: [bounds(3)]})
    options = {"service.url": "txn://h:1", "topics": f"{A},{B}", "minPartitions": "4"}
    parts = plan(SourceOptions.parse(options, use="read"), None, ends, cuts=asking(monkeypatch, cluster))
    assert [(part.segment, part.through) for part in parts] == [
        (f"t/n/{name}/0000-ffff-0", f"1:{end}") for name in "ab" for end in (1, 3)
    ]
    assert cluster.answers == []


def test_scans_that_end_early_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a limit that is reached, and of a time that is found."""
    start, ends = cut({A: [bounds(0)], B: [bounds(0)]}), cut({A: [bounds(9)], B: [bounds(0)]})
    options = {"service.url": "txn://h:1", "topics": f"{A},{B}", "maxEntriesPerTrigger": "1"}
    reader = StreamReader(SourceOptions.parse(options, use="stream read"), SCHEMA)
    pages = Pages(*([head(number)._replace(txn_id=None, publish_time_ms=number)] for number in range(1, 10)))
    reader._cuts = asked = asking(monkeypatch, Cluster())
    monkeypatch.setattr(asked, "heads", lambda *_, **__: pages)
    reader._backlog.missing(start, ends)
    reader._scan(HeadScan(EntryRange(A, "t/n/a/0000-ffff-0", Position(1, 0), Position(1, 9)), 1), start, ends)
    assert (pages.given, pages.closed) == (1, 1)
    parsed = SourceOptions.parse({"service.url": "txn://h:1", "topic": A}, use="read")
    found = BoundaryCuts(asked, parsed, ends, {})._found("t/n/a/0000-ffff-0", 3)
    assert (found, pages.given, pages.closed) == (Position(1, 2), 3, 2)
