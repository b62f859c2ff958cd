"""Break the rules for permits, room, pins and deadlines that one caller leaves to the next, and for where a reader
begins or ends (DESIGN §4, §6, §8, §10)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

WAITING_FOR_ROOM = "tests/txnclient/producing/test_waiting_for_room.py::"

INBOX = "tests/txnclient/consuming/feeds/test_inbox.py::"
OFFSETS = "tests/spark/shared/test_offsets.py::"
NO_SEEDS = "not looked for with seeds: nothing wrong is read, somebody waits or lacks something"
NO_SPARK = "the simulation has no Spark"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="others-pins-ignored",
        rule="compaction spares the oldest pin of any process, also where its own process pins a newer revision (E7)",
        section="§4",
        file="txnstore/maintenance.py",
        old="        return min(pins if own is None else [*pins, own], default=None)",
        new="        return min(pins if own is None else [own], default=None)",
        tests=(
            "tests/txnstore/access/test_space.py::"
            "test_an_older_pin_of_another_process_is_spared_by_one_that_pins_a_newer_revision_itself",
        ),
        why_tests=NO_SEEDS,
    ),
    Mutant(
        name="watch-close-leaks-left",
        rule="a watch stream that is closed is forgotten by its endpoint",
        section="§4",
        file="txnstore/etcd/watch.py",
        old="        self._endpoint.left.pop(self.leave, None)\n",
        new="",
        tests=(
            "tests/txnstore/etcd/test_silent_etcd.py::"
            "test_watches_that_were_closed_are_forgotten_and_one_that_stays_still_leaves",
        ),
        why_tests="the simulation has an etcd in memory",
    ),
    Mutant(
        name="ownerless-acks-without-deadline",
        rule="an ack that is made while its segment has no owner ends by its timeout",
        section="§8",
        file="txnclient/consuming/feeds/acks.py",
        old="            self._retry_later()  # sent when attached again; until then only its deadline is checked\n",
        new="",
        tests=(
            "tests/txnclient/consuming/test_careless_consumers.py::"
            "test_an_ack_ends_by_its_timeout_while_nobody_owns_the_segment[behind]",
        ),
        why_tests=NO_SEEDS,
    ),
    Mutant(
        name="held-copies-eat-permits",
        rule="copies of what the application holds give their permits back",
        section="§8",
        file="txnclient/consuming/feeds/inbox.py",
        old="            self._spent += held.bit_count()\n",
        new="",
        tests=(INBOX + "test_copies_of_what_is_held_give_their_permits_back",),
        why_tests=NO_SEEDS,
    ),
    Mutant(
        name="values-of-before-a-rewind-kept",
        rule="a large value that was handed out before a rewind is forgotten with all other holds",
        section="§8",
        file="txnclient/consuming/feeds/inbox.py",
        old="        self._counts.clear()\n        self._large.clear()\n",
        new="        self._counts.clear()\n",
        tests=(
            "tests/txnclient/consuming/received/test_pieces.py::"
            "test_a_value_that_was_handed_out_before_a_seek_into_its_midst_changes_no_cumulative_ack",
        ),
        why_tests=NO_SEEDS,
    ),
    Mutant(
        name="withdraw-wakes-nobody",
        rule="a send that its transaction's abort takes out of the line for room lets the next one in (C3)",
        section="§6",
        file="txnclient/producing/buffer.py",
        old="            self._give_up(ask)\n        self._give_soon()\n",
        new="            self._give_up(ask)\n",
        tests=(WAITING_FOR_ROOM + "test_c3_a_send_whose_transaction_aborts_while_it_waits_lets_the_next_one_in",),
        why_tests=NO_SEEDS,
    ),
    Mutant(
        name="dead-letters-settle-one",
        rule="all permits of a batch that went to the dead letters come back",
        section="§8",
        file="txnclient/consuming/feeds/dead_letters.py",
        old="holder.settled(len(messages))",
        new="holder.settled(1)",
        tests=("tests/txnclient/consuming/feeds/test_dead_letters.py::test_all_permits_of_a_dead_batch_come_back",),
        why_tests=NO_SEEDS,
    ),
    Mutant(
        name="refused-dead-letters-leave-producers",
        rule="moves to the dead letters that are refused for a while share a producer",
        section="§8",
        file="txnclient/consuming/feeds/dead_letters.py",
        old="        if not error.retriable and (producer",
        new="        if (producer",
        tests=(
            "tests/txnclient/consuming/feeds/test_dead_letters.py::"
            "test_moves_that_are_refused_for_a_while_share_a_producer",
        ),
        why_tests="few seeds fill a disk while hundreds of messages are dead",
    ),
    Mutant(
        name="held-not-inherited",
        rule="what an open transaction holds back in a segment holds back all that came of it (S7)",
        section="§8",
        file="txnclient/consuming/places/reader_ends.py",
        old="        if behind_held or reach.held:",
        new="        if reach.held:",
        tests=(
            "tests/txnclient/reading/test_reader_layouts.py::"
            "test_s7_what_a_root_holds_back_is_not_readable_in_its_grandchildren_either",
        ),
        why_tests="not looked for with seeds: it takes two splits over one open transaction as a reader opens",
    ),
    Mutant(
        name="drained-child-hides-ancestor",
        rule="a segment waits for all its ancestors, also behind a parent that is still marked as drained (S7)",
        section="§8",
        file="segments/layout/assignment.py",
        old="        if waits or not done:",
        new="        if not done:",
        tests=(
            "tests/segments/layout/test_assignment.py::"
            "test_a_segment_waits_for_an_ancestor_that_was_sought_back_into_behind_a_parent_that_is_drained",
        ),
        why_tests="not looked for with seeds: it takes a seek over two generations",
    ),
    Mutant(
        name="asked-split-pruned-hangs",
        rule="the driving of a change ends also where its parents are pruned before it looks again (S10)",
        section="§8",
        file="segments/controller/layout_changes.py",
        old="            if any(parent not in topology.segments for parent in change.parents):",
        new="            if not change.parents:",
        tests=(
            "tests/segments/controller/test_pruning.py::"
            "test_a_controller_that_hears_of_a_change_whose_parents_are_pruned_gives_it_up",
        ),
        why_tests=NO_SEEDS,
    ),
    Mutant(
        name="settle-past-the-end",
        rule="a start is settled no further than its own ends: what came behind them is still to be read (X2)",
        section="§10",
        file="pyspark_txnstore/shared/offsets.py",
        old="min(max(one.resolved, new.resolved), one.end)",
        new="max(one.resolved, new.resolved)",
        tests=(OFFSETS + "test_a_start_is_settled_no_further_than_its_own_ends",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="beginning-skips-only-entry",
        rule="a stream that starts at the earliest reads a segment's only entry",
        section="§10",
        file="pyspark_txnstore/shared/offsets.py",
        old="first[path] <= one.end else one.end",
        new="first[path] < one.end else one.end",
        tests=(OFFSETS + "test_the_beginning_is_before_the_only_entry_that_is_kept",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="former-commit-overlooked",
        rule="what an earlier version commits while its name is looked at is not written again (X1)",
        section="§10",
        file="pyspark_txnstore/sink/sink.py",
        old='name=former).abort() == "COMMITTED"',
        new='name=former).abort() == "never"',
        tests=(
            "tests/spark/sink/test_sink_runs.py::"
            "test_x1_what_an_earlier_version_commits_while_its_name_is_looked_at_is_not_written_again",
        ),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="falsy-flags-ignored",
        rule="a flag that says no or zero beats file and default like any other",
        section="§9",
        file="txnctl/process/settings.py",
        old="for name, value in flags.items() if value is not None}\n    try:",
        new="for name, value in flags.items() if value}\n    try:",
        tests=("tests/txnctl/process/test_settings.py::test_a_flag_that_says_no_or_zero_beats_the_file_too",),
        why_tests="the simulation reads no settings",
    ),
    Mutant(
        name="writers-that-are-no-list",
        rule="a list of writers that is none is refused in words",
        section="§11",
        file="txnclient/transactions/commit_request.py",
        old="    if not isinstance(writers, Iterable):\n",
        new="    if not writers:\n",
        tests=("tests/txnclient/test_wrong_arguments.py::test_wrong_arguments_are_refused_in_words_that_name_them",),
        why_tests="simulated clients give arguments that are right",
    ),
    Mutant(
        name="more-segments-than-a-number-holds",
        rule="a number of segments that no request can carry is refused in words",
        section="§11",
        file="txnclient/connection/topic_changes.py",
        old="    if segments > HASH_SPACE:\n",
        new="    if segments > 1 << 64:\n",
        tests=("tests/txnclient/test_wrong_arguments.py::test_wrong_arguments_are_refused_in_words_that_name_them",),
        why_tests="simulated clients give arguments that are right",
    ),
    Mutant(
        name="numbers-as-text",
        rule="an option of a producer that is text instead of a number is refused in words",
        section="§11",
        file="txnclient/producing/producer_impl.py",
        old="        if not isinstance(value, int | float):\n",
        new="        if value is None:\n",
        tests=("tests/txnclient/test_wrong_arguments.py::test_wrong_arguments_are_refused_in_words_that_name_them",),
        why_tests="simulated clients give arguments that are right",
    ),
    Mutant(
        name="client-name-that-is-no-text",
        rule="a client name that no frame can carry is refused at connect",
        section="§11",
        file="txnclient/client.py",
        old="parse_url(url), validate_client_name(client_name)",
        new="parse_url(url), client_name",
        tests=(
            "tests/txnclient/test_wrong_arguments.py::test_a_client_name_that_cannot_be_sent_is_refused_before_connecting",
        ),
        why_tests="simulated clients give arguments that are right",
    ),
)
