"""Asks several sources one question, the next one if the last stays silent; the first answer counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from txnstore.access.backend import Unanswered

T = TypeVar("T")


async def first_answer(questions: Sequence[Callable[[], Awaitable[T]]], next_after_s: float) -> T:
    """Start the next question `next_after_s` after the last one, or as soon as all started ones have failed.

    `Unanswered` is no answer: it is raised if every question ends so. Any other exception is an answer, and raised.
    Questions unanswered by then, or when the caller gives up, are cancelled before this returns.
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
