"""A queue whose worker gives up on many messages: each goes to a dead-letter topic exactly once, under all faults. A
move is a transaction of the worker's client that sends a copy and acks the original.

At the end each message of the topic was acked, or is in the dead-letter topic once, or is still there; and none is in
two of these places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import txnclient
from simulation.clients.draining import WorkloadDrain, read_all, take_all
from simulation.clients.life import LoggedLife
from simulation.clients.plan import TOPICS
from txnclient.consuming.consumer import Consumer
from txnclient.consuming.feeds.dead_letters import ORIGIN_MESSAGE_ID
from txnwire.errors import TopicNotFound

TOPIC = TOPICS[1]
DEAD = "topic://public/sim/dead"
SUBSCRIPTION = "fragile"
GIVEN_UP_SHARE = 0.5


@dataclass(slots=True)
class DeadLog:
    """`acked`: values with a requested ack outside of transactions, which a crash may forget. `dead`: (origin, value)
    of the copies; `left`, `visible`: values found at the end."""

    acked: dict[str, None] = field(default_factory=dict)
    dead: list[tuple[str, str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    visible: list[str] = field(default_factory=list)

    def findings(self) -> Iterator[str]:
        for origin, count in Counter(origin for origin, _ in self.dead).items():
            if count > 1:
                yield f"dead letters: the message {origin} was moved {count} times"
        values, visible, left = [value for _, value in self.dead], dict.fromkeys(self.visible), dict.fromkeys(self.left)
        for value in dict.fromkeys(values):
            if values.count(value) > 1:
                yield f"dead letters: {value} was moved {values.count(value)} times"
            if value in left:
                yield f"dead letters: {value} was moved, and came at the end as well"
            if value not in visible:
                yield f"dead letters: {value} was moved and is not visible where it came from"
        gone = {**dict.fromkeys(values), **self.acked, **left}
        yield from (f"dead letters: {value} is neither acked, moved nor left" for value in visible if value not in gone)


class DeadLife(LoggedLife[DeadLog]):
    """One life of the worker. It ends after a while."""

    async def _work(self, client: txnclient.Client) -> None:
        await self._careless.call(client.create_topic(TOPIC, segments=self._plan.segments))
        until = self._now() + self._random.uniform(5.0, 40.0)
        consuming = client.consumer(
            TOPIC, SUBSCRIPTION, type="queue", prefetch=self._random.choice((5, 50)),
            max_redeliveries=self._random.choice((0, 1, 2)), dead_letter_topic=DEAD,
        )  # fmt: skip
        async with self._careless.within(consuming) as consumer:
            await self._repeat(partial(self._turn, consumer), pause_s=8 * self._plan.pause_s, until=until)

    async def _turn(self, consumer: Consumer) -> None:
        messages = await self._careless.call(consumer.receive_many(self._random.randrange(1, 12), timeout=1.0))
        back = [message for message in messages if self._random.random() < GIVEN_UP_SHARE]
        kept = [message for message in messages if message not in back]
        if back:
            await self._careless.call(consumer.nack(back, delay=self._random.choice((0.0, 0.5))))
        if kept:
            self._log.acked.update((message.value.decode(), None) for message in kept)
            await self._careless.call(consumer.ack(kept))


class DeadDrain(WorkloadDrain[DeadLog]):
    async def _read(self, client: txnclient.Client) -> None:
        log = self._log
        log.visible += [message.value.decode() for message in await read_all(client, TOPIC)]
        async with client.consumer(TOPIC, SUBSCRIPTION, type="queue") as consumer:
            log.left += [message.value.decode() for message in await take_all(consumer, self._plan.lags)]
        with suppress(TopicNotFound):  # none has died
            dead = await read_all(client, DEAD)
            log.dead += [(message.properties[ORIGIN_MESSAGE_ID], message.value.decode()) for message in dead]
