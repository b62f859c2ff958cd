"""What a cumulative ack covers in every segment of a consumer: the order of hand-outs against a model, and the commands
that leave."""

from __future__ import annotations

from random import Random

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.consuming.attached import acks, attached
from tests.txnclient.consuming.feeds.test_inbox import entry
from tests.txnclient.scripted_server import SEGMENTS, connected
from tests.waiting import until
from txnclient.consuming.consumer import consumer_impl
from txnclient.consuming.feeds.inbox import Inbox
from txnclient.consuming.received.bits import all_bits
from txnclient.consuming.received.delivered import FIRST_COMPACTION, LOST_REMEMBERED, Delivered, DeliveryOrder, place_of
from txnclient.consuming.received.message import Message
from txnwire.errors import InvalidArgument, StoreFull
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb

LEFT, RIGHT = SEGMENTS
Named = tuple[str, int, int]


def named(server: object) -> list[tuple[int, int, bool]]:
    """(consumer id, entry, in a transaction) of the cumulative acks that came."""
    return [
        (ack.consumer_id, ack.positions[0].entry_id, bool(ack.txnid_least_bits))
        for ack in acks(server)  # type: ignore[arg-type]
        if ack.cumulative
    ]


async def in_turn(consumer: txnclient.Consumer, count: int) -> list[Message]:
    return [await consumer.receive() for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_p2_of_every_segment_is_known_how_far_it_was_handed_out_before_a_message(seed: int) -> None:
    """Messages taken one by one or by the batch, acked singly, up to one, or never; runs do not pile up."""
    chance, order = Random(seed), DeliveryOrder()
    inboxes = {name: Inbox(10_000, keeps_holds=True, delivered=Delivered(order, name)) for name in "abc"}
    arrived = dict.fromkeys(inboxes, 0)
    handed_out: list[tuple[str, Message]] = []
    unacked: dict[Named, None] = {}
    for _ in range(400):
        name = chance.choice("abc")
        inbox = inboxes[name]
        if not inbox.buffered:
            inbox.arrived(entry(arrived[name], chance.randrange(1, 5)), b"")
            arrived[name] += 1
        for message in inbox.take(chance.randrange(1, 4)):
            handed_out.append((name, message))
            unacked[name, message.position.entry_id, message.index] = None
        if chance.random() < 0.4:
            of, message = chance.choice(handed_out[-20:])
            inboxes[of].acked({message.position: 1 << message.index}, cumulative=False)
            unacked.pop((of, message.position.entry_id, message.index), None)
        if chance.random() < 0.2:
            of, message = chance.choice(handed_out[-20:])
            at = handed_out.index((of, message))
            for other in inboxes.keys() - {of}:
                before = [one for name, one in handed_out[:at] if name == other]
                owed = [one for one in before if (other, one.position.entry_id, one.index) in unacked]
                delivered = inboxes[other].delivered
                assert delivered is not None
                up_to = delivered.before(place_of(message))
                assert (up_to is None) == (not owed)
                if up_to is None:
                    continue
                end = up_to.positions[-1].entry_id, up_to.last
                assert (owed[-1].position.entry_id, owed[-1].index) <= end
                assert end <= (before[-1].position.entry_id, before[-1].index)
                inboxes[other].acked({up_to.positions[-1]: all_bits(up_to.last + 1)}, cumulative=True)
                unacked = {one: None for one in unacked if one[0] != other or one[1:] > end}
    for name, inbox in inboxes.items():
        assert inbox.delivered is not None
        assert len(inbox.delivered) <= 2 * sum(1 for one in unacked if one[0] == name) + FIRST_COMPACTION


def test_p2_of_very_many_unacked_messages_each_is_known_with_its_place() -> None:
    order = DeliveryOrder()
    inbox, other = (Inbox(1000, keeps_holds=True, delivered=Delivered(order, name)) for name in "ab")
    between: list[Message] = []
    for number in range(3 * FIRST_COMPACTION):
        for one in (inbox, other):
            one.arrived(entry(number), b"")
        inbox.take(1)
        between += other.take(1)
    assert inbox.delivered is not None
    for message in reversed(between):
        up_to = inbox.delivered.before(place_of(message))
        assert up_to is not None
        assert up_to.positions == (message.position,)


def test_p2_what_comes_again_after_a_failed_ack_hides_nothing_behind_it() -> None:
    order = DeliveryOrder()
    inbox, other = (Inbox(100, keeps_holds=True, delivered=Delivered(order, name)) for name in "ab")
    for number in range(3):
        inbox.arrived(entry(number), b"")
        inbox.take(1)
        other.arrived(entry(number), b"")
        (behind,) = other.take(1)
    inbox.ack_started({Position(1, 0): 1})
    inbox.ack_answered({Position(1, 0): 1})  # refused
    inbox.drop_buffer()
    inbox.arrived(entry(0), b"")
    assert len(inbox.take(1)) == 1
    other.arrived(entry(3), b"")
    (last,) = other.take(1)
    assert inbox.delivered is not None
    for message in (behind, last):
        up_to = inbox.delivered.before(place_of(message))
        assert up_to is not None
        assert up_to.positions == (Position(1, 2),)


def test_p2_what_came_again_and_is_acked_takes_no_memory() -> None:
    inbox = Inbox(100, keeps_holds=True, delivered=Delivered(DeliveryOrder(), "a"))
    assert inbox.delivered is not None
    runs = inbox.delivered._runs
    for number in range(3):
        inbox.arrived(entry(number), b"")
        inbox.take(1)
    inbox.ack_started({Position(1, 0): 1})
    inbox.ack_answered({Position(1, 0): 1})  # refused
    inbox.drop_buffer()
    inbox.arrived(entry(0), b"")
    assert len(inbox.take(1)) == 1
    assert (len(runs), len(runs._further)) == (4, 1)
    inbox.acked({Position(1, number): 1 for number in range(3)}, cumulative=False)
    assert (len(runs), len(runs._further)) == (0, 0)


@pytest.mark.parametrize("sought", [True, False])
def test_p2_what_a_seek_has_passed_is_lost_to_no_transaction_but_what_a_rewind_brings_back_is(sought: bool) -> None:
    order = DeliveryOrder()
    inbox = Inbox(100, keeps_holds=True, delivered=Delivered(order, "a"))
    for number in range(2):
        inbox.arrived(entry(number), b"")
        inbox.take(1)
    inbox.acked({Position(1, 0): 1}, cumulative=True)
    inbox.ack_started({Position(1, 0): 1})
    (inbox.sought if sought else inbox.rewound)()
    assert inbox.delivered is not None
    assert inbox.delivered.before(10) is None
    order.check_nothing_lost(1, begun_s=0.0)
    if not sought:
        with pytest.raises(txnclient.TxnConflict, match="segment://a"):
            order.check_nothing_lost(10, begun_s=0.0)
    order.check_nothing_lost(10, begun_s=0.0)


def test_p2_what_is_lost_again_does_not_hide_what_was_lost_before() -> None:
    """It was handed out before the other segment's message, whatever it has come again behind."""
    order = DeliveryOrder()
    inbox, other = (Inbox(100, keeps_holds=True, delivered=Delivered(order, name)) for name in "ab")
    inbox.arrived(entry(0), b"")
    inbox.take(1)
    other.arrived(entry(0), b"")
    (between,) = other.take(1)
    inbox.rewound()
    inbox.arrived(entry(0), b"")
    assert len(inbox.take(1)) == 1
    inbox.rewound()
    with pytest.raises(txnclient.TxnConflict, match="segment://a"):
        order.check_nothing_lost(place_of(between), begun_s=0.0)


@pytest.mark.parametrize("broker_first", [True, False])
def test_p2_what_an_abort_brings_back_is_lost_to_transactions_of_before_and_to_no_later_one(broker_first: bool) -> None:
    """Two transactions at a time may have processed it; the next one receives it anew. The broker's rewind may come
    before the answer to the abort."""
    order = DeliveryOrder()
    inbox = Inbox(100, keeps_holds=True, delivered=Delivered(order, "a"))
    inbox.arrived(entry(0), b"")
    inbox.take(1)
    if broker_first:
        inbox.rewound()
    inbox.rewound(given_back_s=5.0)
    for _ in range(2):
        with pytest.raises(txnclient.TxnConflict, match="segment://a"):
            order.check_nothing_lost(10, begun_s=4.0)
        order.check_nothing_lost(10, begun_s=6.0)
    order.check_nothing_lost(1, begun_s=4.0)  # up to what was handed out before it


def test_p2_what_an_abort_brings_back_is_lost_to_a_transaction_that_began_as_it_did() -> None:
    order = DeliveryOrder()
    order.given_back("a", 1, 5.0)
    with pytest.raises(txnclient.TxnConflict, match="segment://a"):
        order.check_nothing_lost(2, begun_s=5.0)


def test_p2_what_aborts_have_brought_back_twice_is_lost_from_its_first_message_on() -> None:
    order = DeliveryOrder()
    order.given_back("a", 1, 5.0)
    order.given_back("a", 8, 6.0)
    with pytest.raises(txnclient.TxnConflict, match="segment://a"):
        order.check_nothing_lost(2, begun_s=5.5)


@pytest.mark.parametrize("by_an_abort", [False, True])
def test_p2_any_segment_may_be_the_one_that_lost_something_before_a_message(by_an_abort: bool) -> None:
    order = DeliveryOrder()
    for segment, place in (("a", 8), ("b", 1)):
        if by_an_abort:
            order.given_back(segment, place, 5.0)
        else:
            order.lost(segment, place)
    with pytest.raises(txnclient.TxnConflict, match="segment://b"):
        order.check_nothing_lost(2, begun_s=5.0)


def test_p2_of_very_many_segments_that_have_left_the_latest_are_remembered() -> None:
    order = DeliveryOrder()
    for number in range(LOST_REMEMBERED + 1):
        order.lost(f"segment {number}", number)
    order.forget_lost(LOST_REMEMBERED)
    with pytest.raises(txnclient.TxnConflict, match=f"segment {LOST_REMEMBERED} "):
        order.check_nothing_lost(LOST_REMEMBERED + 1, begun_s=0.0)


def test_p2_what_is_acked_behind_something_that_is_not_takes_no_memory() -> None:
    delivered = Delivered(DeliveryOrder(), "a")
    other = Delivered(delivered.order, "b")
    for number in range(10 * FIRST_COMPACTION):
        for one in (delivered, other):
            one.taken(entry(number), [0], 1)
        if number:
            delivered.acked({Position(1, number): 1}, cumulative=False)
    assert len(delivered) <= 3 * FIRST_COMPACTION
    assert delivered.before(delivered.order.place) is not None


@virtual_time
async def test_p2_a_cumulative_ack_names_each_segment_as_far_as_it_was_handed_out_before() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        for number in range(3):
            server.deliver(LEFT, number, b"l%d" % number, b"m%d" % number)
            server.deliver(RIGHT, number, b"r%d" % number)
            await until(lambda number=number: server.seen["flow"] and consumer_impl(consumer).has_buffered)
        messages = await in_turn(consumer, 9)
        left, right = server.consumer_of(LEFT), server.consumer_of(RIGHT)
        middle = messages[5]
        expected = {LEFT: None, RIGHT: None} | {one.entry.segment: one.position.entry_id for one in messages[:6]}
        await consumer.ack_cumulative(middle)
        first = [(left, expected[LEFT], False), (right, expected[RIGHT], False)]
        assert sorted(named(server)) == sorted(first)
        await consumer.ack(messages[6:8])
        count = len(named(server))
        txn = await client.begin()
        await consumer.ack_cumulative(messages[8], txn=txn)
        of_last = left if messages[8].entry.segment == LEFT else right
        assert named(server)[count:] == [(of_last, 2, True)], "of the other one all is acked"
        await txn.commit()


@virtual_time
async def test_p2_an_error_of_one_segment_names_it_and_the_call_may_be_repeated() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"l")
        await consumer_has(consumer, LEFT)
        (first,) = await in_turn(consumer, 1)
        server.deliver(RIGHT, 0, b"r")
        (second,) = await in_turn(consumer, 1)
        assert (first.entry.segment, second.entry.segment) == (LEFT, RIGHT)
        server.refuse["ack"] = [InvalidArgument("no"), StoreFull("full")]
        with pytest.raises(InvalidArgument, match=f"segment://{RIGHT}: no"):
            await consumer.ack_cumulative(second)
        server.refuse["ack"] = []
        await consumer.ack_cumulative(second)
        both = [(server.consumer_of(one), 0, False) for one in (RIGHT, LEFT)]
        assert named(server) == [*both, *both]
        await consumer.ack_cumulative(second)
        assert named(server) == [*both, *both, both[0]]


async def consumer_has(consumer: txnclient.Consumer, segment: str) -> None:
    await until(lambda: consumer_impl(consumer).has_buffered and segment in consumer.segments)


@pytest.mark.parametrize("how", ["leaves", "comes again"])
@virtual_time
async def test_p2_what_was_handed_out_before_and_is_another_s_now_is_passed_over_or_ends_a_transaction(
    how: str,
) -> None:
    """Its messages come again elsewhere: a transaction that has processed them must not commit without their ack."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"l")
        (lost,) = await in_turn(consumer, 1)
        server.deliver(RIGHT, 0, b"a", b"b", b"c")
        messages = await in_turn(consumer, 3)
        if how == "leaves":
            server.assign(RIGHT)
            await until(lambda: consumer.segments == [RIGHT])
        else:
            rewind = pb.Command(rewind=pb.Rewind(consumer_id=server.consumer_of(LEFT)))
            server.push_to_consumer(LEFT, rewind)
            server.deliver(LEFT, 0, b"l")
            await until(lambda: consumer_impl(consumer).has_buffered)
        right = server.consumer_of(RIGHT)
        txn = await client.begin()
        with pytest.raises(txnclient.TxnConflict, match=LEFT):
            await consumer.ack_cumulative(messages[1], txn=txn)
        assert named(server) == [(right, 0, True)], "so that the abort brings it back"
        with pytest.raises(txnclient.TxnConflict):
            await txn.commit()
        assert lost.entry.segment == LEFT


@virtual_time
async def test_p2_outside_a_transaction_what_has_left_is_passed_over() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"l")
        (gone,) = await in_turn(consumer, 1)
        server.deliver(RIGHT, 0, b"r", b"s")
        first, second = await in_turn(consumer, 2)
        server.assign(RIGHT)
        await until(lambda: consumer.segments == [RIGHT])
        right = server.consumer_of(RIGHT)
        await consumer.ack_cumulative(first)
        assert named(server) == [(right, 0, False)]
        with pytest.raises(txnclient.NotAllowed, match=LEFT):
            await consumer.ack_cumulative(gone)
        txn = await client.begin()
        await consumer.ack_cumulative(second, txn=txn)
        await txn.commit()


@virtual_time
async def test_p2_a_message_whose_segment_has_left_still_acks_the_others() -> None:
    """Or what follows them would wait for ever where nothing comes behind it."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"l")
        await in_turn(consumer, 1)
        server.deliver(RIGHT, 0, b"r")
        (last,) = await in_turn(consumer, 1)
        server.assign(LEFT)
        await until(lambda: consumer.segments == [LEFT])
        with pytest.raises(txnclient.NotAllowed, match=RIGHT):
            await consumer.ack_cumulative(last)
        assert named(server) == [(server.consumer_of(LEFT), 0, False)]


@virtual_time
async def test_p2_after_a_rewind_that_was_asked_for_a_transaction_acks_what_came_again() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        for segment in SEGMENTS:
            server.deliver(segment, 0, b"x")
        await in_turn(consumer, 2)
        consumer.rewind()
        await until(lambda: server.seen["subscribe"] == 4 and len(server.consumers) == 2)
        for segment in SEGMENTS:
            server.deliver(segment, 0, b"x")
        messages = await in_turn(consumer, 2)
        txn = await client.begin()
        await consumer.ack_cumulative(messages[0], txn=txn)
        await consumer.ack_cumulative(messages[1], txn=txn)
        await txn.commit()
        assert len(named(server)) == 2
