"""What a queue's consumer gives back, when, and how it counts: nothing stays with who does not work on it."""

from __future__ import annotations



import txnclient
from tests.txnclient.queueing import TOPIC, prepared, received


async def test_closing_counts_for_what_was_received_and_not_for_what_was_buffered(client: txnclient.Client) -> None:
    """A message that makes its worker close is dead one day; those behind it in the buffer are not."""
    await prepared(client, 10, segments=1)
    for closed in range(3):
        async with await client.consumer(TOPIC, "workers", type="queue", max_redeliveries=3) as consumer:
            first = await consumer.receive(timeout=10)
            assert (first.value, first.redelivery_count) == (b"0", closed)
    async with await client.consumer(TOPIC, "workers", type="queue") as consumer:
        found = {message.value: message.redelivery_count for message in await received(consumer, 10)}
    assert found == {b"0": 3} | {str(number).encode(): 0 for number in range(1, 10)}
