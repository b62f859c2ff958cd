"""X1, X2: topics, a Spark stream, a topic, of real processes. Each committed message comes out once, whoever is killed.

`SPARK_KILLS_DRIVERS=8 SPARK_KILLS_SEED=3` make the runs longer and others; so does
`python -m tests.process.spark_pipeline.run`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.process.spark_pipeline.judge import Journal, Out, Seen, judge
from tests.process.spark_pipeline.run import run

DRIVERS = int(os.environ.get("SPARK_KILLS_DRIVERS", "2"))
SEED = int(os.environ.get("SPARK_KILLS_SEED", "1"))
SECONDS_PER_DRIVER = 400
"""On a machine that has much else to do."""


@pytest.mark.process
@pytest.mark.timeout(SECONDS_PER_DRIVER * (DRIVERS + 2))
async def test_x1_x2_what_is_committed_passes_through_spark_once_while_everything_is_killed(tmp_path: Path) -> None:
    verdict = await run(tmp_path, SEED, drivers=DRIVERS, strikes=("jvm", "asleep", "all", "python"))
    assert verdict.findings == []
    assert verdict.committed >= 10
    assert verdict.batches >= DRIVERS
    assert verdict.faults["layout"]
    assert sum(count for fault, count in verdict.faults.items() if fault.startswith("driver")) == DRIVERS


@pytest.mark.process
@pytest.mark.timeout(SECONDS_PER_DRIVER * DRIVERS)
async def test_x2_batches_are_the_same_whenever_they_are_read_and_no_transaction_is_in_two(tmp_path: Path) -> None:
    verdict = await run(tmp_path, SEED, drivers=DRIVERS // 2, light=True, strikes=("all",))
    assert verdict.findings == []
    assert verdict.committed >= 10
    assert verdict.again >= 1


JOURNAL = Journal(committed={"t1": ["t1-0", "t1-1"], "t2": ["t2-0"]}, alone=["t3-0"], never=["t4-0"])
SOURCE = ["t1-0", "t1-1", "t2-0", "t3-0"]
OUTPUT = [Out("t1-0", 0, 1, "a"), Out("t1-1", 0, 1, "a"), Out("t2-0", 1, 1, "b"), Out("t3-0", 1, 1, "")]
SEEN = [Seen(0, 1, 0, ("t1-0",), ("a",), True), Seen(0, 1, 1, ("t1-1",), ("a",), True)]
REPLAYED = {0: ["t1-1", "t1-0"], 1: ["t2-0", "t3-0"]}


def found(
    source: Sequence[str] = SOURCE,
    output: Sequence[Out] = OUTPUT,
    seen: Sequence[Seen] = SEEN,
    replayed: dict[int, list[str]] = REPLAYED,
) -> list[str]:
    return judge(JOURNAL, source, output, seen, replayed)


def test_x1_x2_the_judge_has_nothing_to_say_of_a_clean_run() -> None:
    assert found() == []


def test_x1_the_judge_finds_what_is_lost_doubled_or_invented() -> None:
    lost, doubled = found(output=OUTPUT[:-1]), found(output=[*OUTPUT, OUTPUT[0]])
    invented = found(output=[*OUTPUT, Out("t4-0", 1, 1, "d")])
    assert "the output lacks 1: t3-0" in lost
    assert "the output has 1 too many: t1-0" in doubled
    assert "the output has 1 too many: t4-0" in invented
    assert "the input has 1 too many: t4-0" in found(source=[*SOURCE, "t4-0"])


def test_x2_the_judge_finds_a_transaction_in_two_batches() -> None:
    torn = [OUTPUT[0], OUTPUT[1]._replace(batch=1), *OUTPUT[2:]]
    assert "t1 is in the batches [0, 1]" in found(output=torn)
    assert "a is in the batches [0, 1]" in found(output=torn)


def test_x2_the_judge_finds_a_batch_that_is_another_when_it_is_read_again() -> None:
    besides = found(seen=[*SEEN, SEEN[0]._replace(run=2, idents=("t2-0",), txns=("b",), whole=False)])
    assert besides == ["run 2 of batch 0 saw besides: t2-0"]
    twice = found(seen=[*SEEN, SEEN[0]._replace(partition=2)])
    assert twice == ["tasks 0 and 2 of batch 0, run 1, saw t1-0"]
    assert found(replayed={**REPLAYED, 0: ["t1-0"]}) == ["batch 0, read again at the end, lacks 1: t1-1"]
    assert found(replayed={0: REPLAYED[0]}) == ["batch 1 is in the output and not in the checkpoint"]


def test_x1_whose_fate_is_not_known_may_be_there_or_not() -> None:
    journal = replace(JOURNAL, unknown=["t4-0"])
    there = [*OUTPUT, Out("t4-0", 1, 1, "")]
    again = {**REPLAYED, 1: [*REPLAYED[1], "t4-0"]}
    assert judge(journal, SOURCE, OUTPUT, SEEN, REPLAYED) == []
    assert judge(journal, [*SOURCE, "t4-0"], there, SEEN, again) == []
