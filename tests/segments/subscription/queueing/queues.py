"""What a queue consumer has been told of its messages."""

from __future__ import annotations

from tests.segments.brokering import Consumer


def counts(consumer: Consumer) -> dict[str, int]:
    """Redelivery count by value, of what was delivered since the last `take`."""
    return {message.value: message.redelivery_count for message in consumer.messages}
