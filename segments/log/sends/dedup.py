"""Deduplicates and orders the sends to one segment, as a pure core (DESIGN §7, "Dedup and order").

A producer is (name, random incarnation). Its entries form a chain: each send names its predecessor's last sequence id
here, and is admitted only directly after it ▲. So the stored entries of a producer are always a prefix of its sends, a
failure fails all later ones (L8), and a sequence id at or below the last stored one is certainly a repeat.

    admit ──► Entry in flight ──► stored        acked, in order
                    └──────────► failed         with all behind it
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from segments.log.sends.numbered import NumberedNames, StoredName
from txnwire.errors import DataCorrupt, InternalError, InvalidArgument, ProducerFenced, SequenceGap
from txnwire.ids import EARLIEST, Position

WaiterT = TypeVar("WaiterT")

NOTHING_STORED: Final = -1


class DedupVerdict(Enum):
    NEW = "store it"
    ATTACHED = "the same entry is on its way: its outcome is shared"
    STORED = "stored before: ack again"


class InFlight(Generic[WaiterT]):
    """An admitted entry that is not stored yet. `waiters`: the first send and its repeats, in order, which all get its
    outcome. `failed`: it, or one before it, failed; it must not be appended."""

    __slots__ = ("failed", "first", "last", "previous", "producer", "waiters")

    def __init__(self, producer: _Producer[WaiterT], first: int, last: int, previous: int, waiter: WaiterT) -> None:
        self.producer = producer
        self.first = first
        self.last = last
        self.previous = previous
        self.waiters = [waiter]
        self.failed = False


class Admission(NamedTuple, Generic[WaiterT]):
    """The answer to a send. `entry` for NEW and ATTACHED. `position` for STORED: None if it is no longer known."""

    verdict: DedupVerdict
    entry: InFlight[WaiterT] | None = None
    position: Position | None = None


class Connected(NamedTuple):
    """A new connection. `token` names it in `admit`; `fenced` is the token of the connection that it replaced."""

    token: int
    last_sequence_id: int
    fenced: int | None


@dataclass(frozen=True, slots=True)
class DedupStatistics:
    producers: int
    connected: int
    in_flight: int
    numbered: int = 0
    """Names of numbered producers."""

    @property
    def remembered(self) -> int:
        return self.producers + self.numbered


class _Producer(Generic[WaiterT]):
    """The state of one producer. `first`, `last`, `position`: the last stored entry. `tail`: last sequence id of the
    last admitted one. `chain`: admitted entries that are not stored, by first sequence id, in order."""

    __slots__ = ("active_s", "chain", "first", "incarnation", "last", "name", "position", "tail", "token")

    def __init__(self, name: str, incarnation: int, active_s: float) -> None:
        self.name = name
        self.incarnation = incarnation
        self.first = self.last = self.tail = NOTHING_STORED
        self.position: Position | None = None
        self.chain: dict[int, InFlight[WaiterT]] = {}
        self.token: int | None = None
        self.active_s = active_s

    def __str__(self) -> str:
        return f"producer {self.name}@{self.incarnation:016x}"


class _StoredProducer(msgspec.Struct, frozen=True, array_like=True):
    name: str
    incarnation: int
    first: int
    last: int
    ledger_id: int
    entry_id: int
    idle_s: float


class _Snapshot(msgspec.Struct, frozen=True):
    v: int
    producers: list[_StoredProducer]
    numbered: list[StoredName] = []


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Snapshot).decode

PART_PRODUCERS: Final = 2000
"""Producers in one part of a snapshot, which takes two milliseconds."""
EXPIRED_AT_ONCE: Final = 1000
VERSIONS: Final = (1, 2)
"""Versions of a snapshot: 2 holds numbered producers."""


def join_parts(parts: Iterable[bytes], numbered: Sequence[bytes] = ()) -> bytes:
    """The snapshot. ▲ With numbered producers it has version 2: an earlier release would drop what it does not know,
    and the next broker would store their messages twice."""
    producers = b'"producers":[' + b",".join(parts) + b"]"
    if not numbered:
        return b'{"v":1,' + producers + b"}"
    return b'{"v":2,' + producers + b',"numbered":[' + b",".join(numbered) + b"]}"


class Dedup(Generic[WaiterT]):
    """Admits one segment's sends; remembers an unconnected producer for `idle_s`. Times are monotonic seconds."""

    def __init__(self, *, idle_s: float) -> None:
        self._idle_s = idle_s
        self._producers: dict[tuple[str, int], _Producer[WaiterT]] = {}
        self._idling: OrderedDict[tuple[str, int], _Producer[WaiterT]] = OrderedDict()
        """Producers without a connection, in the order of their last activity."""
        self._connected: dict[str, _Producer[WaiterT]] = {}
        self._by_token: dict[int, _Producer[WaiterT]] = {}
        self._last_token = 0
        self.numbered = NumberedNames(idle_s=idle_s)

    # ---- connections

    def connect(self, name: str, incarnation: int, now_s: float) -> Connected:
        """▲ One live connection per name: a second one, of any incarnation, fences the first."""
        fenced = None
        if (before := self._connected.get(name)) is not None:
            fenced = before.token
            self._release(before, now_s)
        producer = self._producers.get((name, incarnation))
        if producer is None:
            producer = self._producers[name, incarnation] = _Producer(name, incarnation, now_s)
        self._idling.pop((name, incarnation), None)
        self._last_token += 1
        producer.token = self._last_token
        self._connected[name] = self._by_token[producer.token] = producer
        return Connected(producer.token, producer.last, fenced)

    def disconnect(self, token: int, now_s: float) -> None:
        """Close a connection; its entries in flight continue. Idempotent."""
        producer = self._by_token.get(token)
        if producer is not None:
            self._release(producer, now_s)

    def disconnect_others(self, name: str, incarnation: int, now_s: float) -> int | None:
        """Close the connection of this name and another incarnation; returns its token."""
        producer = self._connected.get(name)
        if producer is None or producer.incarnation == incarnation:
            return None
        token = producer.token
        self._release(producer, now_s)
        return token

    def _release(self, producer: _Producer[WaiterT], now_s: float) -> None:
        if producer.token is not None:
            del self._by_token[producer.token]
            del self._connected[producer.name]
        producer.token = None
        self._active(producer, now_s)

    def _active(self, producer: _Producer[WaiterT], now_s: float) -> None:
        producer.active_s = now_s
        if producer.token is None:
            key = (producer.name, producer.incarnation)
            self._idling[key] = producer
            self._idling.move_to_end(key)

    # ---- sends

    def knows(self, token: int, sequence_id: int) -> bool:
        """Whether an entry with this id would repeat one that is stored or in flight."""
        producer = self._by_token.get(token)
        return producer is not None and sequence_id <= producer.tail

    def admit(
        self, token: int, sequence_id: int, count: int, previous_sequence_id: int, waiter: WaiterT
    ) -> Admission[WaiterT]:
        """Raises `ProducerFenced`; `SequenceGap` if the predecessor is not the last entry here; `InvalidArgument` if
        the ids are impossible, or overlap an entry of another extent (same id, other content)."""
        producer = self._by_token.get(token)
        if producer is None:
            raise ProducerFenced("a newer producer of the same name has connected, or this one was closed")
        last = sequence_id + count - 1
        if count < 1 or not NOTHING_STORED <= previous_sequence_id < sequence_id:
            raise InvalidArgument(
                f"{producer}: sequence ids {sequence_id}…{last} after {previous_sequence_id}: expected at least one "
                "message, with ids above its predecessor's"
            )
        if sequence_id <= producer.tail:
            return self._repeat(producer, sequence_id, last, waiter)
        if previous_sequence_id != producer.tail:
            # ▲ Only directly after the entry it names: otherwise a predecessor that failed or was lost would look
            # stored once this entry is, and a resend of it would be dropped as a repeat (L8).
            raise SequenceGap(
                f"{producer}: entry {sequence_id} names {previous_sequence_id} as its predecessor, but the last one "
                f"here is {producer.tail}: send again from there"
            )
        entry = producer.chain[sequence_id] = InFlight(producer, sequence_id, last, previous_sequence_id, waiter)
        producer.tail = last
        return Admission(DedupVerdict.NEW, entry)

    def _repeat(self, producer: _Producer[WaiterT], first: int, last: int, waiter: WaiterT) -> Admission[WaiterT]:
        if last <= producer.last:
            same = (first, last) == (producer.first, producer.last)
            return Admission(DedupVerdict.STORED, None, producer.position if same else None)
        entry = producer.chain.get(first)
        if entry is None or entry.last != last:
            raise InvalidArgument(
                f"{producer}: sequence ids {first}…{last} overlap with an entry of other ids: same id, other content"
            )
        # ▲ Not stored yet: any answer now would be a guess. The repeat shares the first send's outcome (L9).
        entry.waiters.append(waiter)
        return Admission(DedupVerdict.ATTACHED, entry)

    def stored(self, entry: InFlight[WaiterT], position: Position, now_s: float) -> Sequence[WaiterT]:
        """Record that `entry` is durable, in order per producer. Returns the waiters to ack."""
        producer = entry.producer
        if entry.failed or entry.previous != producer.last:
            raise InternalError(f"{producer}: entry {entry.first} was stored out of order, after {producer.last}")
        del producer.chain[entry.first]
        producer.first, producer.last, producer.position = entry.first, entry.last, position
        self._active(producer, now_s)
        return entry.waiters

    def failed(self, entry: InFlight[WaiterT]) -> Sequence[InFlight[WaiterT]]:
        """▲ Fail `entry` and all entries admitted after it: marks them `failed` and returns them in order, so that the
        caller answers their waiters. Empty if `entry` has failed already."""
        if entry.failed:
            return ()
        producer = entry.producer
        behind = [one for one in producer.chain.values() if one.first >= entry.first]
        for one in behind:
            one.failed = True
            del producer.chain[one.first]
        producer.tail = entry.previous
        return behind

    def last_sequence_id(self, name: str, incarnation: int) -> int:
        """Last sequence id of the producer's last stored entry, -1 for none."""
        producer = self._producers.get((name, incarnation))
        return NOTHING_STORED if producer is None else producer.last

    # ---- recovery and housekeeping

    def replay(
        self, name: str, incarnation: int, sequence_id: int, count: int, position: Position, now_s: float
    ) -> None:
        """Apply an entry found in the ledger tail, in order. Entries that the snapshot covers change nothing."""
        producer = self._producers.get((name, incarnation))
        if producer is None:
            producer = self._producers[name, incarnation] = _Producer(name, incarnation, now_s)
        last = sequence_id + count - 1
        if last > producer.last:
            producer.first, producer.last, producer.position = sequence_id, last, position
            producer.tail = last
            # ▲ Idle since this entry, not since the snapshot: if forgotten early, its resend would be stored twice.
            self._active(producer, now_s)

    def snapshot(self, now_s: float) -> bytes:
        """Encode the state of all stored entries for a ledger's footer: one-line JSON with `"v":1`. Idle times continue
        after `restore`, so the time in between does not count. O(producers): see `snapshot_parts`."""
        return join_parts(self.snapshot_parts(now_s), list(self.numbered_parts(now_s)))

    def snapshot_parts(self, now_s: float) -> Iterator[bytes]:
        """The same in parts, for `join_parts`, each encoded on demand. Nothing may be stored meanwhile."""
        stored = [one for one in self._producers.values() if one.position is not None]
        for at in range(0, len(stored), PART_PRODUCERS):
            yield _encode([self._stored_row(one, now_s) for one in stored[at : at + PART_PRODUCERS]])[1:-1]

    def numbered_parts(self, now_s: float) -> Iterator[bytes]:
        """As `snapshot_parts`, of the numbered producers, a part each."""
        return map(_encode, self.numbered.rows(now_s))

    def _stored_row(self, one: _Producer[WaiterT], now_s: float) -> _StoredProducer:
        at = one.position or EARLIEST
        return _StoredProducer(one.name, one.incarnation, one.first, one.last, *at, self._idle(one, now_s))

    def restore(self, snapshot: bytes, now_s: float) -> None:
        """Raises `DataCorrupt`."""
        try:
            decoded = _decode(snapshot)
        except msgspec.DecodeError as error:
            raise DataCorrupt(f"dedup snapshot: {error}") from error
        if decoded.v not in VERSIONS:
            raise DataCorrupt(f"dedup snapshot: version {decoded.v} is not supported, expected 1 or 2")
        self.numbered.restore(decoded.numbered, now_s)
        for one in sorted(decoded.producers, key=lambda stored: -stored.idle_s):
            producer: _Producer[WaiterT] = _Producer(one.name, one.incarnation, now_s - one.idle_s)
            producer.first, producer.last, producer.tail = one.first, one.last, one.last
            producer.position = Position(one.ledger_id, one.entry_id)
            self._producers[one.name, one.incarnation] = self._idling[one.name, one.incarnation] = producer

    def expire(self, now_s: float, *, limit: int = EXPIRED_AT_ONCE) -> int:
        """Forget producers idle for longer than `idle_s`, `limit` at most; returns how many. O(forgotten)."""
        forgotten = self.numbered.expire(now_s, self._connected, limit=limit)
        while self._idling and forgotten < limit:
            key, producer = next(iter(self._idling.items()))
            if now_s - producer.active_s <= self._idle_s:
                break
            if producer.chain:
                self._active(producer, now_s)  # it has entries in flight
                continue
            del self._idling[key]
            del self._producers[key]
            forgotten += 1
        return forgotten

    def _idle(self, producer: _Producer[WaiterT], now_s: float) -> float:
        return 0.0 if producer.token is not None or producer.chain else max(now_s - producer.active_s, 0.0)

    def statistics(self) -> DedupStatistics:
        in_flight = sum(len(producer.chain) for producer in self._producers.values())
        return DedupStatistics(len(self._producers), len(self._connected), in_flight, len(self.numbered))
