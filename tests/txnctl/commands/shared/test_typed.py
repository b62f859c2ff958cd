"""Options with a unit: their bounds, and what is said of a value beyond them."""

from __future__ import annotations

import pytest
import typer

from txnctl.commands.shared.typed import _of
from txnctl.process.amounts import milliseconds_of, seconds_of, size_of


@pytest.mark.parametrize(
    ("text", "value"), [("1k", 1000), ("2000", 2000), ("2k", 2000), (1500, 1500), (1000.0, 1000.0)]
)
def test_a_value_at_a_bound_is_allowed_and_a_default_is_taken_as_it_is(text: object, value: float) -> None:
    assert _of(size_of, 1000, 2000)(text) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("999", "999 is less than 1000"),
        (0, "0 is less than 1000"),
        ("3M", "3M is more than 2,000,000"),
        ("2000001", "2000001 is more than 2,000,000"),
        ("much", "'much' is no size"),
    ],
)
def test_a_value_beyond_a_bound_is_named_with_it(text: object, said: str) -> None:
    with pytest.raises(typer.BadParameter, match=said):
        _of(size_of, 1000, 2_000_000)(text)


def test_without_a_bound_above_any_amount_is_allowed() -> None:
    assert _of(seconds_of, 0)("100 weeks") == 60_480_000
    assert _of(milliseconds_of, 1)("1") == 1
    with pytest.raises(typer.BadParameter, match=r"0 is less than 0\.5"):
        _of(seconds_of, 0.5)("0")
