"""Encodes a cut as a stream's offset: a dict of JSON primitives, small even with many open transactions.

    {"v": 2, "isolation": "read_committed", "revision": R, "segments": 64, "pending": 10000,
     "cut": "<base 85 of zlib of the fields below>"}
    {"v": 2, "isolation": "read_committed", "earliest": true}       before everything there is
    {"v": 1, …}     the same of earlier versions, which did not write the isolation down

    fields: revision · store · topics ( name · epoch · lost id + 1 · segments ) · pending · aborted
            · losers ( id, writers ) · counted ( id, writers )
    segment: lo · hi · id · resolved · end · sealed

Numbers are base-128 varints, positions `ledger, entry + 1`, the end's ledger as the distance from `resolved`'s; ids of
transactions stand in order, by coordinator, each as the distance from the one before it; writers are 8 bytes. The
JSON's `revision`, `segments` and `pending` are for a person who reads a checkpoint, and must agree with the cut. Equal
cuts make equal offsets, character by character: Spark compares them as text. Pure.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Final, Literal, get_args

from txnclient import Snapshot
from txnclient.reading.snapshot import SegmentBounds, TopicBounds
from txnwire.errors import InvalidArgument
from txnwire.ids import MAX_COUNTER, MAX_TCID, Position, TxnId
from txnwire.names import SegmentName, TopicName

__all__ = ["Isolation", "Offset", "check_isolation", "decode_offset", "encode_offset"]

VERSION: Final = 2
WITHOUT_ISOLATION: Final = 1
MAX_CUT_BYTES: Final = 64 * 1024 * 1024
"""Limit of the unpacked fields: reading a checkpoint never takes more memory than this."""

Isolation = Literal["read_committed", "read_uncommitted"]

Offset = dict[str, int | bool | str]


def encode_offset(cut: Snapshot | None, isolation: Isolation = "read_committed") -> Offset:
    """`None`: before all messages. `isolation`: of the query that continues there."""
    if cut is None:
        return {"v": VERSION, "isolation": isolation, "earliest": True}
    packed = zlib.compress(_fields(cut), 9)
    return {
        "v": VERSION,
        "isolation": isolation,
        "revision": cut.revision,
        "segments": len(cut.segments),
        "pending": len(frozenset(cut.pending)),
        "cut": base64.b85encode(packed).decode("ascii"),
    }


def decode_offset(offset: Mapping[str, object]) -> Snapshot | None:
    """Returns the cut, None if it is before everything. Also accepts a snapshot's own JSON document.

    Raises `InvalidArgument` saying what is wrong."""
    if not isinstance(offset, Mapping):
        raise InvalidArgument(f"not an offset of txnstore: expected an object, found {offset!r:.80}")
    if "topics" in offset:
        return Snapshot.from_json(json.dumps(dict(offset)))
    if "v" not in offset:
        raise InvalidArgument(
            f"not an offset of txnstore: {json.dumps(dict(offset)):.80}: expected a snapshot, as "
            "client.snapshot(…).to_json() gives it, or an offset of a checkpoint, whole"
        )
    if offset["v"] not in (VERSION, WITHOUT_ISOLATION):
        raise InvalidArgument(
            f'not an offset that this version of txnstore reads: expected "v":{VERSION}, found '
            f"{offset['v']!r:.80}; go on with the version that wrote the checkpoint, or begin with a new one"
        )
    if offset["v"] == VERSION and offset.get("isolation") not in get_args(Isolation):
        raise InvalidArgument(
            f'not an offset of txnstore: expected "isolation" to be one of {", ".join(get_args(Isolation))}, found '
            f"{offset.get('isolation')!r:.80}"
        )
    if offset.get("earliest") is True:
        return None
    text = offset.get("cut")
    if not isinstance(text, str):
        raise InvalidArgument(f'not an offset of txnstore: expected "cut" to be text, found {text!r:.80}')
    cut = _parse(_unpack(text))
    for name, found in (("revision", cut.revision), ("segments", len(cut.segments)), ("pending", len(cut.pending))):
        if offset.get(name) != found:
            raise InvalidArgument(
                f'an offset of txnstore that was changed: "{name}" is {offset.get(name)!r:.80}, its cut has {found}'
            )
    return cut


def check_isolation(offset: Mapping[str, object], cut: Snapshot | None, isolation: Isolation) -> None:
    """`cut`: the decoded offset. Raises `InvalidArgument` if a query of another isolation wrote it.

    ▲ An uncommitted cut has shown parts of open transactions: a committed read from it would show the rest or all.
    A committed cut holds them back: an uncommitted read from it would never show their first part.

    A snapshot belongs to no query and continues with both. An offset of an earlier version shows its isolation only if
    it names a pending transaction or is not resolved, which uncommitted ones never do."""
    if cut is None or "v" not in offset or "topics" in offset:
        return
    found = offset.get("isolation")
    if offset["v"] == WITHOUT_ISOLATION:
        is_committed = bool(cut.pending) or any(one.resolved != one.end for one in cut.segments.values())
        found = "read_committed" if is_committed else isolation
    if found != isolation:
        raise InvalidArgument(
            f"the offset at revision {cut.revision} is of a query with isolationLevel {found}, and this one has "
            f"{isolation}: transactions open there would be shown twice or in part; go on with {found}, or begin with "
            "a new checkpoint, from a snapshot or the earliest"
        )


def _unpack(text: str) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        fields = unpacking.decompress(base64.b85decode(text), MAX_CUT_BYTES)
    except (ValueError, zlib.error) as error:
        raise InvalidArgument(f"not an offset of txnstore: its cut is damaged: {error}") from error
    if not unpacking.eof or unpacking.unused_data:
        raise InvalidArgument("not an offset of txnstore: its cut is damaged: it does not end where it should")
    return fields


# ---- writing --------------------------------------------------------------------------------------------------------


class _Writer:
    def __init__(self) -> None:
        self.buffer = bytearray()

    def number(self, value: int) -> None:
        buffer = self.buffer
        while value > 0x7F:
            buffer.append(value & 0x7F | 0x80)
            value >>= 7
        buffer.append(value)

    def text(self, value: str) -> None:
        data = value.encode()
        self.number(len(data))
        self.buffer += data

    def ids(self, txn_ids: Iterable[TxnId]) -> list[TxnId]:
        """Returns the ids in order, each once."""
        ordered = sorted(set(txn_ids))
        by_tcid: dict[int, list[int]] = {}
        for txn_id in ordered:
            by_tcid.setdefault(txn_id.tcid, []).append(txn_id.counter)
        self.number(len(by_tcid))
        for tcid, counters in by_tcid.items():
            self.number(tcid)
            self.number(len(counters))
            before = 0
            for counter in counters:
                self.number(counter - before)
                before = counter
        return ordered

    def writers(self, writers: Iterable[int]) -> None:
        ordered = sorted(set(writers))
        self.number(len(ordered))
        for writer in ordered:
            self.buffer += writer.to_bytes(8, "little")


def _fields(cut: Snapshot) -> bytes:
    out = _Writer()
    out.number(cut.revision)
    out.text(cut.store)
    out.number(len(cut.topics))
    for topic, bounds in sorted(cut.topics.items()):
        out.text(TopicName.parse(topic).path)
        out.number(bounds.epoch)
        out.number(bounds.lost_id + 1)
        out.number(len(bounds.segments))
        named = {SegmentName.from_path(path): one for path, one in bounds.segments.items()}
        for name, one in sorted(named.items(), key=lambda item: (item[0].segment_id, item[0].lo)):
            _write_segment(out, name, one)
    out.ids(cut.pending)
    out.ids(cut.aborted)
    losers: dict[TxnId, list[int]] = {}
    for txn_id, writer in cut.losers:
        losers.setdefault(txn_id, []).append(writer)
    for txn_id in out.ids(losers):
        out.writers(losers[txn_id])
    for txn_id in out.ids(cut.counted):
        out.writers(cut.counted[txn_id])
    return bytes(out.buffer)


def _write_segment(out: _Writer, name: SegmentName, bounds: SegmentBounds) -> None:
    out.number(name.lo)
    out.number(name.hi)
    out.number(name.segment_id)
    out.number(bounds.resolved.ledger_id)
    out.number(bounds.resolved.entry_id + 1)
    out.number(bounds.end.ledger_id - bounds.resolved.ledger_id)
    out.number(bounds.end.entry_id + 1)
    out.number(int(bounds.sealed))


# ---- reading --------------------------------------------------------------------------------------------------------


class _FieldReader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, most: int = MAX_COUNTER) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte <= 0x7F:
                break
            shift += 7
            if shift > 63:
                raise ValueError(f"a number of more than 64 bits, before byte {self.at}")
        if value > most:
            raise ValueError(f"{value} before byte {self.at}, where at most {most} can be")
        return value

    def count(self) -> int:
        """A count of things that take at least a byte each."""
        return self.number(len(self.data) - self.at)

    def bytes(self, length: int) -> bytes:
        found = self.data[self.at : self.at + length]
        if len(found) != length:
            raise ValueError(f"{len(found)} bytes from byte {self.at} on, where {length} were expected")
        self.at += length
        return found

    def text(self) -> str:
        return self.bytes(self.count()).decode()

    def position(self, ledger_id: int = 0) -> Position:
        return Position(ledger_id + self.number(), self.number() - 1)

    def ids(self) -> list[TxnId]:
        found: list[TxnId] = []
        for _ in range(self.count()):
            tcid, counter = self.number(MAX_TCID), 0
            for _ in range(self.count()):
                counter += self.number()
                if not 0 < counter <= MAX_COUNTER:
                    raise ValueError(f"transaction {counter} of coordinator {tcid} was never given out")
                found.append(TxnId(tcid, counter))
        return found

    def writers(self) -> tuple[int, ...]:
        return tuple(int.from_bytes(self.bytes(8), "little") for _ in range(self.count()))


def _parse(fields: bytes) -> Snapshot:
    read = _FieldReader(fields)
    try:
        cut = Snapshot(
            revision=read.number(),
            store=read.text(),
            topics=dict(_topic(read) for _ in range(read.count())),
            pending=tuple(read.ids()),
            aborted=tuple(read.ids()),
            losers=tuple((txn_id, writer) for txn_id in read.ids() for writer in read.writers()),
            counted={txn_id: read.writers() for txn_id in read.ids()},
        )
        if read.at != len(fields):
            raise ValueError(f"{len(fields) - read.at} bytes after its end")
    except (ValueError, IndexError) as error:
        raise InvalidArgument(f"not an offset of txnstore: its cut is damaged: {error}") from error
    return cut


def _topic(read: _FieldReader) -> tuple[str, TopicBounds]:
    topic = TopicName.from_path(read.text())
    epoch, lost_id = read.number(), read.number() - 1
    return str(topic), TopicBounds(epoch, dict(_segment(read, topic) for _ in range(read.count())), lost_id)


def _segment(read: _FieldReader, topic: TopicName) -> tuple[str, SegmentBounds]:
    name = SegmentName(topic, read.number(0xFFFF), read.number(0xFFFF), read.number())
    resolved = read.position()
    bounds = SegmentBounds(resolved, read.position(resolved.ledger_id), bool(read.number(1)))
    if bounds.resolved > bounds.end:
        raise ValueError(f"{name.path} is resolved to {bounds.resolved}, after its end {bounds.end}")
    return name.path, bounds
