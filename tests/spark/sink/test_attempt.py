"""A task attempt and the transactions that it finds: of older runs, ended ones, and one that ends while it writes.

Without a cluster: what a client answers is given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from pyspark_txnstore.shared.options import SinkOptions
from pyspark_txnstore.sink import attempt
from pyspark_txnstore.sink.attempt import Attempt
from pyspark_txnstore.sink.batch_names import BatchName
from pyspark_txnstore.sink.content import content_of
from pyspark_txnstore.sink.runs import BatchRun
from pyspark_txnstore.sink.winners import Written
from txnclient.transactions.transaction import TransactionState
from txnwire.entry import Columns
from txnwire.errors import ConnectionLost, InvalidTxnState, TopicNotFound, TxnConflict, TxnError, TxnNotFound

TOPIC = "topic://t/n/out"
OPTIONS = SinkOptions.parse({"service.url": "txn://h:1", "topic": TOPIC}, use="stream write")
OLDER, RUN, NEWER = (BatchRun(time_ms.to_bytes(6, "big") + bytes(6)) for time_ms in (1_000, 2_000, 3_000))


@dataclass
class Txn:
    """One that `begin` answers. `described`: what is known of it by then; None: nothing."""

    id: str
    joined: bool = True
    state: TransactionState = TransactionState.OPEN
    described: dict[str, Any] | None = None
    flush_error: TxnError | None = None
    aborts_as: TransactionState = TransactionState.ABORTED
    aborted: bool = False
    writer_id: int = 7

    def abort(self) -> TransactionState:
        self.aborted = True
        return self.aborts_as

    def flush(self) -> None:
        if self.flush_error is not None:
            raise self.flush_error


@dataclass
class Client:
    """`txns`: that it answers with, one after the other, the last for ever. `send`: what becomes of what is sent."""

    txns: list[Txn]
    outcome: str = "OPEN"
    send: Callable[[str, Any], None] = lambda _topic, _part: None
    begun: int = 0
    sent: list[Any] = field(default_factory=list)
    closed: int = 0

    def begin(self, **named: Any) -> Txn:
        self.begun += 1
        return self.txns[min(self.begun, len(self.txns)) - 1]

    def admin(self, _: str, *, txn: str) -> dict[str, Any]:
        found = next(one for one in self.txns if one.id == txn)
        if found.described is None:
            raise TxnNotFound(txn)
        return found.described

    def outcomes(self, asked: list[str]) -> dict[str, str]:
        return dict.fromkeys(asked, self.outcome)

    def producer(self, topic: str) -> Producer:
        if topic.endswith("nowhere"):
            raise TopicNotFound(topic)
        return Producer(self, topic)

    def __hash__(self) -> int:
        return id(self)


@dataclass
class Producer:
    client: Client
    topic: str

    def send_many(self, part: Columns, *, txn: Txn) -> None:
        self.client.send(self.topic, part)
        self.client.sent.append(part)

    def send(self, *, txn: Txn, chunk: bool, **message: Any) -> None:
        assert chunk
        self.client.sent.append(message["value"])

    def close(self) -> None:
        self.client.closed += 1


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Written]:
    monkeypatch.setattr(attempt, "_producers", {})
    monkeypatch.setattr(attempt, "_writers", {})

    def written(client: Client, *batches: dict[str, Any]) -> Written:
        monkeypatch.setattr(attempt, "client_of", lambda *_, **__: client)
        some = [pa.record_batch({name: pa.array(column) for name, column in one.items()}) for one in batches]
        return Attempt(OPTIONS, BatchName("job/7", "former"), RUN, 1).write(iter(some))

    return written


Run = Callable[..., Written]


def of(run: BatchRun, state: str = "OPEN") -> dict[str, Any]:
    return {"header": {"state": state, "attempt": run.stamp.hex()}}


# What it finds


def test_x1_the_transactions_of_older_runs_are_given_up_one_after_the_other(run: Run) -> None:
    older = [Txn(f"0-{number}", described=of(OLDER)) for number in range(3)]
    client = Client([*older, Txn("0-9", joined=False)])
    found = run(client, {"value": [b"a"]})
    assert (found.txn_id, found.run, found.former, client.begun) == ("0-9", RUN.stamp, "former", 4)
    assert [one.aborted for one in older] == [True] * 3


def test_x1_after_many_older_ones_the_one_that_is_found_is_joined(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """▲ Two drivers whose clocks differ would abort each other's for ever."""
    monkeypatch.setattr(attempt, "MAX_SUPERSEDED", 2)
    older = [Txn(f"0-{number}", described=of(OLDER)) for number in range(5)]
    assert run(Client([*older]), {"value": [b"a"]}).txn_id == "0-2"
    assert [one.aborted for one in older] == [True, True, False, False, False]


@pytest.mark.parametrize(
    "described", [None, {"header": None}, of(OLDER, "COMMITTED"), of(OLDER, "ABORTED")], ids=["", "none", "c", "a"]
)
def test_x1_one_that_has_ended_meanwhile_is_not_aborted_and_its_outcome_is_asked_for(
    run: Run, described: dict[str, Any] | None
) -> None:
    ended, committed = Txn("0-1", described=described), Txn("0-1", state=TransactionState.COMMITTED)
    found = run(Client([ended, committed]), {"value": [b"a", b"b"]})
    assert (found.txn_id, found.committed, found.content.rows) == ("0-1", True, 2)
    assert not ended.aborted


def test_x1_an_older_run_that_commits_when_it_is_given_up_has_written_the_batch(run: Run) -> None:
    older = Txn("0-1", described=of(OLDER), aborts_as=TransactionState.COMMITTED)
    client = Client([older, Txn("0-1", state=TransactionState.COMMITTED)])
    assert run(client, {"value": [b"a"]}).committed
    assert client.sent == []


def test_x1_a_newer_run_is_joined(run: Run) -> None:
    newer = Txn("0-1", described=of(NEWER))
    assert run(Client([newer]), {"value": [b"a"]}).txn_id == "0-1"
    assert not newer.aborted


# What it sends


def test_x1_all_rows_of_all_batches_are_sent_and_counted(run: Run) -> None:
    client = Client([Txn("0-1", joined=False)])
    found = run(client, {"value": [b"a", b"b"]}, {"value": [b"c"]}, {"value": [b"d", b"e"]})
    assert client.sent == [Columns([b"a", b"b"]), Columns([b"c"]), Columns([b"d", b"e"])]
    assert found.content == content_of([(TOPIC, Columns([b"a", b"b", b"c", b"d", b"e"]))])
    assert client.begun == 1


def test_x1_without_a_row_nothing_is_begun(run: Run) -> None:
    client = Client([Txn("0-1", joined=False)])
    assert run(client, {"value": pa.array([], pa.binary())}).txn_id is None
    assert client.begun == 0


def test_x1_large_values_are_sent_between_those_before_and_behind_them(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "MAX_VALUE_BYTES", 1)
    client = Client([Txn("0-1", joined=False)])
    run(client, {"value": [b"a", b"large", b"b", b"larger"]})
    assert client.sent == [Columns([b"a"]), b"large", Columns([b"b"]), b"larger"]


@pytest.mark.parametrize("error", [TxnConflict("it has ended"), InvalidTxnState("it has ended")])
def test_x1_one_that_commits_while_it_is_written_leaves_the_rest_out_and_counts_it(run: Run, error: TxnError) -> None:
    def send(_: str, part: Columns) -> None:
        if part.values == [b"b"]:
            raise error

    client = Client([Txn("0-1", joined=False)], outcome="COMMITTED", send=send)
    found = run(client, {"value": [b"a"]}, {"value": [b"b"]}, {"value": [b"c"]})
    assert (found.committed, found.content.rows, client.closed) == (True, 3, 1)
    assert client.sent == [Columns([b"a"])]
    flushed = Client([Txn("0-1", joined=False, flush_error=error)], outcome="COMMITTED")
    assert run(flushed, {"value": [b"a"]}).committed


@pytest.mark.parametrize(
    ("error", "outcome", "raised", "message"),
    [
        (TxnConflict("it has ended"), "ABORTED", InvalidTxnState, "0-1 of 'job/7' was aborted .* run the batch again"),
        (TxnConflict("it has ended"), "UNKNOWN", TxnConflict, "it has ended"),
        (InvalidTxnState("it has ended"), "OPEN", InvalidTxnState, "^.*it has ended$"),
        (ConnectionLost("the broker is gone"), "COMMITTED", ConnectionLost, "the broker is gone"),
    ],
)
def test_x1_one_that_fails_otherwise_fails_the_task_and_keeps_no_producer(
    run: Run, error: TxnError, outcome: str, raised: type[TxnError], message: str
) -> None:
    def send(_: str, __: Columns) -> None:
        raise error

    client = Client([Txn("0-1", joined=False)], outcome=outcome, send=send)
    with pytest.raises(raised, match=message):
        run(client, {"value": [b"a"]})
    assert (client.closed, attempt._producers) == (1, {})


def test_a_topic_that_is_not_there_is_to_be_created_first(run: Run) -> None:
    with pytest.raises(TopicNotFound) as raised:
        run(Client([Txn("0-1", joined=False)]), {"value": [b"a"], "topic": [f"{TOPIC}-nowhere"]})
    assert raised.value.__notes__ == [
        f"the sink creates no topics: create it first, with `txnctl topics create {TOPIC}-nowhere`"
    ]


# Several topics at once


def test_each_topic_gets_its_rows_and_the_first_error_is_the_tasks(run: Run) -> None:
    topics = [f"{TOPIC}-{number}" for number in range(5)]
    sent: dict[str, list[Any]] = {}

    def send(topic: str, part: Columns) -> None:
        sent[topic] = list(part.values)
        if topic in failing:
            raise ConnectionLost(topic)

    failing: list[str] = []
    batch = {"value": [b"%d" % number for number in range(10)], "topic": topics * 2}
    run(Client([Txn("0-1", joined=False)], send=send), batch)
    assert sent == {topic: [b"%d" % number, b"%d" % (number + 5)] for number, topic in enumerate(topics)}
    for topic in topics:
        failing[:] = [topic]
        with pytest.raises(ConnectionLost, match=f"{topic}$"):
            run(Client([Txn("0-1", joined=False)], send=send), batch)


class Told(ThreadPoolExecutor):
    """It tells when it has been shut down, before it waits for what is under way."""

    down = threading.Event()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)
        self.down.set()
        super().shutdown(wait=wait)


def test_behind_an_error_nothing_more_is_begun(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """▲ The task has failed: what else it has is sent by the next attempt."""
    monkeypatch.setattr(attempt, "TOPICS_AT_ONCE", 1)
    monkeypatch.setattr(attempt, "ThreadPoolExecutor", Told)
    topics = [f"{TOPIC}-{number}" for number in range(4)]
    begun: list[str] = []

    def send(topic: str, _: Columns) -> None:
        begun.append(topic)
        if topic == topics[0]:
            raise ConnectionLost(topic)
        assert Told.down.wait(60.0)

    with pytest.raises(ConnectionLost, match=f"{topics[0]}$"):
        run(Client([Txn("0-1", joined=False)], send=send), {"value": [b"a"] * 4, "topic": topics})
    assert len(begun) <= 2, "the one that failed, and the one that had begun by then"
