"""Forget work that was put off, or that failed once; one mutant is about a hung disk (DESIGN §5, §7)."""

from __future__ import annotations

from simulation.mutants.mutant import Edit, Mutant

GATHERING = "tests/txnclient/producing/channels/test_gathering.py::"
OUTCOME_BLOCKS = "tests/coordinator_v5/test_outcome_blocks.py::"
QUEUE_ACKS = "tests/segments/subscription/queueing/test_queue_acks.py::"

TRIES = "tests/coordinator_v5/background/test_second_tries.py::test_"
COLLECTION = "tests/coordinator_v5/background/test_collection.py::test_"
CLEAN_UP = "tests/watchers/test_clean_up.py::test_"
REFUSED_BEGIN = f"{TRIES}d7_a_begin_that_a_full_etcd_refuses_leaves_nothing_and_is_made_once_there_is_room"
SELDOM = "few seeds refuse the one write, and a later deadline or owner makes up for it"
SOON = "no judge of the simulation asks how soon a round follows a failed one"
REAL_DISK = "the simulation has disks of its own: a thread that hangs is behind `LedgerStore`"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="failed-abort-forgotten",
        rule="an abort that etcd refuses is made once there is room, however often it was refused",
        section="§5",
        file="coordinator_v5/ends.py",
        old="            if (now >= txn.due or owed) and not txn.tc.lost:\n",
        new="            if False:\n",
        tests=(
            f"{TRIES}d2_an_abort_that_a_full_etcd_refuses_is_made_once_there_is_room",
            "tests/coordinator_v5/background/test_deadlines.py::"
            "test_d6_an_abort_at_the_deadline_that_a_full_etcd_refuses_is_tried_again",
        ),
        why_tests=SELDOM,
    ),
    Mutant(
        name="second-failure-forgotten",
        rule="the abort of a begin that another id has served is tried until it is made",
        section="§5",
        file="coordinator_v5/ends.py",
        old="decided.reason in (REASON_TIMEOUT, REASON_UNANSWERED)",
        new="decided.reason == REASON_UNANSWERED",
        tests=(f"{TRIES}d7_the_abort_of_a_begin_that_another_id_has_served_is_tried_again",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="interrupted-round-counts-nothing",
        rule="headers that a round has collected count, though it is interrupted",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="                    self._state.counters.collected += done\n",
        new="",
        more=(
            Edit(
                "coordinator_v5/background/collector.py",
                "        return collected\n\n    # ---- one batch",
                "        self._state.counters.collected += collected\n        return collected\n\n    # ---- one batch",
            ),
        ),
        tests=(f"{COLLECTION}what_was_collected_counts_although_its_round_is_interrupted",),
        why_tests="only a metric tells it",
    ),
    Mutant(
        name="deadline-passed-amid-begin",
        rule="a deadline that passes while the begin is on its way is met once that has landed",
        section="§5",
        file="coordinator_v5/transactions.py",
        old="            elif txn.phase is not Phase.ENDED:\n",
        new="            elif txn.phase is Phase.OPEN:\n",
        tests=(f"{TRIES}d2_a_deadline_that_passes_amid_an_unanswered_begin_is_met_once_that_has_landed",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="begin-tried-again-stays-first",
        rule="a begin that goes unanswered again keeps none behind it from its second try",
        section="§5",
        file="coordinator_v5/begins.py",
        old="            del self._pending[request]\n            self._pending[request] = None\n",
        new="",
        tests=(f"{TRIES}d7_a_begin_that_goes_unanswered_again_keeps_none_behind_it_from_its_second_try",),
        why_tests=SOON,
    ),
    Mutant(
        name="unreadable-outcomes-stop-the-expiry",
        rule="an outcome block that cannot be read holds back none behind it",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old=(
            "                    blocks.popleft()\n                    continue\n"
            "                if outcomes.mod_revision and"
        ),
        new="                    break\n                if outcomes.mod_revision and",
        tests=(OUTCOME_BLOCKS + "test_an_outcome_block_that_cannot_be_read_holds_back_none_behind_it",),
        why_tests="no simulated fault writes a record that is not ours, and it lasts no week",
    ),
    Mutant(
        name="refused-clean-up-forgotten",
        rule="clean-up that a full etcd refuses is made once there is room, though nothing else comes",
        section="§6",
        file="watchers/clean_up.py",
        old="target=registered.target.name, error=str(error))\n            self._retry(registered)\n",
        new="target=registered.target.name, error=str(error))\n",
        tests=(f"{CLEAN_UP}clean_up_that_a_full_store_refuses_is_made_once_there_is_room_though_nothing_else_comes",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="compare-lost-twice-forgotten",
        rule="clean-up that lost its compare is tried until it does not",
        section="§6",
        file="watchers/clean_up.py",
        old="                self._retry(registered)\n                return\n        else:\n",
        new="                return\n        else:\n",
        tests=(f"{CLEAN_UP}clean_up_whose_compare_is_lost_is_tried_until_it_is_not",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="key-of-a-predecessor-left-behind",
        rule="an end right behind a take-over deletes the deadline key that a predecessor wrote",
        section="§5",
        file="coordinator_v5/ends.py",
        old="deadline_key=txn.deadline_key or old,",
        new="deadline_key=old,",
        tests=(
            "tests/coordinator_v5/background/test_deadlines.py::test_an_end_right_behind_a_take_over_takes_the_deadline_key_along",
        ),
        why_tests="stale deadline keys are swept up later",
    ),
    Mutant(
        name="key-of-a-successor-left-behind",
        rule="an end by who has slept deletes the deadline key that a successor may have written",
        section="§5",
        file="coordinator_v5/ends.py",
        old="deadline_key=txn.deadline_key or old,",
        new="deadline_key=txn.deadline_key,",
        tests=(
            "tests/coordinator_v5/background/test_deadlines.py::"
            "test_the_end_by_one_that_has_slept_takes_its_successor_s_deadline_key_along",
        ),
        why_tests="stale deadline keys are swept up later",
    ),
    Mutant(
        name="failed-index-never-tried-again",
        rule="a deadline key that etcd refuses is written later",
        section="§5",
        file="coordinator_v5/background/sweeper.py",
        old="        txn.indexing = False\n        try:\n",
        new="        try:\n",
        tests=(f"{TRIES}d3_a_deadline_key_that_a_full_etcd_refuses_is_written_once_there_is_room",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="returned-session-stays-lost",
        rule="a session that returns keeps none behind it from being called vanished",
        section="§5",
        file="coordinator_v5/sessions.py",
        old="            session.lost_at = None\n            self._lost.pop(session.session_id, None)\n",
        new="            session.lost_at = None\n",
        tests=(f"{TRIES}d6_a_session_that_returns_keeps_none_behind_it_from_being_called_vanished",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="uncollected-leaves-the-line",
        rule="what a failed round of collection had in hand is collected by a later one",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="                for seen in left.values():\n                    tc.collect_again(seen)\n",
        new="                pass\n",
        tests=(f"{TRIES}e5_what_a_round_of_collection_could_not_take_along_is_taken_by_a_later_one",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="names-tried-again-late",
        rule="behind a failed round over names another one follows soon",
        section="§5",
        file="coordinator_v5/naming/name_expiry.py",
        old="                wait_s = self._first_s\n",
        new="                wait_s = self._every_s\n",
        tests=(f"{TRIES}names_that_a_failed_round_has_left_are_looked_at_soon_and_not_a_whole_round_later",),
        why_tests=SOON,
    ),
    Mutant(
        name="ledger-store-closes-with-its-disk",
        rule="a disk that answers nothing does not keep a process from closing",
        section="§7",
        file="segments/ledger/file_ledger.py",
        old="timeout=CLOSE_TIMEOUT_S)",
        new="timeout=None)",
        tests=("tests/segments/ledger/test_hung_disk.py",),
        why_tests=REAL_DISK,
    ),
    Mutant(
        name="busy-producer-blocks-the-idle",
        rule="a producer that was idle for longest and is busy keeps no other from being forgotten",
        section="§7",
        file="segments/log/sends/dedup.py",
        old="  # it has entries in flight\n                continue\n",
        new="\n                break\n",
        tests=(
            "tests/segments/log/sends/test_dedup.py::"
            "test_a_busy_producer_that_was_idle_for_longest_keeps_no_other_from_being_forgotten",
        ),
        why_tests=SELDOM,
    ),
    Mutant(
        name="delays-behind-the-first-forgotten",
        rule="one timer serves all delays of a queue: it is set anew behind each",
        section="§7",
        file="segments/subscription/queue_subscription.py",
        old="        self._queue.expire(self._clock.monotonic())\n        self._set_timer()\n",
        new="        self._queue.expire(self._clock.monotonic())\n",
        tests=(QUEUE_ACKS + "test_nacks_that_wait_for_different_times_all_come_again",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="lingering-behind-the-first-forgotten",
        rule="one timer serves all batches that linger: it is set anew behind each",
        section="§9",
        file="txnclient/producing/channels/lingering.py",
        old="        if first is not None:\n            self._timer =",
        new="        if False:\n            self._timer =",
        tests=(GATHERING + "test_lingering_ends_for_each_of_several_segments_in_its_time",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="doomed-behind-one-that-is-not",
        rule="an entry whose time is up is taken out wherever it stands",
        section="§9",
        file="txnclient/producing/channels/outbox.py",
        old=(
            "        out = [entry for entry in self._waiting if doomed(entry)]\n"
            "        self._waiting = deque(entry for entry in self._waiting if not doomed(entry))\n"
        ),
        new=(
            "        out = []\n"
            "        while self._waiting and doomed(self._waiting[0]):\n"
            "            out.append(self._waiting.popleft())\n"
        ),
        tests=("tests/txnclient/producing/channels/test_outbox.py::test_what_is_doomed_goes_wherever_it_stands",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="claimed-head-hides-the-unclaimed",
        rule="what its client has claimed after all keeps none behind it from being called unclaimed (D7)",
        section="§9",
        file="coordinator_v5/sessions.py",
        old="        txn.claim_by, txn.connection = None, connection\n        self._unclaimed.pop(txn.txn_id, None)\n",
        new="        txn.claim_by, txn.connection = None, connection\n",
        tests=(
            "tests/coordinator_v5/test_sessions.py::"
            "test_d7_a_begin_that_is_claimed_after_all_keeps_none_behind_it_from_going",
        ),
        why_tests=SELDOM,
    ),
    Mutant(
        name="second-ids-used-up",
        rule="a begin that came back from a second id makes room for the next one (D7)",
        section="§5",
        file="coordinator_v5/begins.py",
        old="        self._extra -= request.in_flight > 0\n",
        new="",
        tests=(f"{TRIES}d7_however_many_begins_went_unanswered_before_the_next_one_is_served_with_a_fresh_id_too",),
        why_tests=SOON,
    ),
    Mutant(
        name="refused-ids-never-asked-for-again",
        rule="a block of ids that etcd refuses is asked for again",
        section="§4",
        file="coordinator_v5/begins.py",
        old=(
            "        tc.ids.asked = tc.writing_seq = False\n"
            "        try:\n"
            "            verdict = read_seq_verdict(commit, future.result(), tc.tcid)\n"
        ),
        new=(
            "        try:\n"
            "            verdict = read_seq_verdict(commit, future.result(), tc.tcid)\n"
            "            tc.ids.asked = tc.writing_seq = False\n"
        ),
        tests=(f"{TRIES}ids_that_a_full_etcd_refuses_are_asked_for_again",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="refused-name-counts-as-open",
        rule="a begin of a name that etcd refuses leaves nothing that counts as open (D7)",
        section="§10",
        file="coordinator_v5/naming/names.py",
        old="            answer = error\n            txn.tc.remove(txn)\n",
        new="            answer = error\n",
        tests=(f"{REFUSED_BEGIN}[name]",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="refused-name-refused-for-ever",
        rule="a name whose begin etcd has refused can be begun once there is room (D7)",
        section="§10",
        file="coordinator_v5/naming/names.py",
        old=(
            '        self._creating.pop(txn.header.name or "", None)\n'
            "        answer: NamedVerdict | TxnError\n"
            "        try:\n"
            "            answer = read_begin_named_verdict(commit, future.result(), txn.txn_id, txn.header.attempt)\n"
        ),
        new=(
            "        answer: NamedVerdict | TxnError\n"
            "        try:\n"
            "            answer = read_begin_named_verdict(commit, future.result(), txn.txn_id, txn.header.attempt)\n"
            '            self._creating.pop(txn.header.name or "", None)\n'
        ),
        tests=(f"{REFUSED_BEGIN}[name]",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="refused-keyed-begin-counts-as-open",
        rule="a begin of a transaction key that etcd refuses leaves nothing that counts as open (D7)",
        section="§5",
        file="coordinator_v5/naming/transaction_keys.py",
        old="            answer = error\n            txn.tc.remove(txn)\n",
        new="            answer = error\n",
        tests=(f"{REFUSED_BEGIN}[key]",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="refused-aborts-count-as-under-way",
        rule="aborts at deadlines that etcd has refused are not among those that may be on their way at once (D6)",
        section="§5",
        file="coordinator_v5/ends.py",
        old=(
            "        counters.sweeping -= decided.reason in SWEPT\n"
            "        try:\n"
            "            verdict = read_end_verdict(commit, future.result(), decided)\n"
        ),
        new=(
            "        try:\n"
            "            verdict = read_end_verdict(commit, future.result(), decided)\n"
            "            counters.sweeping -= decided.reason in SWEPT\n"
        ),
        tests=(f"{TRIES}d6_deadlines_are_met_however_many_aborts_a_full_etcd_has_refused",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="decided-elsewhere-before-its-index",
        rule="a late index that finds its transaction decided elsewhere makes this coordinator follow that (D3)",
        section="§5",
        file="coordinator_v5/background/sweeper.py",
        old=(
            "        elif txn.phase is Phase.OPEN and txn.ending is None:\n"
            "            # Another coordinator has decided it"
        ),
        new="        elif False:\n            # Another coordinator has decided it",
        tests=(f"{TRIES}d3_what_another_coordinator_has_decided_early_is_followed_at_once_and_not_at_its_deadline",),
        why_tests="its short transactions end at their deadlines anyway",
    ),
    Mutant(
        name="commit-lost-behind-a-refused-sweep",
        rule="what a client asks for while a sweep is under way is done although that is refused for its epoch (D6)",
        section="§5",
        file="coordinator_v5/ends.py",
        old="            txn.waiters.append(request)\n            if txn.ending is None:\n",
        new="            if txn.ending is None:\n",
        tests=(f"{TRIES}d6_a_commit_that_comes_while_a_zombie_sweeps_is_made_although_the_sweep_is_refused",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="no-turn-behind-a-removed-target",
        rule="clean-up that waits for an answer goes on also where nobody is left to hear that",
        section="§6",
        file="watchers/clean_up.py",
        old=(
            "            self._take_answer(registered, plan, future)\n"
            "        # ▲ Also if no target takes this answer: other targets wait for its place in flight.\n"
        ),
        new=("            self._take_answer(registered, plan, future)\n        else:\n            return\n"),
        tests=(f"{CLEAN_UP}what_waits_for_an_answer_goes_on_also_where_nobody_is_left_to_hear_that",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="begun-behind-the-loss-is-nobody-s",
        rule="a begin that is answered once its coordinator id was lost stays its client's (D7)",
        section="§9",
        file="coordinator_v5/begins.py",
        old="            if txn.tc.lost:\n                self._state.sessions.dropped(txn)\n",
        new="",
        tests=(
            "tests/coordinator_v5/test_sessions.py::"
            "test_d7_a_begin_that_is_answered_once_its_id_was_lost_stays_its_client_s",
        ),
        why_tests=SELDOM,
    ),
    Mutant(
        name="begun-as-ended",
        rule="a lost begin that was ended meanwhile is begun anew, not answered (D7)",
        section="§5",
        file="coordinator_v5/begins.py",
        old="            self._try(request) if decided else self._answer(request, txn)\n",
        new="            self._answer(request, txn)\n",
        tests=(f"{TRIES}d7_a_lost_begin_that_was_ended_meanwhile_is_begun_anew_under_a_fresh_id",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="keyed-begin-of-a-forgotten-session",
        rule="a keyed begin that is answered once its client has gone waits for it no longer than the grace (D7)",
        section="§9",
        file="coordinator_v5/naming/transaction_keys.py",
        old="        if session.connections:\n            state.sessions.opened(txn, session, connection)\n",
        new="        if True:\n            state.sessions.opened(txn, session, connection)\n",
        tests=(f"{TRIES}d7_a_keyed_begin_that_is_answered_long_after_its_client_has_gone_is_aborted",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="name-waits-for-an-id-that-was-refused",
        rule="whoever awaits an id hears at once why there is none",
        section="§4",
        file="coordinator_v5/begins.py",
        old="                self._fail(request, error)\n            self._wake(tc, error)\n",
        new="                self._fail(request, error)\n",
        tests=(f"{TRIES}ids_that_a_full_etcd_refuses_are_asked_for_again",),
        why_tests=SOON,
    ),
    Mutant(
        name="name-waits-for-an-id-of-another",
        rule="whoever awaits an id hears at once that its coordinator id is another's (D7)",
        section="§9",
        file="coordinator_v5/begins.py",
        old="            self._fail(request, _moved(tc))\n        self._wake(tc, _moved(tc))\n",
        new="            self._fail(request, _moved(tc))\n",
        tests=(f"{TRIES}d7_a_begin_of_a_name_that_waits_for_an_id_is_told_once_its_coordinator_id_is_lost",),
        why_tests=SOON,
    ),
)
