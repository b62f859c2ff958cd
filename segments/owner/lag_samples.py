"""Counts now and then how far subscriptions are behind in a broker's segments, for its metrics.

A scrape must not read ledgers, so it shows what was counted last. Segments are counted one after the other, with one
budget: where much has to be read the lag is unknown for a few rounds. The subscriptions of a topic are read from
the store once a minute, because only the store knows those without consumers, whose lag matters most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import structlog

from segments.layout.directory import topic_path_of
from segments.subscription.lag import LagBudget, SegmentLags
from txnstore.records import SubscriptionRecord
from txnwire.errors import TxnError
from txnwire.ports import Clock
from txnwire.tasks import defect, restarted

log = structlog.get_logger(__name__)

RELIST_S: Final = 60.0
ROUND_BYTES: Final = 64 * 1024 * 1024
ROUND_WITHIN_S: Final = 10.0
"""Limit on the reading time of one round over all segments; after it, a lag that needs reading is unknown."""


class SampledSubscriptions(Protocol):
    lags: SegmentLags


class SampledSegment(Protocol):
    """A segment, as the sampler reads it."""

    path: str

    @property
    def subscriptions(self) -> SampledSubscriptions: ...


class LagSampler:
    """Renews the samples of one broker's segments. `segments`: those it serves now. `every_s`: between rounds; 0:
    never."""

    def __init__(self, clock: Clock, segments: Callable[[], Iterable[SampledSegment]], *, every_s: float) -> None:
        self._clock = clock
        self._segments = segments
        self._every_s = every_s
        self._definitions: dict[str, tuple[float, Mapping[str, SubscriptionRecord | None]]] = {}
        """By topic: when they were read, and the subscriptions by name."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._every_s > 0:
            self._task = restarted(self._run, name="lag samples")

    async def close(self) -> None:
        """Idempotent."""
        if (task := self._task) is not None:
            self._task = None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.sample()

    async def sample(self) -> None:
        """Count in every segment once. Where that fails nothing is known until the next round."""
        served = list(self._segments())
        topics = {topic_path_of(segment.path) for segment in served}
        self._definitions = {topic: found for topic, found in self._definitions.items() if topic in topics}
        budget = LagBudget(self._clock, read_bytes=ROUND_BYTES, within_s=ROUND_WITHIN_S)
        for segment in served:
            lags = segment.subscriptions.lags
            try:
                await lags.sample(await self._of_topic(topic_path_of(segment.path), lags), budget)
            except TxnError as error:
                lags.forget_sample()
                log.info("lag_not_sampled", segment=segment.path, error=str(error))
            except Exception as error:  # noqa: BLE001  (reported; the other segments are still sampled)
                lags.forget_sample()
                defect("lag samples", segment.path, error)
            await asyncio.sleep(0)

    async def _of_topic(self, topic: str, lags: SegmentLags) -> Mapping[str, SubscriptionRecord | None]:
        read = self._definitions.get(topic)
        if read is None or self._clock.monotonic() - read[0] >= RELIST_S:
            read = self._definitions[topic] = self._clock.monotonic(), await lags.definitions()
        return read[1]
