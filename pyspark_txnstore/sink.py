"""The sink: each micro-batch, or each `df.write`, is one named transaction with a writer for each task attempt.

Source: DESIGN §10. Every attempt begins the batch's name, so all join one transaction; it sends its rows, flushes, and
tells the driver transaction and writer. The driver commits that transaction with the attempts that Spark let win: one
decision, however many tasks. What other attempts wrote, retried, speculative or of a driver that died, never happened;
a batch that runs again after its commit finds it, and writes nothing.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_txnstore import batch_names
from pyspark_txnstore.attempt import Attempt
from pyspark_txnstore.options import SinkOptions
from pyspark_txnstore.outgoing_rows import check_schema
from pyspark_txnstore.process_client import client_of
from pyspark_txnstore.runs import Run
from pyspark_txnstore.tables import refuse_new_table
from pyspark_txnstore.winners import Commit, Repeat, to_abort, to_commit
from txnwire.errors import InvalidArgument, InvalidTxnState, OutcomeUnknown, Timeout, TxnError, TxnNotFound

if TYPE_CHECKING:
    import pyarrow as pa

COMMIT_TIMEOUT_S = 120.0
"""How long a commit is asked for again until its outcome is known; batches run again where it is not by then."""

STRAGGLERS_S = 3.0
"""How long what tasks of a failed batch begin is aborted. Spark says that a batch has failed with its first task that
has; the other ones still run until it has killed them, for which it takes `spark.python.task.killTimeout`, 2 s."""

_log = logging.getLogger("pyspark_txnstore")


class StreamSink(DataSourceStreamArrowWriter):
    """Of a streaming query. Spark makes one for the tasks of each run of a batch, which carries that run to them, and
    others, elsewhere, for each commit."""

    def __init__(self, options: SinkOptions, sink: batch_names.Sink, checkpoint: str | None) -> None:
        """`sink`: what its transactions are named by. `checkpoint`: location of the query's, where that is known."""
        self._options = options
        self._run = Run.begin()
        self._sink = sink
        self._checkpoint = checkpoint

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task()
        asked = (batch_names.QUERY_ID, batch_names.BATCH_ID)
        name = batch_names.micro_batch_of({key: context.getLocalProperty(key) for key in asked}, self._sink)
        return Attempt(self._options, name, self._run, context.taskAttemptId()).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _commit(self._options, to_commit(messages, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Where no task could tell in which transaction it wrote, it is found by its name, as the checkpoint tells."""
        told = to_abort(messages)
        name = next((name for name, _ in told), None)
        query_id = None if name is not None or self._checkpoint is None else query_id_of(self._checkpoint)
        if query_id is not None:
            name = batch_names.micro_batch_name(self._sink, query_id, batchId).text
        _abort(self._options, told, name)


class BatchSink(DataSourceArrowWriter):
    """Of one `df.write`, which one transaction makes visible as a whole."""

    def __init__(self, options: SinkOptions, name: batch_names.BatchName) -> None:
        self._options = options
        self._run = Run.begin()
        self.batch_name = name

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task()
        refuse_new_table(context.getLocalProperty)
        return Attempt(self._options, self.batch_name, self._run, context.taskAttemptId()).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, to_commit(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, to_abort(messages), self.batch_name.text)


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise InvalidArgument("the sink writes in tasks of Spark only: no task is running here")
    return context


def stream_sink(options: SinkOptions, schema: StructType, *, checkpoint: str | None, overwrite: bool) -> StreamSink:
    """`checkpoint`: location of the query's, where it is an option. Raises `InvalidArgument`."""
    if overwrite:
        raise InvalidArgument("outputMode('complete') would replace what the topic holds: use 'append'")
    check_schema(schema, options.topic)
    return StreamSink(options, batch_names.stream_sink(options.sink_name, options.topic), checkpoint)


def query_id_of(checkpoint: str) -> str | None:
    """As Spark has written it into a checkpoint, of one in a folder of this machine; None of any other.

    For cleaning up alone: whoever fails a batch is told its number, and not of which query."""
    try:
        found = json.loads((Path(checkpoint.removeprefix("file:")) / "metadata").read_text())
        return batch_names.query_id(str(found["id"]))
    except (OSError, ValueError, KeyError, TypeError, InvalidArgument):
        return None


def batch_sink(options: SinkOptions, schema: StructType, *, overwrite: bool) -> BatchSink:
    """Raises `InvalidArgument`."""
    if overwrite:
        raise InvalidArgument("mode('overwrite') would replace what the topic holds: use mode('append')")
    check_schema(schema, options.topic)
    sink = batch_names.batch_sink(options.sink_name, options.topic)
    if options.write_id is None:
        return BatchSink(options, batch_names.write_name(sink, uuid.uuid4().hex)._replace(former="", keep_newest=False))
    return BatchSink(options, batch_names.write_name(sink, options.write_id))


def _commit(options: SinkOptions, commit: Commit | Repeat | None) -> None:
    """▲ Exactly the transaction that the winners named; that it is committed already, by whomever, is as good: it has
    the name of this batch, so what it holds is this batch's rows, once."""
    if commit is None:
        return
    if isinstance(commit, Repeat):
        _tell_left_out(commit.name, commit.rows)
        return
    if commit.former and _committed_as(options, commit.former):
        _abort_one(options, commit.name, commit.txn_id)
        _tell_left_out(commit.former, commit.rows)
        return
    client = client_of(options.url, timeout_s=options.timeout_s)
    txn = client.attach(commit.txn_id, name=commit.name)
    try:
        txn.commit(writers=commit.writers, timeout=max(COMMIT_TIMEOUT_S, options.timeout_s))
    except InvalidTxnState as error:
        state = _state_of(options, commit.txn_id)
        if state != "COMMITTED":
            raise InvalidTxnState(
                f"the transaction {commit.txn_id} of {commit.name!r} is {state}, its rows are gone: run the batch "
                f"again, and raise transactionTimeoutMs if batches take longer than that ({error})"
            ) from error
        _tell_left_out(commit.name, commit.rows)
    except (Timeout, OutcomeUnknown) as error:
        error.add_note(f"whether {commit.name!r} is committed is not known: run it again, and it will find out")
        raise


def _tell_left_out(name: str, rows: int) -> None:
    """▲ Never in silence: what looks like a repeat may be another write under the same name."""
    _log.warning(
        "%r is committed already, by another run of it, whose rows count: the %d rows of this run are left out. That "
        "is right where a batch or a writeId is repeated; rows that are new need a name of their own (checkpoint, "
        "sinkName, writeId)",
        name,
        rows,
    )


def _committed_as(options: SinkOptions, former: str) -> bool:
    """Whether an earlier version of this package has committed the batch, under the name that it gave it. ▲ A driver of
    that version may have died between its commit and Spark's: the batch would be written twice. What it has left open
    is aborted before this run commits, for a commit of it may still be on its way."""
    try:
        found = client_of(options.url, timeout_s=options.timeout_s).admin("transactions.describe", name=former)
    except TxnNotFound:
        return False
    if found["outcome"] in ("COMMITTED", "ABORTED"):
        return bool(found["outcome"] == "COMMITTED")
    if found["outcome"] != "OPEN":
        raise OutcomeUnknown(f"whether an earlier version has committed {former!r} is not known any more")
    try:
        client_of(options.url, timeout_s=options.timeout_s).attach(found["txn"], name=former).abort()
    except InvalidTxnState:
        return True
    return False


def _state_of(options: SinkOptions, txn_id: str) -> str:
    (state,) = client_of(options.url, timeout_s=options.timeout_s).outcomes([txn_id]).values()
    return state


def _open_one(options: SinkOptions, name: str) -> str | None:
    """Id of the transaction that is open under the name."""
    try:
        found = client_of(options.url, timeout_s=options.timeout_s).admin("transactions.describe", name=name)
    except TxnNotFound:
        return None
    return str(found["txn"]) if found["outcome"] == "OPEN" else None


def _abort(options: SinkOptions, told: list[tuple[str, str]], name: str | None) -> None:
    """So that readers need not wait for the deadline of what a failed batch has written: what its tasks have `told` of,
    and what is open under its `name`, which a task that was not killed yet may begin after its batch has failed."""
    for told_name, txn_id in told:
        _abort_one(options, told_name, txn_id)
    began = time.monotonic()
    while name is not None and time.monotonic() < began + STRAGGLERS_S:
        try:
            left = _open_one(options, name)
        except TxnError as error:
            _log.warning("whether %r is open could not be seen, its deadline aborts it: %s", name, error)
            return
        if left is not None:
            _abort_one(options, name, left)
        time.sleep(0.2)


def _abort_one(options: SinkOptions, name: str, txn_id: str) -> None:
    txn = client_of(options.url, timeout_s=options.timeout_s).attach(txn_id, name=name)
    try:
        txn.abort()
    except InvalidTxnState:
        _log.warning("%r failed here and is committed, by another run of it: nothing is lost", name)
    except TxnError as error:
        _log.warning("%r (%s) is aborted at its deadline only: %s", name, txn_id, error)
