"""Decides how many messages of a queue `process` takes into one transaction. Pure.

A message that waits in one worker's batch cannot be worked on elsewhere, so a batch is about `WORK_S` of the handler's
work: one long job, or hundreds of short ones. ▲ Only the handler's own time counts as work. Waiting for commits does
the opposite: where they are slow, longer batches hide them. If it counted as work, batches would shrink to one message,
and each message would wait for a commit.
"""

from __future__ import annotations

from typing import Final

WORK_S: Final = 0.05
MOST_S: Final = 1.0
"""The most work of a batch, however slow commits are."""


class BatchPace:
    def __init__(self, most: int) -> None:
        self._most = most
        self._waited_s = 0.0
        self.at_once = 1
        """Messages of the next batch."""

    def waited(self, waited_s: float) -> None:
        """The loop has waited so long for commits before it went on."""
        self._waited_s = waited_s

    def worked(self, messages: int, took_s: float) -> None:
        """The handler has worked so long on so many messages."""
        aim_s = max(WORK_S, min(self._waited_s, MOST_S))
        fitting = self._most if took_s <= 0 else int(messages * aim_s / took_s)
        self.at_once = max(1, min(self._most, fitting))
