"""Break the rules for what follows a failure: the next server, the next try, callers still waiting, things left open
(§4 to §11)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

CLIENT = "tests/txnclient/"
CONNECTION = f"{CLIENT}connection/"
ENDED_LINKS = f"{CONNECTION}test_ended_links.py::"
CLOSED_LINKS = f"{CONNECTION}test_closed_links.py::"
READING_ENDS = f"{CLIENT}reading/test_reading_ends.py::"
REGISTRATIONS = f"{CONNECTION}test_registrations.py::"
NEW_HOME = f"{CONNECTION}test_topics_of_a_new_home.py::"
TIME_UP = f"{CLIENT}producing/test_time_up.py::"
ENDS_AT_ONCE = f"{CLIENT}transactions/test_ends_at_once.py::"
CLAIMING = "tests/segments/broker/test_claiming.py::"

UNTRIED = "the test was made for it, no seed was looked for"
NOT_JUDGED = "no judge looks at what a client leaves with a server, or at how long it waits"
ONE_CALL = "a simulated client makes one call at a time in a named transaction"
NO_OPERATOR = "a simulated operator takes no backups"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="deleted-topic-brought-back",
        rule="what a lagging server says of a topic does not replace newer knowledge that there is none",
        section="§8",
        file="txnclient/connection/directory.py",
        old="        if known is None and 0 < layout.topic_revision < self._absent.get(layout.topic, 0):\n",
        new="        if False:\n",
        tests=(f"{ENDED_LINKS}test_a_server_that_lags_brings_no_deleted_topic_back",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="ended-link-drains-nobody",
        rule="who waits for room on a connection goes on when it has ended",
        section="§11",
        file="txnclient/connection/links.py",
        old='            _log.debug("connection to %s ended while busy: %s", self.address, error)\n',
        new=(
            '            _log.debug("connection to %s ended while busy: %s", self.address, error)\n            return\n'
        ),
        tests=(f"{ENDED_LINKS}test_who_waits_for_room_on_a_connection_goes_on_when_it_ends",),
        why_tests="no simulated connection has 4 MiB waiting as it ends",
    ),
    Mutant(
        name="ended-link-tells-nobody",
        rule="the end of a connection is told also to those who ask behind it",
        section="§11",
        file="txnclient/connection/links.py",
        old=(
            "        if self.caller.closed:\n"
            "            handle = asyncio.get_running_loop().call_soon(listener)\n"
            "            return handle.cancel\n"
        ),
        new="",
        tests=(f"{ENDED_LINKS}test_who_listens_for_the_end_of_a_connection_that_has_ended_is_told_unless_it_forgets",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="cause-of-a-failed-attempt-forgotten",
        rule="a timeout within the pause behind a failed attempt to connect names its cause",
        section="§11",
        file="txnclient/connection/links.py",
        old="            self._failures[address] = error\n",
        new="",
        tests=(f"{ENDED_LINKS}test_who_gives_up_within_the_pause_behind_a_failed_attempt_is_told_why_it_failed",),
        why_tests="it judges no texts of errors",
    ),
    Mutant(
        name="tcid-that-comes-back-counts-as-announced",
        rule="a TCID that has moved is announced anew, also where it was announced before",
        section="§9",
        file="txnclient/transactions/coordinators.py",
        old="            if addresses.get(tcid) != self._addresses.get(tcid):\n",
        new="            if tcid not in addresses:\n",
        tests=(
            f"{CLIENT}transactions/test_announcing.py::"
            "test_open_transactions_are_announced_again_where_their_tcid_has_come_back",
        ),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="ends-asked-of-the-owner-only",
        rule="a transaction is ended at any coordinator while the owner of its TCID does not answer",
        section="§9",
        file="txnclient/transactions/coordinators.py",
        old="            link = await self._link_to_end(txn.id.tcid, next(tries), deadline)\n",
        new="            link = await self._link_to_end(txn.id.tcid, 0, deadline)\n",
        tests=(
            f"{CLIENT}transactions/test_ends_elsewhere.py::"
            "test_a_transaction_is_ended_elsewhere_while_the_owner_of_its_tcid_does_not_answer",
        ),
        why_tests="a simulated process that hangs loses its lease before a commit gives up",
    ),
    Mutant(
        name="closing-waits-for-the-undone-begin-only",
        rule="a client that closes waits for the abort that follows a cancelled begin (C5)",
        section="§11",
        file="txnclient/transactions/settling.py",
        old="        while (running := self._tasks.running)",
        new="        if (running := self._tasks.running)",
        tests=(
            f"{CLIENT}test_cancelled_calls.py::test_c5_a_client_that_closes_waits_for_the_abort_of_such_a_begin_too",
        ),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="closed-client-repeats",
        rule="a call that waits for a server ends with its client",
        section="§11",
        file="txnclient/connection/session.py",
        old=(
            "            if self.closed:\n"
            '                raise ConnectionLost(f"{what}: this client was closed meanwhile") from last\n'
        ),
        new="",
        tests=(f"{CLOSED_LINKS}test_whoever_waits_for_a_server_is_told_at_once_that_its_client_was_closed",),
        why_tests=NOT_JUDGED,
    ),
    Mutant(
        name="closed-client-leaves-who-waits-for-a-cut",
        rule="who waits for a shared snapshot is told of the end of its client",
        section="§10",
        file="txnclient/reading/cuts.py",
        old="            task.add_done_callback(lambda _: self._ended(over, run))\n",
        new="",
        tests=(
            f"{CLIENT}reading/test_reader_cuts.py::"
            "test_who_waits_for_a_snapshot_is_told_at_once_that_the_client_was_closed",
        ),
        why_tests=NOT_JUDGED,
    ),
    Mutant(
        name="task-of-a-closed-owner-runs",
        rule="no background task outlives its owner",
        section="§11",
        file="txnclient/connection/tasks.py",
        old="        if self._closed:\n            task.cancel()\n",
        new="",
        tests=(f"{CONNECTION}test_tasks.py::test_what_is_started_behind_the_end_of_its_owner_ends_at_once",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="closed-reader-stays-attached",
        rule="a reader that is closed leaves nothing attached at the brokers",
        section="§11",
        file="txnclient/reading/reader_impl.py",
        old="        for feed in self._feeds.values():\n            feed.close()\n        await self._tasks.close()\n",
        new="        await self._tasks.close()\n",
        tests=(f"{READING_ENDS}test_a_reader_that_is_closed_leaves_nothing_attached_at_the_brokers",),
        why_tests=NOT_JUDGED,
    ),
    Mutant(
        name="unknown-producer-stays-at-its-broker",
        rule="a closed producer that nobody has any more is closed at its broker",
        section="§11",
        file="txnclient/connection/links.py",
        old=(
            "                self.push_if_open("
            "pb.Command(close_producer=pb.CloseProducer(producer_id=closed.producer_id)))\n"
        ),
        new="                pass\n",
        tests=(f"{CLOSED_LINKS}test_a_producer_that_nobody_has_any_more_is_closed_at_the_broker_that_tells_of_it",),
        why_tests=NOT_JUDGED,
    ),
    Mutant(
        name="registrations-deaf-to-their-link",
        rule="producers are registered anew once the connection to the controller has ended",
        section="§8",
        file="txnclient/connection/registrations.py",
        old="forget = None if self._link is None else self._link.when_lost(self._news.set)",
        new="forget = None",
        tests=(f"{REGISTRATIONS}test_a_registration_follows_a_connection_of_its_own_that_nothing_else_is_told_over",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="refused-registration-kept",
        rule="a producer opened behind a refused registration belongs to a new one",
        section="§8",
        file="txnclient/connection/registrations.py",
        old=("a producer opened next belongs to a new registration.\n            del self._known[registration.key]\n"),
        new="\n            pass\n",
        tests=(f"{REGISTRATIONS}test_a_producer_opened_behind_a_refused_registration_is_not_refused_for_that",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="repeated-deletion-is-an-error",
        rule="a deletion whose first answer was lost is done when its repeat finds nothing",
        section="§8",
        file="txnclient/connection/topic_changes.py",
        old="            unanswered = True\n            raise\n",
        new="            raise\n",
        tests=(
            f"{CLIENT}test_lost_replies.py::"
            "test_a_topic_whose_deletion_was_answered_to_nobody_is_deleted_once_and_told_as_done",
        ),
        why_tests="the simulated application takes either answer of a deletion",
    ),
    Mutant(
        name="watch-skips-a-revision-behind-a-listing",
        rule="behind a listing of a compacted range a watch goes on at the next revision (E1)",
        section="§4",
        file="txnstore/access/following.py",
        old="self._next_revision = listed.revision + 1",
        new="self._next_revision = listed.revision + 2",
        tests=(
            "tests/txnstore/etcd/test_watches.py::"
            "test_e1_what_is_written_right_behind_the_listing_of_a_compacted_range_is_followed",
        ),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="half-of-a-split-group-is-a-first-sending",
        rule="every part of a group whose sending went unanswered is a repeat (E2)",
        section="§4",
        file="txnstore/access/group_commit.py",
        old="_RequestPart(second, part.unanswered)]",
        new="_RequestPart(second)]",
        tests=(
            "tests/txnstore/access/test_unknown_outcomes.py::"
            "test_e2_every_part_of_a_group_that_was_unanswered_and_then_refused_is_a_repeat",
        ),
        why_tests="no simulated process sends a commit that etcd refuses for its form",
    ),
    Mutant(
        name="alarmed-etcd-takes-new-work",
        rule="an etcd with its alarm raised takes no new work, however little is in use (E3)",
        section="§4",
        file="txnstore/access/soft_limit.py",
        old="return status.no_space or in_use",
        new="return in_use",
        tests=(
            "tests/txnstore/access/test_space.py::"
            "test_e3_an_etcd_that_has_raised_its_alarm_takes_no_new_work_however_little_is_in_use",
        ),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="empty-listing-keeps-the-leader",
        rule="a leader whose key went while its watch was compacted away has lost its term",
        section="§4",
        file="txnstore/election.py",
        old="                if not any(e.kind",
        new="                if batch.events and not any(e.kind",
        tests=(
            "tests/txnstore/test_election.py::test_a_key_that_went_while_its_watch_was_compacted_away_ends_the_term",
        ),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="unreadable-decision-outlives-its-participant",
        rule="a transaction whose header cannot be read is let go with the last participant that awaits it",
        section="§6",
        file="watchers/decisions.py",
        old=(
            "            for membership in held.members:\n"
            "                membership.held[held] = None\n"
            "\n"
            "    def deliver"
        ),
        new="\n    def deliver",
        tests=("tests/watchers/test_decisions.py::test_unreadable_header_is_reported_and_stays_held",),
        why_tests="no simulated record is unreadable while its participant leaves",
    ),
    Mutant(
        name="waiting-syncs-outlive-the-ledger",
        rule="syncs that wait behind a failed one are told with it",
        section="§7",
        file="segments/ledger/file_ledger_writer.py",
        old=(
            "        if self._dead is not None:\n            self._answer(self._waiting)\n        elif self._waiting:\n"
        ),
        new="        if self._dead is None and self._waiting:\n",
        tests=(
            "tests/segments/ledger/test_file_ledger_ends.py::"
            "test_whoever_waits_for_the_sync_behind_a_failed_one_is_told_with_it",
        ),
        why_tests="it has no files",
    ),
    Mutant(
        name="failed-release-never-again",
        rule="an ownership that could not be given back is given back later",
        section="§7",
        file="segments/broker/owned_segments.py",
        old="            self._handing_over.pop(path, None)\n",
        new="            pass\n",
        tests=(f"{CLAIMING}test_an_ownership_that_could_not_be_given_back_is_given_back_later",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="another-one-s-erasing-is-damage",
        rule="a broker that was overtaken during a take-over takes files that its successor erased for no damage",
        section="§7",
        file="segments/broker/owned_segments.py",
        old="            await registration.check(path, epoch)\n            raise\n",
        new="            raise\n",
        tests=(f"{CLAIMING}test_files_missing_from_a_segment_that_another_broker_owns_by_now_are_no_damage",),
        why_tests="one seed in a hundred has a broker sleep through its lease amid a take-over",
    ),
    Mutant(
        name="asks-past-a-take-over",
        rule="a request that a take-over overtakes does not wait for what is served already",
        section="§7",
        file="segments/broker/broker.py",
        old=(
            "        if (found := self._owned.serving.get(path)) is not None:\n"
            "            return found  # taken over meanwhile: no later event would wake a waiter\n"
        ),
        new="",
        tests=(f"{CLAIMING}test_who_asks_for_a_segment_that_is_taken_over_at_that_moment_does_not_wait_for_it",),
        why_tests=NOT_JUDGED,
    ),
    Mutant(
        name="one-topic-holds-all-pruning-up",
        rule="a topic that cannot be pruned now holds no other up",
        section="§8",
        file="segments/controller/pruning.py",
        old='                    log.info("pruning_waits", topic=path, error=str(error))\n\n',
        new=(
            '                    log.info("pruning_waits", topic=path, error=str(error))\n'
            "                    return\n"
            "\n"
        ),
        tests=("tests/segments/controller/test_pruning.py::test_a_topic_whose_pruning_fails_holds_no_other_up",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="backup-keeps-what-stands-before-a-gap",
        rule="a backup keeps no ledger before one that has gone meanwhile",
        section="§6",
        file="txnctl/backup/taking.py",
        old="ledger_id > max(gone)",
        new="ledger_id > min(gone)",
        tests=(
            "tests/txnctl/backup/test_changing_ledgers.py::"
            "test_what_retention_takes_of_what_was_copied_and_of_what_was_not_leaves_no_gap_in_between",
        ),
        why_tests=NO_OPERATOR,
    ),
    Mutant(
        name="damaged-copy-counts-as-there",
        rule="a copy that is found damaged is not taken for its ledger by the next backup",
        section="§6",
        file="txnctl/backup/taking.py",
        old="            await asyncio.to_thread(folder.set_aside, one)\n",
        new="",
        tests=(
            "tests/txnctl/backup/test_changing_ledgers.py::"
            "test_a_copy_that_is_found_damaged_is_not_taken_for_that_ledger_by_the_next_backup",
        ),
        why_tests=NO_OPERATOR,
    ),
    Mutant(
        name="late-topics-followed-nowhere",
        rule="a home that is moved to follows also the topics that the former one is asked for meanwhile",
        section="§8",
        file="txnclient/connection/directory.py",
        old="(*self._topics, *self._asked)",
        new="self._topics",
        tests=(f"{NEW_HOME}test_a_topic_that_the_former_home_tells_of_late_is_followed_at_the_next_one",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="new-home-looks-at-its-topics-once",
        rule="a home that is moved to follows also the topics that are asked for while it is told of the others",
        section="§8",
        file="txnclient/connection/directory.py",
        old="        while late := [",
        new="        if late := [",
        tests=(f"{NEW_HOME}test_a_topic_asked_for_while_the_next_home_is_asked_for_others_is_followed_there",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="unanswered-window-holds-the-rest",
        rule="what waits behind a window of entries whose time is up goes on, or ends, too",
        section="§11",
        file="txnclient/producing/channels/channel.py",
        old="            self._write()  # ▲ C6",
        new="            pass  # ▲ C6",
        tests=(
            f"{TIME_UP}test_c6_sends_behind_a_full_window_end_though_their_broker_answers_none",
            f"{TIME_UP}test_c6_a_bulk_send_ends_though_its_broker_answers_none",
        ),
        why_tests="no simulated broker leaves more than a window unanswered for a client's timeout",
    ),
    Mutant(
        name="sent-behind-its-time",
        rule="an entry whose time is up before it was written is not written any more",
        section="§11",
        file="txnclient/producing/channels/channel.py",
        old="(first := outbox.waiting_first) is not None and first.deadline.passed",
        new="False",
        tests=(f"{TIME_UP}test_what_waits_behind_a_full_window_until_its_time_is_up_is_not_sent_any_more",),
        why_tests="no simulated broker leaves more than a window unanswered for a client's timeout",
    ),
    Mutant(
        name="flush-of-what-was-left",
        rule="a flush does not say that all is stored where its transaction was left or aborted meanwhile",
        section="§10",
        file="txnclient/transactions/transaction_impl.py",
        old='            raise self.withdrawn("flush")',
        new="            return",
        tests=(
            f"{ENDS_AT_ONCE}test_a_flush_does_not_say_that_all_is_stored_where_the_transaction_was_ended_meanwhile",
        ),
        why_tests=ONE_CALL,
    ),
    Mutant(
        name="failed-commit-takes-an-abort-back",
        rule="a commit that fails as its transaction is aborted does not open it again",
        section="§10",
        file="txnclient/transactions/transaction_impl.py",
        old="            if self._state is TransactionState.COMMITTING:  # ▲ C5",
        new="            if True:  # ▲ C5",
        tests=(f"{ENDS_AT_ONCE}test_c5_a_cancelled_abort_beside_a_commit_goes_on_in_the_background",),
        why_tests=ONE_CALL,
    ),
    Mutant(
        name="moves-go-on-behind-their-end",
        rule="a consumer that closes ends its moves of dead letters before it closes their producers",
        section="§11",
        file="txnclient/consuming/feeds/dead_letters.py",
        old="                    task.cancel()\n                await asyncio.wait(left)\n",
        new="                    pass\n",
        tests=(
            f"{CLIENT}consuming/feeds/test_dead_letters_at_the_end.py::"
            "test_a_move_that_does_not_end_leaves_no_producer_open_behind_its_consumer",
        ),
        why_tests=NOT_JUDGED,
    ),
    Mutant(
        name="closed-before-open-stays",
        rule="a producer that was closed before it was open is not kept",
        section="§7",
        file="segments/broker/broker_service.py",
        old="            opening.closed = True",
        new="            opening.closed = False",
        tests=(
            "tests/segments/owner/test_openings_given_up.py::"
            "test_a_producer_that_is_closed_before_it_is_open_is_not_kept",
        ),
        why_tests=NOT_JUDGED,
    ),
    Mutant(
        name="late-opening-stays",
        rule="a producer that is not open in time is closed",
        section="§7",
        file="txnclient/producing/channels/channel.py",
        old="            (self.close if isinstance(error, Timeout) else self._detach)()",
        new="            self._detach()",
        tests=(f"{TIME_UP}test_what_was_not_opened_in_time_is_closed",),
        why_tests=NOT_JUDGED,
    ),
)
