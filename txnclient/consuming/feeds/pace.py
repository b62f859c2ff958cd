"""Decides how many messages of a queue's segment a consumer keeps ahead of its application. Pure.

Theory of operation:

1. A message that waits at one consumer cannot be worked on elsewhere. A consumer that is alone with the queue keeps its
   whole prefetch; one that shares it keeps ahead only what covers the way to the broker and back.
2. So the window of a consumer that shares begins with one message. ▲ It doubles when the application waits and what
   comes then uses up all permits: only there was the window too small. No time is measured, so neither a commit nor a
   long job counts for or against it, and few messages do not raise it.
3. An application that asks for many messages at once (`receive_many(500)`) works on them together, as it says: the
   window is at least that.
4. Once a `PERIOD_S`, the feed looks at the messages that wait:
   - The application has asked for nothing: it hangs, or has a long job. All that it has not begun is given back, pieces
     of incomplete values too, and nothing is granted before it asks again.
     ▲ If it got nothing before, because nothing had been granted, the period doubles each time: an application that
     asks now and then, without waiting, would otherwise never get a message.
   - A message has waited for the whole period: jobs have become long. The window falls to what is worked off in an
     eighth of a period, and what waits beyond it is given back.

5. While a segment is shared and the application has paused it, nothing of it is kept or granted.

The application has not seen a message that is given back, so it comes again, to any consumer, with the same redelivery
count.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

PERIOD_S: Final = 1.0
LONGEST_S: Final = 60.0
"""The longest period, for an application that has asked and got nothing."""
_PART: Final = 8


class Wait(Enum):
    """The result of a look at the buffer."""

    SHORT = "short"
    LONG = "long"
    UNASKED = "unasked"


class QueuePace:
    """The window of one segment's inbox, in messages; None while the consumer is alone: no bound."""

    def __init__(self) -> None:
        self.sharing = 0
        """The last value from the broker, see `Deliver.sharing`."""
        self.paused = False
        """Nothing is granted until the application asks."""
        self.halted = False
        """The application has paused the segment."""
        self.period_s = PERIOD_S
        """Until the next look."""
        self._in_vain = False
        """The application has asked, and has got nothing since."""
        self._window = 1
        self._at_once = 1
        self._taken = 0
        """Since the last look."""
        self._waited = 0
        self._asks = 0

    @property
    def shares(self) -> bool:
        return self.sharing % 2 == 1

    @property
    def idle(self) -> bool:
        """Whether nothing is kept and nothing is granted."""
        return self.shares and (self.paused or self.halted)

    @property
    def window(self) -> int | None:
        return max(self._window, self._at_once) if self.shares else None

    def told(self, sharing: int) -> None:
        """The consumer shares the queue, or is alone again; 0: it is not attached."""
        if not self.shares or sharing % 2 == 0:
            self.paused = self._in_vain = False
            self._window = 1
        self.sharing = sharing

    def starved(self, most: int) -> None:
        """The application waits, and a delivery has used up all permits."""
        self._window = min(most, 2 * max(self._window, self._at_once))

    def asked_for(self, at_once: int) -> None:
        self._at_once = at_once

    def taken(self, count: int) -> None:
        self._taken += count
        self._in_vain = False

    def resumed(self) -> None:
        """The application asks, after a look that has found it `UNASKED`."""
        self.paused, self._in_vain = False, True

    def begin_period(self, buffered: int, asks: int) -> None:
        """`asks`: how often the application has asked, ever."""
        self._taken, self._waited, self._asks = 0, buffered, asks

    def look(self, asks: int) -> Wait:
        """At the end of a period."""
        if asks == self._asks:
            self.paused, self._window = True, 1
            if self._in_vain:
                # ▲ Otherwise it would get nothing again; if all consumers ask like that, none ever gets a message.
                self.period_s = min(LONGEST_S, 2 * self.period_s)
            return Wait.UNASKED
        if asks - self._asks > self.period_s / PERIOD_S:
            self.period_s = PERIOD_S
        if self._taken < self._waited:
            self._window = max(1, min(self._window, self._taken // _PART))
            return Wait.LONG
        return Wait.SHORT
