"""A message that cannot be sent fails alone, at its own call; those it would have shared an entry with are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import TOPIC, connected
from txnclient.producing.outgoing import MAX_MESSAGE_BYTES, MESSAGE_OVERHEAD_BYTES, PROPERTY_OVERHEAD_BYTES, checked
from txnwire.entry import OutgoingMessage, decode_block, encode_entry
from txnwire.protocol import MAX_VALUE_BYTES

MALFORMED: dict[str, tuple[dict[str, Any], type[txnclient.TxnError]]] = {
    "half a character in a property": ({"properties": {"p": "\ud800"}}, txnclient.InvalidArgument),
    "half a character in a property's name": ({"properties": {"\udfff": "v"}}, txnclient.InvalidArgument),
    "half a character in the key": ({"key": "\ud800"}, txnclient.InvalidArgument),
    "no mapping": ({"properties": [("a", "b")]}, txnclient.InvalidArgument),
    "a time after 64 bits": ({"event_time_ms": 1 << 63}, txnclient.InvalidArgument),
    "a time before 64 bits": ({"event_time_ms": -(1 << 63)}, txnclient.InvalidArgument),
    "a time that is none": ({"event_time_ms": "now"}, txnclient.InvalidArgument),
    "properties too large": ({"properties": {"p": "x" * 5_400_000}}, txnclient.MessageTooLarge),
    "properties too large in UTF-8": (
        {"properties": {"p": "\N{GRINNING FACE}" * 1_500_000}},
        txnclient.MessageTooLarge,
    ),
    "a key too large": ({"key": b"x" * 5_400_000}, txnclient.MessageTooLarge),
}


@pytest.mark.parametrize("what", MALFORMED)
@virtual_time
async def test_c9_a_malformed_message_is_refused_at_its_call_and_its_neighbours_are_stored(what: str) -> None:
    """Dies where it is found once it shares an entry with them."""
    options, error = MALFORMED[what]
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC, batch_bytes=MAX_VALUE_BYTES)
        key = options.get("key", "k")
        sent = [producer.send_nowait(b"%d" % number, key="k") for number in range(50)]
        with pytest.raises(error):
            producer.send_nowait(b"bad", **{"key": key, **options})
        with pytest.raises(error):
            await producer.send(b"bad", **{"key": key, **options})
        sent += [producer.send_nowait(b"%d" % number, key="k") for number in range(50, 100)]
        with pytest.raises(error):
            await producer.send_many([txnclient.OutgoingMessage(b"bad", **options)])
        await asyncio.gather(*sent)
        assert cluster.values_by_key() == {b"k": [b"%d" % number for number in range(100)]}


@pytest.mark.parametrize("keys", [["ok", "\ud800"], [b"ok", b"x" * 5_400_000]])
@virtual_time
async def test_c9_a_malformed_key_of_a_bulk_send_is_an_error_of_ours(keys: list[Any]) -> None:
    async with connected() as (_, client):
        producer = await client.producer(TOPIC)
        with pytest.raises((txnclient.InvalidArgument, txnclient.MessageTooLarge)):
            await producer.send_many([(key, b"v") for key in keys])


@virtual_time
async def test_properties_that_change_behind_the_call_are_sent_as_they_were() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        properties: dict[str, Any] = {"a": "1"}
        sent = producer.send_nowait(b"v", properties=properties)
        properties["a"] = object()
        await sent
        ((entry,),) = [entries for entries in cluster.entries.values() if entries]
        assert decode_block(entry).properties(0) == {"a": "1"}


@pytest.mark.parametrize(
    ("value", "key", "properties"),
    [
        (b"v" * MAX_VALUE_BYTES, None, {}),
        (b"v" * MAX_VALUE_BYTES, b"k" * (MAX_MESSAGE_BYTES - MAX_VALUE_BYTES - MESSAGE_OVERHEAD_BYTES), {}),
        (b"", b"k" * (MAX_MESSAGE_BYTES - MESSAGE_OVERHEAD_BYTES), {}),
        (b"", None, {"n": "v" * (MAX_MESSAGE_BYTES - MESSAGE_OVERHEAD_BYTES - PROPERTY_OVERHEAD_BYTES - 1)}),
        (b"", None, {f"{n:06}": "" for n in range((MAX_MESSAGE_BYTES - MESSAGE_OVERHEAD_BYTES) // 14 - 1)}),
    ],
    ids=["value", "value and key", "key", "property", "properties"],
)
def test_c9_the_largest_message_fits_its_entry_and_one_more_byte_is_refused(
    value: bytes, key: bytes | None, properties: Mapping[str, str]
) -> None:
    message, size = checked(value, key, properties, 1)
    entry = encode_entry(
        [message], producer="p" * 128, incarnation=(1 << 64) - 1, sequence_id=1 << 62, publish_time_ms=1 << 62
    )
    assert decode_block(entry).value(0) == value
    more = {**properties, "one more": "x" * (MAX_MESSAGE_BYTES - size - 15)}
    with pytest.raises(txnclient.MessageTooLarge):
        checked(value, key, more, 1)


def test_a_batch_of_many_messages_in_every_column_fits_its_entry() -> None:
    """What a message counts for covers what it takes, also where others have keys, properties or times."""
    count = 10_000
    left = MAX_VALUE_BYTES // count
    messages = [checked(b"v" * (left - MESSAGE_OVERHEAD_BYTES), None, None, None) for _ in range(count)]
    messages[0] = checked(b"", b"k", {"p": "v"}, 1)
    assert sum(size for _, size in messages) <= MAX_VALUE_BYTES
    assert encode_entry(
        [OutgoingMessage(*message) for message, _ in messages],
        producer="p" * 128,
        incarnation=1,
        sequence_id=1,
        publish_time_ms=1,
    )
