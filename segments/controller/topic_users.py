"""Counts the users of topics known to the controller: registered producers, and members of subscriptions, idle or not.

Kept over all terms of one process: connections outlive terms, and their clients may not notice a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from segments.controller.stream_group import ConsumerLink
from segments.controller.stream_groups import GroupKey


class TopicUsers:
    """Counts users per topic. `links`: members of subscriptions, with their connections; `joining`: joins in flight."""

    def __init__(
        self, links: Mapping[GroupKey, Mapping[str, ConsumerLink]], joining: Mapping[tuple[GroupKey, str], object]
    ) -> None:
        self._links = links
        self._joining = joining
        self._producers: dict[str, dict[tuple[ConsumerLink, int], None]] = {}
        """Topic path → (connection with producers of it, life of the topic)."""
        self._topics: dict[ConsumerLink, dict[tuple[str, int], None]] = {}
        self._coming: dict[object, tuple[str, ConsumerLink, int]] = {}
        """Registrations whose topic is not yet known to exist."""
        self._marking: dict[str, dict[asyncio.Future[None], None]] = {}

    # ---- producers --------------------------------------------------------------------------------------------------

    def comes(self, topic_path: str, link: ConsumerLink, life: int) -> object:
        """A connection registers, and counts provisionally from now until `came`."""
        coming = object()
        self._coming[coming] = topic_path, link, life
        return coming

    def came(self, coming: object, life: int | None) -> None:
        """The registration is for this life of the topic; None: it failed. ▲ Ignored if it left or was lost meanwhile:
        it would count for ever."""
        if (found := self._coming.pop(coming, None)) is not None and life is not None:
            topic_path, link, _ = found
            self._producers.setdefault(topic_path, {})[link, life] = None
            self._topics.setdefault(link, {})[topic_path, life] = None

    def leave(self, topic_path: str, link: ConsumerLink, life: int) -> None:
        """The connection has no more producers of that life; 0: of any. ▲ It may have some of the next life already."""
        for coming, found in list(self._coming.items()):
            if found == (topic_path, link, life):
                del self._coming[coming]
        for path, known in list(self._topics.get(link, {})):
            if path == topic_path and life in (0, known):
                self._forget(link, path, known)

    def disconnected(self, link: ConsumerLink) -> None:
        for coming, found in list(self._coming.items()):
            if found[1] is link:
                del self._coming[coming]
        for path, known in list(self._topics.get(link, {})):
            self._forget(link, path, known)

    def _forget(self, link: ConsumerLink, topic_path: str, life: int) -> None:
        of_topic, of_link = self._producers[topic_path], self._topics[link]
        del of_topic[link, life]
        del of_link[topic_path, life]
        if not of_topic:
            del self._producers[topic_path]
        if not of_link:
            del self._topics[link]

    # ---- counting ---------------------------------------------------------------------------------------------------

    def producers(self, topic_path: str, life: int) -> int:
        """Number of connections with producers of this life of the topic."""
        found = {link: None for link, known in self._producers.get(topic_path, {}) if known == life}
        coming = {
            link: None for path, link, known in self._coming.values() if path == topic_path and known in (0, life)
        }
        return len(found | coming)

    def consumers(self, topic_path: str, subscription: str | None) -> int:
        """Number of connected or joining members of a subscription, or of all."""
        found: dict[tuple[GroupKey, str], None] = {}
        for key, links in self._links.items():
            if key[0] == topic_path and subscription in (None, key[1]):
                found |= dict.fromkeys((key, consumer) for consumer in links)
        for key, consumer in self._joining:
            if key[0] == topic_path and subscription in (None, key[1]):
                found[key, consumer] = None
        return len(found)

    # ---- while a topic, or a subscription of it, is marked ----------------------------------------------------------

    @contextmanager
    def marking(self, topic_path: str) -> Iterator[None]:
        """▲ Registrations and joins wait in this context, then check for the mark. Otherwise one could slip between the
        last count and the mark, succeed, and lose its topic."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._marking.setdefault(topic_path, {})[over] = None
        try:
            yield
        finally:
            over.set_result(None)
            del self._marking[topic_path][over]
            if not self._marking[topic_path]:
                del self._marking[topic_path]

    async def wait_marked(self, topic_path: str) -> None:
        while marks := self._marking.get(topic_path):
            await asyncio.wait(list(marks))
