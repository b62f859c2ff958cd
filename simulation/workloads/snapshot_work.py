"""Takes snapshots beside the workload: each is read whole and from the one before it, and must add up (DESIGN §10).

The checker judges that none is torn, and likewise each read to "latest", which takes its own snapshot. Here two more
things are judged: a snapshot holds what was committed before the request, and it equals the previous one plus what was
committed between the two.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

import txnclient
from simulation.clients.careless import Careless
from simulation.clients.recorder import Draft, PolledPositions, Recorder
from simulation.judges.history import Poll
from txnclient.consuming.received.message import Message
from txnclient.reading.snapshot import Snapshot, Span
from txnwire.errors import TxnError
from txnwire.ids import EARLIEST

PAUSE_S = 6.0
"""Mean pause between two snapshots of one process."""

PREFETCH_BYTES = 4096
"""Size of a bulk read: a few entries, so that it takes a while."""


class SnapshotWork:
    """One process' snapshots. `keys`: all keys that a history may have of these topics, so that a missing one is seen.
    Reports faults to `found`."""

    def __init__(
        self,
        recorder: Recorder,
        process: str,
        chance: random.Random,
        *,
        topics: Sequence[str],
        keys: Sequence[str],
        found: Callable[[str], None],
        careless: Careless,
    ) -> None:
        self._recorder = recorder
        self._process = process
        self._random = chance
        self._topics = list(topics)
        self._keys = keys
        self._found = found
        self._careless = careless
        self._last: Snapshot | None = None
        self._held: Counter[str] = Counter()
        self._taken = 0

    async def go_on(
        self, client: txnclient.Client, active: Callable[[], bool], met: Callable[[TxnError], None]
    ) -> None:
        """Takes and reads snapshots until `active` returns False."""
        while active():
            await asyncio.sleep(self._random.expovariate(1 / PAUSE_S))
            try:
                await self._careless.call(self._take(client), awaits=20)
                await self._careless.call(self._read_to_latest(client), awaits=20)
            except TxnError as error:
                met(error)

    async def _take(self, client: txnclient.Client) -> None:
        committed = self._committed()
        snapshot = Snapshot.from_json((await client.snapshot(self._topics)).to_json())
        self._taken += 1
        name = f"{self._process}@{self._taken}"
        draft = self._recorder.begin(f"{self._process}/snapshot", "snapshot")
        whole = await self._read(client, None, snapshot)
        since = await self._read(client, self._last, snapshot)
        self._polled(draft, name, whole)
        values = _values(whole)
        if self._last is not None and self._held + _values(since) != values:
            self._found(f"{name} is not the snapshot before it and what was committed since")
        self._look_for(committed, name, values)
        last, self._last, self._held = self._last, snapshot, values
        if await self._read_in_bulk(client, last, snapshot) != _values(since):
            self._found(f"{name}, read in bulk from the one before, is not what a reader shows")
        if (counted := await self._count_by_heads(client, snapshot)) != values.total():
            self._found(f"{name} has {values.total()} messages, and {counted} by their heads")

    async def _read_to_latest(self, client: txnclient.Client) -> None:
        """A whole read while transactions commit. The checker judges it separately: other reads of the same values must
        not make up for what it lacks."""
        committed = self._committed()
        self._taken += 1
        name = f"{self._process}@{self._taken}/latest"
        draft = self._recorder.begin(f"{self._process}/latest", "latest")
        messages = await self._read(client, None, "latest")
        self._polled(draft, name, messages)
        self._look_for(committed, name, _values(messages))

    def _committed(self) -> list[Draft]:
        return [draft for draft in self._recorder.drafts if draft.outcome == "ok" and draft.sends]

    def _polled(self, draft: Draft, name: str, messages: list[Message]) -> None:
        """All `messages` were read together."""
        draft.polled([Poll(reads={key: [] for key in self._keys}, at=self._recorder.now(), snapshot=name)])
        polls = PolledPositions(self._recorder.now, None).polls(messages)
        draft.polled([msgspec.structs.replace(poll, snapshot=name) for poll in polls])
        self._recorder.end(draft, "ok")

    def _look_for(self, committed: list[Draft], name: str, values: Counter[str]) -> None:
        for one in committed:
            if missing := [value for _, value in one.sends if value not in values]:
                self._found(f"{name} lacks {', '.join(missing)} of {one.process} {one.name}, committed before it")

    async def _read(self, client: txnclient.Client, start: Snapshot | None, end: Snapshot | str) -> list[Message]:
        messages: list[Message] = []
        async with client.reader(self._topics, start=start or "earliest", end=end) as reader:
            while not reader.ended:
                messages += await reader.receive_many(500)
        return messages

    async def _read_in_bulk(self, client: txnclient.Client, start: Snapshot | None, end: Snapshot) -> Counter[str]:
        """The same by whole entries, each segment separately, as Spark's tasks do it."""
        span, values = Span(start, end), Counter[str]()
        for path, last in span.ends(self._topics).items():
            after = span.after(path)
            async for entries in client.read_entries(
                path, after=after, end=last, span=span, prefetch_bytes=PREFETCH_BYTES
            ):
                values.update(value.decode() for entry in entries for value in entry.block.values())
        return values

    async def _count_by_heads(self, client: txnclient.Client, end: Snapshot) -> int:
        """Counts a snapshot's messages by the heads of all stored entries."""
        count = 0
        span = Span(None, end)
        for path, last in span.ends(self._topics).items():
            pages = client.scan_entries(path, after=EARLIEST, end=last, min_revision=end.revision, trimmed="skip")
            async for head in (head async for page in pages for head in page):
                first = head.piece is None or head.piece.number == 0
                if first and not head.aborted and span.shows(path, head.position, head.txn_id, head.writer):
                    count += head.messages
        return count


def _values(messages: list[Message]) -> Counter[str]:
    return Counter(message.value.decode() for message in messages)
