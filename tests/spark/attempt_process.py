"""One attempt at a task in a process of its own, which a test stops amid its rows.

python -m tests.spark.attempt_process URL TOPIC NAME RUN FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from pyspark_txnstore.shared.options import SinkOptions
from pyspark_txnstore.sink.attempt import Attempt
from pyspark_txnstore.sink.batch_names import BatchName
from pyspark_txnstore.sink.runs import BatchRun
from tests.waiting import wait_until


def rows(folder: Path) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"value": pa.array([b"a"])})
    (folder / "half").touch()
    wait_until((folder / "go").exists, "the test to let this attempt go")
    yield pa.record_batch({"value": pa.array([b"b"])})


def main(url: str, topic: str, name: str, run: str, folder: str) -> None:
    options = SinkOptions.parse({"service.url": url, "topic": topic}, use="stream write")
    written = Attempt(options, BatchName(name, ""), BatchRun(bytes.fromhex(run)), 1).write(rows(Path(folder)))
    print(written.txn_id, written.committed, written.content.rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
