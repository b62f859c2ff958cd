"""What is left of the synchronous face once its last client is closed, and with it the loop."""

from __future__ import annotations

import asyncio

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
