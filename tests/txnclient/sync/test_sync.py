"""The synchronous face: the same names and signatures as the asynchronous one, from threads, loops and interrupts."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import txnclient
import txnclient.sync
from tests.cluster import InProcessCluster
from tests.waiting import wait_until
from tools import generate_sync

ROOT = Path(__file__).resolve().parent.parent.parent
TOPIC = "topic://public/default/sync"
PAIRS = [
    (txnclient.Client, txnclient.sync.Client),
    (txnclient.Producer, txnclient.sync.Producer),
    (txnclient.Consumer, txnclient.sync.Consumer),
    (txnclient.Reader, txnclient.sync.Reader),
    (txnclient.Transaction, txnclient.sync.Transaction),
]


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


def public(cls: type) -> dict[str, Any]:
    return {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}


# ---- the two faces are one ------------------------------------------------------------------------------------------


def test_the_synchronous_classes_are_generated_from_what_the_asynchronous_ones_are_now() -> None:
    for path, text in generate_sync.generate().items():
        assert path.read_text() == text, "run `make sync` and commit it"


def test_what_the_synchronous_classes_say_of_themselves_names_nothing_that_they_lack() -> None:
    for name in generate_sync.FILES:
        text = (generate_sync.FOLDER / f"{name}.py").read_text()
        assert not re.search("`aclose`|async (with|for)|`await` it", text), name


@pytest.mark.parametrize(("async_class", "sync_class"), PAIRS, ids=lambda cls: cls.__name__)
def test_both_faces_have_the_same_names_and_signatures(async_class: type, sync_class: type) -> None:
    expected, found = public(async_class), public(sync_class)
    assert sorted(expected) == sorted(found)
    for name, one in expected.items():
        if callable(one):
            assert parameters(one) == parameters(found[name]), name
    assert hasattr(sync_class, "__next__") == hasattr(async_class, "__anext__")
    assert hasattr(sync_class, "__enter__") == hasattr(async_class, "__aenter__")


def test_connect_has_the_same_signature() -> None:
    assert parameters(txnclient.connect) == parameters(txnclient.sync.connect)


@pytest.mark.parametrize("name", ["process", "process_batches"])
def test_the_loops_have_the_same_signature(name: str) -> None:
    assert parameters(getattr(txnclient, name)) == parameters(getattr(txnclient.sync, name))


# ---- what it does ---------------------------------------------------------------------------------------------------


async def test_a_whole_round_without_await(cluster: InProcessCluster) -> None:
    def work() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            assert client.create_topic(TOPIC, segments=2).epoch >= 1
            with client.producer(TOPIC, serializer="json") as producer:
                with client.transaction() as txn:
                    producer.send({"n": 1}, key="a", txn=txn)
                    future = producer.send_nowait({"n": 2}, key="b", txn=txn)
                assert txn.state == "COMMITTED"
                assert future.result(10).segment.startswith("public/default/sync/")

                def fail() -> None:
                    with client.transaction() as aborted:
                        begun.append(aborted)
                        producer.send({"n": 3}, txn=aborted)
                        raise ZeroDivisionError

                begun: list[txnclient.sync.Transaction] = []
                with pytest.raises(ZeroDivisionError):
                    fail()
                assert begun[0].state == "ABORTED"
            with client.consumer(TOPIC, "sub", serializer="json") as consumer:
                found = [consumer.receive(timeout=10) for _ in range(2)]
                assert sorted(message.value["n"] for message in found) == [1, 2]
                txn = client.begin()
                consumer.ack(found, txn=txn)
                assert txn.commit().revision > 0
                with pytest.raises(txnclient.Timeout):
                    consumer.receive(timeout=0.05)
            with client.reader(TOPIC, end="latest", serializer="json") as reader:
                assert sorted(message.value["n"] for message in reader) == [1, 2]
            assert client.outcomes([txn.id]) == {txn.id: "COMMITTED"}
            with pytest.raises(txnclient.InvalidArgument, match="all clients"), client.transaction(name="job/1"):
                pass

    await asyncio.to_thread(work)
    assert not [thread for thread in threading.enumerate() if thread.name == "txnclient.sync"]


async def test_one_client_serves_several_threads_and_a_second_client_shares_the_loop(cluster: InProcessCluster) -> None:
    def work() -> set[bytes]:
        with txnclient.sync.connect(cluster.url) as client, txnclient.sync.connect(cluster.url) as other:
            client.create_topic(TOPIC)
            producer = client.producer(TOPIC)

            def send(number: int) -> None:
                for count in range(20):
                    with client.transaction() as txn:
                        producer.send(f"{number}-{count}".encode(), txn=txn)

            threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len([one for one in threading.enumerate() if one.name == "txnclient.sync"]) == 1
            with other.reader(TOPIC, end="latest") as reader:
                return {message.value for message in reader}

    found = await asyncio.to_thread(work)
    assert found == {f"{number}-{count}".encode() for number in range(4) for count in range(20)}


async def test_it_works_where_a_loop_is_already_running_as_in_a_notebook(cluster: InProcessCluster) -> None:
    """The cluster lives in this very loop, so the cell runs in a loop of another thread."""

    async def cell() -> list[str]:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            return client.list_topics()

    assert TOPIC in await asyncio.to_thread(asyncio.run, cell())


async def test_a_closed_client_refuses_and_closing_wakes_who_waits(cluster: InProcessCluster) -> None:
    def work() -> None:
        client = txnclient.sync.connect(cluster.url)
        client.create_topic(TOPIC)
        consumer = client.consumer(TOPIC, "sub")
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                consumer.receive(timeout=60)
            except txnclient.TxnError as error:
                raised.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: consumer._inner._impl._receiver.is_awaited, "the call to wait")
        client.close()
        client.close()
        waiting.join(10)
        assert not waiting.is_alive()
        assert len(raised) == 1
        with pytest.raises(txnclient.InvalidArgument, match="closed"):
            client.list_topics()
        with pytest.raises(txnclient.InvalidArgument, match="closed"):
            consumer.receive()

    await asyncio.to_thread(work)


async def test_a_failed_connect_leaves_no_thread_behind() -> None:
    with pytest.raises(txnclient.Timeout):
        await asyncio.to_thread(txnclient.sync.connect, "txn://127.0.0.1:1", timeout=0.2)
    assert not [thread for thread in threading.enumerate() if thread.name == "txnclient.sync"]


async def test_process_runs_its_handler_in_the_calling_thread(cluster: InProcessCluster) -> None:
    target = "topic://public/default/target"

    def work() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC, segments=2)
            client.create_topic(target)
            with client.producer(TOPIC, serializer="str") as source:
                source.send_many([(str(number), str(number)) for number in range(100)])
            here = threading.current_thread()

            def handler(message: txnclient.Message[str]) -> str:
                assert threading.current_thread() is here
                assert TOPIC in client.list_topics()  # the synchronous face works in it
                return message.value + "!"

            def batches(messages: Any, txn: txnclient.sync.Transaction) -> None:
                producer.send_many([(None, message.value + "?") for message in messages], txn=txn)
                handled.extend(messages)
                if len(handled) >= 100:
                    threading.Timer(0.3, stop.set).start()

            handled: list[object] = []
            stop = threading.Event()
            with client.producer(target, serializer="str") as producer:
                with client.consumer(TOPIC, "one", serializer="str") as consumer:
                    assert txnclient.sync.process(consumer, handler, producer, max_messages=100).messages == 100
                with client.consumer(TOPIC, "two", serializer="str") as consumer:
                    assert txnclient.sync.process_batches(consumer, batches, stop=stop).messages == 100
                with client.consumer(TOPIC, "three", serializer="str") as consumer, pytest.raises(ZeroDivisionError):
                    txnclient.sync.process(consumer, lambda _: 1 // 0)
            with client.reader(target, end="latest", serializer="str") as reader:
                found = sorted(message.value for message in reader)
            assert [value for value in found if value.endswith("!")] == sorted(f"{number}!" for number in range(100))
            assert len(found) == 200

    await asyncio.to_thread(work)


async def test_a_signal_handler_may_use_the_face_in_the_midst_of_a_call(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dies where it waits for the lock that the call has taken which it interrupts."""
    submit, found = asyncio.run_coroutine_threadsafe, list[list[str]]()

    def work() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)

            def interrupted(*given: Any) -> Any:
                monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", submit)
                found.append(client.list_topics())  # as a handler would
                return submit(*given)

            monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
            found.append(client.list_topics())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    await asyncio.to_thread(thread.join, 20)
    assert found == [[TOPIC], [TOPIC]]


async def test_a_handler_that_raises_stop_iteration_ends_the_loop(cluster: InProcessCluster) -> None:
    """Dies where the loop waits for ever, for an answer that no future takes."""

    def batches(messages: object, txn: txnclient.sync.Transaction) -> None:
        next(iter(()))

    raised: list[BaseException] = []

    def work() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            with client.producer(TOPIC) as producer:
                producer.send(b"x")
            with client.consumer(TOPIC, "stopping") as consumer:
                try:
                    txnclient.sync.process_batches(consumer, batches, max_messages=1)
                except RuntimeError as error:
                    raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    await asyncio.to_thread(thread.join, 20)
    assert [str(error) for error in raised] == ["the function raised StopIteration"]


@pytest.mark.parametrize("type", ["stream", "queue"])
async def test_after_an_interrupted_loop_what_it_had_comes_before_all_else(
    cluster: InProcessCluster, type: str
) -> None:
    """Whoever goes on receives nothing behind what was not handled: a cumulative ack of it would lose that."""

    def work() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            with client.producer(TOPIC, batch_bytes=1) as producer:
                producer.send_many([b"%d" % number for number in range(9)])

            def handler(message: txnclient.Message[bytes]) -> None:
                if message.value == b"3":
                    raise KeyboardInterrupt

            with client.consumer(TOPIC, "sub", type=type) as consumer:
                with pytest.raises(KeyboardInterrupt):
                    txnclient.sync.process(consumer, handler, batch_messages=1)
                received = [consumer.receive(timeout=10).value for _ in range(6)]
                assert sorted(received) == [b"3", b"4", b"5", b"6", b"7", b"8"]
                if type == "stream":
                    assert received == sorted(received)

    await asyncio.to_thread(work)


async def test_what_a_queue_s_handler_refuses_is_given_back_and_the_loop_goes_on(cluster: InProcessCluster) -> None:
    def work() -> txnclient.ProcessStatistics:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            with client.producer(TOPIC) as producer:
                producer.send_many([b"%d" % number for number in range(5)])

            def handler(message: txnclient.Message[bytes]) -> None:
                if message.value == b"3":
                    raise ZeroDivisionError

            with client.consumer(TOPIC, "sub", type="queue", redelivery_delay=60.0) as consumer:
                return txnclient.sync.process(consumer, handler, max_messages=5)

    done = await asyncio.to_thread(work)
    assert (done.messages, done.nacked) == (4, 1)


SCRIPT = """
    import sys, txnclient.sync
    client = txnclient.sync.connect(sys.argv[1])
    client.create_topic("topic://public/default/sync")
    consumer = client.consumer("topic://public/default/sync", "sub")
    try:
        print("waiting", flush=True)
        consumer.receive(timeout=60)
    except KeyboardInterrupt:
        print("interrupted, still works:", client.list_topics(), flush=True)
"""


LOOP = """
    import sys, time, txnclient.sync
    with txnclient.sync.connect(sys.argv[1]) as client:
        client.create_topic("topic://public/default/sync")
        with client.producer("topic://public/default/sync") as producer:
            producer.send(b"mine")
        with client.consumer("topic://public/default/sync", "sub") as consumer:
            def handler(message):
                print("waiting", flush=True)
                time.sleep(60)
            try:
                txnclient.sync.process(consumer, handler)
            except KeyboardInterrupt:
                print("interrupted, delivered again:", consumer.receive(timeout=10).value, flush=True)
"""


async def run_script(
    url: str, *, interrupt: bool, script: str = SCRIPT, after_s: float = 0.0, stderr: int | None = None
) -> tuple[str, int, float]:
    script = textwrap.dedent(script if interrupt else script.partition("try:")[0])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", script, url, stdout=asyncio.subprocess.PIPE, stderr=stderr, cwd=ROOT
    )
    assert process.stdout is not None
    try:
        if interrupt:
            assert await process.stdout.readline() == b"waiting\n"
            await asyncio.sleep(after_s)
            process.send_signal(signal.SIGINT)
        started = time.monotonic()
        output, _ = await asyncio.wait_for(process.communicate(), 30)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode(), process.returncode or 0, time.monotonic() - started


async def test_an_interrupt_ends_the_call_it_meets_and_nothing_else(cluster: InProcessCluster) -> None:
    output, code, _ = await run_script(cluster.url, interrupt=True)
    assert "still works: ['topic://public/default/sync']" in output
    assert code == 0


UNSEEN = """
    import signal, sys, threading, txnclient.sync
    client = txnclient.sync.connect(sys.argv[1])
    client.create_topic("topic://public/default/sync")
    consumer = client.consumer("topic://public/default/sync", "sub")
    # The kernel gives the signal to another thread, as if it had come just before this one went to sleep.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        print("waiting", flush=True)
        WAIT
    except KeyboardInterrupt:
        print("interrupted, still works:", client.list_topics(), flush=True)
"""


@pytest.mark.parametrize(
    "wait",
    [
        "consumer.receive(timeout=60)",
        "txnclient.sync.process(consumer, print)",
        "txnclient.sync.bridge.Sent(print, None).result()",
        "txnclient.sync.bridge.Sent(print, None).result(timeout=60)",
    ],
    ids=["receive", "process", "result-of-a-send", "result-of-a-send-with-a-timeout"],
)
async def test_an_interrupt_that_does_not_wake_the_waiting_thread_ends_its_call(
    cluster: InProcessCluster, wait: str
) -> None:
    script = UNSEEN.replace("WAIT", wait)
    output, code, seconds = await run_script(cluster.url, interrupt=True, script=script, after_s=0.5)
    assert "still works: ['topic://public/default/sync']" in output
    assert code == 0
    assert seconds < 15


async def test_an_interrupt_ends_a_loop_in_its_handler_and_its_message_comes_again(cluster: InProcessCluster) -> None:
    output, code, seconds = await run_script(cluster.url, interrupt=True, script=LOOP)
    assert "delivered again: b'mine'" in output
    assert code == 0
    assert seconds < 15


async def test_the_interpreter_ends_quietly_beside_a_client_that_nobody_closed(cluster: InProcessCluster) -> None:
    output, code, _ = await run_script(cluster.url, interrupt=False, stderr=asyncio.subprocess.STDOUT)
    assert (output, code) == ("", 0)


def test_a_forked_child_is_told_to_connect_again() -> None:
    bridge = txnclient.sync.bridge.Bridge()
    try:
        child = os.fork()
        if child == 0:
            try:
                bridge.call(lambda: None)
            except txnclient.InvalidArgument:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    finally:
        bridge._stop_if_unused()


def test_the_loop_s_own_thread_is_refused_instead_of_waiting_for_itself() -> None:
    bridge = txnclient.sync.bridge.Bridge()
    try:
        with pytest.raises(txnclient.InvalidArgument, match="own event loop"):
            bridge.call(lambda: bridge.call(lambda: None))
    finally:
        bridge._stop_if_unused()


def test_types_reach_the_user(tmp_path: Path) -> None:
    """Both faces, as mypy sees a user's program."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import txnclient, txnclient.sync

            def length(data: bytes) -> int: ...
            def spell(number: int) -> bytes: ...

            async def work(client: txnclient.Client, plain: txnclient.Message) -> None:
                reveal_type(plain.value)
                reveal_type((await (await client.consumer("t", "s")).receive()).value)
                reveal_type((await (await client.consumer("t", "s", serializer="str", prefetch=3)).receive()).value)
                reveal_type((await (await client.reader("t", serializer=(spell, length))).receive()).value)
                await (await client.producer("t", serializer="str")).send(b"wrong")
                await client.consumer("t", "s", prefetsch=3)

            def work_in_sync(client: txnclient.sync.Client) -> None:
                reveal_type(client.consumer("t", "s", serializer=(spell, length)).receive().value)
                with client.transaction() as txn:
                    client.producer("t").send(b"right", txn=txn)
                    reveal_type(txn.commit())
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", os.devnull, "--cache-dir", str(tmp_path), str(program)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    lines = [line.split(": ", 1)[1] for line in done.stdout.splitlines() if "program.py" in line]
    revealed = [line.split('"')[1] for line in lines if "Revealed" in line]
    assert revealed == ["bytes", "bytes", "str", "int", "int", "txnclient.transactions.outcome.CommitResult"], (
        done.stdout
    )
    errors = " ".join(line for line in lines if line.startswith("error"))
    assert 'expected "str"' in errors, done.stdout
    assert "prefetsch" in errors, done.stdout
