"""Settings come from a file, then the environment, then flags (API.md, "Command line")."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from pathlib import Path
from typing import Any

import pytest

from tests.txnctl.command_line import txnctl
from txnctl.cli import serve
from txnctl.process.settings import (
    BYTES,
    MOST_S,
    ROLES,
    SECONDS,
    ServerSettings,
    bare_host,
    effective,
    etcd_settings,
    host_and_port,
    load,
    unknown_in_environment,
)
from txnwire.errors import InvalidArgument


def test_defaults_serve_every_role() -> None:
    assert load(None).roles == ROLES


def test_environment_beats_file_and_flags_beat_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "txnstore.toml"
    config.write_text('id = "from-file"\netcd_prefix = "/file"\nlease_ttl_s = 7\n')
    monkeypatch.setenv("TXN_ETCD_PREFIX", "/environment")
    monkeypatch.setenv("TXN_ID", "from-environment")
    settings = load(config, id="from-flag")
    assert (settings.id, settings.etcd_prefix, settings.lease_ttl_s) == ("from-flag", "/environment", 7)


def test_a_flag_that_says_no_or_zero_beats_the_file_too(tmp_path: Path) -> None:
    config = tmp_path / "txnstore.toml"
    config.write_text("autoscale = true\nmin_free_bytes = 7\nheader_retention_s = 7\n")
    settings = load(config, autoscale=False, min_free_bytes=0, header_retention_s=0.0)
    assert (settings.autoscale, settings.min_free_bytes, settings.header_retention_s) == (False, 0, 0.0)
    assert load(config, header_retention_s=None).header_retention_s == 7.0


def test_roles_are_split_at_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXN_ROLES", "broker, admin")
    assert load(None).roles == ("broker", "admin")


WRONG: list[tuple[dict[str, object], str]] = [
    ({"roles": "broker,king"}, "unknown role king"),
    ({"roles": "controller,broker,controller"}, "roles: expected each role once"),
    ({"id": "a b"}, "server id 'a b'"),
    ({"tcids": 0}, "tcids"),
    ({"lease_ttl_s": 0.1}, "lease_ttl_s"),
    ({"log_level": "loud"}, "log_level: expected debug, info, warning or error"),
    ({"etcd": "nonsense"}, "etcd endpoint 'nonsense': expected http://host:port"),
    ({"etcd": "http://a:99999"}, "etcd endpoint 'http://a:99999': expected a port from 1 to 65535"),
    ({"etcd": ""}, "no etcd endpoint is given"),
    ({"etcd_ca": "/nowhere.pem", "etcd": "https://e:1"}, "etcd_ca: there is no such file"),
]


@pytest.mark.parametrize(("flags", "named"), [*WRONG, ({"colour": "red"}, "colour")])
def test_wrong_settings_are_named(flags: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        load(None, **flags)


@pytest.mark.parametrize(("settings", "named"), WRONG, ids=[named for _, named in WRONG])
async def test_a_wrong_environment_ends_what_shows_settings_as_it_ends_what_serves_by_them(
    settings: dict[str, object], named: str
) -> None:
    environment = {f"TXN_{name.upper()}": str(value) for name, value in settings.items()}
    shown, served = await asyncio.gather(
        *(txnctl(command, environment=environment, timeout_s=60.0) for command in ("settings", "serve"))
    )
    assert (shown.code, shown.out, named in shown.err) == (2, "", True), shown
    assert (served.code, served.err) == (shown.code, shown.err)


def test_each_of_several_wrong_settings_is_named() -> None:
    with pytest.raises(InvalidArgument, match="unknown role king, queen: ") as raised:
        load(None, roles="broker,king,queen", lease_ttl_s=0.1, tcids=0)
    assert all(name in str(raised.value) for name in ("roles: ", "lease_ttl_s: ", "tcids: "))


@pytest.mark.parametrize("roles", ["", " , "])
def test_a_server_without_a_role_is_refused_with_those_there_are(roles: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"unknown role \(none\): expected some of {', '.join(ROLES)}, found"):
        load(None, roles=roles)


@pytest.mark.parametrize("address", ["h", "h:", ":1", "", "h:-1", "h:65536", "h:1.5", "h:²"])
@pytest.mark.parametrize("name", ["listen", "advertise", "admin_listen"])
def test_an_address_without_a_host_or_a_port_is_named(name: str, address: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"{name}: {name} '{address}': expected host:port"):
        load(None, **{name: address})


@pytest.mark.parametrize(("address", "found"), [("h:0", ("h", 0)), ("[::1]:65535", ("[::1]", 65535))])
def test_an_address_is_split_before_its_port(address: str, found: tuple[str, int]) -> None:
    assert host_and_port(address, part="listen") == found
    assert load(None, listen=address, advertise=address, admin_listen=address).advertise == address


def test_brackets_are_taken_off_a_host_of_ipv6_alone() -> None:
    assert [bare_host(host) for host in ("[::1]", "h", "127.0.0.1")] == ["::1", "h", "127.0.0.1"]


def loaded(**flags: Any) -> ServerSettings:
    return load(None, **flags)


LEAST_AND_MOST: dict[str, tuple[float, float | None]] = {
    "tcids": (1, 65536),
    "lease_ttl_s": (1.0, None),
    "header_retention_s": (0.0, None),
    "client_grace_s": (0.0, None),
    "consumer_grace_s": (0.0, None),
    "ledger_roll_bytes": (1 << 20, 1 << 53),
    "etcd_quota_bytes": (1 << 20, 1 << 53),
    "min_free_bytes": (0, 1 << 53),
    "max_connections": (1, 1 << 53),
    "max_open_transactions": (1, 1 << 53),
}


@pytest.mark.parametrize("name", LEAST_AND_MOST)
def test_the_least_and_the_most_are_allowed_and_nothing_beyond(name: str) -> None:
    least, most = LEAST_AND_MOST[name]
    for value in (least, MOST_S if most is None else most):
        assert getattr(loaded(**{name: value}), name) == value
    for value in (least - 1, MOST_S + 1 if most is None else most + 1):
        with pytest.raises(InvalidArgument, match=rf"{name}: .*, found {value}"):
            loaded(**{name: value})


@pytest.mark.parametrize("name", ["max_transaction_timeout_s", "clock_warn_s"])
def test_a_time_that_something_has_to_fit_in_is_more_than_none(name: str) -> None:
    assert getattr(loaded(**{name: 0.001}), name) == 0.001
    with pytest.raises(InvalidArgument, match=f"{name}: Input should be greater than 0, found 0"):
        loaded(**{name: 0})


def test_a_setting_that_is_to_have_no_value_has_none_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("TXN_ADVERTISE", "TXN_ETCD_USER", "TXN_ETCD_PREFIX"):
        monkeypatch.setenv(name, "other:1")
    settings = load(None, without=("advertise", "etcd_user"))
    assert (settings.advertise, settings.etcd_user, settings.etcd_prefix) == (None, None, "other:1")


def test_variables_count_in_any_case_and_are_told_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "txnstore.toml"
    config.write_text('id = "from-file"\n')
    monkeypatch.setenv("txn_id", "from-environment")
    monkeypatch.setenv("Txn_Colours_Of_It", "red")
    found = {one.setting: (one.value, one.source) for one in effective(config)}
    assert found["id"] == ("from-environment", "environment txn_id")
    assert found["etcd_password"] == (None, "default")
    assert found["data_dir"] == ("txnstore-data", "default")
    assert unknown_in_environment() == ["Txn_Colours_Of_It is no setting; `txnctl settings` lists those there are"]


def test_every_endpoint_of_etcd_is_used() -> None:
    """▲ With the first alone, the loss of one member would stop the process."""
    settings = load(None, etcd="http://one:1, http://two:2,http://three:3", allow_development_etcd=True)
    assert etcd_settings(settings).endpoints == ("http://one:1", "http://two:2", "http://three:3")


@pytest.mark.parametrize("value", ["inf", "nan", "1e300"])
@pytest.mark.parametrize("name", SECONDS)
def test_a_duration_that_no_clock_can_count_is_named(tmp_path: Path, name: str, value: str) -> None:
    """▲ `inf` for the longest timeout: every begin would fail."""
    config = tmp_path / "txnstore.toml"
    config.write_text(f"{name} = {value}\n")
    with pytest.raises(InvalidArgument, match=f"{name}: Input should be"):
        load(config)


@pytest.mark.parametrize("name", [*BYTES, "etcd_quota_bytes", "max_connections", "max_open_transactions"])
def test_a_number_that_nothing_can_reach_is_named(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{name}: Input should be"):
        load(None, **{name: 10**20})


def test_a_password_is_not_told_with_what_is_wrong_of_it(tmp_path: Path) -> None:
    """The error is printed, and logged by whoever starts servers."""
    config = tmp_path / "txnstore.toml"
    config.write_text("etcd_password = 271828\n")
    with pytest.raises(InvalidArgument, match=r"etcd_password: .* found \*\*\*") as raised:
        load(config)
    assert "271828" not in "".join(traceback.format_exception(raised.value))


def test_missing_and_malformed_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"nowhere\.toml"):
        load(tmp_path / "nowhere.toml")
    broken = tmp_path / "broken.toml"
    for content in (b"id = ", b'id = "\xff"\n'):
        broken.write_bytes(content)
        with pytest.raises(InvalidArgument, match=r"configuration file .*broken\.toml: "):
            load(broken)


@pytest.mark.parametrize(
    ("written", "meant"), [("lease_ttl", "lease_ttl_s"), ("data-dir", "data_dir"), ("Listen", "listen")]
)
def test_an_unknown_key_of_the_file_is_refused_with_the_nearest_known(tmp_path: Path, written: str, meant: str) -> None:
    config = tmp_path / "txnstore.toml"
    config.write_text(f'id = "one"\n{written} = "1"\n')
    with pytest.raises(InvalidArgument, match=rf"txnstore\.toml: '{written}' is no setting; did you mean {meant}\?"):
        load(config)


def test_an_unknown_key_like_none_is_refused_with_where_to_look(tmp_path: Path) -> None:
    config = tmp_path / "txnstore.toml"
    config.write_text('colour = "red"\n[more]\nx = 1\n')
    with pytest.raises(InvalidArgument, match=r"'colour' is no setting; `txnctl settings` lists.*'more' is no setting"):
        load(config)


def test_every_setting_says_where_it_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "txnstore.toml"
    config.write_text('id = "from-file"\netcd_prefix = "/file"\netcd_password = "secret"\n')
    monkeypatch.setenv("TXN_ETCD_PREFIX", "/environment")
    found = {one.setting: (one.value, one.source) for one in effective(config, tcids=4)}
    assert list(found) == list(ServerSettings.model_fields)
    assert found["id"] == ("from-file", f"file {config}")
    assert found["etcd_prefix"] == ("/environment", "environment TXN_ETCD_PREFIX")
    assert found["etcd_password"] == ("***", f"file {config}")
    assert found["tcids"] == (4, "flag")
    assert found["lease_ttl_s"] == (10.0, "default")


def test_what_looks_like_a_setting_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXN_URL", "txn://h:1")
    monkeypatch.setenv("TXN_LEASE_TTL", "7")
    monkeypatch.setenv("TXN_ID", "one")
    monkeypatch.setenv("TXN_LISTENS", "h:1")
    assert unknown_in_environment() == [
        "TXN_LEASE_TTL is no setting; did you mean TXN_LEASE_TTL_S?",
        "TXN_LISTENS is no setting; did you mean TXN_LISTEN?",
    ]


def test_every_setting_has_a_flag_but_the_password() -> None:
    """A password on a command line is read by everybody on the machine."""
    assert set(ServerSettings.model_fields) - set(inspect.signature(serve).parameters) == {"etcd_password"}


def test_http_can_be_off_and_is_checked_otherwise() -> None:
    assert load(None, admin_listen="off").admin_listen == "off"
    with pytest.raises(InvalidArgument, match="admin_listen 'of'"):
        load(None, admin_listen="of")
