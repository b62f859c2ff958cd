"""Mutants of a queue's fairness: who gets which messages of an entry, what waits at whom (DESIGN §8, "A queue's
entries")."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

DIVIDING = "tests/segments/subscription/test_queue_dividing.py::"
PACE = "tests/txnclient/consuming/test_pace.py::"
FAIRNESS = "tests/txnclient/consuming/test_queue_fairness.py::"
NOT_LOST = "no message is lost by it, and a history does not show who has waited"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="batch-goes-whole-to-one-consumer",
        rule="a consumer gets no more messages of an entry than it has permits",
        section="§8",
        file="segments/subscription/queue.py",
        old="        handed = _lowest(free, consumer.permits)\n",
        new="        handed = free\n",
        tests=(f"{DIVIDING}test_an_entry_s_messages_go_to_as_many_consumers_as_have_permits",),
        why_tests=NOT_LOST,
    ),
    Mutant(
        name="rest-of-a-divided-entry-forgotten",
        rule="what is left of a divided entry is due for the next consumer",
        section="§8",
        file="segments/subscription/queue.py",
        old="        if divided:\n            heappush(self._due, (position, position))\n",
        new="",
        tests=(f"{DIVIDING}test_nobody_gets_more_than_its_permits_and_nothing_comes_twice_or_never",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="divided-entry-read-for-each-consumer",
        rule="a divided entry is not read from the disk again for each consumer",
        section="§8",
        file="segments/subscription/queue_subscription.py",
        old="            self._divided = entry if handout.divided else None\n",
        new="            self._divided = None\n",
        tests=(f"{DIVIDING}test_one_batch_is_divided_among_consumers_and_read_once",),
        why_tests="it costs reads, which no history shows",
    ),
    Mutant(
        name="unbegun-counted",
        rule="what nobody has begun comes again with the same redelivery count",
        section="§8",
        file="segments/broker/consuming.py",
        old="counted=not nack.unbegun)",
        new="counted=True)",
        tests=(f"{DIVIDING}test_a_nack_of_what_was_not_begun_is_not_counted",),
        why_tests="not looked for with seeds: it sends good messages to the dead letters, after many turns",
    ),
    Mutant(
        name="hanging-worker-keeps-its-buffer",
        rule="a consumer whose application asks for nothing gives back what it has not begun",
        section="§8",
        file="txnclient/consuming/queue_feed.py",
        old="        self._receiver.pause(self)\n        self._take_back(keep=0)\n",
        new="        self._receiver.pause(self)\n",
        tests=(f"{FAIRNESS}test_a_consumer_whose_application_hangs_gives_back_what_it_has_not_begun",),
        why_tests=NOT_LOST,
    ),
    Mutant(
        name="paused-for-ever",
        rule="a consumer that asks again is granted permits again",
        section="§8",
        file="txnclient/consuming/receiver.py",
        old="            for source in paused:\n                source.resume()\n",
        new="            paused.clear()\n",
        tests=(f"{FAIRNESS}test_a_consumer_that_asks_again_gets_messages_again",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="window-never-falls",
        rule="when jobs become long, what waits beyond a few of them is given back",
        section="§8",
        file="txnclient/consuming/pace.py",
        old="            slow = self._slow > 1\n",
        new="            slow = False\n",
        tests=(f"{PACE}test_when_jobs_become_long_what_waits_is_given_back_after_the_second",),
        why_tests=NOT_LOST,
    ),
    Mutant(
        name="window-never-grows",
        rule="a fast application has hundreds of messages ahead",
        section="§8",
        file="txnclient/consuming/pace.py",
        old="                self.window = 2 * self.window\n",
        new="                pass\n",
        tests=(f"{PACE}test_the_window_is_what_is_worked_off_within_two_to_eight_hundredths_of_a_second",),
        why_tests="it costs time, which no history shows",
    ),
    Mutant(
        name="one-pause-is-slow",
        rule="a pause now and then gives nothing back",
        section="§8",
        file="txnclient/consuming/pace.py",
        old="            slow = self._slow > 1\n",
        new="            slow = self._slow > 0\n",
        tests=(f"{PACE}test_a_pause_now_and_then_changes_nothing",),
        why_tests="it costs deliveries, which no history shows",
    ),
    Mutant(
        name="more-dropped-than-given-back",
        rule="what is not given back stays in the buffer",
        section="§8",
        file="txnclient/consuming/inbox.py",
        old="            if not waiting.left():\n                self._waiting.pop()\n",
        new="            self._waiting.pop()\n",
        tests=(f"{PACE}test_every_message_is_taken_or_given_back_once_and_its_permit_is_granted_again",),
        why_tests="not looked for with seeds",
    ),
)
