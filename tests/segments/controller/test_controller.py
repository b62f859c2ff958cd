"""The controller over an etcd in memory and in virtual time: topics, subscriptions, consumers that come and go."""

from __future__ import annotations

import asyncio

import pytest

from segments.layout.subscription_queries import describe_subscription, list_subscriptions
from tests.segments.controlling import (
    TOPIC,
    Inbox,
    assignment_of,
    joining,
    leaving,
    names_of,
    running,
    subscription_of,
    with_topic,
)
from tests.segments.virtual_time import LoopClock, virtual_time
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import Fate
from txnstore.records import SubscriptionRecord, TopicRecord, decode, encode
from txnstore.store import Commit, Put
from txnwire.errors import (
    InvalidArgument,
    NotAllowed,
    NotOwner,
    SubscriptionNotFound,
    Timeout,
    TopicExists,
    TopicNotFound,
)
from txnwire.ids import Position
from txnwire.names import TopicName
from txnwire.proto import txn_pb2 as pb

LOST_BEFORE = Fate(arrive_s=None, fail_s=0.5)
ANSWER_LOST = Fate(arrive_s=0.0, fail_s=0.5)
LANDS_LATE = Fate(arrive_s=3.0, fail_s=0.5)


# ---- topics ---------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_topic_is_created_once_and_again_with_the_same_shape() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await a.controller.create_topic(TOPIC, 3, '{"retention_ms": 5}')
        before = await a.store.get(keys.topic(TOPIC.path))
        await a.controller.create_topic(TOPIC, 3, '{"retention_ms": 5}')
        await a.controller.create_topic(TOPIC, 3, "")  # policies that are not named are not compared
        assert await a.store.get(keys.topic(TOPIC.path)) == before
        with pytest.raises(TopicExists, match="created with 3 segments"):
            await a.controller.create_topic(TOPIC, 4, "")
        with pytest.raises(TopicExists, match="retention_ms"):
            await a.controller.create_topic(TOPIC, 3, '{"retention_ms": 6}')


@virtual_time
async def test_a_topic_has_every_policy_that_it_is_created_with() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        both = '{"retention_bytes": 9, "retention_ms": 5}'
        await a.controller.create_topic(TOPIC, 1, both)
        topology = await a.directory.wait_topic(TOPIC.path)
        assert topology.policies == {"retention_bytes": 9, "retention_ms": 5}
        await a.controller.create_topic(TOPIC, 1, both)
        with pytest.raises(TopicExists, match="retention_ms"):
            await a.controller.create_topic(TOPIC, 1, '{"retention_bytes": 9, "retention_ms": 6}')


@virtual_time
async def test_the_shape_of_a_topic_outlives_a_split() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a, 2)
        topology = await a.directory.wait_topic(TOPIC.path)
        await a.store.commit(Commit(puts=(Put(keys.topic(TOPIC.path), encode(topology.split(0).record)),)))
        await with_topic(a, 2)
        with pytest.raises(TopicExists):
            await with_topic(a, 3)


@pytest.mark.parametrize(
    ("policies", "complaint"),
    [
        ("{", "not JSON"),
        ("[1]", "one JSON object"),
        ('{"retention": 1}', "unknown policy 'retention'"),
        ('{"retention_ms": 0}', "policy retention_ms: expected a positive integer"),
        ('{"retention_bytes": 9, "retention_ms": 0}', "policy retention_ms: expected a positive integer"),
        ('{"retention_bytes": true}', "policy retention_bytes"),
        ('{"retention_ms": "1d"}', "found '1d'"),
        ('{"autoscale": "on"}', "policy autoscale"),
        ('{"autoscale": {"split_bytes_per_s": "much"}}', "policy autoscale"),
        ('{"autoscale": {"max": 3}}', "unknown threshold 'max'"),
    ],
)
@virtual_time
async def test_a_malformed_policy_is_refused_by_name(policies: str, complaint: str) -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        with pytest.raises(InvalidArgument, match=complaint):
            await a.controller.create_topic(TOPIC, 1, policies)
        with pytest.raises(InvalidArgument, match="expected 1 to"):
            await a.controller.create_topic(TOPIC, 0, '{"autoscale": {"max_segments": 3}, "retention_ms": null}')


@pytest.mark.parametrize("fate", [LOST_BEFORE, ANSWER_LOST, LANDS_LATE])
@virtual_time
async def test_e2_creating_a_topic_whose_answer_is_lost(fate: Fate) -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        a.fates.commits = [fate]
        await with_topic(a)
        assert a.fates.commits == [], "nothing was injected"
        record = await a.store.get(keys.topic(TOPIC.path))
        assert record is not None
        assert record.version == 1
        assert len(decode(TopicRecord, record.value, key=record.key).segments) == 4


@virtual_time
async def test_a_create_that_the_store_does_not_confirm_in_time_may_be_repeated() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        a.fates.commits = [LOST_BEFORE] * 15
        with pytest.raises(Timeout, match="repeat it"):
            await with_topic(a)
        a.fates.commits = []
        await with_topic(a)


# ---- subscriptions --------------------------------------------------------------------------------------------------


@virtual_time
async def test_the_first_consumer_creates_the_subscription_and_gets_every_segment() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a)
        inbox = Inbox()
        reply = await a.controller.join(joining("w", 0xAB), inbox)
        topology = await a.directory.wait_topic(TOPIC.path)
        assert (reply.topic, reply.subscription, reply.consumer) == (str(TOPIC), "s", "w")
        assert tuple(reply.segments) == topology.active_paths
        assert inbox.pushed == []  # the reply tells it
        record = await assignment_of(a.store)
        assert record.epoch == reply.epoch == 1
        assert record.consumers == {"w@00000000000000ab": list(topology.active_paths)}
        assert (await subscription_of(a.store)).start == {"kind": "earliest"}
        [info] = await list_subscriptions(a.store, TOPIC.path)
        assert info == await describe_subscription(a.store, TOPIC.path, "s")
        assert info.consumers_of_segments() == dict.fromkeys(topology.active_paths, "w@00000000000000ab")
        with pytest.raises(SubscriptionNotFound, match="no subscription other"):
            await describe_subscription(a.store, TOPIC.path, "other")


@virtual_time
async def test_a_second_consumer_takes_half_and_the_first_is_told_under_the_next_epoch() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a)
        first, second = Inbox(), Inbox()
        before = await a.controller.join(joining("w1"), first)
        after = await a.controller.join(joining("w2"), second)
        assert after.epoch == before.epoch + 1
        [told] = first.pushed
        assert told.epoch == after.epoch
        assert sorted([*told.segments, *after.segments]) == sorted(before.segments)
        assert len(told.segments) == len(after.segments) == 2
        again = await a.controller.join(joining("w2"), second)
        assert (again.epoch, list(again.segments)) == (after.epoch, list(after.segments))
        assert len(first.pushed) == 1


@virtual_time
async def test_consumers_that_join_together_share_few_writes() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a, 16)
        inboxes = [Inbox() for _ in range(20)]
        a.fates.commits = [Fate(answer_s=0.01)] * 100
        replies = await asyncio.gather(*(a.controller.join(joining(f"w{i}"), inbox) for i, inbox in enumerate(inboxes)))
        record = await assignment_of(a.store)
        assert record.epoch <= 3
        assert len(record.consumers) == 20
        assert sorted(s for held in record.consumers.values() for s in held) == sorted(
            (await a.directory.wait_topic(TOPIC.path)).active_paths
        )
        latest = [inbox.pushed[-1] if inbox.pushed else reply for inbox, reply in zip(inboxes, replies, strict=True)]
        assert [told.epoch for told in latest] == [record.epoch] * 20
        for told in latest:
            assert record.consumers[f"{told.consumer}@{1:016x}"] == list(told.segments)


@virtual_time
async def test_a_consumer_whose_connection_drops_has_two_seconds_to_join_again() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a)
        stays, drops, drops_for_good = Inbox(), Inbox(), Inbox()
        await a.controller.join(joining("stays"), stays)
        await a.controller.join(joining("drops"), drops)
        before = await a.controller.join(joining("gone"), drops_for_good)
        a.controller.disconnected(drops)
        a.controller.disconnected(drops_for_good)
        await asyncio.sleep(1.9)
        assert (await assignment_of(a.store)).epoch == before.epoch
        back = await a.controller.join(joining("drops"), drops)
        assert back.epoch == before.epoch
        await asyncio.sleep(0.2)
        record = await assignment_of(a.store)
        assert list(names_of(record)) == ["drops", "stays"]
        assert [len(held) for held in record.consumers.values()] == [2, 2]
        assert stays.pushed[-1].epoch == drops.pushed[-1].epoch == record.epoch
        await asyncio.sleep(10.0)
        assert (await assignment_of(a.store)) == record


@virtual_time
async def test_a_connection_replaced_by_a_newer_one_may_end_without_harm() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a)
        old, new = Inbox(), Inbox()
        await a.controller.join(joining("w"), old)
        reply = await a.controller.join(joining("w"), new)
        a.controller.disconnected(old)
        await asyncio.sleep(5.0)
        assert (await assignment_of(a.store)).epoch == reply.epoch
        a.controller.disconnected(new)
        await asyncio.sleep(5.0)
        assert (await assignment_of(a.store)).consumers == {}


@virtual_time
async def test_of_a_connection_that_ends_those_without_a_newer_one_are_given_up_all_the_same() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a)
        old, new = Inbox(), Inbox()
        for subscription in ("s", "other"):
            await a.controller.join(joining("w", subscription=subscription), old)
        reply = await a.controller.join(joining("w"), new)
        a.controller.disconnected(old)
        await asyncio.sleep(5.0)
        assert (await assignment_of(a.store)).epoch == reply.epoch
        assert (await assignment_of(a.store, "other")).consumers == {}


@virtual_time
async def test_a_consumer_that_leaves_is_followed_at_once() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a)
        one, two = Inbox(), Inbox()
        await a.controller.join(joining("w1"), one)
        await a.controller.join(joining("w2"), two)
        await a.controller.leave(leaving("w1"), one)
        assert list(names_of(await assignment_of(a.store))) == ["w2"]
        assert len(two.pushed[-1].segments) == 4
        await a.controller.leave(leaving("w1"), one)
        await a.controller.leave(leaving("never-was"), one)
        a.controller.disconnected(one)


@virtual_time
async def test_another_incarnation_of_a_name_replaces_the_first_at_once_and_for_good() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a)
        old, new = Inbox(), Inbox()
        before = await a.controller.join(joining("w", 1), old)
        after = await a.controller.join(joining("w", 2), new)
        assert list((await assignment_of(a.store)).consumers) == ["w@0000000000000002"]
        assert list(after.segments) == list(before.segments)
        assert list(old.pushed[-1].segments) == []
        assert old.pushed[-1].epoch == after.epoch
        with pytest.raises(NotAllowed, match="replaced"):
            await a.controller.join(joining("w", 1), old)
        a.controller.disconnected(old)
        await asyncio.sleep(5.0)
        assert (await assignment_of(a.store)).epoch == after.epoch


@virtual_time
async def test_a_consumer_replaced_while_it_joins_is_told_so() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a)
        await a.controller.join(joining("other"), Inbox())
        a.fates.commits = [Fate(arrive_s=0.0, answer_s=1.0)]
        old = asyncio.create_task(a.controller.join(joining("w", 1), Inbox()))
        await asyncio.sleep(0.1)
        new = asyncio.create_task(a.controller.join(joining("w", 2), Inbox()))
        assert list((await new).segments)
        with pytest.raises(NotAllowed, match="replaced"):
            await old
        assert list((await assignment_of(a.store)).consumers) == [f"other@{1:016x}", f"w@{2:016x}"]


@virtual_time
async def test_a_consumer_that_leaves_while_it_joins_is_not_taken_in() -> None:
    """▲ Its client's time was up while etcd did not answer; connected as that client stays, nobody else would get its
    segments."""
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a)
        link = Inbox()
        a.fates.commits = [Fate(arrive_s=0.0, answer_s=1.0)]  # of the subscription's record
        joins = asyncio.create_task(a.controller.join(joining("w"), link))
        await asyncio.sleep(0.1)
        await a.controller.leave(leaving("w"), link)
        with pytest.raises(NotAllowed, match="left"):
            await joins
        topology = await a.directory.wait_topic(TOPIC.path)
        assert set((await a.controller.join(joining("v"), Inbox())).segments) == set(topology.active_paths)


@virtual_time
async def test_a_start_at_the_latest_over_many_segments_is_found_within_one_request() -> None:
    """▲ Each request begins anew, so a search that is too long for one would never end."""
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a, 64)
        topology = await a.directory.wait_topic(TOPIC.path)
        a.positions.answers = {path: Position(7, i) for i, path in enumerate(topology.active_paths)}
        a.positions.pause_s = 0.2
        await a.controller.join(joining("w", start=pb.Start(latest=True)), Inbox())
        assert (await subscription_of(a.store)).positions == {
            path: (7, i) for i, path in enumerate(topology.active_paths)
        }


@virtual_time
async def test_latest_means_the_moment_of_creation_and_waits_for_decisions_up_to_it() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a, 2)
        topology = await a.directory.wait_topic(TOPIC.path)
        start = pb.Start(latest=True)
        with pytest.raises(NotOwner):
            await a.controller.join(joining("w", start=start), Inbox())
        a.positions.answers = {path: Position(7, i) for i, path in enumerate(topology.active_paths)}
        created = a.store.etcd.mvcc.revision
        await a.controller.join(joining("w", start=start), Inbox())
        record = await subscription_of(a.store)
        assert record.start == {"kind": "latest"}
        assert record.positions == {path: (7, i) for i, path in enumerate(topology.active_paths)}
        assert [revision for _, revision in a.positions.asked[2:]] == [created, created]
        a.positions.answers = dict.fromkeys(topology.active_paths, Position(9, 9))
        await a.controller.join(joining("later", start=start), Inbox())
        assert await subscription_of(a.store) == record


@virtual_time
async def test_a_time_is_resolved_once_when_the_subscription_is_made() -> None:
    """▲ Looked for anew it may lie behind what was delivered from the first place and never acked."""
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a, 2)
        paths = (await a.directory.wait_topic(TOPIC.path)).active_paths
        start = pb.Start(timestamp_ms=5)
        with pytest.raises(NotOwner):
            await a.controller.join(joining("w", start=start), Inbox())
        a.positions.answers = {path: Position(7, i) for i, path in enumerate(paths)}
        await a.controller.join(joining("w", start=start), Inbox())
        record = await subscription_of(a.store)
        assert record.start == {"kind": "timestamp", "timestamp_ms": 5}
        assert record.positions == {path: (7, i) for i, path in enumerate(paths)}
        assert set(a.positions.times) == {5}
        a.positions.answers = dict.fromkeys(paths, Position(9, 9))
        await a.controller.join(joining("later", start=start), Inbox())
        assert await subscription_of(a.store) == record


@virtual_time
async def test_message_ids_are_kept_as_given() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a, 1)
        path = (await a.directory.wait_topic(TOPIC.path)).active_paths[0]
        at = pb.Start(segment=path, ledger_id=3, entry_id=4, index=5, after=True)
        await a.controller.join(joining("w", subscription="m", start=at), Inbox())
        assert (await subscription_of(a.store, "m")).start == {
            "kind": "message_id",
            "segment": path,
            "ledger_id": 3,
            "entry_id": 4,
            "index": 5,
            "after": True,
        }
        elsewhere = pb.Start(segment="public/nyc/other/0000-ffff-0", ledger_id=1)
        with pytest.raises(InvalidArgument, match="has no such segment"):
            await a.controller.join(joining("w", subscription="x", start=elsewhere), Inbox())


@pytest.mark.parametrize(
    ("request_", "error", "complaint"),
    [
        (joining("w", topic="nyc"), InvalidArgument, "expected topic://"),
        (joining("w", topic="topic://public/nyc/none"), TopicNotFound, "topic://public/nyc/none does not exist"),
        (joining("w", subscription="a/b"), InvalidArgument, "subscription 'a/b'"),
        (joining("w@1"), InvalidArgument, "consumer 'w@1'"),
        (joining("w", type=9), InvalidArgument, "type 9 is unknown"),
        (joining("w", type=7), InvalidArgument, "subscription type 7 is unknown"),
    ],
)
@virtual_time
async def test_a_malformed_join_says_which_part_is_wrong(
    request_: pb.JoinSubscription, error: type[Exception], complaint: str
) -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a)
        with pytest.raises(error, match=complaint):
            await a.controller.join(request_, Inbox())


@virtual_time
async def test_a_subscription_of_another_type_cannot_be_joined() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a)
        queue = encode(SubscriptionRecord(type="queue", start={"kind": "earliest"}))
        await a.store.commit(Commit(puts=(Put(keys.subscription(TOPIC.path, "s"), queue),)))
        with pytest.raises(InvalidArgument, match="has type queue, it cannot be joined as stream"):
            await a.controller.join(joining("w"), Inbox())


@pytest.mark.parametrize("fate", [LOST_BEFORE, ANSWER_LOST, LANDS_LATE])
@pytest.mark.parametrize("place", [0, 1, 2])
@virtual_time
async def test_e2_joins_and_leaves_whose_writes_go_unanswered(fate: Fate, place: int) -> None:
    """Places that write: the subscription, the first assignment, the next one."""
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a)
        a.fates.commits = [Fate()] * place + [fate]
        one, two = Inbox(), Inbox()
        await a.controller.join(joining("w1"), one)
        await a.controller.join(joining("w2"), two)
        await a.controller.leave(leaving("w1"), one)
        assert a.fates.commits == [], "nothing was injected"
        record = await assignment_of(a.store)
        assert list(names_of(record)) == ["w2"]
        await asyncio.sleep(10.0)  # whatever is still on its way lands
        assert await assignment_of(a.store) == record
        assert two.pushed[-1].epoch == record.epoch


@virtual_time
async def test_p11_an_old_assignment_that_lands_late_never_replaces_a_newer_one() -> None:
    """The first write is given up as unknown and lands later; the next waits for its verdict and is planned anew."""
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a)
        await a.controller.join(joining("w1"), Inbox())
        a.fates.commits = [Fate(arrive_s=25.0, fail_s=0.5)] + [LOST_BEFORE] * 20
        with pytest.raises(Timeout, match="repeat it"):
            await a.controller.join(joining("w2"), Inbox())
        await asyncio.sleep(12.0)
        await a.controller.join(joining("w3"), Inbox())
        await asyncio.sleep(30.0)
        assert list(names_of(await assignment_of(a.store))) == ["w1", "w2", "w3"]


@virtual_time
async def test_e2_a_subscription_that_lands_late_keeps_its_positions() -> None:
    """▲ Created once: "latest" of a repeated join never replaces that of a first one whose fate was unknown."""
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a, 1)
        path = (await a.directory.wait_topic(TOPIC.path)).active_paths[0]
        request = joining("w", start=pb.Start(latest=True))
        a.positions.answers = {path: Position(1, 1)}
        a.fates.commits = [Fate(arrive_s=12.0, fail_s=0.5)] + [LOST_BEFORE] * 20
        with pytest.raises(Timeout, match="repeat it"):
            await a.controller.join(request, Inbox())
        a.fates.commits = []
        a.positions.answers = {path: Position(2, 2)}
        await a.controller.join(request, Inbox())
        await asyncio.sleep(10.0)
        assert (await subscription_of(a.store)).positions == {path: (1, 1)}
        record = await a.store.get(keys.subscription(TOPIC.path, "s"))
        assert record is not None
        assert record.version == 1


@virtual_time
async def test_a_stream_of_another_topic_is_left_alone_when_a_layout_changes() -> None:
    async with running(MemoryEtcd(LoopClock()), "a") as [a]:
        await with_topic(a, 1)
        other = TopicName("public", "nyc", "other")
        await a.controller.create_topic(other, 1, "")
        here, there = Inbox(), Inbox()
        await a.controller.join(joining("w"), here)
        await a.controller.join(joining("w", topic=str(other)), there)
        topology = await a.directory.wait_topic(TOPIC.path)
        split = topology.split(0)
        await a.store.commit(Commit(puts=(Put(keys.topic(TOPIC.path), encode(split.record)),)))
        await a.directory.wait_until(
            lambda: (t := a.directory.topic(TOPIC.path)) is not None and t.epoch == 2, timeout_s=5.0, what="split"
        )
        await asyncio.sleep(1.0)
        # The sealed parent is not drained yet: its children are nobody's.
        assert (await assignment_of(a.store)).consumers == {f"w@{1:016x}": [topology.paths[0]]}
        assert there.pushed == []


@virtual_time
async def test_statistics_tell_who_leads_and_who_is_connected() -> None:
    async with running(MemoryEtcd(LoopClock()), "a", "b") as [a, b]:
        await with_topic(a)
        await a.controller.join(joining("w"), Inbox())
        leads = a.controller.statistics()
        assert (leads.leading, leads.subscriptions, leads.connected_consumers) == (True, 1, 1)
        assert leads.epoch > 0
        follows = b.controller.statistics()
        assert (follows.leading, follows.epoch, follows.subscriptions) == (False, 0, 0)
