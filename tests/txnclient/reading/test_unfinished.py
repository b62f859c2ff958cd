"""Reads that have failed: who goes on is told again, and never that nothing follows."""

from __future__ import annotations

from collections.abc import Generator

import pytest

import txnclient
from txnclient.reading.unfinished import UnfinishedSync


@pytest.mark.parametrize("failure", [txnclient.Timeout("nobody answers"), KeyboardInterrupt()], ids=["failed", "left"])
def test_a_read_without_await_that_has_not_come_to_its_end_says_so_again(failure: BaseException) -> None:
    """▲ Else a caller that tries again would take the part that it has for the whole."""

    def items() -> Generator[int, None, None]:
        yield 1
        raise failure

    read = UnfinishedSync(items())
    assert next(read) == 1
    with pytest.raises(type(failure)):
        next(read)
    for _ in range(2):
        with pytest.raises(txnclient.TxnError) as again:
            next(read)
        assert again.value.fatal


def test_a_read_without_await_that_has_come_to_its_end_says_that() -> None:
    read = UnfinishedSync(number for number in range(3))
    assert list(read) == [0, 1, 2]
    assert list(read) == []
