"""Break the order of a send, as `segments.log.sends.send_order` states it (DESIGN §7, "The order of a send")."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

FILE = "segments/log/sends/send_order.py"
TESTS = "tests/segments/log/sends/test_send_order.py::"
SECOND = "the code around it keeps the order; this is the check that notices if it no longer does"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="appended-before-its-op",
        rule="an entry of a transaction is appended only behind its op record (L3)",
        section="§7",
        file=FILE,
        old='    "append",\n    Durable.OP,\n',
        new='    "append",\n    Durable.NOTHING,\n',
        tests=(f"{TESTS}test_l3_an_entry_is_appended_only_behind_its_op_record",),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="step-not-checked",
        rule="a step whose stage is not reached is not taken (L5)",
        section="§7",
        file=FILE,
        old="        if self.durable < step.needs:\n",
        new="        if self.durable < Durable.NOTHING:\n",
        tests=(f"{TESTS}test_l5_a_step_is_refused_before_its_stage",),
        why_tests=SECOND,
    ),
    Mutant(
        name="short-sync-believed",
        rule="a sync proves only what it says that it has reached (L5)",
        section="§7",
        file=FILE,
        old="        if (last.ledger_id, last.entry_id) > (ledger_id, last_confirmed):\n",
        new="        if last.ledger_id < 0:\n",
        tests=(f"{TESTS}test_l5_nothing_is_told_of_a_sync_that_fell_short_and_the_next_owner_counts",),
        why_tests="no ledger of the simulation reports less than its sync covers",
    ),
    Mutant(
        name="lease-asked-before-the-sync",
        rule="the lease that counts is the one after the sync (L3)",
        section="§7",
        file=FILE,
        old="        if self.durable is not Durable.ENTRY:\n",
        new="        if self.durable is Durable.OWNED:\n",
        tests=(f"{TESTS}test_l5_the_lease_counts_only_if_it_was_asked_for_after_the_sync",),
        why_tests=SECOND,
    ),
    Mutant(
        name="acked-without-the-lease",
        rule="a producer is acked only while the lease holds, asked after the sync (L5)",
        section="§7",
        file=FILE,
        old='        "ack",\n        Durable.OWNED,\n',
        new='        "ack",\n        Durable.ENTRY,\n',
        tests=(f"{TESTS}test_no_step_needs_less_than_the_one_before_it",),
        why_tests=SECOND,
    ),
)
