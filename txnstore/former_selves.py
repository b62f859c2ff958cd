"""Decides which leases under its own name a process may end: its predecessors', never a living namesake's.

▲ A paused process wakes up and finds its name held by its replacement. If each ended the other's lease to get the name
back, neither would hold anything for long. So a process may end the leases found at its first look (a process that
starts under a name takes it over), and those granted to itself; for any other lease it waits until it is gone. Used by
elections, brokers and coordinators.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

REMEMBERED: Final = 64
"""Number of own leases remembered: each is gone from the store long before this many more are granted."""


class FormerSelves:
    """The leases that one process may end under one name."""

    def __init__(self) -> None:
        self._looked = False
        self._leases: dict[int, None] = {}

    def found(self, leases: Iterable[int]) -> None:
        """These leases hold the name now. At the first look they are predecessors'; later calls change nothing."""
        if not self._looked:
            self._looked = True
            self._leases.update(dict.fromkeys(leases))

    def granted(self, lease: int) -> None:
        """This process was granted `lease`; leases found from now on are no predecessor's."""
        self._looked = True
        self._leases[lease] = None
        while len(self._leases) > REMEMBERED:
            del self._leases[next(iter(self._leases))]

    def may_end(self, lease: int) -> bool:
        return lease in self._leases
