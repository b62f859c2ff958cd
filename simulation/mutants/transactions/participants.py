"""Break the participants' rules: visibility, pending acks, clean-up, recovery (DESIGN §6, §10)."""

from __future__ import annotations

from simulation.mutants.mutant import Edit, Mutant

FOLLOWED_REVISIONS = "tests/watchers/test_followed_revisions.py::"
QUEUE_PIECES = "tests/segments/subscription/queueing/test_queue_pieces.py::"

REAL_FILES = "the simulation has disks of its own: real files are behind `LedgerStore`"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="in-flight-from-the-answer",
        rule="an operation is in flight from before its op is sent: a decision waits for it",
        section="§6",
        file="watchers/visibility.py",
        old=("        if found.in_flight:\n            # ▲ In flight"),
        new=("        if found.in_flight and found.recorded:\n            # ▲ In flight"),
        more=(
            Edit(
                "watchers/visibility.py",
                ("        if found is None or found.in_flight == 0:\n            raise"),
                ("        if found is None:\n            return\n        if found.in_flight == 0:\n            raise"),
            ),
            Edit(
                "watchers/visibility.py",
                ("        found = self._open[txn_id]\n        found.recorded = True\n"),
                (
                    "        found = self._open.get(txn_id)\n"
                    "        if found is None:\n"
                    "            return None\n"
                    "        found.recorded = True\n"
                ),
            ),
            Edit(
                "watchers/visibility.py",
                (
                    "        found = self._open[txn_id]\n"
                    "        found.in_flight -= 1\n"
                    "        if found.in_flight:\n"
                    "            return None\n"
                    "        if not found.recorded:"
                ),
                (
                    "        found = self._open.get(txn_id)\n"
                    "        if found is None:\n"
                    "            return None\n"
                    "        found.in_flight -= 1\n"
                    "        if found.in_flight:\n"
                    "            return None\n"
                    "        if not found.recorded:"
                ),
            ),
        ),
        faults="etcd unanswered,slow etcd,lose replies",
    ),
    Mutant(
        name="op-deleted-before-its-record",
        rule="an aborted record is durable before or with the deletion of its op",
        section="§6",
        file="watchers/clean_up_plans.py",
        old=("        rewrites: list[Rewrite] = []\n        watermark ="),
        new=('        rewrites: list[Rewrite] = self.__dict__.pop("late", [])\n        watermark ='),
        more=(
            Edit(
                "watchers/clean_up_plans.py",
                "                rewrites.append(aborted_rewrite(",
                '                self.__dict__.setdefault("late", []).append(aborted_rewrite(',
            ),
        ),
        faults="kill a server,lose etcd,etcd unanswered,strike at a step",
        work_s=20.0,
    ),
    Mutant(
        name="watermark-passes-aborted",
        rule="the watermark never passes an aborted entry whose record is not durable",
        section="§6",
        file="watchers/visibility.py",
        old=("        for first in self._unsettled.values():\n            reached = min(_before(first), reached)"),
        new=(
            "        for found in self._pinning.values():\n"
            "            reached = min(_before(found.first or EARLIEST), reached)"
        ),
        tests=(
            "tests/watchers/test_visibility.py::"
            "test_watermark_stays_below_open_and_below_aborted_until_the_record_is_durable",
        ),
        why_tests="the watermark travels with the records that it passes, as long as all of them fit into one commit",
    ),
    Mutant(
        name="aborted-once-durable",
        rule="what is aborted is filtered from the decision on, though its record hangs (R2)",
        section="§6",
        file="watchers/visibility.py",
        old="        return txn_id in self._aborted or",
        new="        return (txn_id in self._aborted and txn_id not in self._cleaning) or",
        work_s=12.0,
    ),
    Mutant(
        name="aborted-not-loaded",
        rule="recovery loads the aborted set before the first read (R1)",
        section="§6",
        file="watchers/recovery.py",
        old=("            aborted=self.aborted,\n            fenced_below=fenced_below,"),
        new="            fenced_below=fenced_below,",
        faults="kill a server",
    ),
    Mutant(
        name="pending-acks-not-restored",
        rule="every pending ack is restored before a consumer attaches (P5)",
        section="§6",
        file="watchers/recovery.py",
        old="            pending.restore(op)",
        new="            pass",
        faults="kill a server,strike at a step",
        work_s=20.0,
    ),
    Mutant(
        name="absent-header-decides",
        rule="a header that is absent for a transaction held open decides nothing",
        section="§6",
        file="watchers/decisions.py",
        old="        self._doubtful.update((key, None) for key in self._held if key not in present)\n",
        new=(
            "        for key in [key for key in self._held if key not in present]:\n"
            "            held = self._held.pop(key)\n"
            "            for membership in held.members:\n"
            "                membership.participant.decide(Decision(held.txn_id, False, batch.revision))\n"
        ),
        tests=("tests/watchers/test_decisions.py::test_e1_after_compaction_absent_headers_are_doubted_not_decided",),
        why_tests="not seen within 60 seeds: it takes a begin and its op between a resync's read and its coming",
    ),
    Mutant(
        name="early-decisions-dropped",
        rule="a segment joins the watch before it reads: what is decided while it loads is kept for it",
        section="§6",
        file="watchers/decisions.py",
        old="            self._watch.deliver(keys.txn_of(record.key), record, (self,))\n",
        new="            self._watch.hold(self, keys.txn_of(record.key))\n",
        more=(
            Edit(
                "watchers/decisions.py",
                "        long_ago = self._clock.monotonic() - self._settings.held_long_s\n",
                "        long_ago = -1.0\n",
            ),
        ),
        faults="slow take-overs",
    ),
    Mutant(
        name="held-before-the-revision",
        rule="the revision is read before it is looked what is held: what is held only later is decided after it",
        section="§6",
        file="watchers/decisions.py",
        old=(
            "                read_at, _ = await self._store.get_many([keys.INCARNATION])\n"
            "                held, loading = [*self._held, *self.early.expected()], self.early.reading\n"
        ),
        new=(
            "                held, loading = [*self._held, *self.early.expected()], self.early.reading\n"
            "                read_at, _ = await self._store.get_many([keys.INCARNATION])\n"
        ),
        tests=(FOLLOWED_REVISIONS + "test_what_is_held_while_a_revision_is_read_counts_too",),
        why_tests="the watch tells a moment later; only who reads its own commit in between could see it",
    ),
    Mutant(
        name="losers-count",
        rule="entries of writers that a commit does not list are aborted",
        section="§6",
        file="watchers/visibility.py",
        old="        if found.first is None or (decision.committed and decision.writers is None):",
        new="        if found.first is None or decision.committed:",
        work_s=12.0,
    ),
    Mutant(
        name="losing-acks-count",
        rule="acks of writers that do not count go back to PENDING",
        section="§6",
        file="watchers/pending_acks.py",
        old=("            if decision.counts(reservation.writer):\n                self._to_cursor"),
        new=("            if decision.committed:\n                self._to_cursor"),
    ),
    Mutant(
        name="reserve-behind-the-op",
        rule="an ack is reserved before its op is sent",
        section="§6",
        file="watchers/pending_acks.py",
        old="        self._hold(reservation, bounded=True)\n",
        new="",
        more=(
            Edit(
                "watchers/pending_acks.py",
                (
                    '        """The op is recorded. Returns the remembered decision that can now be applied."""\n'
                    "        held = self._landed(reservation)\n"
                ),
                (
                    '        """The op is recorded. Returns the remembered decision that can now be applied."""\n'
                    "        held = self._landed(reservation)\n"
                    "        self._hold(reservation, bounded=False)\n"
                ),
            ),
            Edit(
                "watchers/pending_acks.py",
                ("        held.remove(reservation)\n        self._unhold(reservation)\n"),
                "        held.remove(reservation)\n",
            ),
        ),
        tests=("tests/watchers/test_pending_acks.py::test_message_is_held_before_its_op_is_sent",),
        why_tests="not seen by the few seeds that were tried, of which nobody looked at sixty",
    ),
    Mutant(
        name="ack-decided-in-flight",
        rule="a decision waits for ack ops in flight",
        section="§6",
        file="watchers/pending_acks.py",
        old=("        if held.in_flight:\n            # ▲ An op"),
        new=("        if held.in_flight < 0:\n            # ▲ An op"),
        more=(
            Edit(
                "watchers/pending_acks.py",
                '        """The op is recorded. Returns the remembered decision that can now be applied."""\n',
                (
                    '        """The op is recorded. Returns the remembered decision that can now be applied."""\n'
                    "        if reservation.txn_id not in self._txns:\n"
                    "            return None\n"
                ),
            ),
            Edit(
                "watchers/pending_acks.py",
                'Returns the remembered decision that can now be applied to the rest."""\n',
                (
                    'Returns the remembered decision that can now be applied to the rest."""\n'
                    "        if reservation.txn_id not in self._txns:\n"
                    "            return None\n"
                ),
            ),
        ),
        tests=("tests/watchers/test_pending_acks.py::test_decision_waits_for_ack_ops_in_flight",),
        why_tests="not seen by the few seeds that were tried, of which nobody looked at sixty",
    ),
    Mutant(
        name="plain-ack-on-pending",
        rule="a plain ack of what is pending in a transaction is dropped",
        section="§6",
        file="watchers/pending_acks.py",
        old="            rest = _without(ack, pending) if pending else ack\n",
        new="            rest = ack\n",
    ),
    Mutant(
        name="plain-cumulative-over-pending",
        rule="a plain cumulative ack leaves out what is pending in a transaction",
        section="§6",
        file="watchers/pending_acks.py",
        old="        if covered is None and (lowest is None or lowest > ack.position):\n",
        new="        if covered is None:\n",
    ),
    Mutant(
        name="plain-cumulative-before-pending",
        rule="a plain cumulative ack acks what stands behind a pending message, too",
        section="§6",
        file="watchers/pending_acks.py",
        old="        return self._cursor.ack_around(ack, kept) or moved\n",
        new="        return moved\n",
    ),
    Mutant(
        name="cursor-behind-the-ops",
        rule="an ack op goes only with, or behind, the cursor that holds its ack (P6)",
        section="§6",
        file="watchers/clean_up_plans.py",
        old="        left = self._cursor.block_writes() if due and self._cursor.dirty else ()\n",
        new="        due = everything or now_s >= self._flushed_s + 1.0\n"
        "        left = self._cursor.block_writes() if due and self._cursor.dirty else ()\n",
        faults="kill a server",
    ),
    Mutant(
        name="later-decisions-in-the-cut",
        rule="what was decided behind the cut's revision is pending in it, though applied already",
        section="§10",
        file="watchers/visibility.py",
        old="            undecided |= {txn_id: None for decided, txn_id, first in some",
        new="            undecided |= {txn_id: None for decided, txn_id, first in some[:0]",
        faults="slow watches,slow etcd",
    ),
    Mutant(
        name="op-gate-stops-at-failed-claim",
        rule="behind a refused first op a claim that has failed meanwhile holds up no other (L8)",
        section="§4",
        file="segments/log/sends/op_records.py",
        old="                    self._send_op(live, txn_id, first=True)\n                    break\n",
        new="                    self._send_op(live, txn_id, first=True)\n                break\n",
        tests=(
            "tests/segments/broker/test_refusals.py::"
            "test_l8_behind_a_refused_first_op_a_claim_that_has_failed_meanwhile_holds_up_no_other",
        ),
        why_tests="not looked for with seeds: of three writers of one transaction two have to fail, each its own way",
    ),
    Mutant(
        name="refused-ack-wakes-nobody",
        rule="a seek goes on once no ack is pending, also where the last one was refused",
        section="§8",
        file="segments/subscription/subscriptions.py",
        old="        self._fewer_pending.set()\n        self._refused(",
        new="        self._refused(",
        tests=(
            "tests/segments/subscription/cursors/test_seek.py::test_a_seek_goes_on_as_the_only_ack_it_waits_for_is_refused",
        ),
        why_tests="not looked for with seeds: a seek that is told `Timeout` may be repeated",
    ),
    Mutant(
        name="queue-end-with-kept-pieces",
        rule="a queue's consumer is told no end while pieces of a value are kept for it (A7)",
        section="§8",
        file="segments/subscription/queueing/queue.py",
        old="        if consumer.kept:\n            return True\n",
        new="",
        tests=(QUEUE_PIECES + "test_a_value_whose_last_piece_waits_for_its_consumer_s_permits_may_complete",),
        why_tests="not looked for with seeds: a consumer out of permits amid a value at the end of a sealed segment",
    ),
)
