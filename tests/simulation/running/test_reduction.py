"""Lists of faults are reduced to those that are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.running.job import Job, Result
from simulation.running.reduction import fails_likewise, kind_of, kinds_of, reduction
from simulation.running.runner import Failure, to_reduce


def reduced(numbers: Sequence[int], fails: Callable[[tuple[int, ...]], bool]) -> tuple[tuple[int, ...], int]:
    """What is left, and after how many runs."""
    steps = reduction(numbers)
    left, runs = tuple(numbers), 0
    try:
        candidate = next(steps)
        while True:
            runs += 1
            if fails(candidate):
                left = candidate
                candidate = steps.send(True)
            else:
                candidate = steps.send(False)
    except StopIteration:
        return left, runs


@given(st.integers(0, 40), st.data())
def test_what_is_needed_is_left_and_nothing_else(count: int, data: st.DataObject) -> None:
    numbers = range(1, count + 1)
    needed = data.draw(st.sets(st.sampled_from(numbers), max_size=3) if count else st.just(set[int]()))
    left, _ = reduced(numbers, lambda candidate: needed <= set(candidate))
    assert left == tuple(sorted(needed))


@given(st.integers(1, 12), st.randoms(use_true_random=False))
def test_of_any_failure_every_fault_left_is_needed(count: int, random: object) -> None:
    """1-minimal, also where the faults depend on each other in no sensible way; nothing is tried twice."""
    verdicts: dict[tuple[int, ...], bool] = {tuple(range(1, count + 1)): True}

    def fails(candidate: tuple[int, ...]) -> bool:
        assert candidate not in verdicts
        verdicts[candidate] = random.random() < 0.4  # type: ignore[attr-defined]
        return verdicts[candidate]

    left, _ = reduced(range(1, count + 1), fails)
    assert verdicts[left]
    for number in left:
        assert not verdicts[tuple(one for one in left if one != number)]


def test_two_of_forty_are_found_in_forty_runs() -> None:
    left, runs = reduced(range(1, 41), lambda candidate: {3, 17} <= set(candidate))
    assert left == (3, 17)
    assert runs <= 40


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("anomaly: lost write: k/3 'v-12' of client-1.2 (1, 3)", "anomaly: lost write: k/9 'v-1' of client-2.7"),
        ("unhandled: 43.126 client-a.1: Future was never read", "unhandled: 3.5 client-b.2: Future was never read"),
        ("broker-1 ended: ValueError: no 7 (2 times)", "broker-3 ended: ValueError: no 12 (1 times)"),
    ],
)
def test_findings_of_one_kind_differ_in_names_and_numbers_alone(one: str, other: str) -> None:
    assert kind_of(one) == kind_of(other)


def test_findings_of_different_kinds_are_told_apart() -> None:
    findings = ["anomaly: lost write: k/3", "anomaly: duplicate: k/3", "raised KeyError: 3\nTraceback: lost write"]
    assert len(kinds_of(findings)) == 3
    assert fails_likewise(["anomaly: duplicate: k/9", "left behind: x"], kinds_of(findings))
    assert not fails_likewise(["left behind: x"], kinds_of(findings))


def failed(seed: int, *findings: str, numbers: tuple[int, ...] = (1, 2, 3, 4)) -> tuple[Job, Result]:
    schedule = "; ".join(f"#{number} at {number}.000 s: cut" for number in numbers)
    found = list(findings)
    return Job(seed=seed), Result(seed=seed, wall_s=1.0, digest="d", schedule=schedule, numbers=numbers, findings=found)


class Bench:
    """Runs that fail if fault 3 takes part; with another finding if fault 2 does not."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    async def perform(self, job: Job) -> Result:
        self.jobs.append(job)
        assert job.only is not None
        findings = ["anomaly: duplicate: k/1"] if 3 in job.only else ["anomaly: unseen: k/1"] if 2 in job.only else []
        return failed(job.seed, *findings, numbers=job.only)[1]


async def test_a_failure_is_reduced_to_faults_with_the_same_kind_of_finding() -> None:
    failure, bench, said = Failure(*failed(7, "anomaly: duplicate: k/2")), Bench(), list[str]()
    await failure.reduce(bench.perform, budget=40, say=said.append)
    assert failure.result.numbers == (3,)
    assert failure.job.command() == "make sim SEED=7 ONLY=3"
    text = "\n".join(failure.lines())
    assert "#3 at 3.000 s: cut" in text
    assert "#2" not in text
    assert f"1 of the 4 drawn, after {len(bench.jobs)} runs" in text
    assert "--seed 7 --schedule '#3 at 3.000 s: cut'" in text
    assert len(said) == len(bench.jobs)


async def test_a_reduction_ends_with_its_budget() -> None:
    failure, bench = Failure(*failed(7, "anomaly: duplicate: k/2", numbers=tuple(range(1, 30)))), Bench()
    await failure.reduce(bench.perform, budget=3, say=lambda _: None)
    assert len(bench.jobs) == 3
    assert 1 < len(failure.result.numbers) < 29


def test_one_failure_of_each_kind_is_reduced_and_none_that_hung() -> None:
    hung = Job(seed=9), Result(seed=9, wall_s=120.0, findings=["hung: not done after 120 s"])
    failures = [failed(1, "layout: a"), failed(2, "layout: a"), hung, failed(3, "anomaly: duplicate: k/1")]
    assert [failure.job.seed for failure in to_reduce(failures)] == [1, 3]
