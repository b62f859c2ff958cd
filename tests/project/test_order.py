"""The order of tests loses none, and begins each worker's stretch with long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.order import FIRST, LONG, SOAKS, SPARK, TESTS, is_soak, kind_of, ordered

PATHS = {
    **{f"s{number}": TESTS / SPARK / "test_a.py" for number in range(10)},
    **{f"p{number}": TESTS / "process" / f"test_{number // 5}.py" for number in range(20)},
    **{f"f{number}": TESTS / "txnwire" / "transport" / "test_frames.py" for number in range(70)},
}
ITEMS = list(PATHS.items())


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("count", [0, 1, 5, len(ITEMS)])
def test_no_test_is_lost_or_doubled(workers: int, count: int) -> None:
    some = ITEMS[:count]
    assert sorted(ordered(some, workers)) == sorted(name for name, _ in some)


def test_two_workers_begin_with_sparks_tests_and_the_third_with_the_next_longest() -> None:
    order = ordered(ITEMS, 3)
    assert order[:5] == [f"s{number}" for number in range(5)]
    assert order[34:39] == [f"s{number}" for number in range(5, 10)]
    assert order[67:87] == [f"p{number}" for number in range(20)]


def test_one_worker_begins_with_the_longest() -> None:
    assert ordered(list(reversed(ITEMS)), 1)[:10] == [f"s{number}" for number in reversed(range(10))]


def test_all_long_ones_fit_into_the_stretches() -> None:
    many = [(f"p{number}", TESTS / "process" / "test_a.py") for number in range(60)]
    few = [(f"f{number}", TESTS / "txnwire" / "transport" / "test_frames.py") for number in range(30)]
    order = ordered([*few, *many], 3)
    assert [sum(name.startswith("p") for name in order[first : first + 30]) for first in (0, 30, 60)] == [15, 15, 30]


def test_what_sets_up_longest_is_in_one_worker() -> None:
    order = ordered([*ITEMS, *((f"h{number}", TESTS / FIRST) for number in range(3))], 4)
    assert order[:4] == ["h0", "h1", "h2", "s0"]


def test_what_comes_first_is_there() -> None:
    assert (TESTS / FIRST).exists()


@pytest.mark.parametrize("name", LONG)
def test_each_long_one_is_there(name: str) -> None:
    assert (TESTS / name).exists()
    assert kind_of(TESTS / name / "test_some.py" if (TESTS / name).is_dir() else TESTS / name) == 1 + LONG.index(name)


@pytest.mark.parametrize("name", SOAKS)
def test_each_soak_is_there(name: str) -> None:
    assert (TESTS / name).exists()
    assert is_soak(TESTS / name / "test_some.py" if (TESTS / name).is_dir() else TESTS / name)


@pytest.mark.parametrize("name", ["processes.py", "spark/jobs/test_export.py", "simulation/test_fresh_air.py"])
def test_its_neighbour_is_none(name: str) -> None:
    assert not is_soak(TESTS / name)


def test_a_file_elsewhere_is_a_short_one() -> None:
    assert kind_of(Path("/elsewhere/test_a.py")) == len(LONG) + 1
