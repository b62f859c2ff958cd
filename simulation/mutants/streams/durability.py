"""Leave out one sync each: ledgers' files must outlive a power failure (DESIGN §6, §7; L5)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

REAL_FILES = "the simulation has disks of its own: real files are behind `LedgerStore`"
FAILURES = "tests/segments/ledger/test_power_failures.py::test_l5_"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="discarded-sidecar-not-synced",
        rule="a sidecar that a repair has discarded is gone for good",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old=(
            "    paths.sidecar.unlink(missing_ok=True)\n"
            "    if paths.directory.is_dir():\n"
            "        sync_directory(paths.directory)\n"
        ),
        new=("    paths.sidecar.unlink(missing_ok=True)\n    if paths.directory.is_dir():\n        pass\n"),
        tests=(f"{FAILURES}what_a_repair_has_told_outlives_a_power_failure",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="set-aside-not-synced",
        rule="what a repair has set aside stands there",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old=("        directory.rename(target)\n        sync_directory(target.parent)\n"),
        new=("        directory.rename(target)\n        pass\n"),
        tests=(f"{FAILURES}what_a_repair_has_told_outlives_a_power_failure",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="set-aside-comes-back",
        rule="what a repair has set aside stands where it was no more",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old="        sync_directory(directory.parent)\n",
        new="        pass\n",
        tests=(f"{FAILURES}what_a_repair_has_told_outlives_a_power_failure",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="directories-not-synced",
        rule="a name counts once its directory is synced",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old=("    try:\n        os.fsync(fd)\n"),
        new=("    try:\n        pass\n"),
        tests=(f"{FAILURES}what_was_told_outlives_a_power_failure_at_any_moment",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="directory-not-synced-into-its-parent",
        rule="a directory is synced into its parent before anything in it counts",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old="        sync_directory(path.parent)\n",
        new="        pass\n",
        tests=(f"{FAILURES}what_was_told_outlives_a_power_failure_at_any_moment",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="new-file-named-before-its-sync",
        rule="a file is whole and durable the moment it has its name",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old=("            os.fsync(fd)\n            os.link(temporary, target)\n"),
        new=("            pass\n            os.link(temporary, target)\n"),
        tests=(f"{FAILURES}what_was_told_outlives_a_power_failure_at_any_moment",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="new-name-not-synced",
        rule="a ledger, fence, count or sidecar that was told of has its name for good",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old=("            os.unlink(temporary)\n        sync_directory(target.parent)\n"),
        new=("            os.unlink(temporary)\n        pass\n"),
        tests=(f"{FAILURES}what_was_told_outlives_a_power_failure_at_any_moment",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="name-of-others-not-synced",
        rule="what another process gave a name is synced before anybody counts on it",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old="    sync_directory(target.parent)  # ▲ its creator may have died before this sync\n",
        new="    pass\n",
        tests=(f"{FAILURES}what_a_successor_tells_holds_whatever_its_predecessor_died_at",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="replaced-file-not-synced",
        rule="a footer is durable before it takes the place of another",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old=("            os.fsync(fd)\n        finally:\n"),
        new=("            pass\n        finally:\n"),
        tests=(f"{FAILURES}what_was_told_outlives_a_power_failure_at_any_moment",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="replaced-name-not-synced",
        rule="a footer that was told of is not the one before it",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old=("        raise\n    sync_directory(target.parent)\n"),
        new=("        raise\n    pass\n"),
        tests=(f"{FAILURES}what_was_told_outlives_a_power_failure_at_any_moment",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="discarded-footer-not-synced",
        rule="a footer that a repair has discarded is gone for good",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old=(
            "    paths.footer.unlink(missing_ok=True)\n"
            "    if paths.directory.is_dir():\n"
            "        sync_directory(paths.directory)\n"
        ),
        new=("    paths.footer.unlink(missing_ok=True)\n    if paths.directory.is_dir():\n        pass\n"),
        tests=(f"{FAILURES}what_a_repair_has_told_outlives_a_power_failure",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="fence-goes-before-its-ledger",
        rule="the ledger goes before its fence, on the disk too",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old=("    paths.ledger.unlink(missing_ok=True)\n    sync_directory(paths.directory)\n"),
        new=("    paths.ledger.unlink(missing_ok=True)\n    pass\n"),
        tests=(f"{FAILURES}what_was_told_outlives_a_power_failure_at_any_moment",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="deletion-not-synced",
        rule="a ledger whose deletion was told of is gone for good",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old=" after a crash it shows that the ledger existed\n    sync_directory(paths.directory)\n",
        new=" after a crash it shows that the ledger existed\n    pass\n",
        tests=(f"{FAILURES}what_was_told_outlives_a_power_failure_at_any_moment",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="erased-folder-comes-back",
        rule="nothing is left of a deleted segment",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old="            sync_directory(empty.parent)\n",
        new="            pass\n",
        tests=(f"{FAILURES}what_was_told_outlives_a_power_failure_at_any_moment",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="counted-without-a-sync",
        rule="what a successor counts is made durable before anybody counts on it",
        section="§7",
        file="segments/ledger/file_ledger.py",
        old="        os.fdatasync(fd)  # ▲ make durable what was read, before anyone relies on it\n",
        new="        pass\n",
        tests=(f"{FAILURES}what_a_successor_tells_holds_whatever_its_predecessor_died_at",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="acked-without-a-sync",
        rule="what is acked is synced",
        section="§7",
        file="segments/ledger/file_ledger_writer.py",
        old="            os.fdatasync(fd)\n",
        new="            pass\n",
        tests=(f"{FAILURES}what_was_told_outlives_a_power_failure_at_any_moment",),
        why_tests=REAL_FILES,
    ),
)
