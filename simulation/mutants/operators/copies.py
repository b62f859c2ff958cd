"""Break further rules of backups, and of the figures that operators see (DESIGN §11, §12; docs/operations.md)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

UNTRIED_HERE = "the simulation takes no backups and runs no commands"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="verified-up-to-the-first-damage",
        rule="verifying a backup sets every damaged copy aside",
        section="§12",
        file="txnctl/backup/taking.py",
        old="            damaged.append(error)\n        progress.add(one.size)\n",
        new="            damaged.append(error)\n            break\n        progress.add(one.size)\n",
        tests=(
            "tests/txnctl/backup/test_changing_ledgers.py::"
            "test_all_copies_that_are_damaged_are_copied_again_by_the_next_backup",
        ),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="damage-told-once",
        rule="each backup that has a damaged ledger tells of it",
        section="§12",
        file="txnctl/backup/taking.py",
        old='        self._damaged += [told for told in self._told if any(f"/{path}:" in told for path in old)]\n',
        new="",
        tests=(
            "tests/txnctl/backup/test_changing_ledgers.py::"
            "test_damage_is_told_by_every_backup_that_has_the_damaged_ledgers",
        ),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="one-damaged-ledger-recalled",
        rule="each backup tells all damage that the newest one has told, not the first alone",
        section="§12",
        file="txnctl/backup/taking.py",
        old="            self._told = newest.damaged\n",
        new="            self._told = newest.damaged[:1]\n",
        tests=(
            "tests/txnctl/backup/test_changing_ledgers.py::"
            "test_damage_is_told_by_every_backup_that_has_the_damaged_ledgers",
        ),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="copies-not-durable-before-the-manifest",
        rule="the names of all copies are durable before the manifest has one",
        section="§12",
        file="txnctl/backup/folder.py",
        old=(
            "        for directory in {path.parent for path in map(self._object, manifest.files)}:\n"
            "            sync_directory(directory)\n"
        ),
        new="",
        tests=(
            "tests/txnctl/backup/test_backup_folder.py::test_all_copies_have_durable_names_before_the_manifest_has_one",
        ),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="backups-numbered-by-their-count",
        rule="a new backup comes behind all others by its name, also once old ones are dropped",
        section="§12",
        file="txnctl/backup/folder.py",
        old="max(numbers, default=0) + 1:06d",
        new="len(numbers) + 1:06d",
        tests=(
            "tests/txnctl/backup/test_backup_folder.py::"
            "test_a_new_backup_comes_behind_all_others_also_once_old_ones_are_dropped",
        ),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="second-backup-waits",
        rule="a second backup into a folder is refused at once",
        section="§12",
        file="txnctl/backup/folder.py",
        old="fcntl.LOCK_EX | fcntl.LOCK_NB",
        new="fcntl.LOCK_EX",
        tests=("tests/txnctl/backup/test_backup_folder.py::test_a_second_process_is_refused_at_once",),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="peek-gives-up-where-all-is-trimmed",
        rule="`topics peek` shows what retention has left",
        section="§11",
        file="txnctl/commands/reading.py",
        old=(
            "            ledgers = sys.maxsize  # retention has taken what stands there: what is kept is read\n"
            "            continue"
        ),
        new="            return newest",
        tests=("tests/txnctl/commands/test_reading.py::test_peek_shows_what_retention_has_left",),
        why_tests=UNTRIED_HERE,
    ),
    Mutant(
        name="deposed-sweeper-tells-its-census",
        rule="who is not the elected sweeper any more tells no census",
        section="§9",
        file="txnctl/process/sweeper.py",
        old="            self._elected, self._census, self._expiry = False, None, None",
        new="            self._elected, self._expiry = False, None",
        tests=("tests/txnctl/process/test_sweeper.py::test_one_that_is_not_elected_any_more_tells_no_census",),
        why_tests="the simulation looks at no metrics",
    ),
)
