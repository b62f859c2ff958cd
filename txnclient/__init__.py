"""The Python client of txnstore: transactions over streams.

    async with txnclient.connect("txn://127.0.0.1:6650") as client:
        producer = await client.producer("topic://public/default/orders")
        async with client.transaction() as txn:
            await producer.send(b"...", txn=txn)

Everything here is asynchronous and belongs to the event loop it was opened in. Every call is bounded by the client's
timeout or its own; everything opened is an async context manager and has `close()`, which always terminates.

A public class documents its calls and hands them to its implementation: `Producer` to `ProducerImpl`, which the other
parts of the client reach by `producer_impl(producer)`. So completion and help show what applications use.

The library logs through `logging`, to the logger `txnclient` and those below it, and never prints.

Decides which calls are repeated and which errors a caller gets. Imports `txnwire` alone. Begin with `client`, then the
rooms `connection`, `transactions`, `producing`, `consuming` and `reading`.
"""

import logging

from txnclient.client import Client, connect
from txnclient.connection.topic_layout import SegmentInfo, TopicLayout
from txnclient.consuming.consumer import Consumer
from txnclient.consuming.places.lag import Lag, SegmentLag
from txnclient.consuming.places.positions import NextMessage, Positions, TopicPositions
from txnclient.consuming.received.message import Message
from txnclient.handlers import Output
from txnclient.processing import ProcessStatistics, process, process_batches
from txnclient.producing.producer import Producer
from txnclient.reading.entries import WholeEntry
from txnclient.reading.entry_heads import EntryHead, WholeHeads
from txnclient.reading.reader import EndOfStream, Reader
from txnclient.reading.snapshot import SegmentBounds, Snapshot, TopicBounds
from txnclient.reading.watch import Watch
from txnclient.serializers import Serializer
from txnclient.transactions.transaction import CommitResult, Transaction, TransactionState
from txnwire.entry import Columns, OutgoingMessage
from txnwire.errors import (
    ERRORS,
    CallerError,
    ConnectionLost,
    DataCorrupt,
    DataTrimmed,
    ExpiredTransaction,
    InternalError,
    InvalidArgument,
    InvalidTxnState,
    MessageTooLarge,
    NameNotFound,
    NotAllowed,
    NotOwner,
    OutcomeUnknown,
    Overloaded,
    ProducerFenced,
    SegmentSealed,
    SequenceGap,
    ServiceError,
    StoreFull,
    StoreUnavailable,
    SubscriptionNotFound,
    Timeout,
    TooManyNames,
    TopicExists,
    TopicNotFound,
    TxnAborted,
    TxnConflict,
    TxnDecided,
    TxnError,
    TxnNotFound,
    TxnTimedOut,
    Unauthorized,
    UndecodableMessage,
    WouldBlock,
)
from txnwire.ids import MessageId, Position, TxnId

logging.getLogger("txnclient").addHandler(logging.NullHandler())

for _error in (TxnError, CallerError, ServiceError, *ERRORS, EndOfStream):
    _error.__module__ = "txnclient"  # tracebacks show what an application imports and catches

__all__ = [
    "CallerError",
    "Client",
    "Columns",
    "CommitResult",
    "ConnectionLost",
    "Consumer",
    "DataCorrupt",
    "DataTrimmed",
    "EndOfStream",
    "EntryHead",
    "ExpiredTransaction",
    "InternalError",
    "InvalidArgument",
    "InvalidTxnState",
    "Lag",
    "Message",
    "MessageId",
    "MessageTooLarge",
    "NameNotFound",
    "NextMessage",
    "NotAllowed",
    "NotOwner",
    "OutcomeUnknown",
    "OutgoingMessage",
    "Output",
    "Overloaded",
    "Position",
    "Positions",
    "ProcessStatistics",
    "Producer",
    "ProducerFenced",
    "Reader",
    "SegmentBounds",
    "SegmentInfo",
    "SegmentLag",
    "SegmentSealed",
    "SequenceGap",
    "Serializer",
    "ServiceError",
    "Snapshot",
    "StoreFull",
    "StoreUnavailable",
    "SubscriptionNotFound",
    "Timeout",
    "TooManyNames",
    "TopicBounds",
    "TopicExists",
    "TopicLayout",
    "TopicNotFound",
    "TopicPositions",
    "Transaction",
    "TransactionState",
    "TxnAborted",
    "TxnConflict",
    "TxnDecided",
    "TxnError",
    "TxnId",
    "TxnNotFound",
    "TxnTimedOut",
    "Unauthorized",
    "UndecodableMessage",
    "Watch",
    "WholeEntry",
    "WholeHeads",
    "WouldBlock",
    "connect",
    "process",
    "process_batches",
]
