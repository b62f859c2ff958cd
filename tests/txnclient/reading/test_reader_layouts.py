"""Readers over layouts that change, on a scripted broker: parents before children, whatever comes when: S7, V5."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.reading.changing_layouts import (
    LEFT,
    PATH,
    RIGHT,
    ROOT,
    SPLIT,
    attached,
    connected,
    end_of,
    open_reader,
    settle,
)
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, ScriptedServer
from tests.txnclient.scripted_server import connected as scripted
from tests.waiting import until
from txnclient.consuming.places.reader_ends import latest_ends
from txnclient.reading.reader import behind
from txnwire.ids import EARLIEST, MessageId, Position
from txnwire.proto import txn_pb2 as pb

AGAIN = f"{PATH}/0000-ffff-3"


MERGED = {
    ROOT: ("SEALED", (), (1, 2)),
    LEFT: ("SEALED", (0,), (3,)),
    RIGHT: ("SEALED", (0,), (3,)),
    AGAIN: ("ACTIVE", (1, 2), ()),
}


@virtual_time
async def test_s7_children_begin_once_all_of_their_parent_is_handed_out() -> None:
    """▲ Not once it is received: what lies in the parent's buffer and what comes from a child would be mixed."""
    async with connected() as (cluster, server, client), client.reader(TOPIC) as reader:
        await until(lambda: server.consumers)
        for entry in range(3):
            server.deliver(ROOT, entry, b"parent-%d" % entry)
        cluster.become(SPLIT)
        end_of(server, ROOT)
        await settle()
        assert list(attached(server)) == [ROOT], "three messages of it wait in the buffer"
        assert (await reader.receive()).value == b"parent-0"
        await settle()
        assert LEFT not in attached(server)
        assert [one.value for one in await reader.receive_many(5)] == [b"parent-1", b"parent-2"]
        await until(lambda: {LEFT, RIGHT} == set(attached(server)))
        server.deliver(LEFT, 0, b"child")
        assert (await reader.receive()).value == b"child"


@virtual_time
async def test_s7_a_merged_segment_waits_for_both_of_its_parents() -> None:
    async with connected() as (cluster, server, client):
        cluster.become(MERGED)
        async with client.reader(TOPIC) as reader:
            await until(lambda: server.consumers)
            end_of(server, ROOT)
            await until(lambda: {LEFT, RIGHT} == set(attached(server)))
            server.deliver(LEFT, 0, b"left")
            end_of(server, LEFT)
            assert (await reader.receive()).value == b"left"
            await settle()
            assert AGAIN not in attached(server)
            server.deliver(RIGHT, 0, b"right")
            end_of(server, RIGHT)
            assert (await reader.receive()).value == b"right"
            await until(lambda: AGAIN in attached(server))


@pytest.mark.parametrize("first", [LEFT, RIGHT])
@virtual_time
async def test_s7_up_to_an_end_too_a_merged_segment_waits_for_both_of_its_parents(first: str) -> None:
    async with connected() as (cluster, server, client):
        cluster.become(MERGED)
        server.positions = dict.fromkeys((LEFT, RIGHT, AGAIN), Position(1, 0))
        async with client.reader(TOPIC, end="latest", isolation="read_uncommitted") as reader:
            await until(lambda: {LEFT, RIGHT} == set(attached(server)))
            for parent in (first, LEFT if first == RIGHT else RIGHT):
                await settle()
                assert AGAIN not in attached(server)
                server.deliver(parent, 0, b"parent")
                end_of(server, parent, sealed=False)
                assert (await reader.receive()).value == b"parent"
            await until(lambda: AGAIN in attached(server))


@virtual_time
async def test_a_segment_is_not_left_before_its_topic_says_that_it_was_sealed() -> None:
    """▲ A seal is undone when its change is given up, and the segment goes on."""
    async with connected() as (cluster, server, client), client.reader(TOPIC) as reader:
        await until(lambda: server.consumers)
        end_of(server, ROOT)
        await settle()
        assert list(attached(server)) == [ROOT]
        server.deliver(ROOT, 0, b"given up")
        assert (await reader.receive()).value == b"given up"
        cluster.become(SPLIT)
        await settle()
        assert list(attached(server)) == [ROOT], "what it said before does not count any more"
        end_of(server, ROOT)
        await until(lambda: {LEFT, RIGHT} == set(attached(server)))


@virtual_time
async def test_v5_latest_waits_for_children_that_a_sealed_segment_must_have() -> None:
    """▲ Somebody may have committed to them before the reader was opened."""
    async with connected() as (cluster, server, client):
        cluster.sealed[ROOT] = None  # the layout that says so has not come yet
        server.positions = {ROOT: Position(1, 0), LEFT: Position(1, 0)}
        opening = asyncio.ensure_future(open_reader(client, end="latest", isolation="read_uncommitted"))
        await settle()
        assert not opening.done()
        cluster.become(SPLIT)
        reader = await opening
        await until(lambda: ROOT in attached(server))
        server.deliver(ROOT, 0, b"parent")
        end_of(server, ROOT, sealed=False)
        assert (await reader.receive()).value == b"parent"
        await until(lambda: LEFT in attached(server))
        server.deliver(LEFT, 0, b"child")
        end_of(server, LEFT, sealed=False)
        assert [message.value async for message in reader] == [b"child"]
        assert server.seen["subscribe"] == 2, "of the other child nothing was readable"


@pytest.mark.parametrize("sealed", [ROOT, LEFT, RIGHT])
@virtual_time
async def test_v5_a_seal_that_is_given_up_does_not_hold_a_reader_back(sealed: str) -> None:
    async with connected() as (cluster, _, client):
        if sealed != ROOT:
            cluster.become(SPLIT)
        cluster.sealed[sealed] = None
        opening = asyncio.ensure_future(open_reader(client, end="latest", isolation="read_uncommitted"))
        await settle()
        assert not opening.done()
        cluster.sealed.clear()
        assert (await opening).ended


@virtual_time
async def test_s7_what_stands_behind_an_open_transaction_in_a_parent_is_not_readable_yet() -> None:
    async with connected() as (cluster, server, client):
        cluster.become(SPLIT)
        cluster.sealed[ROOT] = None
        server.positions = {ROOT: Position(1, 4), LEFT: Position(1, 9)}
        cluster.held[ROOT] = Position(1, 7)
        async with client.reader(TOPIC, start="latest"):
            await until(lambda: ROOT in attached(server))
            assert attached(server)[ROOT].start == behind(ROOT, Position(1, 4))
            end_of(server, ROOT)
            await until(lambda: LEFT in attached(server))
            assert attached(server)[LEFT].start.earliest
        await until(lambda: not server.consumers)
        uncommitted = await client.reader(TOPIC, end="latest", isolation="read_uncommitted")
        await until(lambda: ROOT in attached(server))
        assert attached(server)[ROOT].end == pb.Position(ledger_id=1, entry_id=7)
        end_of(server, ROOT, sealed=False)
        await until(lambda: LEFT in attached(server))
        await uncommitted.close()


@virtual_time
async def test_s7_what_a_root_holds_back_is_not_readable_in_its_grandchildren_either() -> None:
    """▲ Nothing is open in the child between them, which is not readable all the same."""
    async with connected() as (cluster, server, client):
        grandchild = LEFT.replace("0000-7fff-1", "0000-7fff-3")
        cluster.become({ROOT: ("SEALED", (), (1,)), LEFT: ("SEALED", (0,), (3,)), grandchild: ("ACTIVE", (1,), ())})
        cluster.sealed.update({ROOT: None, LEFT: None})
        server.positions = {ROOT: Position(1, 4), LEFT: Position(1, 9), grandchild: Position(1, 2)}
        cluster.held[ROOT] = Position(1, 7)
        ends = await latest_ends(
            client._session, [TOPIC], committed=True, min_revision=0, deadline=client._session.deadline()
        )
        assert ends == {ROOT: Position(1, 4), LEFT: EARLIEST, grandchild: EARLIEST}


@pytest.mark.parametrize("held", [LEFT, RIGHT])
@virtual_time
async def test_s7_what_either_parent_holds_back_is_not_readable_in_what_they_were_merged_into(held: str) -> None:
    async with connected() as (cluster, server, client):
        cluster.become(MERGED)
        server.positions = dict.fromkeys(MERGED, Position(1, 4))
        cluster.held[held] = Position(1, 7)
        ends = await latest_ends(
            client._session, [TOPIC], committed=True, min_revision=0, deadline=client._session.deadline()
        )
        assert ends == {**dict.fromkeys((ROOT, LEFT, RIGHT), Position(1, 4)), AGAIN: EARLIEST}


@virtual_time
async def test_from_latest_on_children_that_come_later_are_read_from_their_beginning() -> None:
    """▲ "Latest" is the moment of opening; what children are given before a reader finds them lies behind it."""
    async with connected() as (cluster, server, client):
        server.positions = {ROOT: Position(4, 7)}
        async with client.reader(TOPIC, start="latest"):
            await until(lambda: server.consumers)
            assert attached(server)[ROOT].start == behind(ROOT, Position(4, 7))
            cluster.become(SPLIT)
            end_of(server, ROOT)
            await until(lambda: {LEFT, RIGHT} == set(attached(server)))
            assert attached(server)[LEFT].start.earliest


@virtual_time
async def test_a_time_is_resolved_at_the_opening_and_children_that_come_later_are_read_from_their_beginning() -> None:
    """▲ Looked for anew after a lost connection, or in a child, it would pass over what a producer with a late clock
    has sent since."""
    async with connected() as (cluster, server, client):
        server.before_times = {ROOT: Position(4, 7)}
        async with client.reader(TOPIC, start=1_700_000_000_000):
            await until(lambda: server.consumers)
            assert attached(server)[ROOT].start == behind(ROOT, Position(4, 7))
            cluster.become(SPLIT)
            end_of(server, ROOT)
            await until(lambda: {LEFT, RIGHT} == set(attached(server)))
            assert attached(server)[LEFT].start.earliest


@virtual_time
async def test_an_owner_that_resolves_no_times_is_given_the_time() -> None:
    async with connected() as (_, server, client), client.reader(TOPIC, start=5):
        await until(lambda: server.consumers)
        assert attached(server)[ROOT].start == pb.Start(timestamp_ms=5)


@virtual_time
async def test_a_message_id_leaves_out_what_its_segment_came_from() -> None:
    async with connected() as (cluster, server, client):
        cluster.become(MERGED)
        async with client.reader(TOPIC, start=MessageId(LEFT, Position(1, 3), 0)):
            await until(lambda: len(server.consumers) == 2)
            assert set(attached(server)) == {LEFT, RIGHT}, "all of the root was stored before it"
            end_of(server, LEFT)
            end_of(server, RIGHT)
            await until(lambda: set(attached(server)) == {AGAIN})


@virtual_time
async def test_a_message_id_leaves_out_what_its_segment_came_from_over_several_changes() -> None:
    async with connected() as (cluster, server, client):
        cluster.become(MERGED)
        async with client.reader(TOPIC, start=MessageId(AGAIN, Position(1, 3), 0)):
            await until(lambda: server.consumers)
            await settle()
            assert set(attached(server)) == {AGAIN}, "all of the root too was stored before it"


@virtual_time
async def test_a_segment_that_retention_has_emptied_ends_and_its_children_follow() -> None:
    async with connected() as (cluster, server, client), client.reader(TOPIC) as reader:
        await until(lambda: server.consumers)
        server.deliver(ROOT, 0, b"kept in the buffer")
        await settle()
        cluster.become({path: facts for path, facts in SPLIT.items() if path != ROOT})
        server.refuse["subscribe"] = [txnclient.TopicNotFound("no such segment")]
        await server.cut()
        assert (await reader.receive()).value == b"kept in the buffer"
        await until(lambda: {LEFT, RIGHT} == set(attached(server)))


@virtual_time
async def test_s7_an_old_layout_with_new_owners_takes_no_segment_away() -> None:
    """▲ A server that follows owners faster than topics told of a layout from before a split, in which the children
    were gone with all they held: the reader went on with the children's child (seed 105259266)."""
    async with connected() as (cluster, server, client), client.reader(TOPIC) as reader:
        await until(lambda: server.consumers)
        before = cluster.segments
        cluster.become(SPLIT)
        end_of(server, ROOT)
        await until(lambda: {LEFT, RIGHT} <= set(attached(server)))
        cluster.segments, cluster.epoch = before, 1
        cluster.announce()
        await settle()
        assert {LEFT, RIGHT} <= set(attached(server)), "the children were let go"
        server.deliver(LEFT, 0, b"of a child")
        assert (await reader.receive()).value == b"of a child"


@virtual_time
async def test_a_topic_that_is_deleted_ends_its_readers_with_an_error() -> None:
    async with connected() as (cluster, server, client), client.reader(TOPIC) as reader:
        await until(lambda: server.consumers)
        cluster.layout = lambda topic: pb.Layout(topic=topic, exists=False, topic_revision=cluster.epoch + 1)  # type: ignore[method-assign]
        cluster.announce()
        await server.cut()
        with pytest.raises(txnclient.TopicNotFound):
            await reader.receive()


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@virtual_time
async def test_a_topic_that_is_deleted_does_not_let_a_reader_end_before_its_end(isolation: str) -> None:
    """▲ Also where its client hears of that before the brokers close what is attached: what of it was still to begin
    would look read, and half of it like the whole."""
    async with connected() as (cluster, server, client):
        cluster.become(SPLIT)
        server.positions = {ROOT: Position(1, 0), LEFT: Position(1, 0)}
        async with client.reader(TOPIC, end="latest", isolation=isolation) as reader:
            await until(lambda: ROOT in attached(server))
            server.deliver(ROOT, 0, b"parent")
            end_of(server, ROOT, sealed=False)
            await settle()
            cluster.layout = lambda topic: pb.Layout(topic=topic, exists=False, topic_revision=cluster.epoch + 1)  # type: ignore[method-assign]
            cluster.announce()
            await settle()
            assert (await reader.receive()).value == b"parent"
            with pytest.raises(txnclient.TopicNotFound):
                await reader.receive()
            assert not reader.ended


@pytest.mark.parametrize("end", [None, "latest"])
@virtual_time
async def test_a_reader_goes_on_in_no_other_topic_of_the_name(end: str | None) -> None:
    """▲ Of which its client may hear before it has heard of the deletion. With an end it would look read."""
    async with told_of_lives() as (cluster, server, client), client.reader(TOPIC, end=end) as reader:
        await until(lambda: len(server.consumers) == 2)
        cluster.make_again()
        cluster.announce()
        with pytest.raises(txnclient.TopicNotFound):
            await reader.receive(timeout=5)
        assert not reader.ended


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@virtual_time
async def test_a_reader_that_has_handed_out_everything_has_ended_also_where_its_topic_is_deleted(
    isolation: str,
) -> None:
    """▲ It is attached to nothing by then, so its topic can be deleted: what a program does with one that it has read.
    A whole range would end with an error, as half of it does."""
    async with connected() as (cluster, server, client):
        server.positions = {ROOT: Position(1, 0)}
        async with client.reader(TOPIC, end="latest", isolation=isolation) as reader:
            await until(lambda: ROOT in attached(server))
            server.deliver(ROOT, 0, b"all")
            end_of(server, ROOT, sealed=False)
            assert (await reader.receive()).value == b"all"
            await settle()
            cluster.layout = lambda topic: pb.Layout(topic=topic, exists=False, topic_revision=cluster.epoch + 1)  # type: ignore[method-assign]
            cluster.announce()
            await settle()
            assert [message async for message in reader] == []
            assert reader.ended


@asynccontextmanager
async def told_of_lives() -> AsyncIterator[tuple[Cluster, ScriptedServer, txnclient.Client]]:
    async with scripted() as (cluster, client):
        cluster.life = 1
        cluster.announce()
        server = cluster.servers["broker:1"]
        server.positions = dict.fromkeys(SEGMENTS, Position(1, 5))
        yield cluster, server, client


@virtual_time
async def test_a_reader_shares_its_window_among_the_segments_there_are() -> None:
    async with connected() as (cluster, server, client), client.reader(TOPIC, prefetch=100):
        await until(lambda: server.permits)
        assert sum(server.permits.values()) == 100
        cluster.become(SPLIT)
        server.permits.clear()
        end_of(server, ROOT)
        await until(lambda: len(server.permits) == 2)
        assert list(server.permits.values()) == [50, 50]


@pytest.mark.parametrize("told", ["the end of it is", "that it is gone is"])
@virtual_time
async def test_s7_children_wait_for_what_is_left_of_a_parent_that_retention_has_taken(told: str) -> None:
    """▲ The layout does not name the parent any more: children would pass what a slow reader still has of it."""
    async with connected() as (cluster, server, client), client.reader(TOPIC) as reader:
        await until(lambda: server.consumers)
        server.deliver(ROOT, 0, b"older")
        await settle()
        if told == "the end of it is":
            end_of(server, ROOT)
            await settle()
        cluster.become({LEFT: ("ACTIVE", (), ()), RIGHT: ("ACTIVE", (), ())})
        if told == "that it is gone is":
            server.refuse["subscribe"] = [txnclient.TopicNotFound("no such segment")]
            await server.cut()
        await settle()
        assert not {LEFT, RIGHT} & set(attached(server))
        assert (await reader.receive()).value == b"older"
        await until(lambda: {LEFT, RIGHT} == set(attached(server)))
        server.deliver(LEFT, 0, b"newer")
        assert (await reader.receive()).value == b"newer"


@virtual_time
async def test_s7_a_segment_whose_seal_is_not_known_yet_keeps_no_other_one_s_children_waiting() -> None:
    async with scripted() as (cluster, client):
        server = cluster.servers["broker:1"]
        async with client.reader(TOPIC):
            await until(lambda: len(server.consumers) == 2)
            end_of(server, SEGMENTS[0])
            cluster.split(1)
            end_of(server, SEGMENTS[1])
            await until(lambda: set(attached(server)) == {SEGMENTS[0], cluster.path(2), cluster.path(3)})


@virtual_time
async def test_all_segments_that_retention_has_taken_are_left_as_soon_as_the_layout_says_so() -> None:
    async with connected() as (cluster, server, client):
        cluster.become({LEFT: ("SEALED", (), (3,)), RIGHT: ("SEALED", (), (3,)), AGAIN: ("ACTIVE", (1, 2), ())})
        async with client.reader(TOPIC):
            await until(lambda: {LEFT, RIGHT} == set(attached(server)))
            cluster.become({AGAIN: ("ACTIVE", (), ())})
            await until(lambda: {AGAIN} == set(attached(server)))


@virtual_time
async def test_a_reader_ends_though_several_segments_were_taken_before_it_had_begun_them() -> None:
    async with connected() as (cluster, server, client):
        cluster.become(SPLIT)
        server.positions = dict.fromkeys(SPLIT, Position(1, 0))
        async with client.reader(TOPIC, end="latest", isolation="read_uncommitted") as reader:
            await until(lambda: ROOT in attached(server))
            server.deliver(ROOT, 0, b"parent")
            end_of(server, ROOT, sealed=False)
            await settle()
            cluster.become({AGAIN: ("ACTIVE", (), ())})
            await settle()
            assert (await reader.receive()).value == b"parent"
            assert await reader.receive_many(1, timeout=5.0) == []
            assert reader.ended


@virtual_time
async def test_s7_children_of_several_parents_that_retention_has_taken_wait_each_for_its_own() -> None:
    async with connected() as (cluster, server, client):
        of_left, of_right = f"{PATH}/0000-7fff-3", f"{PATH}/8000-ffff-4"
        children = {of_left: ("ACTIVE", (1,), ()), of_right: ("ACTIVE", (2,), ())}
        cluster.become({LEFT: ("SEALED", (), (3,)), RIGHT: ("SEALED", (), (4,)), **children})
        async with client.reader(TOPIC) as reader:
            await until(lambda: {LEFT, RIGHT} == set(attached(server)))
            for parent in (LEFT, RIGHT):
                server.deliver(parent, 0, b"older")
            await settle()
            cluster.become(dict.fromkeys(children, ("ACTIVE", (), ())))
            await settle()
            assert not set(children) & set(attached(server))
            assert [message.value for message in await reader.receive_many(1)] == [b"older"]
            await until(lambda: of_left in attached(server))
            await settle()
            assert of_right not in attached(server)
            assert [message.value for message in await reader.receive_many(1)] == [b"older"]
            await until(lambda: set(children) == set(attached(server)))


@pytest.mark.parametrize("leaves", [False, True])
@virtual_time
async def test_a_segment_that_its_owner_does_not_know_is_asked_for_until_the_layout_says_so_too(leaves: bool) -> None:
    """What retention has taken meanwhile has nothing left to read."""
    async with connected() as (cluster, server, client):
        cluster.become(SPLIT)
        server.positions = dict.fromkeys(SPLIT, Position(1, 4))
        await client.describe_topic(TOPIC)
        server.refuse["segment_positions"] = [txnclient.TopicNotFound("no such segment") for _ in range(1000)]
        finding = asyncio.ensure_future(
            latest_ends(client._session, [TOPIC], committed=True, min_revision=0, deadline=client._session.deadline())
        )
        await asyncio.sleep(1.0)
        assert not finding.done()
        if leaves:
            cluster.become({path: facts for path, facts in SPLIT.items() if path != ROOT})
        server.refuse.clear()
        ends = await finding
        assert ends == {**dict.fromkeys(SPLIT, Position(1, 4)), **({ROOT: EARLIEST} if leaves else {})}
