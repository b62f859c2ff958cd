"""The sink: each micro-batch, or each `df.write`, is one named transaction with a writer for each task attempt.

Source: DESIGN §10. Every attempt begins the batch's name, so all join one transaction. It sends its rows, flushes, and
reports transaction and writer to the driver. The driver commits that transaction with the attempts that Spark let win:
one decision, however many tasks. Rows of other attempts (retried, speculative, or of a dead driver) never become
visible. A batch that runs again after its commit finds it and writes nothing.
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
"""How long a commit is repeated until its outcome is known; then the batch runs again."""

STRAGGLERS_S = 3.0
"""How long after a failed batch the transactions of its tasks are aborted. Spark reports the failure with the first
failed task; the others still run until it has killed them, which takes `spark.python.task.killTimeout`, 2 s."""

LOOK_S = 0.4
"""Pause between two looks for such a transaction."""

MAX_LISTED = 10_000
"""Open transactions searched for those of a failed batch."""

_log = logging.getLogger("pyspark_txnstore")


class StreamSink(DataSourceStreamArrowWriter):
    """The sink of a streaming query. Spark makes one for the tasks of each run of a batch, which carries that run to
    them, and others, elsewhere, for each commit."""

    def __init__(self, options: SinkOptions, sink: batch_names.SinkIdentity, mark: bytes = b"") -> None:
        """`sink`: names its transactions. `mark`: marks the transactions of this query (`runs.mark_of`)."""
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
        """If no task has reported the batch's name, its transaction is searched among the open ones.

        ▲ Then its run is unknown, too. It is older than this sink's run, which begins with the abort: the query may
        restart before the abort is over."""
        written = told(messages)
        if written is None:
            _abort(self._options, self._run, partial(_open_of_batch, self._options, self._sink, batchId, self._mark))
        else:
            run = BatchRun(written.run) if written.run else self._run
            _abort(self._options, run, partial(_open_one, self._options, written.name))


class BatchSink(DataSourceArrowWriter):
    """The sink of one `df.write`; one transaction makes it visible as a whole."""

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
    """`mark`: as in `StreamSink`. Raises `InvalidArgument`."""
    if overwrite:
        raise InvalidArgument("outputMode('complete') would replace the messages of the topic: use 'append'")
    check_schema(schema, options.topic)
    return StreamSink(options, batch_names.stream_sink(options.sink_name, options.topic), mark)


def batch_sink(options: SinkOptions, schema: StructType, *, overwrite: bool) -> BatchSink:
    """Raises `InvalidArgument`."""
    if overwrite:
        raise InvalidArgument("mode('overwrite') would replace the messages of the topic: use mode('append')")
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
    """`repeatable`: a repeat of the write uses this name again.

    ▲ Commits exactly the transaction that the winners named. A transaction that is committed already will do: it has
    this batch's name, so it holds this batch's rows, once."""
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
                f"the transaction {commit.txn_id} of {commit.name!r} is {state}, its rows do not count: run the batch "
                f"again, and raise transactionTimeoutMs if batches take longer than that ({error})"
            ) from error
        _leave_out(options, commit.name, commit.content)
    except (Timeout, OutcomeUnknown) as error:
        error.add_note(advice(commit.name, repeatable=repeatable))
        raise


def _leave_out(options: SinkOptions, name: str, content: Content) -> None:
    """▲ Always logs, and accepts only the rows that are committed: for other rows it raises `InvalidTxnState`."""
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
    """Note of the commit under the name; None if it has none or is forgotten."""
    try:
        found = client_of(options.url, timeout_s=options.timeout_s).admin("transactions.describe", name=name)
    except TxnNotFound:
        return None
    note: str | None = found.get("note")  # ▲ servers of earlier versions send none
    return note


def _committed_as(options: SinkOptions, former: str) -> bool:
    """Whether an earlier version of this package has committed the batch under its own name for it. ▲ That version's
    driver may have died between its commit and Spark's: the batch would be written twice. Its open transaction is
    aborted before this run commits, because its commit may still be on its way. ▲ A commit with a write's note is
    from this version, which gave another write that name."""
    try:
        found = client_of(options.url, timeout_s=options.timeout_s).admin("transactions.describe", name=former)
    except TxnNotFound:
        return False
    if found["outcome"] in ("COMMITTED", "ABORTED"):
        return found["outcome"] == "COMMITTED" and Content.parse(found.get("note")) is None
    if found["outcome"] != "OPEN":
        raise OutcomeUnknown(f"whether an earlier version has committed {former!r} is not known any more")
    return client_of(options.url, timeout_s=options.timeout_s).attach(found["txn"], name=former).abort() == "COMMITTED"


def _state_of(options: SinkOptions, txn_id: str) -> str:
    (state,) = client_of(options.url, timeout_s=options.timeout_s).outcomes([txn_id]).values()
    return state


class _OpenTransaction(NamedTuple):
    """An open transaction. `attempt`: the attempt it was begun under, in hex."""

    name: str
    txn_id: str
    attempt: str


def _open_one(options: SinkOptions, name: str) -> list[_OpenTransaction]:
    """The open transaction under the name."""
    return _described(options, name, name=name)


def _open_of_batch(
    options: SinkOptions, sink: batch_names.SinkIdentity, batch_id: int, mark: bytes
) -> list[_OpenTransaction]:
    """The open transaction of this batch. ▲ Only of the query with this mark: another query with the same sink may be
    at a batch of the same number."""
    if not mark:
        return []
    client = client_of(options.url, timeout_s=options.timeout_s)
    found: list[_OpenTransaction] = []
    for one in client.admin("transactions.list", state="OPEN", limit=MAX_LISTED)["transactions"]:
        if batch_names.is_micro_batch(one["name"] or "", sink, batch_id):
            found += _described(options, str(one["name"]), txn=one["txn"])
    return [one for one in found if has_mark(one.attempt, mark)]


def _described(options: SinkOptions, known_as: str, **asked: str) -> list[_OpenTransaction]:
    """Returns the `asked` one, if it is open."""
    try:
        found = client_of(options.url, timeout_s=options.timeout_s).admin("transactions.describe", **asked)
    except TxnNotFound:
        return []
    header = found["header"]
    if header is None or header["state"] != "OPEN":
        return []
    return [_OpenTransaction(known_as, str(found["txn"]), header["attempt"])]


def _abort(options: SinkOptions, run: BatchRun, look: Callable[[], list[_OpenTransaction]]) -> None:
    """Aborts what `look` finds open, so that readers need not wait for a failed batch's deadline. Repeats this, because
    a task not yet killed may begin the transaction after its batch has failed.

    ▲ Never aborts the transaction of a run newer than the failed `run`. The newer run may have caused the failure by
    aborting the older transaction; it is the one that goes on."""
    began = time.monotonic()
    while True:
        try:
            left = look()
        except TxnError as error:
            _log.warning("the open transaction of a failed batch was not found, its deadline aborts it: %s", error)
            return
        for one in left:
            if not run.is_superseded_by(one.attempt):
                _abort_one(options, one.name, one.txn_id)
        if time.monotonic() >= began + STRAGGLERS_S:
            return
        time.sleep(LOOK_S)


def _abort_one(options: SinkOptions, name: str, txn_id: str) -> None:
    try:
        # ▲ Attaching, too, may go unanswered: the other transactions of the batch are to be aborted all the same.
        txn = client_of(options.url, timeout_s=options.timeout_s).attach(txn_id, name=name)
        if txn.abort() == "COMMITTED":
            _log.warning("%r failed here and is committed, by another run of it: nothing is lost", name)
    except TxnError as error:
        _log.warning("%r (%s) is aborted at its deadline only: %s", name, txn_id, error)
