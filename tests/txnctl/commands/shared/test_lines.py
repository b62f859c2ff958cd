"""Messages as lines: what goes into a pipe comes out of it, byte for byte."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnctl.commands.shared import lines
from txnctl.commands.shared.lines import Input, PipedMessage, Splitter, parse, runs
from txnwire.errors import InvalidArgument


@given(st.binary(max_size=400), st.lists(st.integers(1, 50), max_size=20), st.sampled_from((b"\n", b"\0")))
def test_lines_are_the_same_however_they_are_cut_on_their_way(data: bytes, cuts: list[int], end: bytes) -> None:
    splitter, found, at = Splitter(end), list[bytes](), 0
    for size in [*cuts, len(data) + 1]:
        if at < len(data):
            found += splitter.take(data[at : at + size])
            at += size
    found += splitter.rest()
    whole = data.split(end)
    assert found == (whole if whole[-1] else whole[:-1])


def test_a_line_that_never_ends_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100)
    splitter = Splitter(b"\n")
    assert splitter.take(b"x" * 90 + b"\n" + b"y" * 90) == [b"x" * 90]
    with pytest.raises(InvalidArgument, match="line 2 is longer than 100 bytes"):
        splitter.take(b"y" * 90)
    several = Splitter(b"\n")
    assert len(several.take(b"x\n" * 3)) == 3
    with pytest.raises(InvalidArgument, match="line 4 is longer than 100 bytes"):
        several.take(b"y" * 101)


def test_lines_that_are_cut_on_their_way_do_not_add_up_to_one_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100)
    splitter = Splitter(b"\n")
    found = [line for _ in range(10) for line in splitter.take(b"x" * 40 + b"\n" + b"y" * 40)]
    assert [len(line) for line in found] == [40, *[80] * 9]


def encoded(value: bytes, key: bytes | None) -> bytes:
    row: dict[str, object] = {**lines._text("value", value), **lines._text("key", key), "id": "ignored"}
    return msgspec.json.encode(row)


@given(st.binary(), st.none() | st.binary())
def test_json_carries_any_bytes_back(value: bytes, key: bytes | None) -> None:
    assert parse(encoded(value, key), Input.JSON, None, 1) == PipedMessage(key, value)


def test_text_is_told_as_text_and_other_bytes_besides() -> None:
    assert lines._text("value", "é".encode()) == {"value": "é"}
    assert lines._text("value", b"\xff\x00") == {
        "value": "\ufffd\x00",
        "value_base64": base64.b64encode(b"\xff\x00").decode(),
    }


def test_a_record_has_all_that_a_message_can_have() -> None:
    line = b'{"value": "{\\"c\\": 7}", "properties": {"a": "b"}, "event_time_ms": 5}'
    assert parse(line, Input.JSON, "c", 1) == PipedMessage(b"7", b'{"c": 7}', {"a": "b"}, 5)


@pytest.mark.parametrize(
    ("line", "form", "key_field", "said"),
    [
        (b"{", Input.JSON, None, "line 3: .* in '{'"),
        (b'{"key": "k"}', Input.JSON, None, 'line 3: neither "value" nor "value_base64"'),
        (b'{"value": 7}', Input.JSON, None, "line 3: Expected `str | null`"),
        (b'{"value_base64": "?"}', Input.JSON, None, "line 3: "),
        (b"[1]", Input.LINES, "k", "line 3: .* for --key-field k"),
        (b'{"other": 1}', Input.LINES, "k", "line 3: no field 'k'"),
    ],
)
def test_a_wrong_line_is_named(line: bytes, form: Input, key_field: str | None, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse(line, form, key_field, 3)


@given(st.lists(st.booleans(), max_size=30))
def test_bulk_and_single_messages_keep_their_order(plain: list[bool]) -> None:
    messages = [PipedMessage(None, b"%d" % n, None if one else {"p": "1"}) for n, one in enumerate(plain)]
    found = list(runs(messages))
    assert [message for run in found for message in run] == messages
    assert all(len(run) == 1 or all(message.plain for message in run) for run in found)


@pytest.mark.parametrize("more", [{"properties": {"a": "b"}}, {"event_time_ms": 0}], ids=["properties", "event time"])
def test_a_message_with_more_than_key_and_value_is_sent_alone(more: dict[str, Any]) -> None:
    """In bulk go keys and values: whatever else it has would be lost on the way."""
    plain, special = PipedMessage(b"k", b"v"), PipedMessage(b"k", b"v", **more)
    assert list(runs([plain, plain, special, special, plain])) == [[plain, plain], [special], [special], [plain]]
