"""Break the servers' background work: each task runs unasked, and runs again after a failure (DESIGN §5, §6, §9)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

OUTCOME_BLOCKS = "tests/coordinator_v5/test_outcome_blocks.py::"

SESSIONS = "tests/coordinator_v5/test_sessions.py::"
TAKE_OVER = "tests/coordinator_v5/background/test_take_over.py::"
COLLECTION = "tests/coordinator_v5/background/test_collection.py::"
IN_COMPANY = "tests/coordinator_v5/background/test_collection_in_company.py::"
NO_BAD_RECORD = "no simulated fault writes a record that is not ours"
OWNERSHIP = "tests/coordinator_v5/test_ownership.py::"
FULL = "tests/coordinator_v5/test_full.py::"
ALONE = "no seed was looked for: its test dies of this line alone"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="failed-kept-over-lease",
        rule="a segment that was corrupt is tried again under the broker's next lease",
        section="§6",
        file="segments/broker/owned_segments.py",
        old="        self.holdings.failed.clear()  # these too: try them again under the next lease\n",
        new="",
        tests=(
            "tests/segments/broker/test_claiming.py::"
            "test_a_segment_that_was_corrupt_and_is_put_right_is_served_under_the_broker_s_next_lease",
        ),
        why_tests="it starts brokers anew once damage is put right",
    ),
    Mutant(
        name="new-outcome-blocks-never-expire",
        rule="outcomes expire that were collected after their blocks were listed",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old=(
            "        if verdict.applied and outcomes.mod_revision == 0 and tc.tcid in self._blocks:\n"
            "            self._blocks[tc.tcid].append(block)\n"
        ),
        new="",
        tests=(OUTCOME_BLOCKS + "test_a_block_that_is_made_after_the_blocks_were_listed_expires_as_well",),
        why_tests="it lasts no week",
    ),
    Mutant(
        name="look-misses-last-busy",
        rule="an op of one transaction holds back no other's collection, wherever it stands in a batch (E5)",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="keys.txn_ops(first), keys.prefix_end(keys.txn_ops(last)), set[int | None]()",
        new="keys.txn_ops(first), keys.txn_ops(last), set[int | None]()",
        tests=(COLLECTION + "test_e5_an_op_of_the_last_header_of_a_batch_holds_back_none_of_the_others",),
        why_tests="not looked for with seeds: what is not collected is there for a while longer",
    ),
    Mutant(
        name="lost-list-keeps-the-returned",
        rule="a client that came back hides none that was lost after it (D7)",
        section="§9",
        file="coordinator_v5/sessions.py",
        old="            session.lost_at = None\n            self._lost.pop(session.session_id, None)\n",
        new="            session.lost_at = None\n",
        tests=(SESSIONS + "test_a_client_that_came_back_hides_none_that_was_lost_after_it",),
        why_tests="not looked for with seeds: the deadline ends it all the same, a little later",
    ),
    Mutant(
        name="walk-dropped-on-error",
        rule="what predecessors left decided is looked for until all of it is found",
        section="§5",
        file="coordinator_v5/background/take_over.py",
        old=(
            "            tc = self.to_walk[0]\n"
            "            await _walk_finals(self._state, tc)\n"
            "            self.to_walk = [one for one in self.to_walk if one is not tc]\n"
        ),
        new="            tc = self.to_walk.pop(0)\n            await _walk_finals(self._state, tc)\n",
        tests=(
            TAKE_OVER
            + "test_what_predecessors_left_decided_is_collected_also_where_the_store_failed_as_it_was_looked_for",
        ),
        why_tests="not looked for with seeds: etcd has to answer no read just as an id has been loaded",
    ),
    Mutant(
        name="reconcile-ends-at-unreadable",
        rule="a header that cannot be read hides no other's decision",
        section="§5",
        file="coordinator_v5/background/sweeper.py",
        old='                log.error("unreadable header left alone", error=str(error))\n                continue\n',
        new='                log.error("unreadable header left alone", error=str(error))\n                return\n',
        tests=(COLLECTION + "test_a_header_that_cannot_be_read_hides_no_decision_of_another_coordinator_behind_it",),
        why_tests=NO_BAD_RECORD,
    ),
    Mutant(
        name="hand-over-waits-for-nothing",
        rule="a hand-over goes on as soon as etcd takes commits again",
        section="§6",
        file="watchers/clean_up.py",
        old=("        self._wake_drains(registered)\n        self.wake(registered.target)"),
        new="        self.wake(registered.target)",
        tests=(
            "tests/watchers/test_hand_over.py::"
            "test_a_hand_over_while_the_store_is_away_writes_all_as_soon_as_it_is_back",
        ),
        why_tests=ALONE,
    ),
    Mutant(
        name="noted-bound-falls",
        rule="a cut is refused if any decision after its revision was forgotten, in whatever order they were noted",
        section="§10",
        file="watchers/noted_decisions.py",
        old="self.known_above = max(self.known_above, forgotten)",
        new="self.known_above = forgotten",
        tests=(
            "tests/watchers/test_noted_decisions.py::"
            "test_past_the_bound_nothing_is_claimed_that_was_forgotten_out_of_order",
        ),
        why_tests=ALONE,
    ),
    Mutant(
        name="names-told-of-twice",
        rule="a deletion of names over several requests passes each name once",
        section="§10",
        file="coordinator_v5/naming/kept_names.py",
        old='behind = b"" if after is None else keys.txn_name(after) + b"\\0"',
        new='behind = b"" if after is None else keys.txn_name(after)',
        tests=("tests/coordinator_v5/naming/test_kept_names.py::test_over_several_requests_each_name_is_told_of_once",),
        why_tests=ALONE,
    ),
    Mutant(
        name="same-count-forgets-begins",
        rule="names begun since the last count are counted until there is another count",
        section="§10",
        file="coordinator_v5/naming/name_bounds.py",
        old="if counted is not None and (self._counted is None or counted.counted_ms != self._counted.counted_ms):",
        new="if counted is not None:",
        tests=(
            "tests/coordinator_v5/naming/test_name_bounds.py::test_a_count_that_is_read_twice_forgets_no_begin_between",
        ),
        why_tests=ALONE,
    ),
    Mutant(
        name="compacted-while-listing-ends-a-watch",
        rule="a watch goes on although the range is compacted again while it is listed (E1)",
        section="§4",
        file="txnstore/access/following.py",
        old="except (StoreUnavailable, Compacted):",
        new="except StoreUnavailable:",
        tests=(
            "tests/txnstore/access/test_following.py::test_e1_a_listing_that_fails_behind_a_compaction_is_made_again",
        ),
        why_tests=ALONE,
    ),
    Mutant(
        name="collect-second-puts-only",
        rule="a header that a repair has put a third time is collected, and holds back none of its neighbours",
        section="§5",
        file="txnstore/writes/collection_transitions.py",
        old="Compare(start, Target.VERSION, Relation.GREATER, 1, end)",
        new="Compare(start, Target.VERSION, Relation.EQUAL, 2, end)",
        tests=(
            IN_COMPANY + "test_a_header_that_a_repair_has_put_a_third_time_is_collected_with_its_neighbours[False]",
        ),
        why_tests="the simulation has no repair",
    ),
    Mutant(
        name="clear-second-puts-only",
        rule="ops of a transaction that a repair has dropped are cleared where nobody owns their segment",
        section="§5",
        file="txnstore/writes/collection_transitions.py",
        old="Compare(keys.txn(txn_id), Target.VERSION, Relation.GREATER, 1)",
        new="Compare(keys.txn(txn_id), Target.VERSION, Relation.EQUAL, 2)",
        tests=(IN_COMPANY + "test_a_header_that_a_repair_has_put_a_third_time_is_collected_with_its_neighbours[True]",),
        why_tests="the simulation has no repair",
    ),
    Mutant(
        name="rest-of-batch-not-cut",
        rule="what is left of a batch, without those that still have ops, is cut into commits anew",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="            parts = [[one] for one in batch] if apart else _cut(batch)\n",
        new="            parts = [[one] for one in batch] if apart else [list(batch)]\n",
        tests=(IN_COMPANY + "test_e5_ops_of_every_second_transaction_hold_back_none_of_the_others",),
        why_tests=ALONE,
    ),
    Mutant(
        name="run-over-strange-key",
        rule="a key of somebody else between headers, or ops, keeps nothing from collection",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="            parts = [[one] for one in batch] if apart else _cut(batch)\n",
        new="            parts = _cut(batch)\n",
        tests=(IN_COMPANY + "test_a_strange_key_between_headers_or_ops_holds_back_no_collection",),
        why_tests=NO_BAD_RECORD,
    ),
    Mutant(
        name="strange-outcome-key-is-fatal",
        rule="a key of somebody else among the outcome blocks ends no coordinator",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old=(
            "    except ValueError:\n"
            '        log.error("unreadable key left alone", key=repr(key))\n'
            "        return None\n"
        ),
        new="    except ZeroDivisionError:\n        return None\n",
        tests=(OUTCOME_BLOCKS + "test_a_strange_key_among_outcome_blocks_ends_no_coordinator_and_holds_back_no_block",),
        why_tests=NO_BAD_RECORD,
    ),
    Mutant(
        name="header-of-no-state-is-watched",
        rule="a header that was put once, but not as OPEN, ends no coordinator at its deadline",
        section="§5",
        file="coordinator_v5/background/take_over.py",
        old="        if decision is None and header.state != OPEN:\n",
        new="        if decision is None and not header.state:\n",
        tests=(TAKE_OVER + "test_a_header_put_once_in_another_state_than_open_ends_no_coordinator",),
        why_tests=NO_BAD_RECORD,
    ),
    Mutant(
        name="set-aside-of-lost-id",
        rule="a transaction of a lost coordinator id does not count as stuck where the id was lost",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="        if txn_id.tcid not in self._state.tcids:\n            return  # ▲ lost",
        new="        if txn_id.tcid < 0:\n            return  # ▲ lost",
        tests=(IN_COMPANY + "test_what_is_looked_at_as_its_id_is_lost_is_not_counted_as_stuck_for_ever",),
        why_tests=ALONE,
    ),
    Mutant(
        name="unknown-clean-up-forgotten",
        rule="clean-up is made again whose repetition etcd has denied, though nothing else comes",
        section="§6",
        file="watchers/clean_up.py",
        old="        except (StoreUnavailable, StoreFull, OutcomeUnknown) as error:\n",
        new=(
            "        except OutcomeUnknown:\n"
            "            return\n"
            "        except (StoreUnavailable, StoreFull) as error:\n"
        ),
        tests=(
            "tests/watchers/test_clean_up_refused.py::"
            "test_clean_up_of_unknown_outcome_is_made_again_though_nothing_else_comes[False]",
        ),
        why_tests="no simulated etcd denies anything",
    ),
    Mutant(
        name="op-key-in-no-utf-8-is-fatal",
        rule="a key of somebody else between ops ends no coordinator",
        section="§5",
        file="txnstore/keys.py",
        old='key[len(TXN_OP) :].decode(errors="replace").partition',
        new="key[len(TXN_OP) :].decode().partition",
        tests=(IN_COMPANY + "test_a_strange_key_between_headers_or_ops_holds_back_no_collection[/txn-op/]",),
        why_tests=NO_BAD_RECORD,
    ),
    Mutant(
        name="leftover-in-no-utf-8-is-fatal",
        rule="a key of somebody else among a transaction's ops holds that one back, and nothing else",
        section="§5",
        file="txnstore/keys.py",
        old='key[len(TXN_OP) :].decode(errors="replace").split',
        new="key[len(TXN_OP) :].decode().split",
        tests=(IN_COMPANY + "test_a_strange_key_among_the_ops_of_one_transaction_holds_back_that_one_alone",),
        why_tests=NO_BAD_RECORD,
    ),
    Mutant(
        name="block-made-while-listed",
        rule="outcomes expire whose block was made while the blocks were listed",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old=(
            "        made = self._blocks[tcid] = deque()\n"
            "        try:\n"
            "            listed = await self._outcome_blocks(tcid)\n"
        ),
        new=(
            "        try:\n"
            "            listed = await self._outcome_blocks(tcid)\n"
            "            made = self._blocks[tcid] = deque()\n"
        ),
        tests=(OUTCOME_BLOCKS + "test_a_block_that_is_made_as_the_blocks_are_listed_expires_as_well",),
        why_tests="it lasts no week",
    ),
    Mutant(
        name="endless-deadline-is-fatal",
        rule="a deadline key of thousands of digits, by somebody else, ends no coordinator",
        section="§5",
        file="txnstore/keys.py",
        old=" and timeout_ms.isdigit() and len(timeout_ms) < 20)",
        new=" and timeout_ms.isdigit())",
        tests=("tests/txnstore/test_keys.py::test_c10_a_deadline_key_without_a_time_is_an_error_of_ours",),
        why_tests=NO_BAD_RECORD,
    ),
    Mutant(
        name="refused-deadline-keys-at-once-again",
        rule="deadline keys that a full etcd refuses are put again seldom",
        section="§5",
        file="coordinator_v5/background/sweeper.py",
        old="INDEXED_AT_ONCE if now >= self._index_at else 0",
        new="INDEXED_AT_ONCE",
        tests=(FULL + "test_deadline_keys_that_a_full_etcd_refuses_are_put_again_seldom_and_once_there_is_room",),
        why_tests="no judge counts what etcd refuses",
    ),
    Mutant(
        name="refused-aborts-at-once-again",
        rule="aborts that nobody asked for and a full etcd refuses are sent again seldom",
        section="§5",
        file="coordinator_v5/background/sweeper.py",
        old="        if self._state.clock.monotonic() < self._ends.sweep_at:\n            return 0\n",
        new="",
        tests=(FULL + "test_aborts_that_a_full_etcd_refuses_are_sent_again_seldom_and_once_there_is_room",),
        why_tests="no judge counts what etcd refuses",
    ),
    Mutant(
        name="wake-in-the-pause",
        rule="clean-up that is queued behind a refusal waits for the same pause",
        section="§6",
        file="watchers/clean_up.py",
        old="        if registered.retry is not None:\n            return  # ▲ the pause",
        new="        if registered.error is not None:\n            return  # ▲ the pause",
        tests=("tests/watchers/test_clean_up_refused.py::test_decisions_behind_a_refusal_wait_for_the_same_pause",),
        why_tests="no judge counts what etcd refuses",
    ),
    Mutant(
        name="full-etcd-costs-held-ids",
        rule="a coordinator id that a full etcd does not let be taken costs none of those that are held",
        section="§9",
        file="coordinator_v5/ownership.py",
        old="                await self._take_or_wait(lease)\n        finally:\n",
        new="                await self._take_share(lease)\n        finally:\n",
        tests=(FULL + "test_an_id_that_a_full_etcd_does_not_let_be_taken_costs_none_of_those_that_are_held",),
        why_tests=ALONE,
    ),
    Mutant(
        name="refused-id-never-taken",
        rule="a coordinator id that a full etcd did not let be taken is taken once there is room",
        section="§9",
        file="coordinator_v5/ownership.py",
        old='trying again", error=str(error))\n            self._refused.set()\n',
        new='trying again", error=str(error))\n',
        tests=(FULL + "test_an_id_that_a_full_etcd_does_not_let_be_taken_costs_none_of_those_that_are_held",),
        why_tests=ALONE,
    ),
    Mutant(
        name="unanswered-taking-costs-held-ids",
        rule="a coordinator id whose taking is not answered costs none of those that are held",
        section="§9",
        file="coordinator_v5/ownership.py",
        old='except (StoreFull, StoreUnavailable, OutcomeUnknown) as error:\n            log.warning("free',
        new='except StoreFull as error:\n            log.warning("free',
        tests=(FULL + "test_an_id_whose_taking_is_not_answered_costs_none_of_those_that_are_held",),
        why_tests=ALONE,
    ),
    Mutant(
        name="unanswered-giving-up-costs-kept-ids",
        rule="a coordinator id whose giving up is not answered costs none of those that are kept",
        section="§9",
        file="coordinator_v5/ownership.py",
        old="        await all_of(self._free(tcid, epoch, lease) for tcid, epoch in given.items())\n",
        new="        await all_of(self._store.commit(plan_give_up_tcid(*one)) for one in given.items())\n",
        tests=(OWNERSHIP + "test_an_id_whose_giving_up_is_not_answered_costs_none_of_those_that_are_kept",),
        why_tests=ALONE,
    ),
    Mutant(
        name="given-up-while-it-is-taken",
        rule="a coordinator id whose taking is heard of before it is answered is not given up",
        section="§9",
        file="coordinator_v5/ownership.py",
        old="        async with self._taking:\n            if tcid not in self._mine:\n",
        new="        if True:\n            if tcid not in self._mine:\n",
        tests=(OWNERSHIP + "test_an_id_whose_taking_is_heard_of_before_its_answer_is_not_given_up",),
        why_tests="the ids are back a moment later: no judge knows a rule that this breaks",
    ),
    Mutant(
        name="cancelled-start-keeps-ids",
        rule="a coordinator whose start is cancelled keeps no id from others",
        section="§9",
        file="coordinator_v5/coordinator.py",
        old="        except BaseException:\n            await self.close()\n",
        new="        except TxnError:\n            await self.close()\n",
        tests=(FULL + "test_a_start_that_is_cancelled_keeps_no_id_from_others",),
        why_tests="no simulated server takes too long to start",
    ),
    Mutant(
        name="ids-given-up-in-a-full-etcd",
        rule="an id is not given up for a coordinator that a full etcd does not let take it",
        section="§9",
        file="coordinator_v5/ownership.py",
        old="        if not await self._others_can_take(lease):\n",
        new="        if False:\n",
        tests=(FULL + "test_ids_are_not_given_up_for_another_coordinator_that_a_full_etcd_lets_take_none",),
        why_tests=ALONE,
    ),
    Mutant(
        name="balanced-at-the-start-alone",
        rule="coordinators that give up ids one after the other end with even shares (D4)",
        section="§9",
        file="coordinator_v5/ownership.py",
        old="        self._changed.set()\n        if batch.resync:\n",
        new="        if batch.resync:\n",
        tests=(
            "tests/coordinator_v5/test_balance.py::"
            "test_coordinators_that_give_up_ids_one_after_the_other_end_with_even_shares",
        ),
        why_tests="uneven shares break no rule that its judges know",
    ),
)
