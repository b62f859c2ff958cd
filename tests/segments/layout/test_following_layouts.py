"""The controller's part in how subscriptions follow splits and merges: who is told of which segments."""

from __future__ import annotations

import asyncio

import pytest

from tests.segments.controlling import TOPIC, Inbox, Process, assignment_of, joining, running, with_topic
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.waiting import until_answer
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.records import Drained, encode
from txnstore.store import Commit, Delete, Put
from txnwire.errors import InvalidArgument
from txnwire.proto import txn_pb2 as pb


@virtual_time
async def test_s7_children_are_assigned_once_their_parent_is_drained_and_taken_away_when_it_is_read_again() -> None:
    """By whoever leads, at once or taking over."""
    etcd = MemoryEtcd(LoopClock())
    async with running(etcd, "a", "b") as [a, b]:
        await with_topic(a, 1)
        worker = Inbox()
        await a.controller.join(joining("w"), worker)
        split = (await a.directory.wait_topic(TOPIC.path)).split(0)
        drained = keys.drained(TOPIC.path, "s", 0)
        parent, *children = split.paths.values()

        async def assigned(process: Process, expected: list[str]) -> None:
            await until_answer(
                lambda: assignment_of(process.store),
                lambda found: found.consumers == {f"w@{1:016x}": expected},
                f"{expected} to be assigned",
                within_s=10.0,
                longest_poll_s=0.05,
            )

        # What is drained is told before the layout is: what is active there stays assigned.
        await a.store.commit(Commit(puts=(Put(drained, encode(Drained(end=(1, 0)))),)))
        await asyncio.sleep(1.0)
        await assigned(a, [parent])
        await a.store.commit(Commit(puts=(Put(keys.topic(TOPIC.path), encode(split.record)),)))
        await assigned(a, children)
        assert [list(one.segments) for one in worker.pushed] == [children]
        await a.store.commit(Commit(deletes=(Delete(drained),)))
        await assigned(a, [parent])
        await a.store.commit(Commit(puts=(Put(drained, encode(Drained(end=(1, 0)))),)))
        a.kill()
        await b.controller.wait_leading(timeout_s=60.0)
        await b.controller.join(joining("w"), Inbox())
        await assigned(b, children)


@virtual_time
async def test_queues_are_told_of_all_that_is_not_drained() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a, 1)
        worker = Inbox()
        queue = joining("w", type=pb.SUBSCRIPTION_TYPE_QUEUE)
        await a.controller.join(queue, worker)
        split = (await a.directory.wait_topic(TOPIC.path)).split(0)
        drained = keys.drained(TOPIC.path, "s", 0)
        parent, *children = split.paths.values()
        await a.store.commit(Commit(puts=(Put(keys.topic(TOPIC.path), encode(split.record)),)))
        await asyncio.sleep(1.0)
        await a.store.commit(Commit(puts=(Put(drained, encode(Drained(end=(1, 0)))),)))
        await asyncio.sleep(1.0)
        await a.store.commit(Commit(deletes=(Delete(drained),)))
        await asyncio.sleep(1.0)
        told = [list(one.segments) for one in worker.pushed]
        assert told == [[parent, *children], children, [parent, *children]]
        assert (await a.controller.join(queue, worker)).segments == told[-1]


@virtual_time
async def test_a_start_in_a_segment_that_has_gone_matters_only_to_who_creates_the_subscription() -> None:
    """Its consumers join again with it, whenever the controller changes."""
    async with running(MemoryEtcd(LoopClock()), "a", "b") as [a, b]:
        await with_topic(a, 1)
        topology = await a.directory.wait_topic(TOPIC.path)
        start = pb.Start(segment=topology.paths[0], ledger_id=1, entry_id=1)
        await a.controller.join(joining("w", start=start, type=pb.SUBSCRIPTION_TYPE_QUEUE), Inbox())
        gone = topology.split(0).prune(0)
        await a.store.commit(Commit(puts=(Put(keys.topic(TOPIC.path), encode(gone.record)),)))
        a.kill()
        await b.controller.wait_leading(timeout_s=60.0)
        joined = await b.controller.join(joining("w", start=start, type=pb.SUBSCRIPTION_TYPE_QUEUE), Inbox())
        assert list(joined.segments) == list(gone.active_paths)
        with pytest.raises(InvalidArgument, match="no such segment"):
            await b.controller.join(joining("w", subscription="new", start=start), Inbox())
