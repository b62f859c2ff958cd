"""Batches of a bulk send that were divided because their segment was split, and sends over several segments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import txnclient
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, connected
from tests.waiting import until
from txnclient.connection.deadlines import Deadline
from txnclient.producing.channels.batches import BulkBatch
from txnwire.entry import Columns
from txnwire.ids import HASH_SPACE, MessageId, Position, hash_key

LEFT, RIGHT = SEGMENTS


def divided() -> tuple[BulkBatch, list[BulkBatch]]:
    """A batch of five messages: three in one part, two in the other."""
    columns = Columns([b"%d" % number for number in range(5)], None)
    batch = BulkBatch(columns, 50, None, Deadline(LoopClock(), 10.0), asyncio.get_running_loop().create_future())
    batch.deliver_at_ms = 7
    parts = batch.divide(batch.take_back(), [[0, 2, 4], [1, 3]])
    assert [(part.bytes, part.deliver_at_ms) for part in parts] == [(30, 7), (20, 7)]
    return batch, [part for part in parts if isinstance(part, BulkBatch)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("failed", [None, 0, 1])
async def test_a_divided_batch_ends_with_its_last_part_and_fails_if_one_has_failed(
    order: tuple[int, int], failed: int | None
) -> None:
    """▲ Told as stored with its first part, a message of the other one could be lost and nobody would hear of it."""
    broken: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    batch, parts = divided()
    for turn, number in enumerate(order):
        assert not batch.settled.done()
        if number == failed:
            parts[number].failed(txnclient.StoreFull("no room"))
        else:
            parts[number].stored((LEFT, RIGHT)[number], Position(1, number))
        await asyncio.sleep(0)
        assert batch.settled.done() == (turn == 1)
    assert broken == []
    if failed is not None:
        assert isinstance(batch.settled.exception(), txnclient.StoreFull)
        return
    ids = [batch.id_of(number) for number in range(5)]
    assert ids[::2] == [MessageId(LEFT, Position(1, 0), index) for index in range(3)]
    assert ids[1::2] == [MessageId(RIGHT, Position(1, 1), index) for index in range(2)]


@virtual_time
async def test_the_last_sequence_id_does_not_go_back_where_a_slower_segment_answers_later() -> None:
    """▲ A program that keeps it would send what is stored again."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        cluster.move(RIGHT, "broker:2")
        keys = {hash_key(key.encode()) < HASH_SPACE // 2: key for key in map(str, range(20))}
        async with client.producer(TOPIC) as producer:
            cluster.servers["broker:1"].hold["send"] = held = asyncio.Event()
            slow = producer.send_nowait(b"0", key=keys[True])
            await until(lambda: cluster.servers["broker:1"].seen["send"] == 1)
            await producer.send(b"1", key=keys[False])
            assert producer.last_sequence_id == 1
            held.set()
            await slow
            assert producer.last_sequence_id == 1
