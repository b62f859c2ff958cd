"""Mutants in which the writers of one named transaction that do not count are taken for one: each has records, ledgers
and sidecars of its own (DESIGN §6)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

VISIBILITY = "tests/watchers/test_visibility.py::test_"
FEW = "in few seeds two writers of one transaction lose in one segment, in ledgers that go at different times"
FILE = "watchers/visibility.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="trimmed-with-one-loser",
        rule="trimming what one losing writer wrote leaves what the others wrote hidden (R3)",
        section="§6",
        file=FILE,
        old="                self._losers.pop((txn_id, writer), None)\n",
        new=(
            "                for key in [key for key in self._losers if key[0] == txn_id]:\n"
            "                    del self._losers[key]\n"
        ),
        tests=(f"{VISIBILITY}r3_trimming_what_one_loser_wrote_leaves_the_others_of_its_transaction_hidden",),
        why_tests=FEW,
    ),
    Mutant(
        name="trimmed-loser-still-known",
        rule="the record of a losing writer that is trimmed is done with, though others of its transaction stand (R3)",
        section="§6",
        file=FILE,
        old="txn_id in self._aborted if writer < 0 else (txn_id, writer) in self._losers\n",
        new="txn_id in self._aborted if writer < 0 else any(key[0] == txn_id for key in self._losers)\n",
        tests=(f"{VISIBILITY}r3_trimming_what_one_loser_wrote_leaves_the_others_of_its_transaction_hidden",),
        why_tests=FEW,
    ),
    Mutant(
        name="moved-with-one-loser",
        rule="a record leaves etcd's list only for a sidecar that holds it, not with another writer's (R3)",
        section="§6",
        file=FILE,
        old="if (record[1], None if record[2] < 0 else record[2]) not in records\n",
        new="if record[1] not in {txn_id for txn_id, _ in records}\n",
        tests=(f"{VISIBILITY}r3_losers_of_one_transaction_go_into_the_sidecars_of_their_own_ledgers",),
        why_tests=FEW,
    ),
    Mutant(
        name="one-loser-of-a-sidecar-loaded",
        rule="a successor hides all losing writers of a transaction that sidecars name (R1)",
        section="§6",
        file=FILE,
        old="            if not self.is_aborted(txn_id, -1 if writer is None else writer):\n",
        new="            if txn_id not in self._aborted and not any(key[0] == txn_id for key in self._losers):\n",
        tests=(f"{VISIBILITY}r3_a_successor_finds_losers_of_one_transaction_in_etcd_in_sidecars_and_in_the_tail",),
        why_tests=FEW,
    ),
    Mutant(
        name="one-loser-recorded-hides-the-rest",
        rule="a losing writer is recorded though the record of another one of its transaction stands already (R1)",
        section="§6",
        file=FILE,
        old="            if not decision.counts(writer) and (txn_id, writer) not in self._losers\n",
        new="            if not decision.counts(writer) and not any(key[0] == txn_id for key in self._losers)\n",
        tests=(f"{VISIBILITY}r3_a_successor_finds_losers_of_one_transaction_in_etcd_in_sidecars_and_in_the_tail",),
        why_tests=FEW,
    ),
    Mutant(
        name="abort-up-to-the-last-writer-s-entry",
        rule="the record of an abort names the last entry of all writers (R3)",
        section="§6",
        file=FILE,
        old="((None, max(last for _, last in entries)),)",
        new="((None, entries[-1][1]),)",
        tests=(f"{VISIBILITY}an_abort_is_recorded_up_to_the_last_entry_whichever_writer_s_that_is",),
        why_tests=FEW,
    ),
    Mutant(
        name="failed-write-forgets-the-loser",
        rule="a losing writer whose next write fails is hidden for what it wrote before",
        section="§6",
        file=FILE,
        old="        if writer not in found.last_by_writer:\n            found.last_by_writer[writer] = None\n",
        new="        found.last_by_writer[writer] = None\n",
        tests=(f"{VISIBILITY}a_loser_s_last_entry_is_known_though_its_next_write_fails",),
        why_tests=FEW,
    ),
)
