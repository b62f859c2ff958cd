"""Which errors the calls of this library raise, and what to do about each: one table, error by call. Pure.

docs/client.md shows it, and the docstrings of the calls name the same errors; tests hold all three against each other,
and against the flags of the errors (`retriable`, `requires_abort`, `fatal`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from txnwire.errors import (
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
    WouldBlock,
)


class NextStep(StrEnum):
    """The next step of a program."""

    CALL_AGAIN = "call again"
    """The same call, as it was."""
    ABORT = "abort"
    """`txn.abort()`, then the work again in another transaction; in none: go on without what was asked."""
    BEGIN_AGAIN = "begin again"
    """The transaction is over and counts nothing: the work again in another one."""
    LEAVE = "leave"
    """It is decided as it is: do nothing more about it, and its work not again."""
    STOP = "stop"
    """Repeating cannot help: correct the call, or end what cannot go on."""


Steps = Mapping[type[TxnError], NextStep]

ANY: Final[Steps] = {
    InvalidArgument: NextStep.STOP,
    Unauthorized: NextStep.STOP,
    InternalError: NextStep.STOP,
    Timeout: NextStep.CALL_AGAIN,
    ConnectionLost: NextStep.CALL_AGAIN,
    NotOwner: NextStep.CALL_AGAIN,
    StoreUnavailable: NextStep.CALL_AGAIN,
    Overloaded: NextStep.CALL_AGAIN,
}
"""Errors that every call may raise; at the end of its time it raises the last retriable one that delayed it."""

_NO_TOPIC: Final[Steps] = {TopicNotFound: NextStep.STOP}
_NO_SUBSCRIPTION: Final[Steps] = {**_NO_TOPIC, SubscriptionNotFound: NextStep.STOP}
_IN_USE: Final[Steps] = {NotAllowed: NextStep.STOP, DataCorrupt: NextStep.STOP}
_FENCED: Final[Steps] = {ExpiredTransaction: NextStep.STOP}

CALLS: Final[Mapping[str, Steps]] = {
    "connect": _FENCED,
    "client.create_topic": {TopicExists: NextStep.STOP},
    "client.update_topic": _NO_TOPIC,
    "client.describe_topic": _NO_TOPIC,
    "client.positions_before": _NO_TOPIC,
    "client.lag": _NO_SUBSCRIPTION,
    "client.list_topics": {},
    "client.split": {**_NO_TOPIC, NameNotFound: NextStep.STOP, NotAllowed: NextStep.STOP},
    "client.delete_topic": {**_NO_TOPIC, **_IN_USE},
    "client.delete_subscription": {**_NO_SUBSCRIPTION, **_IN_USE},
    "client.seek_subscription": _NO_SUBSCRIPTION,
    "client.snapshot": _NO_TOPIC,
    "client.begin": {
        StoreFull: NextStep.CALL_AGAIN,
        TooManyNames: NextStep.STOP,
        InvalidTxnState: NextStep.ABORT,
        OutcomeUnknown: NextStep.STOP,
        **_FENCED,
    },
    "client.attach": {},
    "client.transaction_info": {TxnNotFound: NextStep.STOP},
    "client.outcomes": {},
    "client.producer": {**_NO_TOPIC, ProducerFenced: NextStep.STOP, NotAllowed: NextStep.STOP},
    "client.consumer": {**_NO_TOPIC, NotAllowed: NextStep.STOP},
    "client.reader": {**_NO_TOPIC, DataTrimmed: NextStep.STOP},
    "client.watch": _NO_TOPIC,
    "client.read_entries": {**_NO_TOPIC, DataTrimmed: NextStep.STOP, DataCorrupt: NextStep.STOP},
    "client.scan_entries": {**_NO_TOPIC, DataTrimmed: NextStep.STOP, DataCorrupt: NextStep.STOP},
    "client.close": {},
    "transaction.flush": {InvalidTxnState: NextStep.ABORT},
    "transaction.commit": {
        TxnAborted: NextStep.BEGIN_AGAIN,
        TxnTimedOut: NextStep.BEGIN_AGAIN,
        TxnDecided: NextStep.LEAVE,
        InvalidTxnState: NextStep.ABORT,
        TxnNotFound: NextStep.ABORT,
        OutcomeUnknown: NextStep.ABORT,
        **_FENCED,
    },
    "transaction.abort": {TxnNotFound: NextStep.BEGIN_AGAIN, OutcomeUnknown: NextStep.STOP, **_FENCED},
    "transaction.leave": {},
    "producer.send": {
        MessageTooLarge: NextStep.STOP,
        TopicNotFound: NextStep.STOP,
        ProducerFenced: NextStep.STOP,
        NotAllowed: NextStep.STOP,
        TxnConflict: NextStep.ABORT,
        InvalidTxnState: NextStep.ABORT,
        StoreFull: NextStep.CALL_AGAIN,
        OutcomeUnknown: NextStep.STOP,
        **_FENCED,
    },
    "producer.send_nowait": {
        WouldBlock: NextStep.CALL_AGAIN,
        MessageTooLarge: NextStep.STOP,
        InvalidTxnState: NextStep.ABORT,
    },
    "producer.flush": {},
    "producer.close": {},
    "consumer.receive": {**_NO_SUBSCRIPTION, DataCorrupt: NextStep.STOP},
    "consumer.ack": {
        NotAllowed: NextStep.ABORT,
        TxnConflict: NextStep.ABORT,
        InvalidTxnState: NextStep.ABORT,
        **_FENCED,
    },
    "consumer.nack": {NotAllowed: NextStep.ABORT},
    "consumer.seek": _NO_SUBSCRIPTION,
    "consumer.pause": {},
    "consumer.resume": {},
    "consumer.lag": _NO_SUBSCRIPTION,
    "consumer.positions": _NO_SUBSCRIPTION,
    "consumer.unsubscribe": _IN_USE,
    "consumer.close": {},
    "reader.receive": {**_NO_TOPIC, DataTrimmed: NextStep.STOP, DataCorrupt: NextStep.STOP},
    "reader.positions": {},
    "reader.seek": _NO_TOPIC,
    "reader.close": {},
}
"""Errors of one call besides `ANY`. In a transaction every error of a send or an ack but `TxnAborted` and what is fatal
means ABORT, whatever stands here: the transaction can only abort."""

AS_OTHERS: Final[Mapping[str, tuple[str, ...]]] = {
    "client.merge": ("client.split",),
    "client.transaction": ("client.begin", "transaction.commit"),
    "transaction.flush": ("producer.send", "consumer.ack"),
    "transaction.commit": ("producer.send", "consumer.ack"),
    "producer.send_many": ("producer.send",),
    "producer.flush": ("producer.send",),
    "producer.close": ("producer.send",),
    "consumer.receive_many": ("consumer.receive",),
    "consumer.ack_cumulative": ("consumer.ack",),
    "consumer.transaction": ("client.begin", "consumer.ack", "transaction.commit"),
    "reader.receive_many": ("reader.receive",),
}
"""Calls that raise what other calls do, also those that were made before: a flush raises the failure of a send."""


def rows() -> list[str]:
    """The table as docs/client.md shows it."""
    shown = [_row(call, errors) for call, errors in CALLS.items()]
    return shown + [_row(call, {}) for call in AS_OTHERS if call not in CALLS]


def _row(call: str, errors: Steps) -> str:
    parts = [
        f"{step}: {', '.join(f'`{error.__name__}`' for error in errors if errors[error] is step)}"
        for step in NextStep
        if step in errors.values()
    ]
    if call in AS_OTHERS:
        parts.append(f"as {', '.join(f'`{other}`' for other in AS_OTHERS[call])}")
    return f"| `{call}` | {'; '.join(parts)} |" if parts else f"| `{call}` | |"
