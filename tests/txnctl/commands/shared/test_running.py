"""With which code a command exits: its own, and one that says that it was told to end."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
import typer

from txnctl.commands.shared.running import run


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1), (3, 3)])
def test_a_command_exits_with_the_code_that_its_work_returns(returned: int | None, code: int) -> None:
    async def work() -> int | None:
        return returned

    with pytest.raises(typer.Exit) as exited:
        run(work())
    assert exited.value.exit_code == code


@pytest.mark.parametrize(("options", "code"), [({}, 143), ({"terminated": 0}, 0)], ids=["a command", "dev"])
def test_sigterm_ends_the_work_in_order_and_is_told_by_the_code(options: dict[str, int], code: int) -> None:
    ended = []

    async def work() -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("in order")
        return 7

    with pytest.raises(typer.Exit) as exited:
        run(work(), **options)
    assert (exited.value.exit_code, ended) == (code, ["in order"])


def test_an_error_of_the_work_is_the_commands() -> None:
    async def work() -> None:
        raise OSError("no such disk")

    with pytest.raises(OSError, match="no such disk"):
        run(work())
