"""What the audit asks of a service: each segment to its end, however many answers that takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pyspark_txnstore.jobs import stored_entries
from pyspark_txnstore.jobs.stored_entries import ServiceAddress
from txnclient import EntryHead, Snapshot, WholeEntry
from txnclient.reading.snapshot import SegmentBounds, TopicBounds
from txnwire.block import OutgoingMessage, decode_block, encode_block
from txnwire.errors import ConnectionLost, TxnNotFound
from txnwire.ids import EARLIEST, Position, TxnId

TOPIC = "topic://t/n/name"
PARENT, LEFT, RIGHT = "t/n/name/0000-ffff-0", "t/n/name/0000-7fff-1", "t/n/name/8000-ffff-2"
SERVICE = ServiceAddress("txn://h:1", 5.0)
END = Position(1, 9)
TXN = TxnId(1, 7)


class Answer:
    """One in pages, the first of them empty."""

    def __init__(self, service: Pages, pages: list[list[Any]]) -> None:
        self._service = service
        self._pages = iter([[], *pages])
        service.open += 1

    def __iter__(self) -> Iterator[list[Any]]:
        return self

    def __next__(self) -> list[Any]:
        page = next(self._pages)
        if page is FAILING:
            raise ConnectionLost("the broker is gone")
        return page

    def close(self) -> None:
        self._service.open -= 1


FAILING: list[Any] = [None]


class Pages:
    """A service that answers in pages of two. `open`: how many answers are."""

    def __init__(self, kept: dict[str, list[EntryHead]]) -> None:
        self._kept = kept
        self.open = 0
        self.fails = False

    def _pages(self, path: str, end: Position) -> list[list[EntryHead]]:
        heads = [head for head in self._kept[path] if head.position <= end]
        return [heads[at : at + 2] for at in range(0, len(heads), 2)]

    def scan_entries(self, path: str, *, after: Position, end: Position, trimmed: str) -> Answer:
        assert (after, trimmed) == (EARLIEST, "skip")
        return Answer(self, [FAILING] if self.fails else self._pages(path, end))

    def read_entries(self, path: str, *, isolation: str, after: Position, end: Position, trimmed: str) -> Answer:
        assert (after, trimmed, isolation) == (EARLIEST, "skip", "read_uncommitted")
        block = decode_block(encode_block([OutgoingMessage(b"x")]))
        pages = [
            [WholeEntry(one.position, one.txn_id, one.writer, "p", 0, 0, block, 1) for one in page]
            for page in self._pages(path, end)
        ]
        return Answer(self, [*pages, FAILING] if self.fails else pages)


class Frame:
    """A DataFrame of Spark's, and the session that makes it: it keeps what its tasks are to run."""

    def __init__(self) -> None:
        self.ran: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None = None
        self.tasks: tuple[int, ...] = ()

    def range(self, *tasks: int) -> Frame:
        self.tasks = tasks
        return self

    def select(self, *_: str) -> Frame:
        return self

    def mapInArrow(self, function: Any, _: Any) -> Frame:
        self.ran = function
        return self

    def groupBy(self, *_: str) -> Frame:
        return self

    def agg(self, *_: Any) -> Frame:
        return self

    def rows(self, *batches: dict[str, list[Any]]) -> list[dict[str, Any]]:
        """Of one task that gets these batches."""
        assert self.ran is not None
        given = (pa.RecordBatch.from_pydict(batch) for batch in batches)
        return [row for batch in self.ran(given) for row in batch.to_pylist()]


def head(entry: int, writer: int = 0, *, aborted: bool = False) -> EntryHead:
    return EntryHead(Position(1, entry), TXN if writer else None, writer, 1, 1, 0, aborted, None)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    """▲ Of which no answer stays open: a broker keeps its credit for whoever asked."""
    pages = Pages({})
    monkeypatch.setattr(stored_entries, "client_of", lambda *_, **__: pages)
    yield pages
    assert pages.open == 0


@pytest.fixture
def kept(service: Pages) -> dict[str, list[EntryHead]]:
    return service._kept


def test_entries_of_all_answers_are_stored(kept: dict[str, list[EntryHead]]) -> None:
    kept[LEFT] = [head(entry) for entry in range(3, 8)]
    batches = stored_entries._batches(SERVICE, LEFT, END)
    assert [row["entry_id"] for batch in batches for row in batch.to_pylist()] == [3, 4, 5, 6, 7]


def test_writers_in_all_answers_are_told(kept: dict[str, list[EntryHead]]) -> None:
    kept[LEFT] = [head(3), head(4, 1), head(5, 1), head(6), head(7, 2, aborted=True), head(8, 3)]
    told = dict(stored_entries._told(SERVICE, LEFT, END))
    assert told == {(str(TXN), f"{writer:016x}"): writer != 2 for writer in (1, 2, 3)}


def test_what_is_kept_begins_elsewhere_in_each_segment(kept: dict[str, list[EntryHead]]) -> None:
    kept |= {PARENT: [], LEFT: [head(3), head(4), head(5)], RIGHT: [head(0)]}
    bounds = dict.fromkeys((PARENT, LEFT, RIGHT), SegmentBounds(END, END))
    found = stored_entries.first_kept(SERVICE, Snapshot(5, {TOPIC: TopicBounds(1, bounds)}))
    assert found == {PARENT: END, LEFT: Position(1, 2), RIGHT: Position(1, -1)}


def test_a_service_that_fails_leaves_no_answer_open(service: Pages, kept: dict[str, list[EntryHead]]) -> None:
    kept[LEFT] = [head(3)]
    service.fails = True
    asked: list[Callable[[], Any]] = [
        lambda: list(stored_entries._batches(SERVICE, LEFT, END)),
        lambda: stored_entries._told(SERVICE, LEFT, END),
        lambda: stored_entries.first_kept(SERVICE, cut_of(LEFT)),
    ]
    for ask in asked:
        with pytest.raises(ConnectionLost) as raised:
            ask()
        assert service.open == 0, raised


def cut_of(*paths: str, pending: tuple[TxnId, ...] = ()) -> Snapshot:
    """Nothing has been sent to the parent."""
    ends = {path: EARLIEST if path == PARENT else END for path in paths}
    bounds = {path: SegmentBounds(end, end) for path, end in ends.items()}
    return Snapshot(5, {TOPIC: TopicBounds(1, bounds)}, pending)


@pytest.mark.parametrize("numbers", [[[0, 1]], [[0], [1]]])
def test_a_task_reads_all_of_its_segments(kept: dict[str, list[EntryHead]], numbers: list[list[int]]) -> None:
    kept |= {LEFT: [head(3), head(4)], RIGHT: [head(5), head(10)]}
    frame: Any = Frame()
    stored_entries.stored_entries(frame, SERVICE, cut_of(PARENT, LEFT, RIGHT))
    assert frame.tasks == (0, 2, 1, 2), "a task for each segment with something in it"
    found = frame.rows(*({"id": some} for some in numbers))
    assert [(row["segment"], row["entry_id"]) for row in found] == [(LEFT, 3), (LEFT, 4), (RIGHT, 5)]
    empty: Any = Frame()
    stored_entries.stored_entries(empty, SERVICE, cut_of(PARENT))
    assert empty.tasks == (0, 0, 1, 1), "Spark makes nothing of no task"


@pytest.mark.parametrize("numbers", [[[0, 1]], [[0], [1]]])
def test_a_task_tells_the_writers_of_all_of_its_segments(
    kept: dict[str, list[EntryHead]], numbers: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    column = SimpleNamespace(alias=str)
    monkeypatch.setattr(stored_entries, "F", SimpleNamespace(bool_or=lambda _: column))  # which asks a running Spark
    kept |= {LEFT: [head(3, 1), head(4, 2)], RIGHT: [head(5, 2, aborted=True)]}
    frame: Any = Frame()
    stored_entries.told_writers(frame, SERVICE, cut_of(LEFT, RIGHT), [LEFT, RIGHT])
    found = frame.rows(*({"id": some} for some in numbers))
    assert [(int(row["writer"], 16), row["counts"]) for row in found] == [(1, True), (2, True), (2, False)]


class Coordinators:
    """They know these transactions; what is collected amid a question is unknown once. `asked`: by question."""

    def __init__(self, states: dict[TxnId, str], *, collected: tuple[TxnId, ...] = ()) -> None:
        self._states = states
        self._collected = list(collected)
        self.asked: list[list[str]] = []
        self.described: list[str] = []

    def outcomes(self, asked: Iterable[str]) -> dict[TxnId, str]:
        ids = [TxnId.parse(text) for text in asked]
        self.asked.append([str(txn_id) for txn_id in ids])
        answer = {one: "UNKNOWN" if one in self._collected else self._states.get(one, "UNKNOWN") for one in ids}
        self._collected.clear()
        return answer

    def transaction_info(self, txn_id: str) -> dict[str, Any]:
        self.described.append(txn_id)
        return {"header": {"writers": [f"{1:016x}"]}}


def test_how_all_transactions_ended_is_asked_for_in_several_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [TxnId(1, number) for number in range(1, 6)]
    outcomes = dict(zip(ids, ["COMMITTED", "ABORTED", "OPEN", "COMMITTED", "COMMITTED"], strict=True))
    service = Coordinators(outcomes)
    monkeypatch.setattr(stored_entries, "client_of", lambda *_, **__: service)
    monkeypatch.setattr(stored_entries, "QUESTION_IDS", 2)
    frame: Any = Frame()
    stored_entries.known_transactions(frame, SERVICE, cut_of(LEFT, pending=(ids[2], ids[4])))
    texts = [str(txn_id) for txn_id in ids]
    batches = ({"txn_id": texts[:3], "named": [True] * 3}, {"txn_id": texts[3:], "named": [False, True]})
    found = frame.rows(*batches)
    assert service.asked == [texts[:2], texts[2:4], texts[4:]]
    assert service.described == [texts[0], texts[4]], "of a named one that has committed"
    assert [(row["txn_id"], row["state"], row["pending"]) for row in found] == [
        (text, outcomes[txn_id], number in (2, 4)) for number, (txn_id, text) in enumerate(zip(ids, texts, strict=True))
    ]
    assert [row["writers"] for row in found] == [[f"{1:016x}"], None, None, None, [f"{1:016x}"]]


def test_transactions_that_are_collected_amid_a_question_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """▲ Unknown, the whole audit would be undecided."""
    ids = [TxnId(1, number) for number in range(1, 5)]
    service = Coordinators(dict.fromkeys(ids[:3], "ABORTED"), collected=(ids[0], ids[2]))
    monkeypatch.setattr(stored_entries, "client_of", lambda *_, **__: service)
    found = stored_entries._answers(SERVICE, {str(txn_id): False for txn_id in ids})
    assert [one["state"] for one in found.values()] == ["ABORTED"] * 3 + ["UNKNOWN"]
    assert service.asked[1:] == [[str(ids[0]), str(ids[2]), str(ids[3])]]
    stored_entries._answers(SERVICE, {str(ids[1]): False})
    assert len(service.asked) == 3, "not where all are known"


@pytest.mark.parametrize(
    ("info", "writers", "is_known"),
    [
        ({"header": {"writers": ["1"]}}, ["1"], True),
        ({"header": {}}, None, False),
        ({"header": None, "writers": ["2"]}, ["2"], True),
        ({"header": None, "writers": None}, None, True),
        ({"header": None}, None, False),
    ],
)
def test_writers_are_those_that_the_header_or_the_outcome_tells(
    info: dict[str, Any], writers: list[str] | None, is_known: bool
) -> None:
    told = stored_entries._writers(lambda _: info, str(TXN), asks=True)
    assert told == {"writers": writers, "writers_known": is_known}
    assert stored_entries._writers(lambda _: {}, str(TXN), asks=False) == {"writers": None, "writers_known": True}


def test_writers_of_a_transaction_that_is_collected_meanwhile_are_not_known() -> None:
    def collected(txn_id: str) -> dict[str, Any]:
        raise TxnNotFound(txn_id)

    assert stored_entries._writers(collected, str(TXN), asks=True) == {"writers": None, "writers_known": False}
