"""Break the promises of a send to a careless caller (scenarios C1 to C4)."""

from __future__ import annotations

from simulation.mutants.mutant import Edit, Mutant

ENDS_OVER_WAITING_SENDS = "tests/txnclient/producing/test_ends_over_waiting_sends.py::"
LOST_SENDS = "tests/txnclient/producing/test_lost_sends.py::"
WAITING_FOR_ROOM = "tests/txnclient/producing/test_waiting_for_room.py::"

CAREFUL = "the smallest case of its own; what callers see of the like, the simulation shows (`careless_callers`)"
CARELESS = "tests/txnclient/producing/test_careless_sends.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="commits-a-part-of-a-bulk-send",
        rule="what ends a bulk send or a large value early leaves its transaction only able to abort (C1)",
        section="§6",
        file="txnclient/transactions/whole.py",
        old="            self._txn.failed(failure_in(self._txn, self._what, error))",
        new="            failure_in(self._txn, self._what, error)",
        tests=(CARELESS + "test_c1_a_bulk_send_that_runs_out_of_time_leaves_its_transaction_only_able_to_abort",),
        why_tests=CAREFUL,
    ),
    Mutant(
        name="commits-past-a-bulk-send",
        rule="a bulk send or a large value is in its transaction from its first message to its last (C2)",
        section="§6",
        file="txnclient/transactions/whole.py",
        old="            self._under_way = True\n            self._txn.started(self)",
        new="            self._under_way = False",
        tests=(ENDS_OVER_WAITING_SENDS + "test_c2_a_commit_waits_for_a_bulk_send_between_two_parts",),
        why_tests=CAREFUL,
    ),
    Mutant(
        name="abort-waits-for-the-caller",
        rule="an abort waits for nothing that its caller has yet to give",
        section="§6",
        file="txnclient/transactions/whole.py",
        old='        """The transaction stops waiting for it: its caller may not have given the next message yet."""\n'
        "        self._finish()",
        new='        """The transaction stops waiting for it: its caller may not have given the next message yet."""',
        tests=(ENDS_OVER_WAITING_SENDS + "test_an_abort_does_not_wait_for_messages_that_their_sender_has_yet_to_give",),
        why_tests=CAREFUL,
    ),
    Mutant(
        name="abort-waits-out-an-overload",
        rule="an abort gives up what was under way as it began and would be sent again",
        section="§6",
        file="txnclient/transactions/transaction_impl.py",
        old=(
            "        # Resends are pointless now; the answers to the rest are on their way.\n"
            "        for participant in list(self._participants):\n"
        ),
        new="        for participant in []:\n",
        tests=(
            "tests/txnclient/transactions/test_transactions.py::"
            "test_an_abort_gives_up_what_an_overloaded_segment_refuses_meanwhile",
        ),
        why_tests="a history does not show how long an abort takes",
    ),
    Mutant(
        name="commits-without-a-failed-send",
        rule="a send that is cancelled or times out leaves its transaction only able to abort (C1)",
        section="§6",
        file="txnclient/producing/producer_impl.py",
        old='                txn.failed(failure_in(txn, "a send", error))',
        new='                failure_in(txn, "a send", error)',
        tests=(WAITING_FOR_ROOM + "test_c1_a_send_that_has_waited_too_long_leaves_its_transaction_only_able_to_abort",),
        why_tests=CAREFUL,
    ),
    Mutant(
        name="commits-a-cancelled-future",
        rule="a future that its sender cancels leaves its transaction only able to abort (C1)",
        section="§6",
        file="txnclient/producing/channels/batches.py",
        old='                self.txn.failed(cancelled_in(self.txn, "a send"))',
        new='                cancelled_in(self.txn, "a send")',
        tests=(CARELESS + "test_c1_a_send_that_is_cancelled_leaves_its_transaction_only_able_to_abort",),
        why_tests=CAREFUL,
    ),
    Mutant(
        name="commits-past-who-waits-for-room",
        rule="a send that waits for room belongs to its transaction (C2)",
        section="§6",
        file="txnclient/producing/buffer.py",
        old=(
            "        ask = Ask(place, txn, self._session.loop.create_future())\n"
            "        self._room.ask(ask, size)\n"
            "        if txn is not None:\n"
            "            txn.started(self)\n"
        ),
        new=("        ask = Ask(place, None, self._session.loop.create_future())\n        self._room.ask(ask, size)\n"),
        tests=(ENDS_OVER_WAITING_SENDS + "test_c2_a_commit_waits_for_sends_that_wait_for_the_room_of_others",),
        why_tests=CAREFUL,
    ),
    Mutant(
        name="abort-forgets-who-waits-for-room",
        rule="an abort ends the sends of its transaction that wait for room (C2)",
        section="§6",
        file="txnclient/producing/buffer.py",
        old="        for ask in list(self._asks.get(txn, ())):",
        new="        for ask in list(self._asks.get(None, ())):",
        tests=(ENDS_OVER_WAITING_SENDS + "test_c2_an_abort_ends_all_that_waits_for_room",),
        why_tests=CAREFUL,
    ),
    Mutant(
        name="small-sends-pass",
        rule="room is given in the order of asking, and to nobody past one who waits (C3)",
        section="§7",
        file="txnclient/producing/room.py",
        old="        return not self._waiting and self._fits(size)",
        new="        return self._fits(size)",
        tests=(WAITING_FOR_ROOM + "test_c3_sends_of_one_key_keep_their_order_whatever_their_sizes",),
        why_tests=CAREFUL,
    ),
    Mutant(
        name="nobody-is-next",
        rule="who is behind a send that gives up waiting gets its turn (C3)",
        section="§7",
        file="txnclient/producing/buffer.py",
        old="            self._give_up(ask)\n            self._give_soon()\n\n    def _give_up",
        new="            self._give_up(ask)\n\n    def _give_up",
        tests=(
            WAITING_FOR_ROOM + "test_c3_a_send_that_gives_up_waiting_lets_the_next_one_in",
            WAITING_FOR_ROOM + "test_c3_a_send_that_has_waited_too_long_lets_the_next_one_in",
        ),
        why_tests=CAREFUL,
    ),
    Mutant(
        name="a-flush-forgets-who-waits-for-room",
        rule="a flush waits for all that was sent before it, also for what waits for room",
        section="§7",
        file="txnclient/producing/producer_impl.py",
        old="        asks = await self._buffer.wait_placed(deadline)",
        new="        asks: Sequence[Ask] = ()",
        tests=(WAITING_FOR_ROOM + "test_a_flush_waits_for_what_waits_for_room",),
        why_tests=CAREFUL,
    ),
    Mutant(
        name="losses-untold",
        rule="a loss that nobody has been told of is raised by the next flush or close (C4)",
        section="§7",
        file="txnclient/producing/producer_impl.py",
        old="        if untold is not None:\n            raise untold",
        new="        if untold is not None:\n            return",
        tests=(
            LOST_SENDS + "test_c4_what_was_lost_before_is_raised_by_the_next_flush_or_close",
            "tests/txnclient/sync/test_sync_sends.py::test_c4_a_lost_send_that_no_thread_has_looked_at_is_raised_at_the_end",
        ),
        why_tests=CAREFUL,
    ),
    Mutant(
        name="a-client-keeps-losses-to-itself",
        rule="closing a client raises what its producers have lost and nobody was told of (C4)",
        section="§7",
        file="txnclient/client.py",
        old="            if failure is not None:\n                raise failure",
        new="            if failure is not None:\n                return",
        tests=(LOST_SENDS + "test_c4_closing_a_client_raises_what_its_producers_have_lost_and_closes_all_the_same",),
        why_tests=CAREFUL,
    ),
    Mutant(
        name="an-abort-cancels-who-waits",
        rule="what an abort withdraws fails, or a group of tasks would end without an error",
        section="§6",
        file="txnclient/producing/channels/batches.py",
        old=(
            "                future.set_exception(again(error))\n"
            "                future.exception()  # the caller that ended the transaction knows"
        ),
        new="                future.cancel()",
        tests=(LOST_SENDS + "test_a_task_group_whose_transaction_is_aborted_ends_with_an_error",),
        why_tests=CAREFUL,
    ),
    Mutant(
        name="withdrawn-is-stored",
        rule="the highest sequence id that is stored is not that of something withdrawn",
        section="§7",
        file="txnclient/producing/channels/channel.py",
        old="        self._settled(batch, None, stored=False)",
        new="        self._settled(batch, None, stored=True)",
        tests=(LOST_SENDS + "test_what_is_withdrawn_is_not_taken_for_stored",),
        why_tests="no client of the simulation gives its producers sequence ids of its own",
    ),
    Mutant(
        name="ids-keep-what-was-sent",
        rule="the ids of a bulk send keep nothing of its messages",
        section="§7",
        file="txnclient/producing/channels/batches.py",
        old='        self.entry = b""\n        self._columns = None\n',
        new="        self._places = self._places\n",
        tests=(CARELESS + "test_the_ids_of_a_bulk_send_do_not_keep_what_was_sent",),
        why_tests="it does not weigh its clients' memory",
    ),
    Mutant(
        name="errors-grow",
        rule="an error that is raised again and again does not grow",
        section="§7",
        file="txnwire/errors.py",
        old="    copy = type(error)(*error.args)\n    copy.__dict__.update(error.__dict__)",
        new="    return error\n    copy = type(error)(*error.args)\n    copy.__dict__.update(error.__dict__)",
        tests=(
            LOST_SENDS + "test_an_error_that_is_raised_again_and_again_does_not_grow",
            LOST_SENDS + "test_messages_that_fail_together_have_errors_of_their_own",
        ),
        why_tests="it does not weigh its clients' memory",
    ),
    Mutant(
        name="pulled-by-the-loop",
        rule="the synchronous face pulls messages in the thread of its caller",
        section="§7",
        file="txnclient/sync/producer.py",
        old="                        lambda: run_in_caller(lambda: next(parts, None)),",
        new="                        lambda: asyncio.sleep(0, next(parts, None)),",
        more=(
            Edit(
                "txnclient/sync/producer.py",
                "from collections.abc import Iterable,",
                "import asyncio\nfrom collections.abc import Iterable,",
            ),
        ),
        tests=(
            "tests/txnclient/sync/test_sync_sends.py::test_bulk_messages_are_pulled_in_the_caller_s_thread_also_from_a_reader",
        ),
        why_tests="the simulation has no threads",
    ),
    Mutant(
        name="stored-and-kept-while-it-would-linger",
        rule="a producer keeps nothing of what is stored, however long its batches may linger",
        section="§9",
        file="txnclient/producing/producer_impl.py",
        old="        self._lingering.over(batch)\n        batch.ended()\n",
        new="        batch.ended()\n",
        tests=(
            "tests/txnclient/producing/channels/test_lingering.py::"
            "test_stored_messages_are_not_kept_until_their_batches_would_have_been_due",
        ),
        why_tests="no judge looks at a client's memory",
    ),
)
