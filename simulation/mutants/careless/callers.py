"""Break the client's promises to careless callers (DESIGN §6, §8; SCENARIOS C5 to C9)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

CANCELLED = "tests/txnclient/test_cancelled_calls.py::"
SYNC = "tests/txnclient/sync/test_sync.py::test_"
BELONGING = "tests/txnclient/test_closed_and_foreign_calls.py::"
MALFORMED = "tests/txnclient/producing/test_malformed.py::"
FORKED = "tests/txnclient/test_forked.py::test_every_call_in_a_forked_child_fails_at_once"
DEAD_LETTERS = "tests/txnclient/consuming/feeds/test_dead_letters.py::"
CARELESS_ACKS = "tests/txnclient/consuming/feeds/test_careless_acks.py::"
FEW_BITS = "tests/txnclient/test_numbers_of_few_bits.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="begin-without-caller",
        rule="what a begin has made whose caller was cancelled is aborted as soon as its id is known (C5)",
        section="§6",
        file="txnclient/transactions/coordinators.py",
        old=(
            "                    self.settling.undo("
            "lambda: self._begun_late(command, answer, link, began + timeout_s))\n"
        ),
        new="",
        tests=(CANCELLED + "test_c5_a_begin_that_was_cancelled_is_aborted_once_its_id_is_known",),
        why_tests="a transaction that stays open until its deadline breaks no rule that its judges know",
    ),
    Mutant(
        name="keyed-begin-without-caller",
        rule="what a begin under a transaction key has made whose caller was cancelled is aborted (C5)",
        section="§9",
        file="txnclient/transactions/transaction_keys.py",
        old="            if self._attempt:\n                self._undoing",
        new="            if self._attempt == b'':\n                self._undoing",
        tests=("tests/test_transaction_keys.py::test_c5_a_keyed_begin_that_was_cancelled_is_aborted",),
        why_tests="a transaction that stays open until its deadline breaks no rule that its judges know",
    ),
    Mutant(
        name="commit-behind-its-caller",
        rule="a commit that was cancelled is an abort, unless it is decided already (C1, C5)",
        section="§6",
        file="txnclient/transactions/transaction_impl.py",
        old="        if self.name is None and self._state in (_OPEN, TransactionState.COMMITTING):",
        new="        if self.name is None and self._state is _OPEN:",
        tests=(CANCELLED + "test_c5_a_commit_that_was_cancelled_before_it_was_asked_for_is_an_abort",),
        why_tests="a transaction that stays open until its deadline breaks no rule that its judges know",
    ),
    Mutant(
        name="outcome-nobody-asks-for",
        rule="the outcome of a commit, or abort, that was cancelled on its way is found out (C5)",
        section="§6",
        file="txnclient/transactions/transaction_impl.py",
        old="            self._settling = True\n            self._ender.settle(self)\n",
        new="            self._settling = True\n",
        tests=(CANCELLED + "test_c5_the_outcome_of_a_commit_that_was_cancelled_on_its_way_is_found_out",),
        why_tests="a transaction that stays open until its deadline breaks no rule that its judges know",
    ),
    Mutant(
        name="close-forgets-what-it-settles",
        rule="a client that closes waits for what it settles, within bounds (C5)",
        section="§6",
        file="txnclient/client.py",
        old="self._coordinators.settling.finish(ABORT_ON_CLOSE_S))",
        new="self._coordinators.settling.finish(0.0))",
        tests=(CANCELLED + "test_c5_a_client_that_closes_finishes_what_it_settles",),
        why_tests="the service aborts it a moment later",
    ),
    Mutant(
        name="failed-consumer-spins",
        rule="whoever calls on although told that nothing will come does not stop the loop (C6)",
        section="§8",
        file="txnclient/consuming/feeds/receiver.py",
        old="            await self._pause(timeout_s)\n            raise error",
        new="            raise error",
        tests=(BELONGING + "test_c6_failed_and_closed_things_let_the_loop_live",),
        why_tests="its workers end with the first fatal error",
    ),
    Mutant(
        name="failure-that-is-not-fatal",
        rule="what an object has failed with is fatal (C6)",
        section="§8",
        file="txnclient/consuming/feeds/receiver.py",
        old="None if self._failure is None else for_good(self._failure)",
        new="self._failure",
        tests=(BELONGING + "test_c6_a_loop_ends_with_what_its_consumer_failed_with",),
        why_tests="it deletes no subscription under a loop of `process`",
    ),
    Mutant(
        name="called-from-elsewhere",
        rule="calls from another event loop, thread or process are refused at once (C7)",
        section="§8",
        file="txnclient/connection/session.py",
        old="        if asyncio.events._get_running_loop() is not self.loop:\n            raise self.elsewhere()",
        new="        if asyncio.events._get_running_loop() is None:\n            raise self.elsewhere()",
        tests=(BELONGING + "test_c7_every_call_in_a_second_loop_says_that_the_first_one_has_ended",),
        why_tests="it has one event loop",
    ),
    Mutant(
        name="forked-child-waits",
        rule="the child of a process that has used gRPC is told that it cannot connect (C7)",
        section="§11",
        file="txnwire/transport/grpc_transport.py",
        old="    if _used_in not in (None, pid):",
        new="    if _used_in not in (None, _used_in):",
        tests=(BELONGING + "test_c7_a_forked_child_of_a_process_that_had_connected_is_refused_at_once",),
        why_tests="it has neither gRPC nor processes",
    ),
    *(
        Mutant(
            name=name,
            rule="a forked child neither hangs nor crashes over what its parent had open, or has closed (C7)",
            section="§11",
            file=file,
            old=old,
            new=new,
            tests=tuple(f"{FORKED}[{case}]" for case in cases),
            why_tests="it has neither gRPC nor processes",
        )
        for name, file, old, new, cases in (
            (
                "forked-child-collects",
                "txnwire/transport/grpc_transport.py",
                "os.register_at_fork(after_in_child=_keep_for_good)\n",
                "",
                ("closes-async",),
            ),
            (
                "grpc-forks-with-us",
                "txnwire/__init__.py",
                'os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")\n',
                "",
                ("stays-sync",),
            ),
        )
    ),
    *(
        Mutant(
            name=name,
            rule="Ctrl-C ends a synchronous call also where it does not wake the waiting thread (C1)",
            section="§8",
            file="txnclient/sync/bridge.py",
            old=old,
            new=new,
            tests=(f"{SYNC}an_interrupt_that_does_not_wake_the_waiting_thread_ends_its_call[{case}]",),
            why_tests="it has neither threads nor signals",
        )
        for name, old, new, case in (
            (
                "interrupt-missed-by-a-call",
                "            _wait(future)\n            return future.result()",
                "            return future.result()",
                "receive",
            ),
            (
                "interrupt-missed-by-a-handler-s-loop",
                "            return requests.get(timeout=SIGNALS_S)",
                "            return requests.get()",
                "process",
            ),
            (
                "interrupt-missed-by-a-send-s-result",
                "        _wait(self, timeout)\n        error = super().exception(0)\n",
                "        error = super().exception(timeout)\n",
                "result-of-a-send",
            ),
            (
                "interrupt-missed-by-a-send-s-result-with-a-timeout",
                "        _wait(self, timeout)\n        error = super().exception(0)\n",
                "        if timeout is None:\n            _wait(self)\n        error = super().exception(timeout)\n",
                "result-of-a-send-with-a-timeout",
            ),
        )
    ),
    Mutant(
        name="keyed-begin-amid-an-abort",
        rule="a begin under a key waits for the abort of the client's former transaction",
        section="§9",
        file="txnclient/transactions/transaction_keys.py",
        old="        if latest.state is TransactionState.ABORTING:\n",
        new="        if latest.state is None:\n",
        tests=("tests/test_transaction_keys.py::test_a_begin_waits_for_the_abort_of_the_former_transaction",),
        why_tests="its clients repeat a begin that is refused",
    ),
    Mutant(
        name="malformed-in-company",
        rule="a message that cannot be encoded is refused at its call (C9)",
        section="§8",
        file="txnclient/producing/outgoing.py",
        old="        event_time_ms = _checked_time(event_time_ms)\n",
        new="        pass\n",
        tests=(MALFORMED + "test_c9_a_malformed_message_is_refused_at_its_call_and_its_neighbours_are_stored",),
        why_tests="its workers send what is well formed",
    ),
    Mutant(
        name="too-large-in-company",
        rule="a message that no entry holds is refused at its call (C9)",
        section="§8",
        file="txnclient/producing/outgoing.py",
        old="    if size > MAX_MESSAGE_BYTES:\n        check_size(size)\n    return OutgoingMessage(",
        new="    return OutgoingMessage(",
        tests=(MALFORMED + "test_c9_the_largest_message_fits_its_entry_and_one_more_byte_is_refused",),
        why_tests="its messages are small",
    ),
    Mutant(
        name="output-in-company",
        rule="an output that cannot be sent is the failure of its own message, not of its batch",
        section="§8",
        file="txnclient/handlers.py",
        old="        except CallerError as error:\n            one.error = error\n",
        new="        except CallerError:\n            raise\n",
        tests=(DEAD_LETTERS + "test_an_output_that_cannot_be_sent_is_its_message_s_failure_alone",),
        why_tests="its handlers give back what can be sent",
    ),
    Mutant(
        name="dead-letters-found-too-late",
        rule="a dead-letter topic that cannot be is refused when the consumer is opened",
        section="§8",
        file="txnclient/consuming/consumer_impl.py",
        old="            dead_letters.check(settings.topics, self.subscription)\n",
        new="            pass\n",
        tests=(DEAD_LETTERS + "test_a_dead_letter_topic_that_cannot_be_is_refused_when_the_consumer_is_opened",),
        why_tests="its names are short",
    ),
    Mutant(
        name="child-of-the-current-folder",
        rule="our Pythons take no module from the current folder",
        section="§2",
        file="txnctl/launch/dev.py",
        old='[sys.executable, "-P", "-m", "txnctl", "serve"',
        new='[sys.executable, "-m", "txnctl", "serve"',
        tests=(
            "tests/txnctl/launch/test_dev.py::test_folders_of_the_current_directory_do_not_take_the_place_of_our_packages",
        ),
        why_tests="it starts no processes",
    ),
    Mutant(
        name="library-that-prints",
        rule="the client library logs below `txnclient`, where the application decides what is shown",
        section="§8",
        file="txnwire/transport/stream.py",
        old='_log = logging.getLogger("txnclient.wire")',
        new='_log = logging.getLogger("wire")',
        tests=("tests/txnclient/test_logging.py::test_a_malformed_frame_is_logged_below_txnclient_and_not_printed",),
        why_tests="it hears every logger",
    ),
    Mutant(
        name="prefetch-of-few-bits",
        rule="a number of numpy's counts as any other (C9)",
        section="§8",
        file="txnclient/consuming/assigned_feeds.py",
        old="= index(self._settings.prefetch), index(self._settings.prefetch_bytes)\n",
        new="= self._settings.prefetch, index(self._settings.prefetch_bytes)\n",
        tests=(FEW_BITS + "test_a_consumer_s_prefetch_of_few_bits_counts_as_any_other[queue]",),
        why_tests="its callers give Python's own numbers",
    ),
    Mutant(
        name="timeout-of-few-bits",
        rule="a timeout of numpy's ends when any other does (C9)",
        section="§8",
        file="txnclient/connection/deadlines.py",
        old="self.timeout_s = timeout_s.__float__()\n",
        new="self.timeout_s = timeout_s + 0\n",
        tests=(FEW_BITS + "test_a_timeout_of_few_bits_ends_when_any_other_does[float32]",),
        why_tests="its callers give Python's own numbers",
    ),
    Mutant(
        name="limits-of-few-bits",
        rule="the limits of a processing loop count as any other numbers (C9)",
        section="§8",
        file="txnclient/processing.py",
        old="object.__setattr__(self, name, value.__index__())\n",
        new="value.__index__()\n",
        tests=(FEW_BITS + "test_a_loop_s_limits_of_few_bits_count_as_any_others",),
        why_tests="its callers give Python's own numbers",
    ),
    Mutant(
        name="forked-child-waits-for-a-send",
        rule="who waits in a forked child for a message that its parent has sent is refused (C6, C7)",
        section="§11",
        file="txnclient/sync/bridge.py",
        old="if not self.done() and os.getpid() != self._pid:",
        new="if self.done() and os.getpid() != self._pid:",
        tests=(FORKED + "[stays-sync]",),
        why_tests="it starts no processes",
    ),
    Mutant(
        name="open-transactions-kept-for-ever",
        rule="a consumer forgets transactions that nobody ended once the service has ended them",
        section="§8",
        file="txnclient/consuming/feeds/acks.py",
        old="(txn.name is not None or len(self._took_part) >= self._forget_at)",
        new="txn.name is not None",
        tests=(CARELESS_ACKS + "test_transactions_that_are_never_ended_are_forgotten_once_the_service_has_ended_them",),
        why_tests="its runs are short",
    ),
    Mutant(
        name="copy-gives-nothing-back",
        rule="a message that was pickled is given back as the one that was received",
        section="§8",
        file="txnclient/consuming/feeds/inbox.py",
        old="(self._held.get(entry.position, 0) if carried else self.current(entry))",
        new="(0 if carried else self.current(entry))",
        tests=(
            "tests/txnclient/consuming/received/test_pickled.py::"
            "test_a_copy_gives_back_what_the_consumer_holds_and_nothing_else",
        ),
        why_tests="it pickles no messages",
    ),
    Mutant(
        name="cancel-taken-for-a-failed-disk",
        rule="a caller that is cancelled in the turn of the ledgers' close ends as cancelled",
        section="§7",
        file="segments/ledger/file_ledger.py",
        old=" and (task is None or task.cancelling() == cancels):\n",
        new=":\n",
        tests=(
            "tests/segments/ledger/test_file_ledger_ends.py::"
            "test_a_caller_that_is_cancelled_in_the_turn_of_the_close_ends_as_cancelled",
        ),
        why_tests="its ledgers are not files",
    ),
    Mutant(
        name="one-waits-for-a-cancelled-keyed-begin",
        rule="several begins may wait for the end of a cancelled one of their key (C5)",
        section="§9",
        file="txnclient/transactions/transaction_keys.py",
        old="            if not undoing.done():\n",
        new="            if self._undoing is None or not self._undoing.done():\n",
        tests=(
            "tests/txnclient/transactions/test_keyed_begins.py::"
            "test_c5_of_begins_that_wait_for_the_end_of_a_cancelled_one_one_begins",
        ),
        why_tests="a simulated client begins one after the other",
    ),
    Mutant(
        name="absent-topics-followed-for-ever",
        rule="a client follows a bounded number of topics that do not exist",
        section="§11",
        file="txnclient/connection/directory.py",
        old="            self._forget_absent()\n",
        new="",
        tests=(
            "tests/txnclient/connection/test_topics_of_a_new_home.py::"
            "test_of_topics_that_do_not_exist_the_latest_are_followed_and_asked_for_at_the_next_home",
        ),
        why_tests="its clients ask for topics that exist",
    ),
)
