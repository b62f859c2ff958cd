"""The Python client of txnstore: transactions over streams.

    async with txnclient.connect("txn://127.0.0.1:6650") as client:
        producer = await client.producer("topic://public/default/orders")
        async with client.transaction() as txn:
            await producer.send(b"...", txn=txn)

Everything here is asynchronous and belongs to the event loop it was opened in. Every call is bounded by the client's
timeout or its own; everything opened is an async context manager and has `close()`, which always terminates.

The library logs through `logging`, to the logger `txnclient` and those below it, and never prints.
"""

import logging

from txnclient.client import Client, connect
from txnclient.consumer import Consumer
from txnclient.entries import WholeEntry
from txnclient.entry_heads import EntryHead, WholeHeads
from txnclient.handlers import Output
from txnclient.message import Message
from txnclient.processing import ProcessStatistics, process, process_batches
from txnclient.producer import Producer
from txnclient.reader import EndOfStream, Reader
from txnclient.serializers import Serializer
from txnclient.snapshot import SegmentBounds, Snapshot, TopicBounds
from txnclient.topic_layout import SegmentInfo, TopicLayout
from txnclient.transaction import CommitResult, Transaction, TransactionState
from txnclient.watch import Watch
from txnwire.entry import Columns, OutgoingMessage
from txnwire.errors import (
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
    TopicExists,
    TopicNotFound,
    TxnConflict,
    TxnError,
    TxnNotFound,
    Unauthorized,
    UndecodableMessage,
    WouldBlock,
)
from txnwire.ids import MessageId, Position, TxnId

logging.getLogger("txnclient").addHandler(logging.NullHandler())

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
    "Message",
    "MessageId",
    "MessageTooLarge",
    "NameNotFound",
    "NotAllowed",
    "NotOwner",
    "OutcomeUnknown",
    "OutgoingMessage",
    "Output",
    "Overloaded",
    "Position",
    "ProcessStatistics",
    "Producer",
    "ProducerFenced",
    "Reader",
    "SegmentBounds",
    "SegmentInfo",
    "SegmentSealed",
    "SequenceGap",
    "Serializer",
    "ServiceError",
    "Snapshot",
    "StoreFull",
    "StoreUnavailable",
    "SubscriptionNotFound",
    "Timeout",
    "TopicBounds",
    "TopicExists",
    "TopicLayout",
    "TopicNotFound",
    "Transaction",
    "TransactionState",
    "TxnConflict",
    "TxnError",
    "TxnId",
    "TxnNotFound",
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
