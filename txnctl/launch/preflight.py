"""Checks before a cluster starts that its folder and ports are free.

Without this a second `dev` would find the first one's etcd and server at its ports, and report them as ready.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from txnctl.process.settings import bare_host, host_and_port
from txnwire.errors import InvalidArgument, NotAllowed

LOCK_FILE = "lock"


class FolderLock:
    """An advisory lock on a folder, released when the holder's process ends. The file names the holder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None

    def take(self) -> None:
        """Makes the folder if needed. Raises `NotAllowed` if it is not writable, or another process holds it."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise NotAllowed(
                f"data folder {self._folder} cannot be used: {error.strerror}; name another with --data-dir"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise NotAllowed(
                f"data folder {self._folder} is in use by process {holder}: stop it, or name another with --data-dir"
            ) from error
        except OSError as error:
            os.close(descriptor)
            raise NotAllowed(
                f"data folder {self._folder} cannot be locked: {error.strerror}; name another with --data-dir"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def expect_free(address: str, *, part: str) -> None:
    """Raises `InvalidArgument` if `address` is not `host:port`, `NotAllowed` if it cannot be listened on."""
    host, port = host_and_port(address, part=part)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(bare_host(host), port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:  # UnicodeError: a part between dots is empty, or longer than 63 characters
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgument(f"{part} {address!r}: {host!r} is no host of this machine: {reason}") from error
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except OSError as error:
            raise NotAllowed(
                f"{part} {address} cannot be used: {error.strerror}; stop the program that uses it or give another "
                "(port 0: any that is free)"
            ) from error
