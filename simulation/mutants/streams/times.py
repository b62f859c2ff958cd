"""Break the rules that go by the clock: starts by a time, retention, the expiry of outcomes (DESIGN §8)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

OUTCOME_BLOCKS = "tests/coordinator_v5/test_outcome_blocks.py::"

NO_TIMES = "the simulation owes nobody what is older than the time that was asked for"
NO_CLOCKS = "the simulation's clocks do not run minutes ahead, and it lasts no week"
STAMPS_AHEAD = (
    "tests/segments/log/ledgers/test_retention.py"
    "::test_a_stamp_in_the_future_holds_back_nothing_and_takes_nothing_early"
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="time-resolved-anew",
        rule="a subscription's start by time is a position from its creation on, also for who takes over",
        section="§8",
        file="segments/subscription/starts.py",
        old="if kind == kinds.LATEST or (kind == kinds.TIMESTAMP and record.positions):",
        new="if kind == kinds.LATEST:",
        tests=(
            "tests/segments/ledger/test_publish_times.py::test_what_was_delivered_from_a_time_and_not_acked_comes_again",
        ),
        why_tests=NO_TIMES,
    ),
    Mutant(
        name="time-not-resolved-at-creation",
        rule="a start by time is resolved when the subscription is made",
        section="§8",
        file="segments/controller/stream_groups.py",
        old='start["kind"] in (LATEST, TIMESTAMP)',
        new='start["kind"] in (LATEST, LATEST)',
        tests=(
            "tests/segments/controller/test_controller.py::test_a_time_is_resolved_once_when_the_subscription_is_made",
        ),
        why_tests=NO_TIMES,
    ),
    Mutant(
        name="child-begins-at-the-time",
        rule="a segment that came after a time was resolved is read from its beginning",
        section="§8",
        file="segments/subscription/starts.py",
        old="            if at is None:\n                return Start()\n",
        new=(
            "            if at is None:\n"
            '                return Start(kind, timestamp_ms=int(start.get("timestamp_ms", 0)))\n'
        ),
        tests=(
            "tests/segments/ledger/test_publish_times.py::test_a_segment_that_came_later_is_read_from_its_beginning",
        ),
        why_tests=NO_TIMES,
    ),
    Mutant(
        name="stamps-bisected",
        rule="what is bisected for a time rises, whatever producers' clocks say",
        section="§8",
        file="segments/ledger/publish_times.py",
        old="max(known.newest_ms, publish_time_ms)",
        new="publish_time_ms",
        faults="none",
    ),
    Mutant(
        name="stamp-ahead-believed",
        rule="a stamp in the future holds back nothing that stands behind it",
        section="§8",
        file="segments/log/ledgers/retention.py",
        old="            if closed_ms > now_ms and later_ms is not None:\n",
        new="            if later_ms is not None and later_ms < 0:\n",
        tests=(STAMPS_AHEAD,),
        why_tests=NO_CLOCKS,
    ),
    Mutant(
        name="late-stamp-believed",
        rule="of two stamps in the past the earlier of a late clock takes nothing that is young",
        section="§8",
        file="segments/log/ledgers/retention.py",
        old="            if closed_ms > now_ms and later_ms is not None:\n",
        new="            if later_ms is not None:\n",
        tests=(STAMPS_AHEAD,),
        why_tests=NO_CLOCKS,
    ),
    Mutant(
        name="block-ahead-holds-others",
        rule="a block of outcomes touched in the future holds back no other",
        section="§8",
        file="coordinator_v5/background/collector.py",
        old="if outcomes.mod_revision and outcomes.touched_ms > now_ms:",
        new="if outcomes.mod_revision and outcomes.touched_ms < 0:",
        tests=(OUTCOME_BLOCKS + "test_a_block_touched_in_the_future_holds_back_no_other",),
        why_tests=NO_CLOCKS,
    ),
)
