"""What the client library says goes through `logging`: the application decides where it is shown."""

from __future__ import annotations

import asyncio
import logging

import pytest

import txnclient
from txnwire.transport.stream import StreamConnection


class Garbage:
    """A stream whose other end sends no frame of ours."""

    def __init__(self) -> None:
        self._aborted = asyncio.Event()

    async def read(self) -> bytes | None:
        return b"\xff\xff not a frame"

    async def write(self, frame: bytes) -> None:
        return None

    async def finish(self) -> None:
        return None

    def abort(self, reason: Exception | None) -> None:
        self._aborted.set()

    async def release(self) -> None:
        return None


async def test_a_malformed_frame_is_logged_below_txnclient_and_not_printed(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dies if what the client uses of the wire logs by structlog, which prints to standard output by default."""
    connection = StreamConnection(Garbage(), "broker:1")
    with pytest.raises(txnclient.ConnectionLost):
        await connection.receive()
    await connection.close()
    assert [record.name for record in caplog.records if "malformed frame" in record.getMessage()] == ["txnclient.wire"]
    assert capsys.readouterr().out == ""


def test_an_application_that_configures_no_logging_is_told_nothing_by_the_library() -> None:
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("txnclient").handlers)
