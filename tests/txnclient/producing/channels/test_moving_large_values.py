"""Values in pieces whose segment is sealed."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.segments.virtual_time import virtual_time
from tests.txnclient.producing.channels.rounds import LOW
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, connected
from tests.waiting import until
from txnclient.producing.large_values import PIECE_BYTES
from txnclient.producing.producer import producer_impl
from txnwire.entry import decode_block, parse_metadata, piece_of
from txnwire.ids import hash_key
from txnwire.protocol import MAX_VALUE_BYTES


def whole_values(cluster: Cluster) -> list[tuple[str, bytes]]:
    """Of each segment the values whose pieces are all there, in order, one behind the other."""
    found = []
    for path, entries in cluster.entries.items():
        parts: dict[int, list[bytes]] = {}
        for entry in entries:
            piece = piece_of(parse_metadata(entry))
            assert piece is not None
            parts.setdefault(piece.chunk_id, []).append(decode_block(entry).value(0))
            assert len(parts[piece.chunk_id]) == piece.number + 1
            if piece.number + 1 == piece.pieces:
                found.append((path, b"".join(parts.pop(piece.chunk_id))))
    return found


@pytest.mark.parametrize("stored", [0, 1, 4, 6])
@pytest.mark.parametrize("buffer_pieces", [2, 64])
@virtual_time
async def test_a7_a_value_in_pieces_whose_segment_is_sealed_is_sent_anew_as_a_whole(
    stored: int, buffer_pieces: int
) -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, compression=None, buffer_bytes=buffer_pieces * (PIECE_BYTES + 100))
        txn = await client.begin()
        value = Random(stored).randbytes(MAX_VALUE_BYTES + PIECE_BYTES // 2)
        server.stall_sends = True
        sending = asyncio.ensure_future(producer.send(value, key=LOW[0], chunk=True, txn=txn))
        while len(cluster.stored[SEGMENTS[0]]) < stored:
            await until(lambda: server.stalled)
            server.finish_sends(1)
        await until(lambda: server.stalled or sending.done())
        committing = asyncio.ensure_future(txn.commit())
        cluster.sealed[SEGMENTS[0]] = None
        server.drop_stalled()
        server.tell_sealed(SEGMENTS[0])
        server.stall_sends = False
        await asyncio.sleep(0.5)
        cluster.split(0)
        sent = await sending
        await committing
        child = cluster.path(2 if hash_key(LOW[0].encode()) < 0x4000 else 3)
        segment = SEGMENTS[0] if stored == 6 else child
        assert [(path, len(one)) for path, one in whole_values(cluster)] == [(segment, len(value))]
        assert whole_values(cluster) == [(segment, value)]
        assert sent.segment == segment
        assert producer_impl(producer)._buffer.taken == 0


@virtual_time
async def test_a7_two_values_in_pieces_are_moved_in_order() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC, compression=None, buffer_bytes=3 * PIECE_BYTES)
        values = [bytes([number]) * (MAX_VALUE_BYTES + 1) for number in range(3)]
        txn = await client.begin()
        cluster.seal(0)
        sending = [asyncio.ensure_future(producer.send(one, key=LOW[0], chunk=True, txn=txn)) for one in values]
        await asyncio.sleep(0.1)
        cluster.split(0)
        await asyncio.gather(*sending)
        await txn.commit()
        assert [one[:1] for _, one in whole_values(cluster)] == [b"\0", b"\1", b"\2"]


@virtual_time
async def test_l6_a_commit_waits_for_a_large_value_that_waits_for_room() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, compression=None, buffer_bytes=PIECE_BYTES)
        txn = await client.begin()
        value = bytes(MAX_VALUE_BYTES + 1)
        sending = asyncio.ensure_future(producer.send(value, key=LOW[0], chunk=True, txn=txn))
        await until(lambda: server.seen["send"])
        await txn.commit()
        assert sending.done()
        assert [one for _, one in whole_values(cluster)] == [value]
