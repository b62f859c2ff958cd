"""Every batch of a checkpoint, read once more from its offsets alone: `python -m tests.process.spark_pipeline.replay
CHECKPOINT OPTIONS.json` prints {batch: [idents]}."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark_txnstore import DefaultSource
from tests.process.spark_pipeline.driver import ident


def offsets(checkpoint: Path) -> dict[int, dict[str, Any]]:
    """As Spark keeps them: a version, the batch's own, and one line for the only source."""
    found = {}
    for path in (checkpoint / "offsets").iterdir():
        if path.name.isdecimal():
            version, _, offset = path.read_text().splitlines()
            assert version == "v1", version
            found[int(path.name)] = json.loads(offset)
    return dict(sorted(found.items()))


def replay(checkpoint: Path, options: dict[str, str]) -> dict[int, list[str]]:
    source = DefaultSource(options={**options, "columns": "value"})
    reader = source.streamReader(source.schema())
    found: dict[int, list[str]] = {}
    before = reader.initialOffset()  # of the first batch, whose end tells where it began
    for number, end in offsets(checkpoint).items():
        found[number] = [
            ident(value)
            for part in reader.partitions(before, end)
            for batch in reader.read(part)
            for value in batch.column("value").to_pylist()
        ]
        before = end
    return found


if __name__ == "__main__":
    print(json.dumps(replay(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))))
