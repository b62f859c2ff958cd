"""The consume-transform-produce loop against a whole cluster in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.processes import read_all
from tests.txnclient.queueing import force_abort
from tests.waiting import until
from txnclient.transactions.coordinators import Coordinators
from txnclient.transactions.transaction import transaction_impl
from txnclient.transactions.transaction_impl import TransactionImpl
from txnwire.proto import txn_pb2 as pb

SOURCE = "topic://public/default/source"
TARGET = "topic://public/default/target"
OTHER = "topic://public/default/other"


async def prepared(client: txnclient.Client, count: int, *, segments: int = 2) -> None:
    for topic in (SOURCE, TARGET, OTHER):
        await client.create_topic(topic, segments=segments)
    async with await client.producer(SOURCE, serializer="str") as producer:
        await producer.send_many([(f"key-{number % 7}", str(number)) for number in range(count)])


async def test_each_message_is_transformed_once_and_its_key_stays(client: txnclient.Client) -> None:
    await prepared(client, 100)
    async with (
        await client.consumer(SOURCE, "job", serializer="str") as consumer,
        await client.producer(TARGET, serializer="str") as producer,
    ):
        done = await txnclient.process(consumer, lambda message: message.value * 2, producer, max_messages=100)
    assert (done.messages, done.outputs, done.again, done.nacked) == (100, 100, 0, 0)
    assert 1 <= done.transactions <= 100
    async with await client.reader(TARGET, end="latest", serializer="str") as reader:
        found = [(message.key, message.value) async for message in reader]
    assert sorted(found) == sorted((f"key-{number % 7}".encode(), str(number) * 2) for number in range(100))
    for key in {key for key, _ in found}:
        of_key = [int(value[: len(value) // 2]) for found_key, value in found if found_key == key]
        assert of_key == sorted(of_key)
    async with await client.consumer(SOURCE, "job") as again:
        assert await again.receive_many(10, timeout=0.2) == []


def none(message: txnclient.Message[str]) -> None:
    return None


def several(message: txnclient.Message[str]) -> list[str | txnclient.Output]:
    return [message.value, txnclient.Output(message.value + "!", key=None, to="other")]


def generated(message: txnclient.Message[str]) -> Iterator[str]:
    yield message.value
    yield message.value


async def awaited(message: txnclient.Message[str]) -> txnclient.Output:
    await asyncio.sleep(0)
    return txnclient.Output(message.value, properties={"a": "b"}, key="mine")


async def generated_later(message: txnclient.Message[str]) -> AsyncIterator[str]:
    yield message.value
    await asyncio.sleep(0)
    yield message.value


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (none, []),
        (several, [(b"key-0", b"0", {}), (None, b"0!", {})]),
        (generated, [(b"key-0", b"0", {})] * 2),
        (awaited, [(b"mine", b"0", {"a": "b"})]),
        (generated_later, [(b"key-0", b"0", {})] * 2),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_what_handlers_may_give_back(client: txnclient.Client, handler: object, expected: list[object]) -> None:
    await prepared(client, 1)
    async with (
        await client.consumer(SOURCE, "job", serializer="str") as consumer,
        await client.producer(TARGET, serializer="str") as target,
        await client.producer(OTHER, serializer="str") as other,
    ):
        producers = {"other": other, None: target}  # the one without a name is for outputs that name none
        done = await txnclient.process(consumer, handler, producers, max_messages=1)  # type: ignore[arg-type]
    assert done.outputs == len(expected)
    found = []
    for topic in (TARGET, OTHER):
        async with await client.reader(topic, end="latest") as reader:
            found += [(message.key, message.value, message.properties) async for message in reader]
    assert found == expected


async def test_an_output_to_nobody_says_who_there_is_and_leaves_nothing_behind(client: txnclient.Client) -> None:
    await prepared(client, 1)
    async with await client.consumer(SOURCE, "job") as consumer, await client.producer(TARGET) as producer:
        with pytest.raises(txnclient.InvalidArgument, match=r"'nobody'.*'somebody'"):
            await txnclient.process(
                consumer, lambda _: txnclient.Output(b"", to="nobody"), {"somebody": producer}, max_messages=1
            )
        with pytest.raises(txnclient.InvalidArgument, match="there is no producer to send it with"):
            await txnclient.process(consumer, lambda _: b"for whom?", max_messages=1)
        assert await read_all(client, TARGET) == []
        assert len(await consumer.receive_many(1, timeout=10)) == 1


async def test_an_exception_of_the_handler_ends_a_stream_s_loop_and_undoes_its_batch(client: txnclient.Client) -> None:
    await prepared(client, 10, segments=1)

    def handler(message: txnclient.Message[str]) -> str:
        if message.value == "5":
            raise ZeroDivisionError("five")
        return message.value

    async with (
        await client.consumer(SOURCE, "job", serializer="str") as consumer,
        await client.producer(TARGET, serializer="str") as producer,
    ):
        with pytest.raises(ZeroDivisionError):
            await txnclient.process(consumer, handler, producer)
        assert await read_all(client, TARGET) == []
        done = await txnclient.process(consumer, lambda message: message.value, producer, max_messages=10)
        assert done.messages == 10
    assert await read_all(client, TARGET) == [str(number).encode() for number in range(10)]


async def test_a_value_that_cannot_be_decoded_ends_a_stream_s_loop_and_names_the_message(
    client: txnclient.Client,
) -> None:
    await client.create_topic(SOURCE)
    async with await client.producer(SOURCE) as producer:
        message_id = await producer.send(b"{nonsense")
    async with await client.consumer(SOURCE, "job", serializer="json") as consumer:
        with pytest.raises(txnclient.UndecodableMessage, match=str(message_id).replace("/", ".")):
            await txnclient.process(consumer, lambda message: message.value)


async def test_it_ends_when_idle_and_when_told_to_stop(client: txnclient.Client) -> None:
    await prepared(client, 3)
    async with await client.consumer(SOURCE, "job") as consumer:
        done = await txnclient.process(consumer, lambda _: None, idle_timeout=2.0)
        assert done.messages == 3
        stop = asyncio.Event()
        running = asyncio.create_task(txnclient.process(consumer, lambda _: None, stop=stop))
        async with await client.producer(SOURCE) as producer:
            await producer.send(b"4")
        stop.set()
        assert (await asyncio.wait_for(running, 10)).messages in (0, 1)


async def test_what_a_queue_s_handler_refuses_counts_among_the_messages_asked_for(client: txnclient.Client) -> None:
    await prepared(client, 4, segments=1)
    handled: list[bytes] = []

    def handler(message: txnclient.Message) -> None:
        handled.append(message.value)
        if len(handled) <= 2:
            raise ZeroDivisionError

    async with await client.consumer(SOURCE, "job", type="queue", redelivery_delay=60.0) as consumer:
        done = await txnclient.process(consumer, handler, batch_messages=1, max_messages=2)
    assert (len(handled), done.messages, done.nacked) == (2, 0, 2)


async def test_a_queue_s_batch_whose_handler_met_a_passing_error_is_handled_again(client: txnclient.Client) -> None:
    """It was never acked, so no abort brings it back: the loop gives it back itself."""
    await prepared(client, 3, segments=1)
    failing = [True]

    def handler(message: txnclient.Message) -> None:
        if failing:
            failing.clear()
            raise txnclient.Overloaded("a broker is busy")

    async with await client.consumer(SOURCE, "job", type="queue", redelivery_delay=60.0) as consumer:
        async with asyncio.timeout(20):
            done = await txnclient.process(consumer, handler, max_messages=3)
    assert (done.messages, done.nacked, done.again) == (3, 0, 1)


async def test_a_queue_s_loop_that_only_gives_messages_back_makes_progress_too(client: txnclient.Client) -> None:
    """A passing error behind them is not the end of its patience."""
    await prepared(client, 2, segments=1)
    patience_s, seen = 2.0, list[bytes]()

    async def handler(message: txnclient.Message) -> None:
        seen.append(message.value)
        if len(seen) == 1:
            await asyncio.sleep(1.2 * patience_s)
            raise ZeroDivisionError
        if len(seen) == 2:
            raise txnclient.Overloaded("a broker is busy")

    async with await client.consumer(SOURCE, "job", type="queue", redelivery_delay=60.0) as consumer:
        done = await txnclient.process(consumer, handler, batch_messages=1, max_messages=2, patience=patience_s)
    assert (done.messages, done.nacked, done.again) == (1, 1, 1)


async def test_batches_are_sent_by_their_handler_and_acked_for_it(client: txnclient.Client) -> None:
    await prepared(client, 50)
    async with await client.consumer(SOURCE, "job") as consumer, await client.producer(TARGET) as producer:
        sizes: list[int] = []

        async def handler(messages: object, txn: txnclient.Transaction) -> None:
            assert isinstance(messages, list)
            sizes.append(len(messages))
            await producer.send(b"+".join(message.value for message in messages), txn=txn)

        done = await txnclient.process_batches(consumer, handler, batch_messages=8, max_messages=50)
    assert done.messages == sum(sizes) == 50
    assert max(sizes) <= 8
    found = await read_all(client, TARGET)
    assert Counter(b"+".join(found).split(b"+")) == Counter(str(number).encode() for number in range(50))


async def test_of_a_batch_that_is_handled_one_by_one_a_failed_transaction_leaves_no_message_behind_it(
    client: txnclient.Client,
) -> None:
    """▲ Those behind it were received and not begun: held, they would come to nobody for as long as the loop runs."""
    await prepared(client, 6, segments=1)
    handled: list[list[bytes]] = []

    def handler(messages: Sequence[txnclient.Message], txn: txnclient.Transaction) -> None:
        handled.append([message.value for message in messages])
        if len(handled) == 1:
            raise ValueError("one of them is wrong")
        if len(handled) == 3:
            raise txnclient.Overloaded("a service that the handler asks is busy")

    async with client.consumer(SOURCE, "job", type="queue") as consumer:
        done = await txnclient.process_batches(consumer, handler, batch_messages=6, max_messages=6, idle_timeout=10.0)
    assert [len(one) for one in handled[:3]] == [6, 1, 1]
    assert (done.messages, done.again, done.nacked) == (6, 1, 0)


async def test_a_batch_stays_below_its_bytes(client: txnclient.Client) -> None:
    await client.create_topic(SOURCE)
    async with await client.producer(SOURCE, compression=None) as producer:
        await producer.send_many([(None, bytes(10_000))] * 60)
    async with await client.consumer(SOURCE, "job") as consumer:
        sizes: list[int] = []
        await txnclient.process_batches(
            consumer, lambda messages, _: sizes.append(len(messages)), batch_bytes=100_000, max_messages=60
        )
    assert max(sizes) <= 12, sizes


async def test_transactions_that_are_aborted_under_way_are_done_again_each_message_once_and_in_order(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    """An administrator aborts transactions between handler and commit."""
    await prepared(client, 200, segments=2)
    aborted: list[str] = []

    async def handler(messages: object, txn: txnclient.Transaction) -> None:
        assert isinstance(messages, list)
        for message in messages:
            await producer.send(message.value, key=message.key, txn=txn)
        if len(aborted) < 5 and len(messages) > 1:
            await force_abort(txn)
            aborted.append(str(txn.id))

    async with await client.consumer(SOURCE, "job") as consumer, await client.producer(TARGET) as producer:
        done = await txnclient.process_batches(consumer, handler, batch_messages=10, max_messages=200)
    assert len(aborted) == 5
    assert done.again >= 1
    assert done.messages == 200
    async with await client.reader(TARGET, end="latest") as reader:
        found = [(message.key, int(message.value)) async for message in reader]
    assert sorted(number for _, number in found) == list(range(200))
    for key in {key for key, _ in found}:
        of_key = [number for found_key, number in found if found_key == key]
        assert of_key == sorted(of_key)


class Hold:
    """Takes part in a transaction and is not done: its commit waits."""

    def __init__(self, txn: txnclient.Transaction) -> None:
        self._txn = transaction_impl(txn)
        self._held = True
        self._txn.started(self)

    def flush(self, txn: TransactionImpl) -> None:
        """Not yet."""

    def withdraw(self, txn: TransactionImpl) -> None:
        self.release()

    def ended(self, txn: TransactionImpl, committed: bool, revision: int) -> None:
        """Nothing to do."""

    def release(self) -> None:
        if self._held:
            self._held = False
            self._txn.finished(None)


async def test_of_a_stream_no_batch_commits_while_one_before_it_may_still_fail(client: txnclient.Client) -> None:
    """▲ The second batch is handled and acked while the first one's commit waits, which then fails."""
    await prepared(client, 12, segments=1)
    begun: list[txnclient.Transaction] = []
    holds: list[Hold] = []

    async def handler(messages: object, txn: txnclient.Transaction) -> None:
        assert isinstance(messages, list)
        for message in messages:
            await producer.send(message.value, key=message.key, txn=txn)
        begun.append(txn)
        if len(begun) == 1:
            holds.append(Hold(txn))
        if len(begun) == 3:
            with contextlib.suppress(AssertionError):
                await until(lambda: begun[1].state == "COMMITTED", within_s=0.5)
            assert begun[0].state == begun[1].state == "OPEN"
            await force_abort(begun[0])
            holds[0].release()

    async with await client.consumer(SOURCE, "job") as consumer, await client.producer(TARGET) as producer:
        done = await txnclient.process_batches(
            consumer, handler, batch_messages=4, commits_under_way=2, linger_ms=200, max_messages=12
        )
    assert done.messages == 12
    assert begun[0].state == begun[1].state == "ABORTED"
    assert await read_all(client, TARGET) == [str(number).encode() for number in range(12)]


async def test_of_a_stream_nothing_goes_on_behind_a_transaction_that_may_still_be_open(
    client: txnclient.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ Its abort is lost, for longer than one try takes. What it has acked comes again only once it has ended, behind
    everything that was handled meanwhile."""
    await prepared(client, 4, segments=1)
    begun: list[txnclient.Transaction] = []
    lost: list[str] = []
    end = Coordinators.end

    async def losing(
        self: Coordinators, txn: txnclient.Transaction, action: pb.TxnAction, *args: Any, **more: Any
    ) -> Any:
        if begun and txn is transaction_impl(begun[0]) and len(lost) < 4:
            lost.append(str(txn.id))
            raise txnclient.Timeout("nobody answers")
        return await end(self, txn, action, *args, **more)

    monkeypatch.setattr(Coordinators, "end", losing)

    async def handler(messages: object, txn: txnclient.Transaction) -> None:
        assert isinstance(messages, list)
        begun.append(txn)
        for message in messages:
            await producer.send(message.value, key=message.key, txn=txn)
        if len(begun) == 1:
            transaction_impl(txn).failed(txnclient.TxnConflict("something of it was refused"))

    async with await client.consumer(SOURCE, "job") as consumer, await client.producer(TARGET) as producer:
        done = await txnclient.process_batches(consumer, handler, batch_messages=1, txn_timeout=4, max_messages=4)
    assert await read_all(client, TARGET) == [str(number).encode() for number in range(4)]
    assert (done.messages, len(lost)) == (4, 4)


async def test_a_broker_that_goes_in_the_middle_is_waited_for(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    await prepared(client, 60)
    restarted = False

    async def handler(message: txnclient.Message) -> bytes:
        nonlocal restarted
        if message.value == b"30" and not restarted:
            restarted = True
            await cluster.restart_server("broker")
        return message.value

    async with await client.consumer(SOURCE, "job") as consumer, await client.producer(TARGET) as producer:
        done = await txnclient.process(consumer, handler, producer, batch_messages=10, max_messages=60)
    assert restarted
    assert done.messages == 60
    assert sorted(await read_all(client, TARGET)) == sorted(str(number).encode() for number in range(60))


async def test_cancelling_undoes_what_is_not_committed(client: txnclient.Client) -> None:
    await prepared(client, 5, segments=1)
    reached = asyncio.Event()

    async def handler(message: txnclient.Message) -> bytes:
        reached.set()
        await asyncio.Event().wait()
        return b""

    async with await client.consumer(SOURCE, "job") as consumer, await client.producer(TARGET) as producer:
        running = asyncio.create_task(txnclient.process(consumer, handler, producer))
        await asyncio.wait_for(reached.wait(), 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await read_all(client, TARGET) == []
        assert (await consumer.receive(timeout=10)).value == b"0"


@pytest.mark.parametrize("batches", [False, True])
async def test_a_handler_that_awaits_something_cancelled_fails_for_that_message_alone(
    client: txnclient.Client, batches: bool
) -> None:
    """The loop itself is not being cancelled: a queue's message is given back, as after any exception."""
    await prepared(client, 3, segments=1)
    failed: list[bytes] = []

    async def handler(message: txnclient.Message) -> bytes:
        if message.value == b"1" and len(failed) < (2 if batches else 1):  # in its batch, and then by itself
            failed.append(message.value)
            given_up = asyncio.get_running_loop().create_future()
            given_up.cancel()
            await given_up
        return message.value

    async with (
        await client.consumer(SOURCE, "job", type="queue", redelivery_delay=0.01) as consumer,
        await client.producer(TARGET) as producer,
    ):

        async def batch_handler(messages: Sequence[txnclient.Message], txn: txnclient.Transaction) -> None:
            for message in messages:
                await producer.send(await handler(message), key=message.key, txn=txn)

        async with asyncio.timeout(30):
            if batches:
                done = await txnclient.process_batches(consumer, batch_handler, max_messages=4)
            else:
                done = await txnclient.process(consumer, handler, producer, max_messages=4)
    assert (done.messages, done.nacked) == (3, 1)
    assert sorted(await read_all(client, TARGET)) == [b"0", b"1", b"2"]
