"""Make clients, Spark and operators lose something, or wait for it, without an error (DESIGN §6 to §11)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

ANNOUNCING = "tests/txnclient/transactions/test_announcing.py::"
CONSUMER_ACKS = "tests/txnclient/consuming/feeds/test_consumer_acks.py::"
WAITING_FOR_ROOM = "tests/txnclient/producing/test_waiting_for_room.py::"

CLIENT = "tests/txnclient/"
LATE = "one seed in some hundreds makes a client hear so late"
UNTRIED = "the test was made for it, no seed was looked for"
NO_SPARK = "the simulation has no Spark"
NO_OPERATOR = "a simulated operator neither repairs nor lists keys"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="whole-values-keep-their-room",
        rule="large values that are whole or given up take no room from those that come (A7)",
        section="§11",
        file="txnclient/consuming/received/pieces.py",
        old="        self._bytes -= value.bytes\n",
        new="",
        tests=(
            f"{CLIENT}consuming/received/test_pieces.py::test_values_that_are_whole_or_given_up_leave_their_room_to_those_that_come",
        ),
        why_tests="no simulated history has 512 MiB of large values in one segment",
    ),
    Mutant(
        name="only-parents-are-ancestors",
        rule="a reader that starts at a message leaves out all that its segment came from, over any number of changes",
        section="§11",
        file="txnclient/reading/reader_impl.py",
        old="            frontier.extend(layout.segments[reached].parents)\n",
        new="",
        tests=(
            f"{CLIENT}reading/test_reader_layouts.py::"
            "test_a_message_id_leaves_out_what_its_segment_came_from_over_several_changes",
        ),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="refused-messages-not-counted",
        rule="what a queue's handler refuses counts among the messages that were asked for",
        section="§11",
        file="txnclient/processing.py",
        old="limits.max_messages - self._messages - self._nacked - pending",
        new="limits.max_messages - self._messages - pending",
        tests=(f"{CLIENT}test_processing.py::test_what_a_queue_s_handler_refuses_counts_among_the_messages_asked_for",),
        why_tests="it has no loop of `process`",
    ),
    Mutant(
        name="a-glance-tells-of-a-loss",
        rule="who did not wait for a send to fail has not been told of it (C4)",
        section="§11",
        file="txnclient/sync/bridge.py",
        old=("        error = super().exception(0)\n        self.looked.yes = True\n        return error\n"),
        new="        self.looked.yes = True\n        return super().exception(0)\n",
        tests=(
            f"{CLIENT}sync/test_sync_sends.py::test_c4_who_did_not_wait_for_a_send_to_fail_has_not_been_told_of_it",
        ),
        why_tests="it has no threads",
    ),
    Mutant(
        name="a-later-loss-hides-an-earlier-one",
        rule="no transaction acks cumulatively over what was lost first, when more of its segment is lost later (P2)",
        section="§6",
        file="txnclient/consuming/received/delivered.py",
        old="        self._lost[segment] = min(place, self._lost.get(segment, place))\n",
        new="        self._lost[segment] = place\n",
        tests=(
            f"{CLIENT}consuming/received/test_delivered.py::test_p2_what_is_lost_again_does_not_hide_what_was_lost_before",
        ),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="acks-that-have-not-left-hang",
        rule="closing a consumer fails acks that have not left yet, too",
        section="§11",
        file="txnclient/consuming/feeds/acks.py",
        old="        for batch in [*gathered.values(), *self._unanswered]:\n",
        new="        for batch in list(self._unanswered):\n",
        tests=(CONSUMER_ACKS + "test_closing_fails_acks_that_have_not_left_yet",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="begun-over-a-lost-connection",
        rule="a transaction whose begin was the last answer of its connection is announced to its coordinator",
        section="§9",
        file="txnclient/transactions/coordinators.py",
        old="        if link.closed:\n            self._woken.set()\n",
        new="",
        tests=(ANNOUNCING + "test_a_transaction_whose_begin_was_the_last_answer_of_its_connection_is_announced",),
        why_tests="the abort of an open transaction is no finding by itself",
    ),
    Mutant(
        name="flush-silent-of-who-waited-in-vain",
        rule="a flush raises what has waited for room in vain, also where all else is stored",
        section="§11",
        file="txnclient/producing/producer_impl.py",
        old="[ask.failure for ask in asks] + [batch.failure for batch in batches]",
        new="[batch.failure for batch in batches]",
        tests=(WAITING_FOR_ROOM + "test_a_flush_raises_what_has_waited_for_room_in_vain_where_all_else_is_stored",),
        why_tests="whoever sends there hears of its own send",
    ),
    Mutant(
        name="a-joining-topic-must-be-whole",
        rule="a topic that joins a stream is read as far as it is kept",
        section="§10",
        file="pyspark_txnstore/source/stream.py",
        old='trimmed = None if start is not None and part.topic in start.topics else "skip"',
        new='trimmed = None if start is not None else "skip"',
        tests=("tests/spark/source/test_source_topics.py::test_a_topic_that_joins_is_read_as_far_as_it_is_kept",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="batches-sorted-as-text",
        rule="of the batches in a checkpoint the newest is the one of the highest number",
        section="§10",
        file="pyspark_txnstore/checkpoint.py",
        old="    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))\n",
        new="    return [int(name) for name in sorted(names) if _NUMBER.fullmatch(name)]\n",
        tests=("tests/spark/test_checkpoint.py::test_the_last_batch_runs_again_unless_it_is_done",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="failed-producer-kept",
        rule="a producer that has failed fails no later task of its process (X1)",
        section="§10",
        file="pyspark_txnstore/sink/attempt.py",
        old="            drop_producers(self._options)\n",
        new="",
        tests=(
            "tests/spark/sink/test_sink_runs.py::test_x1_a_producer_that_has_failed_fails_no_later_task_of_its_process",
        ),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="first-lost-entry-stays-acked",
        rule="after a repair no cursor names an entry that is lost, the first of them included (C12)",
        section="§6",
        file="txnctl/checking/missing.py",
        old="if one[0] < length]",
        new="if one[0] <= length]",
        tests=(
            "tests/txnctl/checking/test_older_folder.py::"
            "test_c12_a_repair_shortens_the_pages_of_a_cursor_and_its_blocks_each_for_itself",
        ),
        why_tests=NO_OPERATOR,
    ),
    Mutant(
        name="later-keys-idle-while-one-is-silent",
        rule="while a coordinator is silent no key is told to be idle, however many requests the list takes (K7)",
        section="§9",
        file="txnctl/admin/admin_keys.py",
        old="bool(answers) and not unanswered",
        new="bool(answers) and len(answers) == len(asked)",
        tests=(
            "tests/test_transaction_keys.py::"
            "test_k7_of_keys_in_several_requests_none_is_idle_while_a_coordinator_is_silent",
        ),
        why_tests=NO_OPERATOR,
    ),
    Mutant(
        name="late-news-of-a-former-topic-believed",
        rule="a consumer of the next topic of a name goes on when its client hears of the former one's deletion late",
        section="§8",
        file="txnclient/consuming/feeds/feed.py",
        old="(directory.known_layout(topic) is not None or heard_late)",
        new="directory.known_layout(topic) is not None",
        tests=(
            f"{CLIENT}test_deleted_topics.py::"
            "test_a_consumer_of_the_next_topic_goes_on_when_the_end_of_the_former_one_is_heard_behind_its_join",
        ),
        why_tests=LATE,
    ),
    Mutant(
        name="own-deletion-taken-for-a-former-one",
        rule="a consumer is told that its own topic was deleted",
        section="§8",
        file="txnclient/consuming/feeds/feed.py",
        old="0 < directory.absent_through(topic) < self._life()",
        new="0 < directory.absent_through(topic) <= self._life()",
        tests=(f"{CLIENT}test_deleted_topics.py::test_a_consumer_is_told_that_its_own_topic_was_deleted",),
        why_tests=LATE,
    ),
)
