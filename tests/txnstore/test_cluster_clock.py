"""The cluster's clock: every process goes by the stamps, whatever its own clock says."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.coordinator_v5.processes import StepClock
from tests.segments.virtual_time import virtual_time
from txnstore import keys
from txnstore.cluster_clock import MOST_LEAPS, SLEWED, TRUSTED_S, ClusterClock, ClusterTime
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import ClockStamp, encode
from txnstore.store import Commit, Put

START_MS = 1_700_000_000_000
MINUTES_10 = 600_000


class Machine:
    """One process with clocks of its own: `off_ms` is what its wall clock is wrong by, `booted_s` its monotonic one."""

    def __init__(self, off_ms: int = 0, booted_s: float = 0.0) -> None:
        self.off_ms = off_ms
        self.booted_s = booted_s
        self.time = ClusterTime()

    def clocks(self, at_s: float) -> tuple[float, int]:
        return at_s + self.booted_s, START_MS + int(at_s * 1000) + self.off_ms

    def now_ms(self, at_s: float) -> int:
        return self.time.now_ms(*self.clocks(at_s)) - START_MS

    def left_ms(self, deadline_ms: int, since_ms: int, at_s: float) -> int:
        return self.time.left_ms(START_MS + deadline_ms, START_MS + since_ms, *self.clocks(at_s))

    def lead(self, at_s: float) -> None:
        self.time.lead(*self.clocks(at_s))

    def stamp(self, at_s: float) -> ClockStamp:
        made = self.time.stamp(*self.clocks(at_s))
        self.time.stamped(*self.clocks(at_s))
        return made

    def learn(self, stamp: ClockStamp, at_s: float, *, live: bool = True) -> None:
        self.time.learn(stamp, *self.clocks(at_s), live=live)


def test_without_a_stamp_every_process_goes_by_its_own_clock() -> None:
    assert Machine(off_ms=MINUTES_10).now_ms(1.0) == MINUTES_10 + 1000


def test_whoever_follows_has_the_clock_of_who_stamps() -> None:
    leader, other = Machine(), Machine(off_ms=-MINUTES_10, booted_s=5000.0)
    leader.lead(0.0)
    other.learn(leader.stamp(0.0), 0.002)
    assert other.now_ms(10.0) == pytest.approx(10_000, abs=3)


def test_of_several_stamps_the_one_with_the_least_delay_counts() -> None:
    leader, other = Machine(), Machine()
    leader.lead(0.0)
    for at_s, delay_s in ((0.0, 2.0), (3.0, 0.001), (6.0, 1.5)):
        other.learn(leader.stamp(at_s), at_s + delay_s)
    assert other.now_ms(9.0) == pytest.approx(9000, abs=2)


@pytest.mark.parametrize("off_ms", [MINUTES_10, -MINUTES_10])
def test_a_successor_goes_on_with_the_clock_of_its_predecessor(off_ms: int) -> None:
    """C11."""
    leader, successor, third = Machine(), Machine(off_ms), Machine()
    leader.lead(0.0)
    stamp = leader.stamp(0.0)
    successor.learn(stamp, 0.001)
    third.learn(stamp, 0.001)
    successor.lead(10.0)
    third.learn(successor.stamp(10.0), 10.001)
    assert third.now_ms(20.0) == pytest.approx(20_000, abs=20)
    assert third.left_ms(300_000, 0, 20.0) == pytest.approx(280_000, abs=20)


def test_it_moves_towards_the_clock_of_who_stamps_by_little_at_a_time() -> None:
    leader, successor = Machine(), Machine(MINUTES_10)
    leader.lead(0.0)
    successor.learn(leader.stamp(0.0), 0.0)
    successor.lead(1.0)
    for number in range(1, 1201):
        successor.stamp(3.0 * number)
    moved_ms = successor.now_ms(3600.0) - 3_600_000
    assert moved_ms == pytest.approx(3_600_000 * SLEWED, rel=0.01)


@pytest.mark.parametrize("away_s", [20.0, 86_400.0])
def test_what_was_recorded_before_a_leap_keeps_the_time_it_had(away_s: float) -> None:
    """Who has never seen anybody stamp cannot tell how long nobody has, nor whether its own clock is ahead."""
    leader, successor, third = Machine(), Machine(MINUTES_10), Machine(-MINUTES_10)
    leader.lead(0.0)
    last = leader.stamp(0.0)
    third.learn(last, 1.0)
    successor.learn(last, away_s, live=False)
    assert successor.left_ms(300_000, -1, away_s) == 300_000
    successor.lead(away_s)
    assert successor.now_ms(away_s) == away_s * 1000 + MINUTES_10
    assert successor.left_ms(300_000, -1, away_s) == 300_000
    third.learn(successor.stamp(away_s), away_s)
    assert third.left_ms(300_000, -1, away_s) == pytest.approx(300_000, abs=2)
    since_ms = successor.now_ms(away_s + 1.0)
    assert third.left_ms(since_ms + 60_000, since_ms, away_s + 2.0) == pytest.approx(59_000, abs=20)


def test_a_leap_that_nobody_was_told_of_ends_with_the_term() -> None:
    """Its stamp was refused: another stamps already, and this process goes by those."""
    leader, late = Machine(), Machine(off_ms=86_400_000)
    leader.lead(0.0)
    late.learn(leader.stamp(0.0), 0.001, live=False)
    late.lead(0.01)
    late.time.stamp(*late.clocks(0.01))
    late.time.deposed()
    for at_s in (5.0, 10.0):
        late.learn(leader.stamp(at_s), at_s + 0.001)
    assert late.now_ms(20.0) == pytest.approx(20_000, abs=20)


def test_who_has_slept_does_not_take_the_last_stamp_it_saw_for_a_fresh_one() -> None:
    """Its monotonic clock may have stood still meanwhile."""
    leader, slept = Machine(), Machine()
    leader.lead(0.0)
    slept.learn(leader.stamp(0.0), 0.0)
    slept.off_ms += 8 * 3_600_000  # what its wall clock has moved by, and the other has not
    slept.lead(1.0)
    assert slept.now_ms(1.0) == 8 * 3_600_000 + 1000
    assert slept.left_ms(300_000, -1, 1.0) == 299_000


def test_a_stamp_read_late_takes_no_leap_back() -> None:
    first, second, other = Machine(), Machine(MINUTES_10), Machine()
    first.lead(0.0)
    old = first.stamp(0.0)
    second.learn(old, 5.0, live=False)
    second.lead(5.0)
    other.learn(second.stamp(5.0), 5.0)
    other.learn(old, 5.1, live=False)
    assert other.left_ms(300_000, -1, 5.0) == 300_000


@given(st.lists(st.floats(1.0, 100_000.0), min_size=1, max_size=3 * MOST_LEAPS))
def test_however_often_it_leaps_nothing_recorded_loses_time_by_it(downtimes: list[float]) -> None:
    at_s, stamp = 0.0, None
    for away_s in downtimes:
        at_s += away_s
        machine = Machine()
        if stamp is not None:
            machine.learn(stamp, at_s, live=False)
        machine.lead(at_s)
        stamp = machine.stamp(at_s)
        assert len(stamp.leaps) <= MOST_LEAPS
    restarts_s = sum(away_s for away_s in downtimes[1:] if away_s <= TRUSTED_S)
    assert machine.left_ms(300_000, -1, at_s) >= 300_000 - 1000 * (len(downtimes) + downtimes[0] + restarts_s)


def test_behind_a_restart_the_time_it_took_counts() -> None:
    leader, successor = Machine(), Machine(booted_s=7.0)
    leader.lead(0.0)
    successor.learn(leader.stamp(0.0), 6.0, live=False)
    assert successor.left_ms(300_000, -1, 6.0) == 294_000
    successor.lead(6.0)
    assert successor.stamp(6.0).leaps == ()


def test_a_guess_ends_with_the_first_stamp_that_somebody_makes() -> None:
    leader, other = Machine(), Machine(off_ms=9000)
    leader.lead(0.0)
    other.learn(leader.stamp(0.0), 0.5, live=False)
    assert other.now_ms(0.5) == 9500
    other.learn(leader.stamp(3.0), 3.0)
    assert other.now_ms(3.0) == pytest.approx(3000, abs=2)


def leaping(off_ms: int = 86_400_000) -> tuple[Machine, Machine]:
    """Who stamps by its own clock, and one who has read a stamp of unknown age before its clock leaps by that much."""
    leader, late = Machine(), Machine(off_ms)
    leader.lead(0.0)
    late.learn(leader.stamp(0.0), 0.001, live=False)
    late.lead(0.01)
    return leader, late


def test_c11_what_is_recorded_as_the_clock_leaps_has_its_time_by_the_clock_of_behind_it() -> None:
    _, late = leaping()
    now_ms = late.now_ms(0.01)
    assert late.left_ms(now_ms + 60_000, now_ms, 0.01) == 60_000


def test_c11_a_leap_that_nobody_was_told_of_ends_with_several_terms_that_told_nobody() -> None:
    _, late = leaping()
    late.lead(0.02)
    late.time.deposed()
    assert late.now_ms(1.0) == pytest.approx(1000, abs=20)
    assert late.left_ms(300_000, -1, 1.0) == pytest.approx(299_000, abs=20)


def test_c11_a_leap_that_the_store_has_been_told_of_stays_behind_the_term() -> None:
    _, late = leaping()
    late.stamp(0.02)
    late.time.deposed()
    assert late.now_ms(1.0) == pytest.approx(86_401_000, abs=20)
    assert late.left_ms(300_000, -1, 1.0) == pytest.approx(299_000, abs=20)


def test_c11_who_was_deposed_with_a_stamp_on_its_way_follows_the_next_one_s() -> None:
    leader, late = leaping()
    late.time.stamp(*late.clocks(0.02))
    late.time.deposed()
    for at_s in (5.0, 10.0):
        late.learn(leader.stamp(at_s), at_s)
    assert late.now_ms(11.0) == pytest.approx(11_000, abs=20)
    late.lead(12.0)
    assert late.now_ms(12.0) == pytest.approx(12_000, abs=20)


def test_c11_who_has_stamped_a_moment_ago_goes_on_from_there_as_it_leads_again() -> None:
    leader = Machine()
    leader.lead(0.0)
    leader.stamp(0.0)
    leader.off_ms += 5000
    leader.lead(30.0)
    assert leader.now_ms(30.0) == 30_000


def test_c11_the_first_stamp_of_a_term_is_no_nearer_to_its_own_clock_than_the_time_of_the_term_allows() -> None:
    leader, successor = Machine(), Machine(MINUTES_10, booted_s=100_000.0)
    leader.lead(0.0)
    successor.learn(leader.stamp(0.0), 0.0)
    successor.lead(10.0)
    successor.stamp(10.0)
    assert successor.now_ms(10.0) == pytest.approx(10_000, abs=2)


def test_c11_it_moves_back_towards_the_clock_of_who_stamps_as_well() -> None:
    leader, successor = Machine(), Machine(-MINUTES_10)
    leader.lead(0.0)
    successor.learn(leader.stamp(0.0), 0.0)
    successor.lead(1.0)
    for number in range(1, 1201):
        successor.stamp(3.0 * number)
    assert 3_600_000 - successor.now_ms(3600.0) == pytest.approx(3_600_000 * SLEWED, rel=0.01)


def test_c11_a_clock_that_is_behind_the_last_stamp_sets_nothing_back() -> None:
    """What is open would have as much more time."""
    leader, late = Machine(), Machine(off_ms=-3_600_000)
    leader.lead(0.0)
    late.learn(leader.stamp(0.0), 0.0, live=False)
    late.lead(1.0)
    assert late.now_ms(1.0) == pytest.approx(1000, abs=2)


def test_c11_what_was_recorded_between_the_oldest_leaps_keeps_its_time_once_they_are_one() -> None:
    day_s = 86_400.0
    recorded = []
    stamp = None
    for number in range(MOST_LEAPS + 2):
        at_s = number * day_s
        machine = Machine()
        if stamp is not None:
            machine.learn(stamp, at_s, live=False)
        machine.lead(at_s)
        stamp = machine.stamp(at_s)
        recorded.append(machine.now_ms(at_s + 1.0))
    for since_ms in recorded:
        assert machine.left_ms(since_ms + 60_000, since_ms, at_s + 1.0) >= 60_000


@virtual_time
async def test_every_stamp_is_followed_also_of_several_that_come_at_once() -> None:
    clock = StepClock()
    etcd = MemoryEtcd(clock)
    store = MemoryStore(etcd, clock, random.Random(1))
    cluster = ClusterClock(store, clock)
    following = asyncio.ensure_future(cluster.run())
    await asyncio.sleep(1.0)
    for ahead_ms in ([MINUTES_10], [0, 2 * MINUTES_10], [3 * MINUTES_10]):
        store.memory_backend.disconnect()  # what is put meanwhile comes at once
        for off_ms in ahead_ms:
            stamp = ClockStamp(ms=clock.wall_ms() + off_ms)
            etcd.mvcc.commit([Commit(puts=(Put(keys.CLOCK, encode(stamp)),))])
        store.memory_backend.reconnect()
        await asyncio.sleep(2.0)
        assert cluster.wall_ms() - clock.wall_ms() == pytest.approx(ahead_ms[-1], abs=2_000)
    following.cancel()
    await asyncio.wait([following])
    await store.close()


@virtual_time
async def test_stamps_are_followed_once_they_can_be_read_whatever_stood_there_before() -> None:
    clock = StepClock()
    etcd = MemoryEtcd(clock)
    store = MemoryStore(etcd, clock, random.Random(1))
    cluster = ClusterClock(store, clock)
    store.memory_backend.disconnect()
    following = asyncio.ensure_future(cluster.run())
    await asyncio.sleep(60.0)
    store.memory_backend.reconnect()
    await asyncio.sleep(1.0)
    await store.commit(Commit(puts=(Put(keys.CLOCK, b"not a stamp"),)))
    await asyncio.sleep(0.1)
    stamp = ClockStamp(ms=clock.wall_ms() + MINUTES_10)
    await store.commit(Commit(puts=(Put(keys.CLOCK, encode(stamp)),)))
    await asyncio.sleep(0.1)
    assert cluster.wall_ms() - clock.wall_ms() == pytest.approx(MINUTES_10, abs=2_000)
    following.cancel()
    await asyncio.wait([following])
    assert not store._watches
    await store.close()


@virtual_time
async def test_a_stamp_that_is_listed_behind_a_compaction_is_not_taken_for_one_made_now() -> None:
    """The clock would go back by the stamp's age, as nobody makes another one."""
    clock = StepClock()
    etcd = MemoryEtcd(clock)
    store, other = (MemoryStore(etcd, clock, random.Random(n), name=f"{n}") for n in (1, 2))
    stamp = ClockStamp(ms=clock.wall_ms())
    await store.commit(Commit(puts=(Put(keys.CLOCK, encode(stamp)),)))
    await asyncio.sleep(TRUSTED_S - 5.0)
    cluster = ClusterClock(store, clock)
    following = asyncio.ensure_future(cluster.run())
    await asyncio.sleep(1.0)
    assert abs(cluster.wall_ms() - clock.wall_ms()) <= 1
    store.memory_backend.disconnect()
    for number in range(3):
        await other.commit(Commit(puts=(Put(b"/other", b"%d" % number),)))
    etcd.compact(etcd.mvcc.revision)
    store.memory_backend.reconnect()
    await asyncio.sleep(5.0)
    assert abs(cluster.wall_ms() - clock.wall_ms()) <= 1
    following.cancel()
    await asyncio.wait([following])
    await store.close()
    await other.close()
