"""One task attempt of a write: one writer of the batch's transaction, from its first row to its flush."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Final

import txnclient.sync
from pyspark_txnstore.shared.options import SinkOptions
from pyspark_txnstore.shared.process_client import client_of
from pyspark_txnstore.sink.batch_names import KEPT, BatchName
from pyspark_txnstore.sink.content import NOTHING, content_of, total
from pyspark_txnstore.sink.outgoing_rows import by_topic, gathered, runs_of
from pyspark_txnstore.sink.runs import BatchRun
from pyspark_txnstore.sink.winners import Written
from txnclient.transactions.transaction import TransactionState
from txnwire.entry import Columns
from txnwire.errors import InvalidTxnState, TopicNotFound, TxnConflict, TxnError, TxnNotFound
from txnwire.names import TopicName
from txnwire.protocol import MAX_VALUE_BYTES

if TYPE_CHECKING:
    import pyarrow as pa


TOPICS_AT_ONCE: Final = 32
"""Concurrent sends of one task: most of a send is waiting."""

MAX_SUPERSEDED: Final = 100
"""The most older runs that one attempt aborts; then it joins the run that it finds. Restarts start no more runs."""

_log = logging.getLogger("pyspark_txnstore")


class Attempt:
    def __init__(self, options: SinkOptions, name: BatchName, run: BatchRun, task_attempt: int) -> None:
        """`name`: of the transaction. `task_attempt`: Spark's number, unique to each attempt of the run."""
        self._options = options
        self._name = name.text
        self._keep_newest = name.keep_newest
        self._former = name.former
        self._run = run
        self._writer_id = _given_once(run.writer_id(task_attempt))
        self._txn: txnclient.sync.Transaction | None = None
        self._committed = False
        self._content = NOTHING

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Sends all rows in the transaction and flushes. The first row begins it: no row, no transaction.

        ▲ Takes all rows even when it sends no more: upstream stateful operators save their state only once read to
        their end, and the rows are compared with the committed ones."""
        for batch in gathered(batches):
            messages = list(by_topic(batch, self._options.topic))  # wrong rows begin nothing
            self._guarded(partial(self._send, messages))
            self._content = total((self._content, content_of(messages)))
        if self._txn is None:
            return Written(self._name, former=self._former, run=self._run.stamp)
        self._guarded(lambda txn: txn.flush())
        return Written(
            self._name,
            former=self._former,
            txn_id=str(self._txn.id),
            writer_id=self._txn.writer_id,
            content=self._content,
            committed=self._committed,
            run=self._run.stamp,
        )

    def _guarded(self, work: Callable[[txnclient.sync.Transaction], None]) -> None:
        """Runs an action in the transaction, unless the transaction has committed, before or meanwhile."""
        if self._committed:
            return
        if self._txn is None:
            self._txn = self._begin()
            if self._txn.state is TransactionState.COMMITTED:
                self._committed = True
                return
        try:
            work(self._txn)
        except BaseException as error:
            drop_producers(self._options)
            if not isinstance(error, (TxnConflict, InvalidTxnState)):
                raise
            self._committed = self._has_committed(self._txn, error)

    def _begin(self) -> txnclient.sync.Transaction:
        """Returns what this run has begun or now begins, a newer run's transaction, or the committed one."""
        for _ in range(MAX_SUPERSEDED):
            txn = self._join()
            if not txn.joined or txn.state is TransactionState.COMMITTED or not self._gives_up(txn):
                return txn
        return self._join()

    def _join(self) -> txnclient.sync.Transaction:
        client = client_of(self._options.url, timeout_s=self._options.timeout_s)
        timeout_s = self._options.transaction_timeout_ms / 1000
        return client.begin(
            name=self._name,
            timeout=timeout_s,
            keep=KEPT,
            keep_newest=self._keep_newest,
            attempt=self._run.stamp,
            writer_id=self._writer_id,
        )

    def _gives_up(self, txn: txnclient.sync.Transaction) -> bool:
        """Aborts another run's transaction if that run is older. False: join it.

        ▲ If this attempt joined it, its deadline might pass before the attempt is done. By id: a transaction begun
        meanwhile under the name must stay."""
        client = client_of(self._options.url, timeout_s=self._options.timeout_s)
        try:
            header = client.admin("transactions.describe", txn=str(txn.id))["header"]
        except TxnNotFound:
            header = None
        if header is None or header["state"] != "OPEN":
            return True  # it has ended: begin again to learn its outcome
        if not self._run.supersedes(header["attempt"]):
            return False
        _log.info("%r: %s is an older run's, which this one takes the place of", self._name, txn.id)
        if txn.abort() is TransactionState.COMMITTED:
            _log.info("%r: an older run has committed %s", self._name, txn.id)
        return True

    def _has_committed(self, txn: txnclient.sync.Transaction, error: TxnError) -> bool:
        """Whether another run has committed the batch, so that this attempt need not go on; otherwise raises the cause
        of `error`. ▲ Asks the coordinators: a send's error says that the transaction ended, not how."""
        client = client_of(self._options.url, timeout_s=self._options.timeout_s)
        (outcome,) = client.outcomes([txn.id]).values()
        if outcome == "COMMITTED":
            return True
        if outcome == "ABORTED":
            raise InvalidTxnState(
                f"the transaction {txn.id} of {self._name!r} was aborted while its rows were written, at its deadline "
                f"of {self._options.transaction_timeout_ms} ms (option transactionTimeoutMs), by a newer run of the "
                "batch or by an operator: run the batch again"
            ) from error
        raise error

    def _send(self, messages: list[tuple[str, Columns]], txn: txnclient.sync.Transaction) -> None:
        """Sends to several topics at once, since each send waits until it is stored. ▲ No send is under way when this
        ends: a topic's rows keep their order, and memory holds at most one batch of `gathered`."""
        if len(messages) == 1:
            self._send_to(txn, *messages[0])
            return
        with ThreadPoolExecutor(min(len(messages), TOPICS_AT_ONCE), "txnstore-send") as pool:
            sends: list[Future[None]] = [pool.submit(self._send_to, txn, *one) for one in messages]
            try:
                wait(sends, return_when=FIRST_EXCEPTION)
            finally:
                pool.shutdown(cancel_futures=True)
        for sent in sends:
            if not sent.cancelled():
                sent.result()

    def _send_to(self, txn: txnclient.sync.Transaction, topic: str, columns: Columns) -> None:
        producer = producer_of(self._options, topic)
        for part in runs_of(columns, MAX_VALUE_BYTES):
            if isinstance(part, Columns):
                producer.send_many(part, txn=txn)
            else:
                producer.send(**part._asdict(), txn=txn, chunk=True)


MAX_WRITERS_KEPT: Final = 10_000

_writers: dict[int, None] = {}
"""Ids used by attempts of this process."""


def _given_once(writer_id: int) -> int | None:
    """▲ Two attempts with one id would both count. A task attempt writes once and in one process; a second use of its
    number gets a random id (None)."""
    if writer_id in _writers:
        return None
    _writers[writer_id] = None
    if len(_writers) > MAX_WRITERS_KEPT:
        del _writers[next(iter(_writers))]
    return writer_id


_producers: dict[tuple[txnclient.sync.Client, str], txnclient.sync.Producer[bytes]] = {}


def producer_of(options: SinkOptions, topic: str) -> txnclient.sync.Producer[bytes]:
    """Returns the process' producer to a topic, kept from task to task: brokers remember each producer they have seen.

    Raises `TopicNotFound`: the sink creates no topic, because it does not know how many segments to make."""
    client = client_of(options.url, timeout_s=options.timeout_s)
    producer = _producers.get((client, topic))
    if producer is None:
        try:
            producer = client.producer(str(TopicName.parse(topic)))
        except TopicNotFound as error:
            error.add_note(f"the sink creates no topics: create it first, with `txnctl topics create {topic}`")
            raise
        _producers[client, topic] = producer
    return producer


def drop_producers(options: SinkOptions) -> None:
    """Drops producers that may have failed: the next attempt opens new ones."""
    client = client_of(options.url, timeout_s=options.timeout_s)
    for key in [key for key in _producers if key[0] is client]:
        producer = _producers.pop(key)
        try:
            producer.close()
        except TxnError as error:
            _log.debug("%r: %s", producer, error)  # its sends have reported their errors already
