"""Snapshots beside the workload: each is read whole and from the one before it, and must add up (DESIGN §10).

The checker judges that none is torn. What it cannot know is looked at here: that a snapshot holds what had been
committed before it was asked for, and that it is the one before and what was committed between the two.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

import txnclient
from simulation.history import Poll
from simulation.recorder import Positions, Recorder
from txnclient.message import Message
from txnclient.snapshot import Snapshot
from txnwire.errors import TxnError

PAUSE_S = 6.0
"""Mean pause between two snapshots of one process."""


class SnapshotWork:
    """One process' snapshots. `keys`: all that a history may hold of these topics, so that what a snapshot lacks of one
    is seen. `found`: told of what is wrong."""

    def __init__(
        self,
        recorder: Recorder,
        process: str,
        chance: random.Random,
        *,
        topics: Sequence[str],
        keys: Sequence[str],
        found: Callable[[str], None],
    ) -> None:
        self._recorder = recorder
        self._process = process
        self._random = chance
        self._topics = list(topics)
        self._keys = keys
        self._found = found
        self._last: Snapshot | None = None
        self._held: Counter[str] = Counter()
        self._taken = 0

    async def go_on(
        self, client: txnclient.Client, active: Callable[[], bool], met: Callable[[TxnError], None]
    ) -> None:
        """Take and read snapshots until `active` says no."""
        while active():
            await asyncio.sleep(self._random.expovariate(1 / PAUSE_S))
            try:
                await self._take(client)
            except TxnError as error:
                met(error)

    async def _take(self, client: txnclient.Client) -> None:
        committed = [draft for draft in self._recorder.drafts if draft.outcome == "ok" and draft.sends]
        snapshot = Snapshot.from_json((await client.snapshot(self._topics)).to_json())
        self._taken += 1
        name = f"{self._process}@{self._taken}"
        draft = self._recorder.begin(f"{self._process}/snapshot", "snapshot")
        whole = await self._read(client, None, snapshot)
        since = await self._read(client, self._last, snapshot)
        draft.polled([Poll(reads={key: [] for key in self._keys}, at=self._recorder.now(), snapshot=name)])
        polls = Positions(self._recorder.now, None).polls(whole)
        draft.polled([msgspec.structs.replace(poll, snapshot=name) for poll in polls])
        self._recorder.end(draft, "ok")
        values = _values(whole)
        if self._last is not None and self._held + _values(since) != values:
            self._found(f"{name} is not the snapshot before it and what was committed since")
        for one in committed:
            if missing := [value for _, value in one.sends if value not in values]:
                self._found(f"{name} lacks {', '.join(missing)} of {one.process} {one.name}, committed before it")
        self._last, self._held = snapshot, values

    async def _read(self, client: txnclient.Client, start: Snapshot | None, end: Snapshot) -> list[Message]:
        messages: list[Message] = []
        async with client.reader(self._topics, start=start or "earliest", end=end) as reader:
            while not reader.ended:
                messages += await reader.receive_many(500)
        return messages


def _values(messages: list[Message]) -> Counter[str]:
    return Counter(message.value.decode() for message in messages)
