"""Producers against scripted brokers whose segments are sealed, split and merged: nothing lost, doubled or out of
order per key."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import pytest

import txnclient
from segments.log.sends.dedup import Dedup
from tests.segments.virtual_time import virtual_time
from tests.txnclient.producing.channels.rounds import KEYS, LOW
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, ScriptedServer, connected
from tests.waiting import until
from txnclient.producing.producer import producer_impl
from txnwire.entry import decode_block
from txnwire.ids import hash_key

HIGH = [key for key in KEYS if key not in LOW]


def test_there_are_keys_for_every_quarter() -> None:
    assert {hash_key(key.encode()) >> 14 for key in KEYS} == {0, 1, 2, 3}


def opened(server: ScriptedServer) -> list[str]:
    return [c.open_producer.segment for c in server.commands if c.HasField("open_producer")]


def expected(*sends: tuple[str, bytes]) -> dict[bytes | None, list[bytes]]:
    found: dict[bytes | None, list[bytes]] = {}
    for key, value in sends:
        found.setdefault(key.encode(), []).append(value)
    return found


def round_of(name: str, keys: Sequence[str] = KEYS) -> list[tuple[str, bytes]]:
    return [(key, f"{name}-{key}".encode()) for key in keys]


def send_all(
    producer: txnclient.Producer, sends: Sequence[tuple[str, bytes]], txn: txnclient.Transaction | None = None
) -> list[asyncio.Future[txnclient.MessageId]]:
    return [producer.send_nowait(value, key=key, txn=txn) for key, value in sends]


@pytest.mark.parametrize("told", [True, False], ids=["told", "finds out"])
@pytest.mark.parametrize("linger_ms", [0, 5])
@virtual_time
async def test_s5_a_producer_is_redirected_once_and_keeps_the_order_per_key(told: bool, linger_ms: float) -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, linger_ms=linger_ms)
        before = round_of("a")
        await asyncio.gather(*send_all(producer, before))
        server.stall_sends = True
        in_flight = send_all(producer, round_of("b"))
        await until(lambda: server.seen["send"] == 4)
        behind = send_all(producer, round_of("c"))
        server.stall_sends = False
        cluster.seal(0, told=told)
        late = send_all(producer, round_of("d"))
        await asyncio.sleep(0.1)
        cluster.split(0)
        later = send_all(producer, round_of("e"))
        ids = await asyncio.gather(*in_flight, *behind, *late, *later)
        sends = [*before, *round_of("b"), *round_of("c"), *round_of("d"), *round_of("e")]
        assert cluster.values_by_key() == expected(*sends)
        assert {one.segment for one in ids} == {cluster.path(number) for number in range(4)}
        for number in (2, 3):
            assert opened(server).count(cluster.path(number)) == 1
        assert server.seen["close_producer"] == told, "the broker need not remember the one that was open"


@virtual_time
async def test_s5_the_ids_of_what_was_moved_are_where_it_stands() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        cluster.seal(0, 1)
        ids = producer.send_many([(key, key.encode()) for key in KEYS * 3])
        sending = asyncio.ensure_future(ids)
        one_by_one = send_all(producer, [(key, key.encode()) for key in KEYS])
        await asyncio.sleep(0.05)
        cluster.split(0)
        cluster.split(1)
        await asyncio.gather(sending, *one_by_one)
        placed = [*zip(KEYS * 3, await sending, strict=True)]
        placed += [(key, future.result()) for key, future in zip(KEYS, one_by_one, strict=True)]
        for key, found in placed:
            entry = cluster.entries[found.segment][found.position.entry_id]
            assert decode_block(entry).value(found.index) == key.encode()
        assert len({found for _, found in placed}) == 4 * len(KEYS)


@virtual_time
async def test_l7_what_the_sealed_segment_holds_is_done_though_its_answer_was_lost() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        await asyncio.gather(*send_all(producer, round_of("a", LOW)))
        server.lose_replies["send"] = 1
        stored = send_all(producer, round_of("b", LOW))
        await until(lambda: len(cluster.stored[SEGMENTS[0]]) == 2)
        cluster.seal(0)
        cluster.split(0)
        behind = send_all(producer, round_of("c", LOW))
        await asyncio.gather(*behind)
        ids = await asyncio.gather(*stored)
        assert cluster.values_by_key() == expected(*round_of("a", LOW), *round_of("b", LOW), *round_of("c", LOW))
        assert {one.segment for one in ids} == {SEGMENTS[0]}
        assert {str(one.position) for one in ids} == {"0:-1"}, "nobody can say where any more"


@pytest.mark.parametrize("stored", [True, False])
@virtual_time
async def test_s11_nothing_reaches_a_child_before_its_parent_has_answered(stored: bool) -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        await asyncio.gather(*send_all(producer, round_of("a", LOW)))
        server.stall_sends = True
        sends = send_all(producer, round_of("b", LOW))
        await until(lambda: server.seen["send"] == 2)
        server.hold["open_producer"] = asyncio.Event()  # the parent's owner does not answer
        await server.cut()
        if not stored:
            server.drop_stalled()
        cluster.seal(0)
        cluster.split(0, owner="broker:2")
        await until(lambda: producer_impl(producer)._channels._routes.leaving)
        sends += send_all(producer, round_of("c", LOW))
        await asyncio.sleep(3)
        assert opened(cluster.servers["broker:2"]) == []
        server.hold["open_producer"].set()
        await asyncio.gather(*sends)
        assert cluster.values_by_key() == expected(*round_of("a", LOW), *round_of("b", LOW), *round_of("c", LOW))


@virtual_time
async def test_s11_after_a_merge_both_parents_must_have_answered() -> None:
    async with connected("broker:1", "broker:2", "broker:3") as (cluster, client):
        cluster.move(SEGMENTS[1], "broker:2")
        first, second, third = cluster.servers.values()
        producer = await client.producer(TOPIC)
        await asyncio.gather(*send_all(producer, round_of("a")))
        first.stall_sends = second.stall_sends = True
        sends = send_all(producer, round_of("b"))
        await until(lambda: first.seen["send"] == second.seen["send"] == 2)
        first.hold["open_producer"] = asyncio.Event()
        await first.cut()
        cluster.seal(0, 1)
        cluster.merge(0, 1, owner="broker:3")
        sends += send_all(producer, round_of("c"))
        await asyncio.sleep(3)
        assert all(one.done() for one, key in zip(sends, KEYS, strict=False) if key in HIGH), "it has answered"
        assert opened(third) == []
        before = cluster.clock.monotonic()
        first.hold["open_producer"].set()
        await asyncio.gather(*sends)
        assert cluster.clock.monotonic() - before < 0.2, "what was held back goes at once"
        assert cluster.values_by_key() == expected(*round_of("a"), *round_of("b"), *round_of("c"))
        assert opened(third) == [cluster.path(2)]


@virtual_time
async def test_s5_a_child_that_is_sealed_before_it_is_reached_is_passed_over() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        server.stall_sends = True
        sends = send_all(producer, round_of("a"))
        await until(lambda: server.seen["send"] == 2)
        cluster.seal(0, 1)
        sends += send_all(producer, round_of("b"))
        await asyncio.sleep(0.1)
        server.stall_sends = False
        server.followers, followers = {}, server.followers  # nobody hears of the layouts in between
        cluster.split(0)
        cluster.seal(2)
        cluster.split(2)
        cluster.seal(1, 3)
        cluster.merge(3, 1)
        server.followers = followers
        cluster.announce()
        await asyncio.gather(*sends)
        assert cluster.values_by_key() == expected(*round_of("a"), *round_of("b"))
        assert not {cluster.path(2), cluster.path(3)} & set(opened(server))


@virtual_time
async def test_s10_a_change_that_is_given_up_lets_the_producer_go_on() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        await asyncio.gather(*send_all(producer, round_of("a")))
        cluster.seal(0)
        sends = send_all(producer, round_of("b"))
        await asyncio.sleep(2)
        assert not all(one.done() for one in sends)
        cluster.unseal(0)
        await asyncio.gather(*sends)
        assert cluster.values_by_key() == expected(*round_of("a"), *round_of("b"))
        cluster.seal(0)
        cluster.split(0)
        await asyncio.gather(*send_all(producer, round_of("c")))
        assert cluster.values_by_key() == expected(*round_of("a"), *round_of("b"), *round_of("c"))


@virtual_time
async def test_a_former_owner_that_believes_in_a_seal_which_was_undone_is_not_believed() -> None:
    """▲ It would say that what its successor has stored is not there, and that would be stored twice."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        first, second = cluster.servers.values()
        first.epochs[SEGMENTS[0]], second.epochs[SEGMENTS[0]] = 1, 2
        second.dedups = first.dedups
        producer = await client.producer(TOPIC)
        await asyncio.gather(*send_all(producer, round_of("a", LOW)))
        cluster.move(SEGMENTS[0], "broker:2")
        await first.cut()
        await asyncio.gather(*send_all(producer, round_of("b", LOW)))
        second.lose_replies["send"] = 1
        second.hold["open_producer"] = asyncio.Event()
        sends = send_all(producer, round_of("c", LOW))
        await until(lambda: second.hold["open_producer"] and len(cluster.stored[SEGMENTS[0]]) == 3)
        first.dedups = defaultdict(lambda: Dedup(idle_s=3600))  # it slept, and knows nothing of its successor's
        cluster.sealed[SEGMENTS[0]] = None
        cluster.split(0, owner="broker:2")
        cluster.move(SEGMENTS[0], "broker:1")  # by a directory that lags
        await until(lambda: opened(first).count(SEGMENTS[0]) >= 3)
        await asyncio.sleep(1)
        assert not any(one.done() for one in sends)
        second.hold.pop("open_producer").set()
        cluster.move(SEGMENTS[0], "broker:2")
        await asyncio.gather(*sends)
        assert cluster.values_by_key() == expected(*round_of("a", LOW), *round_of("b", LOW), *round_of("c", LOW))


@virtual_time
async def test_what_was_written_to_a_forgotten_segment_is_of_unknown_outcome_and_never_sent_again() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        await asyncio.gather(*send_all(producer, round_of("a", LOW)))
        server.stall_sends = True
        written = send_all(producer, round_of("b", LOW))
        await until(lambda: server.seen["send"] == 2)
        waiting = send_all(producer, round_of("c", LOW))
        await server.cut()
        server.hold["open_producer"] = asyncio.Event()
        server.stall_sends = False
        cluster.seal(0)
        cluster.split(0)
        cluster.prune(0)
        server.hold.pop("open_producer").set()
        for one in written:
            with pytest.raises(txnclient.OutcomeUnknown, match="is not known"):
                await one
        await asyncio.gather(*waiting)
        found = cluster.values_by_key()
        assert all(values[-1].startswith(b"c-") for values in found.values())


@virtual_time
async def test_a_client_with_an_older_layout_than_the_broker_waits_for_the_newer_one() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        server.followers, followers = {}, server.followers
        cluster.seal(0)
        cluster.split(0)
        cluster.prune(0)
        sends = send_all(producer, round_of("a"))
        await asyncio.sleep(1)
        assert SEGMENTS[0] in opened(server)
        server.followers = followers
        cluster.announce()
        await asyncio.gather(*sends)
        assert cluster.values_by_key() == expected(*round_of("a"))


# ---- transactions -------------------------------------------------------------------------------------------------


@virtual_time
async def test_s1_a_commit_waits_for_what_moves() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        txn = await client.begin()
        await asyncio.gather(*send_all(producer, round_of("a"), txn))
        cluster.seal(0, 1)
        send_all(producer, round_of("b"), txn)
        committing = asyncio.ensure_future(txn.commit())
        await asyncio.sleep(1)
        assert not committing.done()
        assert server.seen["end_txn"] == 0
        cluster.split(0)
        await asyncio.sleep(1)
        assert not committing.done()
        cluster.split(1)
        await committing
        assert cluster.values_by_key() == expected(*round_of("a"), *round_of("b"))
        assert {one for log in cluster.stored.values() for *_, one in log} == {txn.id}


@virtual_time
async def test_s2_an_abort_while_the_producer_waits_drops_what_was_not_stored() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        doomed, other = await client.begin(), await client.begin()
        await asyncio.gather(*send_all(producer, round_of("a"), doomed))
        cluster.seal(0, 1)
        dropped = send_all(producer, round_of("b"), doomed)
        kept = send_all(producer, round_of("c"), other)
        await asyncio.sleep(0.5)
        await doomed.abort()
        assert all(isinstance(one.exception(), txnclient.InvalidTxnState) for one in dropped)
        cluster.split(0)
        cluster.split(1)
        await other.commit()
        assert all(one.done() for one in kept)
        assert cluster.values_by_key() == expected(*round_of("a"), *round_of("c"))


@virtual_time
async def test_s11_an_abort_of_all_that_was_in_doubt_lets_the_children_go() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        txn = await client.begin()
        server.stall_sends = True
        doubtful = send_all(producer, round_of("a", LOW), txn)
        await until(lambda: server.seen["send"] == 1)
        server.hold["open_producer"] = asyncio.Event()
        await server.cut()
        cluster.seal(0)
        cluster.split(0, owner="broker:2")
        sends = send_all(producer, round_of("b", LOW))
        await asyncio.sleep(4.03)
        assert not any(one.done() for one in sends)
        before = cluster.clock.monotonic()
        await txn.abort()
        await asyncio.gather(*sends)
        assert cluster.clock.monotonic() - before < 0.2
        assert all(isinstance(one.exception(), txnclient.InvalidTxnState) for one in doubtful)


@virtual_time
async def test_s2_what_was_in_doubt_and_is_not_stored_ends_while_its_abort_is_under_way() -> None:
    """▲ Nobody sends it again, so whoever waits for it would wait for ever."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        txn = await client.begin()
        server.stall_sends = True
        doubtful = send_all(producer, round_of("a", LOW), txn)
        await until(lambda: server.seen["send"] == 1)
        server.hold["end_txn"] = asyncio.Event()
        aborting = asyncio.create_task(txn.abort())
        await until(lambda: server.seen["end_txn"])
        assert not any(one.done() for one in doubtful)
        server.drop_stalled()
        cluster.seal(0)
        cluster.split(0)
        await until(lambda: all(one.done() for one in doubtful), within_s=3.0)
        assert all(isinstance(one.exception(), txnclient.InvalidTxnState) for one in doubtful)
        server.hold["end_txn"].set()
        await aborting


# ---- the rest of a producer's life ----------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", [2, 3])
@pytest.mark.parametrize("ending", ["flush", "close"])
@virtual_time
async def test_flush_and_close_wait_for_all_that_was_divided(ending: str, slow: int) -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        producer = await client.producer(TOPIC)
        cluster.seal(0)
        sends = send_all(producer, round_of("a", LOW))
        waiting = asyncio.ensure_future(getattr(producer, ending)())
        await asyncio.sleep(0.5)
        assert not waiting.done()
        second = cluster.servers["broker:2"]
        second.stall_sends = True
        cluster.split(0)
        cluster.move(cluster.path(slow), "broker:2")
        await until(lambda: sum(one.done() for one in sends) and second.seen["send"])
        await asyncio.sleep(0.5)
        assert not waiting.done()
        second.finish_sends()
        await waiting
        assert all(one.done() for one in sends)


@virtual_time
async def test_a_send_whose_time_is_up_while_its_segment_is_sealed_fails_and_the_others_go_on() -> None:
    async with connected(timeout=5) as (cluster, client):
        producer = await client.producer(TOPIC)
        await asyncio.gather(*send_all(producer, round_of("a", LOW)))
        cluster.seal(0)
        early = send_all(producer, round_of("b", LOW))
        await asyncio.sleep(4)
        late = send_all(producer, round_of("c", LOW))
        await asyncio.sleep(2)
        for one in early:
            with pytest.raises(txnclient.Timeout):
                one.result()
        cluster.split(0)
        await asyncio.gather(*late)
        assert cluster.values_by_key() == expected(*round_of("a", LOW), *round_of("c", LOW))


@virtual_time
async def test_the_buffer_stays_bounded_while_a_segment_is_sealed_and_is_empty_afterwards() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC, buffer_bytes=4000, batch_bytes=500)
        cluster.seal(0, 1)
        values = [(KEYS[number % 16], b"%0100d" % number) for number in range(500)]
        sending = asyncio.ensure_future(producer.send_many(values))
        await asyncio.sleep(1)
        assert not sending.done()
        with pytest.raises(txnclient.WouldBlock):
            producer.send_nowait(bytes(1000), key="k0")
        cluster.split(0)
        cluster.split(1)
        ids = await sending
        await producer.flush()
        for number, (_key, value) in enumerate(values):
            entry = cluster.entries[ids[number].segment][ids[number].position.entry_id]
            assert decode_block(entry).value(ids[number].index) == value
        assert producer_impl(producer)._buffer.taken == 0
        assert not producer_impl(producer)._pending


@virtual_time
async def test_messages_without_a_key_stay_together_and_in_order() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC, linger_ms=0)
        cluster.seal(0, 1)
        sends = [producer.send_nowait(b"%d" % number) for number in range(10)]
        await asyncio.sleep(0.1)
        cluster.split(0)
        cluster.split(1)
        ids = await asyncio.gather(*sends)
        assert len({(one.segment, one.position) for one in ids}) == 1
        assert [one.index for one in ids] == list(range(10))


@virtual_time
async def test_l10_a_fenced_producer_is_told_and_loses_nothing_that_was_acked() -> None:
    async with connected() as (cluster, client):
        first = await client.producer(TOPIC, name="p")
        acked = round_of("a")
        await asyncio.gather(*send_all(first, acked))
        cluster.seal(0, 1)
        waiting = send_all(first, round_of("b"))
        await asyncio.sleep(0.1)
        server = cluster.servers["broker:1"]
        server.refuse["open_producer"] = [txnclient.ProducerFenced("a newer one has connected")]
        cluster.split(0)
        cluster.split(1)
        for one in waiting:
            with pytest.raises(txnclient.ProducerFenced):
                await one
        second = await client.producer(TOPIC, name="p")
        await asyncio.gather(*send_all(second, round_of("c")))
        assert cluster.values_by_key() == expected(*acked, *round_of("c"))


@virtual_time
async def test_s5_a_parent_whose_owner_hangs_is_asked_at_its_next_owner() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        first, second = cluster.servers.values()
        second.dedups = first.dedups
        producer = await client.producer(TOPIC)
        await asyncio.gather(*send_all(producer, round_of("a", LOW)))
        first.stall_sends = True
        sends = send_all(producer, round_of("b", LOW))
        await until(lambda: first.seen["send"] == 2)
        second.finish_sends()
        cluster.sealed[SEGMENTS[0]] = None  # by its next owner; the first one does not notice
        cluster.split(0, owner="broker:2")
        await asyncio.sleep(0.5)
        assert not any(one.done() for one in sends)
        cluster.move(SEGMENTS[0], "broker:2")
        async with asyncio.timeout(1):
            await asyncio.gather(*sends)
        assert cluster.values_by_key() == expected(*round_of("a", LOW), *round_of("b", LOW))
