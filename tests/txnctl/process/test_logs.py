"""What a process logs, from which level on, and in which form."""

from __future__ import annotations

import subprocess
import sys

import pytest

from txnctl.process import logs
from txnwire.errors import InvalidArgument

PROGRAM = """
import logging, sys
import structlog
from txnctl.process import logs
logs.configure(sys.argv[1])
logs.configure(sys.argv[1])
for say in (structlog.get_logger("of.ours"), logging.getLogger("txnclient.links")):
    for level in ("debug", "info", "warning", "error"):
        getattr(say, level)(f"{level} of {type(say).__name__ == 'Logger'}")
try:
    raise OSError("no such disk")
except OSError:
    logging.getLogger("txnclient").exception("failed")
logging.getLogger("of.others").info("not ours")
"""


@pytest.mark.parametrize(("level", "told"), [("INFO", ["info", "warning", "error"]), ("error", ["error"])])
def test_lines_of_the_client_library_come_in_the_form_and_from_the_level_of_all_others(
    level: str, told: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, level], capture_output=True, text=True, timeout=60, check=True
    )
    lines = done.stderr.splitlines()
    ends = [*(f"{one} of False" for one in told), *(f"{one} of True" for one in told), "failed"]
    assert [line.split("] ")[1].strip() for line in lines[: len(ends)]] == ends
    for line, one in zip(lines, [*told, *told, "error"], strict=False):
        assert line.split()[0].endswith("Z"), "a time in UTC"
        assert f"[{one}" in line
    assert lines[-1] == "OSError: no such disk"
    assert (done.stdout, "not ours" in done.stderr) == ("", False)


def test_a_level_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="log level 'loud': expected debug, info, warning or error"):
        logs.configure("loud")
