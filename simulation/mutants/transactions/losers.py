"""Treat the losing writers of one named transaction as one: each has records, ledgers and sidecars of its own (DESIGN
§6)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

LOSERS = "tests/watchers/test_losers.py::test_"
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
        tests=(f"{LOSERS}r3_trimming_what_one_loser_wrote_leaves_the_others_of_its_transaction_hidden",),
        why_tests=FEW,
    ),
    Mutant(
        name="trimmed-loser-still-known",
        rule="the record of a losing writer that is trimmed is done with, though others of its transaction stand (R3)",
        section="§6",
        file=FILE,
        old="txn_id in self._aborted if writer < 0 else (txn_id, writer) in self._losers\n",
        new="txn_id in self._aborted if writer < 0 else any(key[0] == txn_id for key in self._losers)\n",
        tests=(f"{LOSERS}r3_trimming_what_one_loser_wrote_leaves_the_others_of_its_transaction_hidden",),
        why_tests=FEW,
    ),
    Mutant(
        name="moved-with-one-loser",
        rule="a record leaves etcd's list only for a sidecar that holds it, not with another writer's (R3)",
        section="§6",
        file=FILE,
        old="if (record[1], None if record[2] < 0 else record[2]) not in records\n",
        new="if record[1] not in {txn_id for txn_id, _ in records}\n",
        tests=(f"{LOSERS}r3_losers_of_one_transaction_go_into_the_sidecars_of_their_own_ledgers",),
        why_tests=FEW,
    ),
    Mutant(
        name="one-loser-of-a-sidecar-loaded",
        rule="a successor hides all losing writers of a transaction that sidecars name (R1)",
        section="§6",
        file=FILE,
        old="            if not self.is_aborted(txn_id, -1 if writer is None else writer):\n",
        new="            if txn_id not in self._aborted and not any(key[0] == txn_id for key in self._losers):\n",
        tests=(f"{LOSERS}r3_a_successor_finds_losers_of_one_transaction_in_etcd_in_sidecars_and_in_the_tail",),
        why_tests=FEW,
    ),
    Mutant(
        name="one-loser-recorded-hides-the-rest",
        rule="a losing writer is recorded though the record of another one of its transaction stands already (R1)",
        section="§6",
        file=FILE,
        old="            if not decision.counts(writer) and (txn_id, writer) not in self._losers\n",
        new="            if not decision.counts(writer) and not any(key[0] == txn_id for key in self._losers)\n",
        tests=(f"{LOSERS}r3_a_successor_finds_losers_of_one_transaction_in_etcd_in_sidecars_and_in_the_tail",),
        why_tests=FEW,
    ),
    Mutant(
        name="abort-up-to-the-last-writer-s-entry",
        rule="the record of an abort names the last entry of all writers (R3)",
        section="§6",
        file=FILE,
        old="((None, max(last for _, last in entries)),)",
        new="((None, entries[-1][1]),)",
        tests=(f"{LOSERS}an_abort_is_recorded_up_to_the_last_entry_whichever_writer_s_that_is",),
        why_tests=FEW,
    ),
    Mutant(
        name="failed-write-forgets-the-loser",
        rule="a losing writer whose next write fails is hidden for what it wrote before",
        section="§6",
        file=FILE,
        old="        if writer not in found.last_by_writer:\n            found.last_by_writer[writer] = None\n",
        new="        found.last_by_writer[writer] = None\n",
        tests=(f"{LOSERS}a_loser_s_last_entry_is_known_though_its_next_write_fails",),
        why_tests=FEW,
    ),
    Mutant(
        name="one-loser-in-a-sidecar",
        rule="a sidecar holds every losing writer of a transaction (R3)",
        section="§6",
        file="segments/ledger/sidecars.py",
        old="        for (txn_id, writer), position in aborted.items()\n",
        new="        for (txn_id, writer), position in {key[0]: (key, at) for key, at in aborted.items()}.values()\n",
        tests=(
            "tests/segments/ledger/test_sidecars.py::"
            "test_r3_each_loser_of_a_transaction_stands_in_it_and_writer_0_is_not_the_whole_transaction",
        ),
        why_tests=FEW,
    ),
    Mutant(
        name="one-loser-in-the-cut",
        rule="a cut names every losing writer of a transaction (V5)",
        section="§10",
        file=FILE,
        old="            aborted += (key for key, last in lost if last > resolved and key[0] not in undecided)\n",
        new=(
            "            some = [key for key, last in lost if last > resolved and key[0] not in undecided]\n"
            "            aborted += {key[0]: key for key in some}.values()\n"
        ),
        tests=(f"{LOSERS}a_cut_names_each_loser_of_a_transaction_by_its_own_last_entry",),
        why_tests=FEW,
    ),
    Mutant(
        name="record-of-one-loser-stands-for-all",
        rule="clean-up writes the record of each losing writer that has none yet, whichever stands already",
        section="§6",
        file="watchers/clean_up_plans.py",
        old="            if found[keys.aborted(self._segment, txn_id, writer)] is not None:\n",
        new="            if any(record is not None for record in found.values()):\n",
        tests=(
            "tests/watchers/test_clean_up_plans.py::"
            "test_the_record_of_one_loser_that_stands_already_leaves_the_other_s_to_be_written",
        ),
        why_tests=FEW,
    ),
    Mutant(
        name="one-writer-speaks-for-a-part",
        rule="acks that are applied in parts count by their own writer",
        section="§6",
        file="watchers/pending_acks.py",
        old="            counting = [reservation for reservation in part if decision.counts(reservation.writer)]\n",
        new="            counting = [reservation for reservation in part if decision.counts(part[0].writer)]\n",
        tests=(
            "tests/watchers/test_acks_in_parts.py::test_within_one_part_each_writer_s_acks_count_or_not_for_themselves",
        ),
        why_tests=FEW,
    ),
)
