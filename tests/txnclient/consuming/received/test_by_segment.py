"""What the calls of a consumer share: their messages, and the answers of several segments and commands."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.consuming.attached import LEFT, RIGHT, acks, attached
from tests.txnclient.consuming.feeds.test_inbox import entry
from tests.txnclient.scripted_server import connected
from tests.waiting import idle, until
from txnclient.consuming.consumer import consumer_impl
from txnclient.consuming.received.by_segment import answered_by, by_segment


def test_what_is_no_message_is_named_wherever_it_stands() -> None:
    (message,) = entry(0).messages([0])
    with pytest.raises(txnclient.InvalidArgument, match="not int"):
        by_segment([message, 7])  # type: ignore[list-item]


@virtual_time
async def test_a_transaction_of_messages_acks_each_of_them() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a", b"b")
        server.deliver(RIGHT, 0, b"c")
        await until(lambda: all(feed.buffered for feed in consumer_impl(consumer)._feeds.values()))
        messages = [await consumer.receive() for _ in range(3)]
        async with consumer.transaction(messages):
            pass
        of_left, of_right = map(server.consumer_of, (LEFT, RIGHT))
        named = [(ack.consumer_id, one.entry_id, one.indexes) for ack in acks(server) for one in ack.positions]
        assert sorted(named) == sorted([(of_left, 0, b""), (of_right, 0, b"")]), "all messages of both entries"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
async def test_the_answers_of_all_segments_and_commands_are_waited_for(order: tuple[int, ...]) -> None:
    loop = asyncio.get_running_loop()
    answers: list[asyncio.Future[None]] = [loop.create_future() for _ in order]
    waiting = asyncio.ensure_future(answered_by({LEFT: answers[:2], RIGHT: answers[2:]}))
    *answered, last = order
    for number in answered:
        answers[number].set_result(None)
        await idle()
        assert not waiting.done()
    answers[last].set_exception(txnclient.NotAllowed("refused"))
    with pytest.raises(txnclient.NotAllowed, match=f"segment://{RIGHT if last == 2 else LEFT}: refused"):
        await waiting
