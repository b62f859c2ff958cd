"""Consumers of a stream subscription seek, rewind, join, leave, pause and ack late, over a changing layout, while the
subscription and its topic are deleted and made again under their names. `seek_model` says what each must get, and what
none may get any more.

One process hosts a consumer that stays and one that comes and goes, so that segments leave either of them and come
back. It seeks to both ends, to times by the producers' clocks, and to messages. It also uses positions of another topic
and of former lives in every request with a position, which must be refused. It acks messages after a seek that it
received before: such an ack is void. It acks or keeps each receipt, singly or cumulatively over all segments, in
transactions and outside. Another process sends, with another clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import txnclient
from simulation.clients.draining import CALL_TIMEOUT_S, WorkloadDrain, outcomes_of, read_all, take_all
from simulation.clients.life import LoggedLife
from simulation.clients.plan import TOPICS, ClientPorts, Plan
from simulation.clients.recorder import place_of
from simulation.seeking.seek_member import SeekMember, seen_of
from simulation.seeking.seek_model import EARLIEST, LATEST, MESSAGE, TIME, Point, SeekLog
from simulation.seeking.seek_sending import TOPIC, SoughtSender
from simulation.seeking.seek_trials import Trials, asks_elsewhere
from txnclient.connection.opening import Opening
from txnclient.consuming.consumer import Consumer
from txnclient.consuming.received.message import Message
from txnwire.errors import InvalidArgument, NotAllowed, SubscriptionNotFound, TopicNotFound, TxnError
from txnwire.ids import MessageId
from txnwire.ports import Transport

SUBSCRIPTION = "sought"
OTHER_TOPIC = TOPICS[1]


class SeekLife(LoggedLife[SeekLog]):
    """One life of the process. It ends after a while."""

    def __init__(self, ports: ClientPorts, plan: Plan, log: SeekLog) -> None:
        super().__init__(ports, plan, log)
        self._strangers: list[Message] = []
        """Messages received elsewhere."""
        self._kept: list[tuple[Message, int]] = []
        """The host's receipts of this topic, with their numbers."""

    def _connect(self) -> Opening[txnclient.Client]:
        return self._plan.connect(self._ports, timeout=15.0)

    def _ended_by(self, error: TxnError) -> None:
        if isinstance(error, TopicNotFound):
            # A deletion requested by a former life, and under way when that was killed, has landed late.
            self._log.ready = False
        elif isinstance(error, SubscriptionNotFound):
            self._log.unsubscribing = True
        else:
            self._met(error)

    async def _work(self, client: txnclient.Client) -> None:
        async with self._connected() as other:
            sending = asyncio.ensure_future(SoughtSender(self._ports, self._plan, self._log).go_on(client))
            try:
                await self._host_and_guest(client, other)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    async def _host_and_guest(self, client: txnclient.Client, other: txnclient.Client) -> None:
        log = self._log
        until = self._now() + self._random.uniform(10.0, 60.0)
        await self._careless.call(self._look_elsewhere(client))
        while self._goes_on(until):
            if not log.ready:
                await self._make_topic(client)
            topic_until = min(until, self._now() + self._random.uniform(4.0, 25.0))
            while self._goes_on(topic_until):
                await self._one_subscription(client, other)
            if self._goes_on(until):
                log.ready = False

    async def _make_topic(self, client: txnclient.Client) -> None:
        log = self._log
        if log.life:
            with suppress(TopicNotFound):
                await self._careless.call(client.delete_topic(TOPIC, force=True), weight=3)
            self._strangers = [*self._strangers[:1], *(message for message, _ in self._kept[-3:])]
        log.next_topic()
        self._kept = []
        await self._careless.call(client.create_topic(TOPIC, segments=self._random.choice((1, 2, 3))))
        log.ready = True

    async def _look_elsewhere(self, client: txnclient.Client) -> None:
        await client.create_topic(OTHER_TOPIC, segments=self._plan.segments)
        async with client.reader(OTHER_TOPIC, start="earliest") as reader:
            self._strangers += await reader.receive_many(1, timeout=0.5)

    async def _one_subscription(self, client: txnclient.Client, other: txnclient.Client) -> None:
        log = self._log
        if log.unsubscribing:
            with suppress(SubscriptionNotFound):
                await self._careless.call(client.delete_subscription(TOPIC, SUBSCRIPTION, force=True), weight=3)
            log.unsubscribed()
        point, start = (None, EARLIEST) if log.joined else self._drawn([], joins=True)
        consuming = client.consumer(TOPIC, SUBSCRIPTION, name="host", start=start)
        async with self._careless.within(consuming) as consumer:
            if point is not None:
                log.has_begun(point)
            guest = asyncio.ensure_future(self._guest(other))
            try:
                await self._host(client, SeekMember(client, consumer, log, self._random, self._careless, self._kept))
            finally:
                guest.cancel()
                await asyncio.gather(guest, return_exceptions=True)
        if self._plan.active and self._random.random() < 0.4:
            log.unsubscribing = True

    # ---- the one that stays, and seeks ----

    async def _host(self, client: txnclient.Client, member: SeekMember) -> None:
        until = self._now() + self._random.uniform(2.0, 14.0)
        while self._goes_on(until):
            reads_until = self._now() + self._random.expovariate(1 / 1.5)
            while self._goes_on(reads_until):
                await self._pause(self._plan.pause_s)
                await member.work()
            drawn = self._random.random()
            if drawn < 0.1:
                member.rewind()
            elif drawn < 0.2:
                await asyncio.sleep(self._random.uniform(0.5, 6.0))
            elif drawn < 0.35:
                await self._ask_elsewhere(client, member.consumer)
            else:
                await self._seek(client, member)
                if self._random.random() < 0.5:
                    await member.ack_late()

    def _drawn(self, times_ms: Sequence[int], *, joins: bool = False) -> tuple[Point, str | int | MessageId]:
        """A place to go to, recorded."""
        log, drawn = self._log, self._random.random()
        if drawn < 0.25 and times_ms:
            time_ms = self._random.choice(times_ms) + self._random.choice((-1, 0, 1))
            return log.begins(TIME, time_ms=time_ms, joins=joins), time_ms
        if drawn < 0.5 and log.ids:
            at = MessageId.parse(self._random.choice(log.ids))
            return log.begins(MESSAGE, place=place_of(at), joins=joins), at
        kind = LATEST if drawn > 0.85 else EARLIEST
        return log.begins(kind, joins=joins), kind

    async def _seek(self, client: txnclient.Client, member: SeekMember) -> None:
        point, start = self._drawn(member.times_ms)
        by_consumer = self._random.random() < 0.7
        seeking = member.consumer.seek(start) if by_consumer else client.seek_subscription(TOPIC, SUBSCRIPTION, start)
        await self._careless.call(seeking, weight=3)
        self._log.has_begun(point)

    async def _ask_elsewhere(self, client: txnclient.Client, consumer: Consumer) -> None:
        """▲ A foreign position must not mean the earliest: every cursor would be set back, or a new subscription begin
        there."""
        log = self._log
        known = [*map(MessageId.parse, log.foreign[-6:]), *(one.id for one in self._strangers)]
        if not known:
            return
        at = self._random.choice(known)
        stranger = self._random.choice(self._strangers) if self._strangers else None
        asks = asks_elsewhere(client, consumer, TOPIC, SUBSCRIPTION, at, stranger)
        what = self._random.choice(list(asks))
        try:
            if await self._careless.call(asks[what](), weight=3) is False:
                return
        except InvalidArgument:
            log.refused += 1
        except NotAllowed:
            if not what.startswith("ack"):
                raise
            log.refused += 1
        else:
            where = stranger.id if stranger is not None and what.startswith("ack") else at
            log.breaches.append(f"sought: {what} at {where}, of another topic or a former life, was taken")

    # ---- the one that comes and goes ----

    async def _guest(self, client: txnclient.Client) -> None:
        while self._plan.active:
            await self._pause(2.0)
            try:
                self._log.guest_joins = True
                consuming = client.consumer(TOPIC, SUBSCRIPTION, name="guest", start="earliest")
                async with self._careless.within(consuming) as consumer:
                    self._log.guest_joins = False
                    await self._be_guest(SeekMember(client, consumer, self._log, self._random, self._careless, []))
            except TxnError as error:
                if error.fatal or isinstance(error, TopicNotFound | SubscriptionNotFound):
                    return  # the host hears of it as well
                self._met(error)

    async def _be_guest(self, member: SeekMember) -> None:
        until = self._now() + self._random.uniform(1.0, 15.0)
        while self._goes_on(until):
            await self._pause(4 * self._plan.pause_s)
            drawn = self._random.random()
            if drawn < 0.05:
                await asyncio.sleep(self._random.uniform(1.0, 12.0))  # with all that it holds
            elif drawn < 0.15:
                await member.ack_late()
            elif drawn < 0.2:
                member.rewind()
            else:
                await member.work()


class SeekDrain(WorkloadDrain[SeekLog]):
    async def _read(self, client: txnclient.Client) -> None:
        log = self._log

        def connect(transport: Transport) -> Opening[txnclient.Client]:
            return self._plan.connect(self._ports, timeout=CALL_TIMEOUT_S, transport=transport)

        if log.ready and not log.unsubscribing:
            try:
                await self._judge(client)
            except (TopicNotFound, SubscriptionNotFound):
                log.ready = False  # a deletion of a former life has come late
        ports = self._ports
        trials = Trials(client, connect, ports.transport, TOPIC, SUBSCRIPTION, ports.random, log.breaches.append)
        await trials.run()

    async def _judge(self, client: txnclient.Client) -> None:
        log = self._log
        txn_ids = [*log.sent_within.values(), *(one.txn_id for one in log.within)]
        log.outcomes = await outcomes_of(client, list(dict.fromkeys(txn_ids)))
        for message in await read_all(client, TOPIC):
            log.visible += seen_of([message])
            log.published_ms[message.value.decode()] = message.publish_time_ms
        if not log.joined:
            log.begins(EARLIEST, joins=True)
        async with client.consumer(TOPIC, SUBSCRIPTION, name="drain", start="earliest") as consumer:
            log.again += [value for *_, value in seen_of(await take_all(consumer))]
            await consumer.seek("earliest")
            log.left += seen_of(await take_all(consumer, self._plan.lags))
        log.ended = True
