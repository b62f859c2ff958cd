"""A segment's two answers to a cut: its resolved position, and later its end (DESIGN §10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from txnwire.errors import Timeout
from txnwire.ids import Position
from txnwire.ports import Clock
from txnwire.turns import taking_turns
from watchers.visibility import BufferCut, TransactionBuffer

NOTED_FOR_S: Final = 30.0
"""How long decisions are noted after a cut's first question: longer than a controller retries the second one."""

PATIENCE_S: Final = 0.02
"""How long a cut waits for watch events before it reads the headers of held transactions. R is seldom the revision of
an event under `/txn/`, and on a quiet system no event would ever confirm that it is followed."""

READER_PATIENCE_S: Final = 0.1
"""The same for a reader that begins: its revision is mostly that of an event, which is then on its way."""


class SegmentCuts:
    """Answers the cuts of one segment. `check` raises if the segment cannot answer; `wait_followed` waits for decisions
    up to a revision. Call `woken` whenever an operation in flight has ended, and when the segment stops."""

    def __init__(
        self,
        segment: str,
        buffer: TransactionBuffer,
        clock: Clock,
        *,
        check: Callable[[], None],
        wait_followed: Callable[[int], Awaitable[None]],
        wait_s: float,
    ) -> None:
        self._segment = segment
        self._buffer = buffer
        self._clock = clock
        self._check = check
        self._wait_followed = wait_followed
        self._wait_s = wait_s
        self._noted_until_s = 0.0
        self._noting = False
        self._waiters: dict[asyncio.Future[None], None] = {}

    def begin(self) -> Position:
        """The first answer: everything up to here is decided. Notes decisions from now on for the second answer."""
        self._check()
        self._noting = True
        self._noted_until_s = self._clock.monotonic() + NOTED_FOR_S
        self._buffer.note_decisions()
        return self._buffer.max_read_position

    async def answer(self, revision: int, resolved: Position) -> BufferCut:
        """The second answer, for a cut at `revision`.

        ▲ Waits until decisions are followed to `revision` and no transaction decided by then has an operation in
        flight: its entry would land behind the end, and the cut would hold only a part of it. Raises `NotOwner`,
        `Timeout` (also if the cut began so long ago that decisions are no longer noted).
        """
        await self._wait_followed(revision)
        await self._wait_settled(revision)
        self._check()
        found = await taking_turns(self._buffer.cut(revision, resolved))  # ▲ must begin in this turn: see there
        if found is None:
            raise Timeout(f"{self._segment}: a cut at revision {revision} was begun too long ago: begin it again")
        return found

    async def _wait_settled(self, revision: int) -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                while self._buffer.unsettled(revision):
                    self._check()
                    await self._wait_woken()
        except TimeoutError:
            raise Timeout(
                f"{self._segment}: after {self._wait_s} s a transaction decided before revision {revision} still has "
                "an operation in flight"
            ) from None

    async def _wait_woken(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)

    def woken(self) -> None:
        """Let waiting cuts check again, and stop noting decisions after `NOTED_FOR_S`."""
        if self._waiters:
            for waiter in list(self._waiters):
                if not waiter.done():
                    waiter.set_result(None)
        if self._noting and self._clock.monotonic() > self._noted_until_s:
            self._noting = False
            self._buffer.forget_decisions()
