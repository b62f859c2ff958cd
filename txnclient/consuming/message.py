"""A received message, decoded as far as it is looked at."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, cast

from txnclient.connection.topic_layout import topic_of_segment
from txnclient.serializers import Serializer, V, decode
from txnwire.entry import Block, decode_block, parse_metadata, txn_of
from txnwire.ids import MessageId, Position, TxnId
from txnwire.names import SEGMENT_SCHEME


class Under(NamedTuple):
    """What a message was received under: `seeks` is another number behind each seek in its segment, and for another
    subscription of the name."""

    subscription: str
    seeks: int


class ReceivedEntry:
    """One entry as it came from a broker; checksum, metadata and block are looked at once, when first needed."""

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
        """`holder`: what received it; a message may be acked in a transaction only through the same one. `serializer`:
        decodes its values, None: they are bytes.

        Raises `DataCorrupt` if header or metadata are not those of an entry.
        """
        self.segment = segment
        self.holder = holder
        self.epoch = 0
        self.places: list[tuple[int, int]] = []
        """Up to which index it was handed out at which place of its consumer's order."""
        self.under: Under | None = None
        """None: it was not received for a subscription."""
        self.position = position
        self.raw = raw
        self.redelivery_count = redelivery_count
        self.serializer = serializer
        self.metadata = parse_metadata(raw)
        self.count: int = self.metadata.count
        self._block: Block | None = None

    @property
    def stored_bytes(self) -> int:
        """What it takes, compressed as it is; of a value that came in pieces: the value."""
        return len(self.raw)

    @property
    def positions(self) -> tuple[Position, ...]:
        """Of all entries that an ack of this one's messages must name: several only of a value that came in pieces."""
        return (self.position,)

    @property
    def block(self) -> Block:
        """Raises `DataCorrupt` naming the part that is wrong."""
        if self._block is None:
            self._block = decode_block(self.raw)
        return self._block


class Message(Generic[V]):
    """One message of an entry. Its bytes are copied out of the entry only when `value`, `data` or `key` is read."""

    __slots__ = ("_entry", "_value", "index")

    _value: Any

    def __init__(self, entry: ReceivedEntry, index: int) -> None:
        self._entry = entry
        self.index = index

    @property
    def data(self) -> bytes:
        """The value as it is stored. Raises `DataCorrupt` if the entry is not what was written."""
        return self._entry.block.value(self.index)

    @property
    def value(self) -> V:
        """`data`, or what the serializer makes of it, once, when it is first read. Raises `UndecodableMessage` if that
        fails, `DataCorrupt`."""
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
