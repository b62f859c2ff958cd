"""Mutants of messages that queues deliver at their time (DESIGN §8, "A queue's entries")."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

QUEUES = "tests/segments/subscription/test_delivered_later.py::"
SENDS = "tests/txnclient/producing/test_delivered_later.py::"
QUEUE = "segments/subscription/queue.py"
SHELL = "segments/subscription/queue_subscription.py"
FEW = "times are judged in every fourth run"
FULL = "a cursor is full in no seed"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="later-is-now",
        rule="a queue delivers no message before its time",
        section="§8",
        file=SHELL,
        old="        if wait_ms <= 0:\n",
        new="        if wait_ms <= 3_600_000:\n",
        tests=(f"{QUEUES}test_it_comes_at_its_time_without_anything_else_that_happens",),
        why_tests=FEW,
    ),
    Mutant(
        name="time-forgotten-on-disk",
        rule="the time counts for entries that are read from the disk, too",
        section="§8",
        file="segments/subscription/dispatch.py",
        old="        metadata.deliver_at_ms,\n",
        new="        0,\n",
        tests=(f"{QUEUES}test_a_successor_waits_as_well_and_delivers_it",),
        why_tests="a memory of a segment's newest entries holds those of a seed",
    ),
    Mutant(
        name="no-timer-for-later",
        rule="a message comes at its time even if nothing else happens",
        section="§8",
        file=SHELL,
        old="            self._delayed = False\n            self._set_timer()\n",
        new="            self._delayed = False\n",
        tests=(f"{QUEUES}test_it_comes_at_its_time_without_anything_else_that_happens",),
        why_tests="other messages that come wake the queue",
    ),
    Mutant(
        name="no-room-for-later",
        rule="entries that wait for their time keep the room that their acks need",
        section="§8",
        file=QUEUE,
        old="            self._later[position] = None\n            self._promise(position, messages)\n",
        new="            pass\n",
        tests=(f"{QUEUES}test_batches_that_wait_keep_the_room_for_their_acks",),
        why_tests=FULL,
    ),
    Mutant(
        name="room-of-what-waited-is-kept",
        rule="what was acked while it waited gives its room back",
        section="§8",
        file=QUEUE,
        old="or (first in self._later and not self._delays.of(first))",
        new="or False",
        tests=(f"{QUEUES}test_what_is_acked_while_it_waits_is_not_delivered",),
        why_tests=FULL,
    ),
    Mutant(
        name="room-stays-taken-over-a-seek",
        rule="a queue that is sought gives up all its room",
        section="§8",
        file=SHELL,
        old="        self._queue.give_up()\n",
        new="",
        tests=(f"{QUEUES}test_a_seek_makes_it_wait_anew_and_leaves_no_room_taken",),
        why_tests="queues are not sought in seeds",
    ),
    Mutant(
        name="wall-clock-not-asked-again",
        rule="a wall clock that was set back brings no message forward",
        section="§8",
        file=SHELL,
        old="        wait_ms = entry.deliver_at_ms - self._clock.wall_ms()\n",
        new="        wait_ms = 0 if self._timer_s else entry.deliver_at_ms - self._clock.wall_ms()\n",
        tests=(f"{QUEUES}test_a_wall_clock_set_back_brings_nothing_forward",),
        why_tests="times are judged only where clocks agree",
    ),
    Mutant(
        name="any-time-is-taken",
        rule="a broker refuses a time that is further ahead than the longest delay",
        section="§8",
        file="segments/broker/broker_service.py",
        old="    if deliver_at_ms > now_ms + MAX_DELAY_MS + CLOCKS_APART_MS:\n",
        new="    if False:\n",
        tests=(f"{QUEUES}test_a_time_that_nobody_could_wait_for_is_refused",),
        why_tests="our client asks for none",
    ),
    Mutant(
        name="one-time-for-a-whole-batch",
        rule="messages of different times share no entry",
        section="§8",
        file="txnclient/producing/channel.py",
        old=" and batch.deliver_at_ms == deliver_at_ms",
        new="",
        tests=(f"{SENDS}test_what_is_sent_in_one_go_comes_each_at_its_own_time",),
        why_tests=FEW,
    ),
    Mutant(
        name="turn-goes-to-another-time",
        rule="a message without a key that goes on to the next segment joins no batch of another time there",
        section="§8",
        file="txnclient/producing/producer_impl.py",
        old="        while not channel.fits(txn, size, deliver_at_ms):\n",
        new="        if not channel.fits(txn, size, deliver_at_ms):\n",
        tests=(f"{SENDS}test_a_message_without_key_joins_no_batch_of_another_time",),
        why_tests="messages of a seed that are delivered later have keys",
    ),
    Mutant(
        name="part-of-a-millisecond-early",
        rule="a clock cut to whole ms brings no message forward",
        section="§8",
        file="txnclient/producing/later.py",
        old="        return now_ms + 1 + math",
        new="        return now_ms + math",
        tests=(f"{SENDS}test_times_that_are_taken",),
        why_tests=FEW,
    ),
    Mutant(
        name="divided-batch-forgets-its-time",
        rule="the parts of a batch whose segment was split keep its time",
        section="§8",
        file="txnclient/producing/batches.py",
        old="            part.deliver_at_ms = self.deliver_at_ms\n",
        new="            pass\n",
        tests=(f"{SENDS}test_the_time_stays_with_the_parts_of_a_batch_that_is_divided",),
        why_tests="a seed has few such batches over a split",
    ),
)
