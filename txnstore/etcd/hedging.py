"""One question put to several, the next one asked where the last is silent; the first answer counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from txnstore.access.backend import Unanswered

T = TypeVar("T")


async def first_answer(questions: Sequence[Callable[[], Awaitable[T]]], next_after_s: float) -> T:
    """Start the next question `next_after_s` after the last one, or as soon as all that were put have failed.

    `Unanswered` is no answer: it is raised where every question ends so. Any other exception is one, and raised.
    Whatever is still unanswered then, or as the caller gives up, is cancelled before this returns.
    """
    asked: dict[asyncio.Task[T], None] = {}
    waiting, failed = list(questions), Unanswered("nobody was asked")
    try:
        while asked or waiting:
            if waiting:
                asked[asyncio.ensure_future(waiting.pop(0)())] = None
            timeout_s = next_after_s if waiting else None
            await asyncio.wait(asked, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in asked if task.done()]:
                del asked[task]
                try:
                    return task.result()
                except Unanswered as error:
                    failed = error
        raise failed
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
