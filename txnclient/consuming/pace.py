"""Decides how many messages of a queue's segment a consumer keeps ahead of its application. Pure.

Theory of operation:

1. A message that waits here cannot be worked on elsewhere. So a consumer keeps ahead what its application works off
   while the next messages are on their way, and no more: a window of `SHORT_S` to `LONG_S` of work.
2. It begins with one message, for jobs that take long. The time that counts is the time in which the application is
   busy: it has taken messages, and does not wait for more.
3. A window that was worked off in less than `SHORT_S` doubles. A fast application reaches hundreds within a few round
   trips.
4. If the application is busy for longer than `LONG_S` twice in a row before its window is worked off, the window falls
   to what it does work off, and what waits beyond that is given back. Once is not enough: a pause now and then is no
   slow job.
5. An application that asks for many messages at once (`receive_many(500)`) works on them together: the window is at
   least that.
6. ▲ An application that has asked for nothing for `GIVE_BACK_S` hangs, or has a very long job. All that waits for it is
   given back, and it gets nothing more before it asks again. So a worker that hangs keeps what it works on, no more.

What is given back was not looked at, so it comes again, to any consumer, with the same redelivery count.
"""

from __future__ import annotations

from typing import Final

SHORT_S: Final = 0.02
"""Longer than the way to a broker and back in one data centre."""
LONG_S: Final = 0.08
GIVE_BACK_S: Final = 1.0


class QueuePace:
    """Adapts the window of one segment's inbox; `window` is in messages."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.window = 1
        self._done = 0
        """Messages taken since `_since_s`."""
        self._since_s = 0.0
        self._slow = 0
        """Times in a row that the application was slow."""

    def asked(self, busy_s: float, at_once: int) -> bool:
        """The application asks for messages. `busy_s`: how long it has been busy, ever; `at_once`: how many it works on
        together. Returns whether it is slow: what waits beyond the window is to be given back."""
        busy = busy_s - self._since_s
        slow = False
        if not self._done:
            self._begin(busy_s)
        elif busy > LONG_S:
            self._slow += 1
            slow = self._slow > 1
            if slow:
                self.window = max(1, min(self.window, int(self._done * LONG_S / busy)))
            self._begin(busy_s)
        elif self._done >= self.window:
            if busy < SHORT_S:
                self.window = 2 * self.window
            self._slow = 0
            self._begin(busy_s)
        self.window = max(1, min(self.most, max(self.window, at_once if at_once > 1 else 1)))
        return slow

    def taken(self, count: int) -> None:
        self._done += count

    def _begin(self, busy_s: float) -> None:
        self._done = 0
        self._since_s = busy_s
