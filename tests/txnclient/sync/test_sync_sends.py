"""Sends through the synchronous face: whose thread does what, and who is told of a loss."""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import wait
from typing import Any, ClassVar

import pytest

import txnclient
import txnclient.sync
from tests.cluster import InProcessCluster
from tests.waiting import until_turn
from txnclient.producing.producer import producer_impl
from txnclient.sync.bridge import Bridge, Sent
from txnwire.entry import Columns

TOPIC = "topic://public/default/sync"


async def test_bulk_messages_are_pulled_in_the_caller_s_thread_also_from_a_reader(cluster: InProcessCluster) -> None:
    def work() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            here = threading.current_thread()

            def messages(count: int) -> Iterator[bytes]:
                for number in range(count):
                    assert threading.current_thread() is here
                    yield b"%d" % number
                finished.append(threading.current_thread())

            finished: list[threading.Thread] = []
            with client.producer(TOPIC) as producer:
                assert len(producer.send_many(messages(1000))) == 1000
                assert finished == [here]
                with client.transaction() as txn, client.reader(TOPIC, end="latest") as reader:
                    copied = producer.send_many(((b"copy", message.value) for message in reader), txn=txn)
                assert len(copied) == 1000
            with client.reader(TOPIC, end="latest") as reader:
                found = [message.value for message in reader if message.key == b"copy"]
            assert found == [b"%d" % number for number in range(1000)]

    await asyncio.to_thread(work)


class Watched(list[Any]):
    """A column with code of its own: it says who has read it."""

    readers: ClassVar[set[str]] = set()

    def __getitem__(self, index: Any) -> Any:
        self.readers.add(threading.current_thread().name)
        return super().__getitem__(index)


class WatchedMap(dict[str, str]):
    def __bool__(self) -> bool:
        Watched.readers.add(threading.current_thread().name)
        return True


def watched_encode(value: bytes) -> bytes:
    Watched.readers.add(threading.current_thread().name)
    return value


VALUES = [b"%d" % number for number in range(100)]


@pytest.mark.parametrize(
    ("columns", "encode"),
    [
        (Columns(Watched(VALUES)), None),
        (Columns(VALUES, Watched(VALUES)), None),
        (Columns(VALUES, None, [WatchedMap(a="b") for _ in VALUES]), None),
        (Columns(VALUES), watched_encode),
    ],
    ids=["values", "keys", "maps", "serializer"],
)
async def test_code_of_the_caller_in_columns_runs_in_the_caller_s_thread_too(
    cluster: InProcessCluster, columns: Columns, encode: Callable[[bytes], bytes] | None
) -> None:
    Watched.readers.clear()

    def work() -> str:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            serializer = None if encode is None else (encode, bytes)
            with client.producer(TOPIC, serializer=serializer) as producer:  # type: ignore[call-overload]
                assert len(producer.send_many(columns)) == len(VALUES)
            with client.reader(TOPIC, end="latest") as reader:
                assert sorted(message.value for message in reader) == sorted(VALUES)
        return threading.current_thread().name

    assert Watched.readers == {await asyncio.to_thread(work)}


async def test_plain_columns_are_taken_in_by_the_loop_and_leave_a_transaction_whole_or_only_able_to_abort(
    cluster: InProcessCluster,
) -> None:
    def work() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            with client.producer(TOPIC) as producer:
                ids = producer.send_many(Columns(VALUES, VALUES, [{"n": "1"}, *[None] * 99], tuple(range(100))))
                assert len(ids) == len(VALUES)
                txn = client.begin()
                with pytest.raises(txnclient.InvalidArgument, match="column"):
                    producer.send_many(Columns(VALUES, VALUES[:9]), txn=txn)
                with pytest.raises(txnclient.InvalidArgument):
                    producer.send_many(Columns([*VALUES * 200, 3]), txn=txn)  # type: ignore[list-item]
                with pytest.raises(txnclient.TxnError):
                    txn.commit()
                with client.transaction() as txn:
                    producer.send_many(Columns([b"in a transaction"]), txn=txn)
            with client.reader(TOPIC, end="latest") as reader:
                found = {message.value: (message.key, message.properties) for message in reader}
            assert found.pop(b"in a transaction") == (None, {})
            assert found == {value: (value, {"n": "1"} if value == b"0" else {}) for value in VALUES}

    await asyncio.to_thread(work)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, txnclient.Timeout])
async def test_c1_what_the_caller_s_messages_raise_is_raised_and_leaves_the_transaction_only_able_to_abort(
    cluster: InProcessCluster, error: type[BaseException]
) -> None:
    def work() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            ended: list[threading.Thread] = []

            def messages() -> Iterator[bytes]:
                try:
                    for _ in range(1000):
                        yield b"x"
                    raise error("broken")
                finally:
                    ended.append(threading.current_thread())

            with client.producer(TOPIC) as producer:
                txn = client.begin()
                with pytest.raises(error, match="broken"):
                    producer.send_many(messages(), txn=txn)
                assert ended == [threading.current_thread()]
                with pytest.raises(txnclient.TxnError, match=r"broken|cancelled"):
                    txn.commit()
                assert txn.state == "ABORTED"
                assert len(producer.send_many([b"works"])) == 1
            with client.reader(TOPIC, end="latest") as reader:
                assert [message.value for message in reader] == [b"works"]

    await asyncio.to_thread(work)


async def test_c1_an_abort_does_not_wait_for_messages_that_their_caller_has_yet_to_give(
    cluster: InProcessCluster,
) -> None:
    def work() -> None:
        with (
            txnclient.sync.connect(cluster.url) as client,
            client.producer(client.create_topic(TOPIC).topic) as producer,
        ):
            txn = client.begin()

            def messages() -> Iterator[bytes]:
                for _ in range(100):
                    yield b"x"
                txn.abort()  # would wait for us until its time is up
                assert txn.state == "ABORTED"
                yield b"y"

            with pytest.raises(txnclient.InvalidTxnState):
                producer.send_many(messages(), txn=txn)

    await asyncio.to_thread(work)


async def test_c4_a_lost_send_that_no_thread_has_looked_at_is_raised_at_the_end(cluster: InProcessCluster) -> None:
    async with cluster.connect() as client:
        await client.create_topic(TOPIC)
    await cluster.stop_server("broker")  # so nothing is ever stored

    def work() -> None:
        with txnclient.sync.connect(cluster.url) as client:

            def lose(*, look: bool) -> None:
                with client.producer(TOPIC) as producer:
                    client._inner._session.timeout_s = 0.3
                    lost = producer.send_nowait(b"lost")
                    client._inner._session.timeout_s = 30.0
                    assert list(wait([lost], 10).done) == [lost]
                    if look:
                        assert isinstance(lost.exception(), txnclient.Timeout)

            lose(look=True)
            with pytest.raises(txnclient.Timeout):
                lose(look=False)

            def fail() -> None:
                with client.producer(TOPIC) as producer:
                    client._inner._session.timeout_s = 0.3
                    wait([producer.send_nowait(b"lost")], 10)
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError) as raised:
                fail()
            assert "Timeout" in raised.value.__notes__[0]

    await asyncio.to_thread(work)


@pytest.mark.parametrize("look", ["result", "exception"])
async def test_c4_who_did_not_wait_for_a_send_to_fail_has_not_been_told_of_it(
    cluster: InProcessCluster, look: str
) -> None:
    async with cluster.connect() as client:
        await client.create_topic(TOPIC)
    await cluster.stop_server("broker")  # so nothing is ever stored

    def work() -> None:
        with txnclient.sync.connect(cluster.url, timeout=2.0) as client, client.producer(TOPIC) as producer:
            lost = producer.send_nowait(b"lost")
            with pytest.raises(TimeoutError) as early:
                getattr(lost, look)(timeout=0)
            assert not isinstance(early.value, txnclient.Timeout), "it has failed already"
            assert list(wait([lost], 10).done) == [lost]
            with pytest.raises(txnclient.Timeout, match="sending"):
                producer.flush()

    await asyncio.to_thread(work)


async def test_a_send_s_future_is_cancelled_and_ends_for_who_waits(cluster: InProcessCluster) -> None:
    def work() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            with client.producer(TOPIC) as producer:
                txn = client.begin()
                sent = producer.send_nowait(b"x", txn=txn)
                if sent.cancel():
                    assert list(wait([sent], 10).done) == [sent]
                    with pytest.raises(txnclient.InvalidTxnState, match="cancelled"):
                        txn.commit()
                kept = producer.send_nowait(b"y")
                assert wait([kept], 10).done
                assert not kept.cancel()
                assert kept.result().segment

    await asyncio.to_thread(work)


async def test_c1_a_send_that_is_cancelled_as_it_is_answered_leaves_its_transaction_only_able_to_abort(
    cluster: InProcessCluster,
) -> None:
    def work() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            with client.producer(TOPIC) as producer:
                txn = client.begin()
                sent = producer.send_nowait(b"x", txn=txn)

                async def cancelled_once_stored() -> bool:
                    assert isinstance(sent, Sent)
                    assert sent.inner is not None
                    await until_turn(sent.inner.done, "the send to be stored")
                    return sent.cancel()  # before anybody has told it

                assert client._bridge.wait(cancelled_once_stored())
                with pytest.raises(txnclient.InvalidTxnState, match="a send in it was cancelled"):
                    txn.commit()
                assert txn.state == "ABORTED"

    await asyncio.to_thread(work)


async def test_ended_sends_are_forgotten_with_their_futures(cluster: InProcessCluster) -> None:
    def work() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            with client.producer(TOPIC) as producer:
                for _ in range(20):
                    producer.send_nowait(b"x").result(10)
                producer.send(b"and the loop has had its turn")
                gc.collect()
                assert len(producer_impl(producer._inner)._untold._looked) <= 1
                assert len(producer._bridge._sent) <= 1

    await asyncio.to_thread(work)


async def test_c7_a_transaction_of_another_loop_is_refused(cluster: InProcessCluster, client: txnclient.Client) -> None:
    await client.create_topic(TOPIC)
    async with client.producer(TOPIC) as producer:
        await producer.send(b"x")
    txn = await client.begin()

    def work() -> None:
        with (
            txnclient.sync.connect(cluster.url) as other,
            other.producer(TOPIC) as producer,
            other.consumer(TOPIC, "sub") as consumer,
        ):
            message = consumer.receive()
            given: Any = txn
            for call in (
                lambda: producer.send(b"y", txn=given),
                lambda: producer.send_nowait(b"y", txn=given),
                lambda: producer.send_many([b"y"], txn=given),
                lambda: consumer.ack(message, txn=given),
            ):
                with pytest.raises(txnclient.InvalidArgument, match="in another event loop"):
                    call()

    await asyncio.to_thread(work)
    await txn.commit()


async def test_a_numbered_producer_sends_each_id_once_also_with_futures(cluster: InProcessCluster) -> None:
    def work() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC, segments=2)
            for last in (5, 9):
                with client.producer(TOPIC, name="source", sequence_id=-1) as producer:
                    assert producer.last_sequence_id == (-1 if last == 5 else 5)
                    sent = [producer.send_nowait(b"%d" % one, key=f"k{one}", sequence_id=one) for one in range(last)]
                    wait(sent, timeout=30.0)
                    producer.send(b"%d" % last, key="k", sequence_id=last)
            with client.reader(TOPIC, end="latest") as reader:
                assert sorted(message.sequence_id for message in reader) == list(range(10))

    await asyncio.to_thread(work)


@pytest.mark.parametrize("name", [name for name in vars(txnclient.sync.Producer) if not name.startswith("_")])
def test_a_twin_hands_on_every_argument(name: str) -> None:
    """▲ A time that is dropped on the way would have a message delivered at once."""
    method = inspect.getattr_static(txnclient.sync.Producer, name)
    if not inspect.isfunction(method):
        return
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert set(inspect.signature(method).parameters) <= used


@pytest.mark.parametrize("of_consumer", [False, True])
@pytest.mark.parametrize("failed", [False, True])
async def test_a_block_leaves_nothing_open_where_an_interrupt_comes_before_its_end_has_begun(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch, failed: bool, of_consumer: bool
) -> None:
    """▲ Readers would wait behind it until its deadline. Beside a busy loop that moment is long."""
    submit = asyncio.run_coroutine_threadsafe

    def interrupted(work: Coroutine[Any, Any, Any], _: object) -> Any:
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", submit)
        work.close()
        raise KeyboardInterrupt

    def work() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            with client.producer(TOPIC) as producer, client.consumer(TOPIC, "s") as consumer:
                producer.send(b"a")
                block = consumer.transaction(consumer.receive(timeout=20)) if of_consumer else client.transaction()
                try:
                    with block as txn:
                        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
                        if failed:
                            raise ValueError
                except KeyboardInterrupt:
                    interrupts.append(txn)
                give_up = time.monotonic() + 20
                while (outcome := client.outcomes([txn.id])[txn.id]) == "OPEN":
                    assert time.monotonic() < give_up, "it was left open"
                assert outcome == "ABORTED"

    interrupts: list[object] = []
    await asyncio.to_thread(work)
    assert interrupts


async def test_what_would_end_the_program_does_not_end_the_loop_of_all_its_threads(cluster: InProcessCluster) -> None:
    """Dies where it waits for a loop that has ended."""
    found: list[list[str]] = []

    def leave(value: bytes) -> bytes:
        raise SystemExit(3)

    def work() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            with client.producer(TOPIC, serializer=(leave, bytes)) as producer:
                with pytest.raises(SystemExit):
                    producer.send(b"x")
                found.append(client.list_topics())
                client._bridge._soon(sys.exit)  # as a callback of a sent message
                found.append(client.list_topics())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    await asyncio.to_thread(thread.join, 20)
    assert found == [[TOPIC], [TOPIC]]


def test_a_callback_of_one_message_that_waits_for_another_is_refused() -> None:
    """Dies where the loop's thread waits for itself."""
    bridge, raised = Bridge(), list[BaseException]()

    def callback() -> None:
        unsent: Sent[None] = Sent(bridge._soon, None)
        unsent.inner = asyncio.get_running_loop().create_future()
        unsent.result()

    def work() -> None:
        try:
            bridge.call(callback)
        except txnclient.InvalidArgument as error:
            raised.append(error)
        bridge._stop_if_unused()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert ["event loop's own thread" in str(error) for error in raised] == [True]
