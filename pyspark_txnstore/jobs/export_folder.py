"""The folder of an export: each increment is whole, with the cut it reaches up to, or absent.

    <folder>/increment=000007/part-….parquet    rows with the source's columns
                              _cut.json         {"v":1, "rows": 4711, "snapshot": {…}}: all that was exported so far is
                                                what was committed at this snapshot

`spark.read.parquet(<folder>)` reads all of them, and has `increment` as one more column.
▲ Data and cut appear by one rename (`VersionedFolder`): the next run continues from the newest cut, and would repeat
or skip data that does not match it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark_txnstore.shared.versioned_folder import VersionedFolder, folder_of
from txnclient.reading.snapshot import Snapshot
from txnwire.errors import DataCorrupt, InvalidArgument

VERSION: Final = 1
CUT: Final = "_cut.json"


@dataclass(frozen=True)
class Increment:
    """`cut`: the export has all messages committed up to it."""

    number: int
    cut: Snapshot
    rows: int

    def to_json(self) -> str:
        return json.dumps({"v": VERSION, "rows": self.rows, "snapshot": json.loads(self.cut.to_json())})

    @staticmethod
    def from_json(text: str, *, number: int, where: str) -> Increment:
        """Raises `DataCorrupt` naming the file."""
        try:
            document = json.loads(text)
            if document["v"] != VERSION:
                raise DataCorrupt(f"{where}: version {document['v']!r} is not supported, expected {VERSION}")
            return Increment(number, Snapshot.from_json(json.dumps(document["snapshot"])), int(document["rows"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DataCorrupt(f"{where} is not the output of an export: {type(error).__name__}: {error}") from error


class ExportFolder(VersionedFolder):
    """Raises `InvalidArgument` for a folder that `folder_of` rejects."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder_of(folder), prefix="increment=", document=CUT)

    def last(self) -> Increment | None:
        """Returns the newest increment, or None. Raises `DataCorrupt`; `InvalidArgument` if the folder holds anything
        that no export has written."""
        if strangers := self.strangers():
            # Readers of the folder would take it for exported rows.
            raise InvalidArgument(
                f"{self.path} holds {strangers[0]!r}, which is no increment: export to a folder of its own"
            )
        number = next(iter(self.numbers()), None)
        if number is None:
            return None
        where = self.document_of(number)
        try:
            text = where.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise DataCorrupt(
                f"{where} is missing: the folder was not renamed as it was made, or was changed"
            ) from error
        return Increment.from_json(text, number=number, where=str(where))

    def last_cut(self) -> Snapshot:
        """Raises `InvalidArgument` if nothing was exported."""
        last = self.last() if self.path.is_dir() else None
        if last is None:
            raise InvalidArgument(f"nothing has been exported to {self.path}")
        return last.cut

    def add(self, made: Path, number: int, cut: Snapshot) -> Increment:
        """Publishes what Spark wrote into `made`. Raises as `publish`."""
        increment = Increment(number, cut, _rows(made))
        self.publish(made, number, increment.to_json())
        return increment


def _rows(made: Path) -> int:
    from pyarrow import parquet

    return sum(parquet.read_metadata(path).num_rows for path in made.glob("*.parquet"))
