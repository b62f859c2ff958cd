"""What a bulk send is given, at its bounds and beyond (scenario C9); and failures that nobody looks at (C4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import txnclient
from txnclient.producing import untold
from txnclient.producing.bulk import BulkPart
from txnclient.producing.outgoing import checked
from txnclient.producing.untold import Untold
from txnwire.entry import Columns
from txnwire.errors import StoreFull, TxnError
from txnwire.protocol import MAX_VALUE_BYTES

LARGEST = bytes(MAX_VALUE_BYTES)


def test_c9_of_many_values_each_is_looked_at_the_last_one_too() -> None:
    for values in ([b"x", LARGEST + b"x"], [LARGEST + b"x", b"x"]):
        with pytest.raises(txnclient.MessageTooLarge):
            BulkPart.of(values)
        with pytest.raises(txnclient.MessageTooLarge):
            BulkPart.of_columns(Columns(values))
    assert len(BulkPart.of([LARGEST, LARGEST])) == 2


@pytest.mark.parametrize("column", ["keys", "properties", "event_times"])
def test_c9_each_column_is_as_long_as_that_of_the_values(column: str) -> None:
    given: dict[str, Any] = {"keys": [b"k"], "properties": [{"a": "b"}], "event_times": [1]}
    columns = Columns([b"x", b"y"])._replace(**{column: given[column]})
    with pytest.raises(txnclient.InvalidArgument, match="has 1 items"):
        next(txnclient.producing.bulk.parts_of(columns))


@pytest.mark.parametrize("time_ms", [(1 << 63) - 1, -(1 << 63) + 1])
def test_c9_the_outermost_times_are_taken(time_ms: int) -> None:
    assert checked(b"", None, None, time_ms)[0].event_time_ms == time_ms


# ---- C4 -------------------------------------------------------------------------------------------------------------


async def _failed(*errors: TxnError) -> Untold:
    """Sends outside of transactions that have failed, and that nobody has looked at."""
    failures = Untold()
    for error in errors:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        future.set_exception(error)
        failures.failed(future, error, None)
    return failures


async def test_c4_of_more_failures_than_are_kept_the_first_is_told_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(untold, "MOST_KEPT", 0)
    failures = await _failed(StoreFull("first"), StoreFull("second"))
    told = failures.tell(of_transactions=True)
    assert told is not None
    assert str(told) == "first"
    assert failures.tell(of_transactions=True) is None
