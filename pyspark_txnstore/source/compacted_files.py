"""Finds and reads compacted generations.

    <folder>/<tenant>/<namespace>/<topic>/generation-000007/manifest.json        see `pyspark_txnstore.source.compacted`
                                                            part-….parquet       rows with the source's columns

How one appears all at once: see `pyspark_txnstore.shared.versioned_folder`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from pyspark_txnstore.shared.versioned_folder import VersionedFolder
from pyspark_txnstore.source.columns import BATCH_ROWS, of_no_columns
from pyspark_txnstore.source.compacted import DataFile, Manifest, without
from txnwire.errors import DataCorrupt, InvalidArgument
from txnwire.names import TopicName
from txnwire.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST: Final = "manifest.json"

_log = logging.getLogger("pyspark_txnstore")


class Generations(VersionedFolder):
    """Generations of one topic, in the output folder of the job compact."""

    def __init__(self, folder: Path, topic: str) -> None:
        super().__init__(folder / TopicName.parse(topic).path, prefix="generation-", document=MANIFEST)
        self.topic = topic

    def manifest(self, generation: int) -> Manifest:
        """Raises `DataCorrupt`; `FileNotFoundError` if it was removed."""
        path = self.document_of(generation)
        manifest = Manifest.from_json(path.read_bytes(), where=str(path))
        if (manifest.generation, manifest.topic) != (generation, self.topic):
            raise DataCorrupt(
                f"{path} belongs to generation {manifest.generation} of {manifest.topic} and was moved here: move it "
                "back"
            )
        return manifest

    def paths(self, manifest: Manifest) -> list[str]:
        """Paths of its files. Raises `DataCorrupt` if one differs from the manifest."""
        return [part.path for part in _parts(self.path_of(manifest.generation), manifest)]

    def usable(self, snapshot: Snapshot, *, drawn_back: bool = False) -> Manifest | None:
        """The newest generation that a read of everything up to `snapshot` may use, or None; `drawn_back` as in
        `Manifest.obstacle`. Raises `DataCorrupt`."""
        for number in self.numbers():
            try:
                manifest = self.manifest(number)
            except FileNotFoundError:
                continue  # removed since it was listed
            if (obstacle := manifest.obstacle(snapshot, drawn_back=drawn_back)) is None:
                _log.info("generation %d of %s is used", number, self.topic)
                return manifest
            _log.info("generation %d of %s is not used: %s", number, self.topic, obstacle)
        return None

    def add(self, made: Path, manifest: Manifest) -> None:
        """`made` holds the manifest's files and nothing else, see `data_files`. Raises as `publish`."""
        self.publish(made, manifest.generation, manifest.to_json())


def data_files(made: Path) -> list[DataFile]:
    """The Parquet files that Spark wrote into `made`; removes everything else there."""
    from pyarrow import parquet

    found: list[DataFile] = []
    for path in sorted(made.iterdir()):
        if path.suffix != ".parquet" or path.name.startswith("."):
            path.unlink()
            continue
        rows = parquet.read_metadata(path).num_rows
        if rows:
            found.append(DataFile(path.name, path.stat().st_size, rows))
        else:
            path.unlink()
    return found


@dataclass(frozen=True)
class CompactedPart(InputPartition):
    """The file of a generation that one task reads."""

    path: str
    rows: int


def plan_compacted(
    folder: Path, snapshot: Snapshot, *, drawn_back: bool = False
) -> tuple[list[CompactedPart], Snapshot]:
    """Plans a compacted read of everything up to `snapshot`: the part from generations, and the part from the ledgers.
    `drawn_back` as in `Manifest.obstacle`.

    Raises `InvalidArgument` if there is no such folder, `DataCorrupt` if a generation has changed."""
    if not folder.is_dir():
        raise InvalidArgument(f"there is no folder {folder}: where does the job compact write to?")
    parts: list[CompactedPart] = []
    used: list[Manifest] = []
    for topic in snapshot.topics:
        generations = Generations(folder, topic)
        while (manifest := generations.usable(snapshot, drawn_back=drawn_back)) is not None:
            try:
                parts += _parts(generations.path_of(manifest.generation), manifest)
            except DataCorrupt:
                if generations.document_of(manifest.generation).exists():
                    raise
                continue  # removed since it was looked at, because newer ones were made
            used.append(manifest)
            break
    return parts, without(snapshot, used)


def _parts(path: Path, manifest: Manifest) -> list[CompactedPart]:
    for file in manifest.files:
        # ▲ Checked before anything is read: part of a generation is never shown for all of it.
        found = (path / file.name).stat().st_size if (path / file.name).is_file() else None
        if found != file.size_bytes:
            size = "is missing" if found is None else f"has {found} bytes"
            raise DataCorrupt(
                f"{path / file.name} {size}, {MANIFEST} says {file.size_bytes}: remove the folder {path}; the "
                "generation before it, or the ledgers, are read then"
            )
    return [CompactedPart(str(path / file.name), file.rows) for file in manifest.files]


def read_part(
    part: CompactedPart, schema: pa.Schema, *, keys: Collection[bytes] | None = None
) -> Iterator[pa.RecordBatch]:
    """Its rows, with the columns of `schema` (the source's); with `keys` only rows that have one of these. Raises
    `DataCorrupt` naming the file."""
    import pyarrow
    import pyarrow.compute as pc
    from pyarrow import parquet

    rows = 0
    wanted = None if keys is None else pyarrow.array(sorted(keys), pyarrow.binary())
    try:
        with parquet.ParquetFile(part.path) as file:
            if not schema.names and wanted is None:
                rows = file.metadata.num_rows
                yield of_no_columns(rows)
            else:
                names = list(dict.fromkeys([*schema.names, "key"])) if wanted is not None else schema.names
                for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=names):
                    rows += batch.num_rows
                    if wanted is not None:
                        batch = batch.filter(pc.is_in(batch.column("key").cast(pyarrow.binary()), value_set=wanted))
                    yield batch.select(schema.names).cast(schema) if schema.names else of_no_columns(batch.num_rows)
    except FileNotFoundError as error:
        raise DataCorrupt(
            f"{part.path} is gone: newer generations have replaced it during the read; read again, or let the job "
            "keep more of them (--keep)"
        ) from error
    except (pyarrow.ArrowException, KeyError) as error:
        raise DataCorrupt(f"{part.path}: {type(error).__name__}: {error}") from error
    if rows != part.rows:
        raise DataCorrupt(f"{part.path} has {rows} rows, its manifest says {part.rows}")
