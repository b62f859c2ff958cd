"""How many messages of a queue the synchronous `process` takes at once."""

from __future__ import annotations

import asyncio
import time

import txnclient
import txnclient.sync
from tests.cluster import InProcessCluster

TOPIC = "topic://public/default/sync"
JOBS = 5
"""At most one more than there are commits under way: none is waited for, which would make batches longer."""


async def test_of_long_jobs_a_worker_takes_one_at_a_time_and_leaves_the_others_to_its_like(
    cluster: InProcessCluster,
) -> None:
    def work() -> txnclient.ProcessStatistics:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            with client.producer(TOPIC) as producer:
                producer.send_many([b"%d" % number for number in range(JOBS)])
            with client.consumer(TOPIC, "sub", type="queue") as consumer:
                return txnclient.sync.process(consumer, lambda _: time.sleep(0.1), max_messages=JOBS)

    done = await asyncio.to_thread(work)
    assert (done.messages, done.transactions) == (JOBS, JOBS)


async def test_short_jobs_are_taken_together(cluster: InProcessCluster) -> None:
    def work() -> txnclient.ProcessStatistics:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(TOPIC)
            with client.producer(TOPIC) as producer:
                producer.send_many([b"%d" % number for number in range(500)])
            with client.consumer(TOPIC, "sub", type="queue") as consumer:
                return txnclient.sync.process(consumer, lambda _: None, max_messages=500)

    done = await asyncio.to_thread(work)
    assert done.messages == 500
    assert done.transactions < 250
