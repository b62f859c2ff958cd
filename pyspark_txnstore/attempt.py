"""One task attempt of a write: a writer of the batch's transaction, from its first row on to its flush."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import txnclient.sync
from pyspark_txnstore.options import SinkOptions
from pyspark_txnstore.outgoing_rows import by_topic, runs_of
from pyspark_txnstore.process_client import client_of
from pyspark_txnstore.winners import Written
from txnclient.transaction import TransactionState
from txnwire.entry import Columns
from txnwire.errors import InvalidTxnState, TopicNotFound, TxnConflict, TxnError
from txnwire.names import TopicName
from txnwire.protocol import MAX_VALUE_BYTES

if TYPE_CHECKING:
    import pyarrow as pa


_log = logging.getLogger("pyspark_txnstore")


class Attempt:
    def __init__(self, options: SinkOptions, name: str) -> None:
        """`name`: of the transaction."""
        self._options = options
        self._name = name
        self._txn: txnclient.sync.Transaction | None = None
        self._committed = False
        self._rows = 0

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Send all rows in the transaction and flush. It is begun with the first row: no row, no transaction.

        ▲ All rows are taken even where none is sent any more: stateful operators before this one keep their state for
        the next batch only once they have been read to their end."""
        for batch in batches:
            if batch.num_rows and not self._committed:
                messages = list(by_topic(batch, self._options.topic))  # wrong rows begin nothing
                self._guarded(partial(self._send, messages))
                self._rows += batch.num_rows
        if self._txn is None:
            return Written(self._name)
        self._guarded(lambda txn: txn.flush())
        return Written(
            self._name,
            txn_id=str(self._txn.id),
            writer_id=self._txn.writer_id,
            rows=0 if self._committed else self._rows,
            committed=self._committed,
        )

    def _guarded(self, work: Callable[[txnclient.sync.Transaction], None]) -> None:
        """Do something in the transaction, unless it has committed: before this attempt came, or under it."""
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
        client = client_of(self._options.url, timeout_s=self._options.timeout_s)
        return client.begin(name=self._name, timeout=self._options.transaction_timeout_ms / 1000)

    def _has_committed(self, txn: txnclient.sync.Transaction, error: TxnError) -> bool:
        """Whether another run has committed the batch meanwhile, so that this attempt need not go on; raises what is
        behind `error` otherwise. ▲ The coordinators are asked: an error of a send tells that it ended, not how."""
        client = client_of(self._options.url, timeout_s=self._options.timeout_s)
        (outcome,) = client.outcomes([txn.id]).values()
        if outcome == "COMMITTED":
            return True
        if outcome == "ABORTED":
            raise InvalidTxnState(
                f"the transaction {txn.id} of {self._name!r} was aborted while its rows were written, at its deadline "
                f"of {self._options.transaction_timeout_ms} ms (option transactionTimeoutMs) or by an operator: run "
                "the batch again"
            ) from error
        raise error

    def _send(self, messages: list[tuple[str, Columns]], txn: txnclient.sync.Transaction) -> None:
        for topic, columns in messages:
            producer = producer_of(self._options, topic)
            for part in runs_of(columns, MAX_VALUE_BYTES):
                if isinstance(part, Columns):
                    producer.send_many(part, txn=txn)
                else:
                    producer.send(**part._asdict(), txn=txn, chunk=True)


_producers: dict[tuple[txnclient.sync.Client, str], txnclient.sync.Producer[bytes]] = {}


def producer_of(options: SinkOptions, topic: str) -> txnclient.sync.Producer[bytes]:
    """The process' producer to a topic, kept from task to task: brokers remember each producer they have seen.

    Raises `TopicNotFound`: the sink creates none, for nobody could tell how many segments it is to have."""
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
    """Those that may have failed: the next attempt begins with others."""
    client = client_of(options.url, timeout_s=options.timeout_s)
    for key in [key for key in _producers if key[0] is client]:
        producer = _producers.pop(key)
        try:
            producer.close()
        except TxnError as error:
            _log.debug("%r: %s", producer, error)  # what failed in it was told where it was sent
