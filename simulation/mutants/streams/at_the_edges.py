"""Break what one topic, owner or record may cost others in segments, and bounds at their last value
(docs/testing.md)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

WHY = "not looked for with seeds"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="one-consumer-id-twice-at-once",
        rule="of two consumers that a connection opens under one id at once, one is refused",
        section="§8",
        file="segments/broker/consuming.py",
        old="(under_way is not None and not under_way.closed)",
        new="False",
        tests=(
            "tests/segments/subscription/test_reading.py::test_of_two_that_open_one_id_at_once_the_second_is_refused",
        ),
        why_tests="our client uses each id once",
    ),
    Mutant(
        name="open-ledger-read-after-abandon",
        rule="a log that was given up does not answer that its open ledger holds nothing",
        section="§7",
        file="segments/log/ledgers/segment_log.py",
        old="if writer is None and length < 0:",
        new="if writer is None and length < -1:",
        tests=("tests/segments/log/ledgers/test_ledgers.py::test_an_open_ledger_is_not_read_once_the_log_is_given_up",),
        why_tests="one seed in some forty, by an error in the log",
    ),
    Mutant(
        name="one-unsure-owner-stops-the-pruning",
        rule="an owner that cannot say whether it is done keeps no other segment",
        section="§8",
        file="segments/controller/pruning.py",
        old=('log.info("pruning_waits", segment=path, error=str(error))\n            return False'),
        new=('log.info("pruning_waits", segment=path, error=str(error))\n            raise'),
        tests=(
            "tests/segments/controller/test_pruning.py::"
            "test_an_owner_that_cannot_say_whether_it_is_done_keeps_no_other_segment",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="pruning-waits-for-a-hung-broker",
        rule="a topic whose owners erase nothing holds no other up",
        section="§8",
        file="segments/controller/pruning.py",
        old="waited_s += pause_s\n",
        new="pass\n",
        tests=("tests/segments/controller/test_pruning.py::test_a_topic_whose_owners_erase_nothing_holds_no_other_up",),
        why_tests=WHY,
    ),
    Mutant(
        name="acks-pruned-with-their-segment",
        rule="a segment in which an open transaction has acked is not pruned",
        section="§8",
        file="segments/log/housekeeping.py",
        old="for prefix in (keys.aborted_records(path), keys.writes_by_segment(path), keys.acks_by_segment(path)):",
        new="for prefix in (keys.aborted_records(path), keys.writes_by_segment(path)):",
        tests=("tests/segments/controller/test_pruning.py::test_what_anybody_could_still_want_stays",),
        why_tests=WHY,
    ),
    Mutant(
        name="ends-on-their-way-keep-a-topic",
        rule="a deletion waits a moment for the ends of users that are on their way",
        section="§8",
        file="segments/controller/deletions.py",
        old="for _ in range(LOOKS_AT_USERS - 1):",
        new="for _ in range(0):",
        tests=(
            "tests/segments/controller/test_topic_users.py::"
            "test_a_user_whose_end_is_on_its_way_to_the_owner_is_waited_for",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="repeat-at-the-end-of-a-deletion",
        rule="who asks once more as a deletion ends is told that it is done",
        section="§8",
        file="segments/controller/deletions.py",
        old=("if not marked and under_way is None:\n            raise not_there"),
        new=("if not marked:\n            raise not_there"),
        tests=(
            "tests/segments/controller/test_deletions_left.py::"
            "test_who_asks_once_more_just_as_a_deletion_ends_is_told_that_it_is_done",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="topic-without-autoscale-ends-the-look",
        rule="a topic without autoscale keeps no other as it is",
        section="§8",
        file="segments/controller/autoscaling.py",
        old=("if thresholds is None or path in self._acting:\n                continue"),
        new=("if thresholds is None or path in self._acting:\n                break"),
        tests=(
            "tests/segments/controller/test_autoscaling.py::"
            "test_what_cannot_be_read_of_one_topic_keeps_no_other_as_it_is",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="unreadable-assignment-hides-others",
        rule="a controller takes up all assignments that it can read",
        section="§8",
        file="segments/controller/controller.py",
        old='log.error("assignment_unreadable", error=str(error))',
        new=('log.error("assignment_unreadable", error=str(error))\n                    break'),
        tests=(
            "tests/segments/controller/test_controller_failover.py::"
            "test_an_unreadable_assignment_stops_neither_the_take_over_nor_other_subscriptions",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="half-of-a-threshold-refused",
        rule="segments may be merged up to half of the load at which they are split",
        section="§8",
        file="segments/layout/autoscale.py",
        old="if merge * 2 > split:",
        new="if merge * 2 >= split:",
        tests=("tests/segments/layout/test_autoscale.py::test_a_policy_names_what_differs_from_the_defaults",),
        why_tests=WHY,
    ),
    Mutant(
        name="most-segments-refused",
        rule="a topic may begin with the most segments that are allowed",
        section="§8",
        file="segments/layout/topology.py",
        old="if not 1 <= segments <= MAX_SEGMENTS_AT_CREATION:",
        new="if not 1 <= segments < MAX_SEGMENTS_AT_CREATION:",
        tests=(
            "tests/segments/layout/test_topology.py::test_a_topic_may_begin_with_the_fewest_and_with_the_most_segments",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="rescued-for-longer-each-time",
        rule="a rescued segment stays for an hour at most",
        section="§7",
        file="segments/broker/claims.py",
        old="now_s + min(longest_s, first_s * 2**times)",
        new="now_s + first_s * 2**times",
        tests=(
            "tests/segments/broker/test_claims.py::"
            "test_what_is_left_unowned_again_and_again_stays_for_an_hour_each_time_at_most",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="one-end-is-waited-for-at-closing",
        rule="a broker that closes bounds its waits for the ends of all its ledgers",
        section="§7",
        file="segments/broker/owned_segments.py",
        old="limit.reschedule(asyncio.get_running_loop().time() + self._settings.hand_over_s)",
        new=("limit.reschedule(asyncio.get_running_loop().time() + self._settings.hand_over_s)\n            break"),
        tests=(
            "tests/segments/owner/test_failing_folders.py::"
            "test_l5_a_broker_that_closes_waits_for_the_ends_of_all_its_ledgers_together",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="policy-waits-for-the-next-round",
        rule="a policy is followed as soon as it is changed",
        section="§8",
        file="segments/broker/owned_segments.py",
        old="self._shared.wake_housekeeping(path)  # its policies may have changed\n",
        new="pass\n",
        tests=(
            "tests/segments/log/ledgers/test_retention_policies.py::test_a_policy_is_followed_as_soon_as_it_is_changed",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="load-over-two-ownerships",
        rule="a segment's load is counted anew under each ownership",
        section="§8",
        file="segments/owner/load_samples.py",
        old="{(one.path, one.epoch): one for one",
        new="{(one.path, 0): one for one",
        tests=("tests/segments/controller/test_autoscaling.py::test_a_segment_that_comes_back_begins_to_count_anew",),
        why_tests=WHY,
    ),
    Mutant(
        name="subscriptions-listed-once",
        rule="subscriptions made or deleted meanwhile are in the metrics a minute later",
        section="§8",
        file="segments/owner/lag_samples.py",
        old="if read is None or self._clock.monotonic() - read[0] >= RELIST_S:",
        new="if read is None:",
        tests=(
            "tests/segments/subscription/test_lag.py::"
            "test_a_subscription_that_was_made_meanwhile_is_in_the_metrics_a_minute_later",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="trimmed-meanwhile-is-not-known",
        rule="a count of lag begins again where what it read was trimmed meanwhile",
        section="§8",
        file="segments/subscription/lag.py",
        old="for _ in range(TRIES):",
        new="for _ in range(1):",
        tests=(
            "tests/segments/subscription/test_lag.py::"
            "test_a_count_begins_again_where_what_it_read_was_trimmed_meanwhile",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="streams-count-twice",
        rule="each consumer of a segment counts once among its users",
        section="§8",
        file="segments/owner/segment.py",
        old=("readers = sum(1 for consumer in self.dispatcher.consumers if consumer.acks is None)\n        return"),
        new=("readers = sum(1 for consumer in self.dispatcher.consumers)\n        return"),
        tests=("tests/segments/subscription/test_holders_and_users.py::test_each_user_of_a_segment_counts_once",),
        why_tests=WHY,
    ),
    Mutant(
        name="late-assignment-closes-a-later-holder",
        rule="an assignment that is heard of late closes no holder of a later one",
        section="§8",
        file="segments/subscription/subscription_table.py",
        old=("if record is not None and record.epoch < found.assignment_epoch:\n            return  # older"),
        new=("if False:\n            return  # older"),
        tests=(
            "tests/segments/subscription/test_holders_and_users.py::"
            "test_an_assignment_that_is_heard_of_late_closes_no_holder_of_a_later_one",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="decisions-awaited-for-a-dropped-one",
        rule="no decision is awaited for acks of a subscription that was dropped (P9)",
        section="§6",
        file="segments/subscription/subscription_table.py",
        old=("for txn_id in found.pending.open_transactions():\n                    self._events.let_go(txn_id)"),
        new="pass",
        tests=(
            "tests/segments/subscription/test_holders_and_users.py::"
            "test_nothing_is_awaited_for_the_acks_of_a_subscription_that_was_dropped",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="first-of-the-trimmed-deleted",
        rule="of many trimmed ledgers all are deleted, some at a time",
        section="§8",
        file="segments/log/ledgers/segment_log.py",
        old="while going := self.to_delete[:DELETED_AT_ONCE]:",
        new="if going := self.to_delete[:DELETED_AT_ONCE]:",
        tests=(
            "tests/segments/log/ledgers/test_trimming.py::test_of_many_trimmed_ledgers_all_are_deleted_some_at_a_time",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="messages-told-as-bytes",
        rule="stored bytes are told as bytes",
        section="§11",
        file="segments/log/measures.py",
        old="bytes_stored=self.bytes_stored,",
        new="bytes_stored=self.messages_stored,",
        tests=("tests/segments/log/test_keeping_statistics.py::test_what_one_segment_takes_in_is_no_load_of_another",),
        why_tests=WHY,
    ),
    Mutant(
        name="newest-file-is-closed",
        rule="of the files of closed ledgers those that were read last stay open",
        section="§7",
        file="segments/ledger/file_ledger.py",
        old="self._ended.popitem(last=False)",
        new="self._ended.popitem(last=True)",
        tests=(
            "tests/segments/ledger/test_many_ledgers.py::"
            "test_of_the_closed_ledgers_those_that_were_read_last_stay_open",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="deleted-segment-stays-open",
        rule="no file of a deleted segment stays open",
        section="§7",
        file="segments/ledger/file_ledger.py",
        old=(
            "for key in [key for key in self._ended if key[0] == segment]:\n"
            "            self._let_go(key)\n"
            "        await self._work(job"
        ),
        new="await self._work(job",
        tests=(
            "tests/segments/ledger/test_many_ledgers.py::"
            "test_of_the_closed_ledgers_those_that_were_read_last_stay_open",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="looks-seldom-near-the-watermark",
        rule="a disk is looked at more often the closer it is to the watermark (C12)",
        section="§7",
        file="segments/log/room.py",
        old="self.free_bytes < 2 * self.watermark",
        new="self.free_bytes < self.watermark",
        tests=(
            "tests/segments/log/test_room.py::test_a_disk_is_looked_at_more_often_the_closer_it_is_to_the_watermark",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="stands-at-an-entry-left-out-whole",
        rule="a subscription that begins behind the last message of an entry stands behind it",
        section="§8",
        file="segments/subscription/lag.py",
        old=("                return at, index\n            after = at\n"),
        new="                return at, index\n",
        tests=("tests/segments/subscription/test_standing.py::test_it_stands_at_its_start_before_anybody_has_acked",),
        why_tests=WHY,
    ),
    Mutant(
        name="repeat-at-the-end-of-a-subscription-s-deletion",
        rule="who asks once more as the deletion of a subscription ends is told that it is done",
        section="§8",
        file="segments/controller/deletions.py",
        old="            if gone and (marked or under_way is not None):\n",
        new="            if gone and marked:\n",
        tests=(
            "tests/segments/controller/test_deletions_left.py::"
            "test_who_asks_once_more_just_as_a_deletion_ends_is_told_that_it_is_done",
        ),
        why_tests=WHY,
    ),
)
