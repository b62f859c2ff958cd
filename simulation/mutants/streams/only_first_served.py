"""Serve only the first of several that wait or have failed (DESIGN §5 to §10)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

CONSUMER_ACKS = "tests/txnclient/consuming/feeds/test_consumer_acks.py::"
CONSUMER_MEMBERSHIP = "tests/txnclient/consuming/test_consumer_membership.py::"
GATHERING = "tests/txnclient/producing/channels/test_gathering.py::"
NEW_HOLDERS = "tests/segments/subscription/test_new_holders.py::"
QUEUE_ACKS = "tests/segments/subscription/queueing/test_queue_acks.py::"

CONSUMER = "tests/txnclient/consuming/test_consumer.py::test_"
PRODUCER = "tests/txnclient/producing/test_producer.py::test_"
REFUSALS = "tests/segments/broker/test_refusals.py::test_"
GIVING_BACK = "tests/txnclient/consuming/feeds/test_queue_giving_back.py::test_"
READABLE = (
    "tests/segments/controller/test_autoscaling.py::test_what_cannot_be_read_of_one_topic_keeps_no_other_as_it_is"
)
UNTRIED = "few seeds have several in this place at once: the test was made for it, no seed was looked for"
COST = "it costs time or memory alone, which no judge of the simulation counts"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="quiet-segments-never-kept",
        rule="retention is looked after at its interval, however often a busy segment closes a ledger",
        section="§8",
        file="segments/log/housekeeping.py",
        old="                async with asyncio.timeout_at(all_due_s):\n",
        new=(
            "                all_due_s = loop.time() + self._settings.housekeeping_s\n"
            "                async with asyncio.timeout_at(all_due_s):\n"
        ),
        tests=(
            "tests/segments/log/test_housekeeping_rounds.py::"
            "test_quiet_segments_and_rounds_that_failed_have_their_turn_however_often_a_busy_one_closes_ledgers",
        ),
        why_tests=COST,
    ),
    Mutant(
        name="nack-stops-at-a-segment-that-has-left",
        rule="of what is nacked a segment that has left keeps none behind it",
        section="§9",
        file="txnclient/consuming/consumer_impl.py",
        old="                refused = refused or error\n                continue\n",
        new="                refused = refused or error\n                break\n",
        tests=(f"{GIVING_BACK}of_what_is_nacked_a_segment_that_has_left_keeps_none_behind_it",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="acks-behind-a-refused-segment-forgotten",
        rule="all that a transaction named in an ack comes again with its abort, whichever segment refused",
        section="§9",
        file="txnclient/consuming/consumer_impl.py",
        old="                refused = refused or error\n        if refused is not None:\n            if txn",
        new=(
            "                refused = refused or error\n                break\n"
            "        if refused is not None:\n            if txn"
        ),
        tests=(f"{GIVING_BACK}what_was_named_with_a_stale_copy_of_another_segment_comes_again",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="topics-that-begin-alike",
        rule="the assignment of one topic says nothing of another whose name begins with it",
        section="§9",
        file="txnclient/consuming/assigned_feeds.py",
        old='        prefix = assignment.topic.partition("://")[2] + "/"\n',
        new='        prefix = assignment.topic.partition("://")[2]\n',
        tests=("tests/txnclient/test_with_cluster.py::test_topics_whose_names_begin_alike_are_told_apart",),
        why_tests="names of the simulation's topics do not begin with each other",
    ),
    Mutant(
        name="first-of-the-void-acks",
        rule="all acks that wait for their connection are void after a seek",
        section="§9",
        file="txnclient/consuming/feeds/acks.py",
        old="        for batch in void:\n",
        new="        for batch in void[:1]:\n",
        tests=(CONSUMER_ACKS + "test_all_acks_that_were_waiting_for_their_connection_are_void_after_a_seek",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="reason-for-attaching-said-once",
        rule="who comes back for an abort says so until it is attached, or it is counted twice",
        section="§9",
        file="txnclient/consuming/feeds/feed.py",
        old="        request.after_abort = self._after_abort\n",
        new="        request.after_abort, self._after_abort = self._after_abort, False\n",
        tests=(f"{CONSUMER}who_comes_back_for_an_abort_says_so_until_it_is_attached",),
        why_tests="redelivery counts are not judged to one in the simulation",
    ),
    Mutant(
        name="refused-leave-forgotten",
        rule="a leave that a controller refuses which leads no more reaches the next one",
        section="§9",
        file="txnclient/consuming/membership.py",
        old="        if isinstance(error, TRANSIENT):\n            self._leave_later(request, error)\n        elif",
        new="        if isinstance(error, TRANSIENT):\n            pass\n        elif",
        tests=(
            CONSUMER_MEMBERSHIP + "test_a_leave_that_a_controller_refuses_which_leads_no_more_reaches_the_next_one",
        ),
        why_tests="its segments are given to others once the grace is over",
    ),
    Mutant(
        name="aborted-entries-behind-the-head",
        rule="what waits to be sent again in an aborted transaction is let go of wherever it stands",
        section="§9",
        file="txnclient/producing/channels/channel.py",
        old="        for batch in self._outbox.remove(lambda batch: batch.txn is not None and batch.txn.aborting):\n",
        new=(
            "        head = next(iter(self._outbox), None)\n"
            "        for batch in self._outbox.remove(\n"
            "            lambda batch: batch is head and batch.txn is not None and batch.txn.aborting\n"
            "        ):\n"
        ),
        tests=(f"{PRODUCER}what_waits_to_be_sent_again_and_is_aborted_is_let_go_of_wherever_it_stands",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="expired-entries-behind-the-head",
        rule="a send ends in its own time, whatever stands before it",
        section="§9",
        file="txnclient/producing/channels/channel.py",
        old="        for batch in self._outbox.remove(lambda batch: batch.deadline.passed):\n",
        new=(
            "        head = next(iter(self._outbox), None)\n"
            "        for batch in self._outbox.remove(lambda batch: batch is head and batch.deadline.passed):\n"
        ),
        tests=(GATHERING + "test_a_send_that_lingered_times_out_in_its_own_time_and_not_with_those_that_overtook_it",),
        why_tests=COST,
    ),
    Mutant(
        name="wakes-for-the-head-s-deadline",
        rule="a channel that cannot be opened wakes for the first deadline, not for that of its first entry",
        section="§9",
        file="txnclient/producing/channels/channel.py",
        old="        return min((batch.deadline.remaining() for batch in self._outbox), default=0.0)\n",
        new="        return next((batch.deadline.remaining() for batch in self._outbox), 0.0)\n",
        tests=(GATHERING + "test_a_send_that_lingered_times_out_in_its_own_time_and_not_with_those_that_overtook_it",),
        why_tests=COST,
    ),
    Mutant(
        name="a-timer-for-each-batch-that-has-left",
        rule="batches that left full before their time wake nobody",
        section="§9",
        file="txnclient/producing/channels/lingering.py",
        old="            self._later.pop(batch, None)\n",
        new="            pass\n",
        tests=(
            "tests/txnclient/producing/channels/test_lingering.py::test_batches_that_have_left_meanwhile_wake_nobody",
            "tests/txnclient/producing/channels/test_lingering.py::"
            "test_stored_messages_are_not_kept_until_their_batches_would_have_been_due",
        ),
        why_tests=COST,
    ),
    Mutant(
        name="first-expiry-of-a-membership",
        rule="a consumer that is lost is given up when its own grace is over",
        section="§8",
        file="segments/controller/membership.py",
        old="return min((gone_at for gone_at in self._gone_at.values() if gone_at is not None), default=None)",
        new="return next((gone_at for gone_at in self._gone_at.values() if gone_at is not None), None)",
        tests=(
            "tests/segments/layout/test_assignment.py::"
            "test_who_is_to_be_given_up_first_is_looked_for_first_in_whatever_order_they_joined",
        ),
        why_tests=COST,
    ),
    Mutant(
        name="one-predecessor-s-transaction",
        rule="a new holder waits for each of its predecessor's transactions (P12)",
        section="§8",
        file="segments/subscription/stream_subscription.py",
        old="        if self._held_back and not self._awaits_predecessor():\n",
        new="        if self._held_back:\n",
        tests=(NEW_HOLDERS + "test_p12_a_new_holder_waits_for_each_of_its_predecessor_s_transactions",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="acks-that-waited-for-a-refused-one",
        rule="all acks that wait for the first of a decided transaction are answered with it",
        section="§6",
        file="segments/subscription/subscriptions.py",
        old="            refused.append(waiting)\n",
        new="",
        tests=(f"{REFUSALS}all_acks_that_wait_for_the_first_of_a_transaction_are_refused_with_it_and_come_again",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="first-of-the-refused-acks-of-a-queue",
        rule="a queue delivers again all that was named in acks that are refused",
        section="§7",
        file="segments/subscription/queue_subscription.py",
        old="        for reservation in reservations:\n",
        new="        for reservation in reservations[:1]:\n",
        tests=(
            f"{REFUSALS}all_acks_that_wait_for_the_first_of_a_transaction_are_refused_with_it_and_come_again[queue]",
        ),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="room-of-a-refused-ack-kept",
        rule="an ack that is refused for want of room gives back all the room it had taken",
        section="§6",
        file="watchers/pending_acks.py",
        old="                for ack in reservation.positions[:held]:\n",
        new="                for ack in reservation.positions[: min(held, 1)]:\n",
        tests=(
            "tests/watchers/test_pending_acks.py::"
            "test_an_ack_that_is_refused_for_want_of_room_keeps_none_of_the_room_it_had_taken",
        ),
        why_tests="few seeds fill a cursor",
    ),
    Mutant(
        name="one-unconfirmed-left-out-of-a-cut",
        rule="a snapshot names no transaction that has nothing in it",
        section="§10",
        file="watchers/visibility.py",
        old="            pinning.pop()\n",
        new="            pinning.pop()\n            break\n",
        tests=("tests/watchers/test_losers.py::test_a_cut_names_no_transaction_that_has_nothing_up_to_its_end",),
        why_tests=COST,
    ),
    Mutant(
        name="held-back-behind-a-refused-send",
        rule="of sends that were held back a refused one keeps none behind it",
        section="§7",
        file="segments/log/sends/pipeline.py",
        old="            except TxnError as error:\n                one.reply.failed(error)\n\n    def refuse_held",
        new=(
            "            except TxnError as error:\n                one.reply.failed(error)\n                break\n\n"
            "    def refuse_held"
        ),
        tests=(
            "tests/segments/subscription/test_backpressure.py::test_of_sends_that_were_held_back_a_refused_one_keeps_none_behind_it",
        ),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="first-producer-behind-a-roll",
        rule="what every producer sent as the log rolled is stored behind it",
        section="§7",
        file="segments/log/sends/appender.py",
        old="        for line in stalled:\n",
        new="        for line in list(stalled)[:1]:\n",
        tests=(
            "tests/segments/log/ledgers/test_rolling.py::test_what_every_producer_sent_as_the_log_rolled_is_stored_behind_it",
        ),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="pass-that-ends-early-is-the-last",
        rule="whom one pass of dispatch does not reach is served by the next, though nothing else happens",
        section="§7",
        file="segments/subscription/dispatch.py",
        old="            if left <= 0:\n                self.wake()\n",
        new="            if left <= 0:\n",
        tests=(
            "tests/segments/subscription/test_reading.py::"
            "test_whom_one_pass_does_not_reach_is_served_by_the_next_though_nothing_else_happens",
        ),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="unreadable-policy-stops-autoscale",
        rule="a policy of one topic that cannot be read keeps no other topic from being split",
        section="§8",
        file="segments/controller/autoscaling.py",
        old="topic=path, error=str(error))\n                continue\n",
        new="topic=path, error=str(error))\n                break\n",
        tests=(READABLE,),
        why_tests="nobody there writes a policy that is none",
    ),
    Mutant(
        name="unreadable-load-stops-autoscale",
        rule="a load that cannot be read hides none behind it",
        section="§8",
        file="segments/controller/autoscaling.py",
        old='                    log.error("record_unreadable", error=str(error))\n                    continue\n',
        new='                    log.error("record_unreadable", error=str(error))\n                    break\n',
        tests=(READABLE,),
        why_tests="nobody there writes a load that is none",
    ),
    Mutant(
        name="first-commit-of-records-that-moved",
        rule="all records that a sidecar has taken over leave etcd, in as many commits as they need (R3)",
        section="§6",
        file="segments/log/housekeeping.py",
        old="        for at in range(0, len(going), RECORDS_AT_ONCE):\n",
        new="        for at in range(0, min(1, len(going)), RECORDS_AT_ONCE):\n",
        tests=(
            "tests/segments/log/test_housekeeping.py::"
            "test_r3_each_loser_of_a_transaction_leaves_etcd_for_the_sidecar_and_goes_with_its_ledger",
        ),
        why_tests="a simulated ledger has no hundred aborted transactions",
    ),
    Mutant(
        name="acks-wake-no-queue",
        rule="a queue's consumer that is at its bound goes on as it acks",
        section="§7",
        file="segments/subscription/queue_subscription.py",
        old="        self._queue.settled(positions)\n        self._dispatcher.wake()\n",
        new="        self._queue.settled(positions)\n",
        tests=(QUEUE_ACKS + "test_acks_alone_let_a_consumer_at_its_bound_go_on",),
        why_tests="twenty thousand entries with one consumer are the bound",
    ),
    Mutant(
        name="end-of-a-segment-told-once",
        rule="behind a rewind the end of a sealed segment is told again (A7)",
        section="§7",
        file="segments/subscription/dispatch.py",
        old="        self.read_ahead.clear()\n        self.ended = False\n",
        new="        self.read_ahead.clear()\n",
        tests=(
            "tests/segments/subscription/test_drained.py::"
            "test_a7_a_stream_is_told_of_the_end_again_behind_what_an_abort_brings_back",
        ),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="settled-segments-asked-again",
        rule="a snapshot asks nothing of a sealed segment in which all is decided, nor waits for its owner",
        section="§10",
        file="segments/controller/snapshots.py",
        old="        self._settled.update(settled_in(outcome))\n",
        new="",
        tests=(
            "tests/segments/controller/test_cut.py::test_of_a_segment_that_is_settled_not_even_the_owner_need_be_there",
        ),
        why_tests=COST,
    ),
    Mutant(
        name="snapshot-ends-with-an-outage",
        rule="a snapshot is begun again where the store does not answer, within its time",
        section="§10",
        file="segments/controller/snapshots.py",
        old="        except StoreUnavailable as error:\n            return StartOver(str(error))\n",
        new="        except StoreUnavailable:\n            raise\n",
        tests=(
            "tests/segments/controller/test_cut.py::test_a_cut_is_begun_again_whichever_question_the_store_does_not_answer",
        ),
        why_tests="a client asks again",
    ),
    Mutant(
        name="trimmed-for-one-subscription",
        rule="what is trimmed counts as consumed by each subscription",
        section="§8",
        file="segments/subscription/subscription_table.py",
        old="                self.wake_clean_up(subscription)\n\n    def _follow_trim",
        new="                self.wake_clean_up(subscription)\n                break\n\n    def _follow_trim",
        tests=(
            "tests/segments/subscription/cursors/test_trimming_and_seeking.py::test_what_is_trimmed_counts_as_consumed_by_each_subscription",
        ),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="trimmed-past-a-seek-by-part",
        rule="what a subscription was sought back to while a footer was written is not trimmed",
        section="§8",
        file="segments/log/housekeeping.py",
        old="            kept = min(kept, now)\n",
        new="",
        tests=(
            "tests/segments/subscription/cursors/test_trimming_and_seeking.py::"
            "test_a_seek_back_by_part_while_a_footer_is_written_keeps_that_part",
        ),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="snapshot-behind-one-that-failed",
        rule="a snapshot that fails keeps none waiting who asked since it was begun",
        section="§10",
        file="txnclient/reading/cuts.py",
        old="                cut.set_exception(error)\n        # ▲ Here",
        new="                cut.set_exception(error)\n                break\n        # ▲ Here",
        tests=(
            "tests/txnclient/reading/test_reader_cuts.py::"
            "test_a_snapshot_that_fails_keeps_none_waiting_who_asked_since_it_was_begun",
        ),
        why_tests="what waits there ends by its time, and is tried again",
    ),
    Mutant(
        name="gathered-when-fenced",
        rule="a producer that is fenced fails what it still gathers, too (L10)",
        section="§9",
        file="txnclient/producing/channels/channel.py",
        old="        for batch in [*self._outbox.clear(), *gathering]:\n",
        new="        for batch in self._outbox.clear():\n",
        tests=(GATHERING + "test_l10_what_gathers_as_a_producer_is_fenced_is_told_as_well",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="gathered-until-lingering-ends",
        rule="what gathers leaves with the answer to what is under way",
        section="§9",
        file="txnclient/producing/channels/channel.py",
        old="                if following is not None:\n                    self.close_batch(following)\n",
        new="",
        tests=(
            GATHERING + "test_what_gathers_leaves_with_the_answer_to_what_is_under_way_however_long_it_might_linger",
        ),
        why_tests=COST,
    ),
    Mutant(
        name="failed-assignment-forgotten",
        rule="an assignment that could not be written is written once what was wrong is mended",
        section="§8",
        file="segments/controller/stream_group.py",
        old="        asyncio.get_running_loop().call_later(_SETTLE_AGAIN_S, self.refresh)\n",
        new="",
        tests=(
            "tests/segments/controller/test_controller_failover.py::"
            "test_an_assignment_that_could_not_be_written_is_written_once_what_was_wrong_is_mended",
        ),
        why_tests="nobody there writes a record that is none",
    ),
    Mutant(
        name="one-loser-read-from-a-snapshot",
        rule="each writer of a transaction that does not count is kept in a snapshot's JSON (V5)",
        section="§10",
        file="txnwire/snapshot.py",
        old="int(writer, 16)) for txn_id, writer in lost)\n",
        new="int(writer, 16)) for txn_id, writer in dict(lost).items())\n",
        tests=("tests/txnwire/test_snapshot.py::test_each_writer_of_a_transaction_that_does_not_count_is_kept",),
        why_tests="in few seeds two writers of one transaction lose before a snapshot that is written down",
    ),
    Mutant(
        name="one-gathering-transaction-fails",
        rule="what gathers in each transaction fails when its producer is fenced or its topic deleted (C6)",
        section="§7",
        file="txnclient/producing/channels/channel.py",
        old="        gathering = list(self._gathering.values())\n",
        new="        gathering = list(self._gathering.values())[:1]\n",
        tests=(
            "tests/txnclient/producing/test_lost_sends.py::"
            "test_what_gathers_in_each_of_several_transactions_ends_when_the_producer_is_fenced",
        ),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="one-unclosed-client-closed-at-exit",
        rule="the end of the interpreter closes each client that is open",
        section="§11",
        file="txnclient/sync/bridge.py",
        old="            clients = list(bridge._clients)\n",
        new="            clients = list(bridge._clients)[:1]\n",
        tests=(
            "tests/txnclient/sync/test_sync_signals.py::"
            "test_each_of_several_clients_that_nobody_closed_is_closed_when_the_interpreter_ends",
        ),
        why_tests="it has neither threads nor an interpreter that ends",
    ),
)
