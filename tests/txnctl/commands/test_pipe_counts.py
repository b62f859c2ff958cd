"""When `consume` ends, what `produce` and `consume` count, and what they say of it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from txnctl.commands import piping
from txnctl.commands.piping import (
    CHUNK_MESSAGES,
    WAIT_S,
    _consume,
    _Limits,
    _produce,
    _Progress,
    _send,
    _Sent,
    _tell_unread,
)
from txnctl.commands.shared.lines import Input, PipedMessage, Splitter
from txnctl.commands.shared.output import Format
from txnwire.errors import ConnectionLost, InvalidArgument, InvalidTxnState, Timeout

TOPIC = "topic://t/n/x"


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time that pipes see, in seconds; 100 at first."""
    now = [100.0]
    monkeypatch.setattr(piping, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return lambda seconds: now.__setitem__(0, seconds)


def limits(count: int | None = None, idle_s: float | None = None, timeout_s: float | None = None) -> _Limits:
    return _Limits(count, idle_s, timeout_s, began_s=100.0)


# ---- when consume ends ----------------------------------------------------------------------------------------------


def test_without_limits_it_goes_on(at: Callable[[float], None]) -> None:
    endless = limits()
    at(1e9)
    assert (endless.wanted, endless.wait_s(), endless.reached) == (CHUNK_MESSAGES, WAIT_S, False)
    assert not endless.over(received=0)
    assert not endless.over(received=1)


def test_a_count_is_asked_for_in_parts_and_reached(at: Callable[[float], None]) -> None:
    counting = limits(count=2 * CHUNK_MESSAGES + 3, timeout_s=10.0)
    for seen, wanted in ((0, CHUNK_MESSAGES), (2 * CHUNK_MESSAGES, 3), (2 * CHUNK_MESSAGES + 2, 1)):
        counting.seen = seen
        assert (counting.wanted, counting.reached, counting.over(received=1)) == (wanted, False, False)
    counting.seen += 1
    at(110.0)
    assert (counting.reached, counting.over(received=1)) == (True, True), "in the last moment"


def test_a_time_that_is_up_ends_it_and_is_an_error_where_a_count_was_asked_for(at: Callable[[float], None]) -> None:
    timed, counting = limits(timeout_s=10.0), limits(count=5, timeout_s=10.0)
    counting.seen = 4
    at(109.0)
    assert (timed.left_s, timed.wait_s()) == (1.0, 1.0)
    assert not timed.over(received=0)
    assert not counting.over(received=0)
    at(110.0)
    assert timed.over(received=1)
    with pytest.raises(Timeout, match=r"^4 of 5 messages came within 10 s$"):
        counting.over(received=1)
    at(111.0)
    assert timed.wait_s() == 0.0


def test_a_time_without_a_message_ends_it_and_bounds_each_wait(at: Callable[[float], None]) -> None:
    idle = limits(idle_s=3.0, timeout_s=10.0)
    assert idle.wait_s() == 3.0
    assert (idle.over(received=1), idle.over(received=0)) == (False, True)
    at(108.0)
    assert idle.wait_s() == 2.0


class Pages:
    """A consumer of these pages of values, and then of none, or of an error."""

    def __init__(self, *pages: list[bytes], error: Exception | None = None) -> None:
        self._pages, self._error = list(pages), error
        self.asked: list[int] = []
        self.acked: list[bytes] = []

    async def receive_many(self, at_most: int, *, timeout: float) -> list[Any]:
        self.asked.append(at_most)
        if not self._pages and self._error is not None:
            raise self._error
        return [SimpleNamespace(data=value) for value in (self._pages.pop(0) if self._pages else [])]

    async def ack(self, messages: list[Any]) -> None:
        assert messages, "nothing to ack"
        self.acked += [one.data for one in messages]


async def test_consume_prints_and_acks_every_page_and_asks_for_no_more_than_are_left(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    consumer, counting = Pages([b"a", b"b"], [], [b"c", b"d"]), limits(count=4)
    assert await _consume(cast(Any, consumer), counting, Format.TABLE, b"\n")
    assert capsysbinary.readouterr().out == b"a\nb\nc\nd\n"
    assert (consumer.asked, consumer.acked) == ([4, 2, 2], [b"a", b"b", b"c", b"d"])
    assert counting.seen == 4


async def test_consume_ends_at_the_first_page_without_a_message_where_it_may_not_be_idle() -> None:
    consumer = Pages([b"a"], [b"b"])
    assert await _consume(cast(Any, consumer), limits(idle_s=0.1), Format.TABLE, b"\n")
    assert len(consumer.asked) == 3


async def test_progress_has_all_messages_and_is_taken_back_also_after_an_error(
    at: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(piping, "PROGRESS_EVERY_S", 0.0)
    consumer = Pages([b"a", b"b"], [b"c"], error=ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        await _consume(cast(Any, consumer), limits(), Format.TABLE, b"\n")
    assert capsys.readouterr().err == (
        "\r\x1b[K2 messages received, 0 s\r\x1b[K3 messages received, 0 s\r\x1b[K"  # the last one clears the line
    )


# ---- what is said ---------------------------------------------------------------------------------------------------


def test_progress_is_told_twice_a_second_at_most_and_cleared_once(
    at: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress, said = _Progress(), []
    progress.clear()
    for seconds in (100.4, 100.5, 100.9, 103.0):
        at(seconds)
        progress.show(f"at {seconds}")
        said.append(capsys.readouterr().err)
    assert said == ["", "\r\x1b[Kat 100.5, 0 s", "", "\r\x1b[Kat 103.0, 3 s"]
    progress.clear()
    progress.clear()
    assert capsys.readouterr().err == "\r\x1b[K"


def test_progress_is_for_terminals_alone(at: Callable[[float], None], capsys: pytest.CaptureFixture[str]) -> None:
    progress = _Progress()
    at(200.0)
    progress.show("much")
    progress.clear()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("count", "said"), [(0, "0 messages"), (1, "1 message"), (2000, "2000 messages")])
def test_what_was_sent_is_told_to_people_beside_the_output_and_to_programs_in_it(
    capsys: pytest.CaptureFixture[str], count: int, said: str
) -> None:
    sent = _Sent(TOPIC, 0, Input.LINES, None, messages=count)
    sent.tell(Format.TABLE)
    assert tuple(capsys.readouterr()) == ("", f"{said} sent to {TOPIC}\n")
    sent.tell(Format.JSON)
    out, err = capsys.readouterr()
    assert (f'"messages": {count}' in out, '"transactions": 0' in out, err) == (True, True, "")


@pytest.mark.parametrize(("unread", "said"), [(1, "1 message. Other"), (2, "2 messages. Other")])
async def test_what_is_left_unread_is_told_with_why_that_may_be(
    capsys: pytest.CaptureFixture[str], unread: int, said: str
) -> None:
    async def lag() -> Any:
        return SimpleNamespace(messages=unread)

    await _tell_unread(cast(Any, SimpleNamespace(lag=lag)))
    assert f"not acked by the subscription: {said} consumers have them" in capsys.readouterr().err


async def test_where_nothing_is_left_unread_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    async def lag() -> Any:
        return SimpleNamespace(messages=0)

    await _tell_unread(cast(Any, SimpleNamespace(lag=lag)))
    assert capsys.readouterr().err == ""


# ---- produce --------------------------------------------------------------------------------------------------------


class Producer:
    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []
        self.alone: list[dict[str, object]] = []

    async def send_many(self, messages: list[tuple[bytes | None, bytes]], *, txn: object) -> None:
        self.sent.append([value for _, value in messages])

    async def send(self, value: bytes, **more: object) -> None:
        self.sent.append([value])
        self.alone.append(more)


async def produced(
    monkeypatch: pytest.MonkeyPatch, data: bytes, *, form: Input = Input.LINES, end: bytes = b"\n"
) -> tuple[Producer, _Sent, Exception | None]:
    """What `produce` without transactions sends of this standard input, what it counts, and its error."""
    its, ours = os.pipe()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(fileno=lambda: its))
    producer, sent, error = Producer(), _Sent(TOPIC, 0, form, None), None
    writing = asyncio.create_task(asyncio.to_thread(write, ours, data))
    try:
        await _produce(cast(Any, None), cast(Any, producer), sent, Splitter(end), 60.0)
    except InvalidArgument as one:
        error = one
    await writing
    os.close(its)
    return producer, sent, error


def write(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb", buffering=0) as pipe:
        pipe.write(data)


async def test_all_lines_are_sent_also_a_last_one_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    producer, sent, error = await produced(monkeypatch, b"a\n\nb\nlast")
    assert [value for batch in producer.sent for value in batch] == [b"a", b"", b"b", b"last"]
    assert (sent.lines, sent.messages, sent.transactions, error) == (4, 4, 0, None)


async def test_of_lines_with_a_wrong_one_those_before_it_are_sent_and_counted_and_none_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = b"".join(b'{"value": "%d"}\n' % number for number in range(3))
    producer, sent, error = await produced(monkeypatch, lines + b'{}\n{"value": "3"}\n', form=Input.JSON)
    assert (producer.sent, sent.messages) == ([[b"0", b"1", b"2"]], 3)
    assert str(error).startswith("line 4: neither")


async def test_a_message_with_more_than_key_and_value_is_sent_with_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = b'{"value": "1", "key": "k", "properties": {"a": "b"}, "event_time_ms": 5}'
    lines = b'{"value": "0"}\n' + whole + b'\n{"value": "2"}\n'
    producer, sent, _ = await produced(monkeypatch, lines, form=Input.JSON)
    assert (producer.sent, sent.messages) == ([[b"0"], [b"1"], [b"2"]], 3)
    assert producer.alone == [{"key": b"k", "properties": {"a": "b"}, "event_time_ms": 5, "txn": None}]


async def test_an_input_without_a_line_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    producer, sent, error = await produced(monkeypatch, b"")
    assert (producer.sent, sent.lines, sent.messages, error) == ([], 0, 0, None)


async def test_lines_longer_than_what_is_read_at_once_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    long = [bytes([65 + number]) * (piping.READ_BYTES + number) for number in range(3)]
    producer, _, _ = await produced(monkeypatch, b"\0".join(long), end=b"\0")
    assert [value for batch in producer.sent for value in batch] == long


class Transactions:
    """A client whose transactions end as they are told when their commit is asked for again."""

    def __init__(self, *, begins: bool) -> None:
        self._begins = begins
        self.under_way = asyncio.Event()

    @asynccontextmanager
    async def transaction(self, *, timeout: float) -> AsyncIterator[Any]:
        if not self._begins:
            self.under_way.set()
            await asyncio.Event().wait()
        yield SimpleNamespace(commit=self._commit)

    async def _commit(self, *, timeout: float) -> None:
        raise InvalidTxnState("it is ABORTED")

    async def send_many(self, messages: object, *, txn: object) -> None:
        self.under_way.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("begins", [False, True], ids=["before it began", "before it was committed"])
async def test_a_transaction_that_ctrl_c_has_cut_off_is_not_counted(begins: bool) -> None:
    client, sent = Transactions(begins=begins), _Sent(TOPIC, 1, Input.LINES, None)
    sending = asyncio.create_task(
        _send(cast(Any, client), cast(Any, client), sent, [PipedMessage(None, b"a")], timeout_s=60.0)
    )
    await client.under_way.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert (sent.messages, sent.transactions) == (0, 0)
