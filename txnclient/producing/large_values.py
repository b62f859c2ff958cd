"""Sends values over the limit of one message in pieces within a transaction (scenario A7)."""

from __future__ import annotations

import asyncio
from typing import Protocol

from txnclient.producing.channels.batches import BulkBatch
from txnclient.producing.channels.channel import Channel
from txnclient.transactions.transaction_impl import TransactionImpl
from txnclient.transactions.whole import Whole
from txnwire.entry import Columns, OutgoingMessage, Piece
from txnwire.errors import MessageTooLarge, SegmentSealed
from txnwire.ids import MessageId
from txnwire.protocol import MAX_CHUNKED_BYTES, MIB

PIECE_BYTES = MIB
"""Size of one piece: small against what a segment takes in at once, large against an entry's overhead."""


class LargeValueSender(Protocol):
    """The producer."""

    def channel_of(self, key: bytes | None, txn: TransactionImpl) -> Channel:
        """The current channel for a value with this key; without a key, the next in turn."""

    async def add_piece(
        self, channel: Channel, columns: Columns, size: int, txn: TransactionImpl, piece: Piece, deliver_at_ms: int
    ) -> BulkBatch:
        """Wait for room, then add the piece. Raises `SegmentSealed` if the channel has left its segment."""


def transaction_of(size: int, txn: TransactionImpl | None) -> TransactionImpl:
    """The transaction that a value of `size` bytes is sent in. Raises `MessageTooLarge` if it cannot be sent in pieces
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
    txn: TransactionImpl,
    *,
    piece_bytes: int = PIECE_BYTES,
    deliver_at_ms: int = 0,
) -> MessageId:
    """Send one value in pieces of `piece_bytes`, all to one segment, one value after the other. `head`: the message
    without its value, which takes `overhead` bytes in the buffer.

    ▲ A7: if it ends early, the transaction can only abort, or it would commit half a value."""
    with Whole(txn, "a large value"):
        while True:
            try:
                return await _send(sender, value, head, overhead, txn, piece_bytes, deliver_at_ms)
            except SegmentSealed:
                # ▲ Its pieces in the sealed segment never become complete. Send it again, as a new value, to its
                # current segment.
                continue


async def _send(
    sender: LargeValueSender,
    value: bytes,
    head: OutgoingMessage,
    overhead: int,
    txn: TransactionImpl,
    piece_bytes: int,
    deliver_at_ms: int,
) -> MessageId:
    """Send the value once. Raises `SegmentSealed` if its segment was sealed before all of it was stored."""
    channel = sender.channel_of(head.key, txn)
    count = -(-len(value) // piece_bytes)
    batches: list[BulkBatch] = []
    async with channel.one_large_value:
        for number in range(count):
            part = value[number * piece_bytes : (number + 1) * piece_bytes]
            message = head._replace(value=part) if number == 0 else OutgoingMessage(part, head.key)
            piece = Piece(batches[0].first if batches else -1, number, count, len(value))
            columns, size = Columns.of([message]), len(part) + overhead
            batches.append(await sender.add_piece(channel, columns, size, txn, piece, deliver_at_ms))
    await asyncio.wait([batch.settled for batch in batches])
    failures = [error for batch in batches if (error := batch.settled.exception()) is not None]
    for error in sorted(failures, key=lambda error: isinstance(error, SegmentSealed)):
        raise error
    return batches[0].id_of(0)
