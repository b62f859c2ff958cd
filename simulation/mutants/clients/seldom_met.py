"""Break rules that matter only after an earlier failure, or with large numbers (DESIGN §7, §11)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

UNTRIED_HERE = "no seed was looked for: its test dies of this line alone"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="late-leave-ends-the-next-membership",
        rule="a topic of a pattern is joined again once the leave behind a join that failed is answered",
        section="§8",
        file="txnclient/consuming/assigned_feeds.py",
        old="            await former.wait_left(deadline)\n",
        new="            pass\n",
        tests=(
            "tests/txnclient/consuming/test_topic_pattern.py::"
            "test_a_leave_that_lands_late_does_not_end_the_next_membership",
        ),
        why_tests="one seed in a hundred has a join fail while no controller is elected, and its topic come again",
    ),
    Mutant(
        name="former-owner-tells-a-lag",
        rule="an owner that has lost its segment tells no lag",
        section="§7",
        file="segments/subscription/lag.py",
        old=(
            "        self._events.check()  # ▲ if this owner lost the segment meanwhile, it counted up to an old end\n"
            "        return found"
        ),
        new="        return found",
        tests=("tests/segments/subscription/test_lag.py::test_an_owner_that_has_lost_the_segment_tells_nothing",),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="given-up-by-the-broker-counts",
        rule="messages of a consumer that the broker gives up do not count as delivered in vain",
        section="§7",
        file="segments/subscription/queue_subscription.py",
        old="self.detach(consumer, counted=False)",
        new="self.detach(consumer)",
        tests=(
            "tests/segments/subscription/test_queue_subscription.py::"
            "test_messages_of_a_consumer_that_the_broker_gives_up_do_not_count_as_delivered_in_vain",
        ),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="told-failures-fill-the-list",
        rule="a flush raises no failure that the sender was told of, however many there were (C4)",
        section="§11",
        file="txnclient/producing/untold.py",
        old=(
            "        while self._failed and self._told(*self._failed[0]):\n"
            "            _silence(self._failed.popleft()[0])\n"
        ),
        new="",
        tests=(
            "tests/txnclient/producing/test_lost_sends.py::"
            "test_c4_however_many_failures_the_sender_was_told_of_a_flush_raises_none",
        ),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="only-the-first-topics-are-joined",
        rule="a pattern's consumer joins all topics that match as it is opened",
        section="§11",
        file="txnclient/consuming/topic_pattern.py",
        old="for at in range(0, len(topics), JOINED_AT_ONCE):",
        new="for at in range(0, min(len(topics), JOINED_AT_ONCE), JOINED_AT_ONCE):",
        tests=("tests/txnclient/consuming/test_topic_pattern.py::test_all_that_match_are_joined_however_many",),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="topic-that-cannot-be-joined-is-left-out",
        rule="a topic that matches and cannot be joined fails the opening",
        section="§11",
        file="txnclient/consuming/topic_pattern.py",
        old="deadline, later=False):\n                raise error\n",
        new="deadline, later=False):\n                _log.debug('%s', error)\n",
        tests=(
            "tests/txnclient/consuming/test_topic_pattern.py::test_a_topic_that_cannot_be_joined_fails_the_opening",
        ),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="deleted-topics-are-remembered",
        rule="a pattern's consumer forgets topics that are gone",
        section="§11",
        file="txnclient/consuming/topic_pattern.py",
        old="        self._gone = {topic: gone for topic, gone in self._gone.items() if topic in there}\n",
        new="",
        tests=("tests/txnclient/consuming/test_topic_pattern.py::test_a_topic_that_is_gone_is_not_remembered",),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="exempt-for-one-look",
        rule="a message on its way to the dead letters is not late, however long that takes",
        section="§11",
        file="txnclient/consuming/feeds/ack_timeouts.py",
        old=("                    exempt[entry] = self._exempt[entry]\n                    bits &= ~exempt[entry]\n"),
        new="                    bits &= ~self._exempt[entry]\n",
        tests=("tests/txnclient/consuming/feeds/test_ack_timeouts.py::test_what_goes_to_the_dead_letters_is_not_late",),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="once-in-vain-always-in-vain",
        rule="an application that got what it asked for has not asked in vain",
        section="§11",
        file="txnclient/consuming/feeds/pace.py",
        old=("        self._taken += count\n        self._in_vain = False\n"),
        new="        self._taken += count\n",
        tests=(
            "tests/txnclient/consuming/feeds/test_pace.py::"
            "test_an_application_that_got_what_it_asked_for_has_not_asked_in_vain",
        ),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="unsent-ack-left-to-the-abort",
        rule="a message whose ack in a transaction never left is given back (A4)",
        section="§11",
        file="txnclient/consuming/feeds/acks.py",
        old="if txn is None or not batch.sent:  # a",
        new="if txn is None:  # a",
        tests=(
            "tests/txnclient/consuming/feeds/test_queue_consumer.py::"
            "test_an_ack_in_a_transaction_that_never_left_gives_its_message_back",
        ),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="withdrawn-acks-keep-a-segment",
        rule="a segment is left as soon as an abort has withdrawn its last acks",
        section="§11",
        file="txnclient/consuming/feeds/acks.py",
        old=("        txn.finished(None)\n        self._check_answered()\n"),
        new="        txn.finished(None)\n",
        tests=(
            "tests/txnclient/consuming/feeds/test_consumer_acks.py::"
            "test_an_abort_that_withdraws_the_last_acks_lets_a_segment_be_left_at_once",
        ),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="failed-move-keeps-permits",
        rule="the permits of dead letters that could not be moved come back",
        section="§11",
        file="txnclient/consuming/feeds/dead_letters.py",
        old=(
            "                    await self._move(holder, messages)\n"
            "                except TxnError as error:\n"
            "                    await self._give_back(holder, messages, error)\n"
            "                waiting.popleft()\n"
            "                holder.settled(len(messages))"
        ),
        new=(
            "                    await self._move(holder, messages)\n"
            "                    holder.settled(len(messages))\n"
            "                except TxnError as error:\n"
            "                    await self._give_back(holder, messages, error)\n"
            "                waiting.popleft()"
        ),
        tests=(
            "tests/txnclient/consuming/feeds/test_dead_letters.py::"
            "test_all_permits_of_a_batch_that_could_not_be_moved_come_back",
        ),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="registering-leaves-listeners",
        rule="a registration that has ended leaves no listener behind",
        section="§11",
        file="txnclient/connection/registrations.py",
        old=("            unlisten()\n            if forget"),
        new="            if forget",
        tests=(
            "tests/txnclient/connection/test_registrations.py::"
            "test_registrations_that_come_and_go_leave_nothing_behind",
        ),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="batch-behind-a-passing-error-is-kept",
        rule="a queue's messages that were handled in vain before their ack are given back",
        section="§11",
        file="txnclient/processing.py",
        old=(
            "            if not self._ordered and isinstance(error, Exception) "
            "and not isinstance(error, HandlerFailed):\n"
            "                await self._give_back(step.messages)\n"
        ),
        new="",
        tests=(
            "tests/txnclient/test_processing.py::"
            "test_a_queue_s_batch_whose_handler_met_a_passing_error_is_handled_again",
        ),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="watch-opens-at-a-member-that-was-left",
        rule="a watch that is being opened at a member that is left for another is over (C6)",
        section="§4",
        file="txnstore/etcd/watch.py",
        old="        if self._opening is not None:\n            self._opening.cancel()",
        new="        if self._opening is not None:\n            pass",
        tests=(
            "tests/txnstore/etcd/test_mute_etcd.py::"
            "test_c6_a_watch_whose_member_is_left_while_it_is_being_opened_is_over",
        ),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="maintenance-refused-by-an-old-etcd-is-retriable",
        rule="a refusal for want of rights is told as such whatever code etcd gives it",
        section="§4",
        file="txnstore/etcd/connection.py",
        old='    if code is grpc.StatusCode.UNKNOWN and "permission denied" in text:',
        new='    if code is grpc.StatusCode.PERMISSION_DENIED and "permission denied" in text:',
        tests=("tests/txnstore/etcd/test_etcd_security.py::test_what_a_user_may_not_touch_is_refused",),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="synchronous-loop-takes-all",
        rule="the synchronous loop, too, leaves long jobs of a queue to other workers",
        section="§11",
        file="txnclient/sync/processing.py",
        old="            pace.worked(len(handled), clock.monotonic() - begun_s)\n",
        new="            pace.worked(len(handled), 0.0)\n",
        tests=(
            "tests/txnclient/sync/test_sync_processing.py::"
            "test_of_long_jobs_a_worker_takes_one_at_a_time_and_leaves_the_others_to_its_like",
        ),
        why_tests="the simulation's clients are asynchronous",
    ),
    Mutant(
        name="giving-back-is-no-progress",
        rule="a loop that gives messages back makes progress",
        section="§11",
        file="txnclient/processing.py",
        old=("            self._nacked += len(step.refused)\n            self._progressed()\n"),
        new="            self._nacked += len(step.refused)\n",
        tests=(
            "tests/txnclient/test_processing.py::test_a_queue_s_loop_that_only_gives_messages_back_makes_progress_too",
        ),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="no-time-out-behind-a-time-out",
        rule="requests behind one that timed out time out too (C6)",
        section="§11",
        file="txnwire/transport/calls.py",
        old="        self._due = math.inf\n        self._sweep_timer = None\n",
        new="        self._sweep_timer = None\n",
        tests=("tests/txnwire/transport/test_calls.py::test_requests_behind_one_that_timed_out_time_out_too",),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="cancel-lost-as-the-call-ends",
        rule="a caller is cancelled in whatever turn, also in that in which what it waits for ends",
        section="§11",
        file="txnclient/connection/registrations.py",
        old=(
            "                async with asyncio.timeout(min(OPENING_S, deadline.remaining())):\n"
            "                    await registration.tried.wait()\n"
        ),
        new="                await asyncio.wait_for(registration.tried.wait(), min(OPENING_S, deadline.remaining()))\n",
        tests=(
            "tests/txnclient/connection/test_registrations.py::"
            "test_an_opening_is_cancelled_at_whatever_turn_its_registration_is_answered",
        ),
        why_tests="one seed in a thousand cancels an opening in that turn",
    ),
    Mutant(
        name="acks-wait-for-an-ended-membership",
        rule="acks of a consumer that cannot join again fail with the reason (C6)",
        section="§11",
        file="txnclient/consuming/assigned_feeds.py",
        old="                feed.hold_on(error)\n",
        new="                pass\n",
        tests=(
            "tests/txnclient/consuming/test_consumer_membership.py::"
            "test_an_ack_raises_why_the_consumer_cannot_join_again",
        ),
        why_tests=UNTRIED_HERE,
    ),
)
