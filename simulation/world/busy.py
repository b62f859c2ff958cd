"""Detects processes that never rest: callbacks that never end, or polling without a pause, delay nothing in virtual
time, but would use up a core in real time."""

from __future__ import annotations

from simulation.world.loop import CALLBACK_S, ProcessLife, SimLoop

AT_MOST = 30_000
"""Limit of one process' callbacks in a virtual second. A spinning one makes a million, normal ones up to 4 000."""


class BusyJudge:
    """Call `look` once in a virtual second."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._seen: dict[ProcessLife, int] = {}
        self.most = 0
        self.findings: list[str] = []

    def look(self) -> None:
        for owner in self._loop.owners:
            done = owner.steps - self._seen.get(owner, 0)
            self._seen[owner] = owner.steps
            self.most = max(self.most, done)
            if done > AT_MOST:
                self.findings.append(
                    f"at virtual second {self._loop.time():.0f} {owner.name} had run {done} callbacks within one "
                    f"second, which took {done * CALLBACK_S:.2f} s of it: it does not rest; tasks: {_tasks(owner)}"
                )


def _tasks(owner: ProcessLife) -> str:
    names = sorted({getattr(task.get_coro(), "__qualname__", "?") for task in owner.tasks if not task.done()})
    return ", ".join(names[:20])
