"""The sink with faults at chosen steps, as `format("txnstore_faulty")`: for tests with real Spark.

What it wraps is the sink itself. Options: `fault` says which one, `fault.folder` is where it leaves its marks. A fault
happens once, to whichever process is there first, unless it says otherwise.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_txnstore import DefaultSource
from pyspark_txnstore.shared.process_client import client_of
from pyspark_txnstore.sink.winners import BatchCommit, Written, to_commit
from tests.waiting import wait_until


class FaultySource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "txnstore_faulty"

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._fault = Fault(self.options.pop("fault"), Path(self.options.pop("fault.folder")))
        self._fault.url = self.options.get("service.url", "")

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return FaultyBatchSink(super().writer(schema, overwrite), self._fault)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return FaultyStreamSink(super().streamWriter(schema, overwrite), self._fault)


class Fault:
    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.url = ""

    def first(self, mark: str) -> bool:
        """Whether nobody was here before."""
        try:
            os.close(os.open(self.folder / mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def write(self, write: Callable[[Iterator[Any]], WriterCommitMessage], rows: Iterator[Any]) -> WriterCommitMessage:
        partition = TaskContext.get().partitionId()
        if self.kind == "fail midway" and self.first(f"failed-{partition}"):
            rows = self._failing(rows)
        elif self.kind == "duplicate":
            kept = list(rows)
            write(iter(kept))  # a speculative attempt that was as fast, and that Spark did not choose
            rows = iter(kept)
        elif self.kind == "stall" or (self.kind == "stall last" and partition == 1):
            rows = self._stalling(rows)
        elif self.kind == "fail last" and partition == 1:
            rows = self._failing_last(rows)
        elif self.kind in ("outrun", "come back"):
            return self._outrun(write, rows)
        elif self.kind == "outlive" and partition == 1 and self.first("outlived"):
            rows = self._outliving(rows)
        written = write(rows)
        if self.kind == "kill after flush" and self.first(f"killed-{partition}"):
            os.kill(os.getpid(), signal.SIGKILL)
        if isinstance(written, Written) and written.txn_id:
            (self.folder / f"written-{written.txn_id}-{partition}").touch()
        return written

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Hold the commit until the test lets it go, or abort what it is to commit, as an operator may."""
        if self.kind == "hold commit" and self.first("held"):
            wait_until((self.folder / "go").exists, "the test to let this commit go")
        elif self.kind == "abort before commit" and self.first("aborted"):
            decided = to_commit(messages)
            assert isinstance(decided, BatchCommit)
            client_of(self.url).attach(decided.txn_id, name=decided.name).abort()

    def _outrun(
        self, write: Callable[[Iterator[Any]], WriterCommitMessage], rows: Iterator[Any]
    ) -> WriterCommitMessage:
        """The first attempt at partition 0 waits, behind all of its rows or amid them, so that another one wins. Each
        attempt at that partition tells which one it is and where it runs: its process, and those above it up to the
        executor. ▲ The other one begins when the first is there, or stopped by the test: it may start earlier."""
        context = TaskContext.get()
        if context.partitionId() != 0:
            return write(rows)
        first = context.attemptNumber() == 0
        if first and self.kind == "come back":
            rows = self._resting(list(rows))  # ▲ all of them, for its executor is stopped longer than its Python
        told = [context.attemptNumber(), context.taskAttemptId(), *processes_of_executor()]
        (self.folder / f"begun-{context.attemptNumber()}").write_text(json.dumps(told))
        if not first:
            there = self.folder / ("ended-0" if self.kind == "outrun" else "stopped")
            wait_until(there.exists, "the first attempt to be there")
        written = write(rows)
        assert isinstance(written, Written)
        (self.folder / f"ended-{context.attemptNumber()}").write_text(json.dumps(written.committed))
        if first and self.kind == "outrun":
            wait_until((self.folder / "go").exists, "Spark to end this task")
        return written

    def _resting(self, rows: list[Any]) -> Iterator[Any]:
        yield rows[0].slice(0, 1)
        (self.folder / "half").touch()
        wait_until((self.folder / "go").exists, "the test to let this task go")
        yield rows[0].slice(1)
        yield from rows[1:]

    def _failing(self, rows: Iterator[Any]) -> Iterator[Any]:
        yield next(rows).slice(0, 2)
        raise RuntimeError("a fault in mid-write")

    def _failing_last(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Whenever it is tried."""
        yield next(rows).slice(0, 1)
        wait_until(lambda: any(self.folder.glob("written-*")), "another task to write")
        raise RuntimeError("a fault behind another task")

    def _stalling(self, rows: Iterator[Any]) -> Iterator[Any]:
        first = next(rows)
        yield first.slice(0, 1)
        (self.folder / "stalled").touch()
        wait_until((self.folder / "go").exists, "the test to let this task go")
        yield first.slice(1)
        yield from rows

    def _outliving(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Once another task has written in the transaction, and this one too, wait until it is aborted."""
        first = next(rows)
        yield first.slice(0, 1)
        wait_until(lambda: any(self.folder.glob("written-*")), "another task to write")
        (other,) = self.folder.glob("written-*")
        txn_id = other.name.removeprefix("written-").rpartition("-")[0]
        client = client_of(self.url)
        wait_until(lambda: "ABORTED" in client.outcomes([txn_id]).values(), "the transaction to time out")
        yield first.slice(1)
        yield from rows


def processes_of_executor() -> list[int]:
    """This one, Spark's daemon of Pythons and the JVM of the executor, each the child of the next."""
    pids = [os.getpid(), os.getppid()]
    # The name, which may hold spaces, is in parentheses; behind it are the state and the parent.
    pids.append(int(Path(f"/proc/{pids[1]}/stat").read_text().rpartition(")")[2].split()[1]))
    return pids


class FaultyBatchSink(DataSourceArrowWriter):
    def __init__(self, sink: Any, fault: Fault) -> None:
        self._sink = sink
        self._fault = fault

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._fault.write(self._sink.write, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._fault.commit(messages)
        self._sink.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.abort(messages)


class FaultyStreamSink(DataSourceStreamArrowWriter):
    def __init__(self, sink: Any, fault: Fault) -> None:
        self._sink = sink
        self._fault = fault

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._fault.write(self._sink.write, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._fault.commit(messages)
        self._sink.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._sink.abort(messages, batchId)
