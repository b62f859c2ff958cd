"""Break rows of the scenario table: without the mutated lines the tests of the row fail (docs/testing.md)."""

from __future__ import annotations

from simulation.mutants.mutant import Edit, Mutant

ROW = "the test of the row dies of this line alone; whether a seed shows it was not tried"
ACKING = "tests/segments/subscription/cursors/test_acking.py::"
READING = "tests/segments/subscription/test_reading.py::"
TAKE_OVER = "tests/segments/owner/test_take_over.py::test_r3_an_aborted_record_stays_as_long_as_its_data"
RECOVERY_COST = (
    "tests/segments/owner/test_recovery_cost.py::"
    "test_r6_a_take_over_reads_what_is_open_and_the_tail_and_not_the_history"
)
EVERY_BIT = (
    "tests/segments/ledger/test_ledger_format.py::"
    "test_l5_each_bit_of_a_small_file_is_missed_and_told_of_by_where_its_group_begins"
)
DELETIONS = "txnstore/writes/deletion_transitions.py"
FORGOTTEN = "    for prefix in (keys.SUBSCRIPTION, keys.ASSIGNMENT, keys.DRAINED, keys.CURSOR, keys.LOAD):"
NOTHING_LEFT = "tests/test_deletion.py::test_s8_nothing_is_left_of_a_topic_and_a_subscription_that_had_everything"
FULL = "tests/test_full_store.py::test_e3_a_store_that_transactions_have_filled_is_emptied_by_their_ends"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="aborted-acks-held-on",
        rule="a late commit behind the abort finds nothing of the transaction (P7)",
        section="§6",
        file="watchers/pending_acks.py",
        old="        txn_id = decision.txn_id\n        del self._txns[txn_id]\n",
        new="        txn_id = decision.txn_id\n        if decision.committed:\n            del self._txns[txn_id]\n",
        tests=(f"{ACKING}test_p7_a_late_commit_of_an_aborted_transaction_changes_nothing",),
        why_tests=ROW,
    ),
    Mutant(
        name="abort-wakes-nobody",
        rule="a read that is parked at an open transaction goes on by its end alone (V4)",
        section="§7",
        file="segments/owner/segment.py",
        old="        self._shared.clean_up.wake(self._writes)\n        self.dispatcher.wake()\n\n    def confirmed",
        new="        self._shared.clean_up.wake(self._writes)\n\n    def confirmed",
        tests=(f"{READING}test_v4_a_read_that_is_parked_filters_what_the_abort_lets_through",),
        why_tests=ROW,
    ),
    Mutant(
        name="queue-judges-before-its-read",
        rule="what a queue reads from the disk is judged when it has come (V4)",
        section="§7",
        file="segments/subscription/queueing/queue.py",
        old=(
            "            if self._outcomes.is_aborted(txn_id, entry.writer):\n"
            "                self._pass_over(position, entry.messages)\n"
            "                return None\n"
        ),
        new="",
        tests=(f"{READING}test_v4_what_is_read_from_the_disk_while_the_abort_arrives_is_filtered",),
        why_tests=ROW,
    ),
    Mutant(
        name="aborted-hidden-from-uncommitted",
        rule="READ_UNCOMMITTED shows what was aborted, also to who comes behind the abort (V7)",
        section="§7",
        file="segments/subscription/dispatch.py",
        old="            and consumer.isolation is not Isolation.READ_UNCOMMITTED\n",
        new="",
        tests=(
            "tests/segments/subscription/test_isolation.py::"
            "test_v7_who_comes_behind_the_end_of_a_transaction_reads_it_uncommitted_all_the_same",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="ack-of-a-closed-consumer",
        rule="an ack by a consumer that was replaced is refused (K6)",
        section="§7",
        file="segments/broker/consuming.py",
        old=(
            "        if consuming.sink.error is not None:\n"
            "            raise consuming.sink.error\n"
            "        return consuming"
        ),
        new="        return consuming",
        tests=(
            "tests/segments/controller/test_replaced_consumers.py::test_k6_acks_of_a_replaced_consumer_are_refused",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="attached-beside-another",
        rule="whoever attaches to a segment of a stream closes who was attached (K6)",
        section="§7",
        file="segments/subscription/stream_subscription.py",
        old=(
            '        self.close(NotAllowed(f"{consumer.holder} now reads {self._segment} for subscription '
            '{self.name}"))\n'
        ),
        new="",
        tests=(
            "tests/segments/controller/test_replaced_consumers.py::test_k6_acks_of_a_replaced_consumer_are_refused",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="holder-of-an-older-assignment",
        rule="who is not assigned a segment any more is closed, before its successor comes (K6)",
        section="§7",
        file="segments/subscription/subscription_table.py",
        old=(
            '            found.close(NotAllowed(f"{self._segment} of {subscription} is no longer assigned to '
            '{found.holder}"))'
        ),
        new="            pass",
        tests=(
            "tests/segments/controller/test_replaced_consumers.py::test_k6_acks_of_a_replaced_consumer_are_refused",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="scan-from-the-beginning",
        rule="a take-over scans the tail, not the history (R6)",
        section="§6",
        file="segments/owner/take_over.py",
        old="_headers(ledgers, min(watermark, covered))",
        new="_headers(ledgers, EARLIEST)",
        tests=(RECOVERY_COST,),
        why_tests="a simulated history is too short to cost anybody anything",
    ),
    Mutant(
        name="oldest-footer",
        rule="dedup is taken up from the newest footer (R6)",
        section="§6",
        file="segments/log/ledgers/segment_log.py",
        old=("        for info in reversed(self._record.ledgers):\n            if self.writer is not None and"),
        new="        for info in self._record.ledgers:\n            if self.writer is not None and",
        tests=(RECOVERY_COST,),
        why_tests="a simulated history is too short to cost anybody anything",
    ),
    Mutant(
        name="closed-ledgers-fenced",
        rule="only the ledger that is listed as open is fenced (R6)",
        section="§6",
        file="segments/log/ledgers/segment_log.py",
        old="        if info.closed_length is not None:\n            return info\n        recovered",
        new="        recovered",
        tests=(RECOVERY_COST,),
        why_tests="a simulated history is too short to cost anybody anything",
    ),
    Mutant(
        name="watermark-stands-still",
        rule="the watermark follows what is settled (R6)",
        section="§6",
        file="watchers/visibility.py",
        old="        return max(reached, self._floor)",
        new="        return self._floor",
        tests=(RECOVERY_COST,),
        why_tests="a simulated history is too short to cost anybody anything",
    ),
    Mutant(
        name="moved-and-forgotten",
        rule="what has moved into a sidecar is aborted all the same, for its own owner too (R3)",
        section="§6",
        file="watchers/visibility.py",
        old=("        heapify(self._durable)\n        self._sidecars.setdefault(ledger_id, []).extend(records)\n"),
        new="        heapify(self._durable)\n        self.pruned(records)\n",
        tests=(TAKE_OVER,),
        why_tests=ROW,
    ),
    Mutant(
        name="sidecar-without-losers",
        rule="writers that did not count stand in the sidecar as well (R3)",
        section="§6",
        file="watchers/visibility.py",
        old=(
            "            if record[0] <= up_to and self._known(record):\n"
            "                found[record[1], None if record[2] < 0 else record[2]] = record[0]"
        ),
        new=(
            "            if record[0] <= up_to and self._known(record) and record[2] < 0:\n"
            "                found[record[1], None if record[2] < 0 else record[2]] = record[0]"
        ),
        tests=(TAKE_OVER,),
        why_tests=ROW,
    ),
    Mutant(
        name="abort-beside-a-commit",
        rule="the sweep sends no abort beside an end that is on its way (D2)",
        section="§5",
        file="coordinator_v5/ends.py",
        old=(
            "        if txn.ending is None and not txn.tc.lost:\n"
            "            self._send(txn, state, reason, None, None, txn.tc.epoch)"
        ),
        new="        if not txn.tc.lost:\n            self._send(txn, state, reason, None, None, txn.tc.epoch)",
        more=(
            Edit(
                "coordinator_v5/transactions.py",
                "            if txn.phase is Phase.OPEN and txn.ending is None:\n                found.append(txn)",
                "            if txn.phase is Phase.OPEN:\n                found.append(txn)",
            ),
        ),
        tests=(
            "tests/coordinator_v5/background/test_deadlines.py::"
            "test_d2_a_commit_whose_write_is_held_past_the_sweep_wins_at_its_own_coordinator",
        ),
        why_tests="etcd refuses the abort all the same: it only costs a write",
    ),
    Mutant(
        name="loser-is-not-told-of-the-deadline",
        rule="who has lost to the deadline is told that it was the deadline (D2)",
        section="§5",
        file="txnstore/writes/transitions.py",
        old="    return RecordedDecision(header.state, record.mod_revision, header.reason, writers, header.note)",
        new="    return RecordedDecision(header.state, record.mod_revision, None, writers, header.note)",
        tests=(
            "tests/coordinator_v5/background/test_deadlines.py::"
            "test_d2_a_commit_whose_write_is_held_past_the_sweep_of_another_coordinator_is_told_of_the_deadline",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="group-header-unchecked",
        rule="any bit of a ledger file that has flipped is noticed (L5)",
        section="§8",
        file="segments/ledger/ledger_format.py",
        old="    if found.marker != marker or found.header_crc != _crc(raw[: -_CRC.size]):",
        new="    if found.marker != marker:",
        tests=(EVERY_BIT,),
        why_tests=ROW,
    ),
    Mutant(
        name="group-body-unchecked",
        rule="any bit of a ledger file that has flipped is noticed (L5)",
        section="§8",
        file="segments/ledger/ledger_format.py",
        old="        if group is None or len(body) < group.body_bytes or _crc(body) != group.body_crc:",
        new="        if group is None or len(body) < group.body_bytes:",
        tests=(EVERY_BIT,),
        why_tests=ROW,
    ),
    Mutant(
        name="ledger-header-half-checked",
        rule="any bit of a ledger file that has flipped is noticed (L5)",
        section="§8",
        file="segments/ledger/ledger_format.py",
        old=(
            "    if crc != _crc(raw[: -_CRC.size]):\n"
            '        raise DataCorrupt(f"{where}: the checksum of the ledger header'
        ),
        new=(
            "    if crc >> 8 != _crc(raw[: -_CRC.size]) >> 8:\n"
            '        raise DataCorrupt(f"{where}: the checksum of the ledger header'
        ),
        tests=(EVERY_BIT,),
        why_tests=ROW,
    ),
    Mutant(
        name="cursors-of-a-deleted-topic",
        rule="of a deleted topic no cursor is left (S8)",
        section="§5",
        file="segments/log/erasing.py",
        old="    await _erase(store, segment, epoch, keys.cursors(segment), _plain)\n",
        new="",
        more=(Edit(DELETIONS, FORGOTTEN, FORGOTTEN.replace(" keys.CURSOR,", "")),),
        tests=(NOTHING_LEFT,),
        why_tests=ROW,
    ),
    Mutant(
        name="cursor-of-a-deleted-subscription",
        rule="of a deleted subscription no cursor is left (S8)",
        section="§5",
        file="segments/log/erasing.py",
        old="    await _erase(store, segment, epoch, keys.cursor_blocks(segment, subscription), _plain)\n",
        new="",
        tests=(NOTHING_LEFT,),
        why_tests=ROW,
    ),
    Mutant(
        name="drained-marks-of-a-deleted-topic",
        rule="of a deleted topic no drained mark is left (S8)",
        section="§5",
        file=DELETIONS,
        old=FORGOTTEN,
        new=FORGOTTEN.replace(" keys.DRAINED,", ""),
        tests=(NOTHING_LEFT,),
        why_tests=ROW,
    ),
    Mutant(
        name="assignment-of-a-deleted-subscription",
        rule="of a deleted subscription no assignment is left (S8)",
        section="§5",
        file=DELETIONS,
        old="            Delete(keys.assignment(topic_path, name)),\n",
        new="",
        tests=(NOTHING_LEFT,),
        why_tests=ROW,
    ),
    Mutant(
        name="alarm-stays",
        rule="once there is room etcd's alarm is disarmed (E3)",
        section="§4",
        file="txnstore/maintenance.py",
        old="            await self._store.disarm()\n",
        new="            pass\n",
        tests=(FULL,),
        why_tests="it is about a real etcd that is full",
    ),
    Mutant(
        name="full-store-not-compacted",
        rule="a store that takes no mark of the revision is compacted all the same (E3)",
        section="§4",
        file="txnstore/maintenance.py",
        old=(
            "        except StoreFull:  # no put succeeds: compaction is all the more urgent\n"
            "            revision = (await self._store.status()).revision\n"
        ),
        new=("        except StoreFull:\n            return\n"),
        tests=(FULL,),
        why_tests="it is about a real etcd that is full",
    ),
)
