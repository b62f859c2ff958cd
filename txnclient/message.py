"""A received message, decoded as far as it is looked at."""

from __future__ import annotations

from txnclient.topic_layout import topic_of_segment
from txnwire.entry import Block, decode_block, parse_metadata, txn_of
from txnwire.ids import MessageId, Position, TxnId
from txnwire.names import SEGMENT_SCHEME


class ReceivedEntry:
    """One entry as it came from a broker; checksum, metadata and block are looked at once, when first needed."""

    __slots__ = ("_block", "count", "epoch", "holder", "metadata", "position", "raw", "redelivery_count", "segment")

    def __init__(
        self, segment: str, position: Position, raw: bytes, redelivery_count: int = 0, holder: object = None
    ) -> None:
        """`holder`: what received it; a message may be acked in a transaction only through the same one.

        Raises `DataCorrupt` if header or metadata are not those of an entry.
        """
        self.segment = segment
        self.holder = holder
        self.epoch = 0
        self.position = position
        self.raw = raw
        self.redelivery_count = redelivery_count
        self.metadata = parse_metadata(raw)
        self.count: int = self.metadata.count
        self._block: Block | None = None

    @property
    def block(self) -> Block:
        """Raises `DataCorrupt` naming the part that is wrong."""
        if self._block is None:
            self._block = decode_block(self.raw)
        return self._block


class Message:
    """One message of an entry. Its bytes are copied out of the entry only when `value` or `key` is read."""

    __slots__ = ("_entry", "index")

    def __init__(self, entry: ReceivedEntry, index: int) -> None:
        self._entry = entry
        self.index = index

    @property
    def value(self) -> bytes:
        """Raises `DataCorrupt` if the entry is not what was written."""
        return self._entry.block.value(self.index)

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
        return f"Message({self.id}, key={self.key!r}, {len(self.value)} bytes)"
