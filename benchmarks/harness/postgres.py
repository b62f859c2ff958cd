"""A PostgreSQL of our own for one benchmark: fresh, in a temporary folder, as user postgres, durable like ours.

`fsync` and `synchronous_commit` are on, everything else but its memory is at its defaults; it listens on a socket only.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

BINARIES = Path("/usr/lib/postgresql/15/bin")
START_TIMEOUT_S = 30.0
SETTINGS = {
    "listen_addresses": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "max_connections": "100",
}


def why_missing() -> str | None:
    """What keeps PostgreSQL from being measured here; None where nothing does."""
    if not (BINARIES / "postgres").exists():
        return f"{BINARIES}/postgres is missing: apt-get install postgresql-15"
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "setpriv is missing: PostgreSQL does not run as root"
    try:
        import asyncpg  # noqa: F401
    except ImportError:
        return "asyncpg is missing: pip install asyncpg"
    return None


@asynccontextmanager
async def postgres() -> AsyncIterator[str]:
    """Yields the folder of its socket, for `asyncpg.connect(host=…, user="postgres")`. Killed with this process."""
    with tempfile.TemporaryDirectory(prefix="txnstore-postgres-") as name:
        folder = Path(name)
        data = folder / "data"
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        await _run(_as_postgres(str(BINARIES / "initdb"), "--auth=trust", "--username=postgres", f"--pgdata={data}"))
        command = [str(BINARIES / "postgres"), "-D", str(data), "-k", str(folder)]
        for setting, value in SETTINGS.items():
            command += ["-c", f"{setting}={value}"]
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(*_as_postgres(*command), stdout=log, stderr=log)
        try:
            await _wait_ready(folder, process)
            yield str(folder)
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)  # "fast": clients are cut off, data is written
                await process.wait()


def _as_postgres(*command: str) -> list[str]:
    """By user postgres, and interrupted when this process dies (set last: a change of user clears it)."""
    if os.geteuid() != 0:
        return list(command)
    who = ["--reuid=postgres", "--regid=postgres", "--init-groups", "--pdeathsig=INT"]
    return ["setpriv", *who, "--", *command]


async def _run(command: Sequence[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd="/"
    )
    output, _ = await process.communicate()
    if process.returncode:
        sys.stderr.buffer.write(output)
        raise RuntimeError(f"{command[-1]} ended with {process.returncode}")


async def _wait_ready(folder: Path, process: asyncio.subprocess.Process) -> None:
    import asyncpg

    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            if process.returncode is not None:
                raise RuntimeError(f"postgres ended: {(folder / 'log').read_text()[-2000:]}")
            try:
                connection = await asyncpg.connect(host=str(folder), user="postgres", database="postgres")
            except (OSError, asyncpg.PostgresError):
                await asyncio.sleep(0.1)
                continue
            await connection.close()
            return
