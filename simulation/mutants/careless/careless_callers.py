"""Mutants of what sends and transactions promise to careless callers (SCENARIOS C1 to C9)."""

from __future__ import annotations

from simulation.mutants.mutant import Edit, Mutant

CALM, WORK_S = "none", 30.0
"""Callers that are careless suffice, and a short time of them."""

CLIENT = "tests/txnclient/"
BEHIND = f"{CLIENT}sync/test_behind_the_last_client.py::"
CLOSED = f"{CLIENT}transactions/test_blocks_of_closed_clients.py::"
LARGE = f"{CLIENT}producing/test_large_values.py::"
NAMED = f"{CLIENT}transactions/test_named.py::"
NUMBERED = f"{CLIENT}producing/channels/test_numbered.py::"
SYNC_SENDS = f"{CLIENT}sync/test_sync_sends.py::"
TIMEOUTS = f"{CLIENT}test_call_timeouts.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="cut-bulk-commits",
        rule="a send of many that does not end with success leaves its transaction only able to abort (C1)",
        section="§6",
        file="txnclient/transactions/whole.py",
        old=(
            "        if error is not None:\n"
            "            self._txn.failed(failure_in(self._txn, self._what, error))\n"
            "        self._finish()"
        ),
        new="        self._finish()",
        faults=CALM,
        work_s=WORK_S,
    ),
    Mutant(
        name="cancelled-ack-counts",
        rule="a transaction in which an ack was cancelled can only abort (C1)",
        section="§6",
        file="txnclient/consuming/consumer_impl.py",
        old='                txn.failed(failure_in(txn, "an ack", error))',
        new="                pass",
        work_s=WORK_S,
    ),
    Mutant(
        name="room-out-of-order",
        rule="room in the buffer is given in the order of asking, to nobody past one who waits (C3)",
        section="§6",
        file="txnclient/producing/room.py",
        old="        return not self._waiting and self._fits(size)",
        new="        return self._fits(size)",
        faults=CALM,
        work_s=WORK_S,
    ),
    Mutant(
        name="silent-close",
        rule="what was lost and nobody has been told of is raised by the next close (C4)",
        section="§6",
        file="txnclient/producing/producer_impl.py",
        old=("        await asyncio.sleep(0)  # waiting callers get their failure first\n        self._tell()"),
        new="        await asyncio.sleep(0)  # waiting callers get their failure first\n",
        faults=CALM,
        work_s=WORK_S,
    ),
    Mutant(
        name="iterator-s-timeout-taken-for-ours",
        rule="what the caller's own iterator raises is raised, also a `TimeoutError` (C9)",
        section="§11",
        file="txnclient/connection/deadlines.py",
        old="if isinstance(error, Timeout) or not limit.expired():\n",
        new="if isinstance(error, Timeout):\n",
        tests=(f"{TIMEOUTS}test_a_timeout_error_of_the_caller_s_own_iterator_is_not_taken_for_the_end_of_the_time",),
        why_tests="no simulated iterator raises",
    ),
    Mutant(
        name="refused-opening-takes-a-name",
        rule="an opening that is refused for its options does not fence the producer that has the name",
        section="§7",
        file="txnclient/openers.py",
        old="            check_options(linger_ms, batch_bytes, compression, compression_level, buffer_bytes)\n",
        new="",
        more=(
            Edit(
                "txnclient/openers.py",
                "                producer = ProducerImpl[Any](\n",
                "                check_options(linger_ms, batch_bytes, compression, compression_level, buffer_bytes)\n"
                "                producer = ProducerImpl[Any](\n",
            ),
        ),
        tests=(f"{NUMBERED}test_an_opening_that_is_refused_takes_no_name_from_the_producer_that_has_it[wrong0]",),
        why_tests="no simulated program gives wrong options",
    ),
    Mutant(
        name="attached-until-the-call-s-deadline",
        rule="a transaction that was attached to has no deadline that is known: an abort of it is told as one",
        section="§10",
        file="txnclient/transactions/coordinators.py",
        old="expires_at=math.inf, link=link, joined=joined)",
        new="expires_at=deadline.at, link=link, joined=joined)",
        tests=(
            f"{NAMED}test_who_has_attached_long_ago_is_told_of_an_abort_as_of_one",
            f"{NAMED}test_a_commit_that_is_cancelled_is_asked_for_again_long_after_its_object_was_attached",
        ),
        why_tests="no simulated client keeps what it has attached to",
    ),
    Mutant(
        name="shortest-timeout-of-a-name-is-none",
        rule="a begin of a name asks for the timeout that it was given, also for the shortest",
        section="§5",
        file="txnclient/transactions/coordinators.py",
        old="            timeout_ms=max(1, round(timeout_s * 1000)),\n",
        new="            timeout_ms=int(timeout_s * 1000),\n",
        tests=(f"{NAMED}test_the_shortest_timeout_of_a_name_is_not_taken_for_none",),
        why_tests="no simulated timeout is that short",
    ),
    Mutant(
        name="endless-timeout-breaks-a-begin",
        rule="a timeout without an end is refused in words that name it",
        section="§5",
        file="txnclient/transactions/coordinators.py",
        old="not 0 < timeout_s <= MAX_TIMEOUT_S:",
        new="not timeout_s > 0:",
        tests=(f"{CLIENT}test_wrong_arguments.py::test_wrong_arguments_are_refused_in_words_that_name_them",),
        why_tests="no simulated program gives wrong arguments",
    ),
    Mutant(
        name="interrupted-block-left-open",
        rule="Ctrl-C before the end of a block has begun leaves no transaction open (C5)",
        section="§11",
        file="txnclient/sync/client.py",
        old="            if not impl.ended:\n",
        new="            if impl.undecided:\n",
        tests=(
            f"{SYNC_SENDS}test_a_block_leaves_nothing_open_where_an_interrupt_comes_before_its_end_has_begun[False-False]",
        ),
        why_tests="it has no threads",
    ),
    Mutant(
        name="interrupted-block-of-messages-left-open",
        rule="Ctrl-C before the end of a block has begun leaves no transaction open (C5)",
        section="§11",
        file="txnclient/sync/consumer.py",
        old="            if not inside.ended:\n",
        new="            if inside.undecided:\n",
        tests=(
            f"{SYNC_SENDS}test_a_block_leaves_nothing_open_where_an_interrupt_comes_before_its_end_has_begun[False-True]",
        ),
        why_tests="it has no threads",
    ),
    Mutant(
        name="nothing-read-behind-the-last-client",
        rule="what was opened in a client can be looked at when it is closed, also without await",
        section="§11",
        file="txnclient/sync/bridge.py",
        old="        if self._stopped or threading",
        new="        if threading",
        tests=(f"{BEHIND}test_what_was_closed_with_the_last_client_can_be_read_and_closed_again_and_nothing_else",),
        why_tests="it has no threads",
    ),
    Mutant(
        name="closed-twice-behind-the-last-client",
        rule="a close may be repeated, also behind that of the last client without await",
        section="§11",
        file="txnclient/sync/bridge.py",
        old="        if not self._stopped:\n            self.wait(thing.close())\n",
        new="        self.wait(thing.close())\n",
        tests=(f"{BEHIND}test_what_was_closed_with_the_last_client_can_be_read_and_closed_again_and_nothing_else",),
        why_tests="it has no threads",
    ),
    Mutant(
        name="views-measured-by-their-items",
        rule="a large value is measured in bytes, whatever holds it (A7)",
        section="§11",
        file="txnclient/producing/producer_impl.py",
        old="            data = checked_value(data)  # ▲ before",
        new="            data = data  # ▲ before",
        tests=(f"{LARGE}test_a7_a_view_of_items_wider_than_a_byte_is_sent_in_pieces_by_its_bytes",),
        why_tests="simulated values are bytes",
    ),
    Mutant(
        name="large-properties-of-large-values",
        rule="a large value whose first piece cannot be sent is refused at its call (C9)",
        section="§11",
        file="txnclient/producing/producer_impl.py",
        old="            check_size(overhead + PIECE_BYTES)\n",
        new="",
        tests=(f"{LARGE}test_c9_properties_that_leave_no_room_for_a_piece_are_refused_before_any_is_sent",),
        why_tests="simulated properties are small",
    ),
    Mutant(
        name="block-of-a-closed-client-ends-quietly",
        rule="the end of a block tells that the close of its client has aborted it (C5)",
        section="§11",
        file="txnclient/client.py",
        old="            txn.abandoned = True\n",
        new="",
        tests=(f"{CLOSED}test_the_end_of_a_block_tells_that_the_close_of_its_client_has_aborted_it[False]",),
        why_tests="a simulated client is closed once its calls have ended",
    ),
    Mutant(
        name="block-of-messages-of-a-closed-client-ends-quietly",
        rule="the end of a block tells that the close of its client has aborted it (C5)",
        section="§11",
        file="txnclient/consuming/consumer.py",
        old="            if not inside.aborting or inside.abandoned:\n",
        new="            if not inside.aborting:\n",
        tests=(f"{CLOSED}test_the_end_of_a_block_tells_that_the_close_of_its_client_has_aborted_it[True]",),
        why_tests="a simulated client is closed once its calls have ended",
    ),
    Mutant(
        name="block-without-await-of-a-closed-client-ends-quietly",
        rule="the end of a block tells that the close of its client has aborted it (C5)",
        section="§11",
        file="txnclient/sync/client.py",
        old="            if not impl.aborting or impl.abandoned:\n",
        new="            if not impl.aborting:\n",
        tests=(f"{CLOSED}test_without_await_the_end_of_the_block_tells_it_too[False]",),
        why_tests="it has no threads",
    ),
    Mutant(
        name="block-of-messages-without-await-ends-quietly",
        rule="the end of a block tells that the close of its client has aborted it (C5)",
        section="§11",
        file="txnclient/sync/consumer.py",
        old="            if not inside.aborting or inside.abandoned:\n",
        new="            if not inside.aborting:\n",
        tests=(f"{CLOSED}test_without_await_the_end_of_the_block_tells_it_too[True]",),
        why_tests="it has no threads",
    ),
    Mutant(
        name="refused-leave-has-left",
        rule="a call that is refused for its timeout has done nothing (C9)",
        section="§11",
        file="txnclient/transactions/transaction_impl.py",
        old="""        deadline = self._session.deadline(timeout)  # refused before anything is withdrawn
        self._state = TransactionState.LEFT
""",
        new="""        self._state = TransactionState.LEFT
        deadline = self._session.deadline(timeout)
""",
        tests=(f"{TIMEOUTS}test_what_is_no_time_is_refused_and_nothing_is_done",),
        why_tests="no simulated program gives wrong arguments",
    ),
    Mutant(
        name="an-exit-ends-the-loop",
        rule="what a serializer or a callback raises to end the program leaves nobody waiting without await (C6)",
        section="§11",
        file="txnclient/sync/bridge.py",
        old="        except (SystemExit, KeyboardInterrupt) as error:\n",
        new="        except KeyboardInterrupt as error:\n",
        tests=(f"{SYNC_SENDS}test_what_would_end_the_program_does_not_end_the_loop_of_all_its_threads",),
        why_tests="it has no threads",
    ),
    Mutant(
        name="a-callback-waits-for-its-own-loop",
        rule="who waits for a message in the thread that sends it is refused without await (C6)",
        section="§11",
        file="txnclient/sync/bridge.py",
        old="            self._expect_elsewhere()\n",
        new="            pass\n",
        tests=(f"{SYNC_SENDS}test_a_callback_of_one_message_that_waits_for_another_is_refused",),
        why_tests="it has no threads",
    ),
    Mutant(
        name="closed-block-waits-for-its-deadline",
        rule="the end of a block of messages waits for no outcome behind the close of its consumer (C6)",
        section="§11",
        file="txnclient/consuming/consumer_impl.py",
        old="                while impl.undecided and not self._closed and ",
        new="                while impl.undecided and ",
        tests=(f"{CLOSED}test_a_block_of_messages_ends_though_nobody_answers_the_abort_of_its_closed_client",),
        why_tests="a simulated client is closed once its calls have ended",
    ),
    Mutant(
        name="buffer-of-nan-bytes",
        rule="a size that is no number of bytes is refused at the opening (C9)",
        section="§11",
        file="txnclient/producing/producer_impl.py",
        old="    if not (linger_ms >= 0 and batch_bytes >= 1 and buffer_bytes >= 1):\n",
        new="    if not linger_ms >= 0 or batch_bytes < 1 or buffer_bytes < 1:\n",
        tests=(f"{CLIENT}test_wrong_arguments.py::test_wrong_arguments_are_refused_in_words_that_name_them",),
        why_tests="no simulated program gives wrong arguments",
    ),
    Mutant(
        name="block-behind-the-last-client-tells-another-error",
        rule="the end of a block tells that the close of its client has aborted it, also of the last one (C5)",
        section="§11",
        file="txnclient/sync/client.py",
        old="                expect_not_abandoned(impl)\n",
        new="",
        tests=(
            f"{CLOSED}test_without_await_the_end_of_the_block_tells_it_behind_the_last_client_as_well[False-False]",
        ),
        why_tests="it has no threads",
    ),
    Mutant(
        name="block-of-messages-behind-the-last-client-tells-another-error",
        rule="the end of a block tells that the close of its client has aborted it, also of the last one (C5)",
        section="§11",
        file="txnclient/sync/consumer.py",
        old="                expect_not_abandoned(inside)\n",
        new="",
        tests=(f"{CLOSED}test_without_await_the_end_of_the_block_tells_it_behind_the_last_client_as_well[True-False]",),
        why_tests="it has no threads",
    ),
    Mutant(
        name="what-a-block-raises-is-hidden",
        rule="what a block raises is raised, also where its transaction cannot be aborted any more (C5)",
        section="§11",
        file="txnclient/sync/bridge.py",
        old='        except TxnError as failure:\n            error.add_note(f"and its',
        new='        except ConnectionLost as failure:\n            error.add_note(f"and its',
        tests=(
            f"{CLOSED}test_without_await_the_end_of_the_block_tells_it_behind_the_last_client_as_well[False-True]",
            f"{CLOSED}test_without_await_the_end_of_the_block_tells_it_behind_the_last_client_as_well[True-True]",
        ),
        why_tests="it has no threads",
    ),
)
