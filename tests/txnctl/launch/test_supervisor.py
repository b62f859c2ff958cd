"""Children are restarted when they die, stopped in order, and never outlive their supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.processes import is_alive
from tests.waiting import until
from txnctl.launch.supervisor import LOG_COLUMNS, Child, ChildSpec, Supervisor
from txnwire.errors import InternalError, Timeout

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


async def test_a_killed_child_comes_back_and_stop_ends_it(tmp_path: Path) -> None:
    async with Supervisor([ChildSpec(name="sleeper", command=SLEEPER, log_path=tmp_path / "log")]) as supervisor:
        child = supervisor.children["sleeper"]
        first = child.pid
        child.signal(signal.SIGKILL)
        await until(lambda: child.restarts == 1 and child.pid not in (None, first))
        second = child.pid
    assert second is not None
    assert not is_alive(second)


async def test_a_child_that_was_stopped_and_started_again_comes_back_when_it_dies(tmp_path: Path) -> None:
    """As in the demo, which stops a broker for a while. ▲ Nothing else would start it then."""
    async with Supervisor([ChildSpec(name="sleeper", command=SLEEPER, log_path=tmp_path / "log")]) as supervisor:
        child = supervisor.children["sleeper"]
        await child.stop()
        assert (child.pid, child.restarts) == (None, 0)
        await child.start()
        second = child.pid
        assert second is not None
        child.signal(signal.SIGKILL)
        await until(lambda: child.restarts == 1 and child.pid not in (None, second))


PARENT = [
    sys.executable,
    "-c",
    "import subprocess; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()",
]


async def test_a_group_killed_on_purpose_is_gone_with_its_children_and_its_return_is_no_restart(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with Supervisor([ChildSpec(name="parent", command=PARENT, log_path=log)]) as supervisor:
        child = supervisor.children["parent"]
        for times in range(1, 4):  # as often as would be a crash loop
            await until(lambda times=times: log.read_text().count("\n") == times)  # type: ignore[misc]
            started = int(log.read_text().split()[-1])
            child.kill_group()
            await until(lambda started=started: not is_alive(started))  # type: ignore[misc]
        await until(lambda: log.read_text().count("\n") == 4)
        assert (child.restarts, child.looping.is_set()) == (0, False)


STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]


async def test_a_child_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with Supervisor([ChildSpec(name="stubborn", command=STUBBORN, log_path=log)]) as supervisor:
        child = supervisor.children["stubborn"]
        await until(lambda: log.read_text() == "up\n")
        pid = child.pid
        assert pid is not None
        try:
            with capture_logs() as told:
                await asyncio.wait_for(child.stop(timeout_s=0.1), 20.0)
            assert not is_alive(pid)
            assert [(one["event"], one["child"], one["after_s"]) for one in told] == [
                ("child_did_not_stop", "stubborn", 0.1)
            ]
        finally:
            child.signal(signal.SIGKILL)


async def test_children_stop_in_reverse_order(tmp_path: Path) -> None:
    out = tmp_path / "order"
    script = (
        "import signal, sys, time\n"
        "def stop(*_):\n    open(sys.argv[1], 'a').write(sys.argv[2]); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop); print('up', flush=True)\n"
        "time.sleep(600)"
    )
    logs = {name: tmp_path / f"{name}.log" for name in "abc"}

    def ready(name: str) -> Callable[[], asyncio.Future[None]]:
        return lambda: asyncio.ensure_future(until(lambda: logs[name].exists() and b"up" in logs[name].read_bytes()))

    specs = [
        ChildSpec(
            name=name,
            command=[sys.executable, "-c", script, str(out), name],
            log_path=logs[name],
            wait_ready=ready(name),
        )
        for name in "abc"
    ]
    async with Supervisor(specs):
        pass
    assert out.read_text() == "cba"


async def test_a_child_that_dies_at_start_is_reported_with_its_log(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    spec = ChildSpec(
        name="broken",
        command=[sys.executable, "-c", "raise SystemExit('no such data folder')"],
        log_path=tmp_path / "log",
        wait_ready=never,
    )
    with pytest.raises(InternalError, match=r"broken exited with 1 at start; (?s:.*)no such data folder"):
        async with Supervisor([spec]):
            pass
    assert ended.is_set(), "nobody asks the dead one on"


def test_a_child_is_reported_with_the_last_lines_of_its_log_and_without_one_that_has_gone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = Child(ChildSpec(name="broken", command=SLEEPER, log_path=log))
    assert child.log_tail() == f"{log} is empty"
    log.write_text("".join(f"line {number}\n" for number in range(7)))
    assert child.log_tail().splitlines() == [f"the end of {log}:", *(f"  line {number}" for number in range(2, 7))]
    log.write_text("x" * 400 + "\nlast\n")
    assert child.log_tail().splitlines()[1:] == ["  " + "x" * LOG_COLUMNS, "  last"]


async def test_of_a_log_that_an_earlier_start_has_begun_only_what_came_since_is_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier start\n")
    async with Supervisor([ChildSpec(name="sleeper", command=SLEEPER, log_path=log)]) as supervisor:
        await until(lambda: log.read_text().endswith("up\n"))
        assert supervisor.children["sleeper"].log_tail() == f"the end of {log}:\n  up"


def end(pid: int) -> None:
    """Within one turn of the loop."""
    os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):  # the loop's own thread has waited for it
        os.waitpid(pid, 0)


async def test_a_child_that_has_gone_a_moment_ago_is_sent_no_signal(tmp_path: Path) -> None:
    """▲ Its process is gone, and the loop has not heard of it yet."""
    async with Supervisor([ChildSpec(name="sleeper", command=SLEEPER, log_path=tmp_path / "log")]) as supervisor:
        child = supervisor.children["sleeper"]
        for send in (partial(child.signal, signal.SIGTERM), child.kill_group):
            pid = child.pid
            assert pid is not None
            end(pid)
            assert child.pid == pid, "as far as it knows"
            send()
            await until(lambda pid=pid: child.pid not in (None, pid))  # type: ignore[misc]


@pytest.mark.parametrize("order", [1, -1], ids=["the last", "the first"])
async def test_whichever_child_dies_again_and_again_is_named_with_its_log(tmp_path: Path, order: int) -> None:
    specs = [
        ChildSpec(name="sleeper", command=SLEEPER, log_path=tmp_path / "sleeper.log"),
        ChildSpec(
            name="broken",
            command=[sys.executable, "-c", "raise SystemExit('no such data folder')"],
            log_path=tmp_path / "log",
        ),
    ]
    before = asyncio.all_tasks()
    async with Supervisor(specs[::order]) as supervisor:
        with pytest.raises(InternalError, match=r"broken died 3 times; (?s:.*)no such data folder"):
            await asyncio.wait_for(supervisor.wait_crash_loop(), 60.0)
        left = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks() - before]
    assert "Event.wait" not in left, "nobody waits for the other one"


async def test_a_child_that_is_never_ready_times_out_and_is_stopped(tmp_path: Path) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    spec = ChildSpec(name="slow", command=SLEEPER, log_path=tmp_path / "log", wait_ready=never, ready_timeout_s=0.2)
    supervisor = Supervisor([spec])
    with pytest.raises(Timeout, match=r"slow was not ready after 0\.2 s; .*log"):
        async with supervisor:
            pass
    assert supervisor.children["slow"].pid is None


def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL of the supervisor: the kernel ends the children (`txnstore.etcd.lifetime`)."""
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from txnctl.launch.supervisor import Child, ChildSpec, Supervisor\n"
        "async def main():\n"
        f"    spec = ChildSpec(name='s', command={SLEEPER!r}, log_path=Path({str(tmp_path / 'log')!r}))\n"
        "    async with Supervisor([spec]) as supervisor:\n"
        "        print(supervisor.children['s'].pid, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        asyncio.run(until(lambda: (tmp_path / "log").exists() and b"up" in (tmp_path / "log").read_bytes()))
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(timeout=10)
        asyncio.run(until(lambda: not is_alive(child)))
    assert not is_alive(child)


def test_a_child_has_the_whole_environment_but_what_is_changed_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TXN_A", "TXN_B"):
        monkeypatch.setenv(name, "outside")
    spec = ChildSpec(name="c", command=SLEEPER, log_path=tmp_path / "log", environment={"TXN_A": None, "TXN_C": "c"})
    expected = {name: value for name, value in os.environ.items() if name != "TXN_A"}
    assert spec.whole_environment() == {**expected, "TXN_C": "c"}
