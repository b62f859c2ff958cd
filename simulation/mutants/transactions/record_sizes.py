"""Break the bounds on the size of stored records, and the rules for numbers of commands (DESIGN §4, §6, §11)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

LARGE = "the simulation's batches are small: records near the store's limit would take it too long"
CALLERS = "the simulation's clients send no number that a client of ours would not send"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="cursor-commit-bounded-by-number-alone",
        rule="cursor records go into commits bounded by bytes as well as by number",
        section="§6",
        file="watchers/clean_up_plans.py",
        old="        if count and (count == _ROOM or size > _ROOM_BYTES):",
        new="        if count and count == _ROOM:",
        tests=(
            "tests/watchers/test_clean_up_plans.py::"
            "test_a_cursor_of_many_large_entries_acked_in_part_is_stored_in_commits_that_the_store_takes",
        ),
        why_tests=LARGE,
    ),
    Mutant(
        name="record-of-parts-unbounded",
        rule="no record of a cursor outgrows what the store takes",
        section="§6",
        file="segments/subscription/cursors/partial_acks.py",
        old="            if record.bytes + size <= self._record_bytes:",
        new="            if record.bytes + size > 0:",
        tests=(
            "tests/segments/subscription/cursors/test_cursor.py::test_what_a_block_has_no_room_for_goes_to_pages_and_comes_back",
        ),
        why_tests=LARGE,
    ),
    Mutant(
        name="page-written-before-its-block",
        rule="what a page is written without stands in its block before",
        section="§6",
        file="segments/subscription/cursors/cursor.py",
        old="key=lambda one: (not one.moved, not isinstance(one, _Block))",
        new="key=lambda one: (not one.moved, isinstance(one, _Block))",
        tests=(
            "tests/segments/subscription/cursors/test_cursor.py::test_a_whole_ack_is_stored_before_the_page_without_its_part",
        ),
        why_tests=LARGE,
    ),
    Mutant(
        name="ops-deleted-within-a-round",
        rule="an ack op goes only with, or after, all the cursor records that hold its ack",
        section="§6",
        file="watchers/clean_up_plans.py",
        old="        room = (_ROOM - len(blocks)) // 2 if len(blocks) == len(left) else 0",
        new="        room = (_ROOM - len(blocks)) // 2",
        tests=("tests/watchers/test_clean_up_plans.py",),
        why_tests=LARGE,
    ),
    Mutant(
        name="ops-wait-for-a-clean-cursor",
        rule="ops go once what they acked is stored, though others go on acking",
        section="§6",
        file="watchers/clean_up_plans.py",
        old="        if len(_that_fit(left)) < len(left):",
        new="        if len(_that_fit(left)) < 0:",
        tests=(
            "tests/watchers/test_clean_up_plans.py::"
            "test_ops_go_once_what_they_acked_is_stored_though_others_go_on_acking",
        ),
        why_tests=LARGE,
    ),
    Mutant(
        name="round-goes-on-behind-a-seek",
        rule="what was to be written before a seek is not written after it",
        section="§6",
        file="watchers/clean_up_plans.py",
        old="        if not self._round.over and self._round.seeks == self._cursor.seeks:",
        new="        if not self._round.over:",
        tests=(
            "tests/watchers/test_clean_up_plans.py::test_what_was_to_be_written_before_a_seek_is_not_written_after_it",
        ),
        why_tests=LARGE,
    ),
    Mutant(
        name="refused-clean-up-goes-unheard",
        rule="a clean-up that the store refuses ends the segment here at once",
        section="§6",
        file="watchers/clean_up.py",
        old="            self._lose(registered, error)\n            return False",
        new="            return False",
        tests=(
            "tests/watchers/test_clean_up.py::test_a_commit_that_is_refused_before_it_is_sent_ends_the_participant",
        ),
        why_tests="no commit of ours is refused so, as long as the rules for sizes hold",
    ),
    Mutant(
        name="queue-reads-past-the-room-for-parts",
        rule="a queue reads no further than its cursor has room for acks of parts of entries",
        section="§7",
        file="segments/subscription/queueing/queue.py",
        old="        if self._promised and not self._acks.has_room(position):",
        new="        if self._bounds.places < 0:",
        tests=(
            "tests/segments/subscription/queueing/test_queue.py::"
            "test_what_a_queue_gives_out_may_be_acked_message_by_message_however_much_of_it_is",
        ),
        why_tests=LARGE,
    ),
    Mutant(
        name="full-queue-reads-nothing",
        rule="a queue with nothing given out reads on, however full its cursor is",
        section="§7",
        file="segments/subscription/queueing/queue.py",
        old="        if self._promised and not self._acks.has_room(position):",
        new="        if not self._acks.has_room(position):",
        tests=(
            "tests/segments/subscription/queueing/test_queue.py::test_a_queue_that_begins_with_its_cursor_full_goes_on",
        ),
        why_tests=LARGE,
    ),
    Mutant(
        name="no-room-promised-for-parts",
        rule="what a consumer has it may ack message by message, whoever acks besides",
        section="§7",
        file="segments/subscription/queueing/queue.py",
        old="while others fill the cursor.\n                self._promise(position, messages)\n",
        new="while others fill the cursor.\n                pass\n",
        tests=("tests/segments/subscription/queueing/test_queue.py",),
        why_tests=LARGE,
    ),
    Mutant(
        name="commands-not-bounded",
        rule="numbers, counts and texts of a command are bounded before anything is computed from them",
        section="§11",
        file="txnwire/transport/serving.py",
        old="            check_bounds(str(name), command)  # ▲",
        new="            # ▲",
        tests=("tests/test_extreme_numbers.py",),
        why_tests=CALLERS,
    ),
    Mutant(
        name="ack-counts-not-bounded",
        rule="the number of messages that an ack claims for an entry is bounded before it is used",
        section="§11",
        file="watchers/acks.py",
        old="    if not 0 <= messages <= MAX_ENTRY_MESSAGES:",
        new="    if messages < 0:",
        tests=("tests/test_extreme_numbers.py", "tests/watchers/test_acks.py"),
        why_tests=CALLERS,
    ),
    Mutant(
        name="entry-numbers-not-bounded",
        rule="what an entry's metadata says is bounded before it is stored",
        section="§11",
        file="segments/broker/broker_service.py",
        old="    _check_numbers(metadata)\n",
        new="",
        tests=("tests/test_extreme_numbers.py",),
        why_tests=CALLERS,
    ),
    Mutant(
        name="ack-op-of-any-size",
        rule="an ack too large for its op record is refused before anything is reserved for it",
        section="§6",
        file="watchers/acks.py",
        old="    if size > MAX_OP_BYTES:",
        new="    if size < 0:",
        tests=("tests/test_record_sizes.py",),
        why_tests=LARGE,
    ),
    Mutant(
        name="changes-under-way-not-counted",
        rule="splits and merges under way count towards the segments that a topic may have",
        section="§8",
        file="segments/layout/layout_transitions.py",
        old="    if len(topology.segments) + to_come + 2 > most:",
        new="    if len(topology.segments) + 2 > most:",
        tests=("tests/test_record_sizes.py::test_changes_under_way_count_as_made",),
        why_tests="the simulation's topics have a few segments",
    ),
)
