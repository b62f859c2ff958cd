"""Break the rules that prevent endless waits: on connections that are never opened, read or closed, and on one topic of
a pattern that cannot be joined (§11)."""

from __future__ import annotations

from simulation.mutants.mutant import Edit, Mutant

CLIENT = "tests/txnclient/"
ENDED_LINKS = f"{CLIENT}connection/test_ended_links.py::"
CLOSED_LINKS = f"{CLIENT}connection/test_closed_links.py::"
TIME_UP = f"{CLIENT}producing/test_time_up.py::"
ELSEWHERE = f"{CLIENT}transactions/test_ends_elsewhere.py::"
SILENT = f"{CLIENT}connection/test_silent_servers.py::"
LETTERS = f"{CLIENT}consuming/feeds/test_dead_letters_at_the_end.py::"
DELETED = f"{CLIENT}consuming/feeds/test_dead_letters_of_deleted_topics.py::"
SIGNALS = f"{CLIENT}sync/test_sync_signals.py::"
PATTERN = f"{CLIENT}consuming/test_topic_pattern.py::"

NO_CLOSE = "a simulated client makes no call while it closes"
NO_SILENCE = "a simulated server that is silent loses its connections"
REACHED = "a simulated client that cannot reach a server for long is judged by what it reads, not by how long it waits"
NO_THREADS = "it has neither threads nor signals"
NO_PATTERN = "not looked for with seeds"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="attempt-not-begun-tells-nobody",
        rule="who waits for a connection that a closing client does not begin is told",
        section="§11",
        file="txnclient/connection/links.py",
        old="            opening.add_done_callback(lambda _: self._attempted(address, attempt))\n",
        new=(
            "            opening.add_done_callback(\n"
            "                lambda done: None if done.cancelled() else self._attempted(address, attempt)\n"
            "            )\n"
        ),
        tests=(
            f"{ENDED_LINKS}test_who_needs_a_connection_that_a_closing_client_does_not_begin_is_told_at_once",
            f"{CLOSED_LINKS}test_a_call_that_turns_to_another_server_as_its_client_closes_does_not_wait_until_its_"
            "time_is_up",
        ),
        why_tests=NO_CLOSE,
    ),
    Mutant(
        name="refused-link-left-open",
        rule="a connection that is of no use as soon as it is open is closed",
        section="§11",
        file="txnclient/connection/links.py",
        old="                await link.caller.close()  # nobody else knows it\n",
        new="",
        tests=(f"{ENDED_LINKS}test_a_connection_whose_announcement_cannot_be_sent_is_closed",),
        why_tests="no simulated client has more open transactions than a frame can name",
    ),
    Mutant(
        name="late-sends-wait-for-room",
        rule="what waits for room on a busy connection fails once its time is up",
        section="§11",
        file="txnclient/producing/channels/room_on_link.py",
        old="        if left_s is not None and self._timer is None:  # what was given up may have begun another look\n",
        new="        if False:\n",
        tests=(f"{TIME_UP}test_sends_behind_a_busy_connection_end_though_their_broker_reads_nothing",),
        why_tests=NO_SILENCE,
    ),
    Mutant(
        name="room-of-a-former-owner-awaited",
        rule="who waits for room waits for the connection that it writes to now",
        section="§11",
        file="txnclient/producing/channels/room_on_link.py",
        old="        if self._link is not link:\n            self._link = link\n",
        new="        if self._link is None:\n            self._link = link\n",
        tests=(
            f"{TIME_UP}test_who_waits_for_a_busy_connection_waits_for_that_of_the_next_owner_once_the_segment_has_"
            "moved",
        ),
        why_tests=NO_SILENCE,
    ),
    Mutant(
        name="failed-join-keeps-feeds",
        rule="a topic whose join has failed leaves no feeds with the terms of that membership",
        section="§8",
        file="txnclient/consuming/assigned_feeds.py",
        old=(
            "        self._keep_leaving(topic, membership)\n"
            "        for path in [path for path in self.by_path if topic_of_segment(path) == topic]:\n"
        ),
        new=(
            "        self._keep_leaving(topic, membership)\n"
            "        if not membership.life:\n"
            "            return True\n"
            "        for path in [path for path in self.by_path if topic_of_segment(path) == topic]:\n"
        ),
        tests=(f"{PATTERN}test_a_join_that_fails_leaves_nothing_of_what_was_assigned_meanwhile",),
        why_tests=NO_PATTERN,
    ),
    Mutant(
        name="topic-that-cannot-be-joined-holds-up-others",
        rule="topics of a pattern that cannot be joined now keep no others waiting",
        section="§8",
        file="txnclient/consuming/topic_pattern.py",
        old=(
            "        for some in _in_parts(topics):\n"
            "            for error in await self._join(some, self._session.deadline"
        ),
        new=(
            "        deadline = self._session.deadline(LOOK_TIMEOUT_S)\n"
            "        for some in _in_parts(topics):\n"
            "            for error in await self._join(some, deadline or self._session.deadline"
        ),
        tests=(f"{PATTERN}test_topics_that_cannot_be_joined_now_keep_no_others_waiting",),
        why_tests=NO_PATTERN,
    ),
    Mutant(
        name="one-long-name-ends-a-pattern",
        rule="a topic whose dead letters can have no topic is left out by a consumer of a pattern",
        section="§11",
        file="txnclient/consuming/topic_pattern.py",
        old="            except InvalidArgument as error:\n                self._refused[topic] = None\n",
        new="            except LookupError as error:\n                self._refused[topic] = None\n",
        tests=(f"{PATTERN}test_a_topic_whose_dead_letters_can_have_no_topic_is_told_and_left_out",),
        why_tests=NO_PATTERN,
    ),
    Mutant(
        name="silent-home-kept",
        rule="a client leaves a home that does not answer",
        section="§11",
        file="txnclient/connection/directory.py",
        old="            if not (home.stale or self._disowned.astray or self._silent is home):\n",
        new="            if not (home.stale or self._disowned.astray):\n",
        tests=(f"{SILENT}test_a_client_leaves_a_home_that_does_not_answer",),
        why_tests=NO_SILENCE,
    ),
    Mutant(
        name="silent-server-asked-again",
        rule="what any server answers is asked of another one at each try",
        section="§11",
        file="txnclient/connection/any_server.py",
        old="    addresses = [*addresses[tries % len(addresses) :], *addresses[: tries % len(addresses)]]\n",
        new="    addresses = [*addresses] if role else [addresses[tries % len(addresses)]]\n",
        tests=(f"{SILENT}test_a_request_that_any_server_answers_goes_to_another_one_if_the_first_does_not_answer",),
        why_tests=NO_SILENCE,
    ),
    Mutant(
        name="consumer-stays-at-former-owner",
        rule="who consumes leaves an owner that says nothing once another one serves the segment",
        section="§11",
        file="txnclient/consuming/feeds/feed.py",
        old="        self._moved = MovedSegment(session, self.segment, link, self._leave_broker)\n",
        new="",
        tests=(f"{SILENT}test_who_is_at_an_owner_that_hangs_turns_to_the_next_one",),
        why_tests=NO_SILENCE,
    ),
    Mutant(
        name="producer-stays-at-former-owner",
        rule="a producer leaves an owner that says nothing once another one serves the segment",
        section="§11",
        file="txnclient/producing/channels/channel.py",
        old="        self._moved = MovedSegment(session, self.segment, link, self._open_elsewhere)\n",
        new="        self._moved = MovedSegment(session, self.segment, link, int)\n",
        tests=(f"{SILENT}test_who_is_at_an_owner_that_hangs_turns_to_the_next_one",),
        why_tests=NO_SILENCE,
    ),
    Mutant(
        name="former-owner-left-at-once",
        rule="an owner that hands a segment over has the time to say so, and to answer what is under way",
        section="§11",
        file="txnclient/connection/moved_segments.py",
        old="call_later(MOVED_S, self._due)",
        new="call_later(MOVED_S / 10, self._due)",
        tests=(f"{SILENT}test_an_owner_that_tells_itself_that_a_segment_has_moved_is_given_the_time_for_it",),
        why_tests="an owner that is left too early looks like a lost connection",
    ),
    Mutant(
        name="deleted-dead-letter-topic-ends-workers",
        rule="a consumer goes on where the topic of its dead letters, or of one of them, is deleted",
        section="§11",
        file="txnclient/consuming/feeds/dead_letters.py",
        old="MessageTooLarge, TopicNotFound, SubscriptionNotFound, OutcomeUnknown)\n",
        new="MessageTooLarge, OutcomeUnknown)\n",
        tests=(
            f"{DELETED}test_dead_letters_go_on_behind_the_deletion_of_their_topic",
            f"{DELETED}test_a_topic_that_is_deleted_while_a_dead_letter_of_it_is_moved_is_left_quietly",
        ),
        why_tests="the simulation has no dead letters whose topics are deleted",
    ),
    Mutant(
        name="closing-consumer-cut-off",
        rule="a client that closes waits for consumers that are closing",
        section="§11",
        file="txnclient/consuming/consumer_impl.py",
        old="        self._assigned.take_no_more()\n        if self._following is not None:\n",
        new=(
            "        self._assigned.take_no_more()\n"
            "        self._on_closed(self)\n"
            "        if self._following is not None:\n"
        ),
        tests=(f"{LETTERS}test_a_client_that_closes_meanwhile_lets_a_consumer_leave_in_order",),
        why_tests="a simulated client closes its consumers one after the other",
    ),
    Mutant(
        name="second-close-returns-at-once",
        rule="a second close of a consumer waits for the first",
        section="§11",
        file="txnclient/consuming/consumer_impl.py",
        old="                await self._all_closed.wait()  # its caller may end the loop, or the connections\n",
        new="                return\n",
        tests=(f"{LETTERS}test_a_client_that_closes_meanwhile_lets_a_consumer_leave_in_order",),
        why_tests="a simulated client closes a consumer once",
    ),
    Mutant(
        name="look-ups-outlive-their-client",
        rule="who looks up a topic is told that the client was closed",
        section="§11",
        file="txnclient/connection/directory.py",
        old="            if self._ended:  # ▲ C6",
        new="            if self._ended and topic in self._topics:  # ▲ C6",
        tests=(f"{CLOSED_LINKS}test_whoever_looks_up_a_topic_is_told_that_its_client_was_closed",),
        why_tests=NO_CLOSE,
    ),
    Mutant(
        name="news-of-a-topic-awaited-by-a-closed-client",
        rule="who waits for the news of a topic that was made again is told that the client was closed",
        section="§11",
        file="txnclient/connection/registrations.py",
        old='            if self._session.closed:\n                raise ConnectionLost(f"looking up',
        new='            if self._task is None:\n                raise ConnectionLost(f"looking up',
        tests=(
            f"{CLOSED_LINKS}test_whoever_waits_for_the_news_of_a_topic_that_was_made_again_is_told_that_its_client_"
            "was_closed",
        ),
        why_tests=NO_CLOSE,
    ),
    Mutant(
        name="one-unreadable-topic-leaves-no-home",
        rule="a topic whose record cannot be read keeps no other one from being followed",
        section="§8",
        file="txnclient/connection/directory.py",
        old="                except DataCorrupt as error:\n",
        new="                except LookupError as error:\n",
        tests=(
            f"{CLIENT}connection/test_topics_of_a_new_home.py::"
            "test_a_topic_whose_record_cannot_be_read_keeps_no_other_one_from_being_followed",
        ),
        why_tests="no simulated record of a topic is damaged",
    ),
    Mutant(
        name="unreadable-topic-not-watched",
        rule="the repair of a topic that could not be read is told to those who asked for it",
        section="§8",
        file="segments/layout/layout_service.py",
        old="        except DataCorrupt as error:  # the answer says so, and a repair is pushed\n",
        new="        except LookupError as error:\n",
        tests=(
            "tests/segments/layout/test_layout_service.py::"
            "test_a_topic_that_was_unreadable_when_it_was_asked_for_is_pushed_once_it_is_repaired",
        ),
        why_tests="no simulated record of a topic is damaged",
    ),
    Mutant(
        name="one-damaged-topic-ends-a-pattern",
        rule="a topic whose record cannot be read is left out by a consumer of a pattern until it is repaired",
        section="§11",
        file="txnclient/consuming/topic_pattern.py",
        old="                if isinstance(error, DataCorrupt):\n                    self._tell_damaged(error)\n",
        new="                if isinstance(error, LookupError):\n                    pass\n",
        tests=(f"{PATTERN}test_a_topic_whose_record_cannot_be_read_keeps_no_other_one_from_being_joined",),
        why_tests="no simulated record of a topic is damaged",
    ),
    Mutant(
        name="ended-at-one-coordinator-alone",
        rule="a transaction is ended, and attached to, at any coordinator while that of its id cannot be reached",
        section="§5",
        file="txnclient/transactions/coordinators.py",
        old="        return await self._session.links.get(addresses[tries % len(addresses)], deadline)\n",
        new="        return await self._session.links.get(addresses[0], deadline)\n",
        tests=(
            f"{ELSEWHERE}test_a_transaction_is_ended_elsewhere_while_the_owner_of_its_tcid_cannot_be_reached[COMMITTED]",
        ),
        why_tests=REACHED,
    ),
    Mutant(
        name="unreachable-coordinator-asked-again",
        rule="an end of a transaction turns to the next coordinator also where the first one cannot be reached",
        section="§5",
        file="txnclient/transactions/coordinators.py",
        old="            link = await self._link_to_end(txn.id.tcid, next(tries), deadline)\n",
        new=(
            "            link = await self._link_to_end(txn.id.tcid, tries[0], deadline)\n            tries[0] += 1\n"
        ),
        more=(
            Edit(
                "txnclient/transactions/coordinators.py",
                "        tries = itertools.count()\n\n        async def attempt() -> pb.EndTxnOk:\n",
                "        tries = [0]\n\n        async def attempt() -> pb.EndTxnOk:\n",
            ),
        ),
        tests=(
            f"{ELSEWHERE}test_a_transaction_is_ended_elsewhere_while_the_owner_of_its_tcid_cannot_be_reached[ABORTED]",
        ),
        why_tests=REACHED,
    ),
    Mutant(
        name="unreachable-server-asked-again",
        rule="what any server answers is asked of the next one also where the first one cannot be reached",
        section="§11",
        file="txnclient/connection/any_server.py",
        old="        link = await _any_link(session, role, next(tries), deadline)\n",
        new="        link = await _any_link(session, role, 0, deadline)\n",
        tests=(f"{SILENT}test_a_request_that_any_server_answers_goes_to_another_one_if_the_first_cannot_be_reached",),
        why_tests="no simulated client lists topics while a server is down",
    ),
    Mutant(
        name="time-limit-of-a-handler-swallowed",
        rule="a `TimeoutError` that a signal handler of the caller raises ends a synchronous call (C1)",
        section="§11",
        file="txnclient/sync/bridge.py",
        old="        ended.acquire(timeout=min(left, SIGNALS_S))\n",
        new=(
            "        with suppress(TimeoutError, CancelledError):\n"
            "            Future.exception(future, min(left, SIGNALS_S))\n"
        ),
        tests=(
            f"{SIGNALS}test_c1_a_time_limit_of_the_caller_s_own_that_a_signal_handler_raises_ends_the_call[receive]",
        ),
        why_tests=NO_THREADS,
    ),
    Mutant(
        name="closed-under-a-cancelled-read",
        rule="a read of entries that an interrupt has cancelled ends before its generator is closed (C1)",
        section="§11",
        file="txnclient/sync/bridge.py",
        old="                await asyncio.wait([reading])  # ▲",
        new="                pass  # ▲",
        tests=(f"{SIGNALS}test_c1_an_interrupt_ends_a_read_of_entries_as_an_interrupt",),
        why_tests=NO_THREADS,
    ),
    Mutant(
        name="refused-close-ends-the-loop",
        rule="a close that is refused without await leaves the client its loop (C6)",
        section="§11",
        file="txnclient/sync/bridge.py",
        old="        self._expect_serving()\n        try:\n            self.wait(client.close())\n",
        new="        try:\n            self.wait(client.close())\n",
        tests=(
            f"{CLIENT}sync/test_behind_the_last_client.py::test_c6_a_close_that_is_refused_leaves_the_client_as_it_is",
        ),
        why_tests=NO_THREADS,
    ),
    Mutant(
        name="interpreter-waits-for-a-callback",
        rule="the end of the interpreter has a time limit that no callback of a sent message holds up (C6)",
        section="§11",
        file="txnclient/sync/bridge.py",
        old="            _wait(closing, EXIT_TIMEOUT_S)  # ▲",
        new="            _wait(closing)  # ▲",
        tests=(f"{SIGNALS}test_c6_a_callback_that_never_returns_does_not_keep_the_interpreter_from_its_end",),
        why_tests=NO_THREADS,
    ),
    Mutant(
        name="addresses-given-forgotten",
        rule="a client whose known servers are all gone turns to the addresses of its URL",
        section="§11",
        file="txnclient/connection/directory.py",
        old="return list(dict.fromkeys([*(address for address in known if address), *self._seeds]))",
        new="return list(dict.fromkeys([address for address in known if address] or self._seeds))",
        tests=(f"{ENDED_LINKS}test_a_client_whose_known_servers_are_all_gone_turns_to_the_address_of_its_url",),
        why_tests="no simulated cluster comes back under other addresses",
    ),
    Mutant(
        name="second-busy-connection-without-deadlines",
        rule="sends that wait for room on a connection end in time, also where it had no room before (C6)",
        section="§11",
        file="txnclient/producing/channels/room_on_link.py",
        old="                self._timer.cancel()\n                self._timer = None\n",
        new="                self._timer.cancel()\n",
        tests=(f"{TIME_UP}test_sends_behind_a_connection_that_is_busy_for_the_second_time_end_as_at_the_first",),
        why_tests=NO_SILENCE,
    ),
)
