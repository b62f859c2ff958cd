"""Break the rules of the careful etcd client and of its records, ops and ids (DESIGN §4, §5)."""

from __future__ import annotations

from simulation.mutants.mutant import TAKE_OVERS, UNANSWERED, ZOMBIES, Edit, Mutant

MUTANTS = (
    # ---- keys ----
    Mutant(
        name="aborted-record-parsed-by-a-name",
        rule="the parts of a segment's path are counted off: a topic may be called `aborted`",
        section="§4",
        faults=TAKE_OVERS,
        file="txnstore/keys.py",
        old='    what, _, tail = segment_state_parts(key)[1].partition("/")\n',
        new='    _, what, tail = key.decode().partition("aborted/")\n    what = what.rstrip("/")\n',
    ),
    # ---- unknown outcomes ----
    Mutant(
        name="unknown-taken-for-failure",
        rule="a write that goes unanswered is repeated until its verdict is definite, never taken for a failure",
        section="§4",
        faults=UNANSWERED,
        file="txnstore/access/group_commit.py",
        old="                parts.appendleft(_RequestPart(part.members, unanswered=fence.revision))\n",
        new="                for member in part.members:\n"
        '                    _fail(member, StoreUnavailable("no answer"))\n',
    ),
    Mutant(
        name="unknown-taken-for-success",
        rule="a write that goes unanswered is repeated until its verdict is definite, never taken for a success",
        section="§4",
        faults=UNANSWERED,
        file="txnstore/access/group_commit.py",
        old="                parts.appendleft(_RequestPart(part.members, unanswered=fence.revision))\n",
        new="                taken = CommitVerdict(True, fence.revision, ())\n"
        "                _resolve(part.members, [taken] * len(part.members))\n",
    ),
    Mutant(
        name="repeat-without-identity",
        rule="a repeat tells its own earlier sending from somebody else's write",
        section="§4",
        faults=UNANSWERED,
        file="txnstore/access/group_commit.py",
        old="results = await self._backend.commit(part.members, repeated=part.repeated, fence=fence)",
        new="results = await self._backend.commit(part.members, repeated=False, fence=fence)",
    ),
    Mutant(
        name="repeat-without-fence",
        rule="before a write is sent again, its earlier sending is made void: it never lands behind the later one",
        section="§4",
        faults=UNANSWERED,
        file="txnstore/access/group_commit.py",
        old="fence = await self._fence.under(dead=part.unanswered)",
        new="fence = await self._fence.under(dead=0)",
    ),
    # ---- group commit ----
    Mutant(
        name="compares-share-a-request-with-writes",
        rule="no request holds a compare on a key that another of its members writes",
        section="§4",
        file="txnstore/access/grouping.py",
        old="            written.isdisjoint(member.compared)\n"
        "            and written.isdisjoint(member.written)\n"
        "            and self._compared.keys.isdisjoint(member.written)\n",
        new="            written.isdisjoint(member.written)\n",
        tests=("tests/txnstore/access/test_grouping.py::test_who_may_share_a_request",),
        why_tests="who compares a record here and who writes it are different processes, or write it both",
    ),
    Mutant(
        name="two-unanswered-writes-of-a-key",
        rule="a process has at most one unanswered write of a key in flight",
        section="§4",
        file="txnstore/access/grouping.py",
        old="        held = self._held\n        for key in member.written:\n            if key in held:\n",
        new="        held = self._held\n        for key in member.written:\n            if key in held and False:\n",
        tests=("tests/txnstore/access/test_grouping.py::test_one_unanswered_write_per_key",),
        why_tests="every rewrite also compares what it was read as: the second one is refused, and made anew",
    ),
    Mutant(
        name="rewrite-without-mod-revision",
        rule="every rewrite of a record compares what it was read as",
        section="§4",
        file="txnstore/writes/op_transitions.py",
        old="compares=(owned, *(unchanged_since(item.key, item.mod_revision) for item in rewrites)),",
        new="compares=(owned,),",
        tests=("tests/txnstore/writes/test_op_transitions.py::test_p11_a_late_old_value_never_lands_on_a_newer_one",),
        why_tests="the owner's epoch and the sending fence also keep a late old value away",
    ),
    # ---- watches, leases, quota ----
    Mutant(
        name="renewal-waits-for-reads",
        rule="a lease is renewed wherever a connection stands, not behind an admission that reads",
        section="§4",
        faults="etcd renews only",
        file="txnstore/access/leases.py",
        old="                sent_at = self._clock.monotonic()\n",
        new="                await self._backend.wait_ready()\n                sent_at = self._clock.monotonic()\n",
    ),
    Mutant(
        name="namesake-is-ousted",
        rule="a process ends leases of its name that were there at its first look, and its own, never a namesake's",
        section="§4",
        file="txnstore/former_selves.py",
        old="        if not self._looked:\n",
        new="        if leases is not None:\n",
        tests=(
            "tests/coordinator_v5/background/test_take_over.py::test_of_two_coordinators_of_one_name_the_later_one_keeps_it_and_the_earlier_waits",
            "tests/segments/broker/test_ownership.py::test_of_two_brokers_of_one_name_the_later_one_has_it_and_the_earlier_waits",
            "tests/txnstore/test_former_selves.py::test_what_holds_it_after_a_first_look_at_nothing_is_a_namesake_s",
        ),
        why_tests="a simulated process has one life at a time",
    ),
    Mutant(
        name="watch-stays-at-a-member-that-applies-nothing",
        rule="once another member is used, watches leave the one before",
        section="§4",
        file="txnstore/etcd/connection.py",
        old="            previous.leave()\n",
        new="            assert previous.left is not None\n",
        tests=("tests/txnstore/etcd/test_silent_etcd.py::test_a_watch_leaves_a_member_that_no_longer_applies",),
        why_tests="the simulated etcd has one member",
    ),
    Mutant(
        name="admission-asked-for-by-each",
        rule="all who wait for an endpoint ask for its admission together",
        section="§4",
        file="txnstore/etcd/connection.py",
        old="            async with self._admission:\n",
        new="            async with asyncio.Lock():\n",
        tests=("tests/txnstore/etcd/test_silent_etcd.py::test_all_who_wait_ask_for_admission_together",),
        why_tests="the simulated etcd is asked by another client",
    ),
    Mutant(
        name="busy-etcd-refuses-the-user",
        rule="an etcd that is too busy to give a token is asked again",
        section="§4",
        file="txnstore/etcd/connection.py",
        old="                if isinstance(refusal, Refused) and refusal.reason is Reason.BUSY:\n",
        new="                if isinstance(refusal, Refused) and refusal.reason is Reason.FULL:\n",
        tests=(
            "tests/txnstore/etcd/test_busy_authentication.py::"
            "test_an_etcd_that_is_too_busy_to_give_a_token_is_asked_again",
        ),
        why_tests="the simulated etcd asks nobody who he is",
    ),
    Mutant(
        name="watch-goes-on-from-now",
        rule="a watch that was lost resumes behind the last event it has delivered",
        section="§4",
        faults="cut watches,slow watches",
        file="txnstore/access/following.py",
        old="                except Unanswered:\n",
        new="                except Unanswered:\n"
        "                    self._next_revision = (await self._relist(self._start, self._end)).revision + 1\n",
    ),
    Mutant(
        name="resumed-from-a-progress-answer",
        rule="a progress answer proves liveness only: its revision runs ahead of events still to come",
        section="§4",
        file="txnstore/etcd/watch.py",
        old="            if response.events:\n                return self._events(response)\n",
        new=(
            "            if response.events or not response.created:\n"
            '                ahead = KeyValue(b"", b"", 0, 0, response.header.revision, 0)\n'
            "                return self._events(response) or (Event(EventKind.DELETE, ahead),)\n"
        ),
        tests=(
            "tests/txnstore/etcd/test_watch_stream.py::test_e1_a_progress_answer_whose_revision_runs_ahead_is_never_followed",
        ),
        why_tests="the etcd in memory sends none, and we ask the real one for none",
    ),
    Mutant(
        name="compacted-watch-not-listed",
        rule="a watch whose start has been compacted lists its range anew",
        section="§4",
        faults="etcd compaction",
        file="txnstore/access/following.py",
        old="        await self._deliver(WatchBatch(listed.revision, tuple(events), resync=True))\n",
        new="        assert events is not None\n",
    ),
    Mutant(
        name="lease-id-not-compared-by-brokers",
        rule="/owner/<segment> is mine only if its lease id is mine",
        section="§4",
        file="segments/broker/ownership.py",
        old="return found.create_revision if found is not None and found.lease == lease.id else None",
        new="return found.create_revision if found is not None else None",
        tests=(
            "tests/segments/broker/test_ownership.py::test_a_segment_has_one_owner_and_its_epoch_is_the_create_revision",
        ),
        why_tests="who claims has heard that the segment is free, and which broker is to take it",
    ),
    Mutant(
        name="lease-counts-from-the-answer",
        rule="a lease is counted on from the sending of the last answered keep-alive",
        section="§4",
        file="txnstore/access/leases.py",
        old="        elif self.valid():\n            self._renewed(ttl_s, sent_at)\n",
        new="        elif self.valid():\n            self._renewed(ttl_s, self._clock.monotonic())\n",
        tests=(
            "tests/txnstore/access/test_leases.py::test_a_lease_counts_from_the_sending_of_the_last_answered_keep_alive",
        ),
        why_tests="safety is a compare in every write: a lease that is believed in for too long only slows fail-over",
    ),
    Mutant(
        name="reserve-is-refused",
        rule="above the soft limit what ends and cleans up still goes: only begins and new ops are refused",
        section="§4",
        file="txnstore/access/store_client.py",
        old="if not commit.reserve and self._soft_limit.exceeded():",
        new="if self._soft_limit.exceeded():",
        tests=("tests/txnstore/access/test_space.py::test_e3_above_the_soft_limit_only_the_reserve_is_served",),
        why_tests="clients try again, and everything ends once etcd has room",
    ),
    Mutant(
        name="reserve-is-given-away",
        rule="above the soft limit begins and new ops are refused",
        section="§4",
        file="txnstore/access/store_client.py",
        old="if not commit.reserve and self._soft_limit.exceeded():",
        new="if not commit.reserve and self._soft_limit.exceeded() and self._closed:",
        tests=("tests/txnstore/access/test_space.py::test_e3_above_the_soft_limit_only_the_reserve_is_served",),
        why_tests="clients try again, and everything ends once etcd has room",
    ),
    # ---- ids ----
    Mutant(
        name="ids-not-compared",
        rule="ids are taken by a compare-and-set: nobody who was succeeded moves the record back",
        section="§3",
        faults="lose etcd",
        file="txnstore/writes/transitions.py",
        old="compares=(_tc_owned(tcid, tc_epoch), unchanged_since(key, seq.mod_revision)),",
        new="compares=(),",
    ),
    Mutant(
        name="ids-of-a-refused-block-used",
        rule="a block of ids is used only if its own CAS has succeeded: one whose reply was lost never is",
        section="§3",
        file="txnstore/writes/transitions.py",
        old="    return SeqVerdict(False, read_seq(",
        new="    return SeqVerdict(True, read_seq(",
        tests=("tests/txnstore/writes/test_transitions.py",),
        why_tests="only an earlier sending of the same process can have moved the record: the block is its own",
    ),
    # ---- ops ----
    Mutant(
        name="op-not-compared-with-epoch",
        rule="an op compares the owner's epoch: an owner that was succeeded records nothing",
        section="§5",
        faults=ZOMBIES,
        file="txnstore/writes/op_transitions.py",
        old="compares=(version_is(header_key, 1), owned, absent(op_key)),",
        new="compares=(version_is(header_key, 1), absent(op_key)),",
    ),
    Mutant(
        name="op-not-compared-with-header",
        rule="an op compares version 1 of the header: none slips in behind a decision",
        section="§5",
        file="txnstore/writes/op_transitions.py",
        old="compares=(version_is(header_key, 1), owned, absent(op_key)),",
        new="compares=(msgspec.structs.replace(version_is(header_key, 0), relation=Relation.GREATER), owned, "
        "absent(op_key)),",
        more=(
            Edit(
                "txnstore/writes/op_transitions.py",
                "from typing import NamedTuple\n",
                "from typing import NamedTuple\n\nimport msgspec\n\nfrom txnstore.store import Relation\n",
            ),
        ),
    ),
    Mutant(
        name="op-key-not-compared-absent",
        rule="an op's key is absent before it is put",
        section="§4",
        file="txnstore/writes/op_transitions.py",
        old="compares=(version_is(header_key, 1), owned, absent(op_key)),",
        new="compares=(version_is(header_key, 1), owned),",
        tests=("tests/txnstore/writes/test_op_transitions.py",),
        why_tests="the counter never restarts, so no key is used twice",
    ),
    Mutant(
        name="op-counter-restarts",
        rule="the counter of op keys is one for the process and never restarts",
        section="§4",
        file="segments/broker/broker.py",
        old="            op_counter=counter.__next__,\n",
        new="            op_counter=lambda: next(counter) % 3,\n",
    ),
    Mutant(
        name="op-before-index-is-confirmed",
        rule="no further op of a transaction is sent before the put with the index key is confirmed",
        section="§4",
        file="segments/log/sends/op_gate.py",
        old="            self._waiting[txn_id] = None\n            return Turn.FIRST\n",
        new="            self._waiting[txn_id] = None\n            self._indexed[txn_id] = None\n"
        "            return Turn.FIRST\n",
        tests=("tests/segments/log/sends/test_op_gate.py",),
        why_tests="what a segment has to say of a transaction gathers while an op of it is on its way",
    ),
    Mutant(
        name="index-deleted-before-ops",
        rule="the index key stands as long as ops do: both go in one commit",
        section="§4",
        file="txnstore/writes/op_transitions.py",
        old="        deletes += (Delete(prefix, keys.prefix_end(prefix)), Delete(keys.write_index(segment, txn_id)))\n",
        new="        deletes += (Delete(keys.write_index(segment, txn_id)),)\n",
    ),
)
