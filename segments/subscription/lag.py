"""Computes the lag of a subscription in one segment: its unacked messages, and the publish time of the oldest one.

Exact, and cheap: `segments.log.ledgers.message_counts` knows the message counts of nearly all blocks between the
mark-delete position and the end, so that about one block of entries is read. `LagBudget` limits the reads of ledgers
that an older broker closed, or a dead one left open. Their counts are kept, so a few further questions finish a count
that ran out of time. Until then the lag is unknown, and never a guess.

A subscription without a cursor here, because no consumer has attached, is behind from its start on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from segments.log.ledgers.message_counts import STEP, CountedRange
from segments.subscription.cursors.partial_acks import AckedBlock
from segments.subscription.definitions import read_definitions
from segments.subscription.starts import Start, StartPoint, resolve_start
from segments.subscription.subscriptions import SegmentContext, Subscription
from txnstore import keys, records
from txnstore.records import SubscriptionRecord
from txnwire.entry import parse_metadata
from txnwire.errors import InvalidArgument, SubscriptionNotFound
from txnwire.ids import Position
from txnwire.names import SegmentName
from txnwire.ports import Clock
from watchers.acks import BLOCK_ENTRIES, trailing_ones

READ_BYTES: Final = 64 * 1024 * 1024
"""Approximate limit on the bytes read to answer one question."""
WITHIN_S: Final = 2.0
"""How long reading for one question may take; its caller waits for 5 s."""
RANGES_AT_ONCE: Final = 1000
TIMES_KEPT: Final = 32
TRIES: Final = 3
"""Attempts of one count: it starts again when retention trims a ledger that it was reading."""


class SubscriptionLag(NamedTuple):
    """`messages`: not acked for good, None if not known. `oldest_ms`: when the first of them was published, by its
    producer's clock; None if there is none or if it is not known."""

    messages: int | None
    oldest_ms: int | None

    def at(self, now_ms: int) -> LagAge:
        if self.messages == 0:
            return LagAge(0, 0.0)
        return LagAge(self.messages, None if self.oldest_ms is None else max(0, now_ms - self.oldest_ms) / 1000)


class LagAge(NamedTuple):
    """`age_s`: of the oldest unacked message; 0 if there is none. None: not known."""

    messages: int | None
    age_s: float | None


NOTHING: Final = SubscriptionLag(0, None)
UNKNOWN: Final = SubscriptionLag(None, None)


class LagBudget:
    """The remaining limit on reads for one question."""

    def __init__(
        self,
        clock: Clock,
        *,
        read_bytes: int = READ_BYTES,
        within_s: float = WITHIN_S,
        turns: asyncio.Semaphore | None = None,
    ) -> None:
        """`turns`: held for each read, so that many questions at once do not read at once."""
        self.turns = turns or asyncio.Semaphore()
        self._clock = clock
        self._bytes = read_bytes
        self._until_s = clock.monotonic() + within_s

    @property
    def spent(self) -> bool:
        return self._bytes <= 0 or self._clock.monotonic() >= self._until_s

    def read(self, size: int) -> None:
        self._bytes -= size


class LagTable(Protocol):
    """The segment's subscriptions that have a cursor here."""

    def __iter__(self) -> Iterator[Subscription]: ...
    def loaded(self, name: str) -> Subscription | None: ...


class SegmentLags:
    """The lags of all subscriptions of the topic in one segment."""

    def __init__(self, surroundings: SegmentContext, table: LagTable) -> None:
        self._store = surroundings.store
        self._clock = surroundings.clock
        self._segment = surroundings.segment
        self._topic_path = SegmentName.from_path(surroundings.segment).topic.path
        self._ledgers = surroundings.ledgers
        self._dispatcher = surroundings.dispatcher
        self._events = surroundings.events
        self._table = table
        self._published: dict[Position, int] = {}
        """Publish times of the entries that were lately the oldest unacked ones."""
        self._samples: dict[str, SubscriptionLag] = {}

    async def told(self, name: str | None, budget: LagBudget) -> dict[str, SubscriptionLag]:
        """The lag of one subscription, or of all of the topic. Raises `SubscriptionNotFound`, `NotOwner`,
        `DataCorrupt`, `StoreUnavailable`."""
        definitions = await self.definitions() if name is None else {name: await self._definition(name)}
        found = {one: await self._lag(one, definition, budget) for one, definition in definitions.items()}
        self._events.check()  # ▲ if this owner lost the segment meanwhile, it counted up to an old end
        return found

    async def standing(self, name: str) -> tuple[Position, int]:
        """The first message that a subscription has not acked: message `index` of the entry at a position, which need
        not be there yet. Raises as `told`."""
        definition = await self._definition(name)
        point = await self._start_of(definition)
        loaded = self._table.loaded(name)
        after = point.after if loaded is None else loaded.cursor.mark_delete
        at = self._ledgers.next_after(after)
        index = point.left_out if loaded is None else trailing_ones(max(0, loaded.cursor.acked(at)))
        if index and self._ledgers.contains(at):
            if index < (await self._dispatcher.read_entry(at)).messages:
                self._events.check()
                return at, index
            after = at
        self._events.check()
        return Position(after.ledger_id, after.entry_id + 1), 0

    async def sample(self, definitions: Mapping[str, SubscriptionRecord | None], budget: LagBudget) -> None:
        """Count again for `sampled`; also counts subscriptions with a cursor that `definitions` lacks. Raises as
        `told`."""
        found: dict[str, SubscriptionLag] = {}
        wanted: dict[str, SubscriptionRecord | None] = {**dict.fromkeys(one.name for one in self._table), **definitions}
        for name, definition in wanted.items():
            found[name] = await self._lag(name, definition, budget)
        self._samples = found

    def sampled(self) -> dict[str, LagAge]:
        """The last counts of `sample`, with their present age, by subscription."""
        now_ms = self._clock.wall_ms()
        return {name: lag.at(now_ms) for name, lag in self._samples.items()}

    def forget_sample(self) -> None:
        """Discard all samples: every lag is unknown until the next one."""
        self._samples = dict.fromkeys(self._samples, UNKNOWN)

    async def definitions(self) -> dict[str, SubscriptionRecord | None]:
        """See `read_definitions`. Raises `StoreUnavailable`."""
        return await read_definitions(self._store, self._topic_path)

    async def _definition(self, name: str) -> SubscriptionRecord:
        # Not the table's: it remembers for the next subscription that is loaded which record it has read.
        key = keys.subscription(self._topic_path, name)
        found = await self._store.get(key)
        record = None if found is None else records.decode(SubscriptionRecord, found.value, key=key)
        if record is None or record.deleting_ms:
            raise SubscriptionNotFound(f"topic://{self._topic_path} has no subscription {name}: join it first")
        return record

    # ---- counting ---------------------------------------------------------------------------------------------------

    async def _lag(self, name: str, definition: SubscriptionRecord | None, budget: LagBudget) -> SubscriptionLag:
        for _ in range(TRIES):
            loaded = self._table.loaded(name)
            try:
                if loaded is not None:
                    return await self._behind(loaded.cursor.mark_delete, loaded.cursor.beyond(), 0, budget)
                if definition is None:
                    return UNKNOWN  # deleted meanwhile, or unreadable
                point = await self._start_of(definition)
                if self._table.loaded(name) is None:
                    return await self._behind(point.after, (), point.left_out, budget)
            except InvalidArgument:  # of a ledger trimmed meanwhile: the cursor has followed; or of a broken start
                continue
        return UNKNOWN

    async def _start_of(self, definition: SubscriptionRecord) -> StartPoint:
        start = Start.from_record(definition, self._segment)
        return await resolve_start(start, self._segment, self._ledgers, self._events.max_read_position)

    async def _behind(
        self, mark: Position, acked: Sequence[AckedBlock], left_out: int, budget: LagBudget
    ) -> SubscriptionLag:
        """`left_out`: messages of the first entry that are not to be delivered. Raises `InvalidArgument` if
        retention trimmed an entry to read. ▲ The end is read once, with the cursor: later entries are not counted."""
        last = self._ledgers.last_confirmed
        first = self._ledgers.next_after(mark)
        if first > last:
            return NOTHING
        ranges = list(self._ledgers.ranges(mark, last))
        oldest_ms = await self._published_ms(first)
        if left_out:
            left_out = min(left_out, (await self._dispatcher.read_entry(first)).messages)
        acked_messages = await self._acked(acked, ranges, budget)
        if acked_messages is None or (messages := await self._messages(ranges, budget)) is None:
            return SubscriptionLag(None, oldest_ms)
        messages -= acked_messages + left_out
        return SubscriptionLag(messages, oldest_ms) if messages else NOTHING

    async def _published_ms(self, position: Position) -> int:
        if position not in self._published:
            entry = await self._dispatcher.read_entry(position)
            while len(self._published) >= TIMES_KEPT:
                del self._published[next(iter(self._published))]
            self._published[position] = parse_metadata(entry.data).publish_time_ms
        return self._published[position]

    async def _messages(self, ranges: Sequence[CountedRange], budget: LagBudget) -> int | None:
        total = 0
        for number, among in enumerate(ranges, 1):
            while (found := self._ledgers.counts.messages(among)) is None:
                for block in self._ledgers.counts.blocks_to_read(among):
                    if not await self._read(among, block, budget):
                        return None
            total += found
            if number % RANGES_AT_ONCE == 0:
                await asyncio.sleep(0)
        return total

    async def _acked(
        self, acked: Iterable[AckedBlock], ranges: Iterable[CountedRange], budget: LagBudget
    ) -> int | None:
        """Messages of `acked` within `ranges`, which begin behind the mark-delete position."""
        total, ledgers = 0, {among.ledger_id: among for among in ranges}
        for one in acked:
            among = ledgers.get(one.ledger_id)
            if among is None:
                continue
            total += sum(indexes.bit_count() for entry_id, (_, indexes) in one.parts.items() if entry_id >= among.first)
            for block, bits in _by_step(one, among.first):
                while (found := self._ledgers.counts.messages_of(among, block, bits)) is None:
                    if not await self._read(among, block, budget):
                        return None
                total += found
        return total

    async def _read(self, among: CountedRange, block: int, budget: LagBudget) -> bool:
        """Read how many messages each entry of a block has; False if the budget does not allow it."""
        at, last = block * STEP, min(block * STEP + STEP, among.length) - 1
        counts: list[int] = []
        while at <= last:
            position = Position(among.ledger_id, at)
            if (cached := self._dispatcher.cached(position)) is not None:
                counts.append(cached.messages)
                at += 1
                continue
            async with budget.turns:
                if budget.spent:
                    return False
                found = await self._dispatcher.read_run(position, Position(among.ledger_id, last))
            if not found:
                raise InvalidArgument(f"{position} of {self._segment} was trimmed meanwhile")
            budget.read(sum(len(entry.data) for entry in found))
            counts += (entry.messages for entry in found)
            at += len(found)
        self._ledgers.counts.note(among.ledger_id, block, counts)
        return True


def _by_step(acked: AckedBlock, first: int) -> Iterator[tuple[int, int]]:
    """The entries acked whole from entry `first` on, as bitmaps of the blocks of `MessageCounts`."""
    bits = acked.acked >> max(0, first - acked.first_entry) << max(0, first - acked.first_entry)
    for at in range(0, BLOCK_ENTRIES, STEP):
        if some := bits >> at & (1 << STEP) - 1:
            yield (acked.first_entry + at) // STEP, some
