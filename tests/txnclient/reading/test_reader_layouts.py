"""Readers over layouts that change, on a scripted broker: parents before children, whatever comes when: S7, V5."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import TOPIC, Cluster, ScriptedServer
from tests.waiting import until
from txnclient import Snapshot
from txnclient.consuming.reader_ends import latest_ends
from txnclient.reading.reader import behind
from txnwire.ids import EARLIEST, MessageId, Position
from txnwire.names import TopicName
from txnwire.proto import txn_pb2 as pb
from txnwire.serving import Peer
from txnwire.snapshot import SegmentBounds, TopicBounds

PATH = TopicName.parse(TOPIC).path
ROOT = f"{PATH}/0000-ffff-0"
LEFT, RIGHT = f"{PATH}/0000-7fff-1", f"{PATH}/8000-ffff-2"
AGAIN = f"{PATH}/0000-ffff-3"

SPLIT = {ROOT: ("SEALED", (), (1, 2)), LEFT: ("ACTIVE", (0,), ()), RIGHT: ("ACTIVE", (0,), ())}
MERGED = {
    ROOT: ("SEALED", (), (1, 2)),
    LEFT: ("SEALED", (0,), (3,)),
    RIGHT: ("SEALED", (0,), (3,)),
    AGAIN: ("ACTIVE", (1, 2), ()),
}


class Server(ScriptedServer):
    """`sealed`: segments whose owner says so. `held`: last confirmed positions above what may be read."""

    cluster: Layouts

    def _segment_positions(self, peer: Peer, command: pb.Command) -> pb.Command:
        path = command.segment_positions.segment
        reply = super()._segment_positions(peer, command)
        answer = reply.segment_positions_ok
        answer.sealed = path in self.cluster.sealed
        if path in self.cluster.held:
            answer.last_confirmed.ledger_id, answer.last_confirmed.entry_id = self.cluster.held[path]
        return reply


class Layouts(Cluster):
    """One topic whose layout a test changes."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 1
        self.segments: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {ROOT: ("ACTIVE", (), ())}
        self.owners = {ROOT: "broker:1"}
        self.sealed: dict[str, None] = {}
        self.held: dict[str, Position] = {}
        self.lost_id: int | None = None

    async def start(self, *addresses: str) -> None:
        self.servers["broker:1"] = Server(self, "broker:1")
        await self.servers["broker:1"].start()

    def become(self, segments: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]]) -> None:
        self.segments, self.epoch = segments, self.epoch + 1
        self.owners = dict.fromkeys(segments, "broker:1")
        self.announce()

    def layout(self, topic: str) -> pb.Layout:
        layout = pb.Layout(
            topic=topic, exists=topic == TOPIC, epoch=self.epoch, revision=self.revision, topic_revision=self.epoch
        )
        if self.lost_id is not None:
            layout.lost_segment_id = self.lost_id
        for path, (state, parents, children) in self.segments.items():
            lo, hi, number = path.rpartition("/")[2].split("-")
            layout.segments.add(
                segment_id=int(number),
                lo=int(lo, 16),
                hi=int(hi, 16),
                state=state,
                parents=parents,
                children=children,
                owner="broker:1",
                owner_address="broker:1",
                path=path,
            )
        return layout


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Layouts, Server, txnclient.Client]]:
    cluster = Layouts()
    await cluster.start()
    async with txnclient.connect(
        "txn://broker:1", transport=cluster.transport, clock=cluster.clock, random=Random(1)
    ) as client:
        server = cluster.servers["broker:1"]
        assert isinstance(server, Server)
        yield cluster, server, client
    await cluster.stop()


def end_of(server: ScriptedServer, segment: str, *, sealed: bool = True) -> None:
    push = pb.EndOfSegment(consumer_id=server.consumer_of(segment), sealed=sealed)
    server.push_to_consumer(segment, pb.Command(end_of_segment=push))


def attached(server: ScriptedServer) -> dict[str, pb.Subscribe]:
    return {request.segment: request for _, request in server.consumers.values()}


async def settle() -> None:
    """Everything that is on its way arrives."""
    await asyncio.sleep(1.0)


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
        opening = asyncio.ensure_future(_open(client, end="latest", isolation="read_uncommitted"))
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


@virtual_time
async def test_v5_a_seal_that_is_given_up_does_not_hold_a_reader_back() -> None:
    async with connected() as (cluster, _, client):
        cluster.sealed[ROOT] = None
        opening = asyncio.ensure_future(_open(client, end="latest", isolation="read_uncommitted"))
        await settle()
        assert not opening.done()
        cluster.sealed.clear()
        assert (await opening).ended


async def _open(client: txnclient.Client, **options: Any) -> txnclient.Reader:
    reader: txnclient.Reader = await client.reader(TOPIC, **options)
    return reader


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


def snapshot(epoch: int, **segments: SegmentBounds) -> Snapshot:
    names = {"root": ROOT, "left": LEFT, "right": RIGHT}
    bounds = {names[name]: one for name, one in segments.items()}
    return Snapshot(epoch * 10, {TOPIC: TopicBounds(epoch, bounds)})


def at(entry: int, *, sealed: bool = False) -> SegmentBounds:
    return SegmentBounds(Position(1, entry), Position(1, entry), sealed=sealed)


@virtual_time
async def test_x2_a_snapshot_from_before_a_split_is_read_without_its_children() -> None:
    async with connected() as (cluster, server, client):
        cluster.become(SPLIT)
        async with client.reader(TOPIC, end=snapshot(1, root=at(1))) as reader:
            await until(lambda: server.consumers)
            server.deliver(ROOT, 1, b"parent")
            end_of(server, ROOT, sealed=False)
            assert [message.value async for message in reader] == [b"parent"]
            assert server.seen["subscribe"] == 1


@virtual_time
async def test_x2_a_snapshot_of_a_later_layout_waits_for_it() -> None:
    async with connected() as (cluster, server, client):
        end = snapshot(2, root=at(1, sealed=True), left=at(0), right=SegmentBounds(EARLIEST, EARLIEST))
        opening = asyncio.ensure_future(_open(client, start=snapshot(1, root=at(1)), end=end))
        await settle()
        assert not opening.done()
        cluster.become(SPLIT)
        reader = await opening
        await until(lambda: server.consumers)
        assert list(attached(server)) == [LEFT], "of the parent nothing is left to read, the other child is empty"
        server.deliver(LEFT, 0, b"child")
        end_of(server, LEFT, sealed=False)
        assert [message.value async for message in reader] == [b"child"]


GONE = {path: facts for path, facts in SPLIT.items() if path != ROOT}


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (snapshot(1, root=at(1)), None),  # what came behind it there is gone
        (None, snapshot(1, root=at(1))),  # nothing is left of it
        (snapshot(1, root=at(1)), snapshot(2, root=at(3, sealed=True), left=at(1), right=at(1))),
    ],
)
@virtual_time
async def test_x2_what_retention_took_with_its_segment_is_not_left_out_silently(
    start: Snapshot | None, end: Snapshot | None
) -> None:
    async with connected() as (cluster, _, client):
        cluster.lost_id = 0
        cluster.become(GONE)
        with pytest.raises(txnclient.InvalidArgument, match="does not exist any more"):
            await client.reader(TOPIC, start=start or "earliest", end=end)


@virtual_time
async def test_x2_a_segment_that_was_never_used_may_go() -> None:
    async with connected() as (cluster, server, client):
        cluster.become(GONE)
        async with client.reader(TOPIC, start=snapshot(1, root=SegmentBounds(EARLIEST, EARLIEST))):
            await until(lambda: {LEFT, RIGHT} == set(attached(server)))


@virtual_time
async def test_x2_segments_of_which_nothing_was_left_to_read_may_go() -> None:
    async with connected() as (cluster, server, client):
        cluster.become(GONE)
        start = snapshot(2, root=at(3, sealed=True), left=at(1), right=at(1))
        for end in (None, snapshot(2, left=at(1), right=at(2))):
            async with client.reader(TOPIC, start=start, end=end):
                await until(lambda: RIGHT in attached(server))
                assert attached(server)[RIGHT].start == behind(RIGHT, Position(1, 1))
        whole = snapshot(2, root=at(3, sealed=True), left=at(0), right=SegmentBounds(EARLIEST, EARLIEST))
        async with client.reader(TOPIC, end=whole) as reader:
            await until(lambda: LEFT in attached(server))
            server.deliver(LEFT, 0, b"kept")
            end_of(server, LEFT, sealed=False)
            assert [message.value async for message in reader] == [b"kept"]


@virtual_time
async def test_x2_a_parent_on_its_way_out_of_the_graph_holds_nobody_back() -> None:
    """Nothing is left in it and nobody serves it; a snapshot taken meanwhile does not name it."""
    async with connected() as (cluster, server, client):
        cluster.become(SPLIT)
        async with client.reader(TOPIC, end=snapshot(2, left=at(0), right=at(0))):
            await until(lambda: {LEFT, RIGHT} == set(attached(server)))


@virtual_time
async def test_x2_a_snapshot_of_which_a_segment_goes_while_it_is_read_is_refused() -> None:
    """▲ The rest of it would be a part of a transaction."""
    async with connected() as (cluster, server, client):
        cluster.become(SPLIT)
        end = snapshot(2, root=at(3, sealed=True), left=at(0), right=at(0))
        async with client.reader(TOPIC, end=end) as reader:
            await until(lambda: server.consumers)
            server.deliver(ROOT, 0, b"first")
            await settle()
            cluster.become(GONE)
            assert (await reader.receive()).value == b"first"
            with pytest.raises(txnclient.InvalidArgument, match="does not exist any more"):
                await reader.receive()


EMPTY = SegmentBounds(EARLIEST, EARLIEST)


@virtual_time
async def test_x2_what_an_older_snapshot_found_empty_or_not_at_all_is_asked_for_from_its_very_beginning() -> None:
    """▲ By name: the broker then refuses what retention has taken of it meanwhile. "Earliest" would pass over that."""
    async with connected() as (cluster, server, client):
        end = snapshot(2, root=at(1, sealed=True), left=at(3), right=at(3))
        cluster.become(SPLIT)
        for start in (snapshot(1, root=at(1)), snapshot(2, root=at(1, sealed=True), left=EMPTY, right=EMPTY)):
            async with client.reader(TOPIC, start=start, end=end):
                await until(lambda: {LEFT, RIGHT} == set(attached(server)))
                assert attached(server)[LEFT].start == behind(LEFT, EARLIEST)
            await settle()
        async with client.reader(TOPIC, end=snapshot(2, left=at(3), right=at(3))):
            await until(lambda: RIGHT in attached(server))
            assert not attached(server)[RIGHT].start.segment, "without an older one it is read as far as it is kept"


@pytest.mark.parametrize("attach", [False, True], ids=["before it is begun", "before it answers"])
@virtual_time
async def test_x2_a_segment_that_came_between_two_snapshots_and_goes_while_they_are_read_is_missed(
    attach: bool,
) -> None:
    """▲ Transactions over it and its neighbours would be shown in part."""
    async with connected() as (cluster, server, client):
        cluster.become(SPLIT)
        end = snapshot(2, root=at(3, sealed=True), left=at(3), right=at(3))
        async with client.reader(TOPIC, start=snapshot(1, root=at(1)), end=end) as reader:
            await until(lambda: server.consumers)
            server.deliver(ROOT, 3, b"parent")
            end_of(server, ROOT, sealed=False)
            await settle()
            if attach:
                server.refuse["subscribe"] = [txnclient.NotOwner("moving")] * 50
                assert (await reader.receive()).value == b"parent"
                await settle()
                cluster.become({RIGHT: SPLIT[RIGHT]})
            else:
                cluster.become({RIGHT: SPLIT[RIGHT]})
                assert (await reader.receive()).value == b"parent"
            with pytest.raises(txnclient.InvalidArgument, match="0000-7fff-1 does not exist any more"):
                await reader.receive()


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
