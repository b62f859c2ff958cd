"""S5, S11, L7 at random: producers write while segments are sealed, split, merged, given up and pruned of their
owners, connections are cut and answers lost. What is acked is stored once, in the order of each key; nothing is stored
in a child before all that the producer has in its ancestors is.

Leaves out: values in pieces (`test_a7_two_values_in_pieces_are_moved_in_order`), messages without a key
(`test_messages_without_a_key_stay_together_and_in_order`), segments that the layout has forgotten
(`test_what_was_written_to_a_forgotten_segment_is_of_unknown_outcome_and_never_sent_again`), a second producer of the
name (`test_l10_a_fenced_producer_is_told_and_loses_nothing_that_was_acked`), a close
(`test_flush_and_close_wait_for_all_that_was_divided`), numbered producers
(`test_over_splits_and_merges_every_ancestor_is_asked`), brokers of our own (`test_moving_with_cluster.py`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import TOPIC, Cluster, ScriptedServer, connected
from tests.waiting import until
from txnclient.producing.producer import producer_impl
from txnwire.entry import decode_block
from txnwire.errors import NotOwner, SequenceGap

KEYS = [f"k{number}" for number in range(24)]
BROKERS = ("broker:1", "broker:2", "broker:3")


class Faults:
    """What happens to a cluster, one thing after the other."""

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self.cluster = cluster
        self.random = random
        for one in cluster.servers.values():
            one.dedups = cluster.servers[BROKERS[0]].dedups  # each recovers what its predecessor had
            one.epochs = cluster.servers[BROKERS[0]].epochs

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            await asyncio.sleep(self.random.uniform(0, 0.3))
            await self.random.choice(
                [self.change, self.change, self.cut, self.lose, self.refuse, self.stall, self.move]
            )()
        self.heal()

    def heal(self) -> None:
        for server in self.cluster.servers.values():
            server.lose_replies.clear()
            server.refuse.clear()
            server.stall_sends = False
            server.finish_sends()
        for segment in self.cluster.topology.active:
            self.cluster.sealed.pop(self.cluster.path(segment.id), None)

    async def change(self) -> None:
        """A split or a merge, with or without a pause behind its seal, told or not, or given up."""
        cluster, random = self.cluster, self.random
        active = cluster.topology.active
        number = random.randrange(len(active))
        parents = [active[number].id]
        if len(active) > 3 or (random.random() < 0.4 and len(active) > 1):
            parents = [one.id for one in active[min(number, len(active) - 2) :][:2]]
        elif active[number].hi - active[number].lo < 2:
            return
        for parent in parents:
            cluster.seal(parent, told=random.random() < 0.7)
            await asyncio.sleep(random.choice([0, 0, 0.05]))
        if random.random() < 0.2:
            for parent in parents:
                cluster.unseal(parent)
            return
        if len(parents) == 2:
            cluster.merge(*parents, owner=random.choice(BROKERS))
        else:
            cluster.split(parents[0], owner=random.choice(BROKERS))

    async def cut(self) -> None:
        await self.some_server().cut()

    async def lose(self) -> None:
        self.some_server().lose_replies[self.random.choice(["send", "open_producer"])] += 1

    async def refuse(self) -> None:
        error = self.random.choice([NotOwner("not here"), SequenceGap("a gap"), txnclient.Overloaded("full")])
        self.some_server().refuse.setdefault("send", []).append(error)

    async def stall(self) -> None:
        server = self.some_server()
        server.stall_sends = not server.stall_sends
        if not server.stall_sends:
            server.finish_sends()

    async def move(self) -> None:
        path = self.random.choice(list(self.cluster.owners))
        for server in self.cluster.servers.values():
            server.finish_sends()  # a successor begins behind all that its predecessor has stored
        self.cluster.move(path, self.random.choice(BROKERS))

    def some_server(self) -> ScriptedServer:
        return self.cluster.servers[self.random.choice(BROKERS)]


async def write(
    client: txnclient.Client,
    producer: txnclient.Producer,
    keys: list[str],
    random: Random,
    sent: dict[str, list[bytes]],
) -> None:
    """Sends of all kinds; `sent`: what each key must hold in the end, in order."""
    for number in range(40):
        chosen = [random.choice(keys) for _ in range(random.randrange(1, 12))]
        messages = [(key, b"%d-%d-%s" % (number, index, key.encode())) for index, key in enumerate(chosen)]
        txn = None
        if random.random() < 0.4:
            await producer.flush()  # what is outside a transaction and what is in one have no order
            txn = await client.begin()
        if random.random() < 0.5:
            futures = [producer.send_nowait(value, key=key, txn=txn) for key, value in messages]
            if random.random() < 0.7:
                await asyncio.gather(*futures)
        else:
            assert len(await producer.send_many(messages, txn=txn)) == len(messages)
        if txn is not None and random.random() < 0.3:
            await producer.flush()
            await txn.abort()
        elif txn is not None:
            await txn.commit()
        for key, value in messages:
            sent.setdefault(key, []).append(value)
        await asyncio.sleep(random.uniform(0, 0.3))
    await producer.flush()


def check_order(cluster: Cluster, sent: dict[str, list[bytes]]) -> None:
    found = {key: values for key, values in cluster.values_by_key().items() if key is not None}
    assert {key.decode(): values for key, values in found.items()} == sent


def check_parents_first(cluster: Cluster) -> None:
    """▲ S11: sequence ids rise with every entry a producer makes, so all in an ancestor are below those of its
    descendants."""
    for child in cluster.topology.segments:
        for parent in cluster.topology.ancestors(child):
            last = [last for _, last, _ in cluster.stored.get(cluster.path(parent), [])]
            first = [first for first, _, _ in cluster.stored.get(cluster.path(child), [])]
            if last and first:
                assert last[-1] < first[0], (cluster.path(parent), cluster.path(child))


@pytest.mark.parametrize("seed", range(25))
@virtual_time
async def test_s5_s11_l7_nothing_is_lost_doubled_or_out_of_order_per_key(seed: int) -> None:
    async with connected(*BROKERS, timeout=300) as (cluster, client):
        random = Random(seed)
        faults = Faults(cluster, random)
        sent: dict[str, list[bytes]] = {}
        producer = await client.producer(
            TOPIC, linger_ms=random.choice([0, 5, 50]), batch_bytes=random.choice([60, 2000])
        )
        writing = [
            asyncio.ensure_future(write(client, producer, KEYS[half::2], Random(seed + 1000 + half), sent))
            for half in range(2)
        ]
        await faults.run(60)
        await asyncio.gather(*writing)
        check_order(cluster, sent)
        check_parents_first(cluster)
        await until(lambda: producer_impl(producer)._channels._routes.layout.epoch == cluster.topology.epoch)
        assert producer_impl(producer)._buffer.taken == 0
        assert not producer_impl(producer)._pending
        assert not producer_impl(producer)._channels._routes.leaving
        assert len(producer_impl(producer)._channels._channels) <= len(cluster.topology.active)
        for entries in cluster.entries.values():
            for entry in entries:
                decode_block(entry)


async def write_in_a_hurry(
    client: txnclient.Client, producer: txnclient.Producer, random: Random
) -> list[tuple[str, int, asyncio.Future[txnclient.MessageId]]]:
    """Sends whose time may run out, transactions that are aborted or committed at any moment: key, number, answer."""
    sent = []
    number = 0
    txns: list[txnclient.Transaction] = []
    for _ in range(60):
        if random.random() < 0.3:
            txns.append(await client.begin())
        txn = random.choice(txns) if txns and random.random() < 0.6 else None
        for _ in range(random.randrange(1, 10)):
            number += 1
            key = random.choice(KEYS)
            sent.append((key, number, producer.send_nowait(b"%d" % number, key=key, txn=txn)))
        if txns and random.random() < 0.3:
            ending = txns.pop(random.randrange(len(txns)))
            with suppress(txnclient.Timeout, txnclient.InvalidTxnState):
                await (ending.abort() if random.random() < 0.5 else ending.commit())
        await asyncio.sleep(random.uniform(0, 0.3))
    with suppress(txnclient.Timeout):
        await producer.flush(timeout=60)
    for left in txns:
        with suppress(txnclient.Timeout):
            await left.abort()
    return sent


@pytest.mark.parametrize("seed", range(15))
@virtual_time
async def test_s5_l6_whatever_runs_out_of_time_or_is_aborted_nothing_is_doubled_and_nothing_acked_is_lost(
    seed: int,
) -> None:
    async with connected(*BROKERS, timeout=3) as (cluster, client):
        random = Random(seed)
        producer = await client.producer(TOPIC, linger_ms=random.choice([0, 5, 50]), batch_bytes=200)
        writing = asyncio.ensure_future(write_in_a_hurry(client, producer, Random(seed + 1000)))
        await Faults(cluster, random).run(60)
        sent = await writing
        found = cluster.values_by_key()
        for key, number, answer in sent:
            stored = found.get(key.encode(), []).count(b"%d" % number)
            assert stored <= 1, "doubled"
            assert answer.done()
            acked = not answer.cancelled() and answer.exception() is None
            assert stored == 1 or not acked, "lost"
        assert producer_impl(producer)._buffer.taken == 0
        assert not producer_impl(producer)._pending
