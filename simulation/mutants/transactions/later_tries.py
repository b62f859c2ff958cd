"""Break what follows a first try, a moment's race or a failed step, and figures that operators read (DESIGN §5, §9)."""

from __future__ import annotations

from simulation.mutants.mutant import Edit, Mutant

COMPANY = "tests/coordinator_v5/background/test_collection_in_company.py::test_"
OUTCOME_BLOCKS = "tests/coordinator_v5/test_outcome_blocks.py::test_"
ASKED_AGAIN = "tests/coordinator_v5/test_asked_again.py::test_"

SOON = "no judge of the simulation asks how soon a later try follows"
NO_WEEK = "a simulated run lasts no week"
SELDOM = "few seeds, if any, meet this moment"
FIGURES = "no judge of the simulation compares these figures"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="collected-again-behind-the-retained",
        rule="what could not be collected is tried again in time, though others are decided all the while",
        section="§5",
        file="coordinator_v5/transactions.py",
        old="            self.again[seen.final.counter] = seen\n",
        new="            self.finals[seen.final.counter] = seen\n",
        tests=(
            f"{COMPANY}e5_one_with_ops_is_tried_again_in_time_though_others_are_decided_all_the_while",
            f"{COMPANY}a_round_that_failed_is_made_again_at_once_though_others_are_decided_all_the_while",
        ),
        why_tests=SOON,
    ),
    Mutant(
        name="tried-again-in-the-room-of-others",
        rule="however many are collected again, others have as much room in a round",
        section="§5",
        file="coordinator_v5/transactions.py",
        old="        for seen in islice(self.finals.values(), limit):\n",
        new="        for seen in islice(self.finals.values(), limit - first):\n",
        tests=(
            "tests/coordinator_v5/test_owned_transactions.py::"
            "test_what_could_not_be_collected_comes_before_those_in_their_retention_and_takes_no_room_of_others",
        ),
        why_tests=SOON,
    ),
    Mutant(
        name="blocks-listed-once",
        rule="outcome blocks whose listing failed are listed again",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="            self._blocks.pop(tcid, None)\n            raise\n",
        new="            raise\n",
        tests=(f"{OUTCOME_BLOCKS}blocks_that_could_not_be_listed_are_listed_again_and_expire",),
        why_tests=NO_WEEK,
    ),
    Mutant(
        name="added-outcomes-expire-with-a-future-stamp",
        rule="outcomes that are added to a block stamped in the future are kept as long as others",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="            if outcomes.mod_revision not in (0, revision):\n",
        new="            if False:\n",
        tests=(
            f"{OUTCOME_BLOCKS}outcomes_added_to_a_block_touched_in_the_future_are_kept_as_long_as_others",
            f"{OUTCOME_BLOCKS}a_block_that_is_written_while_it_expires_is_looked_at_again_and_expires_later",
        ),
        why_tests=NO_WEEK,
    ),
    Mutant(
        name="written-while-it-expires-stays",
        rule="an outcome block that is written while it expires is looked at again",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="                    if not await self._expire(outcomes):\n                        break\n",
        new="                    await self._expire(outcomes)\n",
        more=(
            Edit(
                "coordinator_v5/background/collector.py",
                "                if not await self._expire(outcomes):\n                    continue\n",
                "                await self._expire(outcomes)\n",
            ),
        ),
        tests=(f"{OUTCOME_BLOCKS}a_block_that_is_written_while_it_expires_is_looked_at_again_and_expires_later",),
        why_tests=NO_WEEK,
    ),
    Mutant(
        name="unreadable-future-block-told-again-and-again",
        rule="a block set aside that can no longer be read is reported once",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="                del ahead[block]\n                continue\n",
        new="                continue\n",
        tests=(f"{OUTCOME_BLOCKS}a_block_touched_in_the_future_that_can_no_longer_be_read_is_reported_once",),
        why_tests=NO_WEEK,
    ),
    Mutant(
        name="repeated-begin-has-no-time",
        rule="a begin repeated behind its time-out has the whole time again",
        section="§5",
        file="coordinator_v5/begins.py",
        old="earlier.started_at = earlier.tried_at = self._state.clock.monotonic()",
        new="earlier.tried_at = self._state.clock.monotonic()",
        tests=(f"{ASKED_AGAIN}d7_a_begin_repeated_behind_its_time_out_has_the_whole_time_again",),
        why_tests=SOON,
    ),
    Mutant(
        name="second-end-counts-all-writers",
        rule="an end that waits behind a refused sweep is made with its own writers and note",
        section="§5",
        file="coordinator_v5/ends.py",
        old="self._send(txn, request.state, request.reason, request.writers, request.note, None)",
        new="self._send(txn, request.state, request.reason, None, None, None)",
        tests=(
            "tests/coordinator_v5/background/test_second_tries.py::"
            "test_d6_a_commit_that_comes_while_a_zombie_sweeps_is_made_although_the_sweep_is_refused",
        ),
        why_tests=SELDOM,
    ),
    Mutant(
        name="collected-meanwhile-without-its-name",
        rule="a named commit that is collected between read and write is answered from its name record",
        section="§10",
        file="coordinator_v5/ends.py",
        old=(
            "            if decision is None:\n"
            "                return await self._end_collected(txn_id, state, writers, name, note)\n"
        ),
        new=(
            "            if decision is None:\n"
            '                return await self._end_collected(txn_id, state, writers, "", note)\n'
        ),
        tests=(
            f"{ASKED_AGAIN}d1_a_named_commit_made_and_collected_between_read_and_write_is_answered_with_its_writers",
        ),
        why_tests=SELDOM,
    ),
    Mutant(
        name="oldest-of-the-youngest",
        rule="the age of the oldest open transaction is that over all coordinator ids",
        section="§9",
        file="coordinator_v5/coordinator.py",
        old="oldest = min((first for tc",
        new="oldest = max((first for tc",
        tests=(f"{ASKED_AGAIN}the_oldest_open_transaction_is_that_of_all_coordinator_ids",),
        why_tests=FIGURES,
    ),
    Mutant(
        name="default-above-the-maximum",
        rule="a begin without a timeout has no longer one than the maximum",
        section="§5",
        file="coordinator_v5/coordinator.py",
        old="return timeout_ms or min(max_ms, int(self._settings.default_timeout_s * 1000))",
        new="return timeout_ms or int(self._settings.default_timeout_s * 1000)",
        tests=(
            "tests/coordinator_v5/background/test_deadlines.py::"
            "test_a_begin_without_a_timeout_has_no_longer_one_than_the_maximum",
        ),
        why_tests="the simulation sets no maximum below the default",
    ),
    Mutant(
        name="damaged-header-hides-keys",
        rule="a damaged header hides no transaction key, and is named",
        section="§9",
        file="coordinator_v5/queries.py",
        old="        if (header := _readable(found_header, _record_of, unreadable)) is not None:\n",
        new="        if (header := _record_of(found_header)) is not None:\n",
        tests=("tests/coordinator_v5/test_queries.py::test_a_damaged_header_hides_no_transaction_key_and_is_named",),
        why_tests="no simulated fault writes a record that is not ours",
    ),
    Mutant(
        name="full-namespace-refuses-its-own-names",
        rule="an aborted name is begun again though its namespace is full",
        section="§10",
        file="coordinator_v5/naming/names.py",
        old="                if found.record is None:\n                    await self._bounds.check(name)\n",
        new="                await self._bounds.check(name)\n",
        tests=(
            "tests/coordinator_v5/naming/test_name_bounds.py::"
            "test_an_aborted_batch_is_begun_again_though_its_namespace_is_full",
        ),
        why_tests="no simulated namespace is full",
    ),
    Mutant(
        name="fenced-elsewhere-uncounted",
        rule="an abort by fencing is counted by whoever made it",
        section="§9",
        file="coordinator_v5/naming/transaction_keys.py",
        old="        if txn is None:\n            self._ends.count(decision)\n",
        new="        if txn is None:\n            pass\n",
        tests=(
            "tests/coordinator_v5/naming/test_transaction_keys.py::"
            "test_k1_a_new_holder_aborts_the_open_transaction_and_fences_the_old_one",
        ),
        why_tests=FIGURES,
    ),
    Mutant(
        name="failed-later-round-over-names",
        rule="behind a failed round over names another one follows soon, whatever went before it",
        section="§10",
        file="coordinator_v5/naming/name_expiry.py",
        old="                wait_s = self._first_s\n",
        new="                pass\n",
        tests=(
            "tests/coordinator_v5/background/test_second_tries.py::"
            "test_names_that_a_failed_round_has_left_are_looked_at_soon_and_not_a_whole_round_later",
        ),
        why_tests=SOON,
    ),
    Mutant(
        name="untold-leap-outlives-its-term",
        rule="whoever loses coordinator id 0 drops a clock setting that was never stored",
        section="§5",
        file="coordinator_v5/background/stamping.py",
        old="            if tc is None and self._epoch:\n                await self._deposed()\n",
        new="            if tc is None and self._epoch:\n                self._epoch = 0\n",
        tests=(
            "tests/coordinator_v5/test_clocks.py::"
            "test_whoever_lost_id_0_before_its_first_stamp_was_stored_goes_by_the_cluster_s_clock",
        ),
        why_tests=SELDOM,
    ),
    Mutant(
        name="listed-stamp-counts-as-live",
        rule="a stamp listed behind a compaction is not taken for one made now",
        section="§5",
        file="txnstore/cluster_clock.py",
        old="live=not batch.resync",
        new="live=True",
        tests=(
            "tests/txnstore/test_cluster_clock.py::"
            "test_a_stamp_that_is_listed_behind_a_compaction_is_not_taken_for_one_made_now",
        ),
        why_tests=SELDOM,
    ),
    Mutant(
        name="grown-since-the-term-began",
        rule="half-empty pages are looked for by what has come since the last defragmentation",
        section="§4",
        file="txnstore/maintenance.py",
        old="            self._in_use_before = status.db_bytes_in_use\n        if status.no_space",
        new="        if status.no_space",
        tests=(
            "tests/txnstore/access/test_space.py::"
            "test_half_empty_pages_are_filled_by_one_defragmentation_and_not_again_before_they_grow",
        ),
        why_tests="the simulated etcd has no pages",
    ),
    Mutant(
        name="limit-sampled-leisurely",
        rule="close to its limit etcd's size is sampled often",
        section="§4",
        file="txnstore/access/soft_limit.py",
        old="return CLOSE_POLL_S if close else POLL_S",
        new="return POLL_S",
        tests=(
            "tests/txnstore/access/test_space.py::"
            "test_e3_close_to_the_soft_limit_it_is_noticed_at_once_that_it_is_passed",
        ),
        why_tests="no simulated client writes this fast",
    ),
    Mutant(
        name="one-alarm-disarmed",
        rule="the alarms of all members are disarmed",
        section="§4",
        file="txnstore/etcd/backend.py",
        old="                await self._connection.unary(_ALARM, off.SerializeToString())\n",
        new="                await self._connection.unary(_ALARM, off.SerializeToString())\n                break\n",
        tests=("tests/txnstore/etcd/test_members_maintained.py::test_e3_the_alarms_of_all_members_are_disarmed",),
        why_tests="it concerns a real etcd",
    ),
    Mutant(
        name="etcd-s-earlier-words",
        rule="an etcd that cannot start is told of by what it said this time",
        section="§4",
        file="txnstore/etcd/embedded_etcd.py",
        old="        self._log_start = self._log.tell()\n",
        new="        self._log_start = 0\n",
        tests=("tests/txnstore/etcd/test_etcd_process.py::test_an_etcd_that_cannot_start_says_why",),
        why_tests="it concerns a real etcd",
    ),
    Mutant(
        name="lost-compares-add-up",
        rule="clean-up pauses for compares lost in a row only",
        section="§6",
        file="watchers/clean_up.py",
        old="            registered.lost_in_a_row = 0\n",
        new="",
        tests=("tests/watchers/test_clean_up_refused.py::test_a_compare_lost_once_now_and_then_costs_no_pause",),
        why_tests=SOON,
    ),
    Mutant(
        name="unreadable-names-told-with-the-last-only",
        rule="each request that deletes names tells of the unreadable ones it has met",
        section="§10",
        file="coordinator_v5/naming/kept_names.py",
        old="            done, unreadable[:] = done._replace(changed=done.changed + len(unreadable)), ()\n",
        new="",
        tests=("tests/coordinator_v5/naming/test_kept_names.py::test_over_several_requests_each_name_is_told_of_once",),
        why_tests=FIGURES,
    ),
    Mutant(
        name="unreadable-pin-of-the-living",
        rule="a pin that cannot be read holds compaction back as long as its process lives",
        section="§4",
        file="txnstore/maintenance.py",
        old="        if record.lease != NO_LEASE:\n            raise\n",
        new="",
        tests=(
            "tests/txnstore/access/test_space.py::"
            "test_e7_a_pin_of_another_version_holds_compaction_back_as_long_as_its_process_lives",
        ),
        why_tests=FIGURES,
    ),
    Mutant(
        name="unreadable-names-told-twice",
        rule="a request that deletes names does not tell of the unreadable ones that the next one meets again",
        section="§10",
        file="coordinator_v5/naming/kept_names.py",
        old="                unreadable[:] = [one for one in unreadable if one.key < last]\n",
        new="",
        tests=("tests/coordinator_v5/naming/test_kept_names.py::test_over_several_requests_each_name_is_told_of_once",),
        why_tests=FIGURES,
    ),
    Mutant(
        name="unreadable-pin-stops-compaction",
        rule="a pin that cannot be read holds no compaction back",
        section="§4",
        file="txnstore/maintenance.py",
        old="        if record.lease != NO_LEASE:\n            raise\n",
        new="        raise\n",
        tests=("tests/txnstore/access/test_space.py::test_e7_a_pin_that_cannot_be_read_holds_no_compaction_back",),
        why_tests="no simulated fault writes a record that is not ours",
    ),
    Mutant(
        name="taken-id-still-free",
        rule="a coordinator id that was taken is not taken again before the watch tells of its taking",
        section="§9",
        file="coordinator_v5/ownership.py",
        old="        if epoch is not None:\n            self._holders[tcid] = self._registration.id\n",
        new="        if epoch is None:\n            self._holders[tcid] = self._registration.id\n",
        tests=(
            "tests/coordinator_v5/test_ownership.py::"
            "test_an_id_is_not_taken_again_with_one_that_is_heard_of_before_its_own_taking",
        ),
        why_tests=SELDOM,
    ),
    Mutant(
        name="stuck-under-a-lost-id",
        rule="what a coordinator kept for collection goes with the coordinator id that it loses",
        section="§5",
        file="coordinator_v5/coordinator.py",
        old="        self._collector.forget(tcid)\n",
        new="",
        tests=(f"{COMPANY}what_is_stuck_as_its_id_is_lost_is_stuck_here_no_more",),
        why_tests=FIGURES,
    ),
    Mutant(
        name="named-begin-uncounted",
        rule="the begin of a name counts as a compare-and-set that succeeded",
        section="§9",
        file="coordinator_v5/naming/names.py",
        old="        self._state.counters.cas_ok += 1\n",
        new="",
        tests=(f"{ASKED_AGAIN}the_begin_of_a_name_counts_as_a_compare_and_set_and_a_begin_that_joins_it_does_not",),
        why_tests=FIGURES,
    ),
    *(
        Mutant(
            name=name,
            rule="a begin that is refused, or finds another one, counts among the compare-and-sets",
            section="§9",
            file=file,
            old=old,
            new=new,
            tests=(ASKED_AGAIN + test,),
            why_tests=FIGURES,
        )
        for name, file, old, new, test in (
            (
                "overtaken-named-begin-uncounted",
                "coordinator_v5/naming/names.py",
                "                self._state.counters.cas_conflict += 1\n",
                "",
                "of_two_first_begins_of_a_name_one_counts_as_a_conflict",
            ),
            (
                "refused-named-begin-uncounted",
                "coordinator_v5/naming/names.py",
                "                self._state.counters.cas_reject += 1\n",
                "",
                "a_begin_under_an_id_that_another_process_has_counts_as_refused",
            ),
            (
                "refused-begin-uncounted",
                "coordinator_v5/begins.py",
                "            self._state.counters.cas_reject += 1\n",
                "",
                "a_begin_under_an_id_that_another_process_has_counts_as_refused",
            ),
        )
    ),
    Mutant(
        name="open-header-read-as-a-decision",
        rule="a header that is still open as it is read again is neither a decision nor an error",
        section="§6",
        file="watchers/decisions.py",
        old="if record is not None and record.version > 1]",
        new="if record is not None and record.version >= 1]",
        tests=(
            "tests/watchers/test_decisions.py::"
            "test_a_header_that_is_still_open_as_it_is_read_again_is_neither_a_decision_nor_an_error",
        ),
        why_tests="it changes what is logged, and no judge reads the log",
    ),
    Mutant(
        name="ended-watch-waited-for",
        rule="a watch of decisions that ends for good fails those who wait for it at once",
        section="§6",
        file="watchers/decisions.py",
        old='        self._fail_waiters(StoreUnavailable(f"decisions are not followed any more: {self._failure}"))\n',
        new="",
        tests=("tests/watchers/test_decisions.py::test_watch_that_ends_for_good_fails_those_who_wait_at_once",),
        why_tests="the simulation plants no defects",
    ),
)
