"""Deletions that are repeated because an earlier request may have been carried out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import TOPIC, Cluster, ScriptedServer
from txnwire.errors import StoreUnavailable, TxnError
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.serving import Handler, Peer

LIFE = 7


class Deleting(ScriptedServer):
    """A controller that answers the first deletion with `answer` and finds nothing to delete at the second one."""

    answer: TxnError
    asked: list[int]
    """The lives that requests have named."""

    @property
    def handlers(self) -> Mapping[str, Handler]:
        self.asked = []
        return {
            **super().handlers,
            "delete_topic": self._delete_topic,
            "delete_subscription": self._delete_subscription,
        }

    def _delete_topic(self, peer: Peer, command: pb.Command) -> pb.Command:
        return self._delete(command.delete_topic.life, txnclient.TopicNotFound(f"{TOPIC} does not exist"))

    def _delete_subscription(self, peer: Peer, command: pb.Command) -> pb.Command:
        return self._delete(command.delete_subscription.life, txnclient.SubscriptionNotFound("there is no sub"))

    def _delete(self, life: int, gone: TxnError) -> pb.Command:
        self.asked.append(life)
        if not life:
            return pb.Command(life=pb.Life(life=LIFE))
        raise self.answer if self.asked.count(LIFE) == 1 else gone


@asynccontextmanager
async def connected(answer: TxnError) -> AsyncIterator[tuple[Deleting, txnclient.Client]]:
    cluster = Cluster()
    server = cluster.servers["broker:1"] = Deleting(cluster, "broker:1")
    server.answer = answer
    await server.start()
    async with txnclient.connect(
        "txn://broker:1", transport=cluster.transport, clock=cluster.clock, random=Random(1)
    ) as client:
        yield server, client
    await cluster.stop()


async def delete(client: txnclient.Client, what: str) -> None:
    if what == "topic":
        await client.delete_topic(TOPIC)
    else:
        await client.delete_subscription(TOPIC, "sub")


@pytest.mark.parametrize("what", ["topic", "subscription"])
@virtual_time
async def test_a_deletion_that_the_store_had_not_confirmed_is_done_if_the_repeat_finds_nothing(what: str) -> None:
    """▲ Who is told that there is none would look for what else has deleted it."""
    async with connected(txnclient.Timeout("the store has not confirmed it yet; repeat it")) as (server, client):
        await delete(client, what)
        assert server.asked == [0, LIFE, LIFE], "a repeat is of the same life"


@pytest.mark.parametrize("what", ["topic", "subscription"])
@virtual_time
async def test_a_deletion_that_was_surely_not_made_does_not_take_another_s_for_its_own(what: str) -> None:
    async with connected(StoreUnavailable("etcd does not answer")) as (server, client):
        with pytest.raises((txnclient.TopicNotFound, txnclient.SubscriptionNotFound)):
            await delete(client, what)
        assert server.asked == [0, LIFE, LIFE]
