"""A producer's buffer: bounds the bytes taken in and not stored yet, and lets sends wait for room.

The code that frees room puts the waiting send into its channel, not the task that waits: so no later send overtakes it.
▲ C2: it belongs to its transaction from the moment it asks: a commit waits for it, and an abort ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import Session
from txnclient.producing.channels.source_ids import SourceIds
from txnclient.producing.room import BufferRoom
from txnclient.transactions.transaction_impl import TransactionImpl
from txnwire.errors import TxnError, WouldBlock, again
from txnwire.turns import turn_size

GIVEN_AT_ONCE = 1000
"""Most sends that get room in one turn of the loop: the whole buffer may have become free at once."""

T = TypeVar("T")


class Ask:
    """One send that waits."""

    __slots__ = ("failure", "place", "placed", "txn", "withdrawn")

    def __init__(self, place: Callable[[], Any], txn: TransactionImpl | None, placed: asyncio.Future[Any]) -> None:
        self.place = place
        self.txn = txn
        self.placed = placed
        """The result or error of `place`; cancelled if it stops waiting without being placed."""
        self.withdrawn: TxnError | None = None
        """Why it was withdrawn, if its transaction ends without it."""
        self.failure: Exception | None = None
        """Why it was not placed, unless it was withdrawn or its sender was cancelled."""


class Buffer:
    """Bounds a producer's bytes; a participant of the transactions whose sends wait here."""

    def __init__(self, session: Session, producer: str, bound: int, ids: SourceIds | None = None) -> None:
        """`producer`: its name. `ids`: of a numbered producer; they bound how far it is ahead."""
        self._session = session
        self._producer = producer
        self._room: BufferRoom[Ask] = BufferRoom(bound, None if ids is None else lambda: ids.has_room)
        self.has_room = self._room.has
        """Whether so many bytes may be taken at once: they fit, and no send waits."""
        self.take = self._room.take
        self._asks: dict[TransactionImpl | None, dict[Ask, None]] = {}
        """The waiting sends by transaction, because very many may abort at once."""
        self._giving = False

    def __str__(self) -> str:
        room = self._room
        waiting = f", {len(room)} sends wait for room" if len(room) else ""
        return f"{room.taken} of {room.bound} bytes of its buffer are taken{waiting}"

    def full(self) -> WouldBlock:
        """The error for a send that does not wait."""
        return WouldBlock(f"producer {self._producer}: {self}; await send(), or flush() first")

    @property
    def taken(self) -> int:
        """Bytes in use."""
        return self._room.taken

    def give_back(self, size: int) -> None:
        self._room.give_back(size)
        self._give_soon()

    async def wait(self, size: int, txn: TransactionImpl | None, place: Callable[[], T]) -> T:
        """Wait for room behind all waiting sends; then call `place`, which takes it, and return its result.

        Raises what `place` raises; `InvalidTxnState` if `txn` ends without it; `Timeout`: nothing was placed. A
        cancelled caller stops waiting: either nothing was placed, or `place` has been called."""
        deadline = self._session.deadline()
        ask = Ask(place, txn, self._session.loop.create_future())
        self._room.ask(ask, size)
        if txn is not None:
            txn.started(self)
        self._asks.setdefault(ask.txn, {})[ask] = None
        try:
            await asyncio.wait((ask.placed,), timeout=deadline.remaining())
            if not ask.placed.done():
                ask.failure = deadline.expired(f"waiting for room in the buffer of producer {self._producer}")
        finally:
            self._leave(ask)
        error = ask.withdrawn or ask.failure
        if error is not None:
            raise again(error) if isinstance(error, TxnError) else error
        placed: T = ask.placed.result()
        return placed

    def _leave(self, ask: Ask) -> None:
        """The sender stops waiting. ▲ C3: the next sends must get their turn: otherwise they would wait without end."""
        if self._room.leave(ask):
            self._give_up(ask)
            self._give_soon()

    def _give_up(self, ask: Ask) -> None:
        ask.placed.cancel()
        self._waits_no_longer(ask)

    def _waits_no_longer(self, ask: Ask) -> None:
        asks = self._asks[ask.txn]
        del asks[ask]
        if not asks:
            del self._asks[ask.txn]
        if ask.txn is not None:
            ask.txn.finished(None)

    # ---- giving room ------------------------------------------------------------------------------------------------

    def _give_soon(self) -> None:
        """Give room in the next turn: channels return room in the middle of their work."""
        if not self._giving and len(self._room):
            self._giving = True
            self._session.loop.call_soon(self._give)

    def _give(self) -> None:
        self._giving = False
        for _ in range(turn_size(GIVEN_AT_ONCE)):
            ask = self._room.next()
            if ask is None:
                return
            try:
                result = ask.place()
            except Exception as error:  # noqa: BLE001 - raised in the waiting send
                ask.failure = error
                self._give_up(ask)
            else:
                ask.placed.set_result(result)
                self._waits_no_longer(ask)
        self._give_soon()  # ▲ C3: until then no other send has room, because these wait

    # ---- waiting sends ----------------------------------------------------------------------------------------------

    async def wait_placed(self, deadline: Deadline) -> Sequence[Ask]:
        """Wait, as time allows, until all sends waiting now have stopped waiting; returns them."""
        asks = self._room.waiting
        if asks:
            await asyncio.wait([ask.placed for ask in asks], timeout=deadline.remaining())
        return asks

    def fail_all(self, error: TxnError) -> None:
        """Fail all waiting sends: the producer cannot go on."""
        for ask in self._room.waiting:
            self._room.leave(ask)
            ask.failure = again(error)
            self._give_up(ask)

    def flush(self, txn: TransactionImpl) -> None:
        """Nothing to do: a send that gets room is sent without a flush, and lingers only behind entries under way."""

    def withdraw(self, txn: TransactionImpl) -> None:
        """Withdraw its waiting sends."""
        for ask in list(self._asks.get(txn, ())):
            self._room.leave(ask)
            ask.withdrawn = txn.withdrawn("send")
            self._give_up(ask)
        self._give_soon()

    def ended(self, txn: TransactionImpl, committed: bool, revision: int) -> None:
        """Nothing to do: the transaction has waited for its sends or withdrawn them."""
