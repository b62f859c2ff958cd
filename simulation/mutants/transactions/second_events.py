"""Break rules for second events, for refusals and for narrow losses of a race (DESIGN §4 to §7, §11)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

DOUBTFUL = "tests/txnctl/checking/test_doubtful.py::"
BENCH = "tests/txnctl/commands/test_bench.py::"
BESIDE = (
    "tests/txnctl/backup/test_restored_beside.py::"
    "test_it_is_this_backup_s_if_its_changes_end_between_the_backup_s_revisions"
)
NO_BACKUPS = "a simulated operator takes no backups"
NO_COMMANDS = "the command line is no part of the simulation"
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
        old="        for seen in batch.values():\n            tc.collect_again(seen)\n",
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
        why_tests=NO_COMMANDS,
    ),
    *(
        Mutant(
            name=f"limit-counts-damaged-{what}",
            rule="a listing says that it was cut where it was, whatever of it cannot be read",
            section="§4",
            file=f"txnctl/commands/{what}.py",
            old=f'if sum("error" not in row for row in answer["{what}"]) == limit:',
            new=f'if len(answer["{what}"]) == limit:',
            tests=(
                "tests/txnctl/commands/test_foreign_records.py::"
                "test_a_listing_that_is_cut_says_so_beside_what_cannot_be_read",
            ),
            why_tests=NO_COMMANDS,
        )
        for what in ("transactions", "keys", "names")
    ),
    Mutant(
        name="latencies-in-whole-milliseconds",
        rule="`transactions stats` tells latencies below a millisecond",
        section="§4",
        file="txnctl/admin/admin_cluster.py",
        old="round(bound_s * 1000, 1)",
        new="round(bound_s * 1000)",
        tests=(
            "tests/txnctl/admin/test_coordinator_rows.py::test_latencies_are_told_in_milliseconds_with_their_fractions",
        ),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="former-holder-named",
        rule="who finds a folder in use is told the process that uses it",
        section="§4",
        file="txnctl/launch/preflight.py",
        old="        os.ftruncate(descriptor, 0)\n",
        new="",
        tests=(
            "tests/txnctl/launch/test_preflight.py::"
            "test_a_folder_in_use_is_told_with_its_holder_whatever_an_earlier_one_has_left",
        ),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="started-again-and-not-kept",
        rule="a child that was stopped and started again comes back when it dies",
        section="§4",
        file="txnctl/launch/supervisor.py",
        old="        self._stopping = False\n        await self._spawn()\n",
        new="        await self._spawn()\n",
        tests=(
            "tests/txnctl/launch/test_supervisor.py::"
            "test_a_child_that_was_stopped_and_started_again_comes_back_when_it_dies",
        ),
        why_tests="simulated processes have no supervisor",
    ),
    Mutant(
        name="bench-fails-of-one-refusal",
        rule="a bench has failed where calls failed and none succeeded",
        section="§4",
        file="txnctl/commands/bench.py",
        old="load.measured.calls == 0 and bool(",
        new="load.measured.calls == 0 or bool(",
        tests=(f"{BENCH}test_only_where_calls_failed_and_none_succeeded_the_run_has_failed",),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="bench-of-refusals-succeeds",
        rule="a bench whose calls are all refused exits with 1",
        section="§4",
        file="txnctl/commands/bench.py",
        old="    return int(load.measured.calls == 0 and bool(load.measured.errors))\n",
        new="    return 0\n",
        tests=(f"{BENCH}test_where_every_call_is_refused_the_exit_code_says_so_and_the_row_why",),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="work-in-pauses-told-for-ever",
        rule="how much of a pause was the process's own work is told for a minute or two, as the pause is",
        section="§4",
        file="txnctl/process/pauses.py",
        old="            self._worked_before_s, self._worked_lately_s = self._worked_lately_s, 0.0\n",
        new="            self._worked_before_s = self._worked_lately_s\n",
        tests=("tests/txnctl/process/test_pauses.py::test_it_is_told_for_a_minute_and_not_for_three",),
        why_tests="virtual time has no CPU time",
    ),
    Mutant(
        name="etcd-of-a-busy-backup-refused",
        rule="an etcd is of a backup if its changes end between the backup's first revision and its last one",
        section="§4",
        file="txnctl/backup/restoring.py",
        old="newest <= manifest.revision:",
        new="newest <= manifest.etcd.revision:",
        tests=(BESIDE,),
        why_tests=NO_BACKUPS,
    ),
    Mutant(
        name="etcd-of-a-later-backup-taken",
        rule="ledgers are not put beside an etcd with changes that came after their backup",
        section="§4",
        file="txnctl/backup/restoring.py",
        old="revision >= manifest.etcd.revision and newest <= manifest.revision:",
        new="revision >= manifest.etcd.revision:",
        tests=(BESIDE,),
        why_tests=NO_BACKUPS,
    ),
    Mutant(
        name="etcd-of-an-earlier-backup-taken",
        rule="ledgers are not put beside an etcd that lacks what etcd had before they were copied",
        section="§4",
        file="txnctl/backup/restoring.py",
        old="revision >= manifest.etcd.revision and newest <= manifest.revision:",
        new="newest <= manifest.revision:",
        tests=(BESIDE,),
        why_tests=NO_BACKUPS,
    ),
    Mutant(
        name="autoscale-merges-told-as-splits",
        rule="each label of a metric tells its own number",
        section="§4",
        file="txnctl/metrics/of_process.py",
        old='(("merge",), of.autoscale.merges)',
        new='(("merge",), of.autoscale.splits)',
        tests=("tests/txnctl/metrics/test_told_numbers.py::test_a_controller_s",),
        why_tests="no judge reads metrics",
    ),
    Mutant(
        name="restarts-slow-for-ever",
        rule="a background task that was well for a while is begun anew at once when it ends",
        section="§9",
        file="txnwire/tasks.py",
        old="        pause_s = FIRST_PAUSE_S if loop.time() - began >= SETTLED_S else pause_s\n",
        new="",
        tests=(
            "tests/txnwire/test_tasks.py::"
            "test_after_a_while_in_which_it_was_well_a_restarted_task_is_begun_anew_at_once_again",
        ),
        why_tests="no task of a simulated process ends ten times",
    ),
    Mutant(
        name="namespace-of-any-length",
        rule="the namespace of a test is a name that topics may have, however long the test's own is",
        section="§4",
        file="pytest_txnstore/namespace.py",
        old='[:NAME_CHARACTERS].strip("-")',
        new='.strip("-")',
        tests=(
            "tests/pytest_txnstore/test_cleaning.py::test_every_name_of_a_test_makes_a_namespace_that_topics_may_have",
        ),
        why_tests="the plugin is no part of the simulation",
    ),
    Mutant(
        name="deleted-key-as-old-as-its-holder",
        rule="of a deleted transaction key it is told how long ago it was deleted",
        section="§9",
        file="txnctl/admin/admin_keys.py",
        old="(record.deleted_ms or record.since_ms)",
        new="record.since_ms",
        tests=(
            "tests/txnctl/admin/test_key_rows.py::"
            "test_a_key_is_told_with_the_time_since_its_holder_connected_or_it_was_deleted",
        ),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="part-of-a-lag-told-as-all-of-it",
        rule="the lag of a subscription is unknown while it is in one of its segments",
        section="§6",
        file="txnctl/metrics/of_segments.py",
        old="None if messages is None or lag.messages is None else messages + lag.messages",
        new="(messages or 0) + (lag.messages or 0)",
        tests=(
            "tests/txnctl/metrics/test_measures.py::"
            "test_a_subscription_is_behind_by_the_sum_of_its_segments_and_unknown_where_one_is",
        ),
        why_tests="no judge reads metrics",
    ),
    Mutant(
        name="last-commits-before-the-copy-trusted",
        rule="a transaction that committed in the last seconds before etcd was copied may lack a part",
        section="§4",
        file="txnctl/checking/doubtful.py",
        old="header.finalized_ms > ended_ms - WATERMARK_LAG_MS",
        new="header.finalized_ms >= ended_ms",
        tests=(DOUBTFUL + "test_what_was_committed_right_before_etcd_was_copied_may_lack_a_part",),
        why_tests=NO_BACKUPS,
    ),
    Mutant(
        name="commits-behind-the-stamp-whole",
        rule="the last moment before the copy of etcd is that of the latest commit in it",
        section="§4",
        file="txnctl/checking/doubtful.py",
        old="    ended_ms = max([ended_ms, *(header.finalized_ms for header in recent.values())])\n",
        new="",
        tests=(DOUBTFUL + "test_the_last_moment_is_that_of_the_latest_commit_where_the_clock_was_stamped_before_it",),
        why_tests=NO_BACKUPS,
    ),
    Mutant(
        name="shortest-keep-setting-refused",
        rule="an outcome may be kept for a minute",
        section="§4",
        file="txnctl/process/name_settings.py",
        old="    if not LEAST_KEEP_S <= keep_s",
        new="    if not LEAST_KEEP_S < keep_s",
        tests=("tests/txnctl/process/test_name_settings.py::test_the_shortest_and_the_longest_time_are_allowed",),
        why_tests=NO_COMMANDS,
    ),
)
