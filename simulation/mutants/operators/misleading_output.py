"""Break commands, pages and files so that they mislead an operator or leave something behind."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

INTERRUPTED = "tests/txnctl/backup/test_interrupted_backups.py::test_"
STRANGE = "tests/txnctl/commands/test_strange_text.py::test_"
DROPPED = (
    "tests/txnctl/checking/test_dropped_lists.py::"
    "test_c12_the_list_of_a_repair_that_was_cut_off_and_repeated_has_all_that_was_aborted"
)
UNREADABLE = (
    "tests/txnctl/checking/test_unreadable_records.py::test_e8_what_cannot_be_read_is_not_repaired_as_if_it_were_lost"
)
CLEANING = "tests/pytest_txnstore/test_cleaning.py::test_"
ONE_BACKUP = "tests/charts/test_values.py::test_a_backup_has_time_for_all_its_data_and_one_that_fails_is_not_made_again"
PROBES = "tests/charts/test_etcd_probes.py::test_"
NO_OPERATOR = "the simulation has no operator, no shell and no directories"


def _mutant(name: str, rule: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name=name, rule=rule, section="§12", file=file, old=old, new=new, tests=tests, why_tests=NO_OPERATOR)


MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "pages-of-ipv4-alone",
        "the HTTP pages are served at an address of IPv6, too",
        "txnctl/process/http.py",
        'kind = _ServerOfIPv6 if host.startswith("[") else _Server',
        "kind = _Server",
        "tests/txnctl/process/test_http_addresses.py::test_the_pages_are_served_at_addresses_of_ipv6_too",
    ),
    _mutant(
        "dev-takes-brackets-for-a-name",
        "a cluster of this machine may listen at an address of IPv6",
        "txnctl/launch/preflight.py",
        "socket.getaddrinfo(bare_host(host), port, type",
        "socket.getaddrinfo(host, port, type",
        "tests/txnctl/process/test_http_addresses.py::test_a_cluster_of_this_machine_may_listen_at_an_address_of_ipv6",
    ),
    _mutant(
        "health-by-a-proxy",
        "a health check asks the process of its host itself, whatever proxies the environment names",
        "txnctl/commands/health.py",
        "urllib.request.ProxyHandler({})",
        "urllib.request.ProxyHandler()",
        "tests/txnctl/commands/test_health.py::test_a_proxy_of_the_machine_is_not_asked_for_a_process_of_this_host",
    ),
    _mutant(
        "health-of-what-is-no-http",
        "what answers no HTTP is not healthy, and told in a line",
        "txnctl/commands/health.py",
        "    except (OSError, HTTPException, ValueError, OverflowError) as error:",
        "    except (OSError, ValueError, OverflowError) as error:",
        "tests/txnctl/commands/test_health.py::test_what_answers_no_http_is_not_healthy",
    ),
    _mutant(
        "failed-backups-pile-up",
        "a backup that failed leaves no copy of etcd behind the next one",
        "txnctl/backup/folder.py",
        "        for name in self.unfinished():\n            for path in",
        "        for name in ():\n            for path in",
        f"{INTERRUPTED}backups_that_fail_one_after_the_other_leave_one_copy_of_etcd_at_most",
    ),
    _mutant(
        "room-is-made-too-late",
        "older backups are dropped before the next one needs their room",
        "txnctl/backup/taking.py",
        "                    await in_thread(lambda: _keep_newest(folder, keep))\n            taking",
        "                    pass\n            taking",
        f"{INTERRUPTED}fewer_kept_backups_make_room_for_the_next",
    ),
    _mutant(
        "no-backup-beside-a-damaged-manifest",
        "a damaged manifest of an older backup does not keep the next one from being taken",
        "txnctl/backup/taking.py",
        "with suppress(DataCorrupt):",
        "with suppress():",
        f"{INTERRUPTED}a_damaged_older_manifest_is_told_behind_the_new_backup",
    ),
    _mutant(
        "unfinished-copies-dropped",
        "what an unfinished backup has copied stays for the next one",
        "txnctl/backup/folder.py",
        "        used |= {self._object(one) for name in self.unfinished() for one in self.noted(name)}\n",
        "",
        f"{INTERRUPTED}what_an_unfinished_backup_has_copied_stays_for_the_next",
    ),
    _mutant(
        "lock-ends-before-the-repair",
        "a restore holds its backups until it is whole",
        "txnctl/backup/restoring.py",
        "    with backups.locked():  # ▲ to the end",
        "    if True:  # ▲ to the end",
        f"{INTERRUPTED}a_restore_holds_its_backups_until_it_is_whole",
    ),
    _mutant(
        "ended-restore-writes-on",
        "a restore that is ended writes nothing more",
        "txnctl/backup/restoring.py",
        "in_thread(restore, stop=progress.stop)",
        "asyncio.to_thread(restore)",
        f"{INTERRUPTED}a_restore_that_is_ended_writes_nothing_more",
    ),
    _mutant(
        "ended-restore-leaves-its-tool-at-work",
        "a restore that is ended writes nothing more, nor does the tool of etcd that it has started",
        "txnctl/backup/etcd_files.py",
        "            process.kill()\n            await process.wait()\n",
        "            pass\n",
        f"{INTERRUPTED}a_restore_that_is_ended_leaves_no_tool_of_etcd_at_work",
    ),
    _mutant(
        "ended-without-its-thread",
        "a command that is ended waits for its thread, and keeps its lock meanwhile",
        "txnctl/backup/progress.py",
        "        while not running.done():\n",
        "        while False:\n",
        f"{INTERRUPTED}who_is_ended_waits_for_its_thread",
    ),
    _mutant(
        "ended-twice-without-its-thread",
        "a command that is ended twice waits for its thread, and keeps its lock meanwhile",
        "txnctl/backup/progress.py",
        "with suppress(asyncio.CancelledError):",
        "with suppress():",
        f"{INTERRUPTED}who_is_ended_twice_waits_for_its_thread_all_the_same",
    ),
    _mutant(
        "restore-in-place-of-a-mount",
        "a folder that the restored one cannot replace is refused before anything is copied",
        "txnctl/backup/restoring.py",
        "    if folder.is_symlink() or folder.is_mount():\n",
        "    if False:\n",
        f"{INTERRUPTED}a_folder_that_cannot_be_replaced_is_refused_before_anything_is_copied",
    ),
    _mutant(
        "verify-ends-at-the-first-damage",
        "each backup is told whether it can be restored",
        "txnctl/commands/backups.py",
        '                    damaged.append(f"{name}: {error}")\n',
        "                    raise\n",
        f"{INTERRUPTED}verify_tells_of_each_backup_whether_it_can_be_restored",
    ),
    _mutant(
        "verify-beside-a-backup",
        "nobody verifies backups while another process takes one or drops some",
        "txnctl/commands/backups.py",
        "        with backups.locked(), _progress() as status:\n",
        "        backups.owner()\n        with _progress() as status:\n",
        f"{INTERRUPTED}verify_tells_of_each_backup_whether_it_can_be_restored",
    ),
    _mutant(
        "dev-where-another-cluster-is",
        "servers of `txnctl dev` do not take an address of another cluster from the environment",
        "txnctl/launch/dev.py",
        ", environment=without)",
        ")",
        "tests/txnctl/launch/test_dev_environment.py::"
        "test_a_cluster_of_this_machine_does_not_say_that_it_is_where_another_one_is",
    ),
    _mutant(
        "dev-by-certificates-of-another-etcd",
        "a cluster of this machine starts though certificates of another one's etcd are not there",
        "txnctl/launch/dev.py",
        "load(None, without=OF_OTHER_SERVERS, ",
        "load(None, ",
        "tests/txnctl/launch/test_dev_environment.py::test_certificates_of_another_cluster_need_not_be_on_this_machine",
    ),
    _mutant(
        "environment-looked-at-once-all-is-restored",
        "a restore tells what is wrong in its environment before it copies anything",
        "txnctl/backup/restoring.py",
        "environment = load(None, without=CERTIFICATES, etcd",
        "environment = ServerSettings(**dict.fromkeys(CERTIFICATES), etcd",
        f"{INTERRUPTED}what_is_wrong_in_the_environment_is_told_before_anything_is_restored",
    ),
    _mutant(
        "names-that-rule-the-terminal",
        "free text of clients stays in its cell",
        "txnctl/commands/shared/output.py",
        "printable(msgspec.json.encode(value).decode() if isinstance(value, Mapping) else str(value))",
        "msgspec.json.encode(value).decode() if isinstance(value, Mapping) else str(value)",
        f"{STRANGE}free_text_of_clients_stays_in_its_cell",
    ),
    _mutant(
        "properties-that-rule-the-terminal",
        "properties of messages stay in their cell, too",
        "txnctl/commands/shared/output.py",
        "printable(msgspec.json.encode(value).decode() if isinstance(value, Mapping) else str(value))",
        "msgspec.json.encode(value).decode() if isinstance(value, Mapping) else printable(str(value))",
        f"{STRANGE}properties_stay_in_their_cell_like_names",
    ),
    _mutant(
        "unreadable-input-awaited",
        "produce ends where its input cannot be read",
        "txnctl/commands/piping.py",
        "        except (TxnError, OSError) as error:",
        "        except TxnError as error:",
        f"{STRANGE}input_that_cannot_be_read_ends_produce",
    ),
    _mutant(
        "empty-prefix-forgets-all",
        "an empty prefix does not forget every name of the cluster",
        "txnctl/commands/names.py",
        '    if prefix == "":',
        '    if prefix == "-":',
        f"{STRANGE}an_empty_prefix_does_not_forget_every_name_of_the_cluster",
    ),
    _mutant(
        "list-of-a-cut-off-repair-forgotten",
        "the list of a repeated repair has what the interrupted one has aborted",
        "txnctl/checking/repair.py",
        "        self.dropped_list.go_on(self._interrupted, picture)\n",
        "",
        DROPPED,
    ),
    _mutant(
        "known-commits-forgotten-by-a-repeated-repair",
        "a repeated repair lists as committed what the interrupted one knew to have been",
        "txnctl/checking/repair.py",
        "        self.dropped_list.were_committed([txn_id for txn_id in committed if txn_id not in self._committed])\n",
        "        for txn_id in committed:\n            self.dropped_list._all[txn_id].was_committed = True\n",
        "tests/txnctl/checking/test_dropped_lists.py::"
        "test_c12_a_repeated_repair_lists_as_committed_what_the_interrupted_one_knew_to_be",
    ),
    _mutant(
        "dropped-before-it-is-listed",
        "a repair lists what it drops before it drops it",
        "txnctl/checking/dropping.py",
        "        self._repair.dropped_list.write()\n",
        "",
        DROPPED,
    ),
    _mutant(
        "aborted-before-it-is-listed",
        "a repair lists what it aborts before it aborts it",
        "txnctl/checking/repair.py",
        "        self._report_lost()\n        self.dropped_list.write()\n",
        "        self._report_lost()\n",
        DROPPED,
    ),
    _mutant(
        "unreadable-is-lost",
        "a repair changes nothing where etcd holds a record that it cannot read",
        "txnctl/checking/picture.py",
        "    if unreadable:\n",
        "    if False:\n",
        UNREADABLE,
    ),
    _mutant(
        "unreadable-is-noticed-too-late",
        "a repair notices what it cannot read before it makes etcd unfit",
        "txnctl/checking/repair.py",
        "        expect_readable(await take_picture(self._store), LEASED)  # before anything is changed\n"
        "        begun = await self._begin(why)\n",
        "        begun = await self._begin(why)\n        expect_readable(await take_picture(self._store), LEASED)\n",
        UNREADABLE,
    ),
    _mutant(
        "restored-without-its-prefix",
        "a restored cluster is started with the prefix of its keys",
        "txnctl/commands/backups.py",
        ' if prefix or inherited else ""\n',
        ' if inherited else ""\n',
        f"{INTERRUPTED}a_restored_cluster_is_started_with_the_prefix_of_its_keys",
    ),
    _mutant(
        "repair-that-was-never-told",
        "a repair that was cut off behind its end is not told as nothing",
        "txnctl/commands/check.py",
        "        if reports is not None:",
        "        if reports is None:",
        "tests/txnctl/checking/test_repairing.py::test_where_a_repair_was_cut_off_behind_its_end_its_report_is_named",
    ),
    _mutant(
        "restored-with-a-foreign-prefix",
        "a restored cluster is started without the prefix that the environment holds for another one",
        "txnctl/commands/backups.py",
        ' if prefix or inherited else ""\n',
        ' if prefix else ""\n',
        f"{INTERRUPTED}a_prefix_of_the_environment_is_not_that_of_what_was_restored",
    ),
    _mutant(
        "other-topics-stay",
        "a topic that cannot be deleted behind a test does not keep the others",
        "pytest_txnstore/namespace.py",
        '                    error.add_note(f"{topic} stays")\n',
        "                    raise\n",
        f"{CLEANING}a_topic_that_cannot_be_deleted_does_not_keep_the_others",
    ),
    _mutant(
        "tests-as-a-user-of-etcd",
        "a cluster for tests is not told how servers of its environment are known to their etcd",
        "pytest_txnstore/cluster.py",
        ' and not name.upper().startswith("TXN_ETCD_")',
        "",
        f"{CLEANING}a_cluster_for_tests_is_not_told_how_servers_here_are_known_to_their_etcd",
    ),
    _mutant(
        "password-in-the-error",
        "a password is not told with what is wrong of it",
        "txnctl/process/settings.py",
        "one['loc'][:1] in [(name,) for name in SECRET]",
        "one['loc'][:1] in [()]",
        "tests/txnctl/process/test_settings.py::test_a_password_is_not_told_with_what_is_wrong_of_it",
    ),
    _mutant(
        "dev-waits-for-ids-that-are-none",
        "a cluster of this machine is ready with as many coordinator ids as the environment says",
        "txnctl/launch/dev.py",
        "load(None, without=OF_OTHER_SERVERS, etcd=self.etcd_url).tcids",
        "16",
        "tests/txnctl/launch/test_dev_environment.py::"
        "test_a_cluster_is_ready_with_as_many_coordinator_ids_as_the_environment_says",
    ),
    _mutant(
        "backup-has-an-hour",
        "the Job of a backup has time for all of its data",
        "charts/txnstore/values.yaml",
        "  deadlineSeconds: 86400\n",
        "  deadlineSeconds: 3600\n",
        ONE_BACKUP,
    ),
    _mutant(
        "failed-backup-is-repeated",
        "the Job of a backup that names damage does not take further ones, which push older ones out",
        "charts/txnstore/templates/etcd/backup.yaml",
        "      backoffLimit: 0\n",
        "      backoffLimit: 2\n",
        ONE_BACKUP,
    ),
    _mutant(
        "full-disk-without-an-alert",
        "an alert tells of a disk on which sends are refused",
        "charts/txnstore/files/alerts.yaml",
        "        expr: max(txnstore_disk_refuses_new) == 1\n",
        "        expr: max(txnstore_disk_refuses_new) == 2\n",
        "tests/charts/test_alert_rules.py::test_each_alert_fires_on_what_it_warns_of_and_not_before",
    ),
    _mutant(
        "full-etcd-is-killed",
        "an etcd at its quota goes on for the compaction that makes room",
        "charts/txnstore/templates/etcd/statefulset.yaml",
        "          livenessProbe:\n            httpGet:\n              path: /health?exclude=NOSPACE&",
        "          livenessProbe:\n            httpGet:\n              path: /health?",
        f"{PROBES}an_etcd_at_its_quota_is_not_killed_nor_left_out",
    ),
    _mutant(
        "etcd-outlives-its-data-folder",
        "claims of etcd go with those of the brokers",
        "charts/txnstore/templates/etcd/statefulset.yaml",
        "{{- if not (or .keep .existingClaim) }}",
        "{{- if false }}",
        "tests/charts/test_values.py::test_claims_of_etcd_stay_behind_the_release_where_those_of_brokers_do",
    ),
    _mutant(
        "full-etcd-is-not-started",
        "a cluster of this machine starts with an etcd at its quota",
        "txnstore/etcd/embedded_etcd.py",
        "GET /health?exclude=NOSPACE HTTP",
        "GET /health HTTP",
        f"{PROBES}an_etcd_at_its_quota_is_started_again",
    ),
    _mutant(
        "check-of-an-empty-prefix",
        "a check of a part of etcd that holds no cluster says so",
        "txnctl/checking/everything.py",
        "            elif mark.read() is not None:\n",
        "            elif False:\n",
        "tests/txnctl/commands/test_check_elsewhere.py::"
        "test_a_forgotten_prefix_is_told_in_place_of_ledgers_that_nobody_knows",
    ),
    _mutant(
        "restored-by-foreign-certificates",
        "a restore works with its own etcd without the certificates of another one",
        "txnctl/backup/restoring.py",
        "load(None, without=CERTIFICATES, ",
        "load(None, ",
        f"{INTERRUPTED}a_restore_holds_its_backups_until_it_is_whole",
    ),
)
