"""A numbered producer takes its name at a segment: what it is told, and what no earlier life stores after that."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from segments.ledger.ledger import LedgerFailed
from tests.segments.brokering import Client, Cluster
from tests.segments.brokering_clients import Producer
from tests.segments.changing import controlling
from tests.segments.owner.gated_owner import Gated
from tests.segments.owner.owner_clients import connected
from tests.segments.owner.seals import begin, give_up
from tests.waiting import until
from txnstore import keys, records
from txnstore.records import Watermark
from txnwire.entry import OutgoingMessage, encode_entry
from txnwire.errors import InvalidArgument, NotAllowed, NotOwner, ProducerFenced, SegmentSealed, StoreUnavailable
from txnwire.ids import Position
from txnwire.numbers import Numbers, ids_of
from txnwire.proto import txn_pb2 as pb

NAME = "importer"


async def take(client: Client, segment: str, epoch: int, incarnation: int = 1, name: str = NAME) -> pb.TakeNameOk:
    request = pb.TakeName(segment=segment, name=name, incarnation=incarnation, name_epoch=epoch)
    return (await client.call(take_name=request)).take_name_ok


class Numbered:
    """One life, open at one segment."""

    def __init__(self, client: Client, producer_id: int, epoch: int, incarnation: int) -> None:
        self.client = client
        self.id = producer_id
        self.epoch = epoch
        self.incarnation = incarnation
        self.last = -1

    def send_nowait(self, *ids: int, all_below: int = 0, **changes: int) -> asyncio.Future[pb.Command]:
        first = self.last + 1
        entry = encode_entry(
            [OutgoingMessage(b"%d" % one) for one in ids],
            producer=NAME,
            incarnation=self.incarnation,
            sequence_id=first,
            publish_time_ms=1,
            numbers=Numbers(changes.get("epoch", self.epoch), all_below, ids),
        )
        send = pb.Send(
            producer_id=self.id, sequence_id=first, count=len(ids), previous_sequence_id=self.last, entry=entry
        )
        self.last = first + len(ids) - 1
        return self.client.caller.call_nowait(pb.Command(send=send), timeout_s=10.0)

    async def send(self, *ids: int, all_below: int = 0) -> None:
        await self.send_nowait(*ids, all_below=all_below)


_numbers = iter(range(1000, 100_000))


async def open_at(client: Client, segment: str, epoch: int, incarnation: int = 1) -> Numbered:
    number = next(_numbers)
    client.producers[number] = Producer(client, number, NAME, incarnation)  # to hear that it is closed
    opened = await client.call(
        open_producer=pb.OpenProducer(
            producer_id=number, segment=segment, name=NAME, incarnation=incarnation, name_epoch=epoch
        )
    )
    assert opened.open_producer_ok.numbered
    life = Numbered(client, number, epoch, incarnation)
    life.last = opened.open_producer_ok.last_sequence_id
    return life


async def test_what_is_stored_is_told_over_crashes_and_handovers(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    await take(client, segment, 1)
    life = await open_at(client, segment, 1)
    await life.send(3, 7)
    await life.send(9, all_below=7)
    assert ids_of((await take(client, segment, 1)).id_steps) == [7, 9]
    for epoch, crash in enumerate((True, False, True), 2):
        await (node.crash() if crash else node.close())
        node, client = await connected(cluster)
        told = await take(client, segment, epoch)
        assert (told.taken, told.sealed, told.all_below, ids_of(told.id_steps)) == (True, False, 7, [7, 9])


async def test_what_is_stored_below_the_watermark_is_told_by_the_next_owner_too(cluster: Cluster) -> None:
    """▲ All behind the last footer is read for its ids, decided or not: what is not told, the next life sends again."""
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=replace(cluster.settings, cursor_flush_s=0.01))
    client = await cluster.connect(node)
    await take(client, segment, 1)
    life = await open_at(client, segment, 1)
    for one in (3, 7):
        await life.send(one)
    last = Position(1, 1)

    async def passed() -> bool:
        found = await cluster.store.get(keys.watermark(segment))
        return found is not None and records.decode(Watermark, found.value, key=found.key).position >= last

    await until(passed, f"a watermark at {last}", within_s=10.0)
    await node.crash()
    _, client = await connected(cluster)
    assert ids_of((await take(client, segment, 2)).id_steps) == [3, 7]


async def test_an_earlier_life_stores_nothing_behind_the_answer_not_even_under_the_next_owner(
    cluster: Cluster,
) -> None:
    """(d) ▲ The later life has stored nothing: only what stands beside the ledger tells of it."""
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    assert (await take(client, segment, 1)).taken
    before = await open_at(client, segment, 1)
    await before.send(1)
    other = await cluster.connect(node)
    told = await take(other, segment, 2, incarnation=2)
    assert ids_of(told.id_steps) == [1]
    with pytest.raises(ProducerFenced):
        await before.send(2)
    await node.crash()
    node, client = await connected(cluster)
    refused = await take(client, segment, 1)
    assert (refused.taken, refused.name_epoch) == (False, 2)
    with pytest.raises(ProducerFenced):
        await open_at(client, segment, 1)
    reader = await client.reader(segment)
    await reader.wait("1")


async def test_what_is_on_its_way_when_the_name_is_taken_is_told_as_stored(gated: Gated) -> None:
    """(d) Sends of the former life that are appended and not synced, also behind the sync under way."""
    client, segment = gated.client, gated.segment
    await take(client, segment, 1)
    life = await open_at(client, segment, 1)
    gated.ledgers.hold()
    sends = [life.send_nowait(5)]
    await until(lambda: gated.ledgers.waiting > 0)
    sends.append(life.send_nowait(6))
    taking = asyncio.ensure_future(take(client, segment, 2, incarnation=2))
    await asyncio.sleep(0.05)
    assert not taking.done()
    gated.ledgers.open()
    assert ids_of((await taking).id_steps) == [5, 6]
    await asyncio.wait(sends)


async def test_an_owner_that_slept_and_was_replaced_tells_nothing(cluster: Cluster) -> None:
    """(d) ▲ L3: the former life goes on at its successor, and what it stores there would be sent again."""
    [segment] = await cluster.create_topic()
    old, client = await connected(cluster, "old")
    await take(client, segment, 1)
    owner = await cluster.store.get(keys.owner(segment))
    assert owner is not None
    old.broker._main.cancel()  # type: ignore[union-attr] - it does not notice anything
    old.broker._unsubscribe()  # type: ignore[misc]
    await cluster.store.revoke_lease(owner.lease)
    _, successor = await connected(cluster, "new")
    await take(successor, segment, 1)
    former = await open_at(successor, segment, 1)
    await former.send(5)
    with pytest.raises(NotOwner):
        await take(client, segment, 2, incarnation=2)
    assert ids_of((await take(successor, segment, 2, incarnation=2)).id_steps) == [5]


async def test_a_fence_that_is_not_written_is_asked_for_again(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    """(k) No defect: an opening, or a producer in the middle of its work, goes on once the disk takes it."""
    client, segment = gated.client, gated.segment

    async def full(*_: object) -> None:
        raise LedgerFailed("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(gated.ledgers, "write_footer", full)
        with pytest.raises(StoreUnavailable, match="no space"):
            await take(client, segment, 1)
    assert (await take(client, segment, 1)).taken


async def test_a_life_opens_only_where_it_has_taken_its_name(memory_cluster: Cluster) -> None:
    [segment] = await memory_cluster.create_topic()
    _, client = await connected(memory_cluster)
    with pytest.raises(NotOwner, match="take it"):
        await open_at(client, segment, 1)
    await take(client, segment, 1)
    await open_at(client, segment, 1)
    with pytest.raises(InvalidArgument, match="expected 1 or more"):
        await take(client, segment, 0)


async def test_an_ordinary_producer_cannot_have_the_name_of_a_numbered_one(memory_cluster: Cluster) -> None:
    [segment] = await memory_cluster.create_topic()
    _, client = await connected(memory_cluster)
    ordinary = await client.producer(segment, NAME)
    await take(client, segment, 1, incarnation=2)
    await until(lambda: isinstance(ordinary.closed, ProducerFenced))
    with pytest.raises(NotAllowed, match="numbers its messages"):
        await client.producer(segment, NAME)
    await client.producer(segment, "another")


@pytest.mark.parametrize(
    ("ids", "all_below", "epoch"),
    [((5,), 6, 1), ((5,), 0, 2), ((5,), 0, 0), (((1 << 62) + 1,), 0, 1)],
    ids=["beyond all_below", "another epoch", "no ids", "too large"],
)
async def test_an_entry_whose_ids_do_not_fit_is_refused(
    memory_cluster: Cluster, ids: tuple[int, ...], all_below: int, epoch: int
) -> None:
    [segment] = await memory_cluster.create_topic()
    _, client = await connected(memory_cluster)
    await take(client, segment, 1)
    life = await open_at(client, segment, 1)
    with pytest.raises(InvalidArgument):
        await life.send_nowait(*ids, all_below=all_below, epoch=epoch)


async def test_a_sealed_segment_tells_what_it_holds_for_good_and_still_refuses_earlier_lives(
    memory_cluster: Cluster,
) -> None:
    cluster = memory_cluster
    [parent] = await cluster.create_topic()
    node, client = await connected(cluster)
    await take(client, parent, 2)
    life = await open_at(client, parent, 2)
    await life.send(4)
    async with controlling(cluster) as controller:
        children = await controller.split(parent)
    await until(lambda: all(child in node.broker.segments for child in children))
    for _ in range(2):
        told = await take(client, parent, 3)
        assert (told.taken, told.sealed, ids_of(told.id_steps)) == (True, True, [4])
        assert not (await take(client, parent, 1)).taken
        assert ids_of((await take(client, children[0], 3)).id_steps) == []
        await node.crash()
        node, client = await connected(cluster)
        assert (await node.broker.segment(parent)).ledgers.sealed
        await until(lambda: node.broker.segments[parent].ledgers.ended)  # noqa: B023


async def test_a_seal_that_may_be_taken_back_answers_nothing_and_one_taken_back_keeps_the_fence(
    memory_cluster: Cluster,
) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    await take(client, segment, 2)
    change = await begin(cluster, segment)
    await client.call(seal_segment=pb.SealSegment(segment=segment, change_id=change))
    with pytest.raises(SegmentSealed):
        await take(client, segment, 3)
    await give_up(cluster, change)
    await until(lambda: not node.broker.segments[segment].ledgers.sealed)
    assert not (await take(client, segment, 1)).taken
    assert (await take(client, segment, 3)).taken


async def test_a_name_that_sent_nothing_keeps_no_sealed_segment(memory_cluster: Cluster) -> None:
    """(e) Asking a sealed segment leaves nothing there."""
    cluster = memory_cluster
    [parent] = await cluster.create_topic()
    node, client = await connected(cluster)
    async with controlling(cluster) as controller:
        await controller.split(parent)
    await until(lambda: node.broker.segments[parent].ledgers.ended)
    await take(client, parent, 1)
    assert len(node.broker.segments[parent].producers.names) == 0


async def test_of_two_lives_that_take_a_name_at_once_the_earlier_one_is_told_of_the_later(
    memory_cluster: Cluster,
) -> None:
    """▲ Its fence stands in no snapshot any more, and it was told ids to which the later one adds others."""
    [segment] = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    client, other = await memory_cluster.connect(node), await memory_cluster.connect(node)
    await node.broker.segment(segment)
    earlier, later = await asyncio.gather(take(client, segment, 1), take(other, segment, 2, incarnation=2))
    assert (earlier.taken, earlier.name_epoch, later.taken) == (False, 2, True)
