"""The error tree and its mapping to and from the wire and gRPC, both ways, for every error and every code."""

from __future__ import annotations

import grpc
import pytest

from txnwire import errors
from txnwire.errors import (
    ERRORS_BY_CODE,
    CallerError,
    InternalError,
    ServiceError,
    TxnError,
    from_grpc,
    from_wire,
    to_wire,
)
from txnwire.proto import txn_pb2 as pb

ALL = sorted(ERRORS_BY_CODE.values(), key=lambda cls: cls.code)
CODES = [value for value in pb.ErrorCode.values() if value != pb.ERROR_CODE_UNSPECIFIED]


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_error_survives_the_wire(cls: type[TxnError]) -> None:
    back = from_wire(pb.Error.FromString(to_wire(cls("what was found")).SerializeToString()))
    assert type(back) is cls
    assert back.message == "what was found"


@pytest.mark.parametrize("code", CODES, ids=pb.ErrorCode.Name)
def test_every_code_of_the_wire_has_exactly_one_error(code: int) -> None:
    assert [cls for cls in ALL if cls.code == code] == [ERRORS_BY_CODE[code]]


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_error_is_named_after_its_code_and_belongs_to_one_side(cls: type[TxnError]) -> None:
    assert pb.ErrorCode.Name(cls.code).replace("_", "") == f"ERRORCODE{cls.__name__.upper()}".replace(
        "INTERNALERROR", "INTERNAL"
    )
    assert issubclass(cls, CallerError) != issubclass(cls, ServiceError)
    assert (cls.code < 32) == issubclass(cls, CallerError)


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_a_caller_s_fault_is_never_retriable_and_a_fatal_error_never_either(cls: type[TxnError]) -> None:
    assert not (cls.retriable and issubclass(cls, CallerError))
    assert not (cls.retriable and cls.fatal)


RETRIABLE = {
    "NotOwner", "SegmentSealed", "StoreUnavailable", "StoreFull", "Overloaded", "ConnectionLost", "Timeout",
}  # fmt: skip
FATAL = {"Unauthorized", "ExpiredTransaction", "ProducerFenced", "DataCorrupt"}
REQUIRES_ABORT = {"InvalidTxnState", "NotAllowed", "TxnConflict", "TxnNotFound"}


def test_what_may_be_repeated_what_ends_its_object_and_what_aborts() -> None:
    assert {cls.__name__ for cls in ALL if cls.retriable} == RETRIABLE
    assert {cls.__name__ for cls in ALL if cls.fatal} == FATAL
    assert {cls.__name__ for cls in ALL if cls.requires_abort} == REQUIRES_ABORT


def test_a_fenced_transaction_is_an_ended_one_and_a_timeout_is_python_s_too() -> None:
    assert issubclass(errors.ExpiredTransaction, errors.InvalidTxnState)
    assert issubclass(errors.Timeout, TimeoutError)
    assert issubclass(errors.InvalidArgument, ValueError)


def test_a_kept_error_is_raised_as_a_copy_that_says_the_same() -> None:
    kept = errors.Timeout("not done")
    kept.__cause__ = ValueError("why")
    for note in ("and more", "and the rest"):
        kept.add_note(note)
    copies = [errors.again(kept) for _ in range(2)]
    for copy in copies:
        assert (type(copy), str(copy), copy.__cause__) == (errors.Timeout, "not done", kept.__cause__)
        assert copy.__notes__ == ["and more", "and the rest"]
        copy.add_note("of this one alone")
        with pytest.raises(errors.Timeout):
            raise copy
    assert kept.__notes__ == ["and more", "and the rest"]
    assert kept.__traceback__ is None


def test_a_code_of_the_future_says_so() -> None:
    error = from_wire(pb.Error(code=999, message="novel"))  # type: ignore[arg-type]
    assert type(error) is InternalError
    assert "999" in error.message
    assert "novel" in error.message


def test_an_unset_code_is_no_known_error() -> None:
    assert type(from_wire(pb.Error(message="?"))) is InternalError


def test_a_bug_crosses_the_wire_as_internal_with_its_type() -> None:
    assert to_wire(KeyError("x")) == pb.Error(code=pb.ERROR_CODE_INTERNAL, message="KeyError: 'x'")


def test_a_timeout_in_the_server_crosses_as_a_timeout() -> None:
    assert type(from_wire(to_wire(TimeoutError()))) is errors.Timeout
    assert from_wire(to_wire(TimeoutError())).message


def test_an_error_defined_elsewhere_crosses_as_its_nearest_known_kind() -> None:
    class LedgerOfTests(ServiceError):
        pass

    assert type(from_wire(to_wire(LedgerOfTests("x")))) is InternalError


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_the_grpc_status_of_every_error_leads_back_to_its_side(cls: type[TxnError]) -> None:
    """A status alone cannot name the error, but must not turn a retriable one into a final one, or the reverse."""
    back = from_grpc(cls.grpc_status, "details")
    assert isinstance(back, TxnError)
    assert "details" in back.message
    if cls.grpc_status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        assert cls.retriable
        assert back.retriable


@pytest.mark.parametrize("status", list(grpc.StatusCode), ids=lambda status: status.name)
def test_every_grpc_status_has_an_error_that_names_it(status: grpc.StatusCode) -> None:
    assert status.name in from_grpc(status, None).message


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.ConnectionLost),
        (grpc.StatusCode.CANCELLED, errors.ConnectionLost),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.Timeout),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.Overloaded),
        (grpc.StatusCode.UNAUTHENTICATED, errors.Unauthorized),
        (grpc.StatusCode.PERMISSION_DENIED, errors.Unauthorized),
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidArgument),
        (grpc.StatusCode.DATA_LOSS, errors.DataCorrupt),
        (grpc.StatusCode.UNIMPLEMENTED, errors.InternalError),
    ],
)
def test_a_call_that_ended_with_a_status_only(status: grpc.StatusCode, expected: type[TxnError]) -> None:
    assert type(from_grpc(status, None)) is expected
