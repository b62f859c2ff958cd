"""Break the rules about etcd's outages and restores (E1, E4, E8): delayed work is resumed, a restored etcd reuses
nothing."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

NO_REPAIR = "the simulation restores no backup"
NO_REAL_ETCD = "it is about how a real etcd is talked to"
ROW = "the test of the row dies of this line alone; whether a seed shows it was not tried"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="ledger-ids-of-one-repair",
        rule="no ledger id of an earlier repair is used again (E8)",
        section="§4",
        file="txnctl/checking/rewound.py",
        old="max(trimmed) + steps * EPOCH_STEP",
        new="max(trimmed) + EPOCH_STEP",
        tests=(
            "tests/txnctl/checking/test_rewound.py::"
            "test_e8_a_backup_that_was_repaired_before_uses_nothing_again_of_its_earlier_repairs",
        ),
        why_tests=NO_REPAIR,
    ),
    Mutant(
        name="layout-of-one-repair",
        rule="a layout is newer than those of all earlier repairs (E8)",
        section="§4",
        file="txnctl/checking/rewound.py",
        old="epoch=record.epoch + steps * EPOCH_STEP",
        new="epoch=record.epoch + EPOCH_STEP",
        tests=(
            "tests/txnctl/checking/test_rewound.py::"
            "test_e8_a_backup_that_was_repaired_before_uses_nothing_again_of_its_earlier_repairs",
        ),
        why_tests=NO_REPAIR,
    ),
    Mutant(
        name="epochs-of-one-repair",
        rule="epochs rise above those of all earlier repairs (E8)",
        section="§4",
        file="txnctl/checking/raising.py",
        old="    step = used.steps * EPOCH_STEP\n",
        new="    step = EPOCH_STEP\n",
        tests=(
            "tests/txnctl/checking/test_repairing.py::"
            "test_e8_epochs_rise_above_those_of_all_repairs_that_the_backup_does_not_know_of",
        ),
        why_tests=NO_REPAIR,
    ),
    Mutant(
        name="senders-stay",
        rule="a repair takes the right to write from every process (E8)",
        section="§4",
        file="txnctl/checking/repair.py",
        old="keys.LEADER, keys.PIN, keys.SENDER)",
        new="keys.LEADER, keys.PIN)",
        tests=("tests/txnctl/checking/test_repairing.py::test_e8_a_repair_takes_whatever_says_who_may_write",),
        why_tests=NO_REPAIR,
    ),
    Mutant(
        name="attempt-stays",
        rule="a connect that is repeated behind a repair is a new one (E8)",
        section="§4",
        file="txnctl/checking/raising.py",
        old='epoch=txn_key.epoch + step, attempt="")',
        new="epoch=txn_key.epoch + step)",
        tests=(
            "tests/txnctl/checking/test_repairing.py::"
            "test_e8_epochs_rise_above_those_of_all_repairs_that_the_backup_does_not_know_of",
        ),
        why_tests=NO_REPAIR,
    ),
    Mutant(
        name="ids-of-lost-coordinators",
        rule="ids of coordinators that the backup does not know of are raised (E8)",
        section="§4",
        file="txnctl/checking/raising.py",
        old="*(one.tcid + 1 for one in lost)])",
        new="])",
        tests=(
            "tests/txnctl/checking/test_repairing.py::"
            "test_e8_ids_of_a_coordinator_that_the_backup_does_not_know_of_are_raised_too",
        ),
        why_tests=NO_REPAIR,
    ),
    Mutant(
        name="mark-goes-back",
        rule="a data folder's mark never goes back (E8)",
        section="§4",
        file="txnctl/process/store_mark.py",
        old=(
            "        if before is not None and before.incarnation == store.id:\n"
            "            revision = max(revision, before.revision)\n"
        ),
        new="",
        tests=(
            "tests/txnctl/process/test_store_mark.py::test_e8_a_process_that_has_heard_less_does_not_set_the_mark_back",
        ),
        why_tests=NO_REPAIR,
    ),
    Mutant(
        name="mark-by-halves",
        rule="a data folder's mark is replaced whole and durably (E8)",
        section="§4",
        file="txnctl/process/store_mark.py",
        old='            replace_file(self._path, msgspec.json.encode(mark) + b"\\n")',
        new='            self._path.write_bytes(msgspec.json.encode(mark) + b"\\n")',
        tests=("tests/txnctl/process/test_store_mark.py::test_e8_a_power_failure_leaves_one_mark_or_the_other_whole",),
        why_tests=NO_REPAIR,
    ),
    Mutant(
        name="strange-folder-condemns",
        rule="a folder of another cluster says nothing of this etcd (E8)",
        section="§4",
        file="txnctl/process/store_mark.py",
        old="if record is not None and mark is not None and mark.knows(identity):",
        new="if record is not None and mark is not None:",
        tests=(
            "tests/txnctl/process/test_store_mark.py::test_e8_a_folder_of_another_cluster_says_nothing_of_this_store",
        ),
        why_tests=NO_REPAIR,
    ),
    Mutant(
        name="identity-once-unread",
        rule="who runs on is told of a repair also behind an outage (E8)",
        section="§4",
        file="txnctl/process/store_mark.py",
        old=(
            "        except TxnError as error:\n"
            '            log.debug("identity of the store not read", error=str(error))\n'
            "            continue\n"
        ),
        new="",
        tests=(
            "tests/txnctl/process/test_store_mark.py::test_e8_who_runs_on_through_a_repair_ends_also_behind_an_outage",
        ),
        why_tests=NO_REPAIR,
    ),
    Mutant(
        name="member-without-leader",
        rule="a member without a leader is not used (E4)",
        section="§4",
        file="txnstore/etcd/connection.py",
        old=(
            "        if not status.leader:\n"
            '            self.distrust(endpoint, "it has no leader")\n'
            "            return False\n"
        ),
        new="",
        tests=(
            "tests/txnstore/etcd/test_silent_etcd.py::test_e4_a_member_without_a_leader_is_not_used_before_it_has_one",
        ),
        why_tests=NO_REAL_ETCD,
    ),
    Mutant(
        name="watch-without-leader",
        rule="a watch ends at a member that has lost its leader (E4)",
        section="§4",
        file="txnstore/etcd/watch.py",
        old='extra={"hasleader": "true"}',
        new="extra={}",
        tests=("tests/txnstore/etcd/test_silent_etcd.py::test_e4_a_watch_ends_at_a_member_that_has_lost_its_leader",),
        why_tests=NO_REAL_ETCD,
    ),
    Mutant(
        name="renewed-elsewhere",
        rule="another cluster renews no lease (E4)",
        section="§4",
        file="txnstore/etcd/backend.py",
        old=(
            "        if not self._connection.is_of_this_cluster(renewed.header.cluster_id):\n"
            '            raise Unanswered(f"{endpoint.address} belongs to another cluster now")\n'
        ),
        new="",
        tests=(
            "tests/txnstore/etcd/test_silent_etcd.py::"
            "test_e4_a_lease_is_not_renewed_by_another_cluster_that_has_come_to_an_address",
        ),
        why_tests=NO_REAL_ETCD,
    ),
    Mutant(
        name="endpoints-of-two-clusters",
        rule="an endpoint of another cluster is not gone on with (E4)",
        section="§4",
        file="txnstore/etcd/connection.py",
        old=("        if self._cluster_id is not None and self._cluster_id != status.header.cluster_id:\n"),
        new="        if False:\n",
        tests=("tests/txnstore/etcd/test_silent_etcd.py::test_e4_an_endpoint_of_another_cluster_is_not_gone_on_with",),
        why_tests=NO_REAL_ETCD,
    ),
    Mutant(
        name="relisting-once",
        rule="a watch that could not list anew does so later (E1)",
        section="§4",
        file="txnstore/access/following.py",
        old="        except (StoreUnavailable, Compacted):\n",
        new="        except Compacted:\n",
        tests=("tests/txnstore/etcd/test_watches.py::test_e1_a_watch_that_could_not_list_anew_for_long_does_so_later",),
        why_tests=ROW,
    ),
    Mutant(
        name="unread-without-bound",
        rule="a watch reads ahead of its follower within a bound (E1)",
        section="§4",
        file="txnstore/access/following.py",
        old=(
            "        while len(self._batches) >= _QUEUED_BATCHES:\n"
            "            self._room.clear()\n"
            "            await self._room.wait()\n"
        ),
        new="",
        tests=(
            "tests/txnstore/etcd/test_watches.py::"
            "test_e1_a_follower_that_takes_nothing_is_not_read_ahead_for_without_bound",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="vacant-unheard",
        rule="a term whose end was compacted away is over (E1)",
        section="§4",
        file="txnstore/election.py",
        old="                if not batch.events or batch.events[-1].kind is EventKind.DELETE:\n",
        new="                if batch.events and batch.events[-1].kind is EventKind.DELETE:\n",
        tests=(
            "tests/txnstore/test_election.py::"
            "test_e1_a_candidate_that_was_away_while_the_term_ended_and_was_compacted_away_is_elected",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="first-page-of-held",
        rule="a revision is reached by reading all headers that are held (E1)",
        section="§6",
        file="watchers/decisions.py",
        old=(
            "for asked in in_parts(held, self._store.page_size(self._settings.reconcile_page)):\n"
            "                    _, found"
        ),
        new=(
            "for asked in list(in_parts(held, self._store.page_size(self._settings.reconcile_page)))[:"
            "1]:\n"
            "                    _, found"
        ),
        tests=(
            "tests/watchers/test_decisions_in_pages.py::"
            "test_e1_a_revision_is_reached_by_reading_all_pages_of_what_is_held",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="first-page-of-long-held",
        rule="one that stays open keeps no other from being read again (E1)",
        section="§6",
        file="watchers/decisions.py",
        old=(
            "        for asked in in_parts(held, self._store.page_size(self._settings.reconcile_page))"
            ":\n"
            "            try:"
        ),
        new=(
            "        for asked in list(in_parts(held, "
            "self._store.page_size(self._settings.reconcile_page)))[:1]:\n"
            "            try:"
        ),
        tests=(
            "tests/watchers/test_decisions_in_pages.py::"
            "test_e1_one_that_stays_open_keeps_no_other_from_being_read_again",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="compared-in-any-order",
        rule="what is found by reading is told in the order of decisions (E1)",
        section="§6",
        file="watchers/decisions.py",
        old="        for record in sorted(decided, key=lambda one: one.mod_revision):\n",
        new="        for record in decided:\n",
        tests=(
            "tests/watchers/test_decisions_in_pages.py::"
            "test_e1_what_is_found_by_one_reading_is_told_in_the_order_of_decisions",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="shown-unsaid",
        rule="what is told counts as shown",
        section="§10",
        file="watchers/decisions.py",
        old="        self._shown = max(self._shown, decision.revision)\n",
        new="",
        tests=("tests/watchers/test_decisions_in_pages.py::test_what_is_told_counts_as_shown_already",),
        why_tests=ROW,
    ),
    Mutant(
        name="unopened-watch-stays",
        rule="a watch that could not be opened is forgotten (E1)",
        section="§4",
        file="txnstore/etcd/watch.py",
        old=("        except BaseException:\n            await stream.close()\n            raise\n"),
        new=("        except BaseException:\n            raise\n"),
        tests=("tests/txnstore/etcd/test_silent_etcd.py::test_e1_watches_that_could_not_be_opened_are_forgotten",),
        why_tests=NO_REAL_ETCD,
    ),
    Mutant(
        name="unreadable-ends-the-walk",
        rule="what stands behind a strange key is collected all the same",
        section="§9",
        file="coordinator_v5/background/take_over.py",
        old=(
            '                log.error("unreadable header left alone", key=repr(record.key), '
            "error=str(error))\n"
            "                continue\n"
        ),
        new=(
            '                log.error("unreadable header left alone", key=repr(record.key), '
            "error=str(error))\n"
            "                return\n"
        ),
        tests=(
            "tests/coordinator_v5/background/test_take_over.py::test_what_stands_behind_a_strange_key_is_collected_all_the_same",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="old-delete-takes-away",
        rule="a deletion from before an id was taken takes nothing away (E4)",
        section="§9",
        file="coordinator_v5/ownership.py",
        old=(
            "            if record.mod_revision > taken_at:\n"
            "                self._holders.pop(tcid, None)\n"
            "                self._lose(tcid)\n"
        ),
        new=("            self._holders.pop(tcid, None)\n            self._lose(tcid)\n"),
        tests=(
            "tests/coordinator_v5/test_ownership.py::test_e4_a_deletion_from_before_it_took_an_id_takes_nothing_away",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="lost-before-told",
        rule="an id that is given up is acted for no more before it is free",
        section="§9",
        file="coordinator_v5/ownership.py",
        old="        await self._tell_lost()\n        await all_of(",
        new="        await all_of(",
        tests=(
            "tests/coordinator_v5/test_ownership.py::"
            "test_an_id_that_is_given_up_is_acted_for_no_more_before_it_is_free",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="refused-renewal-is-the-end",
        rule="a lease whose renewal is refused for a moment is kept (E4)",
        section="§4",
        file="txnstore/access/leases.py",
        old=(
            '        except (TimeoutError, Unanswered, Refused) as error:\n            log.warning("lease not renewed'
        ),
        new=('        except (TimeoutError, Unanswered) as error:\n            log.warning("lease not renewed'),
        tests=("tests/txnstore/access/test_leases.py::test_e4_a_lease_whose_renewal_is_refused_for_a_moment_is_kept",),
        why_tests=ROW,
    ),
    Mutant(
        name="busy-is-wrong",
        rule="a read that is refused for a moment is asked again (E4)",
        section="§4",
        file="txnstore/access/store_client.py",
        old=(
            "                        if refusal.reason is not Reason.BUSY:\n"
            "                            raise _read_error(refusal) from refusal\n"
        ),
        new="                        raise _read_error(refusal) from refusal\n",
        tests=(
            "tests/txnstore/access/test_busy_store.py::"
            "test_e4_a_read_that_is_refused_for_a_moment_is_asked_again_in_its_time",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="unfit-unheard",
        rule="a server ends once its etcd is found to have gone back (E8)",
        section="§4",
        file="txnctl/process/server.py",
        old="        self._failure.met(await self._store.wait_unfit())\n",
        new="        await self._store.wait_unfit()\n",
        tests=(
            "tests/txnctl/process/test_role_failure.py::test_e8_a_server_whose_etcd_is_found_to_have_gone_back_ends",
        ),
        why_tests=NO_REPAIR,
    ),
    Mutant(
        name="folder-without-a-mark",
        rule="no data folder is served without a mark (E8)",
        section="§4",
        file="txnctl/process/serve.py",
        old=('        if mark.read() is None:\n            raise\n        log.warning("store mark not written"'),
        new='        log.warning("store mark not written"',
        tests=(
            "tests/txnctl/process/test_marked_folders.py::"
            "test_e8_on_a_full_disk_a_folder_is_served_with_the_mark_that_it_has_and_never_without_one",
        ),
        why_tests=NO_REPAIR,
    ),
    Mutant(
        name="shared-folder-unread",
        rule="whoever shares a folder with a broker looks at its mark (E8)",
        section="§4",
        file="txnctl/process/serve.py",
        old='return "broker" in settings.roles or StoreMark(settings.data_dir).read() is not None',
        new='return "broker" in settings.roles',
        tests=(
            "tests/txnctl/process/test_marked_folders.py::"
            "test_e8_whoever_shares_a_folder_with_a_broker_looks_at_its_mark",
        ),
        why_tests=NO_REPAIR,
    ),
)
