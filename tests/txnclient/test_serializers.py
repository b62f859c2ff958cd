"""Serializers: what they take, what they refuse, and whom an error names."""

from __future__ import annotations

import gc
import pickle
import struct
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import txnclient
from txnclient.consuming.received.message import Message, ReceivedEntry
from txnclient.serializers import JsonSerializer, StrSerializer, decode, encode, serializer_of
from txnwire.entry import OutgoingMessage, encode_entry
from txnwire.ids import MessageId, Position

SEGMENT = "public/default/orders/0000-ffff-0"
ID = MessageId(SEGMENT, Position(1, 2), 0)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON)
def test_json_comes_back_as_it_went(value: Any) -> None:
    serializer = JsonSerializer()
    assert decode(serializer, encode(serializer, value), ID, "topic") == value


@given(st.text())
def test_text_comes_back_as_it_went(value: str) -> None:
    serializer = StrSerializer()
    try:
        data = encode(serializer, value)
    except txnclient.InvalidArgument:
        with pytest.raises(UnicodeEncodeError):  # a lone surrogate, which is no text
            value.encode()
    else:
        assert decode(serializer, data, ID, "topic") == value


def test_bytes_need_no_serializer_and_pairs_and_objects_are_taken() -> None:
    assert serializer_of(None) is None
    assert serializer_of("bytes") is None
    pair = serializer_of((struct.Struct("<q").pack, lambda data: struct.unpack("<q", data)[0]))
    assert pair is not None
    assert pair.decode(pair.encode(7)) == 7
    own = JsonSerializer()
    assert serializer_of(own) is own


@pytest.mark.parametrize("wrong", ["yaml", "", (str.encode,), (1, 2), (str.encode, 2), (1, bytes.decode), 5, object()])
def test_anything_else_is_refused(wrong: Any) -> None:
    with pytest.raises(txnclient.InvalidArgument, match="serializer"):
        serializer_of(wrong)


@pytest.mark.parametrize(
    ("serializer", "value"),
    [("str", b"bytes"), ("json", {1, 2}), ("json", float("nan")), ((lambda value: value, bytes), "no bytes")],
)
def test_what_cannot_be_encoded_is_the_caller_s_fault(serializer: Any, value: Any) -> None:
    known = serializer_of(serializer)
    assert known is not None
    with pytest.raises(txnclient.InvalidArgument, match="serializer"):
        encode(known, value)


def test_what_cannot_be_decoded_names_topic_and_message_and_keeps_the_bytes() -> None:
    calls: list[bytes] = []

    def count_down(data: bytes) -> int:
        calls.append(data)
        return int(data)

    raw = encode_entry(
        [OutgoingMessage(b"12"), OutgoingMessage(b"no number")],
        producer="p",
        incarnation=1,
        sequence_id=0,
        publish_time_ms=1,
    )
    entry = ReceivedEntry(SEGMENT, Position(1, 2), raw, serializer=serializer_of((str.encode, count_down)))
    good, bad = entry.messages(range(2))
    assert calls == []
    assert (good.value, good.value) == (12, 12)
    assert calls == [b"12"]
    with pytest.raises(txnclient.UndecodableMessage) as raised:
        bad.value  # noqa: B018 - decoded when it is read
    assert "topic://public/default/orders" in str(raised.value)
    assert str(bad.id) in str(raised.value)
    assert "ValueError" in str(raised.value)
    assert bad.data == b"no number"
    assert "no number" not in repr(bad)


class Order:
    """A value that knows its message, as an application may have it."""

    message: object = None


@pytest.mark.parametrize("pickled", [False, True])
def test_a_message_that_its_own_value_refers_to_is_collected(pickled: bool) -> None:
    """▲ The garbage collector does not visit messages of bytes, which refer to nothing but their entry."""
    raw = encode_entry([OutgoingMessage(b"1")], producer="p", incarnation=1, sequence_id=0, publish_time_ms=1)

    def received(serializer: Any) -> Message[Any]:
        return ReceivedEntry(SEGMENT, Position(1, 2), raw, serializer=serializer).messages([0])[0]

    plain = received(None)
    assert not gc.is_tracked(plain)
    assert plain.__struct_fields__ == ("_entry", "index")

    message = received(serializer_of((lambda order: b"1", lambda data: Order())))
    if pickled:
        message = pickle.loads(pickle.dumps(message))
    order = message.value
    order.message = message
    gone = weakref.ref(order)
    del order, message
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("serializer", [None, serializer_of("str")])
def test_messages_are_keys_and_differ_also_where_their_bytes_are_the_same(serializer: Any) -> None:
    raw = encode_entry([OutgoingMessage(b"1")] * 2, producer="p", incarnation=1, sequence_id=0, publish_time_ms=1)
    entry = ReceivedEntry(SEGMENT, Position(1, 2), raw, serializer=serializer)
    messages = [*entry.messages(range(2)), *entry.messages(range(2))]
    assert messages[0] != messages[2]
    assert len(dict.fromkeys(messages)) == 4
