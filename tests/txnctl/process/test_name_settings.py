"""The settings of names: for all namespaces, and for single ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator_v5.settings import NameSettings
from txnctl.process.name_settings import bounds, keeps, name_settings
from txnctl.process.settings import load
from txnwire.errors import InvalidArgument


def test_a_value_for_all_and_some_for_single_namespaces() -> None:
    settings = name_settings("7d, orders=90d,a=b=1h, =2h", "2000000,orders=5")
    assert (settings.keep_ms("x"), settings.keep_ms("orders")) == (604_800_000, 7_776_000_000)
    assert (settings.keep_ms("a=b"), settings.keep_ms("")) == (3_600_000, 7_200_000)
    assert (settings.bound("x"), settings.bound("orders")) == (2_000_000, 5)


@pytest.mark.parametrize(("text", "keep_s"), [("1m", 60), ("60", 60), ("36525d", 36_525 * 86_400), ("1m,a=60s", 60)])
def test_the_shortest_and_the_longest_time_are_allowed(text: str, keep_s: float) -> None:
    found, of = keeps(text)
    assert (found, *of.values()) == (keep_s, *[60] * len(of))


def test_the_defaults_are_those_of_the_coordinator() -> None:
    settings = load(None)
    assert name_settings(settings.names_keep, settings.names_max) == NameSettings()
    assert load(None, names_max=7).names_max == "7"


@pytest.mark.parametrize(
    "text", ["", "orders=7d", "7d,8d", "7d,a=1d,a=2d", "7d,a/b=1d", "59s", "100y", "37000d", "7d,"]
)
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        keeps(text)
    with pytest.raises(InvalidArgument, match="names_keep"):
        load(None, names_keep=text)


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (keeps, "orders=7d", "'orders=7d': expected a value for all namespaces first, as 7d, orders=90d"),
        (bounds, "orders=5", "'orders=5': expected a value for all namespaces first, as 2000000, orders=100000"),
        (keeps, "7d,8d", "'7d,8d': expected one value, and then one of each namespace, as 7d, orders=90d"),
        (bounds, "7,a=1,a=2", "'7,a=1,a=2': expected one value, and then one of each namespace, as 2000000, orders="),
        (keeps, "7d, a=59s", "'59s': expected a minute to 100 years"),
        (bounds, "5, a=0", "'0': expected a number from 1 on"),
        (bounds, "٣", "'٣': expected a number from 1 on"),
    ],
)
def test_what_is_wrong_is_told_with_what_is_right(read: Callable[[str], object], text: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{said}"):
        read(text)


def test_blanks_around_a_namespace_are_no_part_of_it() -> None:
    assert keeps("7d, orders = 90d") == (7 * 86_400, {"orders": 90 * 86_400})
    with pytest.raises(InvalidArgument, match="one of each namespace"):
        bounds("7,a=1,a =2")


def test_what_is_for_all_may_come_behind_single_namespaces() -> None:
    assert bounds("a=1, 7 , b= 2") == (7, {"a": 1, "b": 2})


@pytest.mark.parametrize("text", ["0", "-1", "many", "5,a=0", "1.5"])
def test_a_bound_is_a_number_from_1_on(text: str) -> None:
    with pytest.raises(InvalidArgument):
        bounds(text)
    with pytest.raises(InvalidArgument, match="names_max"):
        load(None, names_max=text)
