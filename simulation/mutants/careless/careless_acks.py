"""Break the rules of acks over several segments, transactions and consumers, and of values at their bounds (SCENARIOS
A5, C1, C4, C9, P2)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

CARELESS_ENDS = "tests/txnclient/test_careless_ends.py::"
CARELESS_ACKS = "tests/txnclient/consuming/feeds/test_careless_acks.py::"
DELIVERED = "tests/txnclient/consuming/received/test_delivered.py::"
BOUNDS_OF_BULK_SENDS = "tests/txnclient/producing/test_bounds_of_bulk_sends.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="longest-attempt-refused",
        rule="an attempt has up to 32 bytes (C9)",
        section="§10",
        file="txnclient/transactions/coordinators.py",
        old="not 0 < len(attempt) <= MAX_ATTEMPT_BYTES",
        new="not 0 < len(attempt) < MAX_ATTEMPT_BYTES",
        tests=(
            CARELESS_ENDS + "test_c9_what_a_begin_of_a_name_is_given_is_taken_at_its_bounds_and_one_more_is_refused",
        ),
        why_tests="its callers give what is right",
    ),
    Mutant(
        name="writer-of-no-name",
        rule="no writer of a named transaction has the id of what is in none (C9)",
        section="§10",
        file="txnclient/transactions/coordinators.py",
        old="not 0 < writer_id < 1 << 64",
        new="not 0 <= writer_id < 1 << 64",
        tests=(
            CARELESS_ENDS + "test_c9_what_a_begin_of_a_name_is_given_is_taken_at_its_bounds_and_one_more_is_refused",
        ),
        why_tests="its callers give what is right",
    ),
    Mutant(
        name="shortest-keep-refused",
        rule="an outcome may be kept for a minute (C9)",
        section="§10",
        file="txnclient/transactions/coordinators.py",
        old="not MIN_KEEP <= keep <= MAX_KEEP",
        new="not MIN_KEEP < keep <= MAX_KEEP",
        tests=(
            CARELESS_ENDS + "test_c9_what_a_begin_of_a_name_is_given_is_taken_at_its_bounds_and_one_more_is_refused",
        ),
        why_tests="its callers give what is right",
    ),
    Mutant(
        name="kept-longer-than-a-century",
        rule="an outcome is kept for a hundred years at most (C9)",
        section="§10",
        file="txnclient/transactions/coordinators.py",
        old="not MIN_KEEP <= keep <= MAX_KEEP",
        new="not MIN_KEEP <= keep",
        tests=(
            CARELESS_ENDS + "test_c9_what_a_begin_of_a_name_is_given_is_taken_at_its_bounds_and_one_more_is_refused",
        ),
        why_tests="its callers give what is right",
    ),
    Mutant(
        name="newest-of-no-name",
        rule="what belongs to names is refused for a transaction without one (C9)",
        section="§10",
        file="txnclient/client.py",
        old="if attempt is not None or writer_id is not None or keep is not None or keep_newest:",
        new="if attempt is not None or writer_id is not None or keep is not None:",
        tests=(
            CARELESS_ENDS + "test_c9_what_a_begin_of_a_name_is_given_is_taken_at_its_bounds_and_one_more_is_refused",
        ),
        why_tests="its callers give what is right",
    ),
    Mutant(
        name="attached-by-no-name",
        rule="a name that cannot be is refused at the call (C9)",
        section="§10",
        file="txnclient/transactions/coordinators.py",
        old="joined = Joined(validate_txn_name(name), self._session.random_u64(), joined=True)",
        new="joined = Joined(name, self._session.random_u64(), joined=True)",
        tests=(
            CARELESS_ENDS + "test_c9_what_a_begin_of_a_name_is_given_is_taken_at_its_bounds_and_one_more_is_refused",
        ),
        why_tests="its callers give what is right",
    ),
    Mutant(
        name="cumulative-ack-hears-one-segment",
        rule="a cumulative ack raises what any segment was refused with (P2)",
        section="§6",
        file="txnclient/consuming/received/by_segment.py",
        old=("    for segment, each in answers.items():\n        for answer in each:"),
        new=("    for segment, each in list(answers.items())[:1]:\n        for answer in each:"),
        tests=(
            CARELESS_ACKS + "test_p2_an_ack_over_several_segments_raises_what_the_last_of_them_was_refused_with[True]",
        ),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="ack-hears-one-segment",
        rule="an ack of messages of several segments raises what any was refused with",
        section="§6",
        file="txnclient/consuming/received/by_segment.py",
        old=("    for answer in answers:\n        answer.result()"),
        new=("    for answer in answers[:1]:\n        answer.result()"),
        tests=(
            CARELESS_ACKS + "test_p2_an_ack_over_several_segments_raises_what_the_last_of_them_was_refused_with[False]",
        ),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="plain-ack-forgives-what-follows",
        rule="a plain cumulative ack says nothing of what was lost behind it (P2)",
        section="§6",
        file="txnclient/consuming/consumer_impl.py",
        old="                self._order.forget_lost(place)",
        new="                self._order.forget_lost()",
        tests=(CARELESS_ACKS + "test_p2_a_plain_cumulative_ack_says_nothing_of_what_was_lost_behind_it",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="rewind-forgives-nothing",
        rule="behind a rewind that was asked for nothing counts as lost (P2)",
        section="§6",
        file="txnclient/consuming/consumer_impl.py",
        old=(
            "        self._session.expect_here()\n"
            "        for feed in self._feeds.values():\n"
            "            feed.start_over()\n"
            "        self._order.forget_lost()"
        ),
        new=(
            "        self._session.expect_here()\n"
            "        for feed in self._feeds.values():\n"
            "            feed.start_over()"
        ),
        tests=(CARELESS_ACKS + "test_p2_a_rewind_that_was_asked_for_makes_good_what_had_left_before",),
        why_tests="a conflict is no finding",
    ),
    Mutant(
        name="place-of-another-consumer",
        rule="a message of another consumer has no place among what this one was handed out (P2)",
        section="§6",
        file="txnclient/consuming/consumer_impl.py",
        old=(
            "        by_us = isinstance(holder, Inbox) and holder.delivered is not None and "
            "holder.delivered.order is self._order"
        ),
        new="        by_us = isinstance(holder, Inbox) and holder.delivered is not None",
        tests=(
            CARELESS_ACKS + "test_p2_a_message_of_another_consumer_has_no_place_among_what_this_one_was_handed_out",
        ),
        why_tests="its consumers ack what they have received themselves",
    ),
    Mutant(
        name="acked-before-it-came-again",
        rule="an ack that is answered behind a rewind says nothing of what has come again (P2)",
        section="§6",
        file="txnclient/consuming/feeds/acks.py",
        old=(
            "            if batch.epoch == self._inbox.epoch:  # after a rewind the messages are delivered and acked "
            "again\n                self._inbox.acked"
        ),
        new=("            if True:\n                self._inbox.acked"),
        tests=(CARELESS_ACKS + "test_p2_an_ack_that_is_answered_behind_a_rewind_says_nothing_of_what_has_come_again",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="ack-that-gathers-outlives-its-abort",
        rule="an ack that has not left as its transaction aborts is told, and holds nobody up (C1)",
        section="§6",
        file="txnclient/consuming/feeds/acks.py",
        old="        for batch in [gathering, *waiting] if gathering is not None else waiting:",
        new="        for batch in waiting:",
        tests=(
            CARELESS_ACKS + "test_c1_an_ack_that_has_not_left_as_its_transaction_aborts_is_told_and_holds_nobody_up",
        ),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="one-segment-hears-of-an-abort",
        rule="all segments that a transaction has acked in are delivered again by its abort (C1)",
        section="§6",
        file="txnclient/transactions/transaction_impl.py",
        old=("        for participant in participants:\n            participant.ended(self, happened, revision)"),
        new=(
            "        for participant in list(participants)[:1]:\n"
            "            participant.ended(self, happened, revision)"
        ),
        tests=(
            CARELESS_ACKS + "test_c1_all_segments_that_a_transaction_has_acked_in_are_delivered_again_by_its_abort",
        ),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="lost-connection-beside-other-transactions",
        rule="a named transaction has all come again behind a lost connection, whatever is pending besides (A5)",
        section="§10",
        file="txnclient/consuming/feeds/acks.py",
        old="return any(txn.name is not None for txn in self._took_part)",
        new="return all(txn.name is not None for txn in self._took_part) and bool(self._took_part)",
        tests=(
            CARELESS_ACKS
            + "test_a5_behind_a_lost_connection_all_comes_again_though_acks_of_other_transactions_are_pending_too",
        ),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="foreign-message-behind-our-own",
        rule="what was received elsewhere is not acked, wherever it stands among others",
        section="§6",
        file="txnclient/consuming/feeds/acks.py",
        old="            if (refused := self._not_received(entry, bits)) is not None:\n",
        new="            if entry is messages[0].entry and (refused := self._not_received(entry, bits)) is not None:\n",
        tests=(CARELESS_ACKS + "test_what_was_received_elsewhere_is_not_acked_wherever_it_stands_among_others",),
        why_tests="its consumers ack what they have received themselves",
    ),
    Mutant(
        name="one-grant-for-a-large-prefetch",
        rule="a prefetch of more messages than one grant takes is granted whole (C9)",
        section="§8",
        file="txnclient/consuming/feeds/feed.py",
        old="        while link is not None and permits > 0:",
        new="        if link is not None and permits > 0:",
        tests=(CARELESS_ACKS + "test_c9_a_prefetch_of_more_messages_than_one_grant_takes_is_granted_whole",),
        why_tests="its consumers prefetch little",
    ),
    Mutant(
        name="begun-with-the-abort-is-later",
        rule="what an abort brings back is lost to a transaction that began as it did (P2)",
        section="§6",
        file="txnclient/consuming/received/delivered.py",
        old="place < before and begun_s <= at_s]",
        new="place < before and begun_s < at_s]",
        tests=(DELIVERED + "test_p2_what_an_abort_brings_back_is_lost_to_a_transaction_that_began_as_it_did",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="latest-loss-forgotten",
        rule="of very many segments that have left the latest are remembered (P2)",
        section="§6",
        file="txnclient/consuming/received/delivered.py",
        old="            del self._lost[next(iter(self._lost))]",
        new="            self._lost.popitem()",
        tests=(DELIVERED + "test_p2_of_very_many_segments_that_have_left_the_latest_are_remembered",),
        why_tests="its topics have few segments",
    ),
    Mutant(
        name="later-abort-hides-an-earlier-one",
        rule="what aborts have brought back twice is lost from its first message on (P2)",
        section="§6",
        file="txnclient/consuming/received/delivered.py",
        old="self._given_back[segment] = min(places), now_s",
        new="self._given_back[segment] = max(places), now_s",
        tests=(DELIVERED + "test_p2_what_aborts_have_brought_back_twice_is_lost_from_its_first_message_on",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="runs-of-acked-messages-kept",
        rule="what is acked behind something that is not takes no memory (P2)",
        section="§6",
        file="txnclient/consuming/received/delivered.py",
        old="                if _names(self._unacked, run):\n                    self._runs.append(run)",
        new="                self._runs.append(run)",
        tests=(DELIVERED + "test_p2_what_is_acked_behind_something_that_is_not_takes_no_memory",),
        why_tests="its judges measure servers",
    ),
    Mutant(
        name="run-forgets-what-was-further",
        rule="a cumulative ack covers what its segment had handed out further on before (P2)",
        section="§6",
        file="txnclient/consuming/received/delivered.py",
        old="            self._further[run.place] = run.up_to\n",
        new="            pass\n",
        tests=(DELIVERED + "test_p2_what_comes_again_after_a_failed_ack_hides_nothing_behind_it",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="further-outlives-its-run",
        rule="what is acked takes no memory (P2)",
        section="§6",
        file="txnclient/consuming/received/delivered.py",
        old="            self._further.pop(place, None)\n",
        new="            pass\n",
        tests=(DELIVERED + "test_p2_what_came_again_and_is_acked_takes_no_memory",),
        why_tests="its judges measure servers",
    ),
    Mutant(
        name="first-of-many-values-looked-at",
        rule="each of many values is refused that is too large (C9)",
        section="§8",
        file="txnclient/producing/bulk.py",
        old="        if max(lengths) > MAX_VALUE_BYTES:",
        new="        if lengths[0] > MAX_VALUE_BYTES:",
        tests=(BOUNDS_OF_BULK_SENDS + "test_c9_of_many_values_each_is_looked_at_the_last_one_too",),
        why_tests="its messages are small",
    ),
    Mutant(
        name="largest-of-many-values-refused",
        rule="the largest value may be sent among many (C9)",
        section="§8",
        file="txnclient/producing/bulk.py",
        old="        if max(lengths) > MAX_VALUE_BYTES:",
        new="        if max(lengths) >= MAX_VALUE_BYTES:",
        tests=(BOUNDS_OF_BULK_SENDS + "test_c9_of_many_values_each_is_looked_at_the_last_one_too",),
        why_tests="its messages are small",
    ),
    Mutant(
        name="columns-of-other-lengths",
        rule="each column is as long as that of the values (C9)",
        section="§8",
        file="txnclient/producing/bulk.py",
        old=("    for column in columns:\n        if column is not None and not isinstance"),
        new=("    for column in columns[:2]:\n        if column is not None and not isinstance"),
        tests=(BOUNDS_OF_BULK_SENDS + "test_c9_each_column_is_as_long_as_that_of_the_values",),
        why_tests="its callers give what is right",
    ),
    Mutant(
        name="outermost-times-refused",
        rule="the outermost event times are taken (C9)",
        section="§8",
        file="txnclient/producing/outgoing.py",
        old="if not -_LARGEST_TIME_MS <= time_ms <= _LARGEST_TIME_MS:",
        new="if not -_LARGEST_TIME_MS < time_ms < _LARGEST_TIME_MS:",
        tests=(BOUNDS_OF_BULK_SENDS + "test_c9_the_outermost_times_are_taken",),
        why_tests="its event times are of these days",
    ),
    Mutant(
        name="last-of-too-many-failures",
        rule="of more failures than are kept the first is told (C4)",
        section="§6",
        file="txnclient/producing/untold.py",
        old="if txn is None and self._beyond is None:",
        new="if txn is None:",
        tests=(BOUNDS_OF_BULK_SENDS + "test_c4_of_more_failures_than_are_kept_the_first_is_told_and_told_once",),
        why_tests="it does not lose so many",
    ),
    Mutant(
        name="too-many-failures-told-twice",
        rule="failures beyond those that are kept are told once (C4)",
        section="§6",
        file="txnclient/producing/untold.py",
        old=("        self._failed.clear()\n        self._beyond = None"),
        new="        self._failed.clear()",
        tests=(BOUNDS_OF_BULK_SENDS + "test_c4_of_more_failures_than_are_kept_the_first_is_told_and_told_once",),
        why_tests="it does not lose so many",
    ),
    Mutant(
        name="endless-grants",
        rule="what one grants of a prefetch without bounds ends within a turn of the loop (C6)",
        section="§8",
        file="txnclient/consuming/feeds/inbox.py",
        old="        return max(1, min(self._window, in_bytes, LARGEST_WINDOW))\n",
        new="        return max(1, min(self._window, in_bytes))\n",
        tests=(
            "tests/txnclient/consuming/feeds/test_inbox.py::"
            "test_c6_the_largest_bounds_that_there_are_ask_for_what_can_be_granted_in_one_turn",
        ),
        why_tests="its consumers prefetch little",
    ),
)
