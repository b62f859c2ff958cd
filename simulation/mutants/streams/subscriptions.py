"""Break the rules by which a segment's owner serves its subscriptions: take-overs, hand-overs, strange records."""

from __future__ import annotations

from simulation.mutants.mutant import Edit, Mutant

DEFECTS = "tests/segments/broker/test_broken_segments.py::"
QUEUE_DEFECTS = "tests/segments/subscription/queueing/test_queue_defects.py::"
HANDING_OVER = "tests/segments/owner/test_handing_over.py::"
QUEUE = "tests/segments/subscription/queueing/test_queue.py::"
STRANGE = "tests/segments/subscription/test_strange_records.py::"

FULL_CURSORS = "the simulation has no queue whose cursor is full"
NO_DEFECTS = "the simulation plants no defects"
STRANGE_RECORDS = "the simulation writes no record that cannot be read"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="next-owner-of-a-full-cursor-reads-on",
        rule="blocks in which the cursor has acks already count among those that a queue may read",
        section="§8",
        file="segments/subscription/queueing/queue.py",
        old="AckSpan(acks.blocks(), most=bounds.blocks)",
        new="AckSpan((), most=bounds.blocks)",
        tests=(f"{QUEUE}test_the_next_owner_reads_no_further_than_the_cursor_has_room_for_acks",),
        why_tests=FULL_CURSORS,
    ),
    Mutant(
        name="first-entry-waits-behind-a-full-cursor",
        rule="a queue may always give out the first unacked entry",
        section="§8",
        file="segments/subscription/queueing/ack_span.py",
        old="        return position == first\n",
        new="        return False\n",
        tests=(f"{QUEUE}test_the_next_owner_gives_out_the_first_entry_however_full_the_cursor_is",),
        why_tests=FULL_CURSORS,
    ),
    Mutant(
        name="last-acks-of-a-hand-over-not-written",
        rule="an ack that is answered during a hand-over in order is stored",
        section="§7",
        file="segments/owner/segment.py",
        old="                self.dispatcher.close(error)\n                await self._write_all(timeout_s)\n",
        new="                self.dispatcher.close(error)\n",
        tests=(f"{HANDING_OVER}test_an_ack_that_is_answered_during_a_hand_over_is_stored",),
        why_tests="an ack that is not stored comes again, which a crash may bring about as well",
    ),
    Mutant(
        name="unreadable-subscription-ends-its-segments",
        rule="a subscription's record that cannot be read stops neither the others nor the segment",
        section="§8",
        file="segments/subscription/definitions.py",
        old="                found[name] = None\n                continue\n",
        new="                raise\n",
        tests=(
            f"{STRANGE}test_a_strange_subscription_keeps_its_messages_and_its_segment",
            f"{STRANGE}test_the_lags_of_others_are_told_beside_a_strange_subscription",
        ),
        why_tests=STRANGE_RECORDS,
    ),
    Mutant(
        name="undecodable-subscription-ends-its-segments",
        rule="a key that has no name stops neither other subscriptions nor the segment",
        section="§8",
        file="segments/subscription/definitions.py",
        old='.decode(errors="backslashreplace")',
        new=".decode()",
        tests=(
            f"{STRANGE}test_a_strange_subscription_keeps_its_messages_and_its_segment",
            f"{STRANGE}test_the_lags_of_others_are_told_beside_a_strange_subscription",
        ),
        why_tests=STRANGE_RECORDS,
    ),
    Mutant(
        name="trimmed-past-an-unreadable-subscription",
        rule="nothing is trimmed past a subscription that cannot be read",
        section="§8",
        file="segments/subscription/subscription_table.py",
        old="                done = EARLIEST if definition is None else",
        new="                done = self._ledgers.last_confirmed if definition is None else",
        tests=(f"{STRANGE}test_a_strange_subscription_keeps_its_messages_and_its_segment",),
        why_tests=STRANGE_RECORDS,
    ),
    Mutant(
        name="broken-start-is-a-defect",
        rule="a start that cannot be read stops neither other subscriptions nor the segment",
        section="§8",
        file="segments/subscription/starts.py",
        old="        except (LookupError, TypeError, ValueError) as error:\n",
        new="        except InvalidArgument as error:\n",
        tests=(f"{STRANGE}test_the_lags_of_others_are_told_beside_a_strange_subscription",),
        why_tests=STRANGE_RECORDS,
    ),
    Mutant(
        name="broken-read-of-a-queue-repeated-for-ever",
        rule="a defect in a queue's read closes its consumers",
        section="§7",
        file="segments/subscription/queue_subscription.py",
        old='            self.close(InternalError(f"a read of {self._segment} ended: {error!r}"))\n',
        new="",
        tests=(f"{QUEUE_DEFECTS}test_a_read_that_ends_by_a_defect_closes_the_consumers",),
        why_tests=NO_DEFECTS,
    ),
    Mutant(
        name="queue-s-consumer-blocked-for-ever",
        rule="a defect in what a queue's consumer waits for closes it",
        section="§7",
        file="segments/subscription/queue_subscription.py",
        old='            self._give_up(consumer, InternalError(f"what was waited for ended: {error!r}"))\n',
        new="",
        tests=(f"{QUEUE_DEFECTS}test_a_wait_that_ends_by_a_defect_closes_its_consumer",),
        why_tests=NO_DEFECTS,
    ),
    Mutant(
        name="one-broken-hand-over-ends-all",
        rule="a defect in the hand-over of one segment leaves the others in order",
        section="§7",
        file="segments/broker/owned_segments.py",
        old='            defect("hand-over", segment.path, error)\n',
        new="            raise\n",
        tests=(f"{DEFECTS}test_a_defect_in_one_hand_over_leaves_the_others_in_order",),
        why_tests=NO_DEFECTS,
    ),
    Mutant(
        name="corrupt-segment-keeps-all-who-asked",
        rule="the kept error of a corrupt segment does not grow with each question",
        section="§7",
        file="segments/broker/holdings.py",
        old="            raise error.with_traceback(None)\n",
        new="            raise error\n",
        tests=(f"{DEFECTS}test_the_error_of_a_corrupt_segment_does_not_grow_with_each_question",),
        why_tests="the simulation does not measure memory",
    ),
    Mutant(
        name="start-asked-for-beside-a-mark",
        rule="a start is looked for only where no mark is stored",
        section="§8",
        file="segments/subscription/subscription_table.py",
        old="EARLIEST if has_mark else (await",
        new="EARLIEST if not stored else (await",
        tests=(f"{STRANGE}test_a_start_that_cannot_be_read_does_not_matter_once_a_position_is_stored",),
        why_tests=STRANGE_RECORDS,
    ),
    Mutant(
        name="sought-mark-before-rewritten-blocks",
        rule="a mark that a seek has moved back never stands beside older acks",
        section="§8",
        file="segments/subscription/cursors/cursor.py",
        old="return [*gone, *blocks, *mark] if self._rewound",
        new="return [*gone, *mark, *blocks] if self._rewound",
        tests=(
            "tests/segments/subscription/cursors/test_cursor_writes.py::test_a_sought_mark_never_stands_beside_older_acks",
        ),
        why_tests="the simulation has no cursor of so many blocks",
    ),
    Mutant(
        name="locks-of-all-names-ever-asked-for",
        rule="nothing is kept of a name that nobody asks for any more",
        section="§8",
        file="txnwire/named_locks.py",
        old="            if users > 1:\n",
        new="            if users > 0:\n",
        tests=(
            "tests/segments/subscription/test_named_locks.py::"
            "test_a_segment_keeps_nothing_of_subscriptions_that_there_are_not",
        ),
        why_tests="the simulation does not measure memory",
    ),
    Mutant(
        name="joins-of-missing-topics-leave-locks",
        rule="a controller keeps nothing of subscriptions that are gone or never were (P9)",
        section="§8",
        file="txnwire/named_locks.py",
        old="            if users > 1:\n",
        new="            if users > 0:\n",
        tests=(
            "tests/segments/controller/test_deletions.py::"
            "test_p9_a_controller_keeps_nothing_of_subscriptions_that_are_gone",
        ),
        why_tests="the simulation does not measure memory",
    ),
    Mutant(
        name="lock-forgotten-under-its-second-holder",
        rule="a task that comes while the second one has a lock by name waits for it",
        section="§8",
        file="txnwire/named_locks.py",
        old="            lock, users = self._locks.pop(name)\n            if users > 1:\n",
        new="            lock, users = self._locks.pop(name, (lock, 0))\n            if users > 2:\n",
        tests=(
            "tests/txnwire/test_named_locks.py::test_a_task_that_comes_while_the_second_one_has_a_lock_waits_for_it",
        ),
        why_tests="no seed was looked for: its test dies of these lines alone",
    ),
    Mutant(
        name="a-late-drop-reads-before-it-has-the-lock",
        rule="a drop that lands late leaves the next subscription of the name alone (P9)",
        section="§8",
        file="segments/subscription/subscription_table.py",
        old="            record = await self._store.get(key)\n            if record is not None and not",
        new="            if record is not None and not",
        more=(
            Edit(
                "segments/subscription/subscription_table.py",
                "        async with self._loading.held(name):\n            # ▲ Read",
                "        record = await self._store.get(key)\n"
                "        async with self._loading.held(name):\n            # ▲ Read",
            ),
        ),
        tests=(
            "tests/segments/subscription/test_named_locks.py::"
            "test_p9_a_drop_that_lands_late_leaves_the_next_subscription_of_the_name_alone",
        ),
        why_tests="no simulated controller is so late",
    ),
    Mutant(
        name="attachers-wait-for-each-other",
        rule="who waits for a seek waits for nobody else who does",
        section="§8",
        file="txnwire/named_locks.py",
        old="        return found is not None and found[0].locked()\n",
        new="        return found is not None\n",
        tests=("tests/segments/subscription/test_named_locks.py::test_all_who_wait_for_a_seek_attach_behind_it",),
        why_tests="no seed is known that shows it",
    ),
    Mutant(
        name="parts-of-a-large-entry-in-one-frame",
        rule="no delivery outgrows a frame, whatever the counts of an entry's messages",
        section="§7",
        file="segments/subscription/queue_subscription.py",
        old=(
            "            if consumer.batch_bytes >= self._dispatcher.shares.deliver_bytes:\n"
            "                self._flush(consumer)\n"
        ),
        new=(
            "        if consumer.batch_bytes >= self._dispatcher.shares.deliver_bytes:\n"
            "            self._flush(consumer)\n"
        ),
        tests=(
            "tests/segments/subscription/queueing/test_queue_acks.py::"
            "test_a_large_entry_whose_messages_came_back_unequally_often_fits_its_frames",
        ),
        why_tests="clients of this version share, and get an entry's bytes once",
    ),
    Mutant(
        name="first-block-waits-behind-a-full-cursor",
        rule="a cursor has room for the block of its first unacked entry besides",
        section="§8",
        file="segments/subscription/queueing/ack_span.py",
        old="if room > 0 or (room == 0 and block == lowest):",
        new="if room > 0:",
        tests=(f"{QUEUE}test_the_next_owner_gives_out_the_first_entry_however_full_the_cursor_is",),
        why_tests=FULL_CURSORS,
    ),
    Mutant(
        name="one-broken-lag-ends-the-round",
        rule="a defect in counting one segment's lag leaves those of the others told",
        section="§8",
        file="segments/owner/lag_samples.py",
        old='                defect("lag samples", segment.path, error)\n',
        new="                raise\n",
        tests=(f"{DEFECTS}test_a_defect_in_one_segment_s_lag_leaves_the_others_told",),
        why_tests=NO_DEFECTS,
    ),
    Mutant(
        name="start-read-beside-a-stored-mark",
        rule="the start of a subscription does not matter once its position is stored",
        section="§8",
        file="segments/subscription/subscription_table.py",
        old="has_mark = any(keys.cursor_parts(record.key)[2] == MARK for record in stored)",
        new="has_mark = any(keys.cursor_parts(record.key)[2] != MARK for record in stored)",
        tests=(f"{STRANGE}test_a_start_that_cannot_be_read_does_not_matter_once_a_position_is_stored",),
        why_tests=STRANGE_RECORDS,
    ),
)
