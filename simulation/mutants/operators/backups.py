"""Break the rules of backups and restores: their contents, when one counts, and what a restore may overwrite (DESIGN
§12)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

FOLDER = "tests/txnctl/backup/test_backup_folder.py::test_"
TAKEN = "tests/txnctl/backup/test_backups.py::test_"
CHANGING = "tests/txnctl/backup/test_changing_ledgers.py::test_"
NO_OPERATOR = "the simulation has no operator and no directories"


def _mutant(name: str, rule: str, file: str, old: str, new: str, test: str) -> Mutant:
    return Mutant(
        name=name,
        rule=rule,
        section="§12",
        file=f"txnctl/backup/{file}.py",
        old=old,
        new=new,
        tests=(test,),
        why_tests=NO_OPERATOR,
    )


MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "ledger-copied-before-its-footer",
        "what stands beside a ledger is copied before it, or it tells of more than was copied",
        "ledger_sources",
        '("count", "footer", "sidecar", "fence", "ledger")',
        '("ledger", "count", "footer", "sidecar", "fence")',
        f"{FOLDER}what_stands_beside_a_ledger_is_copied_before_it",
    ),
    _mutant(
        "time-of-a-fresh-file-is-trusted",
        "a file that was changed just now may change again without another time",
        "taking",
        "source.mtime_ns if settled else 0",
        "source.mtime_ns",
        f"{CHANGING}a_ledger_that_has_just_changed_is_copied_again_whatever_its_time_says",
    ),
    _mutant(
        "backup-leaves-a-gap",
        "a ledger that goes during the backup takes the earlier ones along",
        "taking",
        "if not gone or ledger_id > max(gone))",
        "if True)",
        f"{CHANGING}what_retention_takes_meanwhile_leaves_no_gap",
    ),
    _mutant(
        "backup-over-a-repair",
        "a repair during the backup ends it: it has changed ledgers that were copied before",
        "taking",
        "        if now.id != identity.id:\n",
        "        if False:\n",
        f"{FOLDER}a_repair_or_a_lost_folder_during_the_backup_ends_it",
    ),
    _mutant(
        "backup-of-a-folder-that-went-away",
        "a folder that has gone away is not taken for one without ledgers",
        "taking",
        "        await asyncio.to_thread(ledger_files.expect_folder, self._root, self._mark)\n        revision, _",
        "        revision, _",
        f"{FOLDER}a_repair_or_a_lost_folder_during_the_backup_ends_it",
    ),
    _mutant(
        "backup-of-two-clusters",
        "etcd and the ledgers of another one make no backup",
        "taking",
        "    mark.judge(identity, revision)\n",
        "",
        f"{FOLDER}etcd_and_ledgers_of_two_clusters_make_no_backup",
    ),
    _mutant(
        "backup-of-another-folder",
        "the folder that is copied is the one that this cluster's brokers use",
        "taking",
        '        await expect_shared_folder(store, ledgers, SystemRandom(), broker_id="this backup", claim=False)\n',
        "        pass\n",
        f"{FOLDER}etcd_and_ledgers_of_two_clusters_make_no_backup",
    ),
    _mutant(
        "snapshot-cut-off",
        "a snapshot of etcd that is cut off is no copy of it",
        "taking",
        "    if size % SECTOR_BYTES != SHA256_BYTES:\n",
        "    if False:\n",
        f"{FOLDER}etcd_s_own_checksum_tells_a_snapshot_that_is_cut_off_or_damaged",
    ),
    _mutant(
        "snapshot-damaged",
        "etcd's checksum of a snapshot is compared",
        "taking",
        "    if told != digest.digest():\n",
        "    if False:\n",
        f"{FOLDER}etcd_s_own_checksum_tells_a_snapshot_that_is_cut_off_or_damaged",
    ),
    _mutant(
        "etcd-copied-last",
        "etcd is copied first: the ledgers then hold all that it knows",
        "taking",
        "        etcd = await self._copy_etcd(name)\n        files, written = await self._copy_ledgers(name)\n",
        "        files, written = await self._copy_ledgers(name)\n        etcd = await self._copy_etcd(name)\n",
        f"{TAKEN}what_was_acknowledged_before_the_backup_is_whole_and_nothing_is_half_visible",
    ),
    _mutant(
        "half-deleted-backup-counts",
        "the manifest goes first: what is left of a deletion that was cut off is no backup",
        "folder",
        "        (self.backups / name / MANIFEST).unlink(missing_ok=True)\n",
        "",
        f"{FOLDER}a_backup_whose_deletion_was_cut_off_counts_as_none",
    ),
    _mutant(
        "kept-backup-loses-its-contents",
        "contents that a kept backup names are not deleted with another one",
        "folder",
        "if path.is_file() and path not in used]",
        "if path.is_file()]",
        f"{FOLDER}contents_that_a_kept_backup_needs_stay",
    ),
    _mutant(
        "newest-backups-deleted",
        "`--keep` keeps the newest ones",
        "taking",
        "folder.whole()[:-keep]",
        "folder.whole()[keep:]",
        f"{FOLDER}contents_that_a_kept_backup_needs_stay",
    ),
    _mutant(
        "backups-of-two-clusters-in-one-folder",
        "a folder holds the backups of one cluster",
        "folder",
        "        elif (owner := self.owner()).store not in (store, *former):\n",
        "        elif (owner := self.owner()).store not in (store, *former) and False:\n",
        f"{FOLDER}a_folder_is_one_cluster_s_also_after_a_repair_has_renamed_it",
    ),
    _mutant(
        "repaired-cluster-loses-its-backups",
        "a repair renames the store; its backups go on in their folder",
        "folder",
        "not in (store, *former):",
        "not in (store,):",
        f"{FOLDER}a_folder_is_one_cluster_s_also_after_a_repair_has_renamed_it",
    ),
    _mutant(
        "two-backups-at-once",
        "one process at a time works on a folder of backups",
        "folder",
        "                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "                pass\n",
        f"{FOLDER}a_second_process_is_refused_at_once",
    ),
    _mutant(
        "content-replaced",
        "no backup changes a file that an earlier one relies on",
        "manifest",
        'f"{self.path}.{self.sha256[:16]}"',
        'f"{self.path}.0"',
        f"{FOLDER}a_new_content_does_not_replace_what_an_earlier_backup_relies_on",
    ),
    _mutant(
        "restored-beside-an-etcd-at-work",
        "an etcd that is in use is not repaired: that would abort what is open in it",
        "restoring",
        "        await store.close()\n        raise NotAllowed(f\"etcd at {settings.etcd} is in use",
        "        await store.close()\n        return\n        raise NotAllowed(f\"etcd at {settings.etcd} is in use",
        f"{TAKEN}ledgers_are_restored_beside_an_etcd_that_was_restored_by_hand",
    ),
    _mutant(
        "restored-beside-another-backup-s-etcd",
        "ledgers older than the restored etcd are not put beside it",
        "restoring",
        " and newest <= manifest.revision:",
        ":",
        f"{TAKEN}ledgers_are_restored_beside_an_etcd_that_was_restored_by_hand",
    ),
    _mutant(
        "restore-writes-over",
        "a restore never writes over anything",
        "restoring",
        "    if any(folder.iterdir()):\n",
        "    if False:\n",
        f"{TAKEN}what_was_acknowledged_before_the_backup_is_whole_and_nothing_is_half_visible",
    ),
    _mutant(
        "restored-mark-behind",
        "the restored folder is newer than the restored etcd, and says so",
        "restoring",
        "            revision=manifest.revision + AHEAD,\n",
        "            revision=1,\n",
        f"{TAKEN}what_was_committed_right_before_a_backup_of_a_quiet_cluster_is_there",
    ),
    _mutant(
        "damage-of-a-name-s-end",
        "a backup tells the damage of ledgers that it has, by their whole paths",
        "taking",
        'any(f"/{path}:" in told for path in old)',
        "any(path in told for path in old)",
        "tests/txnctl/backup/test_changing_ledgers.py::"
        "test_damage_is_told_no_more_once_the_ledger_is_gone_though_a_tenant_s_name_ends_like_its",
    ),
)  # fmt: skip
