"""Break further rows of the scenario table, most of them about failures and owners that sleep (docs/testing.md)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

ROW = "the test of the row dies of this line alone; whether a seed shows it was not tried"
NO_FILES = "a simulated disk has no files that are open"

READING = "tests/segments/subscription/test_reading.py::"
PRODUCING = "tests/segments/owner/test_producing.py::"
LEDGER_ENDS = "tests/segments/ledger/test_file_ledger_ends.py::"
FOR_NOBODY = f"{LEDGER_ENDS}test_a_file_that_is_opened_for_nobody_any_more_is_closed"
SLEEPER = (
    "tests/segments/owner/test_paused_owners.py::test_l3_an_owner_that_slept_through_its_lease_serves_nobody_as_before"
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="failed-before-its-op-stays-in-flight",
        rule="an entry that fails before its op was sent is in flight no more (L8)",
        section="§6",
        file="segments/log/sends/op_records.py",
        old=("        for _ in range(len(items) - len(live)):\n            self.settled(txn_id, recorded=False)\n"),
        new="",
        tests=(f"{PRODUCING}test_l8_what_fails_before_its_op_was_sent_holds_no_reader_back",),
        why_tests=ROW,
    ),
    Mutant(
        name="op-behind-a-failed-entry-stays-in-flight",
        rule="an op that lands once its entry has failed is in flight no more (L8)",
        section="§6",
        file="segments/log/sends/op_records.py",
        old=(
            "            if item.admitted.failed:\n"
            "                self.settled(txn_id, recorded=True)  # an op without an entry: deleted when the "
            "transaction ends\n"
        ),
        new="",
        tests=(f"{PRODUCING}test_l8_an_op_that_lands_behind_the_failure_of_its_entry_holds_no_reader_back",),
        why_tests=ROW,
    ),
    Mutant(
        name="refused-op-takes-the-loaded-along",
        rule="an op that is refused leaves what a former owner has stored of its transaction (R1)",
        section="§6",
        file="watchers/visibility.py",
        old="        found = self._open.setdefault(txn_id, _RegisteredTxn())\n        found.recorded = True\n",
        new="        found = self._open.setdefault(txn_id, _RegisteredTxn())\n",
        tests=(
            "tests/watchers/test_visibility_recovery.py::test_r1_a_refused_op_leaves_what_was_found_of_its_transaction",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="on-its-way-refused-on-a-full-disk",
        rule="a repeat of what is on its way shares its outcome, also where there is no room for anything new (L9)",
        section="§7",
        file="segments/log/sends/dedup.py",
        old="        return producer is not None and sequence_id <= producer.tail\n",
        new="        return producer is not None and sequence_id <= producer.last\n",
        tests=("tests/segments/log/sends/test_dedup.py::test_l9_repeat_of_an_entry_on_its_way_is_known_as_one",),
        why_tests=ROW,
    ),
    Mutant(
        name="reader-of-a-lost-segment",
        rule="a reader whose start was looked for while its segment was lost is told (V5)",
        section="§7",
        file="segments/owner/segment.py",
        old=("        point = await resolve_start(start, self.path, self.ledgers, latest)\n        self.check()\n"),
        new="        point = await resolve_start(start, self.path, self.ledgers, latest)\n",
        tests=(f"{READING}test_v5_a_reader_whose_start_is_looked_for_as_its_segment_is_lost_is_told",),
        why_tests=ROW,
    ),
    Mutant(
        name="commit-asked-of-its-own-coordinator-only",
        rule="any coordinator ends any transaction: another one is asked where its own does not answer (D4)",
        section="§9",
        file="txnclient/transactions/coordinators.py",
        old="        return await self._session.links.get(addresses[tries % len(addresses)], deadline)\n",
        new="        return await self._session.links.get(addresses[0], deadline)\n",
        tests=(
            "tests/txnclient/transactions/test_transactions.py::"
            "test_d4_a_commit_is_made_by_another_coordinator_where_its_own_does_not_answer",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="perhaps-committed-told-as-not",
        rule="a commit that may have been made is never told as one that was not (D1)",
        section="§9",
        file="txnclient/transactions/coordinators.py",
        old=(
            "            # An earlier attempt may have succeeded although the last one did not.\n"
            '            raise deadline.expired(f"ending transaction {txn.id}", error) from error\n'
        ),
        new="            raise\n",
        tests=(
            "tests/txnclient/transactions/test_transactions.py::"
            "test_d1_a_commit_that_may_have_been_made_is_never_told_as_one_that_was_not",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="uncounted-ledger-stays-open",
        rule="a fence whose count finds no room leaves no file open",
        section="§7",
        file="segments/ledger/file_ledger.py",
        old="    except BaseException:\n        ledger.file.release()\n        raise\n    if counted",
        new="    except BaseException:\n        raise\n    if counted",
        tests=(f"{LEDGER_ENDS}test_a_fence_whose_count_finds_no_room_leaves_no_file_open",),
        why_tests=NO_FILES,
    ),
    Mutant(
        name="failure-told-to-the-first-alone",
        rule="a repeat of what is on its way hears of its failure too (L9)",
        section="§7",
        file="segments/log/sends/pipeline.py",
        old="            for waiter in failed.waiters:\n                waiter.failed(why)\n",
        new="            failed.waiters[0].failed(why)\n",
        tests=(
            "tests/segments/owner/test_repeated_sends.py::test_l9_a_repeat_shares_the_failure_of_the_entry_on_its_way[refused]",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="loss-told-to-the-first-alone",
        rule="a repeat of what is on its way hears that the segment is lost, too (L9)",
        section="§7",
        file="segments/log/sends/pipeline.py",
        old="            for waiter in item.admitted.waiters:\n                waiter.failed(error)\n",
        new="            item.admitted.waiters[0].failed(error)\n",
        tests=(
            "tests/segments/owner/test_repeated_sends.py::test_l9_a_repeat_shares_the_failure_of_the_entry_on_its_way[lost]",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="fenced-for-nobody-stays-open",
        rule="a ledger that is fenced behind the back of who has given that up is closed",
        section="§7",
        file="segments/ledger/file_ledger.py",
        old='f"fencing {paths.ledger}", discard=_release)',
        new='f"fencing {paths.ledger}")',
        tests=(f"{FOR_NOBODY}[fence]",),
        why_tests=NO_FILES,
    ),
    Mutant(
        name="sleeper-tells-heads",
        rule="an owner that may have lost its segment tells nobody that nothing follows (L3)",
        section="§7",
        file="segments/owner/scanning.py",
        old="    while True:\n        segment.check()\n",
        new="    while True:\n",
        tests=(f"{SLEEPER}[heads]",),
        why_tests=ROW,
    ),
    Mutant(
        name="stream-at-a-sleeper",
        rule="nobody attaches to a stream at an owner that may have lost its segment, or has (L3)",
        section="§7",
        file="segments/subscription/subscription_table.py",
        old="        self._events.check()\n        if not isinstance(found, StreamSubscription):\n",
        new="        if not isinstance(found, StreamSubscription):\n",
        tests=(f"{SLEEPER}[stream]",),
        why_tests=ROW,
    ),
    Mutant(
        name="queue-at-a-sleeper",
        rule="nobody attaches to a queue at an owner that may have lost its segment, or has (L3)",
        section="§7",
        file="segments/subscription/subscription_table.py",
        old="        self._events.check()\n        if not isinstance(found, QueueSubscription):\n",
        new="        if not isinstance(found, QueueSubscription):\n",
        tests=(f"{SLEEPER}[queue]",),
        why_tests=ROW,
    ),
    Mutant(
        name="given-up-reader-keeps-its-share",
        rule="a reader that is given up leaves its share to the others",
        section="§7",
        file="segments/subscription/dispatch.py",
        old=("            self.shares.leave(consumer)\n            consumer.sink.consumer_closed(error)\n"),
        new="            consumer.sink.consumer_closed(error)\n",
        tests=("tests/segments/subscription/test_shares.py::test_a_reader_that_is_given_up_gives_its_share_back",),
        why_tests="no judge of the simulation asks how large a share is",
    ),
    Mutant(
        name="unanswered-end-told-as-lost",
        rule="an end that is not answered in time may be asked for again (D1)",
        section="§5",
        file="coordinator_v5/ends.py",
        old=(
            '                raise Timeout(f"the end of {txn_id} was not answered within {timeout_s} s: ask again") '
            "from error\n"
        ),
        new="                raise\n",
        tests=(
            "tests/coordinator_v5/test_begin_end.py::"
            "test_d1_an_end_that_is_not_answered_in_time_may_be_asked_again_of_whichever_coordinator",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="latest-of-a-former-moment",
        rule='"latest" lies behind what its reader knows to be committed (V5)',
        section="§7",
        file="segments/owner/segment.py",
        old="            await self.wait_followed(min_revision, patience_s=READER_PATIENCE_S)\n",
        new="            pass\n",
        tests=(f"{READING}test_v5_latest_lies_behind_what_its_reader_knows_to_be_committed",),
        why_tests=ROW,
    ),
)
