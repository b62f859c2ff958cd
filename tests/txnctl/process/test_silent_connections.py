"""Connections to the HTTP pages that ask for nothing."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from txnctl.process.http import HttpEndpoint, _QuietHandler


async def nothing() -> None:
    """There are no statistics."""


@pytest.mark.parametrize("asked", [b"", b"GET /rea", b"GET /readyz HTTP/1.1\r\nHost: x\r\n"])
async def test_a_connection_that_stays_silent_is_closed_without_a_line(
    asked: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """▲ Each holds a thread and a descriptor: without an end they would take those of the ledgers."""
    monkeypatch.setattr(_QuietHandler, "timeout", _QuietHandler.timeout / 100)
    endpoint = HttpEndpoint(
        "127.0.0.1:0", not_ready=lambda: None, statistics=nothing, families=lambda _: [], process=CollectorRegistry()
    )
    try:
        reader, writer = await asyncio.open_connection(*endpoint.address.split(":"))
        writer.write(asked)
        assert await asyncio.wait_for(reader.read(), 30.0) == b""
        writer.close()
        await writer.wait_closed()
    finally:
        await endpoint.close()
    assert capfd.readouterr().err == ""
