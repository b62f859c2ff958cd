"""Long runs of entries that nobody is shown: passed over in turns, and readers are told how far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from segments.owner import scanning
from segments.owner.segment import Segment
from segments.subscription import dispatch
from segments.subscription.dispatch import Delivery, Isolation
from segments.subscription.starts import Start
from tests.segments.brokering import Client, Cluster, Producer
from tests.waiting import until
from txnwire.errors import TxnError
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.proto import txn_pb2 as pb
from txnwire.turns import turns_divided_by


class Sink:
    """A connection that takes everything in, and notes how far the segment could be read then. `turn`: of the event
    loop, told by the test."""

    closed = False
    pending_bytes = 0

    def __init__(self, on_delivery: Callable[[], None] = lambda: None) -> None:
        self.segment: Segment | None = None
        self.on_delivery = on_delivery
        self.turn = 0
        self.delivered: list[Position] = []
        self.told: list[tuple[Position, Position, int]] = []
        """How far nothing is visible, how far it could be read, and in which turn it was told."""

    async def drain(self, below_bytes: int) -> None:
        """Nothing is queued."""

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        self.delivered += [one.position for one in deliveries]
        self.on_delivery()

    def passed(self, through: Position) -> None:
        assert self.segment is not None
        self.told.append((through, self.segment.max_read_position, self.turn))

    def sharing(self, told: int) -> None:
        raise AssertionError("readers share nothing")

    def rewind(self) -> None:
        raise AssertionError("readers are not rewound")

    def end_of_segment(self, *, sealed: bool) -> None:
        """It has one, then."""

    def consumer_closed(self, error: TxnError) -> None:
        """The broker stops."""

    @property
    def passed_through(self) -> list[Position]:
        return [through for through, _, _ in self.told]


async def send_many(producer: Producer, entries: int, txn: TxnId | None = None) -> list[Position]:
    replies = await asyncio.gather(*(producer.send_nowait("x", txn=txn) for _ in range(entries)))
    return [Position(reply.send_ok.ledger_id, reply.send_ok.entry_id) for reply in replies]


async def a_gap(cluster: Cluster, entries: int) -> tuple[Client, Producer, Segment, list[Position]]:
    """A segment that begins with so many aborted entries, decided and known to be."""
    [path] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(path)
    gap = await cluster.begin()
    stored = await send_many(producer, entries, gap)
    revision = await cluster.abort(gap)
    segment = node.broker.segments[path]
    await segment.wait_followed(revision)
    return client, producer, segment, stored


async def attach(
    segment: Segment,
    isolation: Isolation = Isolation.READ_COMMITTED,
    end: Position | None = None,
    on_delivery: Callable[[], None] = lambda: None,
) -> Sink:
    sink = Sink(on_delivery)
    sink.segment = segment
    consumer = await segment.attach_reader(
        sink, start=Start.from_wire(pb.Start(earliest=True)), end=end, min_revision=0, isolation=isolation
    )
    segment.dispatcher.add_permits(consumer, 1_000_000)
    return sink


async def test_a_gap_is_passed_over_in_bounded_turns_and_told(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dies where one pass goes over whatever is aborted, and where nothing is said before something is visible."""
    monkeypatch.setattr(dispatch, "BATCH_ENTRIES", 10)
    _, producer, segment, gap = await a_gap(memory_cluster, 95)
    visible = await producer.send("visible")
    sink = await attach(segment)
    await until(lambda: sink.delivered == [visible])
    places = {position: number for number, position in enumerate(gap, 1)}
    passed = [0, *(places[through] for through in sink.passed_through)]
    assert all(0 < more - less <= 10 for less, more in pairwise(passed))
    assert passed[-1] == 90, "the last turn delivered something"


async def test_readers_that_are_in_a_gap_together_share_the_turns(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dies where each of them has a whole turn in every pass: with a hundred of them a pass would take a second."""
    monkeypatch.setattr(dispatch, "BATCH_ENTRIES", 10)
    monkeypatch.setattr(dispatch, "PASS_ENTRIES", 25)
    _, producer, segment, _ = await a_gap(memory_cluster, 60)
    visible = await producer.send("visible")
    sinks: list[Sink] = []
    shares: list[int] = []

    async def count_turns() -> None:
        while True:
            await asyncio.sleep(0)
            for sink in sinks:
                sink.turn += 1

    def take_shares() -> None:
        if not shares:
            shares.extend(len(sink.told) for sink in sinks)

    counting = asyncio.create_task(count_turns())
    for _ in range(8):
        sinks.append(await attach(segment, on_delivery=take_shares))
    await until(lambda: all(sink.delivered == [visible] for sink in sinks))
    counting.cancel()
    turns = [turn + sinks[0].turn - sink.turn for sink in sinks for _, _, turn in sink.told]
    assert max(turns.count(turn) for turn in turns) <= 3
    assert min(shares) >= max(shares) - 2, "nobody has been left behind while another one got through"


async def test_other_requests_are_answered_while_a_reader_is_in_a_gap(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "BATCH_ENTRIES", 1)
    client, producer, segment, _ = await a_gap(memory_cluster, 2000)
    await producer.send("visible")
    sink = await attach(segment)
    await client.call(segment_positions=pb.SegmentPositions(segment=segment.path))
    assert sink.told
    assert not sink.delivered
    await until(lambda: sink.delivered)


async def test_a_queue_has_its_turn_while_readers_are_in_a_gap(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dies where a pass ends for everybody once the readers have looked at as much as one pass may."""
    client, producer, segment, _ = await a_gap(memory_cluster, 2000)
    queue = await memory_cluster.queue(client, segment.path, permits=1)
    await producer.send("first")
    await producer.send("second")
    await queue.wait("first")
    monkeypatch.setattr(dispatch, "BATCH_ENTRIES", 1)
    monkeypatch.setattr(dispatch, "PASS_ENTRIES", 1)
    meanwhile: list[list[str]] = []
    for _ in range(2):
        await attach(segment, on_delivery=lambda: meanwhile.append(queue.values))
    queue.flow(1)
    await until(lambda: len(meanwhile) == 4)
    assert meanwhile[0] == ["first", "second"]


@pytest.mark.parametrize("isolation", [Isolation.READ_COMMITTED, Isolation.SNAPSHOT])
async def test_what_is_told_as_passed_never_lies_beyond_what_is_open(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, isolation: Isolation
) -> None:
    """▲ Dies where the place behind the last entry that was looked at is told: that of a transaction that is open, and
    a reader that goes on behind it leaves out what is committed later. Who reads to a snapshot is delivered it."""
    monkeypatch.setattr(dispatch, "BATCH_ENTRIES", 4)
    _, producer, segment, gap = await a_gap(memory_cluster, 10)
    opened = await memory_cluster.begin()
    late = await producer.send("late", txn=opened)
    second = await memory_cluster.begin()
    behind = await send_many(producer, 10, second)
    await segment.wait_followed(await memory_cluster.abort(second))
    sink = await attach(segment, isolation, end=behind[-1])
    if isolation is Isolation.SNAPSHOT:
        await until(lambda: sink.passed_through[-1:] == behind[-1:])
        assert sink.delivered == [late], "before anything behind it is told as passed"
    else:
        await until(lambda: sink.passed_through[-1:] == gap[-1:])
        assert all(through <= readable < late for through, readable, _ in sink.told)
        await memory_cluster.commit(opened)
        await until(lambda: sink.passed_through[-1:] == behind[-1:])
        assert sink.delivered == [late]
    assert sorted(sink.passed_through) == sink.passed_through


async def test_only_a_reader_that_asks_is_told(memory_cluster: Cluster) -> None:
    """Older programs do not know of it, and are not bothered."""
    client, producer, segment, gap = await a_gap(memory_cluster, 5)
    told: dict[bool, list[pb.Deliver]] = {True: [], False: []}
    for asks, deliveries in told.items():
        request = pb.Subscribe(
            consumer_id=90 + asks, segment=segment.path, start=pb.Start(earliest=True), tells_passed=asks
        )

        class Listening:
            def __init__(self, into: list[pb.Deliver]) -> None:
                self.into = into

            def on_push(self, kind: str, body: pb.Deliver) -> None:
                self.into.append(body)

        client.consumers[request.consumer_id] = Listening(deliveries)  # type: ignore[assignment]
        await client.call(subscribe=request)
        await client.call(flow=pb.Flow(consumer_id=request.consumer_id, permits=10))
    await until(lambda: told[True])
    await producer.send("visible")
    await until(lambda: all(one and one[-1].entries for one in told.values()))
    assert not any(one.HasField("passed") for one in told[False])
    passed = told[True][0]
    assert (passed.passed.ledger_id, passed.passed.entry_id) == gap[-1]
    assert not passed.entries
    assert passed.revision


async def test_a_stream_over_a_gap_acks_it_away_in_turns(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "BATCH_ENTRIES", 10)
    client, producer, segment, gap = await a_gap(memory_cluster, 95)
    consumer = await memory_cluster.subscribe(client, segment.path)
    visible = await producer.send("visible")
    await consumer.wait("visible")
    [subscription] = segment.statistics().subscriptions
    assert subscription.mark_delete == gap[-1] < visible


async def test_the_heads_of_a_page_are_made_in_turns(memory_cluster: Cluster) -> None:
    with turns_divided_by(scanning.HEADS_AT_ONCE):  # one at once
        client, _, segment, gap = await a_gap(memory_cluster, 300)
        other = await memory_cluster.connect(memory_cluster.nodes[0])
        request = pb.ScanEntries(segment=segment.path, end=pb.Position(ledger_id=999))
        page = asyncio.create_task(client.call(scan_entries=request))
        for _ in range(3):
            await other.call(segment_positions=pb.SegmentPositions(segment=segment.path))
        assert not page.done()
        assert len((await page).scan_entries_ok.heads) == len(gap)


async def test_what_is_trimmed_while_its_heads_are_made_is_judged_no_more(memory_cluster: Cluster) -> None:
    """▲ What was aborted in a ledger is forgotten once it is trimmed: its entries would be told as committed."""
    _, producer, segment, gap = await a_gap(memory_cluster, 300)
    await segment.ledgers.roll(b"")
    kept = await producer.send("kept")
    with turns_divided_by(scanning.HEADS_AT_ONCE):  # one at once
        scanned = asyncio.create_task(
            scanning.scan(segment, EARLIEST, kept, max_entries=1_000, skip_trimmed=True, read_bytes=1_000_000)
        )
    await segment.ledgers.trim(kept.ledger_id)
    heads = (await scanned).heads.one_by_one()
    assert 0 < len(heads) < len(gap)
    assert Position(heads[-1].ledger_id, heads[-1].entry_id) == kept
