"""The terms of the controllers, as they show from outside: whether one led again through another one's term with its
connections to a client standing all along."""

from __future__ import annotations

from collections.abc import Sequence

from simulation.world.world import World
from txnstore import keys
from txnstore.records import RegistrationRecord, decode
from txnstore.store import Event, EventKind


class Terms:
    """Show it every change. `behind_another`: how often one was elected again, in the same life, behind another one,
    while a connection of `client` to it stood."""

    def __init__(self, world: World, client: str) -> None:
        self._world = world
        self._client = client
        self._leader: tuple[str, int] | None = None
        self._before: tuple[str, int] | None = None
        """Who led before, of the same."""
        self._stood: list[int] = []
        """Connections of the client to that one, as its term was over."""
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
