"""Break rules for second events, for refusals and for narrow losses of a race (DESIGN §4 to §7, §11)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

ALONE = "its test dies of this line alone; whether a seed shows it was not tried"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="reconnected-producer-idles",
        rule="a producer that has reconnected is not idle, however long it is silent then (L7)",
        section="§7",
        file="segments/log/sends/dedup.py",
        old="        self._idling.pop((name, incarnation), None)\n",
        new="",
        tests=(
            "tests/segments/log/sends/test_dedup.py::"
            "test_l7_a_producer_that_has_reconnected_is_known_however_long_it_is_silent_then",
        ),
        why_tests=ALONE,
    ),
    Mutant(
        name="conflict-with-what-follows-in-the-entry",
        rule="a cumulative ack meets acks of other transactions only up to the message at which it ends (P8)",
        section="§6",
        file="watchers/ack_holds.py",
        old="hold.other(txn_id, WHOLE if position < ack.position else ack.indexes)",
        new="hold.other(txn_id, WHOLE)",
        tests=(
            "tests/watchers/test_ack_holds.py::"
            "test_p8_a_cumulative_ack_that_ends_inside_an_entry_is_kept_off_by_no_ack_of_what_follows_there",
        ),
        why_tests=ALONE,
    ),
    Mutant(
        name="refused-thrice-forgotten",
        rule="headers whose collection was refused several times in a row stay in line",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="        for counter, seen in batch.items():\n            tc.finals.setdefault(counter, seen)\n",
        new="",
        tests=(
            "tests/coordinator_v5/background/test_collection.py::"
            "test_what_others_refuse_again_and_again_by_raising_the_horizon_is_collected_in_the_next_round",
        ),
        why_tests=ALONE,
    ),
    Mutant(
        name="lost-election-keeps-its-lease",
        rule="an election that was lost by a hair leaves no lease behind",
        section="§9",
        file="txnstore/election.py",
        old="        await lease.revoke()\n        return None\n",
        new="        return None\n",
        tests=("tests/txnstore/test_election.py::test_a_claim_that_was_overtaken_leaves_no_lease_behind",),
        why_tests="no judge of the simulation counts leases",
    ),
    Mutant(
        name="first-pins-reported-alone",
        rule="a long pin is reported, however many of its process were over before it",
        section="§4",
        file="txnstore/access/pins.py",
        old="        if self._reporter is None or self._reporter.done():\n",
        new="        if self._reporter is None:\n",
        tests=("tests/txnstore/access/test_space.py::test_a_long_pin_is_reported_however_many_were_over_before_it",),
        why_tests=ALONE,
    ),
    Mutant(
        name="event-time-lost-in-bulk",
        rule="a message that is given an event time keeps it, with or without properties",
        section="§11",
        file="txnctl/commands/shared/lines.py",
        old="        return self.properties is None and self.event_time_ms is None\n",
        new="        return self.properties is None\n",
        tests=(
            "tests/txnctl/commands/shared/test_lines.py::test_a_message_with_more_than_key_and_value_is_sent_alone",
        ),
        why_tests="the command line is no part of the simulation",
    ),
)
