"""Decides which sealed segments a job may compact, and which reads may use a compaction. Pure.

Compaction (PIP-31, "Compacting Transaction Log"; the newest value per key is Pulsar's topic compaction) reduces a
topic's sealed and fully decided segments to one row per key, in Parquet. Each run makes a *generation*: the previous
one merged with the segments that have qualified since. A read with the option `compacted` gets

    the rows of the newest generation that its snapshot holds completely  +  all other segments, from their ledgers

**Newest** is the last in the log, as for every reader: not PIP-31's order of commits, which readers here do not see. At
any time one active segment has a key's hash, and a segment has a higher id than its parents. So the newest message of a
key has the highest (segment id, position, sequence id), over splits and merges. A large value has the position of its
first piece.

**Which segments.** A segment is *complete* if the snapshot has it sealed and resolved up to its end: no entry is
appended and no transaction is open there, so its committed content never changes. ▲ It qualifies only with all older
segments that share a hash with it. So for each key the ledgers hold only newer messages than the compaction, and a
deletion can go with what it deletes.

**What goes.** Messages with a newer one of the same key; aborted messages; messages with an empty value (tombstones),
which delete their key. Messages without a key all stay, since nothing replaces them, as in Pulsar until 3.2
(`topicCompactionRetainNullKey`).

**Never under a live cut.** ▲ If a segment of a generation is not complete in a snapshot, the snapshot gets an older
generation or the ledgers: a newer value, which it does not have, may have replaced one of its own.

A read with a start, a stream and an uncommitted read get no generation.

**Retention.** Ledgers keep their own retention: compaction neither waits for it nor triggers it. Compacted rows outlive
their ledgers. A segment that retention took, even in part, before it was compacted is a gap: it may have had newer
values than the previous generation. So the job refuses to pass a gap unless allowed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from txnwire.errors import DataCorrupt, InvalidArgument
from txnwire.ids import EARLIEST, Position
from txnwire.names import SegmentName
from txnwire.snapshot import OF_ANOTHER_STORE, SegmentBounds, Snapshot, TopicBounds

VERSION: Final = 1

START_AFRESH: Final = "begin again with the messages that the ledgers keep, with --afresh"


class DataFile(NamedTuple):
    """A Parquet file of a generation: its name in the generation's folder."""

    name: str
    size_bytes: int
    rows: int


@dataclass(frozen=True)
class Manifest:
    """Describes a generation of one topic: its content and the cut it rests on.

    {"v": 1, "generation": 7, "cut": {a snapshot}, "compacted": {"t/n/name/0000-ffff-0": <revision>},
     "files": [{"name": "part-0.parquet", "bytes": 4711, "rows": 100}]}

    `cut`: of this topic alone. A compacted segment stands at its end, sealed and resolved; every other segment of the
    topic stands at its earliest, so that a read from this cut gets whatever was not compacted. `compacted`: by path,
    the revision of the snapshot in which each segment was complete.
    """

    generation: int
    cut: Snapshot
    compacted: Mapping[str, int]
    files: tuple[DataFile, ...]

    @property
    def topic(self) -> str:
        return next(iter(self.cut.topics))

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def obstacle(self, snapshot: Snapshot, *, drawn_back: bool = False) -> str | None:
        """Why a read of everything up to `snapshot` may not use it, or None. `drawn_back`: the read's ends lie before
        the ends at the snapshot's revision."""
        if (other := self._of_another(snapshot)) is not None:
            return other
        bounds = snapshot.topics[self.topic]
        for path, revision in self.compacted.items():
            found = bounds.segments.get(path)
            if found is None:
                # ▲ Retention has taken the segment, or it did not exist yet: the snapshot must be a later one.
                if SegmentName.from_path(path).segment_id > bounds.lost_id and snapshot.revision < revision:
                    return f"{path} had not been made at the snapshot's revision {snapshot.revision}"
                if drawn_back:
                    # ▲ Its rows may be newer than the requested end, and nothing shows that.
                    return f"whether all of {path}, which retention has taken, lies before the end is not known"
            elif not is_complete(found) or found.end != self._end(path):
                return f"{path} was not complete in the snapshot at revision {snapshot.revision}"
        return None

    def _of_another(self, snapshot: Snapshot) -> str | None:
        """Says why it is not from the topic and store of `snapshot`, by name or by identity; None: it is."""
        if not self.cut.store or self.cut.store != snapshot.store:
            # ▲ A repair aborts what a restored etcd does not know as committed: the rows may hold some of it.
            return OF_ANOTHER_STORE
        if (bounds := snapshot.topics.get(self.topic)) is None:
            return f"{self.topic} is not in the snapshot"
        if not any(path in bounds.segments for path in self.cut.segments):
            # ▲ Segment ids are never reused: one common segment proves that it is the same topic.
            return f"{self.topic} has no segment of then any more: it was deleted and made again, or retention took all"
        return None

    def _end(self, path: str) -> Position:
        bounds = self.cut.bounds(path)
        return EARLIEST if bounds is None else bounds.end

    def to_json(self) -> str:
        document = {
            "v": VERSION,
            "generation": self.generation,
            "cut": json.loads(self.cut.to_json()),
            "compacted": dict(sorted(self.compacted.items())),
            "files": [{"name": name, "bytes": size_bytes, "rows": rows} for name, size_bytes, rows in self.files],
        }
        return json.dumps(document, indent=1) + "\n"

    @staticmethod
    def from_json(text: str | bytes, *, where: str) -> Manifest:
        """Raises `DataCorrupt` that names `where` and says what is wrong."""
        try:
            return _from_document(json.loads(text))
        except (InvalidArgument, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataCorrupt(f"{where}: not the manifest of a compaction: {type(error).__name__}: {error}") from error


def _from_document(document: Any) -> Manifest:
    if document["v"] != VERSION:
        raise InvalidArgument(f"version {document['v']!r}: this version of txnstore reads {VERSION}")
    cut = Snapshot.from_json(json.dumps(document["cut"]))
    if len(cut.topics) != 1:
        raise InvalidArgument(f"it belongs to {len(cut.topics)} topics, expected one")
    compacted = {str(path): int(revision) for path, revision in document["compacted"].items()}
    if complete := compacted.keys() ^ {path for path, one in cut.segments.items() if is_complete(one)}:
        raise InvalidArgument(f"its cut and its list of compacted segments differ in {', '.join(sorted(complete))}")
    files = tuple(DataFile(str(one["name"]), int(one["bytes"]), int(one["rows"])) for one in document["files"])
    if wrong := [file.name for file in files if "/" in file.name or file.name.startswith(".")]:
        raise InvalidArgument(f"the file {wrong[0]!r} is not in the generation's own folder")
    return Manifest(int(document["generation"]), cut, compacted, files)


def is_complete(bounds: SegmentBounds) -> bool:
    """Whether the committed messages of the segment can never change again."""
    return bounds.sealed and bounds.resolved == bounds.end


def qualifying(bounds: TopicBounds) -> dict[str, SegmentBounds]:
    """Segments of the topic that may be compacted, oldest first."""
    found: dict[str, SegmentBounds] = {}
    held_back: list[SegmentName] = []
    for name in sorted(map(SegmentName.from_path, bounds.segments), key=lambda one: one.segment_id):
        one = bounds.segments[name.path]
        if is_complete(one) and not any(_share_a_hash(name, older) for older in held_back):
            found[name.path] = one
        else:
            held_back.append(name)
    return found


def _share_a_hash(one: SegmentName, other: SegmentName) -> bool:
    return one.lo <= other.hi and other.lo <= one.hi


@dataclass(frozen=True)
class CompactionStep:
    """The next generation: `previous`, if any, merged with what lies between `start` and `end`, which name only the new
    segments. Without `start` these are read as far as they are kept; with one, whole or not at all. `manifest` lacks
    only its files."""

    previous: Manifest | None
    start: Snapshot | None
    end: Snapshot
    manifest: Manifest

    @property
    def new(self) -> tuple[str, ...]:
        """Segments compacted for the first time, oldest first."""
        return tuple(self.end.segments)

    def published(self, files: Iterable[DataFile]) -> Manifest:
        return replace(self.manifest, files=tuple(files))


def next_step(
    snapshot: Snapshot, topic: str, previous: Manifest | None, *, generation: int, accept_gaps: bool = False
) -> CompactionStep | None:
    """Plans a compaction as of `snapshot` after `previous`; None if no segment has qualified since.

    Raises `InvalidArgument`: the snapshot does not follow `previous`, or retention has taken what was not compacted yet
    and `accept_gaps` is not set."""
    if not snapshot.store:
        raise InvalidArgument("the snapshot does not name its store: take a new one")
    bounds = snapshot.topics[topic]
    if previous is not None:
        _check_follows(snapshot, previous, accept_gaps=accept_gaps)
    compacted = {} if previous is None else previous.compacted
    new = {path: one for path, one in qualifying(bounds).items() if path not in compacted}
    if not new:
        return None
    earliest = {path: SegmentBounds(EARLIEST, EARLIEST) for path in new}
    return CompactionStep(
        previous=previous,
        start=None if previous is None or accept_gaps else _of_segments(snapshot, topic, earliest),
        end=_of_segments(snapshot, topic, new),
        manifest=Manifest(
            generation,
            _resting_on(snapshot, topic, previous, new),
            {**compacted, **dict.fromkeys(new, snapshot.revision)},
            files=(),
        ),
    )


def _check_follows(snapshot: Snapshot, previous: Manifest, *, accept_gaps: bool) -> None:
    if (other := previous._of_another(snapshot)) is not None:
        raise InvalidArgument(f"generation {previous.generation} cannot be continued: {other}; {START_AFRESH}")
    if snapshot.revision < previous.cut.revision:
        raise InvalidArgument(
            f"the snapshot belongs to revision {snapshot.revision}, but generation {previous.generation} already to "
            f"{previous.cut.revision}: take a newer one"
        )
    if not accept_gaps and (gap := previous.cut.obstacle(snapshot)) is not None:
        raise InvalidArgument(gap_after(previous, gap))


def gap_after(previous: Manifest, what: object) -> str:
    return (
        f"retention took something before it was compacted, so that generation {previous.generation} may have values "
        f"of keys that had newer ones ({what}): go on nevertheless with --accept-gaps, or {START_AFRESH}"
    )


def _resting_on(
    snapshot: Snapshot, topic: str, previous: Manifest | None, new: Mapping[str, SegmentBounds]
) -> Snapshot:
    """The manifest's cut: compacted segments at their ends, also those that are gone, others at their earliest."""
    before = (
        {} if previous is None else {path: previous.cut.topics[topic].segments[path] for path in previous.compacted}
    )
    others = dict.fromkeys(snapshot.topics[topic].segments, SegmentBounds(EARLIEST, EARLIEST))
    return _of_segments(snapshot, topic, {**others, **before, **new})


def _of_segments(snapshot: Snapshot, topic: str, segments: Mapping[str, SegmentBounds]) -> Snapshot:
    """▲ These segments are resolved: nothing in them is pending, and every owner knows what was aborted in them. None
    is lost, because all are there to be read."""
    return Snapshot(
        snapshot.revision, {topic: TopicBounds(snapshot.topics[topic].epoch, segments)}, store=snapshot.store
    )


def without(snapshot: Snapshot, used: Iterable[Manifest]) -> Snapshot:
    """Returns the part of `snapshot` that must be read from ledgers when these generations are used."""
    topics = dict(snapshot.topics)
    for manifest in used:
        bounds = topics[manifest.topic]
        left = {path: one for path, one in bounds.segments.items() if path not in manifest.compacted}
        topics[manifest.topic] = bounds._replace(segments=left)
    return replace(snapshot, topics=topics)
