"""Break rules of coordinators, clean-up and the store that one branch, bound or figure keeps (DESIGN §4, §5, §6)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

COMPANY = "tests/coordinator_v5/background/test_collection_in_company.py::test_"

SOON = "no judge of the simulation asks how soon that follows"
SELDOM = "few seeds, if any, meet this moment"
FIGURES = "no judge of the simulation compares what operators are shown"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="hanging-since-its-begin",
        rule="a decided transaction hangs since its decision, not since its begin",
        section="§9",
        file="coordinator_v5/queries.py",
        old="since_ms = record.header.created_ms if record.header.state == OPEN else record.header.finalized_ms",
        new="since_ms = record.header.created_ms",
        tests=(
            "tests/coordinator_v5/test_queries.py::test_e6_hanging_names_what_is_open_for_long_and_what_is_not_cleaned_up",
        ),
        why_tests=FIGURES,
    ),
    Mutant(
        name="deleted-keys-never-listed",
        rule="a deleted transaction key is listed to whoever asks for deleted ones",
        section="§9",
        file="coordinator_v5/queries.py",
        old="if deleted or not one.record.deleted_ms]",
        new="if not one.record.deleted_ms]",
        tests=(
            "tests/coordinator_v5/test_queries.py::test_a_deleted_transaction_key_is_listed_to_whoever_asks_for_deleted_ones",
        ),
        why_tests=FIGURES,
    ),
    Mutant(
        name="one-leftover-a-round",
        rule="what very many transactions have left without an owner is cleared soon",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="if stuck.tries >= LOOK_AFTER_TRIES and looked < STUCK_AT_ONCE:",
        new="if stuck.tries >= LOOK_AFTER_TRIES and looked <= 0:",
        tests=(f"{COMPANY}what_many_transactions_have_left_in_a_segment_without_an_owner_is_cleared_soon",),
        why_tests=SOON,
    ),
    Mutant(
        name="tries-never-forgotten",
        rule="nothing is kept of a transaction that is collected at last",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="                        self._tries.pop(TxnId(tc.tcid, counter), None)\n",
        new="                        pass\n",
        tests=(f"{COMPANY}what_many_transactions_have_left_in_a_segment_without_an_owner_is_cleared_soon",),
        why_tests="no judge of the simulation looks into a coordinator's memory",
    ),
    Mutant(
        name="unreadable-op-stops-collection",
        rule="an op that cannot be read keeps no other transaction from being collected",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old=(
            '                    except UNREADABLE as error:\n                        log.error("leftovers not cleared"'
        ),
        new=(
            '                    except NotOwner as error:\n                        log.error("leftovers not cleared"'
        ),
        tests=(f"{COMPANY}an_op_that_cannot_be_read_keeps_no_other_transaction_from_being_collected",),
        why_tests="no simulated fault writes a record that is not ours",
    ),
    Mutant(
        name="taken-over-twice",
        rule="a transaction with a deadline key above the mark is taken over once",
        section="§5",
        file="coordinator_v5/background/take_over.py",
        old="for one in indexed if one < mark",
        new="for one in indexed",
        tests=(
            "tests/coordinator_v5/background/test_deadlines.py::test_d4_a_transaction_with_a_deadline_key_above_the_mark_is_taken_over_once",
        ),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="pin-reported-once",
        rule="a pin is reported anew once the oldest one is over",
        section="§4",
        file="txnstore/access/pins.py",
        old="if oldest is not None and oldest != reported:",
        new="if oldest is not None and reported is None:",
        tests=("tests/txnstore/access/test_space.py::test_e7_a_pin_is_reported_anew_once_the_oldest_one_is_over",),
        why_tests="no simulated read takes this long",
    ),
    Mutant(
        name="disarmed-without-room",
        rule="the alarm is disarmed only once there is room again",
        section="§4",
        file="txnstore/maintenance.py",
        old="if status.no_space and status.db_bytes < FILE_LIMIT_SHARE * quota_bytes:",
        new="if status.no_space:",
        tests=("tests/txnstore/access/test_space.py::test_e3_the_alarm_is_disarmed_only_once_there_is_room_again",),
        why_tests="the simulated etcd has no pages",
    ),
    Mutant(
        name="quota-as-configured",
        rule="the soft limit goes by the quota that etcd reports",
        section="§4",
        file="txnstore/access/soft_limit.py",
        old="        self._quota_bytes = status.quota_bytes or self._quota_bytes\n",
        new="",
        tests=("tests/txnstore/access/test_space.py::test_e3_the_soft_limit_goes_by_the_quota_that_etcd_reports",),
        why_tests="every simulated process is told of etcd's own quota",
    ),
    Mutant(
        name="member-down-keeps-others-from-defragmenting",
        rule="members that are up are defragmented though another is down",
        section="§4",
        file="txnstore/etcd/backend.py",
        old=("            if endpoint.ready():\n                await self._connection.unary(_DEFRAGMENT"),
        new=("            if True:\n                await self._connection.unary(_DEFRAGMENT"),
        tests=(
            "tests/txnstore/etcd/test_members_maintained.py::test_members_that_are_up_are_defragmented_though_another_is_down",
        ),
        why_tests="it concerns a real etcd",
    ),
    Mutant(
        name="paused-etcd-stops-late",
        rule="an etcd that is paused is stopped as soon as any other",
        section="§4",
        file="txnstore/etcd/embedded_etcd.py",
        old=("        self._process.send_signal(signal.SIGCONT)\n        self._process.terminate()"),
        new="        self._process.terminate()",
        tests=(
            "tests/txnstore/etcd/test_etcd_process.py::test_an_etcd_that_is_paused_is_stopped_as_soon_as_any_other",
        ),
        why_tests="it concerns a real etcd",
    ),
    Mutant(
        name="clean-up-waits-for-the-flush",
        rule="clean-up does not wait for a write that may wait",
        section="§6",
        file="watchers/clean_up.py",
        old="or (registered.flush is not None and not target.backlog)",
        new="or registered.flush is not None",
        tests=(
            "tests/watchers/test_clean_up_refused.py::test_what_is_to_be_cleaned_up_does_not_wait_for_a_write_that_may_wait",
        ),
        why_tests=SOON,
    ),
    Mutant(
        name="retired-for-ever",
        rule="whoever retires a target waits for its commit in flight and no longer",
        section="§6",
        file="watchers/clean_up.py",
        old=(
            "        if registered.retired is not None and not registered.retired.done():\n"
            "            registered.retired.set_result(None)\n"
            "        if registered.error is None"
        ),
        new="        if registered.error is None",
        tests=(
            "tests/watchers/test_clean_up_refused.py::test_whoever_retires_a_target_waits_for_its_commit_in_flight_and_no_longer",
        ),
        why_tests=SELDOM,
    ),
    Mutant(
        name="rest-of-a-copy-behind-a-lost-compare",
        rule="a compare lost amid a large cursor begins anew with what stands",
        section="§6",
        file="watchers/clean_up_plans.py",
        old=("            self._round = _CursorRound(self._cursor.seeks)\n            for key, record"),
        new="            for key, record",
        tests=(
            "tests/watchers/test_clean_up_plans.py::test_p6_a_compare_lost_amid_a_large_cursor_begins_anew_with_what_stands",
        ),
        why_tests="no simulated cursor takes several commits",
    ),
    Mutant(
        name="doubtful-uncounted",
        rule="headers that are absent are counted",
        section="§6",
        file="watchers/decisions.py",
        old="                self._absent += 1\n",
        new="",
        tests=("tests/watchers/test_decisions.py::test_e1_after_compaction_absent_headers_are_doubted_not_decided",),
        why_tests=FIGURES,
    ),
    Mutant(
        name="ended-watch-opened-at-once",
        rule="a watch that etcd ends again and again is opened at leisure",
        section="§4",
        file="txnstore/access/following.py",
        old="                except Unanswered:\n                    await asyncio.sleep(_PAUSE_S)\n",
        new="                except Unanswered:\n                    pass\n",
        tests=(
            "tests/txnstore/access/test_following.py::test_a_watch_that_etcd_ends_again_and_again_is_opened_at_leisure",
        ),
        why_tests="the simulation knows no cost of a request",
    ),
    Mutant(
        name="collected-name-not-asked",
        rule="a named commit repeated after its collection is answered with its writers",
        section="§10",
        file="coordinator_v5/service.py",
        old=("            forced=request.forced,\n            name=request.name,\n"),
        new="            forced=request.forced,\n",
        tests=(
            "tests/coordinator_v5/test_service.py::test_d5_a_named_commit_repeated_after_its_collection_is_answered_with_its_writers",
        ),
        why_tests="simulated clients repeat no commit this late",
    ),
    Mutant(
        name="as-many-writers-less-one",
        rule="a commit lists as many writers as are allowed",
        section="§10",
        file="coordinator_v5/service.py",
        old="    if len(writers) > MAX_WRITERS:",
        new="    if len(writers) >= MAX_WRITERS:",
        tests=("tests/coordinator_v5/test_service.py::test_a_commit_lists_as_many_writers_as_are_allowed_and_no_more",),
        why_tests="no simulated commit lists this many",
    ),
    Mutant(
        name="forced-elsewhere-untold",
        rule="an operator's abort is recorded as such whoever owns the transaction",
        section="§9",
        file="coordinator_v5/service.py",
        old=("            note=_noted(request),\n            forced=request.forced,\n"),
        new="            note=_noted(request),\n",
        tests=(
            "tests/coordinator_v5/test_service.py::test_an_operator_s_abort_is_recorded_as_such_whoever_owns_the_transaction",
        ),
        why_tests=FIGURES,
    ),
    Mutant(
        name="revoking-raises",
        rule="a lease that cannot be revoked in time is left to expire",
        section="§4",
        file="txnstore/access/leases.py",
        old=(
            "        except (TimeoutError, Unanswered, Refused, TxnError) as error:\n"
            '            log.warning("lease not revoked'
        ),
        new=('        except (Unanswered, Refused, TxnError) as error:\n            log.warning("lease not revoked'),
        tests=("tests/txnstore/access/test_leases.py::test_a_lease_that_cannot_be_revoked_in_time_is_left_to_expire",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="stale-keys-by-a-slow-clock",
        rule="stale deadline keys go by the cluster's clock too",
        section="§5",
        file="coordinator_v5/background/sweeper.py",
        old="now_ms = max(self._state.cluster.wall_ms(), self._state.clock.wall_ms())",
        new="now_ms = self._state.clock.wall_ms()",
        tests=(
            "tests/coordinator_v5/background/test_deadlines.py::test_stale_deadline_keys_are_swept_and_live_ones_kept",
        ),
        why_tests=SOON,
    ),
    Mutant(
        name="unreached-etcd-without-a-reason",
        rule="whoever finds no member to use is told why",
        section="§4",
        file="txnstore/etcd/connection.py",
        old="        endpoint.why = why\n",
        new="",
        tests=("tests/txnstore/etcd/test_silent_etcd.py::test_e4_whoever_finds_no_member_with_a_leader_is_told_so",),
        why_tests="it concerns real gRPC",
    ),
    Mutant(
        name="runs-bounded-one-by-one",
        rule="a record's list has no more writers than a commit, over all its runs",
        section="§10",
        file="txnstore/writes/writer_lists.py",
        old="        if len(found) + many > MAX_WRITERS:",
        new="        if many > MAX_WRITERS:",
        tests=("tests/txnstore/writes/test_writer_lists.py::test_c9_one_more_is_refused",),
        why_tests="no simulated fault writes a record that is not ours",
    ),
    Mutant(
        name="no-writers-told-as-nothing",
        rule="lists of writers that differ are told apart in words",
        section="§5",
        file="txnstore/writes/transitions.py",
        old=('    if not writers:\n        return "none"\n'),
        new="",
        tests=("tests/txnstore/writes/test_transitions.py::test_lists_of_writers_that_differ_are_told_apart_in_words",),
        why_tests=FIGURES,
    ),
    Mutant(
        name="one-index-timed",
        rule="queries of every index are timed",
        section="§4",
        file="txnstore/access/store_client.py",
        old="        if start.startswith(keys.INDEXES):\n",
        new="        if start.startswith(keys.TXN_BY_DEADLINE):\n",
        tests=("tests/txnstore/test_stores.py::TestMemoryStore::test_queries_of_an_index_are_timed_and_no_others",),
        why_tests=FIGURES,
    ),
    Mutant(
        name="silent-member-waited-for",
        rule="the first answer to a keep-alive counts, and no silent member is waited for",
        section="§4",
        file="txnstore/etcd/hedging.py",
        old=("        for task in asked:\n            task.cancel()\n"),
        new="",
        tests=(
            "tests/txnstore/etcd/test_hedging.py::test_the_next_is_asked_after_a_while_and_the_silent_one_is_given_up_with_the_first_answer",
        ),
        why_tests="it concerns a real etcd",
    ),
    Mutant(
        name="left-uncounted",
        rule="a hand-over that takes too long tells what is left",
        section="§6",
        file="watchers/clean_up.py",
        old='                f"the {target.name} were not cleaned up within {timeout_s} s: {target.backlog} left"',
        new='                f"the {target.name} were not cleaned up within {timeout_s} s: 0 left"',
        tests=("tests/watchers/test_clean_up.py::test_clean_up_waits_out_a_store_that_is_away",),
        why_tests=FIGURES,
    ),
    Mutant(
        name="full-etcd-fails-what-is-deleted",
        rule="names are deleted though etcd is full, and whoever deletes them is told so",
        section="§10",
        file="coordinator_v5/naming/kept_names.py",
        old='    except TxnError as error:\n        log.warning("names_not_subtracted"',
        new='    except NotImplementedError as error:\n        log.warning("names_not_subtracted"',
        tests=("tests/coordinator_v5/naming/test_kept_names.py::test_names_are_deleted_though_etcd_is_full",),
        why_tests="no simulated operator deletes names of a full etcd",
    ),
)
