"""Heads of entries: decodes them, and finds those that stand for a message. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from txnwire.ids import Position, TxnId
from txnwire.proto import txn_pb2 as pb


class PieceHead(NamedTuple):
    """Piece `number` (from 0) of `pieces` of a large value; the first three name the value."""

    producer: str
    incarnation: int
    chunk_id: int
    number: int
    pieces: int


class EntryHead(NamedTuple):
    """One stored entry without its messages. `size_bytes`: its stored, compressed size. `aborted`: known to be aborted,
    or of a writer that does not count. `piece`: set if it is a piece of a large value.

    The last three are as in `WholeEntry`. Without a `producer` they are unknown: the segment's owner is older."""

    position: Position
    txn_id: TxnId | None
    writer: int
    messages: int
    size_bytes: int
    publish_time_ms: int
    aborted: bool
    piece: PieceHead | None
    producer: str = ""
    incarnation: int = 0
    sequence_id: int = 0


class WholeHeads:
    """Reduces heads of a range of one segment, in order, to one head per entry that `read_entries` would show.

    A large value sent in pieces becomes one head of one message, with its first piece's fields and the size of all
    pieces, in the place of its last piece. ▲ As in `pieces.Pieces`, pieces without their beginning, and pieces of a
    value that its producer gave up, stand for no message."""

    def __init__(self) -> None:
        self._begun: dict[tuple[str, int], _Begun] = {}

    def of(self, heads: Iterable[EntryHead]) -> list[EntryHead]:
        """Reduce the next heads; the caller has left out hidden ones (aborted, not in the span)."""
        return [whole for head in heads if (whole := self._whole(head)) is not None]

    def _whole(self, head: EntryHead) -> EntryHead | None:
        piece = head.piece
        if piece is None:
            return head
        producer = piece.producer, piece.incarnation
        begun = self._begun.pop(producer, None)
        if piece.number == 0:
            begun = _Begun(head, piece.chunk_id, 0, 0)
        elif begun is None or (begun.chunk_id, begun.pieces) != (piece.chunk_id, piece.number):
            return None
        size_bytes, pieces = begun.size_bytes + head.size_bytes, begun.pieces + 1
        if pieces == piece.pieces:
            return begun.first._replace(piece=None, size_bytes=size_bytes)
        self._begun[producer] = begun._replace(pieces=pieces, size_bytes=size_bytes)
        return None


class _Begun(NamedTuple):
    """An incomplete value, of which `pieces` have come, in order."""

    first: EntryHead
    chunk_id: int
    pieces: int
    size_bytes: int


def heads_of(page: pb.ScanEntriesOk) -> list[EntryHead]:
    """Decode a page's heads from columns, or one by one from an older owner."""
    if not page.HasField("columns"):
        return [_head(head) for head in page.heads]
    columns = page.columns
    entries = len(columns.entry_ids)
    zeros = [0] * entries
    txn_ids = [None, *(TxnId.from_bits(one.txnid_most_bits, one.txnid_least_bits) for one in columns.txn_ids)]
    names = [one.name for one in columns.producer_names]
    lives = [one.incarnation for one in columns.producer_names]
    producers = columns.producers or zeros
    pieces: list[PieceHead | None] = [None] * entries
    for index, piece in zip(columns.pieces_at, columns.pieces, strict=True):
        pieces[index] = _piece(piece)
    # ▲ Strict: a shorter column must not shorten the page, or a range would look whole.
    rows = zip(
        map(Position, columns.ledger_ids, columns.entry_ids),
        map(txn_ids.__getitem__, columns.txns or zeros),
        columns.writers or zeros,
        columns.counts,
        columns.sizes_bytes,
        columns.publish_times_ms,
        columns.aborted or [False] * entries,
        pieces,
        map(names.__getitem__, producers),
        map(lives.__getitem__, producers),
        columns.sequence_ids,
        strict=True,
    )
    return list(map(EntryHead._make, rows))


def _head(head: pb.EntryHead) -> EntryHead:
    least, most = head.txnid_least_bits, head.txnid_most_bits
    return EntryHead(
        Position(head.ledger_id, head.entry_id),
        TxnId.from_bits(most, least) if least or most else None,
        head.writer,
        head.count,
        head.size_bytes,
        head.publish_time_ms,
        head.aborted,
        _piece(head.piece) if head.HasField("piece") else None,
    )


def _piece(piece: pb.PieceHead) -> PieceHead:
    return PieceHead(piece.producer, piece.incarnation, piece.chunk_id, piece.chunk_index, piece.chunk_count)
