"""Mutants of what a segment's owner does for its subscriptions around take-overs, hand-overs and strange records."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

HANDING_OVER = "tests/segments/owner/test_handing_over.py::"
QUEUE = "tests/segments/subscription/test_queue.py::"
STRANGE = "tests/segments/subscription/test_strange_records.py::"

FULL_CURSORS = "the simulation has no queue whose cursor is full"
STRANGE_RECORDS = "the simulation writes no record that cannot be read"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="next-owner-of-a-full-cursor-reads-on",
        rule="blocks in which the cursor has acks already count among those that a queue may read",
        section="§8",
        file="segments/subscription/queue.py",
        old="AckSpan(acks.blocks(), most=bounds.blocks)",
        new="AckSpan((), most=bounds.blocks)",
        tests=(f"{QUEUE}test_the_next_owner_reads_no_further_than_the_cursor_has_room_for_acks",),
        why_tests=FULL_CURSORS,
    ),
    Mutant(
        name="first-entry-waits-behind-a-full-cursor",
        rule="a queue may always give out the first unacked entry",
        section="§8",
        file="segments/subscription/ack_span.py",
        old="        return position == first\n",
        new="        return False\n",
        tests=(f"{QUEUE}test_the_next_owner_gives_out_the_first_entry_however_full_the_cursor_is",),
        why_tests=FULL_CURSORS,
    ),
    Mutant(
        name="last-acks-of-a-hand-over-not-written",
        rule="an ack that is answered during a hand-over in order is stored",
        section="§7",
        file="segments/owner/segment.py",
        old="                self.dispatcher.close(error)\n                await self._write_all(timeout_s)\n",
        new="                self.dispatcher.close(error)\n",
        tests=(f"{HANDING_OVER}test_an_ack_that_is_answered_during_a_hand_over_is_stored",),
        why_tests="an ack that is not stored comes again, which a crash may bring about as well",
    ),
    Mutant(
        name="unreadable-subscription-ends-its-segments",
        rule="a subscription's record that cannot be read stops neither the others nor the segment",
        section="§8",
        file="segments/subscription/definitions.py",
        old="                found[name] = None\n                continue\n",
        new="                raise\n",
        tests=(
            f"{STRANGE}test_a_strange_subscription_keeps_its_messages_and_its_segment",
            f"{STRANGE}test_the_lags_of_others_are_told_beside_a_strange_subscription",
        ),
        why_tests=STRANGE_RECORDS,
    ),
    Mutant(
        name="undecodable-subscription-ends-its-segments",
        rule="a key that has no name stops neither other subscriptions nor the segment",
        section="§8",
        file="segments/subscription/definitions.py",
        old='.decode(errors="backslashreplace")',
        new=".decode()",
        tests=(
            f"{STRANGE}test_a_strange_subscription_keeps_its_messages_and_its_segment",
            f"{STRANGE}test_the_lags_of_others_are_told_beside_a_strange_subscription",
        ),
        why_tests=STRANGE_RECORDS,
    ),
    Mutant(
        name="trimmed-past-an-unreadable-subscription",
        rule="nothing is trimmed past a subscription that cannot be read",
        section="§8",
        file="segments/subscription/subscription_table.py",
        old="                done = EARLIEST if definition is None else",
        new="                done = self._ledgers.last_confirmed if definition is None else",
        tests=(f"{STRANGE}test_a_strange_subscription_keeps_its_messages_and_its_segment",),
        why_tests=STRANGE_RECORDS,
    ),
    Mutant(
        name="broken-start-is-a-defect",
        rule="a start that cannot be read stops neither other subscriptions nor the segment",
        section="§8",
        file="segments/subscription/starts.py",
        old="        except (LookupError, TypeError, ValueError) as error:\n",
        new="        except InvalidArgument as error:\n",
        tests=(f"{STRANGE}test_the_lags_of_others_are_told_beside_a_strange_subscription",),
        why_tests=STRANGE_RECORDS,
    ),
)
