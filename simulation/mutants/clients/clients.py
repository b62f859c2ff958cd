"""Break the client's rules (DESIGN §6, §8)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

CONSUMER_MEMBERSHIP = "tests/txnclient/consuming/test_consumer_membership.py::"

REAL_FILES = "the simulation has disks of its own: real files are behind `LedgerStore`"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="producer-of-two-lives",
        rule="a producer of a deleted topic sends nothing to the next one of its name, within one transaction either",
        section="§8",
        file="txnclient/producing/channels/channels.py",
        old="layout is None or routes.is_another(layout)",
        new="layout is None",
        faults="none",
        work_s=8.0,
    ),
    Mutant(
        name="commits-without-a-refused-send",
        rule="a transaction in which a producer has refused a send, as its topic is gone, can only abort (C1)",
        section="§6",
        file="txnclient/producing/producer_impl.py",
        old="                txn.failed(self._failure)",
        new="                pass",
        tests=("tests/test_deleted_in_use.py::test_no_send_to_what_was_deleted_leaves_its_transaction_able_to_commit",),
        why_tests="the simulation's one producer that outlives its topic sends outside of transactions",
    ),
    Mutant(
        name="stays-at-a-stale-home",
        rule="a client leaves a server that says that its view of the cluster is stale",
        section="§8",
        file="txnclient/connection/directory.py",
        old="            if not (home.stale or self._disowned.astray or",
        new="            if not (self._disowned.astray or",
        tests=(
            "tests/txnclient/connection/test_stale_home.py::"
            "test_a_client_whose_servers_are_all_stale_stays_and_asks_ever_more_slowly",
        ),
        why_tests="a server that is cut off from etcd alone is joined to it again before a client is through with it",
    ),
    Mutant(
        name="stays-where-owners-are-of-former-times",
        rule="a client leaves a server whose owners refuse it again and again",
        section="§8",
        file="txnclient/connection/directory.py",
        old="            if not (home.stale or self._disowned.astray or",
        new="            if not (home.stale or",
        tests=(
            "tests/txnclient/connection/test_stale_home.py::"
            "test_sends_go_on_though_home_names_an_owner_of_former_times_and_says_nothing",
        ),
        why_tests="every server of the simulation says that it is stale",
    ),
    Mutant(
        name="never-says-it-is-stale",
        rule="a server that has not heard its store for a lease's time says so",
        section="§8",
        file="segments/layout/freshness.py",
        old="                self._heard_at = asked_at\n            self._judge()\n",
        new="                self._heard_at = asked_at\n                self._judge()\n",
        tests=(
            "tests/segments/layout/test_layout_service.py::"
            "test_a_server_that_has_not_heard_the_store_for_a_lease_says_that_its_view_is_stale",
        ),
        why_tests="a server that is cut off from etcd alone is joined to it again before a client is through with it",
    ),
    Mutant(
        name="layout-by-its-owners",
        rule="an old layout never takes the place of a newer one, however new its owners are (S7)",
        section="§8",
        file="txnclient/connection/directory.py",
        old="revision_of(layout) < known.revision:",
        new="layout.revision < known.revision[1]:",
        tests=(
            "tests/txnclient/reading/test_reader_layouts.py::test_s7_an_old_layout_with_new_owners_takes_no_segment_away",
        ),
        why_tests="one seed in some thousands showed it",
    ),
    Mutant(
        name="assigned-by-name",
        rule="each of several consumers of one name over one connection is told of its own assignments (C8)",
        section="§8",
        file="txnclient/connection/links.py",
        old="routes = [(*name, assignment.incarnation)]",
        new="routes = [route for route in self.assignments if route[:3] == name][-1:]",
        tests=(CONSUMER_MEMBERSHIP + "test_c8_of_two_consumers_of_one_name_each_is_told_of_its_own",),
        why_tests="two in some hundreds of seeds showed it; not seen by thirty",
    ),
    Mutant(
        name="cumulative-ack-of-one-segment",
        rule="a cumulative ack acks what the consumer was handed out before in every segment (P2)",
        section="§6",
        file="txnclient/consuming/consumer_impl.py",
        old="        for path in dict.fromkeys((segment, *self._feeds)):\n",
        new="        for path in (segment,):\n",
        faults="none",
        work_s=8.0,
    ),
    Mutant(
        name="cumulative-ack-over-what-has-left",
        rule="no transaction acks cumulatively over what is delivered elsewhere or again since (P2)",
        section="§6",
        file="txnclient/consuming/received/delivered.py",
        old="        self._lost[segment] = min(place, self._lost.get(segment, place))\n",
        new="",
        faults="none",
        work_s=8.0,
    ),
    Mutant(
        name="member-of-who-leads-again",
        rule="a consumer that has left off hearing a controller joins it anew, should it lead again",
        section="§8",
        file="txnclient/consuming/membership.py",
        old="                self._link = None\n            self._joining",
        new="            self._joining",
        tests=(
            CONSUMER_MEMBERSHIP
            + "test_a_consumer_hears_of_a_controller_that_leads_again_though_another_could_not_be_joined",
        ),
        why_tests="one in a hundred seeds of 15 s showed it",
    ),
    Mutant(
        name="child-before-parent",
        rule="nothing is written to a segment before all it has come from have answered (S11)",
        section="§8",
        file="txnclient/producing/channels/moving.py",
        old=("            if parent in self.leaving:\n                return True\n"),
        new=("            if parent in self.leaving:\n                return False\n"),
        tests=(
            "tests/txnclient/producing/channels/test_moving.py::test_s11_a_merged_child_waits_for_both_and_a_grandchild_for_all",
        ),
        why_tests="not seen by the few seeds that were tried, of which nobody looked at sixty",
    ),
    Mutant(
        name="ahead-of-what-is-in-doubt",
        rule="what is sent meanwhile queues behind what is in doubt in its range",
        section="§8",
        file="txnclient/producing/channels/moving.py",
        old="                if segment.range[0] <= key_hash <= segment.range[1]:",
        new="                if segment.range[1] < key_hash < segment.range[0]:",
        tests=(
            "tests/txnclient/producing/channels/test_moving.py::test_what_belongs_to_a_sealed_segment_queues_behind_it_until_it_has_answered",
        ),
        why_tests="not seen by the few seeds that were tried, of which nobody looked at sixty",
    ),
    Mutant(
        name="seal-resends-all",
        rule="what a sealed segment holds is done, and never sent again",
        section="§8",
        file="txnclient/producing/channels/channel.py",
        old="        for batch in self._outbox.sealed(last_sequence_id):",
        new="        for batch in self._outbox.sealed(min(last_sequence_id, -1)):",
        faults="strike at a change,mute a broker,lose replies",
        work_s=20.0,
    ),
    Mutant(
        name="former-owner-believed",
        rule="what a former owner says it holds is not the last word",
        section="§8",
        file="txnclient/producing/channels/channel.py",
        old="        if opened.ownership_epoch < self._epoch and self._outbox.in_doubt:",
        new="        if opened.ownership_epoch < 0 and self._outbox.in_doubt:",
        tests=(
            "tests/txnclient/producing/channels/test_moving_producer.py::"
            "test_a_former_owner_that_believes_in_a_seal_which_was_undone_is_not_believed",
        ),
        why_tests="it takes a former owner of a seal that was undone, found again by who wrote to its successor",
    ),
    Mutant(
        name="commit-before-its-sends",
        rule="a commit waits for the sends and acks in flight, or fails (L6)",
        section="§6",
        file="txnclient/transactions/transaction_impl.py",
        old=(
            "        if self._under_way:\n"
            "            for participant in list(self._participants):\n"
            "                participant.flush(self)\n"
            "            await self._wait_settled(deadline)"
        ),
        new=(
            "        if self._under_way:\n"
            "            for participant in list(self._participants):\n"
            "                participant.flush(self)"
        ),
        work_s=12.0,
    ),
    Mutant(
        name="children-read-too-soon",
        rule="a reader begins a segment once its parents are handed out to their end (S7)",
        section="§8",
        file="txnclient/reading/reader_impl.py",
        old="            elif not feed.buffered and self._is_final(feed):",
        new="            elif self._is_final(feed):",
        work_s=12.0,
    ),
    Mutant(
        name="acks-survive-a-seek",
        rule="acks of what was received before a seek are void, also those sent again",
        section="§8",
        file="txnclient/consuming/feeds/feed.py",
        old="        self.acks.void_but(under)\n",
        new="",
        faults="none",
        work_s=8.0,
    ),
    Mutant(
        name="acks-survive-a-segment-s-return",
        rule="acks of what was received before a seek are void, also once the segment had left and come back",
        section="§8",
        file="txnclient/consuming/feeds/acks.py",
        old="        if now is not None and under.seeks != now.seeks:",
        new="        if now is not None and message.entry.holder is self._inbox and under.seeks != now.seeks:",
        faults="none",
        work_s=8.0,
    ),
    Mutant(
        name="acks-survive-a-subscription",
        rule="acks of what a deleted subscription's consumers received are void in the next one of its name",
        section="§8",
        file="segments/subscription/subscriptions.py",
        old="(self.created << SEEK_BITS) + self.cursor.seeks & MAX_UINT64",
        new="self.cursor.seeks",
        faults="none",
        work_s=8.0,
    ),
    Mutant(
        name="bulk-behind-a-gap",
        rule="what lies between two snapshots is read whole or refused, never behind a gap that retention has made",
        section="§10",
        file="txnclient/reading/entries.py",
        old="self.span is not None and not self.span.continues(topic_of_segment(self.segment))",
        new="self.span is not None",
        tests=("tests/txnclient/reading/test_entries.py::test_before_any_snapshot_what_is_kept_is_read",),
        why_tests="the simulation trims none of the topics that it reads in bulk",
    ),
    Mutant(
        name="bulk-ends-at-a-seal",
        rule="a segment has ended where its topic's layout says so: a seal may be given up",
        section="§8",
        file="txnclient/reading/entries.py",
        old="        return segment is None or segment.state != ACTIVE",
        new="        return segment is None or segment.state in (ACTIVE, segment.state)",
        tests=("tests/txnclient/reading/test_entries.py::test_a_seal_ends_it_only_once_the_layout_says_so",),
        why_tests="it reads in bulk up to cuts alone, and no seal stands before the end of one",
    ),
    Mutant(
        name="bulk-unbounded",
        rule="what is read in bulk is bounded by bytes, whatever the sizes of the entries",
        section="§10",
        file="txnclient/reading/entries.py",
        old="        request.permits_are_kib = True",
        new="        request.permits_are_kib = False",
        tests=(
            "tests/txnclient/reading/test_entries.py::test_memory_is_bounded_by_bytes_whatever_the_sizes_of_the_entries",
        ),
        why_tests="its entries are about as small as a permit, and it does not weigh its clients' memory",
    ),
    Mutant(
        name="heads-before-the-decisions",
        rule="heads tell what was aborted by the revision that was asked for",
        section="§10",
        file="segments/broker/broker_service.py",
        old="            await segment.wait_followed(request.min_revision)\n        page = await scan(",
        new="            await segment.wait_followed(0)\n        page = await scan(",
        tests=(
            "tests/segments/owner/test_scanning.py::test_a_scan_waits_until_decisions_are_followed_to_its_revision",
        ),
        why_tests="seldom is a scan the first to ask an owner that lags: not seen by five seeds with slow watches",
    ),
)
