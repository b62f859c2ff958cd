"""A client of a release: a container that finds what pods find, and works until it is told to stop."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.containers import load
from tests.containers.engine import IMAGE, Container
from tests.containers.release.kubelet import ContainerKubelet
from tests.waiting import until

PROGRAM = "/program/load.py"
FOLDER = "/told"
WITHIN_S = 120.0
POLL_S = 0.1


class ContainerLoad:
    """`async with` it: `load.py` in a container of the image."""

    def __init__(self, kubelet: ContainerKubelet, topic: str, *, name: str = "client") -> None:
        self.folder = kubelet.folder / name
        self.folder.mkdir(mode=0o777)
        self.folder.chmod(0o777)
        (test,) = [one for one in kubelet.objects if one["kind"] == "Pod"]
        (url,) = [one["value"] for one in test["spec"]["containers"][0]["env"] if one["name"] == "TXN_URL"]
        self.made: Container = kubelet.engine.create(
            name,
            IMAGE,
            ["-P", PROGRAM, url, topic, FOLDER],
            entrypoint=["python3"],
            volumes={load.__file__: PROGRAM, str(self.folder): FOLDER},
            **kubelet.resolving,
        )
        self.report: dict[str, Any] = {}

    async def __aenter__(self) -> ContainerLoad:
        await asyncio.to_thread(self.made.start)
        await self.wait_committed(20)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """`report` is there, unless something has failed already."""
        if kind is not None:
            return
        (self.folder / "stop").touch()
        code = await asyncio.to_thread(self.made.wait, within_s=WITHIN_S)
        assert code == 0, self._log()
        self.report = json.loads((self.folder / "report.json").read_text())

    def _log(self) -> str:
        return self.made.log[-3000:].decode(errors="replace")

    @property
    def committed(self) -> int:
        path = self.folder / "committed"
        return int(path.read_text()) if path.exists() else 0

    async def wait_committed(self, more: int) -> None:
        """Raises `AssertionError` with the log of the client where it stands still."""
        wanted = self.committed + more
        await until(
            lambda: self.committed >= wanted,
            lambda: f"more than {self.committed} transactions: {self._log()}",
            within_s=WITHIN_S,
            longest_poll_s=POLL_S,
        )

    async def read(self) -> list[str]:
        """What a client reads that begins anew and does nothing else; in place of `async with`."""
        (self.folder / "only-read").touch()
        await asyncio.to_thread(self.made.start)
        code = await asyncio.to_thread(self.made.wait, within_s=WITHIN_S)
        assert code == 0, self._log()
        read: list[str] = json.loads((self.folder / "read").read_text())
        return read

    async def acknowledged(self) -> list[str]:
        """All values that are acknowledged, those of transactions once they are committed."""
        (self.folder / "tell").touch()
        await until((self.folder / "told").exists, self._log, within_s=WITHIN_S, longest_poll_s=POLL_S)
        told: list[str] = json.loads((self.folder / "told").read_text())
        (self.folder / "told").unlink()
        return told
