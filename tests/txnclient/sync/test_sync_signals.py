"""Signals that meet a call of the synchronous face, and ends of the interpreter that something holds up, or that leave
clients open: each in a process of its own."""

from __future__ import annotations

import pytest

from tests.cluster import InProcessCluster
from tests.txnclient.sync.test_sync import run_script

ALARM = """
    import signal, sys, txnclient.sync
    client = txnclient.sync.connect(sys.argv[1])
    client.create_topic("topic://public/default/sync")
    consumer = client.consumer("topic://public/default/sync", "sub")

    def over(*_):
        raise TimeoutError("the caller's own limit")

    signal.signal(signal.SIGINT, over)  # as `signal.alarm` has it
    try:
        print("waiting", flush=True)
        WAIT
    except TimeoutError as error:
        print(error, "still works:", client.list_topics(), flush=True)
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
async def test_c1_a_time_limit_of_the_caller_s_own_that_a_signal_handler_raises_ends_the_call(
    cluster: InProcessCluster, wait: str
) -> None:
    """▲ It is a `TimeoutError`, as is the end of each short wait for the loop."""
    output, code, _ = await run_script(cluster.url, interrupt=True, script=ALARM.replace("WAIT", wait), after_s=0.5)
    assert "the caller's own limit still works: ['topic://public/default/sync']" in output
    assert code == 0


READ = """
    import sys, txnclient, txnclient.sync
    from txnwire.ids import EARLIEST
    client = txnclient.sync.connect(sys.argv[1])
    segment = client.create_topic("topic://public/default/sync").segments[0].path
    open = client.begin(timeout=60)
    client.producer("topic://public/default/sync").send(b"undecided", txn=open)
    reading = client.read_entries(segment, after=EARLIEST, end=txnclient.Position(1, 9), timeout=60)
    try:
        print("waiting", flush=True)
        for entries in reading:
            print("read", entries)
    except KeyboardInterrupt:
        print("interrupted, still works:", client.list_topics(), flush=True)
    try:
        next(reading)
    except txnclient.InvalidArgument as error:
        print("told:", error)
"""


async def test_c1_an_interrupt_ends_a_read_of_entries_as_an_interrupt(cluster: InProcessCluster) -> None:
    """▲ A generator that is still running cannot be closed: the interrupt would become a `RuntimeError`."""
    output, code, _ = await run_script(cluster.url, interrupt=True, script=READ, after_s=0.5)
    assert "interrupted, still works: ['topic://public/default/sync']" in output
    assert "told: this read was cancelled before its end" in output
    assert code == 0


LEFT_OPEN = """
    import sys, threading, txnclient.sync
    sys.unraisablehook = lambda raised: print("told:", raised.exc_value, flush=True)
    txnclient.sync.bridge.EXIT_TIMEOUT_S = 0.5
    client = txnclient.sync.connect(sys.argv[1])
    held = threading.Lock()
    held.acquire()
    client._bridge._soon(held.acquire)  # as a callback of a sent message
"""


async def test_c6_a_callback_that_never_returns_does_not_keep_the_interpreter_from_its_end(
    cluster: InProcessCluster,
) -> None:
    """Dies where the interpreter waits for the loop."""
    output, code, _ = await run_script(cluster.url, interrupt=False, script=LEFT_OPEN)
    assert "told: clients that nobody closed took longer than 0.5 s" in output
    assert code == 0


UNCLOSED = """
    import sys, txnclient.sync
    clients = [txnclient.sync.connect(sys.argv[1]) for _ in range(2)]
    print(*[client.begin().id for client in clients])
"""


async def test_each_of_several_clients_that_nobody_closed_is_closed_when_the_interpreter_ends(
    cluster: InProcessCluster,
) -> None:
    """▲ What the others have not sent would be lost, and what they have open would hold readers back."""
    output, code, _ = await run_script(cluster.url, interrupt=False, script=UNCLOSED)
    assert code == 0
    async with cluster.connect() as client:
        assert list((await client.outcomes(output.split())).values()) == ["ABORTED"] * 2
