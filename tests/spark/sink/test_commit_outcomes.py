"""What the driver's commit and abort make of each answer of a service. Without a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from pyspark.sql import types as t

from pyspark_txnstore.shared.options import SinkOptions
from pyspark_txnstore.sink import batch_names, sink
from pyspark_txnstore.sink.content import Content
from pyspark_txnstore.sink.runs import BatchRun
from pyspark_txnstore.sink.winners import BatchCommit
from txnwire.errors import InvalidArgument, InvalidTxnState, OutcomeUnknown, Timeout, TxnError, TxnNotFound

TOPIC = "topic://t/n/out"
OPTIONS = SinkOptions.parse({"service.url": "txn://h:1", "topic": TOPIC}, use="stream write")
CONTENT = Content(2, 255)
COMMIT = BatchCommit("job/7", "0-1", (3, 9), CONTENT)
MARK = b"the mark"
QUERY = "0d8a4c5c-55a2-4d1a-9c8e-2f1f7f6f0a11"


@dataclass
class Service:
    """`known`: by name or id, what is described of a transaction. `ends`: what a commit meets."""

    known: dict[str, dict[str, Any]] = field(default_factory=dict)
    open: list[dict[str, Any]] = field(default_factory=list)
    outcome: str = "OPEN"
    ends: TxnError | None = None
    aborts_as: str = "ABORTED"
    said: list[str] = field(default_factory=list)

    def admin(self, request: str, **asked: Any) -> dict[str, Any]:
        if request == "transactions.list":
            assert asked == {"state": "OPEN", "limit": sink.MAX_LISTED}
            return {"transactions": self.open}
        (key,) = asked.values()
        self.said.append(f"described {key}")
        if key not in self.known:
            raise TxnNotFound(key)
        return self.known[key]

    def attach(self, txn_id: str, *, name: str) -> Attached:
        return Attached(self, txn_id)

    def outcomes(self, asked: list[str]) -> dict[str, str]:
        return dict.fromkeys(asked, self.outcome)


@dataclass
class Attached:
    service: Service
    txn_id: str

    def commit(self, *, writers: tuple[int, ...], note: str, timeout: float) -> None:
        if self.service.ends is not None:
            raise self.service.ends
        self.service.said.append(f"committed {self.txn_id} {writers} {note}")

    def abort(self) -> str:
        self.service.said.append(f"aborted {self.txn_id}")
        return self.service.aborts_as


def serving(monkeypatch: pytest.MonkeyPatch, service: Service) -> Service:
    monkeypatch.setattr(sink, "client_of", lambda *_, **__: service)
    monkeypatch.setattr(sink, "STRAGGLERS_S", 0.0)
    return service


def test_x1_the_winners_are_committed_with_the_note_of_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    service = serving(monkeypatch, Service())
    sink._commit(OPTIONS, COMMIT)
    assert service.said == [f"committed 0-1 (3, 9) {CONTENT}"]
    sink._commit(OPTIONS, None)
    assert len(service.said) == 1


@pytest.mark.parametrize(("outcome", "is_left_out"), [("COMMITTED", True), ("ABORTED", False), ("UNKNOWN", False)])
def test_x1_only_one_that_is_committed_already_will_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, outcome: str, is_left_out: bool
) -> None:
    known = {"job/7": {"note": str(CONTENT)}}
    serving(monkeypatch, Service(known, outcome=outcome, ends=InvalidTxnState("it has ended")))
    if is_left_out:
        sink._commit(OPTIONS, COMMIT)
        assert "the 2 rows of this run are left out" in caplog.text
        return
    with pytest.raises(InvalidTxnState, match=rf"0-1 of 'job/7' is {outcome}, its rows do not count.*\(.*has ended\)"):
        sink._commit(OPTIONS, COMMIT)


@pytest.mark.parametrize("error", [Timeout, OutcomeUnknown])
@pytest.mark.parametrize(("repeatable", "said"), [(True, "run it again"), (False, "look before you write again")])
def test_x1_a_commit_without_an_outcome_fails_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: type[TxnError], repeatable: bool, said: str
) -> None:
    serving(monkeypatch, Service(ends=error("nobody answers")))
    with pytest.raises(error) as raised:
        sink._commit(OPTIONS, COMMIT, repeatable=repeatable)
    assert [said in note for note in raised.value.__notes__] == [True]


def test_x1_rows_that_are_left_out_for_a_commit_that_is_forgotten_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    serving(monkeypatch, Service())
    sink._leave_out(OPTIONS, "job/7", CONTENT)
    serving(monkeypatch, Service({"job/7": {}}))  # a server of an earlier version sends no note
    sink._leave_out(OPTIONS, "job/7", CONTENT)
    assert ["whether both have the same rows is not known" in line for line in caplog.messages] == [True, True]


@pytest.mark.parametrize(
    ("known", "is_committed", "said"),
    [
        (None, False, []),
        ({"outcome": "COMMITTED"}, True, []),
        ({"outcome": "COMMITTED", "note": str(CONTENT)}, False, []),
        ({"outcome": "ABORTED"}, False, []),
        ({"outcome": "OPEN", "txn": "0-5"}, False, ["aborted 0-5"]),
    ],
    ids=["never", "committed", "of this version", "aborted", "open"],
)
def test_x1_only_what_an_earlier_version_has_committed_stands_for_the_batch(
    monkeypatch: pytest.MonkeyPatch, known: dict[str, Any] | None, is_committed: bool, said: list[str]
) -> None:
    service = serving(monkeypatch, Service({} if known is None else {"former": known}))
    assert sink._committed_as(OPTIONS, "former") == is_committed
    assert service.said[1:] == said


def test_x1_what_an_earlier_version_may_have_committed_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    service = serving(monkeypatch, Service({"former": {"outcome": "UNKNOWN"}}))
    with pytest.raises(OutcomeUnknown, match="'former' is not known any more"):
        sink._commit(OPTIONS, BatchCommit("job/7", "0-1", (3,), CONTENT, "former"))
    assert service.said == ["described former"]
    late = serving(monkeypatch, Service({"former": {"outcome": "OPEN", "txn": "0-5"}}, aborts_as="COMMITTED"))
    assert sink._committed_as(OPTIONS, "former")
    assert late.said[-1] == "aborted 0-5"


def test_x1_of_a_failed_batch_all_that_its_query_has_open_is_aborted_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = batch_names.stream_sink(None, TOPIC)

    def name(batch: int) -> str:
        return batch_names.micro_batch_name(stream, QUERY, batch).text

    def opened(run: BatchRun, state: str = "OPEN") -> dict[str, Any]:
        return {"header": {"state": state, "attempt": run.stamp.hex()}}

    run, other = BatchRun(bytes(12) + MARK), BatchRun(bytes(12) + b"another.")
    named = {"0-1": None, "0-2": name(7), "0-3": name(8), **{f"0-{number}": name(7) for number in range(4, 9)}}
    described = {
        "0-2": opened(run), "0-4": opened(other), "0-5": opened(run, "COMMITTED"), "0-6": {"header": None},
        "0-7": opened(run),
    }  # fmt: skip
    service = serving(
        monkeypatch,
        Service(
            {txn: {"txn": txn, **one} for txn, one in described.items()},
            open=[{"txn": txn, "name": one} for txn, one in named.items()],
        ),
    )
    sink.StreamSink(OPTIONS, stream, MARK).abort([None], 7)
    assert [one for one in service.said if one.startswith("aborted")] == ["aborted 0-2", "aborted 0-7"]
    assert not [one for one in service.said if one in ("described 0-1", "described 0-3")]
    asked = len(service.said)
    sink.StreamSink(OPTIONS, stream).abort([None], 7)
    assert len(service.said) == asked, "without a mark nobody knows whose it is"


# How a sink is made

ROWS = t.StructType([t.StructField("value", t.BinaryType())])
NAMING = t.StructType([t.StructField("value", t.BinaryType()), t.StructField("Topic", t.StringType())])


def test_a_sink_replaces_nothing_and_writes_in_tasks_alone() -> None:
    with pytest.raises(InvalidArgument, match=r"outputMode\('complete'\) would replace"):
        sink.stream_sink(OPTIONS, ROWS, overwrite=True)
    with pytest.raises(InvalidArgument, match=r"mode\('overwrite'\) would replace"):
        sink.batch_sink(OPTIONS, ROWS, overwrite=True)
    for made in (sink.stream_sink(OPTIONS, ROWS, overwrite=False), sink.batch_sink(OPTIONS, ROWS, overwrite=False)):
        with pytest.raises(InvalidArgument, match="in tasks of Spark only"):
            made.write(iter([]))
    with pytest.raises(InvalidArgument, match="no column `value`"):
        sink.stream_sink(OPTIONS, t.StructType([]), overwrite=False)


def test_a_write_without_an_id_is_another_one_each_time_and_is_not_kept() -> None:
    names = [sink.batch_sink(OPTIONS, ROWS, overwrite=False).batch_name for _ in range(2)]
    assert names[0].text != names[1].text
    assert [(name.former, name.keep_newest) for name in names] == [("", False)] * 2
    given = SinkOptions.parse({"service.url": "txn://h:1", "topic": TOPIC, "writeId": "day-1"}, use="write")
    named = sink.batch_sink(given, ROWS, overwrite=False).batch_name
    assert (named.former, named.keep_newest) == (f"{TOPIC}/day-1", True)
    assert named == sink.batch_sink(given, ROWS, overwrite=False).batch_name


def test_a_write_whose_rows_name_their_topics_is_told_by_its_sink_as_well() -> None:
    given = SinkOptions.parse({"service.url": "txn://h:1", "topic": TOPIC, "writeId": "day-1"}, use="write")
    with pytest.raises(InvalidArgument, match="give each of them a `sinkName` of its own"):
        sink.batch_sink(given, NAMING, overwrite=False)
    for options in (OPTIONS, replace(given, sink_name="orders")):
        sink.batch_sink(options, NAMING, overwrite=False)
