"""The sink: each micro-batch, or each `df.write`, is one named transaction with a writer for each task attempt.

Source: DESIGN §10. Every attempt begins the batch's name, so all join one transaction; it sends its rows, flushes, and
tells the driver transaction and writer. The driver commits that transaction with the attempts that Spark let win: one
decision, however many tasks. What other attempts wrote, retried, speculative or of a driver that died, never happened;
a batch that runs again after its commit finds it, and writes nothing.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_txnstore.shared.options import SinkOptions
from pyspark_txnstore.shared.process_client import client_of
from pyspark_txnstore.sink import batch_names
from pyspark_txnstore.sink.attempt import Attempt
from pyspark_txnstore.sink.content import Content
from pyspark_txnstore.sink.outgoing_rows import check_schema, names_topics
from pyspark_txnstore.sink.runs import BatchRun, has_mark
from pyspark_txnstore.sink.tables import refuse_new_table
from pyspark_txnstore.sink.winners import BatchCommit, Repeat, advice, check_repeat, to_commit, told
from txnwire.errors import InvalidArgument, InvalidTxnState, OutcomeUnknown, Timeout, TxnError, TxnNotFound

if TYPE_CHECKING:
    import pyarrow as pa

COMMIT_TIMEOUT_S = 120.0
"""How long a commit is asked for again until its outcome is known; batches run again where it is not by then."""

STRAGGLERS_S = 3.0
"""How long what tasks of a failed batch begin is aborted. Spark says that a batch has failed with its first task that
has; the other ones still run until it has killed them, for which it takes `spark.python.task.killTimeout`, 2 s."""

LOOK_S = 0.4
"""Between two looks for it."""

MAX_LISTED = 10_000
"""Of the transactions that are open, where those of a failed batch are looked for."""

_log = logging.getLogger("pyspark_txnstore")


class StreamSink(DataSourceStreamArrowWriter):
    """Of a streaming query. Spark makes one for the tasks of each run of a batch, which carries that run to them, and
    others, elsewhere, for each commit."""

    def __init__(self, options: SinkOptions, sink: batch_names.SinkIdentity, mark: bytes = b"") -> None:
        """`sink`: what its transactions are named by. `mark`: of those that this query begins (`runs.mark_of`)."""
        self._options = options
        self._run = BatchRun.begin(mark)
        self._sink = sink
        self._mark = mark

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task()
        asked = (batch_names.QUERY_ID, batch_names.BATCH_ID)
        name = batch_names.micro_batch_of({key: context.getLocalProperty(key) for key in asked}, self._sink)
        return Attempt(self._options, name, self._run, context.taskAttemptId()).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _commit(self._options, to_commit(messages, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Where no task could tell what the batch is called, it is found among those that are open.

        ▲ Then its run is told by none either, and is older than that of this sink, which begins with the abort: the
        query may be started again before the abort is over."""
        written = told(messages)
        if written is None:
            _abort(self._options, self._run, partial(_open_of_batch, self._options, self._sink, batchId, self._mark))
        else:
            run = BatchRun(written.run) if written.run else self._run
            _abort(self._options, run, partial(_open_one, self._options, written.name))


class BatchSink(DataSourceArrowWriter):
    """Of one `df.write`, which one transaction makes visible as a whole."""

    def __init__(self, options: SinkOptions, name: batch_names.BatchName) -> None:
        self._options = options
        self._run = BatchRun.begin()
        self.batch_name = name

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _task()
        refuse_new_table(context.getLocalProperty)
        return Attempt(self._options, self.batch_name, self._run, context.taskAttemptId()).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, to_commit(messages), repeatable=self._options.write_id is not None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, self._run, partial(_open_one, self._options, self.batch_name.text))


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise InvalidArgument("the sink writes in tasks of Spark only: no task is running here")
    return context


def stream_sink(options: SinkOptions, schema: StructType, *, mark: bytes = b"", overwrite: bool) -> StreamSink:
    """`mark`: as of a `StreamSink`. Raises `InvalidArgument`."""
    if overwrite:
        raise InvalidArgument("outputMode('complete') would replace what the topic holds: use 'append'")
    check_schema(schema, options.topic)
    return StreamSink(options, batch_names.stream_sink(options.sink_name, options.topic), mark)


def batch_sink(options: SinkOptions, schema: StructType, *, overwrite: bool) -> BatchSink:
    """Raises `InvalidArgument`."""
    if overwrite:
        raise InvalidArgument("mode('overwrite') would replace what the topic holds: use mode('append')")
    check_schema(schema, options.topic)
    if options.write_id is not None and options.sink_name is None and names_topics(schema):
        raise InvalidArgument(
            "the rows name their topics, so `writeId` alone does not tell this write from another one, as of a second "
            "DataFrame in the same foreachBatch: give each of them a `sinkName` of its own ('spark' for the one that "
            "had none until now)"
        )
    sink = batch_names.batch_sink(options.sink_name, options.topic)
    if options.write_id is None:
        return BatchSink(options, batch_names.write_name(sink, uuid.uuid4().hex)._replace(former="", keep_newest=False))
    return BatchSink(options, batch_names.write_name(sink, options.write_id))


def _commit(options: SinkOptions, commit: BatchCommit | Repeat | None, *, repeatable: bool = True) -> None:
    """`repeatable`: whoever writes the same again does so under this name.

    ▲ Exactly the transaction that the winners named; that it is committed already, by whomever, is as good: it has
    the name of this batch, so what it holds is this batch's rows, once."""
    if commit is None:
        return
    if isinstance(commit, Repeat):
        _leave_out(options, commit.name, commit.content)
        return
    if commit.former and _committed_as(options, commit.former):
        _abort_one(options, commit.name, commit.txn_id)
        _leave_out(options, commit.former, commit.content)
        return
    client = client_of(options.url, timeout_s=options.timeout_s)
    txn = client.attach(commit.txn_id, name=commit.name)
    try:
        timeout_s = max(COMMIT_TIMEOUT_S, options.timeout_s)
        txn.commit(writers=commit.writers, note=str(commit.content), timeout=timeout_s)
    except InvalidTxnState as error:
        state = _state_of(options, commit.txn_id)
        if state != "COMMITTED":
            raise InvalidTxnState(
                f"the transaction {commit.txn_id} of {commit.name!r} is {state}, its rows are gone: run the batch "
                f"again, and raise transactionTimeoutMs if batches take longer than that ({error})"
            ) from error
        _leave_out(options, commit.name, commit.content)
    except (Timeout, OutcomeUnknown) as error:
        error.add_note(advice(commit.name, repeatable=repeatable))
        raise


def _leave_out(options: SinkOptions, name: str, content: Content) -> None:
    """▲ Never in silence, and never other rows than those that are committed: that raises `InvalidTxnState`."""
    note = _note_of(options, name)
    doubt = check_repeat(name, note, content, allow_different=options.allow_different_replay)
    _log.warning(
        "%r is committed already, by another run of it, whose rows count: the %d rows of this run are left out. That "
        "is right where a batch or a writeId is repeated%s",
        name,
        content.rows,
        "" if doubt is None else f"; {doubt}",
    )


def _note_of(options: SinkOptions, name: str) -> str | None:
    """Of what is committed under the name; None where it has none, or is known no more."""
    try:
        found = client_of(options.url, timeout_s=options.timeout_s).admin("transactions.describe", name=name)
    except TxnNotFound:
        return None
    note: str | None = found.get("note")  # ▲ servers of earlier versions tell of none
    return note


def _committed_as(options: SinkOptions, former: str) -> bool:
    """Whether an earlier version of this package has committed the batch, under the name that it gave it. ▲ A driver of
    that version may have died between its commit and Spark's: the batch would be written twice. What it has left open
    is aborted before this run commits, for a commit of it may still be on its way. ▲ What has the note of a write is
    of this version, which calls another write so."""
    try:
        found = client_of(options.url, timeout_s=options.timeout_s).admin("transactions.describe", name=former)
    except TxnNotFound:
        return False
    if found["outcome"] in ("COMMITTED", "ABORTED"):
        return found["outcome"] == "COMMITTED" and Content.parse(found.get("note")) is None
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


class _Open(NamedTuple):
    """A transaction that is open. `attempt`: what it was begun under, in hex."""

    name: str
    txn_id: str
    attempt: str


def _open_one(options: SinkOptions, name: str) -> list[_Open]:
    """What is open under the name."""
    return _described(options, name, name=name)


def _open_of_batch(options: SinkOptions, sink: batch_names.SinkIdentity, batch_id: int, mark: bytes) -> list[_Open]:
    """What is open of this batch. ▲ Of the query with this mark alone: another one that writes by the same sink may be
    at a batch of the same number."""
    if not mark:
        return []
    client = client_of(options.url, timeout_s=options.timeout_s)
    found: list[_Open] = []
    for one in client.admin("transactions.list", state="OPEN", limit=MAX_LISTED)["transactions"]:
        if batch_names.is_micro_batch(one["name"] or "", sink, batch_id):
            found += _described(options, str(one["name"]), txn=one["txn"])
    return [one for one in found if has_mark(one.attempt, mark)]


def _described(options: SinkOptions, known_as: str, **asked: str) -> list[_Open]:
    """The one that is `asked` for, if it is open."""
    try:
        found = client_of(options.url, timeout_s=options.timeout_s).admin("transactions.describe", **asked)
    except TxnNotFound:
        return []
    header = found["header"]
    if header is None or header["state"] != "OPEN":
        return []
    return [_Open(known_as, str(found["txn"]), header["attempt"])]


def _abort(options: SinkOptions, run: BatchRun, look: Callable[[], list[_Open]]) -> None:
    """So that readers need not wait for the deadline of what a failed batch has written: what a `look` finds open. More
    than once, for a task that was not killed yet may begin it after its batch has failed.

    ▲ Never what a newer run than the `run` that failed has begun. That one may be why it failed: it has aborted what
    was open, and would be aborted in return, though it is the one that goes on."""
    began = time.monotonic()
    while True:
        try:
            left = look()
        except TxnError as error:
            _log.warning("what a failed batch has left open could not be seen, its deadline aborts it: %s", error)
            return
        for one in left:
            if not run.is_superseded_by(one.attempt):
                _abort_one(options, one.name, one.txn_id)
        if time.monotonic() >= began + STRAGGLERS_S:
            return
        time.sleep(LOOK_S)


def _abort_one(options: SinkOptions, name: str, txn_id: str) -> None:
    txn = client_of(options.url, timeout_s=options.timeout_s).attach(txn_id, name=name)
    try:
        txn.abort()
    except InvalidTxnState:
        _log.warning("%r failed here and is committed, by another run of it: nothing is lost", name)
    except TxnError as error:
        _log.warning("%r (%s) is aborted at its deadline only: %s", name, txn_id, error)
