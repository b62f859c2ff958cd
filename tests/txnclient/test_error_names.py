"""Tracebacks name the errors as applications import them."""

from __future__ import annotations

import pickle
import traceback

import pytest

import txnclient
from txnwire.errors import ERRORS


@pytest.mark.parametrize("name", [name for name in txnclient.__all__ if isinstance(getattr(txnclient, name), type)])
def test_a_public_error_is_named_as_it_is_imported(name: str) -> None:
    found = getattr(txnclient, name)
    if issubclass(found, BaseException):
        told = traceback.format_exception_only(found("why"))[0]
        assert told == f"txnclient.{name}: why\n"
        assert type(pickle.loads(pickle.dumps(found("why")))) is found


def test_every_error_is_public() -> None:
    assert {cls.__name__ for cls in ERRORS} <= set(txnclient.__all__)
