"""What is left of the synchronous face once its last client is closed, and with it the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

import txnclient
import txnclient.sync
from tests.cluster import InProcessCluster

TOPIC = "topic://public/default/behind"


async def test_what_was_closed_with_the_last_client_can_be_read_and_closed_again_and_nothing_else(
    cluster: InProcessCluster,
) -> None:
    """▲ As what was opened in a client of `txnclient`, and as beside another client: that keeps the loop."""

    def work() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            opened = producer, _, _ = client.producer(TOPIC), client.consumer(TOPIC, "s"), client.reader(TOPIC)
            with client.transaction() as txn:
                producer.send(b"a", txn=txn)
            assert client._bridge.call(lambda: producer.topic) == TOPIC  # in the loop's thread, as a callback is
        assert txn.state == "COMMITTED"
        assert txn.result is not None
        assert (txn.result.revision > 0, producer.topic, producer.last_sequence_id) == (True, TOPIC, 0)
        for one in opened:
            one.close()
        with pytest.raises(txnclient.InvalidArgument, match="this client is closed"):
            producer.send(b"b")

    await asyncio.to_thread(work)


@pytest.mark.leaves("budgets", "of a client whose close was interrupted")
async def test_who_waits_for_a_send_is_told_where_the_close_of_the_last_client_was_interrupted(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ Nothing else ends the send: its loop has ended, and another thread would wait for it for ever."""
    submit = asyncio.run_coroutine_threadsafe

    def interrupted(work: Coroutine[Any, Any, Any], _: object) -> Any:
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", submit)
        work.close()
        raise KeyboardInterrupt

    def opened() -> tuple[txnclient.sync.Client, txnclient.sync.Producer]:
        client = txnclient.sync.connect(cluster.url)
        client.create_topic(TOPIC)
        return client, client.producer(TOPIC)

    def close(client: txnclient.sync.Client) -> None:
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.close()

    client, producer = await asyncio.to_thread(opened)
    await cluster.stop_server("broker")
    sent = await asyncio.to_thread(producer.send_nowait, b"a")
    waiting = asyncio.create_task(asyncio.to_thread(sent.exception, 20.0))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await asyncio.to_thread(close, client)
    error = await waiting
    assert isinstance(error, txnclient.ConnectionLost)
    assert "closed meanwhile" in str(error)
    with pytest.raises(txnclient.InvalidArgument, match="this client is closed"):
        await asyncio.to_thread(producer.send, b"b")


async def test_c6_a_close_that_is_refused_leaves_the_client_as_it_is(cluster: InProcessCluster) -> None:
    """▲ Its loop would end: every other call would be refused, and its transactions would stay open on the service."""

    def work() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            with client.transaction() as txn:
                with pytest.raises(txnclient.InvalidArgument, match="its own event loop"):
                    client._bridge.call(client.close)  # in the loop's thread, as a callback is
                client.producer(TOPIC).send(b"a", txn=txn)
            assert txn.state == "COMMITTED"
        with pytest.raises(txnclient.InvalidArgument, match="this client is closed"):
            client.list_topics()

    await asyncio.to_thread(work)
