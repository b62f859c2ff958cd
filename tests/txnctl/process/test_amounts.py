"""Sizes, durations and times as people type them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer

from txnctl.cli import app
from txnctl.process.amounts import milliseconds_of, seconds_of, size_of, time_of
from txnctl.process.settings import ServerSettings, load
from txnstore.etcd.settings import EtcdSettings
from txnwire.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("17", 17), ("10G", 10**10), ("10GB", 10**10), ("64MiB", 64 << 20), ("1.5k", 1500), ("2 Ti", 2 << 40)],
)
def test_sizes(text: str, expected: int) -> None:
    assert size_of(text) == expected


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [("0", 0), ("1.5", 1.5), ("500ms", 0.5), ("90s", 90), ("1h30m", 5400), ("7d", 604_800), ("2w", 1_209_600),
     ("7 days", 604_800), ("90 min", 5400), ("1 hour", 3600), ("1 h 30 m", 5400), ("2 Weeks", 1_209_600),
     ("10 sec", 10)],
)  # fmt: skip
def test_durations(text: str, expected_s: float) -> None:
    assert seconds_of(text) == expected_s


def test_a_plain_number_keeps_the_unit_that_the_option_names() -> None:
    assert (milliseconds_of("250"), milliseconds_of("7d"), seconds_of("250")) == (250, 604_800_000, 250)


@pytest.mark.parametrize("parse", [size_of, seconds_of, milliseconds_of])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "10 potatoes",
        "1e400",
        "nan",
        "7d!",
        "G",
        "d",
        "3 D",
        "7 days or so",
        "9" * 400 + "d",
        "9" * 400 + ".5G",
    ],
)
def test_anything_else_is_refused_with_what_was_expected(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(InvalidArgument, match="expected"):
        parse(text)


def test_a_time_without_a_zone_is_one_of_this_machine() -> None:
    assert time_of("2026-11-22T10:00") == datetime(2026, 11, 22, 10).astimezone()
    assert time_of("2026-11-22T10:00Z") == datetime(2026, 11, 22, 10, tzinfo=UTC)
    assert time_of("2026-11-22") == datetime(2026, 11, 22).astimezone()
    assert time_of("yesterday") is None


def test_settings_take_them_from_file_environment_and_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('ledger_roll_bytes = "128MiB"\nheader_retention_s = "2m"\nlease_ttl_s = 5\n')
    monkeypatch.setenv("TXN_MIN_FREE_BYTES", "2G")
    monkeypatch.setenv("TXN_CLIENT_GRACE_S", "1m")
    found = load(file, max_transaction_timeout_s="2h")
    assert (found.ledger_roll_bytes, found.min_free_bytes) == (128 << 20, 2 * 10**9)
    assert (found.header_retention_s, found.lease_ttl_s) == (120, 5)
    assert (found.client_grace_s, found.max_transaction_timeout_s) == (60, 7200)
    with pytest.raises(InvalidArgument, match="'soon' is no duration"):
        load(None, lease_ttl_s="soon")


@pytest.mark.parametrize(
    ("unit", "text", "expected"), [("_bytes", "8GiB", 8 << 30), ("_s", "2m", 120)], ids=["bytes", "seconds"]
)
def test_every_size_and_duration_takes_a_unit_in_the_settings_and_as_a_flag(
    unit: str, text: str, expected: int
) -> None:
    names = [name for name in ServerSettings.model_fields if name.endswith(unit)]
    assert len(names) >= 3
    assert [getattr(load(None, **{name: text}), name) for name in names] == [expected] * len(names)
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    flags = serve.make_context("serve", [f"--{name.replace('_', '-')}={text}" for name in names]).params
    assert [flags[name] for name in names] == [expected] * len(names)


def test_an_etcd_without_a_port_is_at_the_usual_one() -> None:
    settings = EtcdSettings(endpoints=("http://one", "two:9", "https://[::1]", "http://three/"))
    assert settings.addresses() == [("one:2379", False), ("two:9", False), ("[::1]:2379", True), ("three:2379", False)]
