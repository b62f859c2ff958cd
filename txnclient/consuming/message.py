"""A received message, decoded lazily."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, cast

from txnclient.connection.topic_layout import topic_of_segment
from txnclient.serializers import Serializer, V, decode
from txnwire.entry import Block, decode_block, parse_metadata, txn_of
from txnwire.ids import MessageId, Position, TxnId
from txnwire.names import SEGMENT_SCHEME


class Under(NamedTuple):
    """What a message was received under. `seeks` changes with each seek in its segment, and when a subscription of the
    name is created again."""

    subscription: str
    seeks: int


class ReceivedEntry:
    """One entry as a broker sent it; checks and decodes checksum, metadata and block once, when first needed."""

    __slots__ = (
        "_block", "count", "epoch", "holder", "metadata", "places", "position", "raw", "redelivery_count",
        "segment", "serializer", "under",
    )  # fmt: skip

    def __init__(
        self,
        segment: str,
        position: Position,
        raw: bytes,
        redelivery_count: int = 0,
        holder: object = None,
        serializer: Serializer[Any] | None = None,
    ) -> None:
        """`holder`: the inbox that received it; only through it may a transaction ack the message. `serializer`
        decodes its values; None: they are bytes.

        Raises `DataCorrupt` if header or metadata are invalid.
        """
        self.segment = segment
        self.holder = holder
        self.epoch = 0
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
            self._block = decode_block(self.raw)
        return self._block


class Message(Generic[V]):
    """One message of an entry. It copies bytes out of the entry only when `value`, `data` or `key` is read."""

    __slots__ = ("_entry", "_value", "index")

    _value: Any

    def __init__(self, entry: ReceivedEntry, index: int) -> None:
        self._entry = entry
        self.index = index

    @property
    def data(self) -> bytes:
        """The value as it is stored. Raises `DataCorrupt` if the entry was damaged."""
        return self._entry.block.value(self.index)

    @property
    def value(self) -> V:
        """`data`, or the value that the serializer decodes from it at the first read. Raises `UndecodableMessage` if
        that fails, `DataCorrupt`."""
        serializer = self._entry.serializer
        if serializer is None:
            return cast(V, self.data)
        try:
            return cast(V, self._value)
        except AttributeError:
            self._value = decode(serializer, self.data, self.id, self.topic)
            return cast(V, self._value)

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
        return self._entry.metadata.sequence_id + self.index

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
