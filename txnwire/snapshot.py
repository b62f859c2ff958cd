"""A snapshot cut: the end of every segment of some topics at one revision, and the entries before it that do not count.

    {"v": 1, "revision": R, "store": "<identity>",
     "topics": {"topic://t/n/name": {"epoch": 3,
                                     "segments": {"t/n/name/0000-7fff-3": {"resolved": "1:4", "end": "1:9"},
                                                 "t/n/name/0000-ffff-0": {"resolved": …, "end": …, "sealed": true}}}},
     "pending": ["0003-00000000000004d2"], "aborted": [], "losers": [["<txn>", "<writer, 16 hex digits>"]],
     "counted": {"<txn>": ["<writer>"]}}

Committed at R are all entries of every segment up to `end`, except those of `pending` and `aborted` transactions, of
`losers`, and of writers not listed for a transaction in `counted` (DESIGN §10). Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

from txnwire.errors import InvalidArgument
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.names import SegmentName, TopicName
from txnwire.turns import Steps, at_once, in_steps, in_weighed_steps

VERSION: Final = 1
AT_ONCE: Final = 2000
"""Items of a snapshot written or read in one step."""

OF_ANOTHER_STORE: Final = (
    "the snapshot belongs to another cluster, or was taken before its etcd was restored from a backup and repaired. "
    "The repair may have aborted some of its transactions: take a new one and begin there, or read from the earliest "
    "message"
)


class SegmentBounds(NamedTuple):
    """A segment in a cut. `resolved`: everything up to it was decided before the cut. `end`: the last position in the
    cut. `sealed`: it had been split or merged by then, so `end` is its last position for ever."""

    resolved: Position
    end: Position
    sealed: bool = False


class TopicBounds(NamedTuple):
    """A topic in a cut: its layout epoch, and the bounds of each segment of that layout, by path."""

    epoch: int
    segments: Mapping[str, SegmentBounds]
    lost_id: int = -1
    """A segment with a higher id that has left the layout never held anything; retention emptied the others."""


@dataclass(frozen=True)
class Snapshot:
    """A cut over topics, made by `client.snapshot(topics)` or from JSON. Immutable; equal if all fields are equal.

    `revision`: the metadata store's; the snapshot holds everything committed at it, whole, over all `topics` (by name,
    `topic://...`). `pending`: transactions with entries after some segment's `resolved` that were open then or decided
    later. ▲ None of them has an entry at or below any `resolved`.
    `aborted`, `losers` (transaction, writer) and `counted` (transaction → the writers that count) name only
    transactions with entries after a `resolved`; brokers leave out earlier aborted entries.
    `store`: the store of the revision; empty if unknown.
    """

    revision: int
    topics: Mapping[str, TopicBounds]
    pending: tuple[TxnId, ...] = ()
    aborted: tuple[TxnId, ...] = ()
    losers: tuple[tuple[TxnId, int], ...] = ()
    counted: Mapping[TxnId, tuple[int, ...]] = field(default_factory=dict)
    store: str = ""

    def bounds(self, segment: str) -> SegmentBounds | None:
        """The bounds of a segment by its path; None if it is not in the snapshot."""
        return self._segments.get(segment)

    @property
    def segments(self) -> Mapping[str, SegmentBounds]:
        """The segments of all topics, by path."""
        return self._segments

    def is_pending(self, txn_id: TxnId) -> bool:
        return txn_id in self._pending

    def counts(self, txn_id: TxnId, writer: int) -> bool:
        """Whether an entry of this transaction and writer at or below its segment's end may belong to the snapshot.
        The segment's reader leaves out entries aborted so early that the snapshot does not name them."""
        if txn_id in self._pending or txn_id in self._aborted or (txn_id, writer) in self._losers:
            return False
        counted = self.counted.get(txn_id)
        return counted is None or writer in counted

    def precedes(self, other: Snapshot) -> bool:
        """Whether a read from this one to `other` is meaningful: `other` holds everything in this one.

        A snapshot always precedes one of the same topics that was requested after its answer; of two taken at the same
        time, neither may precede the other. Equal revisions prove nothing: messages outside transactions do not raise
        the revision, so two snapshots of one revision may have different ends."""
        return self.obstacle(other) is None

    def obstacle(self, later: Snapshot) -> str | None:
        """Why it does not precede `later`, or None."""
        if self.store and later.store and self.store != later.store:
            # ▲ A repair reuses revisions, and has aborted transactions whose commit the restored etcd did not know.
            return OF_ANOTHER_STORE
        if self.revision > later.revision:
            return f"the start, at revision {self.revision}, is newer than the end, at {later.revision}"
        for topic, then in later.topics.items():
            if (before := self.topics.get(topic)) is None:
                continue
            if before.epoch > then.epoch:
                return f"{topic} was deleted and made again, or the start is newer than the end"
            for path, old in before.segments.items():
                new = then.segments.get(path)
                complete = old.sealed and old.resolved == old.end
                if new is None and not complete and SegmentName.from_path(path).segment_id <= then.lost_id:
                    return f"{path} is in the snapshot to start from and not in the one to end at: it was trimmed"
                if new is not None and new.end < old.end:
                    return f"{path} ends at {new.end} in the later snapshot, at {old.end} in the earlier one"
            if then.lost_id > max((SegmentName.from_path(path).segment_id for path in before.segments), default=-1):
                return f"segment {then.lost_id} of {topic} came and went between the snapshots: it was trimmed"
        return None

    def adds_to(self, earlier: Snapshot) -> bool:
        """Whether a read from `earlier` to this one may show anything. False: both hold the same messages, at any
        revisions, so a stream at `earlier` can stay there."""
        for path, one in self.segments.items():
            old = earlier.bounds(path)
            if one.end > (EARLIEST if old is None else old.end):
                return True
        return any(not self.is_pending(txn_id) for txn_id in earlier.pending)

    def to_json(self) -> str:
        """One line, stable order, `"v":1` first."""
        return at_once(written_in_steps(self))

    @staticmethod
    def from_json(text: str | bytes) -> Snapshot:
        """Parse a snapshot. Raises `InvalidArgument` that names the fault."""
        return at_once(read_in_steps(text))

    @cached_property
    def _segments(self) -> dict[str, SegmentBounds]:
        return {path: one for topic in self.topics.values() for path, one in topic.segments.items()}

    @cached_property
    def _pending(self) -> frozenset[TxnId]:
        return frozenset(self.pending)

    @cached_property
    def _aborted(self) -> frozenset[TxnId]:
        return frozenset(self.aborted)

    @cached_property
    def _losers(self) -> frozenset[tuple[TxnId, int]]:
        return frozenset(self.losers)


def written_in_steps(snapshot: Snapshot) -> Steps[str]:
    """`Snapshot.to_json` in steps, to share the event loop: it may name hundreds of thousands of transactions."""
    head: dict[str, Any] = {"v": VERSION, "revision": snapshot.revision}
    if snapshot.store:
        head["store"] = snapshot.store
    topics = in_weighed_steps(sorted(snapshot.topics.items()), lambda item: 1 + len(item[1].segments), AT_ONCE)
    counted = in_weighed_steps(sorted(snapshot.counted.items()), lambda item: 1 + len(item[1]), AT_ONCE)
    body = [
        ("topics", ("{", "}"), ({topic: _bounds_document(one) for topic, one in part} for part in topics)),
        ("pending", ("[", "]"), ([str(txn_id) for txn_id in part] for part in in_steps(snapshot.pending, AT_ONCE))),
        ("aborted", ("[", "]"), ([str(txn_id) for txn_id in part] for part in in_steps(snapshot.aborted, AT_ONCE))),
        ("losers", ("[", "]"), (_losers_document(part) for part in in_steps(snapshot.losers, AT_ONCE))),
        ("counted", ("{", "}"), (_counted_document(part) for part in counted)),
    ]
    texts = [_dumps(head)[:-1]]
    for name, (opened, closed), parts in body:
        written = []
        for part in parts:
            written.append(_dumps(part)[1:-1])
            yield
        texts.append(f'"{name}":{opened}{",".join(written)}{closed}')
    return ",".join(texts) + "}"


def _dumps(document: object) -> str:
    return json.dumps(document, separators=(",", ":"))


def _bounds_document(bounds: TopicBounds) -> dict[str, Any]:
    segments = {
        path: {"resolved": str(one.resolved), "end": str(one.end)} | ({"sealed": True} if one.sealed else {})
        for path, one in sorted(bounds.segments.items())
    }
    return {"epoch": bounds.epoch, "segments": segments} | ({"lost": bounds.lost_id} if bounds.lost_id >= 0 else {})


def _losers_document(losers: Iterable[tuple[TxnId, int]]) -> list[list[str]]:
    return [[str(txn_id), f"{writer:016x}"] for txn_id, writer in losers]


def _counted_document(counted: Iterable[tuple[TxnId, tuple[int, ...]]]) -> dict[str, list[str]]:
    return {str(txn_id): [f"{writer:016x}" for writer in writers] for txn_id, writers in counted}


def read_in_steps(text: str | bytes) -> Steps[Snapshot]:
    """`Snapshot.from_json` in steps."""
    try:
        return (yield from _from_document(json.loads(text)))
    except InvalidArgument:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"not a snapshot: {type(error).__name__}: {error}") from error


def _from_document(document: Any) -> Steps[Snapshot]:
    if not isinstance(document, dict) or document.get("v") != VERSION:
        found = document.get("v") if isinstance(document, dict) else document
        raise InvalidArgument(f'not a snapshot: expected an object with "v":{VERSION}, found {found!r:.80}')
    if type(document["revision"]) is not int or document["revision"] < 1:
        raise InvalidArgument(f"not a snapshot: its revision is {document['revision']!r}, expected a positive integer")
    topics: dict[str, TopicBounds] = {}
    for some in in_weighed_steps(document["topics"].items(), lambda item: 1 + len(item[1]["segments"]), AT_ONCE):
        topics |= {str(TopicName.parse(topic)): _topic(topic, value) for topic, value in some}
        yield
    losers: list[tuple[TxnId, int]] = []
    for lost in in_steps(document["losers"], AT_ONCE):
        losers += ((TxnId.parse(txn_id), int(writer, 16)) for txn_id, writer in lost)
        yield
    counted: dict[TxnId, tuple[int, ...]] = {}
    for listed in in_weighed_steps(document["counted"].items(), lambda item: 1 + len(item[1]), AT_ONCE):
        counted |= {TxnId.parse(one): tuple(int(writer, 16) for writer in writers) for one, writers in listed}
        yield
    return Snapshot(
        revision=document["revision"],
        topics=topics,
        pending=(yield from _ids(document["pending"])),
        aborted=(yield from _ids(document["aborted"])),
        losers=tuple(losers),
        counted=counted,
        store=str(document.get("store", "")),
    )


def _ids(texts: Iterable[str]) -> Steps[tuple[TxnId, ...]]:
    found: list[TxnId] = []
    for part in in_steps(texts, AT_ONCE):
        found += map(TxnId.parse, part)
        yield
    return tuple(found)


def _topic(topic: str, value: Mapping[str, Any]) -> TopicBounds:
    segments: dict[str, SegmentBounds] = {}
    for path, one in value["segments"].items():
        if str(SegmentName.from_path(path).topic) != topic:
            raise InvalidArgument(f"not a snapshot: {path} is no segment of {topic}")
        bounds = SegmentBounds(Position.parse(one["resolved"]), Position.parse(one["end"]), bool(one.get("sealed")))
        if bounds.resolved > bounds.end:
            raise InvalidArgument(
                f"not a snapshot: {path} is resolved to {bounds.resolved}, after its end {bounds.end}"
            )
        segments[path] = bounds
    return TopicBounds(int(value["epoch"]), segments, int(value.get("lost", -1)))
