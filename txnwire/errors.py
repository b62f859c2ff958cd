"""Every error that crosses a face of txnstore, as one tree, and its mapping to and from the wire.

    TxnError
    ├── CallerError                 the request itself is wrong, or comes too late; repeating it cannot help
    │   ├── InvalidArgument         a malformed name, id, option or frame
    │   │   ├── DataTrimmed         retention has deleted requested messages
    │   │   └── NameNotFound        there is no such segment of the topic, or no such transaction key
    │   ├── MessageTooLarge
    │   ├── Unauthorized
    │   ├── NotAllowed              not the holder: a stale assignment or key epoch
    │   ├── TopicNotFound
    │   ├── TopicExists             with another shape
    │   ├── SubscriptionNotFound
    │   ├── TxnNotFound             an id that was never given out
    │   ├── InvalidTxnState         the call does not fit the transaction's state
    │   │   ├── ExpiredTransaction  it was fenced by a newer holder of its transaction key
    │   │   ├── TxnDecided          it has committed already, and otherwise than requested
    │   │   └── TxnAborted          another party has aborted it: do the work again in another one
    │   │       └── TxnTimedOut     its own timeout has passed
    │   ├── TxnConflict             the operation and the transaction exclude each other: abort it
    │   ├── ProducerFenced          a newer producer of the same name has connected
    │   ├── SequenceGap             a send does not follow its named predecessor
    │   ├── WouldBlock              a `_nowait` call found its buffer full
    │   └── UndecodableMessage      a stored value is not what the reader's serializer expects
    └── ServiceError                the system could not do it
        ├── NotOwner                retriable: look up the owner again
        ├── SegmentSealed           retriable elsewhere: the layout has moved on
        ├── StoreUnavailable        retriable: definitely not applied; etcd, or a broker's disk, which names the file
        ├── StoreFull               retriable: above etcd's soft limit, or the ledgers' disk is full
        ├── Overloaded              retriable: a bound was reached
        ├── TooManyNames            a namespace has as many transaction names as it may; it lasts, so not retriable
        ├── ConnectionLost          retriable: the fate of unanswered requests is unknown
        ├── Timeout                 retriable: the fate of the request is unknown
        ├── OutcomeUnknown          the outcome is no longer, or not yet, known
        ├── DataCorrupt             an acknowledged byte is not what was written; names file and offset
        └── InternalError           a bug, or an unexpected answer

`retriable`: repeating the same call may succeed. `fatal`: this client, producer or consumer object cannot go on; some
classes are always fatal, others only after `for_good`.
`requires_abort`: the call's transaction must be aborted; then do the work again in another one.
"""

from __future__ import annotations

from typing import ClassVar, Final, TypeVar

import grpc

from txnwire.proto import txn_pb2 as pb


class TxnError(Exception):
    """Base of every error raised across a face. `str(error)` says what was expected, what was found, what to do."""

    code: ClassVar[pb.ErrorCode] = pb.ERROR_CODE_INTERNAL
    grpc_status: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    retriable: bool = False
    fatal: bool = False
    requires_abort: bool = False

    @property
    def message(self) -> str:
        return str(self)


class CallerError(TxnError):
    code = pb.ERROR_CODE_INVALID_ARGUMENT
    grpc_status = grpc.StatusCode.INVALID_ARGUMENT


class InvalidArgument(CallerError, ValueError):
    pass


class DataTrimmed(InvalidArgument):
    """Part of a requested snapshot or range of positions is deleted. It names the position after which the rest
    begins."""

    code = pb.ERROR_CODE_DATA_TRIMMED
    grpc_status = grpc.StatusCode.OUT_OF_RANGE


class NameNotFound(InvalidArgument):
    """A well-formed name of a segment or transaction key that does not exist."""

    code = pb.ERROR_CODE_NAME_NOT_FOUND
    grpc_status = grpc.StatusCode.NOT_FOUND


class MessageTooLarge(CallerError):
    code = pb.ERROR_CODE_MESSAGE_TOO_LARGE
    grpc_status = grpc.StatusCode.OUT_OF_RANGE


class Unauthorized(CallerError):
    code = pb.ERROR_CODE_UNAUTHORIZED
    grpc_status = grpc.StatusCode.PERMISSION_DENIED
    fatal = True


class NotAllowed(CallerError):
    """The caller is not the holder. Not fatal: a consumer that has lost one segment to another keeps the
    others."""

    code = pb.ERROR_CODE_NOT_ALLOWED
    grpc_status = grpc.StatusCode.FAILED_PRECONDITION
    requires_abort = True


class TopicNotFound(CallerError):
    code = pb.ERROR_CODE_TOPIC_NOT_FOUND
    grpc_status = grpc.StatusCode.NOT_FOUND


class TopicExists(CallerError):
    code = pb.ERROR_CODE_TOPIC_EXISTS
    grpc_status = grpc.StatusCode.ALREADY_EXISTS


class SubscriptionNotFound(CallerError):
    code = pb.ERROR_CODE_SUBSCRIPTION_NOT_FOUND
    grpc_status = grpc.StatusCode.NOT_FOUND


class TxnNotFound(CallerError):
    code = pb.ERROR_CODE_TXN_NOT_FOUND
    grpc_status = grpc.StatusCode.NOT_FOUND
    requires_abort = True


class InvalidTxnState(CallerError):
    code = pb.ERROR_CODE_INVALID_TXN_STATE
    grpc_status = grpc.StatusCode.FAILED_PRECONDITION
    requires_abort = True


class ExpiredTransaction(InvalidTxnState):
    code = pb.ERROR_CODE_EXPIRED_TRANSACTION
    grpc_status = grpc.StatusCode.FAILED_PRECONDITION
    fatal = True
    requires_abort = False  # its client can do nothing any more


class TxnDecided(InvalidTxnState):
    """Raised by clients, never on the wire: the transaction has committed, with other writers or another note than
    requested, or although it was to be aborted. Do not do its work again."""

    requires_abort = False


class TxnAborted(InvalidTxnState):
    """Raised by clients, never on the wire: another client, an operator or the service has aborted the transaction."""

    requires_abort = True


class TxnTimedOut(TxnAborted):
    """The service has aborted the transaction because its own timeout had passed."""


class TxnConflict(CallerError):
    code = pb.ERROR_CODE_TXN_CONFLICT
    grpc_status = grpc.StatusCode.ABORTED
    requires_abort = True


class ProducerFenced(CallerError):
    code = pb.ERROR_CODE_PRODUCER_FENCED
    grpc_status = grpc.StatusCode.FAILED_PRECONDITION
    fatal = True


class SequenceGap(CallerError):
    code = pb.ERROR_CODE_SEQUENCE_GAP
    grpc_status = grpc.StatusCode.FAILED_PRECONDITION


class WouldBlock(CallerError):
    code = pb.ERROR_CODE_WOULD_BLOCK
    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED


class UndecodableMessage(CallerError):
    """A value that the serializer cannot decode. Never crosses the wire: reading `message.value` raises it."""

    code = pb.ERROR_CODE_UNDECODABLE_MESSAGE
    grpc_status = grpc.StatusCode.INVALID_ARGUMENT


class ServiceError(TxnError):
    pass


class NotOwner(ServiceError):
    code = pb.ERROR_CODE_NOT_OWNER
    grpc_status = grpc.StatusCode.UNAVAILABLE
    retriable = True


class SegmentSealed(ServiceError):
    code = pb.ERROR_CODE_SEGMENT_SEALED
    grpc_status = grpc.StatusCode.FAILED_PRECONDITION
    retriable = True


class StoreUnavailable(ServiceError):
    code = pb.ERROR_CODE_STORE_UNAVAILABLE
    grpc_status = grpc.StatusCode.UNAVAILABLE
    retriable = True


class StoreFull(ServiceError):
    code = pb.ERROR_CODE_STORE_FULL
    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED
    retriable = True


class Overloaded(ServiceError):
    code = pb.ERROR_CODE_OVERLOADED
    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED
    retriable = True


class TooManyNames(ServiceError):
    """The namespace of a new transaction name is full. Names already begun can be joined and ended. Earlier clients
    raise `InternalError` with this message."""

    code = pb.ERROR_CODE_TOO_MANY_NAMES
    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED


class ConnectionLost(ServiceError):
    code = pb.ERROR_CODE_CONNECTION_LOST
    grpc_status = grpc.StatusCode.UNAVAILABLE
    retriable = True


class Timeout(ServiceError, TimeoutError):
    code = pb.ERROR_CODE_TIMEOUT
    grpc_status = grpc.StatusCode.DEADLINE_EXCEEDED
    retriable = True


class OutcomeUnknown(ServiceError):
    code = pb.ERROR_CODE_OUTCOME_UNKNOWN
    grpc_status = grpc.StatusCode.UNKNOWN


class DataCorrupt(ServiceError):
    code = pb.ERROR_CODE_DATA_CORRUPT
    grpc_status = grpc.StatusCode.DATA_LOSS
    fatal = True


class InternalError(ServiceError):
    code = pb.ERROR_CODE_INTERNAL
    grpc_status = grpc.StatusCode.INTERNAL


def _leaves(cls: type[TxnError]) -> list[type[TxnError]]:
    found = [] if cls in (TxnError, CallerError, ServiceError) else [cls]
    for child in cls.__subclasses__():
        found += _leaves(child)
    return found


ERRORS: Final = tuple(_leaves(TxnError))
"""All classes that are raised, bases first."""

ERRORS_BY_CODE: dict[int, type[TxnError]] = {cls.code: cls for cls in reversed(ERRORS)}
"""A class without a code of its own crosses the wire as its base."""

_FALLBACK_BY_STATUS: dict[grpc.StatusCode, type[TxnError]] = {
    grpc.StatusCode.UNAVAILABLE: ConnectionLost,
    grpc.StatusCode.CANCELLED: ConnectionLost,
    grpc.StatusCode.DEADLINE_EXCEEDED: Timeout,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAUTHENTICATED: Unauthorized,
    grpc.StatusCode.PERMISSION_DENIED: Unauthorized,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.DATA_LOSS: DataCorrupt,
}


MAX_MESSAGE: Final = 10_000
"""Most characters of an error's message, which may quote a peer's input."""


E = TypeVar("E", bound=TxnError)


def again(error: E) -> E:
    """A copy of a kept `error`, to raise. Raising one object repeatedly would grow its traceback each time and keep all
    its frames alive."""
    copy = type(error)(*error.args)
    copy.__dict__.update(error.__dict__)
    copy.__dict__.pop("__notes__", None)
    for note in getattr(error, "__notes__", ()):
        copy.add_note(note)
    if error.__cause__ is not None:
        copy.__cause__ = error.__cause__
    return copy


def for_good(error: E) -> E:
    """As `again`, for an object that cannot go on: none of its calls will succeed."""
    copy = again(error)
    copy.retriable, copy.fatal = False, True
    return copy


def to_wire(error: BaseException) -> pb.Error:
    """The wire form of any exception; one that is not a `TxnError` becomes INTERNAL and names its type."""
    if isinstance(error, TxnError):
        return pb.Error(code=error.code, message=str(error)[:MAX_MESSAGE])
    if isinstance(error, TimeoutError):
        return pb.Error(code=Timeout.code, message=str(error) or "timed out in the server")
    return pb.Error(code=InternalError.code, message=f"{type(error).__name__}: {error}"[:MAX_MESSAGE])


def from_wire(error: pb.Error) -> TxnError:
    """The exception for a wire error; a code this version does not know becomes `InternalError` and says so."""
    cls = ERRORS_BY_CODE.get(error.code)
    if cls is None:
        return InternalError(f"error code {error.code} is unknown to this version: {error.message}")
    return cls(error.message)


def from_grpc(status: grpc.StatusCode, details: str | None) -> TxnError:
    """The exception for a call that ended with a gRPC status instead of a `pb.Error`."""
    return _FALLBACK_BY_STATUS.get(status, InternalError)(f"{status.name}: {details or 'no details'}")
