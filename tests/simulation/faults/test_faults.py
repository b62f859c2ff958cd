"""Schedules of faults: drawn from the seed alone, printable, and each fault for itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.faults.faults import BadSchedule, Fault, Schedule, draw_schedule, parse_faults

KINDS = {"kill": 2, "cut": 1, "slow disk": 1, "early expiry": 1}


def test_the_same_seed_draws_the_same_schedule() -> None:
    first, second = (draw_schedule(7, KINDS, work_s=60.0) for _ in range(2))
    assert first == second
    assert len(dict.fromkeys(str(draw_schedule(seed, KINDS, work_s=60.0)) for seed in range(50))) > 30


def test_faults_come_in_time_before_the_work_ends_and_are_counted_from_one() -> None:
    schedule = draw_schedule(3, KINDS, work_s=60.0, names="kill,cut")
    times = [fault.at_s for fault in schedule.faults]
    assert times == sorted(times)
    assert times
    assert 0.0 < times[0] <= times[-1] < 60.0
    assert [fault.number for fault in schedule.faults] == list(range(1, len(times) + 1))


def test_longer_work_adds_faults_behind_those_of_shorter_work() -> None:
    short, long = (draw_schedule(3, KINDS, work_s=work_s, names="kill,cut") for work_s in (20.0, 60.0))
    assert len(short.faults) < len(long.faults)
    assert long.faults[: len(short.faults)] == short.faults


def test_some_seeds_are_calm_some_know_few_kinds_some_all() -> None:
    schedules = [draw_schedule(seed, KINDS, work_s=200.0) for seed in range(200)]
    taking_part = [len(dict.fromkeys(fault.kind for fault in schedule.faults)) for schedule in schedules]
    assert {0, 1, 2, 3, 4} == set(taking_part)
    calm = [schedule for schedule in schedules if schedule.shape == "calm"]
    assert 5 < len(calm) < 60
    assert not any(schedule.faults for schedule in calm)


def test_leaving_faults_out_changes_nothing_about_the_others() -> None:
    schedule = draw_schedule(3, KINDS, work_s=60.0, names="kill,cut")
    some = schedule.only([5, 2])
    assert some.faults == (schedule.faults[1], schedule.faults[4])
    assert some.faults[1].chance(3).random() == schedule.faults[4].chance(3).random()
    assert some.faults[0].chance(3).random() != some.faults[1].chance(3).random()
    assert schedule.only([]).faults == ()


def test_a_number_that_is_not_there_is_refused() -> None:
    schedule = Schedule(3, "all", (Fault(1, 2.0, "kill"),))
    with pytest.raises(BadSchedule, match="no fault #2 in seed 3: it has 1"):
        schedule.only([1, 2])


def test_names_choose_kinds_all_of_them_or_none() -> None:
    assert {fault.kind for fault in draw_schedule(1, KINDS, work_s=60.0, names="cut, kill").faults} == {"cut", "kill"}
    assert {fault.kind for fault in draw_schedule(1, KINDS, work_s=300.0, names="all").faults} == set(KINDS)
    assert draw_schedule(1, KINDS, work_s=60.0, names="").faults == ()
    with pytest.raises(BadSchedule, match="'flood'; there are: kill, cut, slow disk, early expiry"):
        draw_schedule(1, KINDS, work_s=60.0, names="cut,flood")


@given(st.integers(0, 10**9))
def test_what_is_printed_can_be_read_back(seed: int) -> None:
    schedule = draw_schedule(seed, KINDS, work_s=60.0)
    assert parse_faults(str(schedule)) == schedule.faults


@pytest.mark.parametrize("text", ["kill a server", "#1 at 2 s: kill", "#1 at 2.0 s:", "#x at 2.0 s: kill"])
def test_what_is_not_a_fault_is_refused(text: str) -> None:
    with pytest.raises(BadSchedule, match="not a fault"):
        parse_faults(text)
