"""Reads a Spark checkpoint: how far a query is, and what a restart does.

    metadata       {"id": "<query id>"}
    offsets/<n>    v1 · JSON of the batch · where each source ended, a line each, "-" where it has not begun
                   v2 · the same, each line with the source's name before it: name:{…}
    commits/<n>    is there once Spark has noted that batch n is done

A batch is planned by its file in `offsets`, runs, and is done by its file in `commits`. On a restart Spark runs the
last planned batch again unless it is done. The batch starts where the one before it ended.

Reads without Spark, and changes nothing. `read_checkpoint` alone does I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from pyspark_txnstore.shared.offset_codec import Isolation, decode_offset
from pyspark_txnstore.sink import batch_names
from pyspark_txnstore.source import first_batch
from txnclient.reading.snapshot import Snapshot
from txnwire.errors import DataCorrupt, InvalidArgument

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_NAMED: Final = re.compile(r"([^:{}\s]+):(.*)", re.DOTALL)
_NOTHING: Final = "-"


class SourceEnd(NamedTuple):
    """Where a batch ends in one source. `source`: its number, or its name. `offset`: as the file has it; None: the
    source has not begun. `cut`: set for an offset of txnstore that is behind the beginning, else None."""

    source: str
    offset: Mapping[str, Any] | None
    text: str
    is_ours: bool
    cut: Snapshot | None


@dataclass(frozen=True)
class CheckpointBatch:
    number: int
    committed: bool
    """Noted by Spark: the sink may have committed the batch before that."""
    ends: tuple[SourceEnd, ...]

    def end(self, source: str) -> SourceEnd | None:
        return next((one for one in self.ends if one.source == source), None)


@dataclass(frozen=True)
class Checkpoint:
    """`batches`: planned batches, oldest first, with the one before the first wanted if it is kept. `done`: number of
    the last batch that Spark has noted as done."""

    query_id: str
    batches: tuple[CheckpointBatch, ...]
    done: int | None


class Restart(NamedTuple):
    """How the query restarts: `batch` is the next batch; `again`: Spark has planned it already.
    `obstacle`: why the query will not start."""

    batch: int
    again: bool
    obstacle: str | None = None


class BatchStretch(NamedTuple):
    """The part of one segment that a batch adds: (`begin`, `end`]. `begin` None: from the segment's beginning."""

    source: str
    topic: str
    segment: str
    begin: str | None
    end: str
    resolved: str
    sealed: bool


def checkpoint_folder(text: str) -> Path:
    """Takes a path, or `file:` before an absolute one. Raises `InvalidArgument` for another store."""
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Path(text)
    if scheme[1].lower() != "file":
        raise InvalidArgument(
            f"{text!r}: a checkpoint in a {scheme[1]} store is not read here: copy it to this machine, or mount "
            "it, and name that"
        )
    path = re.sub(r"\A//(localhost)?(?=/)", "", unquote(text[scheme.end() :]))
    if not path.startswith("/") or path.startswith("//"):
        raise InvalidArgument(f"{text!r}: expected a path, or file:///an/absolute/path")
    return Path(path)


def read_checkpoint(folder: Path, *, last: int) -> Checkpoint:
    """Returns the newest `last` planned batches, and the one before. Raises `InvalidArgument` where there is no such
    folder, `DataCorrupt` that says what is wrong; `OSError`."""
    if not folder.is_dir():
        raise InvalidArgument(f"{folder}: there is no such folder")
    try:
        metadata = (folder / "metadata").read_bytes()
    except FileNotFoundError:
        raise DataCorrupt(
            f"{folder} is no checkpoint of Spark's: expected a file 'metadata' beside the folders offsets and commits; "
            "name the folder that the option checkpointLocation names"
        ) from None
    query_id = parse_metadata(metadata, where=str(folder / "metadata"))
    done = _numbers(folder / "commits")
    batches = []
    for number in _numbers(folder / "offsets")[-(last + 1) :]:
        path = folder / "offsets" / str(number)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue  # a running query forgets its oldest batches
        batches.append(CheckpointBatch(number, number in done, parse_offsets(data, where=str(path))))
    return Checkpoint(query_id, tuple(batches), done[-1] if done else None)


def _numbers(folder: Path) -> list[int]:
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def parse_metadata(data: bytes, *, where: str) -> str:
    """Returns the query's id. Raises `DataCorrupt`."""
    try:
        return batch_names.query_id(str(json.loads(data)["id"]))
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupt(f'{where} is damaged: expected {{"id":"<UUID>"}}, found {data[:80]!r}') from error


def parse_offsets(data: bytes, *, where: str) -> tuple[SourceEnd, ...]:
    """Parses a file in `offsets`. Raises `DataCorrupt`."""
    try:
        version, _, *lines = data.decode().split("\n")
    except ValueError as error:
        raise DataCorrupt(f"{where} is damaged: expected three lines or more, found {data[:80]!r}") from error
    if version not in ("v1", "v2"):
        raise DataCorrupt(f"{where} is not of a form that is known here: expected v1 or v2, found {version!r:.80}")
    while lines and not lines[-1].strip():
        del lines[-1]
    try:
        return tuple(_source_end(number, line, named=version == "v2") for number, line in enumerate(lines))
    except (ValueError, TypeError, RecursionError) as error:  # txnstore's offsets raise `InvalidArgument`
        raise DataCorrupt(f"{where} is damaged: {error}") from error


def _source_end(number: int, line: str, *, named: bool) -> SourceEnd:
    source, text = str(number), line
    if named:
        match = _NAMED.fullmatch(line)
        if match is None:
            raise ValueError(f"expected <source>:<offset>, found {line!r:.80}")
        source, text = match[1], match[2]
    if text == _NOTHING:
        return SourceEnd(source, None, text, is_ours=False, cut=None)
    offset = json.loads(text)
    is_ours = isinstance(offset, dict) and "v" in offset and ("cut" in offset or "earliest" in offset)
    if not is_ours:
        return SourceEnd(source, None, text, is_ours=False, cut=None)
    first_batch.between(offset, offset, _isolation(offset))  # its beginning, if it has one, must be readable as well
    return SourceEnd(source, offset, text, is_ours=True, cut=decode_offset(offset))


def _isolation(offset: Mapping[str, Any]) -> Isolation:
    """Returns the offset's own isolation: it is only shown here. Earlier versions did not write it."""
    return "read_uncommitted" if offset.get("isolation") == "read_uncommitted" else "read_committed"


def restart(checkpoint: Checkpoint) -> Restart:
    """Decides as Spark does."""
    if not checkpoint.batches:
        return Restart(0, again=False)
    last = checkpoint.batches[-1]
    if checkpoint.done == last.number:
        return Restart(last.number + 1, again=False)
    if last.number > 0 and (len(checkpoint.batches) < 2 or checkpoint.batches[-2].number != last.number - 1):
        missing = f"batch {last.number} is to run again, and offsets/{last.number - 1}, where it begins, is missing"
        return Restart(last.number, again=True, obstacle=missing)
    return Restart(last.number, again=True)


def stretches(checkpoint: Checkpoint, batch: CheckpointBatch) -> list[BatchStretch]:
    """Returns the stretches of all txnstore sources, segment by segment."""
    before = next((one for one in checkpoint.batches if one.number == batch.number - 1), None)
    found: list[BatchStretch] = []
    for end in batch.ends:
        if end.offset is None:
            continue
        begun = None if before is None else before.end(end.source)
        start, until = _cuts(None if begun is None else begun.offset, end.offset)
        if until is not None:
            found += _stretches(end.source, start, until)
    return found


def _cuts(begun: Mapping[str, Any] | None, end: Mapping[str, Any]) -> tuple[Snapshot | None, Snapshot | None]:
    cuts = first_batch.between({"v": 1, "earliest": True} if begun is None else begun, end, _isolation(end))
    if cuts is not None:
        return cuts
    at = decode_offset(end)  # the source only begins there: it reads nothing
    return at, at


def _stretches(source: str, start: Snapshot | None, until: Snapshot) -> Sequence[BatchStretch]:
    found = []
    for topic, bounds in sorted(until.topics.items()):
        for path, one in sorted(bounds.segments.items()):
            begin = None if start is None else start.bounds(path)
            at = None if begin is None else str(begin.end)
            found.append(BatchStretch(source, topic, path, at, str(one.end), str(one.resolved), one.sealed))
    return found
