"""Break sends, ends and openings that meet several events at once, or whose callers go away (SCENARIOS A5, C1 to C5,
C8)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

SEVERAL_SEGMENTS = "tests/txnclient/producing/channels/test_several_segments.py::"
CARELESS_ENDS = "tests/txnclient/test_careless_ends.py::"
CANCELLED_OPENINGS = "tests/txnclient/test_cancelled_openings.py::"
SEVERAL_TOPICS = "tests/txnclient/consuming/test_several_topics.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="commit-flushes-one-segment",
        rule="a commit sends at once what gathers for it in each segment (C2)",
        section="§6",
        file="txnclient/transactions/transaction_impl.py",
        old=("            for participant in list(self._participants):\n                participant.flush(self)"),
        new=("            for participant in list(self._participants)[:1]:\n                participant.flush(self)"),
        tests=(SEVERAL_SEGMENTS + "test_c2_a_commit_sends_at_once_what_gathers_for_each_segment",),
        why_tests="its batches linger for milliseconds",
    ),
    Mutant(
        name="uncounted-writer-given-up-in-one-segment",
        rule="a commit that does not count its writer gives up what that has for each segment (A5)",
        section="§10",
        file="txnclient/transactions/transaction_impl.py",
        old=(
            "        else:\n"
            "            for participant in list(self._participants):\n"
            "                participant.withdraw(self)\n"
            "        if self.aborting"
        ),
        new=(
            "        else:\n"
            "            for participant in list(self._participants)[:1]:\n"
            "                participant.withdraw(self)\n"
            "        if self.aborting"
        ),
        tests=(
            SEVERAL_SEGMENTS
            + "test_a5_a_commit_that_does_not_count_its_writer_gives_up_what_that_has_for_each_segment",
        ),
        why_tests="a send that ends by its timeout breaks no rule that its judges know",
    ),
    Mutant(
        name="abort-gives-up-one-segment",
        rule="an abort gives up at once what is not sent to each segment, answered or not (C2)",
        section="§6",
        file="txnclient/transactions/transaction_impl.py",
        old=(
            "        self._state = TransactionState.ABORTING\n"
            "        for participant in list(self._participants):\n"
            "            participant.withdraw(self)\n"
            "        try:"
        ),
        new=(
            "        self._state = TransactionState.ABORTING\n"
            "        for participant in list(self._participants)[:1]:\n"
            "            participant.withdraw(self)\n"
            "        try:"
        ),
        tests=(
            SEVERAL_SEGMENTS + "test_c2_an_abort_that_nobody_answers_has_given_up_what_is_not_sent_to_each_segment",
        ),
        why_tests="an abort that is answered gives up the rest",
    ),
    Mutant(
        name="first-of-those-that-abort-at-once",
        rule="of transactions that abort in one turn each gives up what is not sent (C2)",
        section="§6",
        file="txnclient/producing/channels/channel.py",
        old="            self._withdrawing[txn] = None\n",
        new="                self._withdrawing[txn] = None\n",
        tests=(
            SEVERAL_SEGMENTS + "test_c2_an_abort_that_nobody_answers_has_given_up_what_is_not_sent_to_each_segment",
        ),
        why_tests="an abort that is answered gives up the rest",
    ),
    Mutant(
        name="bulk-send-goes-on-in-an-abort",
        rule="a bulk send sends nothing more once its transaction is aborting (C2)",
        section="§6",
        file="txnclient/transactions/transaction_impl.py",
        old=(
            "        if self._state is not _OPEN and self._state is not TransactionState.COMMITTING:\n"
            "            raise self.withdrawn(doing)"
        ),
        new=("        if self._state is TransactionState.ABORTED:\n            raise self.withdrawn(doing)"),
        tests=(SEVERAL_SEGMENTS + "test_c2_a_bulk_send_sends_nothing_more_once_its_transaction_is_aborting",),
        why_tests="brokers refuse what comes behind the abort",
    ),
    Mutant(
        name="room-ends-at-a-piece",
        rule="who waits for room behind a piece that cannot be placed gets its turn (C3)",
        section="§6",
        file="txnclient/producing/buffer.py",
        old=("                ask.failure = error\n                self._give_up(ask)\n            else:"),
        new=(
            "                ask.failure = error\n"
            "                self._give_up(ask)\n"
            "                return\n"
            "            else:"
        ),
        tests=(SEVERAL_SEGMENTS + "test_c3_who_waits_for_room_behind_a_piece_that_cannot_be_placed_gets_its_turn",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="flush-of-the-first-part",
        rule="a flush waits for each part of what was divided before it (C4)",
        section="§6",
        file="txnclient/producing/producer_impl.py",
        old="        self._pending |= dict.fromkeys(parts)",
        new="        self._pending |= dict.fromkeys(parts[:1])",
        tests=(SEVERAL_SEGMENTS + "test_c4_a_flush_waits_for_each_part_of_what_was_divided_before",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="bulk-send-done-with-its-first-entry",
        rule="a bulk send is done once all segments have answered (C4)",
        section="§6",
        file="txnclient/producing/bulk_sends.py",
        old="            await asyncio.wait(unsettled)",
        new="            await asyncio.wait(unsettled[:1])",
        tests=(SEVERAL_SEGMENTS + "test_c4_a_bulk_send_is_done_once_all_segments_have_answered",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="bulk-by-an-older-layout",
        rule="a bulk send that waits for room goes where its keys belong by then (S5)",
        section="§8",
        file="txnclient/producing/channels/moving.py",
        old=(
            "        if layout.epoch != self.layout.epoch or layout.active != self.layout.active:\n"
            "            self.version += 1\n"
        ),
        new="",
        tests=(SEVERAL_SEGMENTS + "test_s5_a_bulk_send_that_waits_for_room_goes_where_its_keys_belong_by_then",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="keyless-transactions-kept",
        rule="a producer keeps nothing of transactions that have ended",
        section="§8",
        file="txnclient/producing/channels/channels.py",
        old=(
            "        if batch.txn is not None and self._keyless.get(batch.txn) is not None:\n"
            "            self._forget_keyless(batch.txn)\n"
        ),
        new="",
        tests=(SEVERAL_SEGMENTS + "test_what_was_sent_without_a_key_leaves_nothing_of_its_transaction_behind",),
        why_tests="its judges measure servers",
    ),
    Mutant(
        name="commit-past-a-lost-abort",
        rule="a commit whose sends an abort has withdrawn commits nothing, though that abort is lost (C1)",
        section="§6",
        file="txnclient/transactions/transaction_impl.py",
        old=(
            "        if self.aborting:\n"
            '            raise InvalidTxnState(f"transaction {self.id} cannot commit: it was aborted '
            'meanwhile")\n'
        ),
        new="",
        tests=(
            CARELESS_ENDS
            + "test_c1_a_commit_whose_sends_an_abort_has_withdrawn_commits_nothing_though_that_abort_is_lost",
        ),
        why_tests="none of its workers aborts beside its own commit",
    ),
    Mutant(
        name="last-failure-raised",
        rule="of several failures a commit raises the first: the others may come of it (C1)",
        section="§6",
        file="txnclient/transactions/transaction_impl.py",
        old=("        if self._failure is None:\n            self._failure = error\n\n    def finished"),
        new=("        self._failure = error\n\n    def finished"),
        tests=(CARELESS_ENDS + "test_c1_of_several_failures_a_commit_raises_the_first",),
        why_tests="its judges take any failure for one",
    ),
    Mutant(
        name="settled-without-end",
        rule="what nobody can tell any more is asked for no more (C5)",
        section="§6",
        file="txnclient/transactions/settling.py",
        old="if not error.retriable or self._session.clock.monotonic() > txn.expires_at + SLACK_S:",
        new="if self._session.clock.monotonic() > txn.expires_at + SLACK_S:",
        tests=(CARELESS_ENDS + "test_c5_what_is_settled_is_asked_for_no_more_once_nobody_can_tell",),
        why_tests="its coordinators know whatever they have begun",
    ),
    Mutant(
        name="settled-with-one-call",
        rule="what is settled is asked for until somebody answers (C5)",
        section="§6",
        file="txnclient/transactions/settling.py",
        old=(
            "                if not error.retriable or self._session.clock.monotonic() > "
            "txn.expires_at + SLACK_S:\n"
            "                    return"
        ),
        new="                return",
        tests=(CARELESS_ENDS + "test_c5_what_is_settled_is_asked_for_until_somebody_answers",),
        why_tests="a transaction that stays open until its deadline breaks no rule that its judges know",
    ),
    Mutant(
        name="close-waits-for-what-it-settles",
        rule="a client that closes waits for what it settles no longer than it says (C5)",
        section="§6",
        file="txnclient/transactions/settling.py",
        old="            await asyncio.wait(running, timeout=left)",
        new="            await asyncio.wait(running)",
        tests=(CARELESS_ENDS + "test_c5_a_client_that_closes_waits_for_what_it_settles_no_longer_than_it_says",),
        why_tests="its judges do not measure how long closing takes",
    ),
    Mutant(
        name="cut-off-commit-may-be-asked-again",
        rule="a commit that a closing client cuts off is of unknown outcome: nobody could ask again (C5)",
        section="§6",
        file="txnclient/transactions/coordinators.py",
        old=("            if self._session.closed:\n                raise OutcomeUnknown"),
        new=("            if False:\n                raise OutcomeUnknown"),
        tests=(
            CARELESS_ENDS
            + "test_c5_a_commit_that_a_closing_client_cuts_off_is_of_unknown_outcome_and_turned_round_by_nobody",
        ),
        why_tests="its workers take either error for an unknown outcome",
    ),
    Mutant(
        name="close-turns-a-commit-round",
        rule="a client that closes aborts nothing whose commit is under way (C5)",
        section="§6",
        file="txnclient/client.py",
        old='        if txn.state == "OPEN":\n            txn.abandoned = True\n',
        new='        if txn.state in ("OPEN", "COMMITTING"):\n            txn.abandoned = True\n',
        tests=(
            CARELESS_ENDS
            + "test_c5_a_commit_that_a_closing_client_cuts_off_is_of_unknown_outcome_and_turned_round_by_nobody",
        ),
        why_tests="either outcome is right there",
    ),
    Mutant(
        name="close-ends-with-the-first-loss",
        rule="a client whose producer tells of a loss as it closes closes the rest as ever (C4)",
        section="§6",
        file="txnclient/client.py",
        old="list(self._opened)), return_exceptions=True)",
        new="list(self._opened)))",
        tests=(CARELESS_ENDS + "test_c4_a_client_whose_producer_tells_of_a_loss_as_it_closes_closes_the_rest_as_ever",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="uncounted-failures-told",
        rule="the failures of a writer that does not count are told by the commit without it (C4)",
        section="§6",
        file="txnclient/producing/untold.py",
        old="if txn is not None and txn.state is not TransactionState.OPEN:",
        new="if txn is not None and txn.aborting:",
        tests=(CARELESS_ENDS + "test_c4_the_failures_of_a_writer_that_does_not_count_are_told",),
        why_tests="its producers are closed behind each loss",
    ),
    Mutant(
        name="note-forgotten-on-the-way",
        rule="a named commit that is asked for again has the same note (A5)",
        section="§10",
        file="txnclient/transactions/transaction_impl.py",
        old="await self.commit(writers=self._counted, note=self._note, timeout=timeout)",
        new="await self.commit(writers=self._counted, timeout=timeout)",
        tests=(CARELESS_ENDS + "test_a5_a_named_commit_that_was_cancelled_on_its_way_is_asked_for_with_the_same_note",),
        why_tests="its commits have no notes",
    ),
    Mutant(
        name="named-expires-by-the-earlier-clock",
        rule="a named transaction may be open for as long as any clock says so (A5)",
        section="§10",
        file="txnclient/transactions/coordinators.py",
        old="expires_at = max(expires_at, self._session.clock.monotonic() + left_s)",
        new="expires_at = min(expires_at, self._session.clock.monotonic() + left_s)",
        tests=(
            CARELESS_ENDS
            + "test_a5_a_named_commit_that_was_cancelled_on_its_way_is_asked_for_as_long_as_it_may_be_open",
        ),
        why_tests="a transaction that stays open until its deadline breaks no rule that its judges know",
    ),
    Mutant(
        name="outcome-of-a-namesake",
        rule="how another transaction of its name has committed is not told as its own (A5)",
        section="§10",
        file="txnclient/transactions/coordinators.py",
        old=("return _result(ok) if TxnId.from_bits(ok.txnid_most_bits, ok.txnid_least_bits) == txn.id else None"),
        new="return _result(ok)",
        tests=(CARELESS_ENDS + "test_a5_how_another_transaction_of_its_name_has_committed_is_not_told_as_its_own",),
        why_tests="its names are not begun again so late",
    ),
    Mutant(
        name="found-committed-and-not-read",
        rule="whoever finds a name committed reads what it has committed (A5)",
        section="§10",
        file="txnclient/transactions/coordinators.py",
        old=(
            "        if result is not None:\n"
            "            self._session.committed_at(result.revision)\n        # The first"
        ),
        new="        # The first",
        tests=(CARELESS_ENDS + "test_a5_whoever_finds_a_name_committed_reads_what_it_has_committed",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="name-begun-at-one-coordinator",
        rule="a name is begun at another coordinator where its own does not answer (A5)",
        section="§10",
        file="txnclient/transactions/coordinators.py",
        old=("        async def ask() -> TransactionImpl:\n            nonlocal turn\n            turn += 1\n"),
        new=("        async def ask() -> TransactionImpl:\n            nonlocal turn\n"),
        tests=(
            CARELESS_ENDS + "test_a5_a_name_is_asked_for_at_another_coordinator_where_its_own_does_not_answer[begin]",
        ),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="name-told-by-one-coordinator",
        rule="how a name has committed is asked at another coordinator where its own does not answer (A5)",
        section="§10",
        file="txnclient/transactions/coordinators.py",
        old=("        async def ask() -> pb.NewTxnOk:\n            nonlocal turn\n            turn += 1\n"),
        new=("        async def ask() -> pb.NewTxnOk:\n            nonlocal turn\n"),
        tests=(
            CARELESS_ENDS
            + "test_a5_a_name_is_asked_for_at_another_coordinator_where_its_own_does_not_answer[how it has committed]",
        ),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="consumer-of-a-cancelled-opening",
        rule="a consumer whose opening is cancelled is no member of its subscription (C5)",
        section="§8",
        file="txnclient/openers.py",
        old=("            except BaseException:\n                await consumer.close()\n                raise"),
        new=("            except Exception:\n                await consumer.close()\n                raise"),
        tests=(CANCELLED_OPENINGS + "test_c5_a_consumer_whose_opening_is_cancelled_is_no_member_of_its_subscription",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="connections-of-a-cancelled-opening",
        rule="a client whose opening is cancelled leaves no connection and no task (C5)",
        section="§8",
        file="txnclient/client.py",
        old=(
            "        except BaseException:\n"
            "            await self.close()\n"
            "            raise\n"
            "        return self\n"
            "\n"
            "    # ---- topics"
        ),
        new=(
            "        except TxnError:\n"
            "            await self.close()\n"
            "            raise\n"
            "        return self\n"
            "\n"
            "    # ---- topics"
        ),
        tests=(CANCELLED_OPENINGS + "test_c5_a_client_whose_opening_is_cancelled_leaves_no_connection_and_no_task",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="watch-of-a-cancelled-opening",
        rule="a watch whose opening is cancelled leaves nothing behind (C5)",
        section="§8",
        file="txnclient/openers.py",
        old=("            except BaseException:\n                await watch.close()\n                raise"),
        new=("            except Exception:\n                await watch.close()\n                raise"),
        tests=(CANCELLED_OPENINGS + "test_c5_a_watch_whose_opening_is_cancelled_leaves_nothing_behind",),
        why_tests="its judges measure servers",
    ),
    Mutant(
        name="watch-of-a-closed-client",
        rule="a watch is not opened whose client was closed meanwhile (C5)",
        section="§8",
        file="txnclient/openers.py",
        old=("                await watch.move(snapshot, timeout=timeout)\n                self._check_open()"),
        new="                await watch.move(snapshot, timeout=timeout)",
        tests=(CANCELLED_OPENINGS + "test_c5_a_watch_that_is_being_opened_while_its_client_closes_is_not_opened",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="closing-forgets-what-it-gives-back",
        rule="a consumer that closes leaves the segments that it is about to give back, too (C5)",
        section="§8",
        file="txnclient/consuming/assigned_feeds.py",
        old="for feed in [*self.by_path.values(), *self._retiring]:",
        new="for feed in [*self.by_path.values()]:",
        tests=(CANCELLED_OPENINGS + "test_c5_a_consumer_that_closes_leaves_the_segments_it_is_about_to_give_back",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="closed-producers-listen-on",
        rule="a producer that is closed leaves nothing in its client (C5)",
        section="§8",
        file="txnclient/producing/channels/channels.py",
        old="        self._unlisten()\n",
        new="",
        tests=(
            CANCELLED_OPENINGS + "test_c5_producers_that_are_closed_leave_nothing_at_their_brokers_nor_in_their_client",
        ),
        why_tests="its judges measure servers",
    ),
    Mutant(
        name="closed-producers-stay-at-brokers",
        rule="a producer that is closed is so at its brokers (C5)",
        section="§8",
        file="txnclient/producing/producer_impl.py",
        old=(
            "            self._channels.close()  # before `_fail`, which drops the connection without telling the "
            "broker\n"
        ),
        new="            self._channels._unlisten()\n",
        tests=(
            CANCELLED_OPENINGS + "test_c5_producers_that_are_closed_leave_nothing_at_their_brokers_nor_in_their_client",
        ),
        why_tests="brokers forget it with the connection",
    ),
    Mutant(
        name="fenced-as-it-opens-and-tries-again",
        rule="a producer that was fenced as it opened fences nobody in turn (C8)",
        section="§8",
        file="txnclient/producing/channels/channel.py",
        old=(
            "                except ProducerFenced as error:\n"
            "                    self._owner.fenced(error)\n"
            "                    return\n"
            "                except TxnError as error:"
        ),
        new="                except TxnError as error:",
        tests=(CANCELLED_OPENINGS + "test_c8_a_producer_that_was_fenced_as_it_opened_fences_nobody_in_turn",),
        why_tests="no two of its producers have one name",
    ),
    Mutant(
        name="closing-leaves-one-topic",
        rule="a consumer of several topics that closes leaves each of them (C5)",
        section="§8",
        file="txnclient/consuming/assigned_feeds.py",
        old="        memberships = self._memberships.values()\n",
        new="        memberships = list(self._memberships.values())[:1]\n",
        tests=(SEVERAL_TOPICS + "test_c5_a_consumer_of_several_topics_that_closes_leaves_each_of_them",),
        why_tests="its consumers are of one topic",
    ),
    Mutant(
        name="committing-block-swallows-a-cancel",
        rule="who is cancelled as its block commits is cancelled, though it has committed (C5)",
        section="§6",
        file="txnclient/consuming/consumer_impl.py",
        old="            if not committed or not isinstance(error, TxnError):",
        new="            if not committed:",
        tests=(
            "tests/txnclient/consuming/test_careless_consumers.py::"
            "test_c5_who_is_cancelled_as_its_block_commits_is_cancelled_though_it_has_committed",
        ),
        why_tests="its consumers ack in no block of theirs",
    ),
)
