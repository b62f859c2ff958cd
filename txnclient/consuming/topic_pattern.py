"""A consumer's topics by a pattern: joins those that match as they appear, and leaves deleted ones quietly."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from txnclient.connection import any_server
from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import TRANSIENT, Session
from txnwire.errors import InvalidArgument, SubscriptionNotFound, TopicNotFound, TxnError
from txnwire.names import TOPIC_SCHEME
from txnwire.proto import txn_pb2 as pb

LOOK_S: Final = 2.0
"""Pause between two looks at the list of topics."""
LOOK_TIMEOUT_S: Final = 10.0
JOINED_AT_ONCE: Final = 32

_PREFIX = re.compile(r"(?:topic://)?([A-Za-z0-9_-]+/[A-Za-z0-9_-]+/)(?![?*{])")
"""Tenant and namespace where a pattern spells them out. A dot would stand for any character; behind `/?` or `/*` the
namespace may go on."""

_log = logging.getLogger("txnclient")


class TopicPattern:
    """Matches the whole name of a topic, with `topic://` or without. Raises `InvalidArgument` for no pattern."""

    def __init__(self, pattern: str | re.Pattern[str], *, left_out: Callable[[str], bool]) -> None:
        """`left_out`: whether a topic is none of the consumer's all the same."""
        try:
            self._pattern = re.compile(pattern)
        except (re.error, TypeError) as error:
            raise InvalidArgument(f"topics_pattern {pattern!r} is no regular expression: {error}") from error
        if not isinstance(self._pattern.pattern, str):
            raise InvalidArgument(f"topics_pattern {pattern!r} is a pattern of bytes: topics have names of text")
        self._left_out = left_out

    def __str__(self) -> str:
        return str(self._pattern.pattern)

    @property
    def prefix(self) -> str:
        """What the names of all topics that match begin with, without the scheme; "" if that is not plain."""
        text = self._pattern.pattern
        found = _PREFIX.match(text)
        plain = found is not None and "|" not in text and "(?" not in text and not self._pattern.flags & re.IGNORECASE
        return found[1] if found is not None and plain else ""

    def matches(self, topic: str) -> bool:
        path = topic.removeprefix(TOPIC_SCHEME)
        found = self._pattern.fullmatch(topic) or self._pattern.fullmatch(path)
        return found is not None and not self._left_out(topic)


class JoinedTopics(Protocol):
    """The consumer's topics."""

    @property
    def topics(self) -> list[str]: ...
    async def join_topic(self, topic: str, deadline: Deadline, *, later: bool) -> None:
        """`later`: it has appeared since the consumer was opened. Raises `TopicNotFound`, and as a join does."""


class FollowedTopics:
    """Keeps the topics that match joined."""

    def __init__(self, session: Session, pattern: TopicPattern, joined: JoinedTopics) -> None:
        self._session = session
        self._pattern = pattern
        self._joined = joined
        self._gone: dict[str, tuple[int, TxnError, int]] = {}
        """Topics that were left because of an error: their life then, the error, and at how many looks since they were
        there as before."""

    async def join(self, deadline: Deadline) -> None:
        """Join all that match now. Raises as a join does."""
        await self._join(await self._matching(deadline), deadline, later=False)

    async def follow(self) -> None:
        """Look again for ever. Raises what keeps a topic from being joined, and does not pass."""
        while True:
            await asyncio.sleep(LOOK_S)
            deadline = self._session.deadline(LOOK_TIMEOUT_S)
            try:
                await self._join(await self._new(await self._matching(deadline), deadline), deadline, later=True)
            except TRANSIENT as error:
                _log.debug("looking for topics that match %s: %s", self._pattern, error)

    def left(self, topic: str, error: TxnError) -> None:
        """The topic was left because of an error."""
        layout = self._session.directory.known_layout(topic)
        self._gone[topic] = 0 if layout is None else layout.life, error, 0

    async def _matching(self, deadline: Deadline) -> list[str]:
        command = pb.Command(list_topics=pb.ListTopics(prefix=self._pattern.prefix))
        reply = await any_server.call(self._session, command, "listing topics")
        if deadline.passed:
            raise deadline.expired("listing topics")
        return [topic for topic in reply.names.names if self._pattern.matches(topic)]

    async def _new(self, matching: Sequence[str], deadline: Deadline) -> list[str]:
        self._gone = {topic: gone for topic, gone in self._gone.items() if topic in matching}
        found = []
        for topic in matching:
            if topic in self._joined.topics:
                continue
            if topic not in self._gone or await self._is_another(topic, deadline):
                self._gone.pop(topic, None)
                found.append(topic)
        return found

    async def _is_another(self, topic: str, deadline: Deadline) -> bool:
        """Whether a topic of the name of one that was left is another one than that. Raises why it was left once it has
        been there as before for some looks: its subscription alone was deleted."""
        life, error, looks = self._gone[topic]
        try:
            layout = await self._session.directory.layout(topic, deadline)
        except TopicNotFound:
            return False
        if layout.is_another(life):
            return True
        if isinstance(error, SubscriptionNotFound) and looks:
            raise error
        self._gone[topic] = life, error, looks + 1
        return isinstance(error, TopicNotFound) and looks > 0

    async def _join(self, topics: Sequence[str], deadline: Deadline, *, later: bool) -> None:
        for at in range(0, len(topics), JOINED_AT_ONCE):
            some = topics[at : at + JOINED_AT_ONCE]
            joins = (self._joined.join_topic(topic, deadline, later=later) for topic in some)
            for result in await asyncio.gather(*joins, return_exceptions=True):
                if isinstance(result, BaseException) and not isinstance(result, TopicNotFound):  # deleted since
                    raise result
