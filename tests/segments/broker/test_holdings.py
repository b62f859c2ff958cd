from __future__ import annotations

import pytest

from segments.broker.holdings import Holdings
from segments.broker.ownership import BrokerSession
from segments.layout.directory import OwnerInfo
from txnstore import keys
from txnstore.former_selves import FormerSelves
from txnstore.memory.memory_store import MemoryStore
from txnwire.errors import DataCorrupt

SEGMENT = "t/n/x/0000-ffff-0"


async def register(store: MemoryStore) -> BrokerSession:
    return await BrokerSession.register(
        store, broker_id="b1", address="a:1", lease_ttl_s=10.0, former_selves=FormerSelves()
    )


async def test_what_stands_under_our_lease_unknown_to_us_is_released(memory_store: MemoryStore) -> None:
    broker, holdings = await register(memory_store), Holdings()
    epoch = await broker.claim(SEGMENT)
    assert epoch is not None
    owners = {SEGMENT: OwnerInfo("b1", "a:1", epoch, broker.lease_id)}
    holdings.find_forgotten(owners, broker.lease_id, lambda _: True)
    holdings.find_forgotten(owners, broker.lease_id + 1, lambda _: False)
    assert not holdings.to_release
    holdings.find_forgotten(owners, broker.lease_id, lambda _: False)
    assert holdings.to_release == {SEGMENT: epoch}
    await holdings.release(broker, SEGMENT)
    assert await memory_store.get(keys.owner(SEGMENT)) is None
    assert not holdings.to_release
    await broker.close()


@pytest.mark.parametrize(("behind", "found"), [(-1, False), (0, False), (1, True)])
def test_what_was_given_back_is_not_taken_for_forgotten_by_a_directory_that_lags(behind: int, found: bool) -> None:
    """Or a broker would claim again what it has just handed over, before the one it is for hears of it."""
    holdings = Holdings()
    holdings.ended(SEGMENT, 7)
    holdings.ended(SEGMENT, 5)
    holdings.find_forgotten({SEGMENT: OwnerInfo("b1", "a:1", 7 + behind, 3)}, 3, lambda _: False)
    assert (SEGMENT in holdings.to_release) is found


def test_a_corrupt_segment_stays_owned_and_a_deleted_topic_is_forgotten() -> None:
    holdings = Holdings()
    holdings.failed[SEGMENT] = DataCorrupt("x")
    holdings.find_forgotten({SEGMENT: OwnerInfo("b1", "a:1", 7, 3)}, 3, lambda _: False)
    assert not holdings.to_release
    assert SEGMENT in holdings.unfit(lambda _: False)
    assert SEGMENT not in holdings.unfit(lambda _: True)  # it is to be erased
    holdings.forget_topic("t/n/x")
    assert not holdings.failed


def test_a_segment_that_is_known_hides_none_that_is_forgotten_behind_it() -> None:
    """▲ No other broker can claim it as long as this one's lease holds."""
    holdings, known, given_back = Holdings(), "t/n/x/0000-7fff-0", "t/n/x/8000-ffff-1"
    forgotten = {SEGMENT: 9, "t/n/y/0000-ffff-0": 10}
    holdings.ended(given_back, 8)
    mine = {known: 7, given_back: 8, **forgotten}
    owners = {"t/n/x/0000-ffff-9": OwnerInfo("b2", "a:2", 6, 4)}
    owners |= {path: OwnerInfo("b1", "a:1", epoch, 3) for path, epoch in mine.items()}
    holdings.find_forgotten(owners, 3, lambda path: path == known)
    assert holdings.to_release == forgotten


def test_of_a_deleted_topic_every_segment_is_forgotten_and_of_another_one_none() -> None:
    holdings = Holdings()
    gone, pruned, stays = (
        [f"t/n/x/{name}" for name in ("0000-7fff-1", "8000-ffff-2")],
        "t/n/x/0000-ffff-0",
        ["t/n/y/0000-7fff-0", "t/n/y/8000-ffff-1"],
    )
    for path in (*gone, *stays, pruned):
        holdings.failed[path] = DataCorrupt("x")
        holdings.erased[path] = None
        holdings.ended(path, 7)
    assert set(holdings.unfit(lambda _: False)) == {*gone, *stays, pruned}
    holdings.erased.clear()
    assert set(holdings.unfit(lambda path: path == pruned)) == {*gone, *stays}
    holdings.forget_pruned("t/n/x", gone)
    assert sorted(holdings.failed) == sorted([*gone, *stays])
    holdings.forget_topic("t/n/x")
    assert sorted(holdings.failed) == stays
    owners = {path: OwnerInfo("b1", "a:1", 7, 3) for path in (*gone, pruned)}
    holdings.find_forgotten(owners, 3, lambda _: False)
    assert set(holdings.to_release) == {*gone, pruned}, "nor is it remembered that they were given back"
