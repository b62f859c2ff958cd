"""A service URL without a port means the one that servers listen on by default."""

from __future__ import annotations

import pytest

from txnclient.connection.address import DEFAULT_PORT, parse_url
from txnctl.process.settings import ServerSettings


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("txn://one", ["one:6650"]),
        ("txn://one,two:7,one:6650/", ["one:6650", "two:7"]),
        ("txn://[::1]", ["[::1]:6650"]),
    ],
)
def test_without_a_port_it_is_the_usual_one(url: str, expected: list[str]) -> None:
    assert parse_url(url) == expected


def test_it_is_where_servers_listen_by_default() -> None:
    assert ServerSettings().listen.endswith(f":{DEFAULT_PORT}")
