"""Encodes ledger files, footers and sidecars, scans them and judges damage. Pure; `file_ledger` does the I/O.

A ledger file is a header and then *groups*, one per write and sync (DESIGN §7, "group fdatasync"):

    header   "TXNL" | version u16 | size u16 | ledger id u64 | segment length u16 | incarnation length u16
             | segment | incarnation | crc32c u32
    group    marker u32 | first entry id u32 | entries u32 | body length u32 | confirmed u32 | body crc32c u32
             | header crc32c u32 | body: the length of each entry u32 …, the entries

All numbers are little endian. `marker` is derived from the header's checksum, so a group belongs to only one ledger.
`confirmed` is the number of entries acknowledged when the group was written: it distinguishes damage below an
acknowledged entry from a group whose sync never finished. Ids in groups are contiguous from 0.

A footer file is "TXNF" | version u16 | closed u16 | ledger id u64 | entries u64 | bytes u64 | end offset u64
| index points u32 | payload length u64 | first entry ids u32 … | offsets u64 … | payload | crc32c u32.
A sidecar file is "TXNS" | version u16 | 0 u16 | ledger id u64 | payload length u64 | payload | crc32c u32.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import google_crc32c

from txnwire.errors import DataCorrupt

FORMAT_VERSION = 1
INDEX_STRIDE_BYTES = 32 * 1024
MAX_GROUP_BYTES = 1024 * 1024
"""The largest group; a larger entry is a group of its own."""
SECTOR_BYTES = 512

_LEDGER_MAGIC = b"TXNL"
_FOOTER_MAGIC = b"TXNF"
_SIDECAR_MAGIC = b"TXNS"
_HEADER = struct.Struct("<4sHHQHH")
_GROUP = struct.Struct("<IIIIIII")
_FOOTER = struct.Struct("<4sHHQQQQIQ")
_SIDECAR = struct.Struct("<4sHHQQ")
_CRC = struct.Struct("<I")

ReadAt = Callable[[int, int], bytes]
"""(offset, length) → the bytes there; fewer only at the end of the file."""


def _crc(data: bytes) -> int:
    return int(google_crc32c.value(data))


class LedgerHeader(NamedTuple):
    segment: str
    ledger_id: int
    incarnation: str


class OpenedHeader(NamedTuple):
    """A header read from a file: `size` is the offset of the first group, `marker` starts each group."""

    header: LedgerHeader
    size: int
    marker: int


def _marker(header_crc: int) -> int:
    """The marker's first byte on disk is never 0, so that it cannot begin in a sector that was never written."""
    return header_crc | 1


def encode_header(header: LedgerHeader) -> bytes:
    segment, incarnation = header.segment.encode(), header.incarnation.encode()
    size = _HEADER.size + len(segment) + len(incarnation) + _CRC.size
    fixed = _HEADER.pack(_LEDGER_MAGIC, FORMAT_VERSION, size, header.ledger_id, len(segment), len(incarnation))
    body = fixed + segment + incarnation
    return body + _CRC.pack(_crc(body))


def decode_header(read_at: ReadAt, where: str) -> OpenedHeader:
    """Raises `DataCorrupt` that names `where` and the wrong part. A ledger file gets its name only after its header is
    synced, so a crash never leaves a short or damaged header."""
    fixed = read_at(0, _HEADER.size)
    if len(fixed) < _HEADER.size:
        raise DataCorrupt(
            f"{where}: the ledger header is truncated: {len(fixed)} bytes, at least {_HEADER.size} expected"
        )
    magic, version, size, ledger_id, segment_bytes, incarnation_bytes = _HEADER.unpack(fixed)
    if magic != _LEDGER_MAGIC:
        raise DataCorrupt(
            f"{where}: offset 0: magic is {magic!r}, {_LEDGER_MAGIC!r} expected: not a ledger, or damaged"
        )
    if version != FORMAT_VERSION:
        raise DataCorrupt(f"{where}: offset 4: ledger format version {version}; this program reads {FORMAT_VERSION}")
    if size != _HEADER.size + segment_bytes + incarnation_bytes + _CRC.size:
        raise DataCorrupt(f"{where}: offset 6: the lengths in the ledger header contradict each other")
    raw = read_at(0, size)
    if len(raw) < size:
        raise DataCorrupt(f"{where}: the ledger header is truncated: {len(raw)} of {size} bytes")
    (crc,) = _CRC.unpack_from(raw, size - _CRC.size)
    if crc != _crc(raw[: -_CRC.size]):
        raise DataCorrupt(f"{where}: the checksum of the ledger header (offset 0 to {size}) does not match")
    text_end = _HEADER.size + segment_bytes
    header = LedgerHeader(raw[_HEADER.size : text_end].decode(), ledger_id, raw[text_end : -_CRC.size].decode())
    return OpenedHeader(header, size, _marker(crc))


def expect_header(found: OpenedHeader, segment: str, ledger_id: int, where: str) -> OpenedHeader:
    """Raises `DataCorrupt` if the file names another ledger than its path does."""
    header = found.header
    if (header.segment, header.ledger_id) != (segment, ledger_id):
        raise DataCorrupt(
            f"{where}: offset 0: the file says it is ledger {header.ledger_id} of {header.segment}, "
            f"its path says {ledger_id} of {segment}"
        )
    return found


class GroupHeader(NamedTuple):
    marker: int
    first: int
    entries: int
    body_bytes: int
    confirmed: int
    body_crc: int
    header_crc: int


@dataclass(slots=True)
class SparseIndex:
    """Maps entry ids to group offsets, one point per `INDEX_STRIDE_BYTES` of file."""

    firsts: array[int] = field(default_factory=lambda: array("I"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))

    def add(self, first: int, offset: int) -> None:
        if not self.offsets or offset - self.offsets[-1] >= INDEX_STRIDE_BYTES:
            self.firsts.append(first)
            self.offsets.append(offset)

    def floor(self, entry_id: int) -> int:
        """Offset of the last known group that begins at or before `entry_id`."""
        return self.offsets[bisect_right(self.firsts, entry_id) - 1]


class EncodedGroups(NamedTuple):
    data: bytes
    starts: list[tuple[int, int]]
    """(first entry id, offset within `data`) of each group."""


def encode_groups(marker: int, first: int, entries: Sequence[bytes], confirmed: int) -> EncodedGroups:
    """Encode `entries`, with ids from `first`, in groups of up to `MAX_GROUP_BYTES`; `confirmed` are acknowledged."""
    parts: list[bytes] = []
    starts: list[tuple[int, int]] = []
    offset, begin = 0, 0
    for end in _group_ends(entries):
        group = _encode_group(marker, first + begin, entries[begin:end], confirmed)
        starts.append((first + begin, offset))
        parts.append(group)
        offset += len(group)
        begin = end
    return EncodedGroups(b"".join(parts), starts)


def _group_ends(entries: Sequence[bytes]) -> list[int]:
    ends: list[int] = []
    size = 0
    for index, entry in enumerate(entries):
        if size and size + len(entry) > MAX_GROUP_BYTES:
            ends.append(index)
            size = 0
        size += len(entry) + 4
    if entries:
        ends.append(len(entries))
    return ends


def _encode_group(marker: int, first: int, entries: Sequence[bytes], confirmed: int) -> bytes:
    body = struct.pack(f"<{len(entries)}I", *map(len, entries)) + b"".join(entries)
    fixed = _GROUP.pack(marker, first, len(entries), len(body), confirmed, _crc(body), 0)[: -_CRC.size]
    return fixed + _CRC.pack(_crc(fixed)) + body


def _group_header(raw: bytes, marker: int) -> GroupHeader | None:
    """None unless `raw` is the 28 bytes that start a group of this ledger."""
    if len(raw) < _GROUP.size:
        return None
    found = GroupHeader._make(_GROUP.unpack(raw))
    if found.marker != marker or found.header_crc != _crc(raw[: -_CRC.size]):
        return None
    return found


def _split(group: GroupHeader, body: bytes) -> list[bytes]:
    entries: list[bytes] = []
    at = 4 * group.entries
    for length in struct.unpack_from(f"<{group.entries}I", body):
        entries.append(body[at : at + length])
        at += length
    return entries


class Window:
    """Serves sequential small reads from large ones."""

    def __init__(self, read_at: ReadAt, chunk_bytes: int = 1024 * 1024) -> None:
        self._read_at = read_at
        self._chunk_bytes = chunk_bytes
        self._start = 0
        self._data = b""

    def at(self, offset: int, length: int) -> bytes:
        begin = offset - self._start
        if begin < 0 or begin + length > len(self._data):
            self._start, begin = offset, 0
            self._data = self._read_at(offset, max(length, self._chunk_bytes))
        return self._data[begin : begin + length]


@dataclass(frozen=True, slots=True)
class LedgerScan:
    """The content of a ledger file: `entries` whole entries of `bytes` in total, up to file offset `end`.
    `torn`: why the rest was cut off, None if there is no rest."""

    entries: int
    bytes: int
    end: int
    index: SparseIndex
    torn: str | None


def scan(read_at: ReadAt, size: int, opened: OpenedHeader, where: str, *, bound: int | None = None) -> LedgerScan:
    """Validate every group from the start up to file offset `size`, or up to `bound` entries.

    Stops at a group whose sync never finished: too short, or with sectors that never reached the disk. Any other
    damage, and any damage below an entry known to be acknowledged, raises `DataCorrupt` with file and offset.
    """
    window = Window(read_at)
    index = SparseIndex()
    offset, entries, total = opened.size, 0, 0
    torn: str | None = None
    while offset < size and (bound is None or entries < bound):
        group = _group_header(window.at(offset, _GROUP.size), opened.marker)
        body = b"" if group is None else window.at(offset + _GROUP.size, group.body_bytes)
        if group is None or len(body) < group.body_bytes or _crc(body) != group.body_crc:
            torn = _judge_damage(window, size, opened, where, offset, entries, group)
            break
        if group.first != entries:
            raise DataCorrupt(
                f"{where}: offset {offset}: entry {entries} expected, the group begins with {group.first}"
            )
        index.add(entries, offset)
        offset += _GROUP.size + group.body_bytes
        entries += group.entries
        total += group.body_bytes - 4 * group.entries
    if bound is not None and entries != bound:
        raise DataCorrupt(f"{where}: offset {offset}: {bound} entries were acknowledged here, only {entries} are whole")
    return LedgerScan(entries, total, offset, index, torn)


def _judge_damage(
    window: Window, size: int, opened: OpenedHeader, where: str, offset: int, entries: int, group: GroupHeader | None
) -> str:
    """Why the damage at `offset` may be cut off; raises `DataCorrupt` if it may not. Sectors of an unsynced group reach
    the disk in any order, so whole groups may follow a torn one: only their `confirmed` proves corruption."""
    later_at, confirmed = _later_groups(window, offset + 1, size, opened.marker, entries)
    what = "group header" if group is None else "checksum of a group"
    if confirmed > entries:
        raise DataCorrupt(
            f"{where}: offset {offset}: {what} damaged at entry {entries}, which was acknowledged: whole groups "
            f"follow from offset {later_at} and say that {confirmed} entries were"
        )
    end = later_at
    if group is not None:
        end = min(end, offset + _GROUP.size + group.body_bytes)
        if offset + _GROUP.size + group.body_bytes > size:
            return f"the group at offset {offset} ends {offset + _GROUP.size + group.body_bytes - size} bytes short"
    elif size - offset < _GROUP.size:
        return f"{size - offset} bytes of a group header at offset {offset}"
    if _has_unwritten_sector(window, offset, end):
        return f"the group at offset {offset} has sectors that were never written"
    raise DataCorrupt(f"{where}: offset {offset}: {what} damaged at entry {entries}; it was written whole once")


def _later_groups(window: Window, offset: int, size: int, marker: int, above: int) -> tuple[int, int]:
    """Offset of the next group header from `offset` on (`size` if none), and the highest `confirmed` of all."""
    needle = _CRC.pack(marker)
    nearest, confirmed = size, 0
    step = 1024 * 1024
    for start in range(offset, size, step):
        piece = window.at(start, min(step + _GROUP.size, size - start))
        at = piece.find(needle)
        while 0 <= at < step:
            found = _group_header(piece[at : at + _GROUP.size], marker)
            if found is not None and found.first > above:
                nearest, confirmed = min(nearest, start + at), max(confirmed, found.confirmed)
            at = piece.find(needle, at + 1)
    return nearest, confirmed


def _has_unwritten_sector(window: Window, begin: int, end: int) -> bool:
    """Whether any sector's part of [begin, end) is all zeros: so file systems show a sector that never reached the
    disk. ▲ L5: a part of a few bytes counts too. If entries end with zeros, a flipped bit in such a last group is
    misjudged; but a power failure with such a part is far likelier, and would cost the whole segment."""
    while begin < end:
        boundary = min(end, (begin // SECTOR_BYTES + 1) * SECTOR_BYTES)
        if not any(window.at(begin, boundary - begin)):
            return True
        begin = boundary
    return False


def read_entries(
    read_at: ReadAt, marker: int, offset: int, first: int, last: int, *, max_bytes: int, where: str
) -> list[tuple[int, bytes]]:
    """Entries `first` … `last` from the group at `offset` on, as many as fit in `max_bytes`, at least one.

    Every requested entry was acknowledged, so a missing or damaged one raises `DataCorrupt`.
    """
    window = Window(read_at, chunk_bytes=min(1024 * 1024, max(2 * INDEX_STRIDE_BYTES, max_bytes)))
    found: list[tuple[int, bytes]] = []
    taken, next_id = 0, first
    while next_id <= last:
        group = _group_header(window.at(offset, _GROUP.size), marker)
        if group is None:
            raise DataCorrupt(f"{where}: offset {offset}: group header damaged or missing before entry {next_id}")
        if group.first + group.entries <= next_id:
            offset += _GROUP.size + group.body_bytes
            continue
        body = window.at(offset + _GROUP.size, group.body_bytes)
        if group.first > next_id or _crc(body) != group.body_crc:
            raise DataCorrupt(f"{where}: offset {offset}: group with entry {next_id} is damaged or truncated")
        entries = _split(group, body)
        for entry in entries[next_id - group.first : last + 1 - group.first]:
            if found and taken + len(entry) > max_bytes:
                return found
            found.append((next_id, entry))
            taken += len(entry)
            next_id += 1
        offset += _GROUP.size + group.body_bytes
    return found


@dataclass(frozen=True, slots=True)
class Footer:
    """Holds the caller's payload (the cumulative dedup snapshot), and for readers the scan of a closed ledger. `found`
    is None in a checkpoint of an open ledger."""

    ledger_id: int
    payload: bytes
    found: LedgerScan | None = None


def encode_footer(footer: Footer) -> bytes:
    found = footer.found or LedgerScan(0, 0, 0, SparseIndex(), None)
    firsts, offsets = found.index.firsts, found.index.offsets
    fixed = _FOOTER.pack(
        _FOOTER_MAGIC, FORMAT_VERSION, footer.found is not None, footer.ledger_id,
        found.entries, found.bytes, found.end, len(firsts), len(footer.payload),
    )  # fmt: skip
    points = struct.pack(f"<{len(firsts)}I{len(offsets)}Q", *firsts, *offsets)
    data = fixed + points + footer.payload
    return data + _CRC.pack(_crc(data))


def decode_footer(data: bytes, ledger_id: int, where: str) -> Footer:
    """Raises `DataCorrupt` that names `where` and the wrong part."""
    if len(data) < _FOOTER.size + _CRC.size:
        raise DataCorrupt(f"{where}: the footer is truncated: {len(data)} bytes, at least {_FOOTER.size + 4} expected")
    magic, version, closed, found_id, entries, total, end, points, payload_bytes = _FOOTER.unpack_from(data)
    if magic != _FOOTER_MAGIC:
        raise DataCorrupt(
            f"{where}: offset 0: magic is {magic!r}, {_FOOTER_MAGIC!r} expected: not a footer, or damaged"
        )
    if version != FORMAT_VERSION:
        raise DataCorrupt(f"{where}: offset 4: footer format version {version}; this program reads {FORMAT_VERSION}")
    payload_at = _FOOTER.size + 12 * points
    if len(data) != payload_at + payload_bytes + _CRC.size:
        raise DataCorrupt(f"{where}: the footer is {len(data)} bytes long, {payload_at + payload_bytes + 4} expected")
    if _CRC.unpack_from(data, len(data) - _CRC.size)[0] != _crc(data[: -_CRC.size]):
        raise DataCorrupt(f"{where}: the checksum of the footer (offset 0 to {len(data)}) does not match")
    if found_id != ledger_id:
        raise DataCorrupt(f"{where}: offset 8: a footer of ledger {found_id}, {ledger_id} expected")
    payload = data[payload_at : -_CRC.size]
    if not closed:
        return Footer(found_id, payload)
    numbers = struct.unpack_from(f"<{points}I{points}Q", data, _FOOTER.size)
    index = SparseIndex(array("I", numbers[:points]), array("Q", numbers[points:]))
    return Footer(found_id, payload, LedgerScan(entries, total, end, index, None))


def encode_sidecar(ledger_id: int, payload: bytes) -> bytes:
    data = _SIDECAR.pack(_SIDECAR_MAGIC, FORMAT_VERSION, 0, ledger_id, len(payload)) + payload
    return data + _CRC.pack(_crc(data))


def decode_sidecar(data: bytes, ledger_id: int, where: str) -> bytes:
    """The payload. Raises `DataCorrupt` that names `where` and the wrong part."""
    if len(data) < _SIDECAR.size + _CRC.size:
        raise DataCorrupt(
            f"{where}: the sidecar is truncated: {len(data)} bytes, at least {_SIDECAR.size + 4} expected"
        )
    magic, version, _, found_id, payload_bytes = _SIDECAR.unpack_from(data)
    if magic != _SIDECAR_MAGIC:
        raise DataCorrupt(
            f"{where}: offset 0: magic is {magic!r}, {_SIDECAR_MAGIC!r} expected: not a sidecar, or damaged"
        )
    if version != FORMAT_VERSION:
        raise DataCorrupt(f"{where}: offset 4: sidecar format version {version}; this program reads {FORMAT_VERSION}")
    if len(data) != (expected := _SIDECAR.size + payload_bytes + _CRC.size):
        raise DataCorrupt(f"{where}: the sidecar is {len(data)} bytes long, {expected} expected")
    if _CRC.unpack_from(data, len(data) - _CRC.size)[0] != _crc(data[: -_CRC.size]):
        raise DataCorrupt(f"{where}: the checksum of the sidecar (offset 0 to {len(data)}) does not match")
    if found_id != ledger_id:
        raise DataCorrupt(f"{where}: offset 8: a sidecar of ledger {found_id}, {ledger_id} expected")
    return data[_SIDECAR.size : -_CRC.size]
