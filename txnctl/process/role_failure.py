"""The defect for which a server process has to end."""

from __future__ import annotations

import asyncio


class RoleFailure:
    """The first error that has ended a role of this process, or the use of its etcd; None as long as there is none."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._met = asyncio.Event()

    def met(self, error: BaseException) -> None:
        self.error = self.error or error
        self._met.set()

    async def wait(self) -> BaseException:
        await self._met.wait()
        assert self.error is not None
        return self.error
