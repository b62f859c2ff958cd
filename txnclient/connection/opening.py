"""The result of `connect`, `client.producer` and similar calls: await it, or enter it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from txnwire.errors import TxnError


class Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class Opening(Generic[T]):
    """`thing = await opening`, or `async with opening as thing`, which closes the thing at the end."""

    def __init__(self, open_it: Callable[[], Awaitable[T]]) -> None:
        self._open_it = open_it
        self._opened: T | None = None

    def __await__(self) -> Generator[object, None, T]:
        return self._open_it().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._open_it()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await closed_behind(self._opened.close, error)


async def closed_behind(close: Callable[[], Awaitable[None]], error: BaseException | None) -> None:
    """Close at the end of a block. If the block raised `error`, that stays the raised error, and a failure of the close
    becomes a note on it."""
    try:
        await close()
    except TxnError as failure:
        if error is None:
            raise
        error.add_note(f"and closing failed: {type(failure).__name__}: {failure}")
