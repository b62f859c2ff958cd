"""A received message, decoded lazily."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Generic, NamedTuple, cast

from msgspec import Struct

from txnclient.connection.topic_layout import topic_of_segment
from txnclient.serializers import Serializer, V, decode
from txnwire.entry import Block, decode_block, parse_metadata, txn_of
from txnwire.errors import UndecodableMessage, again
from txnwire.ids import MessageId, Position, TxnId
from txnwire.names import SEGMENT_SCHEME
from txnwire.numbers import ids_of
from txnwire.proto import txn_pb2 as pb


class Under(NamedTuple):
    """The subscription that delivered a message. `seeks` changes with each seek in its segment, and when a subscription
    of the name is created again."""

    subscription: str
    seeks: int


class ReceivedEntry:
    """One entry as a broker sent it; checks and decodes checksum, metadata and block once, when first needed."""

    __slots__ = (
        "__weakref__", "_block", "_ids", "_same", "count", "epoch", "holder", "late", "metadata", "places", "position",
        "raw", "redelivery_count", "segment", "serializer", "under",
    )  # fmt: skip

    def __init__(
        self,
        segment: str,
        position: Position,
        raw: bytes,
        redelivery_count: int = 0,
        holder: object = None,
        serializer: Serializer[Any] | None = None,
        same: ReceivedEntry | None = None,
    ) -> None:
        """`holder`: the inbox that received it; only through it may a transaction ack the message. `serializer`
        decodes its values; None: they are bytes. `same`: the entry from which other messages came before: it is decoded
        once.

        Raises `DataCorrupt` if header or metadata are invalid.
        """
        self.segment = segment
        self.holder = holder
        self.epoch = 0
        self.late = 0
        """Bitmap of the messages given back because they were not acked within `ack_timeout`."""
        self.places: list[tuple[int, int]] = []
        """Up to which index it was handed out, at which place in its consumer's order."""
        self.under: Under | None = None
        """None: a reader received it."""
        self.position = position
        self.raw = raw
        self.redelivery_count = redelivery_count
        self.serializer = serializer
        self.metadata = parse_metadata(raw)
        self.count: int = self.metadata.count
        self._block: Block | None = None
        self._same = same
        self._ids: list[int] | None = None

    def sequence_id(self, index: int) -> int:
        """See `Message.sequence_id`."""
        if not self.metadata.name_epoch:
            return self.metadata.sequence_id + index
        if self._ids is None:
            self._ids = ids_of(self.metadata.id_steps)
        return self._ids[index]

    @property
    def stored_bytes(self) -> int:
        """Its size in bytes, compressed; for a value that came in pieces, the value's size."""
        return len(self.raw)

    @property
    def positions(self) -> tuple[Position, ...]:
        """Positions that an ack of its messages must name: several only for a value that came in pieces."""
        return (self.position,)

    @property
    def block(self) -> Block:
        """Raises `DataCorrupt` that names the invalid part."""
        if self._block is None:
            self._block = decode_block(self.raw) if self._same is None else self._same.block
        return self._block

    def messages(self, indexes: Iterable[int]) -> list[Message[Any]]:
        """The messages at these indexes."""
        make: type[Message[Any]] = Message if self.serializer is None else DecodedMessage
        return list(map(make, repeat(self), indexes))


class Message(Struct, Generic[V], gc=False, eq=False):
    """One message of an entry. It copies bytes out of the entry only when `value`, `data` or `key` is read.

    It pickles with its own bytes and its decoded value, or the error of its serializer, which stays behind. The
    consumer that has received it can ack it outside of transactions, and nack it; a transaction takes what `receive`
    has returned."""

    # ▲ The garbage collector does not visit it (`gc=False`): visits were half the cost of a consumer. So it refers only
    # to its entry: a value that an application made could lead back to it, and such a cycle would never be freed.
    _entry: ReceivedEntry
    index: int

    @property
    def data(self) -> bytes:
        """The value as it is stored. Raises `DataCorrupt` if the entry was damaged."""
        return self._entry.block.value(self.index)

    @property
    def value(self) -> V:
        """`data`, or the value that the serializer decodes from it at the first read. Raises `UndecodableMessage` if
        that fails, `DataCorrupt`."""
        return cast(V, self._entry.block.value(self.index))

    @property
    def key(self) -> bytes | None:
        return self._entry.block.key(self.index)

    @property
    def properties(self) -> dict[str, str]:
        return self._entry.block.properties(self.index)

    @property
    def event_time_ms(self) -> int | None:
        return self._entry.block.event_time_ms(self.index)

    @property
    def deliver_at_ms(self) -> int:
        """When queues were to deliver it, in ms since 1970; 0: at once."""
        return self._entry.metadata.deliver_at_ms

    @property
    def publish_time_ms(self) -> int:
        return self._entry.metadata.publish_time_ms

    @property
    def id(self) -> MessageId:
        return MessageId(self._entry.segment, self._entry.position, self.index)

    @property
    def topic(self) -> str:
        return topic_of_segment(self._entry.segment)

    @property
    def segment(self) -> str:
        """`segment://…`"""
        return SEGMENT_SCHEME + self._entry.segment

    @property
    def position(self) -> Position:
        return self._entry.position

    @property
    def producer_name(self) -> str:
        return self._entry.metadata.producer

    @property
    def sequence_id(self) -> int:
        """Its number in the life of its producer; of a numbered producer, the id that it was sent with."""
        return self._entry.sequence_id(self.index)

    @property
    def txn_id(self) -> TxnId | None:
        """The transaction it was published in, or None."""
        return txn_of(self._entry.metadata)

    @property
    def redelivery_count(self) -> int:
        return self._entry.redelivery_count

    @property
    def entry(self) -> ReceivedEntry:
        return self._entry

    def __repr__(self) -> str:
        return f"Message({self.id}, key={self.key!r}, {len(self.data)} bytes)"

    def __reduce__(self) -> tuple[object, ...]:
        """Raises `DataCorrupt` if the entry was damaged."""
        entry = self._entry
        carried = _Carried(
            self.index,
            self.data,
            self.key,
            self.properties,
            self.event_time_ms,
            entry.segment,
            entry.position,
            entry.positions,
            entry.count,
            entry.stored_bytes,
            entry.redelivery_count,
            entry.under,
            entry.metadata.SerializeToString(),
        )
        if entry.serializer is None:
            return _with_bytes, (carried,)
        try:
            return _with_value, (carried, self.value)
        except UndecodableMessage as error:
            return _with_error, (carried, again(error))


_UNDECODED: Any = object()
"""Stands for the value of a message before its first read."""


class DecodedMessage(Message[V], gc=True, eq=False):
    """A message of an entry with a serializer: it keeps its value, once that is decoded."""

    _value: Any = _UNDECODED

    @property
    def value(self) -> V:
        if self._value is _UNDECODED:
            serializer = self._entry.serializer
            assert serializer is not None
            self._value = decode(serializer, self.data, self.id, self.topic)
        return cast(V, self._value)


@dataclass(frozen=True, slots=True)
class _Carried:
    """The pickled form of a message, without its decoded value and without the other messages of its entry."""

    index: int
    data: bytes
    key: bytes | None
    properties: dict[str, str]
    event_time_ms: int | None
    segment: str
    position: Position
    positions: tuple[Position, ...]
    count: int
    stored_bytes: int
    redelivery_count: int
    under: Under | None
    metadata: bytes


class _CarriedBlock(Block):
    """The one message of an entry that was pickled."""

    __slots__ = ("_one",)

    def __init__(self, one: _Carried) -> None:
        self._one = one
        self._count = one.count

    def value(self, index: int) -> bytes:
        return self._one.data

    def key(self, index: int) -> bytes | None:
        return self._one.key

    def properties(self, index: int) -> dict[str, str]:
        return dict(self._one.properties)

    def event_time_ms(self, index: int) -> int | None:
        return self._one.event_time_ms


class _CarriedEntry(ReceivedEntry):
    """The entry of an unpickled message, with that message only. No consumer holds it."""

    __slots__ = ("_positions", "_stored_bytes")

    def __init__(self, one: _Carried, serializer: Serializer[Any] | None) -> None:
        self.segment = one.segment
        self.holder = None
        self.epoch = -1
        self.late = 0
        self.places = []
        self.under = one.under
        self.position = one.position
        self.raw = b""
        self.redelivery_count = one.redelivery_count
        self.serializer = serializer
        self.metadata = pb.EntryMetadata.FromString(one.metadata)
        self.count = one.count
        self._block = _CarriedBlock(one)
        self._same = None
        self._ids = None
        self._positions = one.positions
        self._stored_bytes = one.stored_bytes

    @property
    def stored_bytes(self) -> int:
        return self._stored_bytes

    @property
    def positions(self) -> tuple[Position, ...]:
        return self._positions


class _Undecodable:
    """The serializer of an unpickled message that its own serializer could not decode."""

    def __init__(self, error: UndecodableMessage) -> None:
        self._error = error

    def encode(self, value: object, /) -> bytes:
        raise again(self._error)

    def decode(self, data: bytes, /) -> object:
        raise again(self._error)


def _with_bytes(one: _Carried) -> Message[Any]:
    return _CarriedEntry(one, None).messages([one.index])[0]


def _with_value(one: _Carried, value: object) -> Message[Any]:
    return DecodedMessage(_CarriedEntry(one, _decoded), one.index, value)


def _with_error(one: _Carried, error: UndecodableMessage) -> Message[Any]:
    return _CarriedEntry(one, _Undecodable(error)).messages([one.index])[0]


_decoded: Serializer[Any] = _Undecodable(UndecodableMessage("this message carries its decoded value"))
"""The serializer of a message that carries its value: never called."""
