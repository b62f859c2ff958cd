"""Break the rules of lags, positions and pauses of subscriptions and readers (DESIGN §8)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

LAG = "tests/segments/subscription/test_lag.py::"
COUNTS = "tests/segments/log/ledgers/test_message_counts.py::"
POSITIONS = "tests/txnclient/consuming/places/test_positions.py::"
PATTERNS = "tests/txnclient/consuming/test_topic_pattern.py::"
PAUSES = "tests/txnclient/consuming/test_pauses.py::"
WRONG = "tests/txnclient/test_wrong_arguments.py::test_wrong_arguments_are_refused_in_words_that_name_them"
LAYOUTS = "tests/txnclient/reading/test_reader_layouts.py::"
FORMER = "tests/reads/test_snapshots.py::test_a_snapshot_of_a_topic_that_was_made_again_is_refused_at_once"
NOT_DELETED = "the few seeds that delete a topic have no reader of it just then"
NOT_WRONG = "no seed calls with wrong arguments"
NOT_ASKED = "not looked for with seeds, of which none asks for positions"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="unconfirmed-counted",
        rule="no entry counts for a lag before it is confirmed",
        section="§8",
        file="segments/log/ledgers/message_counts.py",
        old="        full = part.low == 0 and part.high == STEP\n",
        new="        full = part.low == 0\n",
        tests=(COUNTS + "test_what_is_not_confirmed_is_not_counted",),
        why_tests=NOT_ASKED,
    ),
    Mutant(
        name="failed-appends-counted",
        rule="an append that failed is not in the sums of its ledger",
        section="§8",
        file="segments/log/ledgers/message_counts.py",
        old="if length is None or block * STEP + STEP <= length\n",
        new="if length is None or block * STEP <= length\n",
        tests=(COUNTS + "test_a_block_that_failed_appends_had_filled_is_no_sum",),
        why_tests=NOT_ASKED,
    ),
    Mutant(
        name="unknown-lag-is-none",
        rule="a lag that is not known is never told as 0",
        section="§8",
        file="txnctl/admin/admin_lags.py",
        old="        return dict.fromkeys(LAG_FIELDS)\n",
        new="        return dict.fromkeys(LAG_FIELDS, 0)\n",
        tests=("tests/txnclient/consuming/places/test_lag.py::test_a_segment_without_an_owner_is_not_known",),
        why_tests=NOT_ASKED,
    ),
    Mutant(
        name="positions-of-another-life",
        rule="positions of a deleted topic of the name are refused before anything moves",
        section="§8",
        file="txnclient/consuming/places/positions.py",
        old="            _check_life(found, layout)\n",
        new="            pass\n",
        tests=(POSITIONS + "test_positions_of_a_topic_that_was_deleted_and_made_again_are_refused",),
        why_tests=NOT_ASKED,
    ),
    Mutant(
        name="positions-in-an-older-layout",
        rule="positions are read against a layout no older than theirs",
        section="§8",
        file="txnclient/consuming/places/positions.py",
        old="if layout.is_another(found.life) or layout.epoch >= found.epoch:",
        new="if layout.is_another(found.life) or layout.epoch >= 0:",
        tests=(POSITIONS + "test_positions_wait_for_a_layout_as_new_as_theirs",),
        why_tests=NOT_ASKED,
    ),
    Mutant(
        name="positions-in-part",
        rule="positions of a subscription are told of all its segments or not at all",
        section="§8",
        file="txnctl/admin/admin.py",
        old="        if silent:\n            # One",
        new="        if silent and answers == silent:\n            # One",
        tests=("tests/txnctl/admin/test_admin.py::test_positions_are_told_of_all_segments_or_not_at_all",),
        why_tests=NOT_ASKED,
    ),
    Mutant(
        name="value-cut-by-a-position",
        rule="a reader's position lies before the first piece of every large value that it has in part",
        section="§8",
        file="txnclient/reading/standing.py",
        old="if found is not None and begun is not None and begun < found.position:",
        new="if found is not None and begun is not None and begun != begun:",
        tests=("tests/txnclient/reading/test_standing.py::test_a_value_that_has_come_in_part_is_before_the_position",),
        why_tests=NOT_ASKED,
    ),
    Mutant(
        name="resume-of-one-resumes-all",
        rule="to resume one segment leaves the others paused",
        section="§8",
        file="txnclient/consuming/pauses.py",
        old="            if paused != self._all:\n",
        new=(
            "            if not paused:\n"
            "                self._all, self._named = False, {}\n"
            "            elif not self._all:\n"
        ),
        tests=(PAUSES + "test_resuming_one_leaves_the_others_paused",),
        why_tests=NOT_ASKED,
    ),
    Mutant(
        name="dead-letters-match",
        rule="a pattern never matches where the subscription's dead letters go",
        section="§8",
        file="txnclient/consuming/consumer_impl.py",
        old='        return named or topic.endswith(f"-{self.subscription}-DLQ")\n',
        new="        return named\n",
        tests=(PATTERNS + "test_dead_letters_do_not_come_back",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="cancelled-join-by-pattern",
        rule="a consumer whose opening is cancelled leaves the topic that it was joining (C5)",
        section="§8",
        file="txnclient/consuming/assigned_feeds.py",
        old="        membership.leave_nowait()\n        if self._memberships.get(topic) is not membership:\n",
        new="        if self._memberships.get(topic) is not membership:\n",
        tests=(
            "tests/txnclient/test_cancelled_openings.py::"
            "test_c5_a_consumer_whose_opening_is_cancelled_is_no_member_of_its_subscription[by a pattern]",
        ),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="new-topic-at-the-latest",
        rule="a topic that appears later is read from its beginning",
        section="§8",
        file="txnclient/consuming/assigned_feeds.py",
        old='later and (start == "latest" or ',
        new='later and (start == "never" or ',
        tests=(PATTERNS + "test_a_topic_that_appears_is_read_from_its_beginning",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="full-store-ends-a-pattern",
        rule="a store without room for the subscription of a new topic does not end a pattern's consumer",
        section="§8",
        file="txnclient/consuming/topic_pattern.py",
        old="isinstance(error, (*TRANSIENT, StoreFull))",
        new="isinstance(error, TRANSIENT)",
        tests=(PATTERNS + "test_a_store_without_room_for_the_subscription_of_a_new_topic_ends_nothing",),
        why_tests="no seed has a consumer of a pattern and a store that is full",
    ),
    Mutant(
        name="closing-consumer-hands-out",
        rule="a consumer that closes hands out nothing more while it moves dead letters",
        section="§8",
        file="txnclient/consuming/feeds/receiver.py",
        old="        if source.paused or self._closed:\n",
        new="        if source.paused:\n",
        tests=(
            "tests/txnclient/consuming/feeds/test_dead_letters_at_the_end.py::"
            "test_a_consumer_that_closes_behind_a_move_hands_out_nothing_more",
        ),
        why_tests="no seed receives from a consumer that it closes",
    ),
    Mutant(
        name="fraction-of-a-prefetch",
        rule="a prefetch that is no whole number is refused at the opening",
        section="§11",
        file="txnclient/consuming/places/starts.py",
        old="    if not isinstance(value, SupportsIndex) or value.__index__() < least:\n",
        new="    if not isinstance(value, int | float) or value < least:\n",
        tests=(WRONG,),
        why_tests=NOT_WRONG,
    ),
    Mutant(
        name="times-beyond-the-wire",
        rule="a start by a time that no message can have is refused in words",
        section="§11",
        file="txnclient/consuming/places/starts.py",
        old=" and 0 < start <= MAX_TIME_MS:\n",
        new=" and 0 < start:\n",
        tests=(WRONG,),
        why_tests=NOT_WRONG,
    ),
    Mutant(
        name="positions-beyond-the-wire",
        rule="positions with numbers that no position has are refused where they are read",
        section="§8",
        file="txnclient/consuming/places/positions.py",
        old="type(number) is not int or not 0 <= number <= MAX_ID for",
        new="type(number) is not int or number < 0 for",
        tests=(POSITIONS + "test_they_are_kept_as_text",),
        why_tests=NOT_ASKED,
    ),
    Mutant(
        name="positions-of-an-early-time",
        rule="positions of a reader by time name a segment where nothing has come yet",
        section="§8",
        file="txnclient/reading/reader_impl.py",
        old="            if not named and None not in self._since.values():\n",
        new="            if not named and not self._range.start_on_wire.timestamp_ms:\n",
        tests=(
            "tests/txnclient/reading/test_reader_positions.py::"
            "test_they_name_something_where_all_that_was_there_at_the_opening_has_gone",
        ),
        why_tests=NOT_ASKED,
    ),
    Mutant(
        name="parents-of-a-late-child-left-out",
        rule="positions of a reader by time name a parent to be read whole where they name what came of it",
        section="§8",
        file="txnclient/reading/reader_impl.py",
        old="        if found is None and self._since.get(segment.path) == EARLIEST:\n",
        new="        if found is None and self._since.get(segment.path) == BEGINNING:\n",
        tests=(
            "tests/txnclient/reading/test_reader_positions.py::"
            "test_a_time_may_lie_behind_the_first_message_of_a_child_alone",
        ),
        why_tests=NOT_ASKED,
    ),
    Mutant(
        name="given-back-bit-by-bit",
        rule="giving back all messages of a large entry takes no longer than once through it",
        section="§8",
        file="txnclient/consuming/feeds/inbox.py",
        old="        for entry, bits in by_entry(messages):\n",
        new="        for entry, bits in ((one.entry, 1 << one.index) for one in messages):\n",
        tests=(
            "tests/txnclient/consuming/feeds/test_queue_inbox.py::test_many_messages_of_one_entry_are_given_back_together",
        ),
        why_tests="virtual time does not show it",
    ),
    Mutant(
        name="pieces-of-any-number",
        rule="pieces of a value that disagree about their number are told as damage",
        section="§11",
        file="txnclient/consuming/received/pieces.py",
        old="        elif not self._in_order and value.pieces != piece.pieces:\n",
        new="        elif value.pieces < 0:\n",
        tests=(
            "tests/txnclient/consuming/received/test_pieces.py::"
            "test_pieces_of_a_queue_that_disagree_about_their_number_are_damage",
        ),
        why_tests="its producers send what they should",
    ),
    Mutant(
        name="deleted-topic-looks-read",
        rule="a reader fails where its topic is deleted before all of it has begun",
        section="§10",
        file="txnclient/reading/reader_impl.py",
        old="            if layout is None or layout.is_another(self._lives.get(topic, 0)):\n",
        new="            if layout is not None and layout.is_another(self._lives.get(topic, 0)):\n",
        tests=(LAYOUTS + "test_a_topic_that_is_deleted_does_not_let_a_reader_end_before_its_end",),
        why_tests=NOT_DELETED,
    ),
    Mutant(
        name="reader-of-the-next-topic",
        rule="a reader goes on in no other topic of the name",
        section="§10",
        file="txnclient/reading/reader_impl.py",
        old="            if layout is None or layout.is_another(self._lives.get(topic, 0)):\n",
        new="            if layout is None:\n",
        tests=(LAYOUTS + "test_a_reader_goes_on_in_no_other_topic_of_the_name",),
        why_tests=NOT_DELETED,
    ),
    Mutant(
        name="deleted-range-looks-empty",
        rule="a range of whole entries is not empty because another topic of the name was made",
        section="§10",
        file="txnclient/reading/entries.py",
        old="        _check_life(self._session, self._bounds.segment, self._life)\n",
        new="        pass\n",
        tests=("tests/txnclient/reading/test_entries.py::test_a_range_of_a_deleted_topic_does_not_look_empty",),
        why_tests=NOT_DELETED,
    ),
    Mutant(
        name="unknown-copy-ends-a-worker",
        rule="a move to the dead letters whose copy nobody knows of fails alone",
        section="§8",
        file="txnclient/consuming/feeds/dead_letters.py",
        old="TopicNotFound, SubscriptionNotFound, OutcomeUnknown)\n",
        new="TopicNotFound, SubscriptionNotFound)\n",
        tests=(
            "tests/txnclient/consuming/feeds/test_dead_letters_at_the_end.py::"
            "test_a_copy_of_which_nobody_knows_fails_its_move_alone",
        ),
        why_tests="no seed empties a segment of dead letters while one is on its way there",
    ),
    Mutant(
        name="scan-of-a-deleted-topic-looks-done",
        rule="a scan does not end because another topic of the name was made",
        section="§10",
        file="txnclient/reading/entries.py",
        old="                _check_life(session, path, life)\n",
        new="                pass\n",
        tests=("tests/reads/test_read_entries.py::test_a_scan_of_a_deleted_topic_does_not_look_done",),
        why_tests=NOT_DELETED,
    ),
    Mutant(
        name="snapshot-of-a-former-topic-waits",
        rule="a reader of a snapshot of an earlier topic of the name is refused",
        section="§10",
        file="txnclient/reading/reader_impl.py",
        old="                    raise _lost(former)\n",
        new="                    await self._session.directory.wait_change(deadline.remaining())\n",
        tests=(FORMER,),
        why_tests=NOT_DELETED,
    ),
    Mutant(
        name="range-of-a-former-topic-waits",
        rule="a range of a segment of an earlier topic of the name is refused",
        section="§10",
        file="txnclient/reading/entries.py",
        old="if layout.has_lost(segment) or (layout.epoch",
        new="if (layout.epoch",
        tests=(FORMER,),
        why_tests=NOT_DELETED,
    ),
    Mutant(
        name="left-topic-holds-up-others",
        rule="a topic of a pattern that was left and cannot be looked up keeps no others waiting",
        section="§8",
        file="txnclient/consuming/topic_pattern.py",
        old="        except (TopicNotFound, *TRANSIENT) as unknown:\n",
        new="        except TopicNotFound as unknown:\n",
        tests=(PATTERNS + "test_a_topic_that_was_left_and_comes_again_keeps_no_other_waiting",),
        why_tests="no seed has a consumer of a pattern and a topic that cannot be looked up",
    ),
    Mutant(
        name="damaged-left-topic-ends-a-pattern",
        rule="a topic of a pattern that was left and is damaged does not end the consumer of others",
        section="§8",
        file="txnclient/consuming/topic_pattern.py",
        old="        except DataCorrupt as damage:\n            self._tell_damaged(damage)\n            return False\n",
        new="",
        tests=(PATTERNS + "test_a_topic_that_was_left_and_comes_again_keeps_no_other_waiting",),
        why_tests="no seed has a consumer of a pattern and a topic that cannot be looked up",
    ),
    Mutant(
        name="read-topic-fails-behind-its-end",
        rule="a reader that has handed out everything up to its end has ended, whatever becomes of its topic",
        section="§10",
        file="txnclient/reading/reader_impl.py",
        old="                if left or not self._range.bounded:\n",
        new="                if left is not None:\n",
        tests=(LAYOUTS + "test_a_reader_that_has_handed_out_everything_has_ended_also_where_its_topic_is_deleted",),
        why_tests=NOT_DELETED,
    ),
    Mutant(
        name="known-topic-waits-for-a-mute-one",
        rule="a topic of a pattern that comes again is joined, though another one cannot be looked up",
        section="§8",
        file="txnclient/connection/directory.py",
        old="            if layout is not None:\n                return layout\n            if deadline.passed:\n",
        new=(
            "            if layout is not None and not deadline.passed:\n                return layout\n"
            "            if deadline.passed:\n"
        ),
        tests=(PATTERNS + "test_a_topic_that_comes_again_is_joined_though_another_one_before_it_cannot_be_looked_up",),
        why_tests="no seed has a consumer of a pattern and a topic that cannot be looked up",
    ),
)
