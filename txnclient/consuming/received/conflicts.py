"""Says why a transaction cannot ack a message that this consumer has handed out. Pure."""

from __future__ import annotations

from typing import Any

from txnclient.consuming.received.message import Message
from txnwire.errors import TxnConflict


def delivered_again(message: Message[Any]) -> TxnConflict:
    """The consumer knows of a timeout that it was the cause; the other causes are named together."""
    if message.entry.late >> message.index & 1:
        return TxnConflict(
            f"message {message.id} was not acked within the consumer's ack_timeout, so it was given back and is "
            "delivered again: abort this transaction, and open the consumer with an ack_timeout longer than the "
            "longest job"
        )
    return TxnConflict(
        f"message {message.id} is no longer held here: it was acked before, or it is delivered again, because it was "
        "given back (nack, rewind, the abort of a transaction that acked messages of this segment), the connection to "
        "its broker was lost, or its segment was assigned again: abort this transaction and receive again"
    )
