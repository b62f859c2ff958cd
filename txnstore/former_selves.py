"""Which leases a process may end because its own name stands on them: its predecessors', never a living namesake's.

▲ A process that was paused wakes up and finds its name taken by the one that was started in its place. If each ended
the other's lease to have the name back, neither would ever hold anything for long. So only what stood there at the
first look is a predecessor's (whoever starts under a name has it), and what this process was granted itself; who finds
any other lease waits until it is gone. Used by elections, brokers and coordinators.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

REMEMBERED: Final = 64
"""Leases of its own: each is gone from the store long before so many more have been granted."""


class FormerSelves:
    """Of one process and one name."""

    def __init__(self) -> None:
        self._looked = False
        self._leases: dict[int, None] = {}

    def found(self, leases: Iterable[int]) -> None:
        """These leases hold the name now. At the first look they are predecessors', later on it changes nothing."""
        if not self._looked:
            self._looked = True
            self._leases.update(dict.fromkeys(leases))

    def granted(self, lease: int) -> None:
        """This process has been granted `lease`; what it finds from now on is no predecessor's."""
        self._looked = True
        self._leases[lease] = None
        while len(self._leases) > REMEMBERED:
            del self._leases[next(iter(self._leases))]

    def may_end(self, lease: int) -> bool:
        return lease in self._leases
