"""Break the rules of decisions on many acks, which are applied in parts, and of the index of pending acks (DESIGN §6,
§7)."""

from __future__ import annotations

from typing import Final

from simulation.mutants.mutant import Mutant

WHY: Final = "a run would have to have more acks than one part takes, and be disturbed between two parts"

MUTANTS = (
    Mutant(
        name="admits-between-two-parts",
        rule="between two parts of a decision its transaction admits nothing",
        section="§6",
        file="watchers/pending_acks.py",
        old="            held.decision = self._deferred[txn_id] = decision\n            self._applying",
        new="            self._applying",
        tests=(
            "tests/watchers/test_acks_in_parts.py::test_between_two_parts_it_admits_nothing_more_and_a_decision_told_twice_changes_nothing",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="decision-told-again-begins-anew",
        rule="a decision that is being applied in parts is applied once",
        section="§6",
        file="watchers/pending_acks.py",
        old="        if held is None or decision.txn_id in self._applying:\n",
        new="        if held is None:\n",
        tests=(
            "tests/watchers/test_acks_in_parts.py::test_between_two_parts_it_admits_nothing_more_and_a_decision_told_twice_changes_nothing",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="parts-not-in-the-whole",
        rule="the whole of a decision has what its parts had",
        section="§6",
        file="watchers/pending_acks.py",
        old="            acked += done\n",
        new="            acked += done[:0]\n",
        tests=(
            "tests/watchers/test_acks_in_parts.py::test_a_commit_is_applied_part_by_part_and_cleaned_up_behind_the_last",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="released-under-another-hold",
        rule="what another ack holds is released with the last of them",
        section="§6",
        file="watchers/pending_acks.py",
        old="            done = self._cursor.acked(ack.position) | self._holds.pending(ack.position)\n",
        new="            done = self._cursor.acked(ack.position)\n",
        tests=("tests/watchers/test_acks_in_parts.py::test_what_two_acks_name_is_released_with_the_last_of_them",),
        why_tests=WHY,
    ),
    Mutant(
        name="cumulative-released-part-by-part",
        rule="cumulative acks release nothing before the last of them is gone",
        section="§6",
        file="watchers/pending_acks.py",
        old="ack for reservation in part if not reservation.cumulative for ack in self._released(reservation)",
        new="ack for reservation in part for ack in self._released(reservation)",
        tests=(
            "tests/watchers/test_acks_in_parts.py::test_cumulative_acks_release_nothing_before_the_last_of_them_is_gone",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="rewound-past-an-unheld-entry",
        rule="who goes back passes over what is held in a row, and nothing behind it",
        section="§6",
        file="watchers/pending_acks.py",
        old="max(0, self._holds.whole_from(position) - 1)",
        new="self._holds.whole_from(position)",
        tests=("tests/watchers/test_pending_acks.py::test_earliest_unacked_passes_acked_and_pending",),
        why_tests=WHY,
    ),
    Mutant(
        name="hold-leaves-its-bit",
        rule="an ack that goes takes its bit along",
        section="§6",
        file="watchers/ack_holds.py",
        old="            self._whole[block] = left\n",
        new="            self._whole[block] = left | bit_of(position)\n",
        tests=("tests/watchers/test_ack_holds.py::test_what_lies_between_two_places_is_what_is_pending_there",),
        why_tests=WHY,
    ),
    Mutant(
        name="part-forgotten-under-a-whole",
        rule="what stays of an entry once an ack of the whole has gone is known as a part",
        section="§6",
        file="watchers/ack_holds.py",
        old="        else:\n            self._parts[position] = None\n        block",
        new="        block",
        tests=("tests/watchers/test_ack_holds.py::test_what_lies_between_two_places_is_what_is_pending_there",),
        why_tests=WHY,
    ),
    Mutant(
        name="bit-of-another-taken-along",
        rule="an ack that goes leaves the bit of another one",
        section="§6",
        file="watchers/ack_holds.py",
        old="        if hold is not None:\n            return  # still held whole\n",
        new="",
        tests=("tests/watchers/test_ack_holds.py::test_what_lies_between_two_places_is_what_is_pending_there",),
        why_tests=WHY,
    ),
    Mutant(
        name="acked-around-nothing",
        rule="a plain cumulative ack acks around what is pending",
        section="§6",
        file="segments/subscription/cursors/acks_around.py",
        old="if (left := bits & ~out.get(block, 0))}",
        new="if (left := bits)}",
        tests=(
            "tests/segments/subscription/cursors/test_cursor.py::test_what_is_acked_around_others_is_stored_over_blocks_and_ledgers",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="part-of-the-last-entry-dropped",
        rule="a cumulative ack of a part of an entry acks that part, too",
        section="§6",
        file="segments/subscription/cursors/acks_around.py",
        old="        parts.append(ack)\n    return",
        new="        parts += [ack][:0]\n    return",
        tests=(
            "tests/segments/subscription/cursors/test_cursor.py::test_what_is_acked_around_others_is_stored_over_blocks_and_ledgers",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="acks-left-half-applied",
        rule="where the rest of a decision is not applied here, a successor applies it",
        section="§6",
        file="segments/subscription/subscriptions.py",
        old="            self._events.lost(InternalError(",
        new="            print((",
        tests=(
            "tests/segments/subscription/test_order_after_aborts.py::test_a_decision_whose_application_ends_halfway_is_applied_by_a_successor",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="part-of-a-decision-not-settled",
        rule="what a part of a decision releases is given out again",
        section="§6",
        file="segments/subscription/subscriptions.py",
        old="                self._settle(part.acked, part.released)\n",
        new="",
        tests=(
            "tests/segments/subscription/test_queue_subscription.py::test_a_decision_on_many_acks_is_applied_in_turns",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="shown-amid-an-abort",
        rule="nothing newer is shown before all of an abort is released",
        section="§7",
        file="segments/subscription/stream_subscription.py",
        old="        return self._held_back or self.pending.applying\n",
        new="        return self._held_back\n",
        tests=(
            "tests/segments/subscription/test_order_after_aborts.py::test_nothing_newer_comes_before_all_of_an_abort_in_turns_is_released",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="abort-in-one-turn",
        rule="a decision on many acks is applied in turns",
        section="§6",
        file="watchers/pending_acks.py",
        old="        if held.positions > turn_size(APPLIED_AT_ONCE):\n",
        new="        if held.positions > 1_000_000:\n",
        tests=(
            "tests/watchers/test_acks_in_parts.py::test_a_commit_is_applied_part_by_part_and_cleaned_up_behind_the_last",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="queue-sleeps-amid-an-abort",
        rule="a queue delivers again what a part of an abort releases, without waiting for the last part",
        section="§7",
        file="segments/subscription/queue_subscription.py",
        old="        if released:\n            self._dispatcher.wake()\n",
        new="",
        tests=(
            "tests/segments/subscription/queueing/test_queue_acks.py::"
            "test_the_first_messages_of_a_large_abort_come_again_before_its_last_acks_are_released",
        ),
        why_tests=WHY,
    ),
)
