"""Break rules for what comes behind a lost connection, a move that was undone or a request that is repeated (§7, §8,
§11)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

CLIENT = "tests/txnclient/"
FEEDS = f"{CLIENT}consuming/feeds/"
LINKS = f"{CLIENT}connection/test_links.py::"
DELETIONS = f"{CLIENT}connection/test_deletions_again.py::"
DIVIDED = f"{CLIENT}producing/channels/test_divided.py::"
NUMBERED = f"{CLIENT}producing/channels/test_numbered.py::"
HANDLERS = f"{CLIENT}test_handlers.py::"
SEEKING = f"{CLIENT}consuming/places/test_seeking_layouts.py::"
TRANSPORT = "tests/txnwire/transport/"

NO_LOOP = "it has no loop of `process`"
UNTRIED = "not looked for with seeds"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="children-pass-a-pruned-parent",
        rule="a reader hands out what it has of a segment that retention took before what its children hold",
        section="§8",
        file="txnclient/reading/reader_impl.py",
        old="and not any(_is_before(one, segment) for one in taken)",
        new="",
        tests=(
            "tests/txnclient/reading/test_reader_layouts.py::"
            "test_s7_children_wait_for_what_is_left_of_a_parent_that_retention_has_taken",
        ),
        why_tests="readers of the simulation take each message as it comes",
    ),
    Mutant(
        name="ack-timeout-ends-with-the-connection",
        rule="what a queue's consumer holds behind a lost connection comes again if it is not acked in time",
        section="§11",
        file="txnclient/consuming/feeds/queue_feed.py",
        old="        self._looking = self._ticking = None\n",
        new="        self._looking = None\n",
        tests=(f"{FEEDS}test_ack_timeouts.py::test_what_comes_after_a_lost_connection_has_its_time_too",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="looks-end-with-the-connection",
        rule="a consumer that hangs gives back what waits for it, also behind a lost connection",
        section="§6",
        file="txnclient/consuming/feeds/queue_feed.py",
        old="        self._looking = self._ticking = None\n",
        new="        self._ticking = None\n",
        tests=(f"{CLIENT}consuming/test_sharing_told.py::test_who_hangs_after_a_lost_connection_gives_back_too",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="moved-once-and-never-again",
        rule="a segment that came back to its owner is left when it moves away for good",
        section="§8",
        file="txnclient/connection/moved_segments.py",
        old="        self._timer = None\n        if self.is_elsewhere:\n            self._leave()\n",
        new="        if self.is_elsewhere:\n            self._leave()\n",
        tests=(
            f"{CLIENT}connection/test_silent_servers.py::"
            "test_an_owner_that_tells_itself_that_a_segment_has_moved_is_given_the_time_for_it",
        ),
        why_tests="no simulated owner hangs while its segment moves to and fro",
    ),
    Mutant(
        name="last-repeat-alone-ends",
        rule="all repeated sends of one id end with the first one",
        section="§7",
        file="txnclient/producing/channels/numbered.py",
        old="[*others, waits]",
        new="[waits]",
        tests=(NUMBERED + "test_all_repeated_sends_of_one_id_end_with_the_first_one",),
        why_tests="a simulated source repeats an id once",
    ),
    Mutant(
        name="dropped-pieces-keep-their-room",
        rule="pieces that come again, after a lost connection or given back, take their room once (A7)",
        section="§11",
        file="txnclient/consuming/received/pieces.py",
        old="        self._values.clear()\n        self._bytes = 0\n",
        new="        self._values.clear()\n",
        tests=(
            f"{CLIENT}consuming/received/test_pieces.py::test_incomplete_values_that_come_again_take_their_room_once",
        ),
        why_tests="no simulated history has 512 MiB of large values in one segment",
    ),
    Mutant(
        name="unknown-segment-passed-over-by-a-seek",
        rule="a seek has reached a segment, or the layout shows it no more",
        section="§6",
        file="txnclient/consuming/places/seeking.py",
        old="            if session.directory.segment(request.segment) is not None:\n",
        new="            if False:\n",
        tests=(SEEKING + "test_a_segment_that_its_owner_does_not_know_is_sought_until_the_layout_says_so_too",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="failures-outlive-the-next-connection",
        rule="who waits for a connection is told of failures since the last one alone",
        section="§11",
        file="txnclient/connection/links.py",
        old="            self._failures.pop(address, None)\n",
        new="",
        tests=(LINKS + "test_a_connection_that_was_made_takes_the_failures_before_it_along",),
        why_tests="no judge reads a message",
    ),
    Mutant(
        name="pauses-outlive-the-next-connection",
        rule="the pause before a connection is made again begins anew behind one that was made",
        section="§11",
        file="txnclient/connection/links.py",
        old="            self._backoffs.pop(address, None)\n",
        new="",
        tests=(LINKS + "test_a_connection_that_was_made_takes_the_failures_before_it_along",),
        why_tests="a second more changes no simulated history for the worse",
    ),
    Mutant(
        name="unconfirmed-deletion-denied",
        rule="a deletion that the store had not confirmed is done if its repeat finds nothing",
        section="§8",
        file="txnclient/connection/topic_changes.py",
        old="        except (Timeout, ConnectionLost, OutcomeUnknown):\n",
        new="        except (ConnectionLost, OutcomeUnknown):\n",
        tests=(DELETIONS + "test_a_deletion_that_the_store_had_not_confirmed_is_done_if_the_repeat_finds_nothing",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="refused-deletion-taken-for-done",
        rule="a deletion that was surely not made does not take another's for its own",
        section="§8",
        file="txnclient/connection/topic_changes.py",
        old="        except gone:\n            if not unanswered:\n                raise\n",
        new="        except gone:\n            pass\n",
        tests=(DELETIONS + "test_a_deletion_that_was_surely_not_made_does_not_take_another_s_for_its_own",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="commands-behind-hello-lost",
        rule="what a server sends right behind its answer to Hello is taken",
        section="§11",
        file="txnwire/transport/calls.py",
        old="    return reply.hello_ok, commands[1:]\n",
        new="    return reply.hello_ok, ()\n",
        tests=(f"{TRANSPORT}test_handshakes.py::test_commands_right_behind_the_answer_to_hello_are_taken",),
        why_tests="a server of ours sends nothing just then, unless it goes down",
    ),
    Mutant(
        name="frames-bounded-by-number-alone",
        rule="a peer that is behind keeps a bounded number of bytes that were read ahead",
        section="§11",
        file="txnwire/transport/stream.py",
        old="(len(self._inbox) >= INBOX_FRAMES or self._inbox_bytes >= INBOX_BYTES)",
        new="len(self._inbox) >= INBOX_FRAMES",
        tests=(f"{TRANSPORT}test_stream.py::test_few_large_frames_keep_more_from_being_read_as_many_small_ones_do",),
        why_tests="the simulation's connections are no streams of frames",
    ),
    Mutant(
        name="batch-held-behind-a-failed-message",
        rule="of a batch that is handled one by one a failed transaction leaves no message with the consumer",
        section="§11",
        file="txnclient/processing.py",
        old="            except TxnError:\n                await self._give_back(messages)\n                raise\n",
        new="            except TxnError:\n                raise\n",
        tests=(
            f"{CLIENT}test_processing.py::"
            "test_of_a_batch_that_is_handled_one_by_one_a_failed_transaction_leaves_no_message_behind_it",
        ),
        why_tests=NO_LOOP,
    ),
    Mutant(
        name="unnamed-output-to-the-first-producer",
        rule="an output that names no producer goes to the only one there is, or to none",
        section="§11",
        file="txnclient/handlers.py",
        old="        if len(chosen) == 1:\n",
        new="        if chosen:\n",
        tests=(HANDLERS + "test_an_output_that_names_no_producer_goes_to_the_only_one_or_to_none",),
        why_tests=NO_LOOP,
    ),
    Mutant(
        name="begun-ahead-until-the-first-pause",
        rule="a loop begins its transactions ahead again behind an idle moment",
        section="§11",
        file="txnclient/handlers.py",
        old="        begun, self._beginning, self._begun = self._begun, None, None\n",
        new="        begun, self._begun = self._begun, None\n",
        tests=(HANDLERS + "test_a_transaction_is_begun_ahead_again_behind_one_that_was_dropped_or_taken",),
        why_tests=NO_LOOP,
    ),
    Mutant(
        name="half-over-transaction-taken",
        rule="a transaction that was begun ahead and is half over gives way to a new one",
        section="§11",
        file="txnclient/handlers.py",
        old="expires_at - now > self._timeout_s / 2:",
        new="expires_at - now > 0:",
        tests=(HANDLERS + "test_one_whose_begin_failed_or_that_is_half_over_gives_way_to_a_new_one",),
        why_tests=NO_LOOP,
    ),
    Mutant(
        name="last-day-of-delays-refused",
        rule="a message may be delivered 30 days later to the millisecond",
        section="§6",
        file="txnclient/producing/later.py",
        old="    if at_ms > now_ms + MAX_DELAY_MS:\n",
        new="    if at_ms >= now_ms + MAX_DELAY_MS:\n",
        tests=(f"{CLIENT}producing/test_delivered_later.py::test_times_that_are_taken",),
        why_tests="no simulated message waits for 30 days",
    ),
    Mutant(
        name="home-left-for-a-short-call",
        rule="a call with a short timeout does not make the client leave the server that it follows the cluster at",
        section="§8",
        file="txnclient/connection/directory.py",
        old="if isinstance(error, Timeout) and patience_s == FOLLOW_TIMEOUT_S:",
        new="if isinstance(error, Timeout):",
        tests=(
            f"{CLIENT}connection/test_silent_servers.py::test_a_home_that_was_given_little_time_to_answer_is_not_left",
        ),
        why_tests="no judge counts the servers that a client asks",
    ),
    Mutant(
        name="known-layout-looked-up-in-vain",
        rule="who waits in vain for a newer layout is told so, not that the topic cannot be looked up",
        section="§8",
        file="txnclient/connection/directory.py",
        old="            if layout is not None:\n                return layout\n            if deadline.passed:\n",
        new=(
            "            if layout is not None and not deadline.passed:\n                return layout\n"
            "            if deadline.passed:\n"
        ),
        tests=(
            f"{CLIENT}reading/test_snapshots_over_layouts.py::test_who_waits_in_vain_for_a_later_layout_is_told_which",
            f"{CLIENT}reading/test_snapshots_over_layouts.py::"
            "test_who_looks_up_the_end_of_a_sealed_segment_is_told_what_is_waited_for",
            SEEKING + "test_a_seek_that_waits_for_the_children_of_a_sealed_segment_says_so_when_its_time_is_up",
        ),
        why_tests="no judge reads a message",
    ),
    Mutant(
        name="sends-wait-for-an-ended-loop",
        rule="a send that its loop has ended without fails, also if the close of the last client was interrupted",
        section="§11",
        file="txnclient/sync/bridge.py",
        old=(
            "            for sent in [one for one in self._sent if not one.done()]:\n                sent.abandoned()\n"
        ),
        new="            pass\n",
        tests=(
            f"{CLIENT}sync/test_behind_the_last_client.py::"
            "test_who_waits_for_a_send_is_told_where_the_close_of_the_last_client_was_interrupted",
        ),
        why_tests="it has no threads",
    ),
    Mutant(
        name="place-kept-over-a-seek",
        rule="a reader that has sought tells where it was sent, also before its first message",
        section="§11",
        file="txnclient/reading/reader_impl.py",
        old="        self._standing = HandedOut()\n        self._advance()\n",
        new="        self._advance()\n",
        tests=(
            f"{CLIENT}reading/test_reader_positions.py::"
            "test_behind_a_seek_it_tells_where_it_was_sent_and_not_where_it_stood",
        ),
        why_tests="no simulated reader seeks",
    ),
    Mutant(
        name="losses-remembered-over-a-seek",
        rule="a transaction acks up to what a consumer has received behind a seek, whatever was lost before it",
        section="§6",
        file="txnclient/consuming/consumer_impl.py",
        old="                feed.start_over()\n        self._order.forget_lost()\n\n    def rewind",
        new="                feed.start_over()\n\n    def rewind",
        tests=(f"{FEEDS}test_void_acks.py::test_behind_a_seek_a_transaction_acks_up_to_what_it_has_received_anew",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="unsubscribe-ends-at-a-deleted-topic",
        rule="a consumer of several topics unsubscribes from all that are left",
        section="§11",
        file="txnclient/consuming/consumer_impl.py",
        old=(
            "            except (SubscriptionNotFound, TopicNotFound) as error:\n"
            '                _log.debug("%s has left'
        ),
        new='            except SubscriptionNotFound as error:\n                _log.debug("%s has left',
        tests=(
            f"{CLIENT}consuming/places/test_positions.py::test_unsubscribe_goes_on_where_one_of_the_topics_was_deleted",
        ),
        why_tests="no simulated consumer unsubscribes",
    ),
    Mutant(
        name="rewind-forgets-the-abort",
        rule="a consumer that starts over again still waits until its broker has followed the abort it has heard of",
        section="§6",
        file="txnclient/consuming/feeds/feed.py",
        old="self._min_revision = max(self._min_revision, min_revision)",
        new="self._min_revision = min_revision",
        tests=(
            f"{CLIENT}consuming/test_consumer.py::"
            "test_who_starts_over_twice_still_waits_for_the_abort_that_it_has_heard_of",
        ),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="pause-outlasts-the-stop",
        rule="a loop that pauses before it tries again stops at once when it is told to",
        section="§11",
        file="txnclient/processing.py",
        old="            await asyncio.wait((stopping,), timeout=pause_s)\n",
        new="            await asyncio.sleep(pause_s)\n",
        tests=(HANDLERS + "test_a_loop_that_pauses_before_it_tries_again_stops_at_once",),
        why_tests=NO_LOOP,
    ),
    Mutant(
        name="divided-batch-looked-at-too-early",
        rule="a batch that was divided ends with its last part",
        section="§8",
        file="txnclient/producing/channels/batches.py",
        old="if self.settled.done() or not all(end.done() for end in ends):",
        new="if self.settled.done() or not any(end.done() for end in ends):",
        tests=(DIVIDED + "test_a_divided_batch_ends_with_its_last_part_and_fails_if_one_has_failed",),
        why_tests=UNTRIED,
    ),
    Mutant(
        name="last-id-goes-back",
        rule="the last sequence id that a producer knows as stored never goes back",
        section="§7",
        file="txnclient/producing/producer_impl.py",
        old="        if stored and batch.last > self._last_stored:\n",
        new="        if stored:\n",
        tests=(DIVIDED + "test_the_last_sequence_id_does_not_go_back_where_a_slower_segment_answers_later",),
        why_tests="no judge reads it",
    ),
    Mutant(
        name="one-segment-less",
        rule="a topic may have as many segments as there are hashes",
        section="§8",
        file="txnclient/connection/topic_changes.py",
        old="    if segments > HASH_SPACE:\n",
        new="    if segments >= HASH_SPACE:\n",
        tests=(f"{CLIENT}test_wrong_arguments.py::test_a_topic_may_have_as_many_segments_as_there_are_hashes",),
        why_tests="no simulated topic has so many",
    ),
    Mutant(
        name="former-owner-s-time-ends-at-the-next",
        rule="a consumer that has turned to the next owner of its segment in time stays there",
        section="§8",
        file="txnclient/connection/moved_segments.py",
        old="        self._unlisten()\n        if self._timer is not None:\n            self._timer.cancel()\n",
        new="        self._unlisten()\n",
        tests=(
            f"{CLIENT}connection/test_silent_servers.py::test_who_has_turned_to_the_next_owner_in_time_stays_there",
        ),
        why_tests="an owner that is left without need looks like a lost connection",
    ),
)
