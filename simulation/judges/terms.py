"""Detects from outside whether a controller led again after another one's term, while its connections to a client stood
all along."""

from __future__ import annotations

from collections.abc import Sequence

from simulation.world.world import World
from txnstore import keys
from txnstore.records import RegistrationRecord, decode
from txnstore.store import Event, EventKind


class Terms:
    """Call it with every change. `behind_another`: how often a controller was elected again, in the same life, after
    another one, while a connection of `client` to it stood."""

    def __init__(self, world: World, client: str) -> None:
        self._world = world
        self._client = client
        self._leader: tuple[str, int] | None = None
        self._before: tuple[str, int] | None = None
        """The leader before, with the same connections."""
        self._stood: list[int] = []
        """The client's connections to that leader as its term ended."""
        self.behind_another = 0

    def saw(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.record.key == keys.leader("controller") and event.kind is EventKind.PUT:
                self._elected(decode(RegistrationRecord, event.record.value, key=event.record.key).id)

    def _elected(self, name: str) -> None:
        elected = (name, self._world.processes[name].life)
        if self._leader is None or elected == self._leader:
            self._leader = elected
            return
        if elected == self._before and any(number in self._stood for number in self._connections(name)):
            self.behind_another += 1
        self._before, self._leader = self._leader, elected
        self._stood = self._connections(self._before[0])

    def _connections(self, server: str) -> list[int]:
        ends = (self._client, server)
        return [link.number for link in self._world.network.links() if (link.ends[0].host, link.ends[1].host) == ends]
