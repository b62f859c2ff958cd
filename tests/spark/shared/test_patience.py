"""Planning that asks again: what may get better, for a while, and nothing else."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

import txnclient.sync
from pyspark_txnstore import DefaultSource
from pyspark_txnstore.shared.patience import Patience
from pyspark_txnstore.source.source import BatchReader
from tests.spark.micro_batches import Start, send, values
from tests.spark.service import Service
from txnclient import Snapshot
from txnwire.errors import DataTrimmed, StoreUnavailable, Timeout, TopicNotFound, TxnError


class Asked:
    """A question that fails in these ways, then is answered; on a clock that only moves with its pauses."""

    def __init__(self, *failures: TxnError) -> None:
        self.failures = list(failures)
        self.pauses: list[float] = []
        self.patience = Patience(120.0, rest=self.pauses.append, now=lambda: sum(self.pauses))

    def __call__(self) -> str:
        if self.failures:
            raise self.failures.pop(0)
        return "answer"

    def answer(self) -> str:
        return self.patience.ask("the plan", self)


def test_what_may_get_better_is_asked_again_and_told(caplog: pytest.LogCaptureFixture) -> None:
    asked = Asked(Timeout("slow"), StoreUnavailable("etcd is away"))
    with caplog.at_level(logging.WARNING):
        assert asked.answer() == "answer"
    assert asked.pauses == [0.5, 1.0]
    assert [record.getMessage() for record in caplog.records] == [
        "the plan is tried again in 0.5 s: Timeout: slow",
        "the plan is tried again in 1 s: StoreUnavailable: etcd is away",
    ]


def test_what_cannot_get_better_is_raised_at_once() -> None:
    asked = Asked(DataTrimmed("gone"))
    with pytest.raises(DataTrimmed, match="gone"):
        asked.answer()
    assert asked.pauses == []


def test_patience_has_an_end() -> None:
    asked = Asked(*[Timeout("slow")] * 1000)
    with pytest.raises(Timeout) as failure:
        asked.answer()
    assert 100 < sum(asked.pauses) <= 120
    assert "planningRetryMs" in failure.value.__notes__[0]


class Failing:
    """The client, but each kind of question fails once."""

    def __init__(self, client: txnclient.sync.Client) -> None:
        self._client = client
        self.failed: dict[str, None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def snapshot(self, topics: list[str]) -> Snapshot:
        self._fail("snapshot")
        return self._client.snapshot(topics)

    def scan_entries(self, *args: Any, **options: Any) -> Any:
        self._fail("scan_entries")
        return self._client.scan_entries(*args, **options)

    def _fail(self, what: str) -> None:
        if what not in self.failed:
            self.failed[what] = None
            raise Timeout(f"{what}: no answer")


def test_a_query_outlives_failures_of_its_planning(
    start: Start, sync_client: txnclient.sync.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_client.create_topic(topic)
    send(sync_client, topic, [b"a", b"b"])
    rests: list[float] = []
    query = start(maxEntriesPerTrigger="1", minPartitions="2")
    query.reader._patience = Patience(60.0, rest=rests.append)
    client = Failing(sync_client)
    monkeypatch.setattr("pyspark_txnstore.source.cuts.client_of", lambda url, timeout_s: client)
    query.offsets = [json.dumps(query.reader.initialOffset())]
    client.failed.clear()
    assert values(query.next()) == [b"a"]
    assert set(client.failed) == {"snapshot", "scan_entries"}
    assert len(rests) == 4


@pytest.fixture
def failing(sync_client: txnclient.sync.Client, monkeypatch: pytest.MonkeyPatch) -> Failing:
    client = Failing(sync_client)
    monkeypatch.setattr("pyspark_txnstore.source.cuts.client_of", lambda url, timeout_s: client)
    return client


def batch_reader(service: Service, topic: str, rests: list[float]) -> BatchReader:
    options = {"service.url": service.url, "topic": topic, "startingTimestamp": "1", "minPartitions": "2"}
    source = DefaultSource(options=options)
    reader = source.reader(source.schema())
    reader._patience = Patience(60.0, rest=rests.append)
    return reader


def test_a_batch_read_outlives_failures_of_its_planning(
    service: Service, sync_client: txnclient.sync.Client, topic: str, failing: Failing
) -> None:
    sync_client.create_topic(topic)
    send(sync_client, topic, [b"a", b"b"])
    rests: list[float] = []
    reader = batch_reader(service, topic, rests)
    parts = reader.partitions()
    assert set(failing.failed) == {"snapshot", "scan_entries"}
    assert rests == [0.5, 1.0]
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert values(rows) == [b"a", b"b"], "each once"


def test_a_batch_read_of_what_is_not_there_fails_at_once(service: Service, topic: str) -> None:
    rests: list[float] = []
    with pytest.raises(TopicNotFound, match=topic):
        batch_reader(service, topic, rests).partitions()
    assert rests == []
