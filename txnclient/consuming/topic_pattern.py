"""A consumer's topics by a pattern: joins those that match as they appear, and leaves deleted ones quietly."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from txnclient.connection import any_server
from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import TRANSIENT, Session
from txnwire.errors import DataCorrupt, InvalidArgument, StoreFull, SubscriptionNotFound, TopicNotFound, TxnError
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
        """`left_out`: whether the consumer must not join a topic though its name matches."""
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
        """The common prefix of all names that match, without the scheme; "" if the pattern does not show one."""
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
    def check_topic(self, topic: str) -> None:
        """Raises `InvalidArgument` if its name keeps it from being one of them."""

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
        self._refused: dict[str, None] = {}
        """Topics whose names keep them from being joined."""
        self._damaged: dict[str, None] = {}
        """The messages logged about records that cannot be read."""

    async def join(self, deadline: Deadline) -> None:
        """Join all that match now. Raises as a join does."""
        matching = await self._matching(deadline)
        for topic in matching:
            self._joined.check_topic(topic)
        for some in _in_parts(matching):
            for error in await self._join(some, deadline, later=False):
                raise error

    async def follow(self) -> None:
        """Look again for ever. Raises what keeps a topic from being joined, and does not pass."""
        while True:
            await asyncio.sleep(LOOK_S)
            deadline = self._session.deadline(LOOK_TIMEOUT_S)
            try:
                new = await self._new(await self._matching(deadline), deadline)
            except TRANSIENT as error:
                _log.debug("looking for topics that match %s: %s", self._pattern, error)
            else:
                await self._join_new(new)

    async def _join_new(self, topics: Sequence[str]) -> None:
        """▲ Topics that cannot be joined now must not delay the others: each part has its own deadline. A full store
        does not end the consumer either: only the subscription of a new topic needs room there."""
        for some in _in_parts(topics):
            for error in await self._join(some, self._session.deadline(LOOK_TIMEOUT_S), later=True):
                if isinstance(error, DataCorrupt):
                    self._tell_damaged(error)
                elif not isinstance(error, (*TRANSIENT, StoreFull)):
                    raise error
                _log.debug("joining topics that match %s: %s", self._pattern, error)

    def _tell_damaged(self, error: DataCorrupt) -> None:
        """▲ The other topics must not wait until the records of a damaged one are repaired: it is logged, once."""
        if (text := str(error)) not in self._damaged:
            self._damaged[text] = None
            _log.warning("a topic matches %s, and is not joined before it is repaired: %s", self._pattern, text)

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
        there, joined = dict.fromkeys(matching), dict.fromkeys(self._joined.topics)
        self._gone = {topic: gone for topic, gone in self._gone.items() if topic in there}
        self._refused = {topic: None for topic in self._refused if topic in there}
        found = []
        for topic in matching:
            if topic in joined or self._is_refused(topic):
                continue
            if topic not in self._gone or await self._is_another(topic, deadline):
                self._gone.pop(topic, None)
                found.append(topic)
        return found

    async def _is_another(self, topic: str, deadline: Deadline) -> bool:
        """Whether the topic that now has the name of one that was left is another topic. Raises the error that made the
        consumer leave if several looks find the same topic: only its subscription was deleted. ▲ A topic that cannot be
        looked up now must not delay the others, nor end their consumer."""
        life, error, looks = self._gone[topic]
        try:
            # ▲ Also when the time is up: another topic that cannot be looked up may have used up this look's.
            layout = await self._session.directory.layout(topic, deadline)
        except DataCorrupt as damage:
            self._tell_damaged(damage)
            return False
        except (TopicNotFound, *TRANSIENT) as unknown:
            _log.debug("looking for %s, which was left: %s", topic, unknown)
            return False
        if layout.is_another(life):
            return True
        if isinstance(error, SubscriptionNotFound) and looks:
            raise error
        self._gone[topic] = life, error, looks + 1
        return isinstance(error, TopicNotFound) and looks > 0

    def _is_refused(self, topic: str) -> bool:
        """▲ A user who creates a topic must not end the consumers of all others by its name: it is logged, once."""
        if topic not in self._refused:
            try:
                self._joined.check_topic(topic)
            except InvalidArgument as error:
                self._refused[topic] = None
                _log.warning("topic %s matches %s, and is left out: %s", topic, self._pattern, error)
        return topic in self._refused

    async def _join(self, topics: Sequence[str], deadline: Deadline, *, later: bool) -> list[BaseException]:
        """Returns why some of them could not be joined, if not for their deletion."""
        joins = (self._joined.join_topic(topic, deadline, later=later) for topic in topics)
        results = await asyncio.gather(*joins, return_exceptions=True)
        return [one for one in results if isinstance(one, BaseException) and not isinstance(one, TopicNotFound)]


def _in_parts(topics: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(topics), JOINED_AT_ONCE):
        yield topics[at : at + JOINED_AT_ONCE]
