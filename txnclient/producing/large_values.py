"""Values over the bound of one message, sent in pieces within a transaction (scenario A7)."""

from __future__ import annotations

import asyncio
from typing import Protocol

from txnclient.producing.batches import BulkBatch
from txnclient.producing.channel import Channel
from txnclient.transactions.transaction import Transaction
from txnclient.transactions.whole import Whole
from txnwire.entry import Columns, OutgoingMessage, Piece
from txnwire.errors import MessageTooLarge, SegmentSealed
from txnwire.ids import MessageId
from txnwire.protocol import MAX_CHUNKED_BYTES, MIB

PIECE_BYTES = MIB
"""Of a large value in one entry: small beside what a segment takes in at once, large beside what an entry costs."""


class LargeValueSender(Protocol):
    """The producer."""

    def channel_of(self, key: bytes | None, txn: Transaction) -> Channel:
        """Where a value with this key goes now; without one, the next in turn."""

    async def add_piece(
        self, channel: Channel, columns: Columns, size: int, txn: Transaction, piece: Piece
    ) -> BulkBatch:
        """Waits for room in the buffer. Raises `SegmentSealed` if the value's segment is not reached by it any more."""


def transaction_of(size: int, txn: Transaction | None) -> Transaction:
    """The transaction a value of so many bytes is sent in. Raises `MessageTooLarge` for what cannot be sent in pieces
    either."""
    if txn is None:
        raise MessageTooLarge(
            f"a value of {size} bytes needs a transaction: its pieces appear together only when one commits"
        )
    if size > MAX_CHUNKED_BYTES:
        raise MessageTooLarge(f"a value of {size} bytes is over the {MAX_CHUNKED_BYTES} of one in pieces")
    return txn


async def send_large(
    sender: LargeValueSender,
    value: bytes,
    head: OutgoingMessage,
    overhead: int,
    txn: Transaction,
    *,
    piece_bytes: int = PIECE_BYTES,
) -> MessageId:
    """One value in pieces of so many bytes, all to one segment, and one value after the other. `head`: all of the
    message but its value, which takes `overhead` bytes in the buffer.

    ▲ A7: whatever ends it in between leaves the transaction only able to abort, or it would commit half a value."""
    with Whole(txn, "a large value"):
        while True:
            try:
                return await _send(sender, value, head, overhead, txn, piece_bytes)
            except SegmentSealed:
                # ▲ What of it stands in the sealed segment never makes a whole. It is sent anew, as another value, to
                # where it belongs now.
                continue


async def _send(
    sender: LargeValueSender,
    value: bytes,
    head: OutgoingMessage,
    overhead: int,
    txn: Transaction,
    piece_bytes: int,
) -> MessageId:
    """Raises `SegmentSealed` if its segment was sealed before all of it was stored there."""
    channel = sender.channel_of(head.key, txn)
    count = -(-len(value) // piece_bytes)
    batches: list[BulkBatch] = []
    async with channel.one_large_value:
        for number in range(count):
            part = value[number * piece_bytes : (number + 1) * piece_bytes]
            message = head._replace(value=part) if number == 0 else OutgoingMessage(part, head.key)
            piece = Piece(batches[0].first if batches else -1, number, count, len(value))
            batches.append(await sender.add_piece(channel, Columns.of([message]), len(part) + overhead, txn, piece))
    await asyncio.wait([batch.settled for batch in batches])
    failures = [error for batch in batches if (error := batch.settled.exception()) is not None]
    for error in sorted(failures, key=lambda error: isinstance(error, SegmentSealed)):
        raise error
    return batches[0].id_of(0)
