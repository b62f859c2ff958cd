"""Break rules of acks, of their new holders, of drained parents and of seals where there are several of a kind, or a
second try."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

CHANGES_GIVEN_UP = "tests/segments/owner/test_changes_given_up.py::"
NEW_HOLDERS = "tests/segments/subscription/test_new_holders.py::"
SENDS_DURING_A_SEAL = "tests/segments/owner/test_sends_during_a_seal.py::"

ROW = "the test of the row dies of this line alone; whether a seed shows it was not tried"

ACKING = "tests/segments/subscription/cursors/test_acking.py::"
DRAINED = "tests/segments/subscription/test_drained.py::"
SEALING = "tests/segments/owner/test_sealing.py::"
LET_GO = "        if not self.buffer.holds(txn_id) and not self.subscriptions.holds(txn_id):\n"
REFUSED_ACK = f"{ACKING}test_p4_an_ack_that_is_refused_leaves_what_else_the_transaction_has_here_its_decision"
REFUSED_FIRST = f"{ACKING}test_p5_acks_behind_a_refused_first_one_are_found_by_the_next_owner"
LATE_SEND = (
    "tests/segments/broker/test_refusals.py::test_v8_a_send_behind_the_end_of_its_transaction_holds_back_nothing_of_it"
)
REFUSED_LAST = NEW_HOLDERS + "test_p12_a_new_holder_begins_once_the_ack_that_it_waits_for_is_refused"
BY_SIZE = (
    "tests/segments/subscription/cursors/test_cursor.py::"
    "test_p8_entries_acked_in_part_take_room_by_their_size_until_they_are_acked_whole"
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="acks-of-a-later-round",
        rule="with a cursor that takes several commits go the ops of those acks alone that it held as it left (P6)",
        section="§6",
        file="watchers/clean_up_plans.py",
        old="self._pending.clean_up_batch(room) if self._round.over else self._round.acks[:room]",
        new="self._pending.clean_up_batch(room)",
        tests=(
            "tests/watchers/test_clean_up_plans.py::"
            "test_p6_ops_of_acks_that_came_amid_a_large_cursor_stay_until_those_are_stored",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="successor-waits-for-one",
        rule="a new holder waits for the acks of all transactions of its predecessor (P12)",
        section="§6",
        file="segments/subscription/stream_subscription.py",
        old="        if self._held_back and not self._awaits_predecessor():\n",
        new="        if self._held_back:\n",
        tests=(NEW_HOLDERS + "test_p12_a_new_holder_waits_for_all_transactions_of_its_predecessor",),
        why_tests=ROW,
    ),
    Mutant(
        name="refused-ack-releases-nobody",
        rule="a new holder begins also where the last ack that it waits for was refused (P12)",
        section="§6",
        file="segments/subscription/stream_subscription.py",
        old="            self._rewind()  # delivered, and never acked\n        self._release_successor()\n",
        new="            self._rewind()  # delivered, and never acked\n",
        tests=(REFUSED_LAST,),
        why_tests=ROW,
    ),
    Mutant(
        name="refused-acker-remembered",
        rule="whose only ack was refused holds back no new holder (P12)",
        section="§6",
        file="segments/subscription/subscriptions.py",
        old="            self._ackers.pop(ack.txn_id, None)\n",
        new="",
        tests=(REFUSED_LAST,),
        why_tests=ROW,
    ),
    Mutant(
        name="let-go-beside-another-subscription",
        rule="a segment hears of the end of a transaction that acks on some subscription of it (P4)",
        section="§6",
        file="segments/owner/segment.py",
        old=LET_GO,
        new="        if not self.buffer.holds(txn_id):\n",
        tests=(f"{REFUSED_ACK}[an ack]",),
        why_tests=ROW,
    ),
    Mutant(
        name="let-go-beside-a-write",
        rule="a segment hears of the end of a transaction that has written to it, though an ack of it was refused",
        section="§6",
        file="segments/owner/segment.py",
        old=LET_GO,
        new="        if not self.subscriptions.holds(txn_id):\n",
        tests=(f"{REFUSED_ACK}[a write]",),
        why_tests=ROW,
    ),
    Mutant(
        name="late-send-sets-its-transaction-aside",
        rule="a queue waits for the decision of what has entries here, not of what a late send begins anew (V8)",
        section="§7",
        file="segments/subscription/queueing/queue.py",
        old="            if self._outcomes.pins(txn_id):\n",
        new="            if self._outcomes.holds(txn_id):\n",
        tests=(LATE_SEND,),
        why_tests="one seed in hundreds has a queue come to the entry amid the late send",
    ),
    Mutant(
        name="acks-behind-a-refused-one-not-sent",
        rule="once the ack with the index key is refused the next one carries it (P5)",
        section="§4",
        file="segments/subscription/subscriptions.py",
        old="                self._send_op(waiting, first=True)\n                break\n",
        new="                break\n",
        tests=(REFUSED_FIRST,),
        why_tests=ROW,
    ),
    Mutant(
        name="parents-alone-drained",
        rule="a segment is attached to once all its ancestors are drained, not its parents alone (S7)",
        section="§8",
        file="segments/owner/segment.py",
        old="        return topology.ancestors(name.segment_id)\n",
        new="        return topology.segments[name.segment_id].parents\n",
        tests=(f"{DRAINED}test_s7_a_grandchild_is_not_attached_to_while_its_grandparent_is_read_again",),
        why_tests="the controller assigns no such segment, but for what it has not heard of yet",
    ),
    Mutant(
        name="one-ancestor-drained",
        rule="a merged segment is attached to once both its parents are drained (S7)",
        section="§8",
        file="segments/subscription/subscription_table.py",
        old="        missing = [ancestor for ancestor in ancestors if",
        new="        missing = [ancestor for ancestor in ancestors[:1] if",
        tests=(f"{DRAINED}test_s7_a_merged_segment_is_not_attached_to_before_both_its_parents_are_drained",),
        why_tests="the controller assigns no such segment, but for what it has not heard of yet",
    ),
    Mutant(
        name="given-up-unwritten",
        rule="a change is given up once its intent has gone, and tried again where the record was changed (S10)",
        section="§8",
        file="segments/controller/layout_changes.py",
        old="still_held=self._leadership.still_held())):\n            self._given_up += 1\n",
        new="still_held=self._leadership.still_held())) or True:\n            self._given_up += 1\n",
        tests=(CHANGES_GIVEN_UP + "test_s10_a_change_is_given_up_though_the_record_was_changed_just_then",),
        why_tests=ROW,
    ),
    Mutant(
        name="refused-amid-what-was-held-back",
        rule="of what was held back while a segment was sealed a refused send keeps no other (S10)",
        section="§8",
        file="segments/log/sends/pipeline.py",
        old="                one.reply.failed(error)\n\n    def refuse_held",
        new="                one.reply.failed(error)\n                return\n\n    def refuse_held",
        tests=(SENDS_DURING_A_SEAL + "test_s10_of_what_was_held_back_nothing_waits_for_what_is_refused",),
        why_tests=ROW,
    ),
    Mutant(
        name="restored-within-the-bound",
        rule="an ack that was admitted once is restored, however full the cursor is by then (P5)",
        section="§6",
        file="watchers/pending_acks.py",
        old="        self._hold(reservation, bounded=False)\n",
        new="        self._hold(reservation, bounded=True)\n",
        tests=(
            "tests/watchers/test_pending_acks.py::"
            "test_p5_what_was_admitted_once_is_restored_though_the_cursor_has_no_room_for_it_now",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="part-stays-in-its-block",
        rule="an entry that is acked whole takes no room of those acked in part, however it was acked (P8)",
        section="§6",
        file="segments/subscription/cursors/cursor.py",
        old=(
            "            if acked >> (entry_id - block.first_entry) & 1:\n"
            "                self._drop_part(block, entry_id)\n"
            "        return True\n"
        ),
        new="            pass\n        return True\n",
        tests=(
            "tests/segments/subscription/cursors/test_cursor.py::test_p8_what_is_acked_whole_takes_no_room_of_those_acked_in_part",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="bytes-of-parts-not-given-back",
        rule="room for an entry acked in part comes back with its bytes (P8)",
        section="§6",
        file="segments/subscription/cursors/partial_acks.py",
        old="        del self._taken[position]\n        self.bytes -= size\n",
        new="        del self._taken[position]\n",
        tests=(BY_SIZE,),
        why_tests=ROW,
    ),
    Mutant(
        name="parts-unbounded-by-size",
        rule="entries acked in part are bounded by what they take of the store (P8)",
        section="§6",
        file="segments/subscription/cursors/partial_acks.py",
        old="        return len(self._taken) >= self._max_entries or self.bytes >= self._max_bytes\n",
        new="        return len(self._taken) >= self._max_entries\n",
        tests=(BY_SIZE,),
        why_tests=ROW,
    ),
    Mutant(
        name="first-owners-drop-it",
        rule="every owner of a topic's segments drops a deleted subscription, however many there are (P9)",
        section="§8",
        file="segments/controller/deletions.py",
        old="    for at in range(0, len(paths), limit):\n",
        new="    for at in range(0, min(len(paths), limit), limit):\n",
        tests=(
            "tests/segments/controller/test_deletions.py::"
            "test_p9_of_a_topic_with_many_segments_every_owner_drops_a_deleted_subscription",
        ),
        why_tests="simulated topics have few segments",
    ),
    Mutant(
        name="held-back-weighs-twice",
        rule="what is held back as its segment is lost is taken off the bound of its broker once (S10)",
        section="§8",
        file="segments/log/sends/pipeline.py",
        old="        self._refusal = error\n        self.refuse_held(error)\n        waiting",
        new="        self._refusal = error\n        waiting",
        tests=(
            SENDS_DURING_A_SEAL
            + "test_s10_what_is_held_back_as_its_segment_is_lost_is_told_and_weighs_nothing_any_more",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="unanswered-bytes-of-a-closed-producer",
        rule="what was under way when the broker closed a producer counts no more against what may be (L7)",
        section="§7",
        file="txnclient/producing/channels/channel.py",
        old="        self._generation += 1\n        self._unanswered_bytes = 0\n",
        new="        self._generation += 1\n",
        tests=(
            "tests/txnclient/producing/test_producer.py::"
            "test_l7_what_was_under_way_when_the_broker_closed_a_producer_takes_no_room_from_what_follows",
        ),
        why_tests="it takes 8 MiB under way as one segment changes hands, again and again",
    ),
    Mutant(
        name="gone-consumers-keep-their-share",
        rule="a queue's consumer that is gone has no share of what its broker delivers at once (P9)",
        section="§7",
        file="segments/subscription/queue_subscription.py",
        old="        self._dispatcher.shares.leave(consumer)\n",
        new="",
        tests=(
            "tests/segments/subscription/queueing/test_queue_leaving.py::"
            "test_p9_a_consumer_that_is_gone_has_no_share_of_what_its_broker_delivers_at_once",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="lost-connection-hides-an-abort",
        rule="behind a lost connection with acks in a named transaction, which others may end, all comes again (P1)",
        section="§6",
        file="txnclient/consuming/feeds/feed.py",
        old="            self._inbox.rewound()\n        else:\n            self._inbox.drop_buffer()\n",
        new="            self._inbox.drop_buffer()\n        else:\n            self._inbox.drop_buffer()\n",
        tests=(
            "tests/txnclient/consuming/test_consumer.py::"
            "test_p1_behind_a_lost_connection_what_others_may_abort_comes_before_anything_newer",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="failed-readers-keep-their-share",
        rule="a reader that was given up has no share of what its broker delivers at once",
        section="§7",
        file="segments/subscription/dispatch.py",
        old="            self._consumers.pop(consumer, None)\n            self.shares.leave(consumer)\n",
        new="            self._consumers.pop(consumer, None)\n",
        tests=(
            "tests/segments/subscription/test_backpressure.py::test_a_reader_that_was_given_up_gives_its_share_back",
        ),
        why_tests="it takes a disk that fails very many readers of one broker",
    ),
    Mutant(
        name="plain-acks-told-by-the-last",
        rule="plain acks of one command are stored, also if the last of them adds nothing",
        section="§6",
        file="watchers/pending_acks.py",
        old="                moved = self._cursor.ack(rest) or moved\n",
        new="                moved = self._cursor.ack(rest)\n",
        tests=(
            "tests/watchers/test_plain_over_pending_acks.py::test_plain_acks_tell_that_any_of_them_moved_the_cursor",
        ),
        why_tests=ROW,
    ),
)
