"""Generators that keep raising after a failure.

A plain generator that has raised, or whose `anext` was cancelled, is finished: the next call says that nothing follows.
▲ That is wrong for a read: a caller that retries after a failure would take the part it has for the whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import Any, TypeVar

from txnwire.errors import InvalidArgument, TxnError, for_good

T = TypeVar("T")


def _to_repeat(error: BaseException) -> BaseException:
    """The error to raise after `error`, from now on."""
    if isinstance(error, TxnError):
        return for_good(error)
    if isinstance(error, Exception):
        return error
    return for_good(
        InvalidArgument("this read was cancelled before its end: read again, after the last entry that it returned")
    )


class Unfinished(AsyncGenerator[T, None]):
    """Wraps a generator; after a failure every further call raises it again."""

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self._failure: BaseException | None = None

    async def asend(self, value: None) -> T:
        if self._failure is not None:
            await asyncio.sleep(0)  # ▲ C6: a caller that keeps calling must not block the event loop
            raise _to_repeat(self._failure)
        try:
            return await self._items.asend(value)
        except StopAsyncIteration:
            raise
        except BaseException as error:
            self._failure = _to_repeat(error)
            raise

    async def athrow(self, *raised: Any) -> T:
        return await self._items.athrow(*raised)

    async def aclose(self) -> None:
        await self._items.aclose()


class UnfinishedSync(Generator[T, None, None]):
    """The same without `await`."""

    def __init__(self, items: Generator[T, None, None]) -> None:
        self._items = items
        self._failure: BaseException | None = None

    def send(self, value: None) -> T:
        if self._failure is not None:
            raise _to_repeat(self._failure)
        try:
            return self._items.send(value)
        except StopIteration:
            raise
        except BaseException as error:
            self._failure = _to_repeat(error)
            raise

    def throw(self, *raised: Any) -> T:
        return self._items.throw(*raised)

    def close(self) -> None:
        self._items.close()
