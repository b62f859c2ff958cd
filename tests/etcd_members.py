"""An etcd of several members, each a real process behind a tap of ours: it can be killed, paused, cut off and
restored."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.waiting import until_answer
from txnstore.etcd.embedded_etcd import EmbeddedEtcd, EtcdCommand, free_port

_CHUNK = 64 * 1024


class Tap:
    """A TCP proxy in this process. While it is cut, nothing gets through and connections hang, as in a network
    partition. A cut one way leaves the other direction working."""

    def __init__(self, target_port: int, *, target_host: str = "127.0.0.1") -> None:
        self.port = 0
        self._target_port = target_port
        self._target_host = target_host
        self._there = asyncio.Event()
        self._back = asyncio.Event()
        self.join()
        self._server: asyncio.Server | None = None
        self._flows: dict[asyncio.Task[None], None] = {}

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        self._there.clear()
        self._back.clear()

    def mute(self) -> None:
        """Requests arrive, and nothing comes back."""
        self._back.clear()

    def join(self) -> None:
        self._there.set()
        self._back.set()

    def reset(self) -> None:
        """Ends every connection, at both ends."""
        for flow in list(self._flows):
            flow.cancel()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.reset()
        await asyncio.gather(*self._flows, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._there.wait()
        with suppress(OSError):
            there_reader, there_writer = await asyncio.open_connection(self._target_host, self._target_port)
            for source, sink, way in ((reader, there_writer, self._there), (there_reader, writer, self._back)):
                flow = asyncio.create_task(self._pump(source, sink, way))
                self._flows[flow] = None
                flow.add_done_callback(self._flows.pop)
            return
        writer.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: asyncio.Event) -> None:
        try:
            while data := await source.read(_CHUNK):
                await way.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            return
        finally:
            sink.close()


@dataclass
class EtcdMembers:
    """`members` by number. Clients reach member n at `urls[n]`, through its tap; `cut_off` also cuts its peers, which
    connect through taps, too."""

    directory: Path
    size: int = 3
    quota_bytes: int = 2 * 1024**3
    token: str = "txnstore"
    members: list[EmbeddedEtcd] = field(default_factory=list)
    taps: list[Tap] = field(default_factory=list)
    peer_taps: list[Tap] = field(default_factory=list)

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(f"http://127.0.0.1:{tap.port}" for tap in self.taps)

    async def start(self) -> None:
        client_ports = [free_port() for _ in range(self.size)]
        peer_ports = [free_port() for _ in range(self.size)]
        self.taps = [Tap(port) for port in client_ports]
        self.peer_taps = [Tap(port) for port in peer_ports]
        for tap in (*self.taps, *self.peer_taps):
            await tap.start()
        for number in range(self.size):
            command = EtcdCommand(
                data_dir=self.directory / f"member-{number}",
                client_port=client_ports[number],
                quota_bytes=self.quota_bytes,
                extra=(
                    f"--listen-peer-urls=http://127.0.0.1:{peer_ports[number]}",
                    *self.identity(number),
                    "--heartbeat-interval=50",
                    "--election-timeout=500",
                    "--pre-vote=true",
                ),
            )
            self.members.append(EmbeddedEtcd(command))
        await self.start_members()

    def identity(self, number: int) -> tuple[str, ...]:
        """Flags that etcd and `etcdctl snapshot restore` have in common."""
        peers = ",".join(f"m{at}=http://127.0.0.1:{tap.port}" for at, tap in enumerate(self.peer_taps))
        return (
            f"--name=m{number}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{self.peer_taps[number].port}",
            f"--initial-cluster={peers}",
            f"--initial-cluster-token={self.token}",
        )

    async def start_members(self) -> None:
        await asyncio.gather(*(member.start() for member in self.members))

    async def stop(self) -> None:
        await asyncio.gather(*(member.stop() for member in self.members))
        for tap in (*self.taps, *self.peer_taps):
            await tap.close()

    async def stop_members(self) -> None:
        await asyncio.gather(*(member.stop() for member in self.members))

    async def leader(self) -> int:
        """The number of the member that leads."""

        async def leading() -> list[int]:
            for number, member in enumerate(self.members):
                with suppress(subprocess.CalledProcessError):
                    said = await etcdctl(
                        f"--endpoints={member.url}", "--command-timeout=1s", "endpoint", "status", "-w", "json"
                    )
                    status = msgspec.json.decode(said)[0]["Status"]
                    if status.get("leader") and status["leader"] == status["header"]["member_id"]:
                        return [number]
            return []

        return (await until_answer(leading, bool, "a member that leads", longest_poll_s=0.05))[0]

    async def save(self, to: Path) -> None:
        await etcdctl(f"--endpoints={self.members[0].url}", "snapshot", "save", str(to))

    async def restore(self, backup: Path, *, generation: int = 1) -> None:
        """Stops everything, puts the backup in its place, and starts again at the same addresses."""
        await self.stop_members()
        for number, member in enumerate(self.members):
            folder = self.directory / f"member-{number}-restored-{generation}"
            await etcdctl("snapshot", "restore", str(backup), f"--data-dir={folder}", *self.identity(number))
            member.command = msgspec.structs.replace(member.command, data_dir=folder)
        await self.start_members()


async def etcdctl(*words: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        "etcdctl",
        *words,
        env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin:/usr/local/bin"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, ("etcdctl", *words), out, err)
    return out
