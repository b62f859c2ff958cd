"""Break rules of the scenarios' table that whole servers, real processes or a real etcd exercise."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

TAKE_OVER = (
    "tests/segments/owner/test_take_over.py::"
    "test_r4_losing_ownership_during_recovery_fails_the_waiters_and_leaks_no_watch"
)
KILLS = "tests/process/test_kills.py::"
R1 = KILLS + "test_r1_committed_stays_and_aborted_stays_away_after_everything_is_killed"
E7 = "tests/test_small_quota.py::test_e7_transactions_at_a_fixed_rate_pass_through_a_real_etcd_s_small_quota"
HAMPERED = "tests/segments/owner/test_hampered_take_overs.py::"
SLEPT = "tests/segments/owner/test_paused_owners.py::test_l3_an_owner_that_"
AMID_A_READ = "its pause would have to begin amid a read, and the next owner to trim meanwhile"

MUTANTS = (
    Mutant(
        name="failed-recovery-keeps-its-watch",
        rule="a recovery that fails leaves the watch of decisions (R4)",
        section="§6",
        file="segments/owner/take_over.py",
        old="            membership.leave()\n",
        new="            pass\n",
        tests=(TAKE_OVER,),
        why_tests="what is left behind is small, and goes with its broker",
    ),
    Mutant(
        name="joined-before-its-ledgers",
        rule="no decisions are kept for a segment whose ledgers are still to be fenced: a disk may hang",
        section="§6",
        file="segments/owner/take_over.py",
        old="        await ledgers.take_over()\n        membership = shared.decisions.join(joining)\n",
        new="        membership = shared.decisions.join(joining)\n        await ledgers.take_over()\n",
        tests=(HAMPERED + "test_a_take_over_whose_disk_hangs_keeps_no_decisions_and_holds_up_no_other_segment",),
        why_tests="no simulated disk hangs for ever",
    ),
    Mutant(
        name="missing-header-not-doubted",
        rule="an owner that misses the header of an open transaction looks whether it is still the owner",
        section="§6",
        file="segments/owner/take_over.py",
        old="            self.segment.header_absent(txn_id)\n",
        new="            pass\n",
        tests=(
            "tests/segments/owner/test_paused_owners.py::"
            "test_an_owner_that_misses_the_header_of_an_open_transaction_looks_whether_it_is_still_the_owner",
        ),
        why_tests="the next write of its clean-up is refused, which it notices as well",
    ),
    Mutant(
        name="standing-of-a-former-owner",
        rule="an owner that slept through its lease does not tell where a subscription stands (L3)",
        section="§6",
        file="segments/subscription/lag.py",
        old="                self._events.check()\n                return at, index\n",
        new="                return at, index\n",
        tests=(SLEPT + "slept_through_its_lease_does_not_tell_where_a_subscription_stands",),
        why_tests="no workload of it asks for that",
    ),
    Mutant(
        name="times-blamed-for-deleted-files",
        rule="an owner that slept through its lease refuses no time for files that the next one has deleted (L3)",
        section="§6",
        file="segments/broker/broker_service.py",
        old="                segment.check()  # ▲ a later owner may have deleted the files of trimmed ledgers\n",
        new="",
        tests=(SLEPT + "sleeps_through_its_lease_blames_nobody_for_files_that_the_next_one_deletes",),
        why_tests=AMID_A_READ,
    ),
    Mutant(
        name="scans-blamed-for-deleted-files",
        rule="an owner that slept through its lease refuses no scan for files that the next one has deleted (L3)",
        section="§6",
        file="segments/owner/scanning.py",
        old="            segment.check()  # ▲ a later owner may have deleted the files of trimmed ledgers\n",
        new="",
        tests=(SLEPT + "sleeps_through_its_lease_blames_nobody_for_files_that_the_next_one_deletes",),
        why_tests=AMID_A_READ,
    ),
    Mutant(
        name="no-take-over-without-a-footer",
        rule="a take-over needs no room for the footer that its predecessor could not write",
        section="§7",
        file="segments/owner/take_over.py",
        old="        except LedgerFailed as error:  # ▲ a full disk",
        new="        except ArithmeticError as error:  # ▲ a full disk",
        tests=(HAMPERED + "test_a_disk_without_room_for_a_missing_footer_hinders_no_take_over",),
        why_tests="its footers are small, and fit wherever a ledger fits",
    ),
    Mutant(
        name="no-take-over-with-an-empty-ledger",
        rule="an empty ledger that cannot be deleted keeps no segment from being served",
        section="§7",
        file="segments/log/ledgers/segment_log.py",
        old="                except LedgerFailed as error:  # it may stay",
        new="                except ArithmeticError as error:  # it may stay",
        tests=(HAMPERED + "test_an_empty_ledger_that_cannot_be_deleted_hinders_no_take_over",),
        why_tests="its disks refuse no deletions",
    ),
    Mutant(
        name="failed-recovery-keeps-its-ledger",
        rule="a recovery that fails lets go of the ledger it has opened (R4)",
        section="§6",
        file="segments/owner/take_over.py",
        old="        ledgers.abandon()\n",
        new="",
        tests=(TAKE_OVER,),
        why_tests="a simulated disk has no open files",
    ),
    Mutant(
        name="unlisted-ledger-kept-open",
        rule="a ledger that was made and could not be listed is let go of (R4)",
        section="§6",
        file="segments/log/ledgers/segment_log.py",
        old="            writer.abandon()\n            raise",
        new="            raise",
        tests=(TAKE_OVER,),
        why_tests="a simulated disk has no open files",
    ),
    Mutant(
        name="collection-unheard-of",
        rule="a collection whose answer was lost counts as made (E2)",
        section="§5",
        file="txnstore/writes/collection_transitions.py",
        old="landed = result.repeated and block is not None",
        new="landed = result.repeated and block is None",
        tests=("tests/coordinator_v5/test_unknown_outcomes.py::test_e2_an_unknown_outcome_at_any_write",),
        why_tests="it is counted wrongly, and its block of outcomes expires a term later",
    ),
    Mutant(
        name="dead-owner-not-waited-out",
        rule="a producer waits for the next owner of a segment: the death of a broker aborts nothing (A1)",
        section="§8",
        file="txnclient/producing/channels/channel.py",
        old="_OPEN_AGAIN = (*TRANSIENT, TopicNotFound,",
        new="_OPEN_AGAIN = (TopicNotFound,",
        tests=(KILLS + "test_a1_all_or_nothing_whichever_server_is_killed_after_whichever_step[broker-1]",),
        why_tests="an abort is always allowed there",
    ),
    Mutant(
        name="vanished-not-swept",
        rule="what a client that died has left open is aborted (A1)",
        section="§5",
        file="coordinator_v5/background/sweeper.py",
        old="        for txn in state.sessions.vanished(state.awake_s, self._room):\n",
        new="        for txn in state.sessions.vanished(state.awake_s, self._room)[:0]:\n",
        tests=(KILLS + "test_a1_all_or_nothing_whenever_its_client_is_killed",),
        why_tests="its deadline ends it there",
    ),
    Mutant(
        name="aborted-not-read-again",
        rule="what was aborted stays so behind the collection of its header, for every later owner (R1)",
        section="§6",
        file="watchers/recovery.py",
        old="aborted |= {keys.aborted_parts",
        new="aborted = {} if page else {keys.aborted_parts",
        tests=(R1,),
        why_tests="a seed shows it too; here it is shown with no header left",
    ),
    Mutant(
        name="open-not-scanned",
        rule="an open transaction holds at its own first entry behind a restart (R1)",
        section="§6",
        file="segments/owner/take_over.py",
        old="            buffer.scanned(txn_id, metadata.writer, position)\n",
        new="            assert position > watermark\n",
        tests=(R1,),
        why_tests="a seed shows it too; here it is shown with no header left but its own",
    ),
    Mutant(
        name="nothing-compacted",
        rule="what is gone is compacted, so that etcd's file stays below its quota (E7)",
        section="§4",
        file="txnstore/maintenance.py",
        old="            await self._store.compact(revision)\n",
        new="            assert revision\n",
        tests=(E7,),
        why_tests="the quota of a simulated etcd is large",
    ),
    Mutant(
        name="nothing-collected",
        rule="headers are collected, so that etcd's file stays below its quota (E7)",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="                await self.collect()\n",
        new="                await asyncio.sleep(0)\n",
        tests=(E7,),
        why_tests="the quota of a simulated etcd is large",
    ),
    Mutant(
        name="roots-stay-in-the-graph",
        rule="a sealed segment of which nothing is left leaves the graph, roots first (S9)",
        section="§8",
        file="segments/controller/pruning.py",
        old="            if entry is None or entry.parents or",
        new="            if entry is None or not entry.parents or",
        tests=(
            "tests/segments/controller/test_many_changes.py::"
            "test_s9_a_thousand_changes_with_data_cost_a_restart_no_more_than_a_hundred",
        ),
        why_tests="a seed changes no layout a hundred times",
    ),
)
