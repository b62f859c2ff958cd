"""Queries of a cluster whose list of topics and whose topics differ for a while."""

from __future__ import annotations

import pytest

from pyspark_txnstore.shared.options import SourceOptions
from pyspark_txnstore.source import cuts
from pyspark_txnstore.source.columns import SCHEMA
from pyspark_txnstore.source.cuts import ATTEMPTS
from pyspark_txnstore.source.stream import StreamReader
from txnclient import Snapshot
from txnclient.reading.snapshot import SegmentBounds, TopicBounds
from txnwire.errors import TopicNotFound
from txnwire.ids import Position

KEPT, DELETED = (f"topic://t/n/{name}" for name in ("kept", "deleted"))
END = SegmentBounds(Position(1, 0), Position(1, 0))


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
