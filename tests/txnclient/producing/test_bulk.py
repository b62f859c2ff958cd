"""Bulk sends: cutting into entries, ids made when looked at, and what happens in between."""

from __future__ import annotations

import asyncio
from collections import UserDict, UserList
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, connected
from tests.waiting import until
from txnclient.producing.bulk import FIRST_PULLED, PART_MESSAGES, PULLED_BYTES, BulkPart, parts_of, runs_no_code
from txnclient.producing.outgoing import MESSAGE_OVERHEAD_BYTES, checked
from txnwire.entry import Columns, OutgoingMessage, decode_block, parse_metadata
from txnwire.errors import InvalidArgument, StoreFull, TxnConflict
from txnwire.ids import hash_key
from txnwire.protocol import MAX_VALUE_BYTES

keys = st.none() | st.binary(max_size=4) | st.text(max_size=4)
values = st.binary(max_size=200)
properties = st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)
bulk_messages = st.one_of(
    st.lists(values, min_size=1, max_size=40),
    st.lists(st.tuples(keys, values), min_size=1, max_size=40),
    st.lists(
        values | st.tuples(keys, values) | st.builds(OutgoingMessage, values, keys, properties, st.none() | st.just(7)),
        min_size=1,
        max_size=40,
    ),
)


def _one_by_one(message: Any) -> tuple[OutgoingMessage, int]:
    if isinstance(message, OutgoingMessage):
        return checked(*message)
    return (
        checked(message[1], message[0], None, None)
        if isinstance(message, tuple)
        else checked(message, None, None, None)
    )


@given(bulk_messages, st.integers(1, 500))
def test_runs_hold_the_messages_in_order_and_within_the_bound(messages: list[Any], batch_bytes: int) -> None:
    expected = [_one_by_one(message) for message in messages]
    found: list[OutgoingMessage] = []
    for columns, size in BulkPart.of(messages).runs(batch_bytes):
        count = len(columns.values)
        sizes = [one for _, one in expected[len(found) : len(found) + count]]
        assert sum(sizes) == size
        assert size <= batch_bytes or count == 1
        rest = expected[len(found) + count :]
        assert not rest or size + rest[0][1] > batch_bytes, "a run is as long as it may be"
        for index in range(count):
            found.append(OutgoingMessage(*(None if column is None else column[index] for column in columns)))
    assert found == [message for message, _ in expected]


@given(bulk_messages, st.integers(1, 7))
def test_columns_are_what_their_messages_are(messages: list[Any], part_messages: int) -> None:
    """Whichever columns there are, and whatever is in them; a column that nobody fills may be left out."""
    whole = [_one_by_one(message) for message in messages]
    columns = Columns(*map(list, zip(*(message for message, _ in whole), strict=True)))
    shorter = Columns.of([message for message, _ in whole])
    for given_columns in (columns, shorter):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("txnclient.producing.bulk.PART_MESSAGES", part_messages)
            parts = list(parts_of(given_columns))
        assert sum(map(len, parts)) == len(whole)
        assert sum(part.bytes for part in parts) == sum(size for _, size in whole)
        found: list[OutgoingMessage] = []
        for part in parts:
            for index in range(len(part)):
                found.append(OutgoingMessage(*(None if one is None else one[index] for one in part.columns)))
        assert found == [message for message, _ in whole]


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (Columns([b"a", b"b"], [b"k"]), "a column has 1 items, that of the values 2"),
        (Columns([b"a"], None, None, [1, 2]), "a column has 2 items, that of the values 1"),
        (Columns([b"a"], iter([b"k"])), "a column is a sequence"),  # type: ignore[arg-type]
        (Columns(["a"]), "not str"),  # type: ignore[list-item]
        (Columns([b"a"], [7]), "not int"),  # type: ignore[list-item]
        (Columns([b"a"], None, [{"a": 1}]), "str to str"),  # type: ignore[dict-item]
        (Columns([b"a"], None, None, ["now"]), "whole number"),  # type: ignore[list-item]
        (Columns([bytes(MAX_VALUE_BYTES + 1)]), "chunk=True"),
    ],
)
def test_malformed_columns_are_refused(columns: Columns, named: str) -> None:
    with pytest.raises(txnclient.TxnError, match=named):
        list(parts_of(columns))


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("text", "not str"),
        ((b"k", "text"), "not str"),
        ((1, b"v"), "not int"),
        ((b"k", b"v", b"w"), "tuples of 3"),
        (bytes(MAX_VALUE_BYTES + 1), "chunk=True"),
        (OutgoingMessage(b"v", b"k", {"a": 1}), "str to str"),  # type: ignore[dict-item]
    ],
)
def test_malformed_messages_are_refused(message: Any, named: str) -> None:
    for messages in ([message], [b"fine", message]):
        with pytest.raises(txnclient.TxnError, match=named):
            BulkPart.of(messages)


def test_columns_run_no_code_of_the_caller_if_each_is_a_plain_list() -> None:
    values = [b"a"]
    assert runs_no_code(Columns(values, [b"k"], [{"a": "b"}], (7,)))
    for columns in (
        Columns(UserList(values)),
        Columns(values, UserList([b"k"])),
        Columns(values, None, [UserDict({"a": "b"})]),
        Columns(values, None, None, UserList([7])),
    ):
        assert not runs_no_code(columns)
    assert not runs_no_code(values)


@pytest.mark.parametrize("messages", [b"bytes", "text"])
def test_one_value_is_not_many(messages: Any) -> None:
    with pytest.raises(InvalidArgument, match="takes many"):
        list(parts_of(messages))


def test_an_iterator_is_read_in_bounded_steps() -> None:
    pulled = 0

    def large() -> Iterator[bytes]:
        nonlocal pulled
        for _ in range(100):
            pulled += 1
            yield bytes(1024 * 1024)

    parts = parts_of(large())
    next(parts)
    assert pulled == FIRST_PULLED
    next(parts)
    assert pulled <= FIRST_PULLED + PULLED_BYTES // 1024 // 1024
    assert [len(part) for part in parts_of(iter([b"x"] * 30_000))] == [
        FIRST_PULLED,
        10_000,
        10_000,
        30_000 - 20_016 + 16 - FIRST_PULLED,
    ]


def _segment_of(key: str) -> str:
    return SEGMENTS[hash_key(key.encode()) >> 15]


def _sent(cluster: Cluster) -> list[Any]:
    return [command.send for command in cluster.servers["broker:1"].commands if command.HasField("send")]


@pytest.mark.parametrize("part_messages", [PART_MESSAGES, 30])
@virtual_time
async def test_ids_are_those_of_each_message_whatever_its_key(
    part_messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txnclient.producing.bulk.PART_MESSAGES", part_messages)
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC, batch_bytes=500)
        keyed = [(f"k{n}" if n % 3 else None, b"%d" % n) for n in range(100)]
        plain = [b"%d" % n for n in range(100, 150)]
        for messages in (plain, keyed, plain):
            ids = await producer.send_many(messages)
            assert len(ids) == len(messages)
            stored = {(e.first, n): v for e in _entries(cluster) for n, v in enumerate(e.values)}
            by_position = {(e.segment, e.entry_id): e.first for e in _entries(cluster)}
            for message, one in zip(messages, ids, strict=True):
                first = by_position[one.segment, one.position.entry_id]
                assert stored[first, one.index] == (message if isinstance(message, bytes) else message[1])
            assert ids[-1] == list(ids)[-1] == ids[:][-1]
            with pytest.raises(IndexError):
                ids[len(ids)]
        pairs = [(b"k%d" % n, b"%d" % n) for n in range(100)]
        by_column = await producer.send_many(Columns([value for _, value in pairs], [key for key, _ in pairs]))
        by_pair = await producer.send_many(pairs)
        assert len(by_column) == 100
        assert [one.segment for one in by_column] == [one.segment for one in by_pair]
        values = {(e.segment, e.entry_id): e.values for e in _entries(cluster)}
        for ids in (by_column, by_pair):
            found = [values[one.segment, one.position.entry_id][one.index] for one in ids]
            assert found == [value for _, value in pairs]
        assert await producer.send_many([]) == await producer.send_many(Columns([])) == []


class _Entry:
    def __init__(self, segment: str, entry_id: int, first: int, values: list[bytes]) -> None:
        self.segment, self.entry_id, self.first, self.values = segment, entry_id, first, values


def _entries(cluster: Cluster) -> list[_Entry]:
    """What the scripted broker has stored: positions count up per segment."""
    sends = {send.sequence_id: send for send in _sent(cluster)}
    return [
        _Entry(segment, number, first, decode_block(sends[first].entry).values())
        for segment, stored in cluster.stored.items()
        for number, (first, _, _) in enumerate(stored)
    ]


@virtual_time
async def test_keys_choose_segments_and_entries_are_full() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC, batch_bytes=50 * (10 + MESSAGE_OVERHEAD_BYTES))
        await producer.send_many([bytes(10)] * 200)
        assert [send.count for send in _sent(cluster)] == [50, 50, 50, 50]
        assert {len(stored) for stored in cluster.stored.values()} == {2}, "without keys batches go round"
        pairs = [(f"k{n % 7}", b"%d" % n) for n in range(300)]
        ids = await producer.send_many(pairs)
        assert [one.segment for one in ids] == [_segment_of(key) for key, _ in pairs]
        for key in {key for key, _ in pairs}:
            own = [one for (k, _), one in zip(pairs, ids, strict=True) if k == key]
            assert own == sorted(own, key=lambda one: (one.position, one.index)), "one key stays in order"


@virtual_time
async def test_what_was_sent_before_one_by_one_stays_before() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        first = producer.send_nowait(b"first", key="k")
        ids = await producer.send_many([("k", b"second")])
        assert (await first).position < ids[0].position
        assert [send.sequence_id for send in _sent(cluster)] == [0, 1]


@virtual_time
async def test_properties_and_event_times_travel_in_bulk() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        await producer.send_many([OutgoingMessage(b"v", "k", {"a": "b"}, 5), ("k", b"w")])
        block = decode_block(_sent(cluster)[0].entry)
        assert (block.properties(0), block.properties(1)) == ({"a": "b"}, {})
        assert (block.event_time_ms(0), block.event_time_ms(1)) == (5, None)


@virtual_time
async def test_a_serializer_encodes_each_value() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC, serializer="json")
        await producer.send_many([("k", {"a": 1}), ("k", [2, 3]), OutgoingMessage({"b": 2}, "k")])
        assert decode_block(_sent(cluster)[0].entry).values() == [b'{"a":1}', b"[2,3]", b'{"b":2}']


@virtual_time
async def test_a_bulk_send_respects_the_buffer() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, batch_bytes=1000, buffer_bytes=3000)
        server.stall_sends = True
        sending = asyncio.ensure_future(producer.send_many([("k", bytes(900))] * 20))
        await until(lambda: server.seen["send"] == 3)
        await asyncio.sleep(1.0)
        assert server.seen["send"] == 3
        server.stall_sends = False
        server.finish_sends()
        assert len(await sending) == 20


@virtual_time
async def test_the_first_failure_is_raised_once_all_are_answered() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, batch_bytes=200)
        await producer.send(b"opens", key="k")
        server.refuse["send"] = [StoreFull("full")]
        with pytest.raises(StoreFull):
            await producer.send_many([("k", bytes(150))] * 10)
        assert len(cluster.stored[_segment_of("k")]) == 10, "the others were stored"
        async with client.transaction() as txn:
            await producer.send_many([b"after"], txn=txn)


@virtual_time
async def test_a_malformed_message_in_a_transaction_leaves_it_only_able_to_abort() -> None:
    async with connected() as (_cluster, client):
        producer = await client.producer(TOPIC)
        txn = await client.begin()
        with pytest.raises(InvalidArgument):
            await producer.send_many([*[b"x"] * PART_MESSAGES, 3], txn=txn)  # type: ignore[list-item]
        with pytest.raises(InvalidArgument):
            await txn.commit()


@virtual_time
async def test_a_conflict_fails_the_transaction_and_the_ids_are_not_given() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        await producer.send(b"opens", key="k")
        txn = await client.begin()
        cluster.servers["broker:1"].refuse["send"] = [TxnConflict("decided")]
        with pytest.raises(TxnConflict):
            await producer.send_many([("k", b"x")], txn=txn)
        with pytest.raises(TxnConflict):
            await txn.commit()


@virtual_time
async def test_flush_waits_for_bulk_sends_and_close_ends_them() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        server.stall_sends = True
        sending = asyncio.ensure_future(producer.send_many([b"x"]))
        await until(lambda: server.seen["send"])
        with pytest.raises(txnclient.Timeout):
            await producer.flush(timeout=1.0)
        await producer.close()
        with pytest.raises(txnclient.ConnectionLost):
            await sending


@virtual_time
async def test_entries_of_a_bulk_send_say_what_their_commands_say() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC, batch_bytes=100, compression="lz4")
        async with client.transaction() as txn:
            await producer.send_many([("k", b"%d" % n) for n in range(50)], txn=txn)
        assert len(_sent(cluster)) > 1
        for send in _sent(cluster):
            metadata = parse_metadata(send.entry)
            assert (metadata.sequence_id, metadata.count) == (send.sequence_id, send.count)
            assert metadata.txnid_least_bits == send.txnid_least_bits == txn.id.least_bits
            assert metadata.hash_lo == metadata.hash_hi == hash_key(b"k")


@virtual_time
async def test_an_iterator_that_fails_is_told_once_what_it_gave_before_is_stored() -> None:
    """▲ Who begins again behind the error would overtake it."""
    async with connected() as (cluster, client), client.producer(TOPIC) as producer:
        server = cluster.servers["broker:1"]
        server.stall_sends = True

        def failing() -> Iterator[tuple[str, bytes]]:
            for number in range(2 * FIRST_PULLED):
                yield "k", b"%d" % number
            raise ZeroDivisionError

        sending = asyncio.ensure_future(producer.send_many(failing()))
        await until(lambda: server.stalled)
        await asyncio.sleep(1.0)
        assert not sending.done()
        server.stall_sends = False
        server.finish_sends()
        with pytest.raises(ZeroDivisionError):
            await sending
        assert sum(len(entry.values) for entry in _entries(cluster)) >= FIRST_PULLED
