"""Trials on a healed cluster at the end of each run: reused names, positions foreign to them, and late acks. Each trial
has exactly one right outcome; any other is a breach."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress

import txnclient
from txnclient.connection.opening import Opening
from txnclient.consuming.consumer import Consumer
from txnclient.consuming.received.message import Message
from txnclient.producing.producer import Producer
from txnwire.errors import (
    ConnectionLost,
    InvalidArgument,
    NotAllowed,
    SubscriptionNotFound,
    TopicNotFound,
    TxnConflict,
    TxnError,
)
from txnwire.ids import MessageId
from txnwire.ports import Connection, Listener, Transport

TOLD_S = 20.0
"""Time within which a consumer learns what has become of its subscription or segments."""
SILENCE_S = 4.0
MESSAGES = 8


def asks_elsewhere(
    client: txnclient.Client, consumer: Consumer, topic: str, subscription: str, at: MessageId, stranger: Message | None
) -> Mapping[str, Callable[[], Awaitable[object]]]:
    """Every request that takes a position, with one that is foreign to the topic. Acks take messages: `stranger`.
    A request returns False if it was not refused but had no effect."""
    asks: dict[str, Callable[[], Awaitable[object]]] = {
        "seek": lambda: consumer.seek(at),
        "seek_subscription": lambda: client.seek_subscription(topic, subscription, at),
        "reader": lambda: _read(client, topic, at),
        "consumer": lambda: client.consumer(topic, "elsewhere", start=at),
    }
    if stranger is not None:
        asks["ack"] = lambda: consumer.ack(stranger)
        asks["ack_cumulative"] = lambda: consumer.ack_cumulative(stranger)
    return asks


async def _read(client: txnclient.Client, topic: str, at: MessageId) -> bool:
    """A client that still knows the former topic opens a reader of it, which soon gets an error."""
    async with client.reader(topic, start=at) as reader:
        return bool(await reader.receive_many(1, timeout=1.0))


class Gate:
    """A transport that can be shut: existing connections are lost, and nothing else gets through."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._shut = False
        self._connections: list[Connection] = []

    async def connect(self, address: str, *, timeout_s: float) -> Connection:
        if self._shut:
            raise ConnectionLost(f"{address}: the way out is shut")
        connection = await self._transport.connect(address, timeout_s=timeout_s)
        self._connections.append(connection)
        return connection

    async def listen(self, address: str, handler: Callable[[Connection], Awaitable[None]]) -> Listener:
        return await self._transport.listen(address, handler)

    async def shut(self) -> None:
        self._shut = True
        connections, self._connections = self._connections, []
        for connection in connections:
            await connection.close()

    def open(self) -> None:
        self._shut = False


class Trials:
    """Runs the trials on a topic whose name is reused for them. `connect` opens a client over a transport; reports
    breaches to `found`."""

    def __init__(
        self,
        client: txnclient.Client,
        connect: Callable[[Transport], Opening[txnclient.Client]],
        transport: Transport,
        topic: str,
        subscription: str,
        chance: random.Random,
        found: Callable[[str], None],
    ) -> None:
        self._client = client
        self._connect = connect
        self._gate = Gate(transport)
        self._topic = topic
        self._subscription = subscription
        self._random = chance
        self._tell = found

    async def run(self) -> None:
        client = self._client
        with suppress(TopicNotFound):
            await client.delete_topic(self._topic, force=True)
        await client.create_topic(self._topic, segments=2)
        async with AsyncExitStack() as stack:
            absent = await stack.enter_async_context(self._connect(self._gate))
            producer = await stack.enter_async_context(absent.producer(self._topic))
            if not await self._is_used("a topic, by a producer that sends nothing", client.delete_topic(self._topic)):
                return
            left_out = await stack.enter_async_context(
                absent.consumer(self._topic, self._subscription, name="absent", start="earliest")
            )
            consumers = [await stack.enter_async_context(self._consumer(f"trial-{number}")) for number in range(3)]
            sent = await self._send(producer)
            received = await self._receive([*consumers, left_out], sent)
            deleting = client.delete_subscription(self._topic, self._subscription)
            await self._is_used("a subscription, by its consumers", deleting)
            # ▲ Its client learns of the next topic first, and of the next subscription of the name.
            await self._gate.shut()
            await client.delete_topic(self._topic, force=True)
            await asyncio.gather(*(self._is_told(consumer) for consumer in consumers))
            await client.create_topic(self._topic, segments=2)
            first = await stack.enter_async_context(self._consumer("first"))
            self._gate.open()
            await self._does_not_go_on(producer)
            await self._is_told(left_out)
            await self._in_the_next_life(first, received)

    def _consumer(self, name: str, subscription: str = "") -> Opening[Consumer]:
        return self._client.consumer(self._topic, subscription or self._subscription, name=name, start="earliest")

    async def _send(self, producer: Producer) -> list[str]:
        values = [f"{self._random.getrandbits(64):016x}" for _ in range(MESSAGES)]
        for number, value in enumerate(values):
            await producer.send(value.encode(), key=f"k{number}")
        return values

    async def _receive(self, consumers: Sequence[Consumer], sent: Sequence[str]) -> list[Message]:
        """Receives everything sent, and nothing else. One consumer gets each message once; among several a segment may
        move to another one, which gets it again."""
        messages: list[Message] = []
        for consumer in consumers:
            while len(messages) < len(sent) and (more := await consumer.receive_many(100, timeout=SILENCE_S)):
                messages += more
        values = [message.value.decode() for message in messages]
        if sorted(values if len(consumers) == 1 else dict.fromkeys(values)) != sorted(sent):
            self._found(f"sent {sorted(sent)}, received {sorted(values)}")
        return messages

    def _found(self, text: str) -> None:
        self._tell(f"trial: {text}")

    # ---- who uses a name ----

    async def _is_used(self, what: str, deleting: Awaitable[None]) -> bool:
        try:
            await deleting
        except NotAllowed:
            return True
        self._found(f"deleted without force, though it was used: {what}")
        return False

    async def _is_told(self, consumer: Consumer) -> None:
        """▲ Also a consumer that no broker knows, because it holds no segment."""
        until = asyncio.get_running_loop().time() + TOLD_S
        try:
            while asyncio.get_running_loop().time() < until:
                await consumer.receive_many(100, timeout=1.0)
        except (TopicNotFound, SubscriptionNotFound, InvalidArgument):
            return
        self._found(f"{consumer.name} has not heard within {TOLD_S:g} s that its topic was deleted")

    async def _does_not_go_on(self, producer: Producer) -> None:
        try:
            await producer.send(b"of the former one", key="k")
        except TopicNotFound:
            return
        self._found("the producer of a deleted topic went on in the next one of its name")

    # ---- in the next life ----

    async def _in_the_next_life(self, first: Consumer, of_before: Sequence[Message]) -> None:
        async with self._client.producer(self._topic) as producer:
            sent = await self._send(producer)
            messages = await self._receive([first], sent)
            if len(messages) != len(sent):
                return
            await self._leave_and_come_back(first, messages)
            await self._ack(first, messages)
            again = await self._receive([first], sent)
            await first.ack(again)
            for stranger in of_before[:1]:
                await self._refuses(first, stranger)
            if more := await first.receive_many(100, timeout=SILENCE_S):
                self._found(f"{[one.value.decode() for one in more]} came again, of which all was acked")
            await self._made_again(sent)

    async def _made_again(self, sent: Sequence[str]) -> None:
        """A new subscription under the name, without seeks: receipts of the former one are not acked in it."""
        name = f"{self._subscription}-again"
        async with self._consumer("former", name) as former:
            received = await self._receive([former], sent)
        await self._client.delete_subscription(self._topic, name)
        async with self._consumer("acks-late", name) as late:
            await late.receive(timeout=TOLD_S)
            await self._ack(late, received)
        async with self._consumer("last", name) as last:
            await last.ack(await self._receive([last], sent))

    async def _leave_and_come_back(self, first: Consumer, messages: Sequence[Message]) -> None:
        """A segment goes to another consumer, and comes back after a seek. ▲ No transaction may ack across that: it
        would commit without an ack of what it has processed."""
        async with self._consumer("second") as second:
            await self._until(lambda: bool(second.segments) and len(first.segments) == 1, "a segment to go over")
            txn = await self._client.begin(timeout=30.0)
            try:
                await first.ack_cumulative(messages[-1], txn=txn)
            except (TxnConflict, NotAllowed):
                pass
            else:
                self._found("a transaction acked over messages that another consumer has by now")
            await txn.abort()
            await self._client.seek_subscription(self._topic, self._subscription, "earliest")
        await self._until(lambda: len(first.segments) == 2, "the segment to come back")

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        for _ in range(int(TOLD_S / 0.1)):
            if holds():
                return
            await asyncio.sleep(0.1)
        self._found(f"waited {TOLD_S:g} s for {what}")

    async def _ack(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        """▲ Late acks: the messages were received before a seek."""
        for message in messages:
            with suppress(NotAllowed):
                await (consumer.ack(message) if self._random.random() < 0.5 else consumer.ack_cumulative(message))

    async def _refuses(self, consumer: Consumer, stranger: Message) -> None:
        asks = asks_elsewhere(self._client, consumer, self._topic, self._subscription, stranger.id, stranger)
        for what, ask in asks.items():
            expected = NotAllowed if what.startswith("ack") else InvalidArgument
            try:
                if await ask() is False:
                    continue
            except expected:
                continue
            except TxnError as error:
                self._found(f"{what} at {stranger.id} of a deleted topic raised {type(error).__name__}: {error}")
            else:
                self._found(f"{what} at {stranger.id} of a deleted topic was taken")
