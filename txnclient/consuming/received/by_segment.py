"""What a consumer's calls share: their messages by segment, and the answers of several segments."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any

from txnclient.consuming.received.bits import bits_of
from txnclient.consuming.received.message import Message, ReceivedEntry
from txnwire.errors import InvalidArgument, TxnError, again
from txnwire.ids import MessageId

_ENTRY = attrgetter("_entry")
_INDEX = attrgetter("index")


def by_segment(messages: Message[Any] | Iterable[Message[Any]]) -> dict[str, list[Message[Any]]]:
    """Raises `InvalidArgument` for anything else, and whatever the iterable raises."""
    if isinstance(messages, Message):
        return {messages.entry.segment: [messages]}
    try:
        given = iter(messages)
    except TypeError as error:
        raise no_message(messages) from error
    found: dict[str, list[Message[Any]]] = {}
    taken = list(given)
    try:
        for entry, run in groupby(taken, key=_ENTRY):
            found.setdefault(entry.segment, []).extend(run)
    except AttributeError as error:
        wrong = next((one for one in taken if not isinstance(one, Message)), None)
        raise no_message(messages if isinstance(messages, str | MessageId) else wrong) from error
    return found


def by_entry(messages: Iterable[Message[Any]]) -> Iterator[tuple[ReceivedEntry, int]]:
    """Runs of messages of one entry, with their bitmap."""
    for entry, run in groupby(messages, key=_ENTRY):
        yield entry, bits_of(map(_INDEX, run))


def no_message(found: object) -> InvalidArgument:
    return InvalidArgument(f"expected a message as it was received, or several, not {type(found).__name__}")


def as_list(messages: Message[Any] | Iterable[Message[Any]]) -> list[Message[Any]]:
    """The messages of an argument. Raises `InvalidArgument`."""
    return [message for group in by_segment(messages).values() for message in group]


def share_bytes(message: Message[Any]) -> int:
    """About its size in bytes: its share of its entry."""
    return message.entry.stored_bytes // message.entry.count


def of_segment(segment: str, error: TxnError) -> TxnError:
    """The error with its segment named."""
    if segment in str(error):
        return error
    named = again(error)
    named.args = (f"segment://{segment}: {error}",)
    return named


async def answered_by(answers: Mapping[str, list[asyncio.Future[None]]]) -> None:
    """As `all_answered`, for several segments."""
    futures = [answer for each in answers.values() for answer in each]
    if futures:
        await asyncio.wait(futures)
    for segment, each in answers.items():
        for answer in each:
            error = answer.exception()
            if error is not None:
                raise of_segment(segment, error) if isinstance(error, TxnError) else error


async def all_answered(answers: list[asyncio.Future[None]]) -> None:
    """Wait for all, then raise the first failure. The futures are shared: a caller's cancellation leaves them alone."""
    if answers:
        await asyncio.wait(answers)
    for answer in answers:
        answer.result()
