"""Sends of a numbered producer: each id once, however often it is sent (DESIGN §7, "Numbered producers")."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from txnclient.connection.deadlines import Deadline
from txnclient.producing.buffer import Buffer
from txnclient.producing.channels.numbered import STORED_BEFORE, NumberedLife
from txnclient.producing.channels.source_ids import Standing
from txnwire.entry import OutgoingMessage
from txnwire.errors import InvalidArgument
from txnwire.ids import MessageId

ID_BYTES: Final = 10
"""Bytes that an id of the source takes in an entry at most. ▲ Without this reserve, ids far apart would make
a full batch too large for an entry. That would end the producer, and each later producer at the same place."""


class Placing(NamedTuple):
    """Where a producer's messages go: `take` puts one into the batch of its segment, within the buffer."""

    buffer: Buffer
    take: Callable[[OutgoingMessage, int, None, asyncio.Future[MessageId]], None]


def expect_life(
    life: NumberedLife | None, sequence_id: int | None, *, txn: object, chunk: bool = False
) -> tuple[NumberedLife, int]:
    """The life and the id of a send. Raises `InvalidArgument` for a call that does not fit the producer."""
    if life is None:
        raise InvalidArgument("sequence_id: this producer does not number its messages; open it with sequence_id=…")
    if sequence_id is None:
        raise InvalidArgument(f"producer {life.name} numbers its messages: give each send its sequence_id")
    if txn is not None:
        raise InvalidArgument(
            f"producer {life.name} numbers its messages, and sends them outside transactions: those of an aborted one "
            "would count as stored. For sends in transactions use a named transaction, or another producer"
        )
    if chunk:
        raise InvalidArgument(f"producer {life.name} numbers its messages: chunk=True needs a transaction")
    return life, sequence_id


async def send_numbered(
    placing: Placing,
    life: NumberedLife,
    sequence_id: int,
    message: OutgoingMessage,
    size: int,
    deadline: Deadline,
) -> MessageId:
    """See `Producer.send`."""
    standing = life.ids.standing(sequence_id)
    if standing is Standing.STORED:
        await asyncio.sleep(0)  # ▲ C6: a caller that rewinds far must not block the event loop
        return STORED_BEFORE
    stored: asyncio.Future[MessageId]
    size += ID_BYTES
    if standing is Standing.UNDER_WAY:
        stored = life.repeated(sequence_id)
    else:
        stored = life.outcome(sequence_id)
        await _place(placing, life, sequence_id, message, size, stored, owed=standing is Standing.OWED)
    try:
        await asyncio.wait((stored,), timeout=deadline.remaining())
        if not stored.done():
            raise deadline.expired(f"sending sequence id {sequence_id}: it may be stored; send it again to learn of it")
        return stored.result()
    except BaseException:
        stored.cancel()
        raise


async def _place(
    placing: Placing,
    life: NumberedLife,
    sequence_id: int,
    message: OutgoingMessage,
    size: int,
    stored: asyncio.Future[MessageId],
    *,
    owed: bool,
) -> None:
    placed = False

    def place() -> None:
        nonlocal placed
        placing.take(message, size, None, stored)
        life.ids.placed(sequence_id)
        placed = True

    try:
        # ▲ An owed id does not wait: others may wait for the room that it holds back.
        if owed or placing.buffer.has_room(size):
            place()
        else:
            await placing.buffer.wait(size, None, place)
    finally:
        if not placed:
            life.owe(sequence_id)


def send_numbered_nowait(
    placing: Placing,
    life: NumberedLife,
    sequence_id: int,
    message: OutgoingMessage,
    size: int,
) -> asyncio.Future[MessageId]:
    """See `Producer.send_nowait`."""
    standing = life.ids.standing(sequence_id)
    if standing is Standing.UNDER_WAY:
        return life.repeated(sequence_id)
    if standing is Standing.STORED:
        stored: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
        stored.set_result(STORED_BEFORE)
        return stored
    size += ID_BYTES
    if standing is Standing.NEW and not placing.buffer.has_room(size):
        raise placing.buffer.full()
    stored = life.outcome(sequence_id)
    try:
        placing.take(message, size, None, stored)
    except BaseException:
        life.owe(sequence_id)
        raise
    life.ids.placed(sequence_id)
    return stored
