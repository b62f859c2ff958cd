"""Break the segments' rules: pipeline, ledgers, dedup, layouts, cuts (DESIGN §4, §6, §7, §8, §10)."""

from __future__ import annotations

from simulation.mutants.mutant import Edit, Mutant

CHANGES_GIVEN_UP = "tests/segments/owner/test_changes_given_up.py::"
CUT_ANSWERS = "tests/segments/controller/test_cut_answers.py::"
NEW_HOLDERS = "tests/segments/subscription/test_new_holders.py::"
SENDS_DURING_A_SEAL = "tests/segments/owner/test_sends_during_a_seal.py::"

REAL_FILES = "the simulation has disks of its own: real files are behind `LedgerStore`"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="joined-behind-its-leave",
        rule="a consumer that leaves while it joins is not taken in",
        section="§8",
        file="segments/controller/controller.py",
        old="if self._joining.get((key, consumer)) is not attempt:",
        new="if self._joining is None:",
        tests=(
            "tests/segments/controller/test_controller.py::test_a_consumer_that_leaves_while_it_joins_is_not_taken_in",
        ),
        why_tests="no seed is known that shows it",
    ),
    Mutant(
        name="ack-before-sync",
        rule="an append is acked only behind its sync (L5)",
        section="§7",
        file="segments/log/sends/appender.py",
        old=("        reached = await writer.sync()\n        self._measures"),
        new=(
            "        for item in self._unsynced[:count]:\n"
            "            for waiter in item.admitted.waiters:\n"
            "                waiter.stored(item.position, duplicate=False)\n"
            "            item.admitted.waiters.clear()\n"
            "        reached = await writer.sync()\n"
            "        self._measures"
        ),
    ),
    Mutant(
        name="index-key-not-awaited",
        rule="no further op of a transaction leaves before the put that carries its index key is confirmed",
        section="§4",
        file="segments/log/sends/op_gate.py",
        old=("        if txn_id in self._indexed:\n            return Turn.FURTHER\n"),
        new=("        if txn_id in self._indexed or txn_id in self._waiting:\n            return Turn.FURTHER\n"),
        more=(
            Edit(
                "segments/log/sends/op_gate.py",
                "        return self._waiting.pop(txn_id) or ()\n",
                "        return self._waiting.pop(txn_id, None) or ()\n",
            ),
            Edit(
                "segments/log/sends/op_gate.py",
                ("        waiting = self._waiting[txn_id]\n        if waiting:\n"),
                ("        waiting = self._waiting.get(txn_id)\n        if waiting:\n"),
            ),
            Edit(
                "segments/log/sends/op_gate.py",
                "        del self._waiting[txn_id]\n",
                "        self._waiting.pop(txn_id, None)\n",
            ),
        ),
        tests=(
            "tests/segments/log/sends/test_op_gate.py::test_only_the_first_op_carries_the_index_and_the_others_wait_for_it",
        ),
        why_tests="not seen by the few seeds that were tried, of which nobody looked at sixty",
    ),
    Mutant(
        name="dedup-out-of-order",
        rule="an entry is admitted only right behind the one it names (L8)",
        section="§7",
        file="segments/log/sends/dedup.py",
        old="        if previous_sequence_id != producer.tail:",
        new="        if previous_sequence_id > sequence_id:",
        more=(
            Edit(
                "segments/log/sends/dedup.py",
                "        if entry.failed or entry.previous != producer.last:",
                "        if entry.failed:",
            ),
        ),
        faults="slow disk",
    ),
    Mutant(
        name="repeat-acked-unstored",
        rule="a repeat of an entry that is not stored yet shares its outcome (L9)",
        section="§7",
        file="segments/log/sends/dedup.py",
        old=("        if last <= producer.last:\n            same"),
        new=("        if last <= producer.tail:\n            same"),
        faults="slow disk,stalled disk,reset,lose replies,power failure",
    ),
    Mutant(
        name="dedup-from-watermark",
        rule="dedup is rebuilt from the last footer, not from the watermark (L7)",
        section="§6",
        file="segments/owner/take_over.py",
        old="_headers(ledgers, min(watermark, covered))",
        new="_headers(ledgers, watermark)",
        faults="mute a broker,kill a server",
    ),
    Mutant(
        name="sidecars-not-loaded",
        rule="what has left etcd for a sidecar is aborted all the same, before the first read",
        section="§6",
        file="segments/owner/take_over.py",
        old="        buffer.in_sidecar(ledger_id, aborted)",
        new="        pass",
        faults="kill a server",
    ),
    Mutant(
        name="records-go-before-the-sidecar",
        rule="aborted records leave etcd only once their sidecar is synced and listed",
        section="§6",
        file="segments/log/housekeeping.py",
        old="            written = await self._ledgers.add_sidecar(last.ledger_id, aborted)\n",
        new=(
            "            await self._forget(last.ledger_id, aborted)\n"
            "            written = await self._ledgers.add_sidecar(last.ledger_id, aborted)\n"
        ),
        tests=("tests/segments/log/test_housekeeping.py::test_a_successor_goes_on_behind_any_step",),
        why_tests="not seen by the few seeds that were tried, of which nobody looked at sixty",
    ),
    Mutant(
        name="records-go-before-the-data",
        rule="an aborted record lives until its data is trimmed (R3)",
        section="§5",
        file="segments/log/housekeeping.py",
        old="        while records := self._buffer.prunable(below, RECORDS_AT_ONCE):",
        new="        while records := self._buffer.prunable(self._ledgers.last_confirmed, RECORDS_AT_ONCE):",
        tests=(
            "tests/segments/log/test_housekeeping.py::"
            "test_r3_a_record_that_no_sidecar_holds_stays_in_etcd_as_the_ledger_before_its_own_is_trimmed",
        ),
        why_tests="seeds show it too; here no header is left that would hide it, and no sidecar",
    ),
    Mutant(
        name="trim-without-footer",
        rule="before the newest footer is trimmed another one stands: producers are not forgotten",
        section="§7",
        file="segments/log/housekeeping.py",
        old="        kept = await self._with_new_footer(kept)\n",
        new="",
        tests=(
            "tests/segments/log/test_housekeeping.py::"
            "test_l7_a_resend_is_known_after_everything_before_it_was_trimmed_and_two_crashes",
        ),
        why_tests="it takes an answer that is lost for longer than the topic keeps what was sent, over two owners",
    ),
    Mutant(
        name="trim-undrained",
        rule="nothing is trimmed that a subscription has not drained",
        section="§8",
        file="segments/log/housekeeping.py",
        old=" if drained is None else min(bound, drained)",
        new=" if drained is None else max(bound, drained)",
    ),
    Mutant(
        name="seek-to-elsewhere",
        rule="a seek at a message that the topic does not have is refused before anything moves",
        section="§8",
        file="segments/subscription/starts.py",
        old="    topology.check_has(start.segment)\n    ancestors",
        new="    if topology.paths.get(SegmentName.from_path(start.segment).segment_id) != start.segment:\n"
        "        return start\n"
        "    ancestors",
        faults="none",
        work_s=8.0,
    ),
    Mutant(
        name="subscription-at-elsewhere",
        rule="a subscription is not made to begin at a message that the topic does not have",
        section="§8",
        file="segments/layout/subscription_records.py",
        old="    topology.check_has(segment.path)\n    ancestors = topology.ancestors(segment.segment_id)\n",
        new="    known = segment.segment_id in topology.segments\n"
        "    ancestors = topology.ancestors(segment.segment_id) if known else ()\n",
        faults="none",
        work_s=8.0,
    ),
    Mutant(
        name="reader-at-elsewhere",
        rule="a reader at a message of an earlier topic of the name is refused",
        section="§8",
        file="segments/subscription/starts.py",
        old="            topology.check_has(start.segment)\n    return start",
        new="            return start\n    return start",
        more=(
            Edit(
                "txnclient/reading/reader_impl.py",
                "    segment_id = SegmentName.from_path(start.segment).segment_id\n    if layout",
                "    segment_id = 1 << 62\n    if layout",
            ),
        ),
        faults="none",
        work_s=8.0,
    ),
    Mutant(
        name="trim-over-a-seek",
        rule="a seek back that was answered is not trimmed over: what is drained is looked at under the trim's lock",
        section="§8",
        file="segments/log/housekeeping.py",
        old="            now = first_kept(self._ledgers.record, going, bound=await self._bound(retention))",
        new="            now: int | None = kept",
        tests=(
            "tests/segments/subscription/cursors/test_trimming_and_seeking.py::test_a_seek_back_while_a_footer_is_written_is_not_trimmed",
        ),
        why_tests="it takes a sync that is slow as a segment is trimmed, and a seek of its subscription just then",
    ),
    Mutant(
        name="ledger-listed-late",
        rule="the ledger list stands in etcd before anything is served from it",
        section="§6",
        file="segments/log/ledgers/segment_log.py",
        old=(
            "        await self._rewrite(msgspec.structs.replace(record, ledgers=[*kept, self._opened(next_id)]))\n"
            "        self.writer"
        ),
        new=(
            "        listed = msgspec.structs.replace(record, ledgers=[*kept, self._opened(next_id)])\n"
            "        self._adopt(listed)\n"
            "        self._listing = asyncio.ensure_future(self._rewrite(listed))\n"
            "        self.writer"
        ),
        tests=(
            "tests/segments/log/ledgers/test_ledgers.py::test_a_ledger_is_listed_before_there_is_a_file_of_it_or_anything_in_it",
        ),
        why_tests="not seen within 40 seeds: the owner has to die in the milliseconds between, with an entry acked",
    ),
    Mutant(
        name="seal-in-memory",
        rule="the seal stands in etcd before the layout says so: a later owner that finds it opens nothing",
        section="§8",
        file="segments/log/ledgers/segment_log.py",
        old=("                if await self._rewrite_while(record, topic):\n                    return True\n"),
        new=("                self._adopt(record)\n                return True\n"),
    ),
    Mutant(
        name="seal-of-given-up-change",
        rule="a seal compares the topic's record: a late request of a change that was given up seals nothing",
        section="§8",
        file="segments/log/ledgers/ledger_list.py",
        old="        compares = (*commit.compares, unchanged_since(topic.key, topic.mod_revision))",
        new="        compares = commit.compares",
        tests=(CHANGES_GIVEN_UP + "test_a_change_that_is_given_up_lets_the_segment_go_on",),
        why_tests="such a seal is taken back again: it costs its producers a moment, no history shows it",
    ),
    Mutant(
        name="seal-undone-not-compared",
        rule="the layout compares each parent's seal as it was seen",
        section="§8",
        file="segments/layout/layout_transitions.py",
        old="    return msgspec.structs.replace(commit, compares=(*commit.compares, *sealed))",
        new="    return msgspec.structs.replace(commit, compares=(*commit.compares, *sealed[:0]))",
        tests=(
            "tests/segments/layout/test_layout_transitions.py::"
            "test_s10_the_layout_compares_the_leader_the_intent_and_every_seal",
        ),
        why_tests="the topic's record is compared too, and no seal is taken back while that tells of its change",
    ),
    Mutant(
        name="seal-opens-a-ledger",
        rule="a later owner that finds a seal opens nothing",
        section="§8",
        file="segments/log/ledgers/segment_log.py",
        old=(
            "        if record.sealed is not None:\n"
            "            self._adopt(msgspec.structs.replace(record, ledgers=closed))\n"
            "            return\n"
        ),
        new="",
        faults="kill a server,strike at a change",
        work_s=20.0,
    ),
    Mutant(
        name="sends-not-held-back",
        rule="while a segment is being sealed, sends are held back",
        section="§8",
        file="segments/owner/sealing.py",
        old="        segment.pipeline.hold_back()\n",
        new="",
        tests=(SENDS_DURING_A_SEAL + "test_sends_are_held_back_until_the_seal_stands_and_then_told",),
        why_tests="a send that comes in that moment costs its owner the segment, which it takes anew: nothing is lost",
    ),
    Mutant(
        name="end-told-before-the-layout",
        rule="nobody who reads is told of an end before the layout has it: the seal may be taken back",
        section="§8",
        file="segments/log/ledgers/segment_log.py",
        old="        return Position(*self._record.sealed) if self.ended and self._record.sealed is not None else None",
        new="        return Position(*self._record.sealed) if self._record.sealed is not None else None",
        tests=("tests/segments/subscription/test_drained.py::test_a_seal_that_is_taken_back_has_drained_nothing",),
        why_tests="not seen by the few seeds that were tried, of which nobody looked at sixty",
    ),
    Mutant(
        name="sealed-forgets-dedup",
        rule="a sealed segment's owner tells what it holds of a producer, also after a take-over (L7)",
        section="§8",
        file="segments/log/sends/appender.py",
        old="            await self._ledgers.seal(await self._footer_in_turns(), change_id, look)",
        new=(
            "            writer = self._ledgers.writer\n"
            '            nothing = b\'{"v":1,"producers":[]}\'\n'
            "            footer = self._ledgers.footer(writer.ledger_id, writer.last_confirmed + 1, nothing)\n"
            "            await self._ledgers.seal(footer, change_id, look)"
        ),
        faults="unheard seals",
    ),
    Mutant(
        name="successor-not-held-back",
        rule="a new holder of a stream segment waits for its predecessor's pending acks (P12)",
        section="§6",
        file="segments/subscription/stream_subscription.py",
        old="        self._held_back = self._awaits_predecessor()\n",
        new="        self._held_back = False\n",
        tests=(NEW_HOLDERS + "test_p12_a_new_holder_waits_for_its_predecessors_pending_acks",),
        why_tests="not seen by the few seeds that were tried, of which nobody looked at sixty",
    ),
    Mutant(
        name="cut-without-final-read",
        rule="a cut's last read compares the owners: one that was succeeded answers with an old end",
        section="§10",
        file="segments/controller/cut.py",
        old="            if answered != (epoch, epoch):",
        new="            if answered[0] != answered[1]:",
        tests=("tests/segments/controller/test_cut.py::test_whatever_has_moved_has_the_cut_begun_again",),
        why_tests="it takes an owner succeeded between two questions that follows decisions and has not heard",
    ),
    Mutant(
        name="cut-believes-owners",
        rule="what an owner does not know decided is looked up in the last read",
        section="§10",
        file="segments/controller/cut.py",
        old="        if record.version == 1 or record.mod_revision > self._revision:",
        new="        if record.version >= 1:",
        tests=("tests/segments/controller/test_cut.py::test_what_an_owner_names_undecided_is_judged_by_its_header",),
        why_tests="an owner answers once it has followed decisions so far: what it names was decided later",
    ),
    Mutant(
        name="cut-over-ops-in-flight",
        rule="a segment answers a cut once nothing decided by then has an operation in flight",
        section="§10",
        file="segments/owner/segment_cuts.py",
        old="        await self._wait_settled(revision)\n",
        new="",
        tests=(CUT_ANSWERS + "test_an_answer_waits_until_decisions_are_followed_and_nothing_decided_is_in_flight",),
        why_tests="clients wait for their sends before they commit: hardly anything committed is in flight",
    ),
    Mutant(
        name="cut-not-followed",
        rule="a segment answers a cut once decisions are followed to its revision",
        section="§10",
        file="segments/owner/segment_cuts.py",
        old="        await self._wait_followed(revision)\n",
        new="",
        tests=(CUT_ANSWERS + "test_an_answer_waits_until_decisions_are_followed_and_nothing_decided_is_in_flight",),
        why_tests="what an owner does not know decided is looked up in the cut's last read",
    ),
    Mutant(
        name="cut-revision-first",
        rule="a cut's revision is read behind every owner's first answer",
        section="§10",
        file="segments/controller/snapshots.py",
        old="            why = await self._ask_first(layouts.unanswered(resolved), resolved)\n",
        new=(
            "            early = await self._layouts(topics)\n"
            "            why = await self._ask_first(layouts.unanswered(resolved), resolved)\n"
        ),
        more=(
            Edit(
                "segments/controller/snapshots.py",
                ("            revision, layouts = await self._layouts(topics)\n            if missing"),
                ("            revision, layouts = early\n            if missing"),
            ),
        ),
        faults="slow host,lagging connections",
    ),
    Mutant(
        name="pending-below-resolved",
        rule="no pending transaction has an entry at or below resolved",
        section="§10",
        file="segments/owner/segment_cuts.py",
        old="        return self._buffer.max_read_position\n",
        new="        return self._buffer.last_confirmed\n",
        work_s=12.0,
    ),
    Mutant(
        name="failed-sync-retried",
        rule="a failed sync kills the ledger for good: a successor's sync must not take it for done",
        section="§7",
        file="segments/ledger/file_ledger_writer.py",
        old="            if not _fence_own_failure(fd, paths, encoded.starts[0][0]):",
        new="            if not paths.ledger.exists():",
        tests=("tests/segments/ledger/test_file_ledger.py::test_l5_a_failed_sync_kills_the_ledger_for_good",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="fence-checked-before-the-sync",
        rule="the fence is looked at behind the sync, before anybody hears of it",
        section="§7",
        file="segments/ledger/file_ledger_writer.py",
        old="    encoded = groups()\n",
        new="    fenced: str | None = fenced_by(fd, paths)\n    encoded = groups()\n",
        more=(
            Edit(
                "segments/ledger/file_ledger_writer.py",
                "    fenced = fenced_by(fd, paths)\n",
                "",
            ),
        ),
        tests=("tests/segments/ledger/test_file_ledger.py::test_the_fence_is_checked_after_the_sync",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="confirmed-before-the-fence-check",
        rule="the fence is checked before the last confirmed entry moves",
        section="§7",
        file="segments/ledger/file_ledger_writer.py",
        old=(
            "        if self._dead is None:\n"
            "            self._dead = self._failure_of(job)\n"
            "        if self._dead is None:\n"
            "            self._confirm(entries, size, job.result())\n"
        ),
        new=(
            "        if self._dead is None and not job.cancelled() and job.exception() is None:\n"
            "            self._confirm(entries, size, job.result())\n"
            "        if self._dead is None:\n"
            "            self._dead = self._failure_of(job)\n"
        ),
        tests=("tests/segments/ledger/test_file_ledger.py::test_the_fence_is_checked_after_the_sync",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="counted-without-sync",
        rule="a successor syncs what it has read before it counts it",
        section="§6",
        file="segments/ledger/file_ledger.py",
        old="        os.fdatasync(fd)  # ▲ make durable what was read, before anyone relies on it\n",
        new="",
        tests=("tests/segments/ledger/test_file_ledger.py::test_the_successor_syncs_what_it_counts",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="given-back-before-its-end-is-stored",
        rule="a segment whose ledger's end only its owner knows is not given back before etcd has that, however late",
        section="§7",
        file="segments/broker/owned_segments.py",
        old="asyncio.timeout(self._settings.hand_over_s if self._closing else None)",
        new="asyncio.timeout(self._settings.hand_over_s)",
        faults="disk failing silently,etcd full,etcd renews only",
    ),
    Mutant(
        name="lost-amid-its-hand-over",
        rule="a segment that is lost while it is handed over is given back once, by who hands it over",
        section="§7",
        file="segments/broker/owned_segments.py",
        old="        elif segment.path not in self._handing_over:",
        new="        else:",
        tests=(
            "tests/segments/broker/test_claiming.py::"
            "test_a_segment_whose_disk_fails_while_it_is_handed_over_is_given_back_once",
        ),
        why_tests="a disk seldom fails within the moment of a hand-over",
    ),
    Mutant(
        name="fence-gone-before-its-ledger",
        rule="a ledger is unlinked before its fence: a writer that wakes late finds either",
        section="§7",
        file="segments/ledger/file_ledger_writer.py",
        old="    if os.fstat(fd).st_nlink == 0:",
        new="    if os.fstat(fd).st_nlink < 0:",
        tests=(
            "tests/segments/ledger/test_file_ledger.py::"
            "TestContract::test_l3_a_writer_that_wakes_after_the_deletion_acks_nothing",
        ),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="fence-by-a-former-owner",
        rule="who has slept since it claimed fences nothing",
        section="§6",
        file="segments/log/ledgers/ledger_list.py",
        old=("        if held is None or held.create_revision != self._epoch:\n            # ▲ Before"),
        new=("        if held is None:\n            # ▲ Before"),
        tests=(
            "tests/segments/log/ledgers/test_ledgers.py::"
            "test_l3_a_successor_that_slept_since_its_claim_does_not_fence_the_one_that_came_after_it",
        ),
        why_tests="it costs the successor its ledger and a take-over, never a message: no history shows it",
    ),
)
