"""Queries of a cluster whose list of topics and whose topics differ for a while."""

from __future__ import annotations

import pytest

from pyspark_txnstore.shared.options import SourceOptions
from pyspark_txnstore.source import cuts
from pyspark_txnstore.source.columns import SCHEMA
from pyspark_txnstore.source.cuts import ATTEMPTS, Cuts
from pyspark_txnstore.source.stream import StreamReader
from txnclient import Snapshot
from txnclient.reading.snapshot import SegmentBounds, TopicBounds
from txnwire.errors import DataTrimmed, TopicNotFound
from txnwire.ids import EARLIEST, Position

KEPT, DELETED = (f"topic://t/n/{name}" for name in ("kept", "deleted"))
EMPTY = "topic://t/n/empty"
END = SegmentBounds(Position(1, 0), Position(1, 0))
NOTHING = SegmentBounds(EARLIEST, EARLIEST)


class Behind:
    """A server that has not heard yet that a topic is being deleted: it lists it, and nobody takes a cut of it."""

    def __init__(self, *, lists: int) -> None:
        self._lists = lists

    def list_topics(self) -> list[str]:
        self._lists -= 1
        return [KEPT, DELETED] if self._lists >= 0 else [KEPT]

    def snapshot(self, topics: list[str]) -> Snapshot:
        if DELETED in topics:
            raise TopicNotFound(f"{DELETED} is being deleted")
        return Snapshot(5, {KEPT: TopicBounds(1, {"t/n/kept/0000-ffff-0": END})})


@pytest.mark.parametrize("named", [{"topicsPattern": ".*"}, {"topics": f"{KEPT},{DELETED}", "failOnDataLoss": "false"}])
def test_a_query_gets_over_a_topic_that_is_listed_while_it_is_deleted(
    monkeypatch: pytest.MonkeyPatch, named: dict[str, str]
) -> None:
    """▲ Spark ends a query at its first error: it asks again, as where the cluster cannot answer."""
    client = Behind(lists=3 * ATTEMPTS)
    monkeypatch.setattr(cuts, "client_of", lambda *_, **__: client)
    rests: list[float] = []
    options = SourceOptions.parse({"service.url": "txn://h:1", "startingOffsets": "latest", **named}, use="stream read")
    reader = StreamReader(options, SCHEMA, rest=rests.append)
    assert reader.initialOffset()["segments"] == 1
    assert rests


def cut_of(*topics: str) -> Snapshot:
    """In this order."""
    bounds = {topic: {f"{topic.removeprefix('topic://')}/0000-ffff-0": NOTHING if topic == EMPTY else END}
              for topic in topics}  # fmt: skip
    return Snapshot(5, {topic: TopicBounds(1, segments) for topic, segments in bounds.items()})


class Changed:
    """A cluster in which one topic was deleted since, or made again."""

    def __init__(self, *, made_again: bool = False) -> None:
        self._made_again = made_again
        self._topic = ""

    def snapshot(self, topics: list[str] | str) -> Snapshot:
        asked = [topics] if isinstance(topics, str) else topics
        if DELETED in asked and not self._made_again:
            raise TopicNotFound(f"{DELETED} does not exist")
        return cut_of(*asked)

    def describe_topic(self, topic: str) -> Changed:
        described = Changed(made_again=self._made_again)
        described._topic = topic
        return described

    def has_lost(self, segment: str) -> bool:
        return self._topic == DELETED


@pytest.mark.parametrize("order", [(DELETED, KEPT, EMPTY), (KEPT, DELETED, EMPTY), (KEPT, EMPTY, DELETED)])
def test_of_the_topics_of_a_planned_batch_only_the_deleted_one_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...]
) -> None:
    """▲ Messages of those behind it would be lost unheard, where the loss of its own is allowed."""
    monkeypatch.setattr(cuts, "client_of", lambda *_, **__: Changed())
    named = {"service.url": "txn://h:1", "topics": ",".join(order), "failOnDataLoss": "false"}
    asking = Cuts(SourceOptions.parse(named, use="stream read"))
    left = cut_of(*(topic for topic in order if topic != DELETED))
    assert asking.still_there(None, cut_of(*order)) == (None, left)
    assert asking.still_there(cut_of(*order), cut_of(*order)) == (left, left)


@pytest.mark.parametrize("start", [None, cut_of(KEPT)], ids=["everything", "behind a start"])
def test_a_topic_made_again_is_a_loss_behind_whichever_topics_have_lost_nothing(
    monkeypatch: pytest.MonkeyPatch, start: Snapshot | None
) -> None:
    monkeypatch.setattr(cuts, "client_of", lambda *_, **__: Changed(made_again=True))
    named = {"service.url": "txn://h:1", "topics": ",".join((EMPTY, KEPT, DELETED))}
    asking = Cuts(SourceOptions.parse(named, use="read"))
    asking.check_kept(start, cut_of(EMPTY, KEPT))
    with pytest.raises(DataTrimmed, match=f"{DELETED}: nothing in the snapshot is kept any more"):
        asking.check_kept(start, cut_of(EMPTY, KEPT, DELETED))
