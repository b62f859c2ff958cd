"""Makes the data folder of a new etcd from a snapshot, with etcd's own tool."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Final

from txnstore.etcd.embedded_etcd import find_etcd
from txnwire.errors import InternalError

TOOLS: Final = ("etcdutl", "etcdctl")
"""▲ In this order: `etcdctl` has lost the command in etcd 3.6."""


def find_tool() -> Path:
    """Raises `InternalError` that says what to install."""
    beside = find_etcd().parent
    for tool in TOOLS:
        on_path = shutil.which(tool)
        if on_path is not None:
            return Path(on_path)
        if (beside / tool).is_file():
            return beside / tool
    raise InternalError("neither etcdutl nor etcdctl is found: install Debian's etcd-client, or put one on PATH")


async def restore_etcd(snapshot: Path, data_dir: Path) -> None:
    """A single member, as `txnctl dev` runs it. Raises `InternalError` with what the tool said."""
    command = (str(find_tool()), "snapshot", "restore", str(snapshot), f"--data-dir={data_dir}")
    process = await asyncio.create_subprocess_exec(
        *command,
        env=os.environ | {"ETCDCTL_API": "3"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            # ▲ The caller was cancelled: the tool would write on, into the folder of the next restore.
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = said.decode(errors="replace").strip().splitlines()[-3:]
        raise InternalError(f"`{' '.join(command)}` ended with {process.returncode}: {' | '.join(last)}")
