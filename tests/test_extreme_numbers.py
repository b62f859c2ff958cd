"""Extreme numbers, counts and texts in every command, against a whole server over an etcd in memory (SCENARIOS C9)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from google.protobuf.descriptor import FieldDescriptor

from segments.ledger.file_ledger import FileLedgerStore
from tests.segments.brokering import Client, Consumer, Producer
from tests.segments.memory_transport import MemoryTransport
from tests.waiting import until
from txnctl.process.server import Server
from txnctl.process.settings import ServerSettings
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnwire.bounds import ASKED, MAX_ACK_POSITIONS
from txnwire.clock import SystemClock, SystemRandom
from txnwire.entry import OutgoingMessage, encode_entry
from txnwire.errors import InternalError, InvalidArgument, TxnError
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_ENTRY_MESSAGES
from txnwire.transport.calls import Caller

TOPIC = "topic://public/default/orders"
SEGMENT = "public/default/orders/0000-ffff-0"
CALL_S = 120.0
U32, U64, I64 = (1 << 32) - 1, (1 << 64) - 1, (1 << 63) - 1
NUMBERS = {
    FieldDescriptor.TYPE_UINT32: (0, 1, 1 << 31, U32),
    FieldDescriptor.TYPE_UINT64: (0, 1, 1 << 53, 1 << 62, 1 << 63, U64),
    FieldDescriptor.TYPE_FIXED64: (0, 1, 7, U64),
    FieldDescriptor.TYPE_INT64: (0, 1, -1, -(1 << 63), 1 << 62, I64),
}
TEXTS = {
    "topic": (TOPIC, "", "x" * 100_000),
    "topics": (TOPIC, "", "x" * 100_000),
    "segment": (SEGMENT, "", "public/default/orders/0000-ffff-9999999999999999999", "x" * 100_000),
    "policies_json": (
        "", '{"retention_ms": 1e308}', f'{{"retention_ms": {10**300}}}', '{"autoscale": {"split_cooldown_s": 1e308}}',
    ),
    "args_json": (
        "", '{"limit": -1, "older_than_s": 1e308}', f'{{"limit": {10**300}, "segment": "{SEGMENT}"}}', "[" * 1000,
    ),
    "what": ("transactions.list", "transactions.hanging", "keys.list", "segment.stats", "x" * 100_000),
    "name": ("p9", "", "x" * 100_000, "\U0010ffff" * 3000),
    "transaction_key": ("", "", "k", "x" * 100_000),
    "subscription": ("others", "fresh", "", "x" * 100_000),
    "consumer": ("c1", "", "x" * 100_000),
}  # fmt: skip


class Chance:
    """Commands whose fields are legal about as often as not, and at their ends otherwise."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def fill(self, message: Any) -> Any:
        for field in message.DESCRIPTOR.fields:
            if field.is_repeated:
                for _ in range(self.random.choice((0, 1, 3, 40))):
                    self._one(message, field)
            elif self.random.random() < 0.8:
                self._one(message, field)
        return message

    def _one(self, message: Any, field: FieldDescriptor) -> None:
        name = field.name
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            self.fill(getattr(message, name).add() if field.is_repeated else getattr(message, name))
            if not field.is_repeated:
                getattr(message, name).SetInParent()
            return
        value = self._value(field)
        if field.is_repeated:
            getattr(message, name).append(value)
        else:
            setattr(message, name, value)

    def _value(self, field: FieldDescriptor) -> Any:
        if field.type == FieldDescriptor.TYPE_STRING:
            return self.random.choice(TEXTS.get(field.name, ("", "x", "x" * 100_000)))
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self.random.choice((b"", b"\x01", b"\xff" * 9, b"\xff" * 20_000))
        if field.type == FieldDescriptor.TYPE_BOOL:
            return self.random.random() < 0.5
        if field.type == FieldDescriptor.TYPE_ENUM:
            return self.random.choice((0, 1, 2, 77))
        if field.name in ("producer_id", "consumer_id") and self.random.random() < 0.7:
            return 1
        return self.random.choice(NUMBERS[field.type])


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[Server, MemoryTransport]]:
    clock, transport = SystemClock(), MemoryTransport()
    store = MemoryStore(MemoryEtcd(clock), clock, random.Random(1))
    ledgers = FileLedgerStore(tmp_path)
    settings = ServerSettings(id="all", roles="coordinator,controller,broker,admin", listen="all:1", tcids=2)
    server = Server(settings, store=store, ledgers=ledgers, transport=transport, clock=clock, random=SystemRandom())
    await server.start()
    try:
        yield server, transport
    finally:
        await server.close()
        await ledgers.close()
        await store.close()


async def connected(transport: MemoryTransport, clock: SystemClock | None = None) -> Client:
    client = Client()
    hello = pb.Hello(client_name="test", session_id=b"s")
    client.caller = await Caller.open(
        transport, "all:1", hello, clock=clock or SystemClock(), on_push=client.on_push, timeout_s=CALL_S
    )
    return client


async def ready(transport: MemoryTransport) -> tuple[Client, Producer, Consumer]:
    """A topic, a producer and a queue's consumer, both with id 1 or 2 on the connection."""
    client = await connected(transport)

    async def asked(**body: object) -> None:
        async def answered() -> bool:
            try:
                await client.call(**body)
            except TxnError as error:
                if not error.retriable:
                    raise
                return False
            return True

        await until(answered, f"an answer to {', '.join(body)}")

    await asked(create_topic=pb.CreateTopic(topic=TOPIC, segments=1))
    join = pb.JoinSubscription(topic=TOPIC, subscription="jobs", type=pb.SUBSCRIPTION_TYPE_QUEUE, consumer="c1")
    await asked(join_subscription=join)
    await asked(segment_positions=pb.SegmentPositions(segment=SEGMENT))
    producer = await client.producer(SEGMENT)
    consumer = await client.subscribe(SEGMENT, name="jobs", type=pb.SUBSCRIPTION_TYPE_QUEUE)
    return client, producer, consumer


async def refused(client: Client, **body: object) -> None:
    with pytest.raises(InvalidArgument):
        await client.call(**body)


async def still_works(producer: Producer, consumer: Consumer) -> None:
    await producer.send("after all that")
    await until(lambda: "after all that" in consumer.values)
    await consumer.ack(consumer.messages[-1])


async def test_every_command_with_extreme_numbers_has_an_answer_that_is_no_failure_of_ours(
    server: tuple[Server, MemoryTransport],
) -> None:
    client, producer, consumer = await ready(server[1])
    deadly = ("delete_topic", "split_segment", "merge_segments", "seal_segment", "hello", "close_producer")

    async def ask(seed: int) -> None:
        chance = Chance(seed)
        other = await connected(server[1])
        other.consumers = {one: Consumer(other, one) for one in (0, 1, *NUMBERS[FieldDescriptor.TYPE_UINT64])}
        other.producers = {one: Producer(other, one, "x", 1) for one in other.consumers}
        calls = []
        for name in ASKED:
            if name not in deadly:
                for _ in range(6):
                    body = chance.fill(getattr(pb.Command(), name))
                    calls.append((body, other.caller.call_nowait(pb.Command(**{name: body}), timeout_s=CALL_S)))
        answers = await asyncio.gather(*(answer for _, answer in calls), return_exceptions=True)
        failed = [
            (body, error) for (body, _), error in zip(calls, answers, strict=True) if type(error) is InternalError
        ]
        assert failed == []
        assert not [error for error in answers if isinstance(error, BaseException) and not isinstance(error, TxnError)]
        await other.close()

    await asyncio.gather(*(ask(seed) for seed in range(4)))  # what is never answered is waited for by all at once
    await still_works(producer, consumer)
    await client.close()


@pytest.mark.parametrize("count", [MAX_ENTRY_MESSAGES + 1, U32])
async def test_an_ack_of_more_messages_than_an_entry_has_is_refused(
    server: tuple[Server, MemoryTransport], count: int
) -> None:
    """▲ Computed with, it would stop the process, and cost it its lease."""
    client, producer, consumer = await ready(server[1])
    position = await producer.send("a")
    one = pb.AckPosition(ledger_id=position.ledger_id, entry_id=position.entry_id, indexes=b"\x01", count=count)
    await refused(client, ack=pb.Ack(consumer_id=consumer.id, positions=[one]))
    await refused(client, nack=pb.Nack(consumer_id=consumer.id, positions=[one]))
    await still_works(producer, consumer)
    await client.close()


async def test_more_positions_than_one_ack_may_name_are_refused_before_they_are_looked_at(
    server: tuple[Server, MemoryTransport],
) -> None:
    client, producer, consumer = await ready(server[1])
    many = [pb.AckPosition(ledger_id=0, entry_id=-7)] * (MAX_ACK_POSITIONS + 1)
    for body in (pb.Ack(consumer_id=consumer.id, positions=many), pb.Nack(consumer_id=consumer.id, positions=many)):
        name = "ack" if isinstance(body, pb.Ack) else "nack"
        with pytest.raises(InvalidArgument, match="10001 positions: expected at most 10000"):
            await client.call(**{name: body})
    await still_works(producer, consumer)
    await client.close()


@pytest.mark.parametrize(
    ("field", "value"), [("sequence_id", I64), ("count", U32), ("publish_time_ms", U64), ("block_bytes", U64)]
)
async def test_an_entry_with_a_number_that_whoever_reads_it_would_fail_at_is_not_stored(
    server: tuple[Server, MemoryTransport], field: str, value: int
) -> None:
    """▲ Stored, it would fail every reader, or the ledger's own footer, for as long as it stands."""
    client, producer, consumer = await ready(server[1])
    entry = altered(**{field: value})
    send = pb.Send(producer_id=producer.id, count=1, previous_sequence_id=-1, entry=entry)
    if field in ("sequence_id", "count"):
        setattr(send, field, value)
    await refused(client, send=send)
    await still_works(producer, consumer)
    await client.close()


def altered(**fields: int) -> bytes:
    """An entry whose metadata says so, with its checksum right."""
    entry = encode_entry([OutgoingMessage(b"v")], producer="p1", incarnation=1, sequence_id=0, publish_time_ms=1)
    length = int.from_bytes(entry[8:12], "little")
    metadata = pb.EntryMetadata.FromString(entry[16 : 16 + length])
    for name, value in fields.items():
        setattr(metadata, name, value)
    told, block = metadata.SerializeToString(), entry[16 + length :]
    body = len(told).to_bytes(4, "little") + len(block).to_bytes(4, "little") + told + block
    return entry[:4] + google_crc32c.value(body).to_bytes(4, "little") + body


@pytest.mark.parametrize("place", [Position(U64, 0), Position(1, I64), Position(1, -2)])
async def test_a_position_that_has_none_behind_it_is_refused_wherever_one_is_named(
    server: tuple[Server, MemoryTransport], place: Position
) -> None:
    client, producer, consumer = await ready(server[1])
    wire = pb.Position(ledger_id=place.ledger_id, entry_id=place.entry_id)
    start = pb.Start(segment=SEGMENT, ledger_id=place.ledger_id, entry_id=place.entry_id)
    await refused(client, seek=pb.Seek(segment=SEGMENT, subscription="jobs", start=start))
    await refused(client, subscribe=pb.Subscribe(consumer_id=9, segment=SEGMENT, start=start))
    await refused(client, subscribe=pb.Subscribe(consumer_id=9, segment=SEGMENT, end=wire))
    await refused(client, scan_entries=pb.ScanEntries(segment=SEGMENT, after=wire))
    await refused(client, segment_cut=pb.SegmentCut(segment=SEGMENT, revision=1, resolved=wire))
    join = pb.JoinSubscription(topic=TOPIC, subscription="other", consumer="c", start=start)
    await refused(client, join_subscription=join)
    await still_works(producer, consumer)
    await client.close()
