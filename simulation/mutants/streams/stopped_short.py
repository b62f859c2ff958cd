"""Break work over several of a kind that would stop short at the first, and work that is taken up again after a
failure (docs/testing.md)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

WHY = "not looked for with seeds"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="unreadable-layout-holds-others-back",
        rule="a layout that cannot be read holds back no other one that changed with it",
        section="§11",
        file="segments/layout/layout_service.py",
        old=('log.error("layout_unreadable", error=str(error))\n                continue'),
        new=('log.error("layout_unreadable", error=str(error))\n                break'),
        tests=(
            "tests/segments/layout/test_layout_service.py::test_a_layout_that_cannot_be_read_holds_no_other_one_back",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="start-ends-at-a-pruned-segment",
        rule="of a start at many messages those of pruned segments alone are left out",
        section="§8",
        file="segments/layout/subscription_records.py",
        old="continue  # nothing of it is left",
        new="break  # nothing of it is left",
        tests=(
            "tests/segments/layout/test_start_records.py::test_a_segment_that_is_pruned_hides_none_of_those_behind_it",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="listing-ends-at-a-deletion",
        rule="a subscription deleted while they are listed hides no other",
        section="§11",
        file="segments/layout/subscription_queries.py",
        old=("if record is None:  # deleted since\n                continue"),
        new=("if record is None:  # deleted since\n                break"),
        tests=(
            "tests/segments/layout/test_subscription_queries.py::"
            "test_one_that_is_deleted_while_they_are_listed_hides_no_other",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="known-segment-hides-a-forgotten-one",
        rule="every segment that stands forgotten under a broker's lease is released",
        section="§7",
        file="segments/broker/holdings.py",
        old=("or known(path):\n                continue"),
        new=("or known(path):\n                break"),
        tests=(
            "tests/segments/broker/test_holdings.py::"
            "test_a_segment_that_is_known_hides_none_that_is_forgotten_behind_it",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="connected-name-keeps-the-idle",
        rule="a name that is connected keeps no other from being forgotten",
        section="§7",
        file="segments/log/sends/numbered.py",
        old=("self._used(name, one, now_s)\n                continue"),
        new=("self._used(name, one, now_s)\n                break"),
        tests=(
            "tests/segments/log/sends/test_numbered.py::"
            "test_a_connected_name_that_was_idle_for_longest_keeps_no_other_from_being_forgotten",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="lost-behind-one-that-moved",
        rule="with a connection all its consumers are lost that have no newer one",
        section="§8",
        file="segments/controller/controller.py",
        old=("if links.get(consumer) is not link:\n                continue"),
        new=("if links.get(consumer) is not link:\n                break"),
        tests=(
            "tests/segments/controller/test_controller.py::"
            "test_of_a_connection_that_ends_those_without_a_newer_one_are_given_up_all_the_same",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="end-told-to-one-segment-s-waiters",
        rule="a broker that ends tells all requests that wait, for whichever segment",
        section="§7",
        file="segments/broker/waiting.py",
        old=("for path in list(self._futures):\n            self.fail(path, error)"),
        new=("for path in list(self._futures)[:1]:\n            self.fail(path, error)"),
        tests=(
            "tests/segments/broker/test_waiting.py::"
            "test_the_end_of_a_broker_is_told_to_all_who_wait_for_any_of_its_segments",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="unwritten-load-counts-as-told",
        rule="a load that could not be written is due again",
        section="§8",
        file="segments/owner/load_samples.py",
        old=("try:\n            result = await self._store.commit(commit)"),
        new=("meter.told(load)\n        try:\n            result = await self._store.commit(commit)"),
        tests=("tests/segments/controller/test_autoscaling.py::test_a_sample_that_was_not_written_is_due_again",),
        why_tests=WHY,
    ),
    Mutant(
        name="end-given-up-where-unknown",
        rule="the end of a ledger is recorded however the first tries fail (L5)",
        section="§7",
        file="segments/broker/owned_segments.py",
        old="except (StoreUnavailable, StoreFull, Timeout, OutcomeUnknown) as error:",
        new="except (StoreUnavailable, StoreFull, Timeout) as error:",
        tests=(
            "tests/segments/owner/test_failing_folders.py::"
            "test_l5_the_end_of_a_ledger_is_recorded_however_the_first_tries_fail",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="failures-outlive-a-success",
        rule="the first failed take-over since a segment was served is tried again at once",
        section="§7",
        file="segments/broker/claims.py",
        old=("self._failures.pop(segment, None)\n        if segment in"),
        new="if segment in",
        tests=(
            "tests/segments/broker/test_claims.py::"
            "test_a_failed_take_over_is_tried_again_after_a_growing_pause_and_the_pause_is_told",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="full-store-fails-the-join",
        rule="an assignment that finds no room in etcd is written once there is some (E3)",
        section="§8",
        file="segments/controller/stream_group.py",
        old="except (StoreUnavailable, StoreFull, OutcomeUnknown) as error:",
        new="except (StoreUnavailable, OutcomeUnknown) as error:",
        tests=(
            "tests/segments/controller/test_controller_failover.py::"
            "test_e3_a_join_whose_assignment_finds_no_room_in_etcd_waits_for_it",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="pauses-grow-without-end",
        rule="the pauses of a deletion grow to a bound",
        section="§8",
        file="segments/controller/term_work.py",
        old="min(self._longest_s, self._next_s * GROWTH)",
        new="self._next_s * GROWTH",
        tests=(
            "tests/segments/controller/test_term_work.py::"
            "test_pauses_grow_from_the_first_to_the_longest_and_no_further",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="failed-write-looks-at-no-disk",
        rule="a broker whose write has failed looks at its disk at once (C12)",
        section="§7",
        file="segments/owner/segment.py",
        old=("            if isinstance(error, LedgerFailed):\n                self._shared.room.look()\n"),
        new="",
        tests=("tests/segments/log/test_room.py::test_c12_a_broker_whose_write_has_failed_looks_at_its_disk_at_once",),
        why_tests=WHY,
    ),
)
