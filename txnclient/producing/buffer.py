"""A producer's buffer: what it has taken in and not stored yet is bounded, and sends wait for room in it.

A send that waits is put into its channel by whoever gives it the room, not by the task that waits for it: so nothing
that is sent meanwhile gets ahead of it. ▲ C2: it belongs to its transaction from the moment it asks: a commit waits for
it, and an abort ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import Session
from txnclient.producing.room import BufferRoom
from txnclient.transactions.transaction import Transaction
from txnwire.errors import TxnError, again
from txnwire.turns import turn_size

GIVEN_AT_ONCE = 1000
"""Sends that get their room in one turn of the loop: all of the buffer may have become free in the one before."""

T = TypeVar("T")


class Ask:
    """One send that waits."""

    __slots__ = ("failure", "place", "placed", "txn", "withdrawn")

    def __init__(self, place: Callable[[], Any], txn: Transaction | None, placed: asyncio.Future[Any]) -> None:
        self.place = place
        self.txn = txn
        self.placed = placed
        """What `place` has given back or raised; cancelled once it waits no longer and was not placed."""
        self.withdrawn: TxnError | None = None
        """Why it was withdrawn: its transaction ends without it."""
        self.failure: Exception | None = None
        """Why it is not placed, unless it was withdrawn or its sender was cancelled."""


class Buffer:
    """Takes part in the transactions whose sends wait here."""

    def __init__(self, session: Session, producer: str, bound: int) -> None:
        """`producer`: its name."""
        self._session = session
        self._producer = producer
        self._room: BufferRoom[Ask] = BufferRoom(bound)
        self._asks: dict[Transaction | None, dict[Ask, None]] = {}
        """Those who wait, by transaction: very many may abort at once."""
        self._giving = False

    def __str__(self) -> str:
        room = self._room
        waiting = f", {len(room)} sends wait for room" if len(room) else ""
        return f"{room.taken} of {room.bound} bytes of its buffer are taken{waiting}"

    @property
    def taken(self) -> int:
        """Bytes."""
        return self._room.taken

    def has_room(self, size: int) -> bool:
        """Whether so much may be taken at once: it fits, and nobody waits."""
        return self._room.has(size)

    def take(self, size: int) -> None:
        self._room.take(size)

    def give_back(self, size: int) -> None:
        self._room.give_back(size)
        self._give_soon()

    async def wait(self, size: int, txn: Transaction | None, place: Callable[[], T]) -> T:
        """Wait for room, behind all who wait; then `place` is called, which takes it, and its result is returned.

        Raises what `place` raises; `InvalidTxnState` where `txn` ends without it; `Timeout`, and nothing was placed.
        Whoever is cancelled waits no longer: either nothing was placed, or `place` has been called."""
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
        """Its sender waits no longer. ▲ C3: whoever is behind it gets its turn, or all would wait for nobody."""
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
        """Not at once: room is given back in the middle of what a channel does."""
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
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                ask.failure = error
                self._give_up(ask)
            else:
                ask.placed.set_result(result)
                self._waits_no_longer(ask)
        self._give_soon()  # ▲ C3: until then nobody else has room, for these wait

    # ---- those who wait ---------------------------------------------------------------------------------------------

    async def wait_placed(self, deadline: Deadline) -> Sequence[Ask]:
        """Wait, as time allows, until all who wait now do so no longer; returns them."""
        asks = self._room.waiting
        if asks:
            await asyncio.wait([ask.placed for ask in asks], timeout=deadline.remaining())
        return asks

    def fail_all(self, error: TxnError) -> None:
        """Nobody waits any longer: the producer cannot go on."""
        for ask in self._room.waiting:
            self._room.leave(ask)
            ask.failure = again(error)
            self._give_up(ask)

    def flush(self, txn: Transaction) -> None:
        """What is given room leaves by itself: it lingers only behind what is under way."""

    def withdraw(self, txn: Transaction) -> None:
        """Its sends wait no longer."""
        for ask in list(self._asks.get(txn, ())):
            self._room.leave(ask)
            ask.withdrawn = txn.withdrawn("send")
            self._give_up(ask)
        self._give_soon()

    def ended(self, txn: Transaction, committed: bool, revision: int) -> None:
        """Nothing of it is left here: it waits for its sends, or withdraws them."""
