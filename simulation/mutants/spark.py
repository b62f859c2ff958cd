"""Mutants of the Spark connector's rules (DESIGN §10)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

NO_SPARK = "the simulation has no Spark"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="batch-name-without-topic",
        rule="a batch is named by what it writes to: a copied checkpoint for another topic writes there (X1)",
        section="§10",
        file="pyspark_txnstore/sink/batch_names.py",
        old='        return "-" if self.topic is None else _part(TopicName.parse(self.topic).path)',
        new='        return "-"',
        tests=("tests/spark/sink/test_sink_names.py::test_x1_a_batch_is_another_one_for_another_topic",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="names-unescaped",
        rule="no two writes have one name, whatever their parts contain",
        section="§10",
        file="pyspark_txnstore/sink/batch_names.py",
        old='.replace("/", "%2F")',
        new="",
        tests=("tests/spark/sink/test_sink_names.py::test_no_two_writes_have_one_name",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="former-name-forgotten",
        rule="what an earlier version has committed under its name of the batch is not written again",
        section="§10",
        file="pyspark_txnstore/sink/sink.py",
        old="    if commit.former and _committed_as(options, commit.former):",
        new="    if not commit.former and _committed_as(options, commit.former):",
        tests=("tests/spark/sink/test_sink_runs.py::test_x1_what_an_earlier_version_committed_is_not_written_again",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="left-out-in-silence",
        rule="rows that are left out, as their batch is committed already, are told with their number",
        section="§10",
        file="pyspark_txnstore/sink/sink.py",
        old="    if isinstance(commit, Repeat):\n        _leave_out(options, commit.name, commit.content)\n",
        new="    if isinstance(commit, Repeat):\n",
        tests=("tests/spark/sink/test_sink_runs.py::test_x1_a_repeated_write_tells_how_many_rows_it_leaves_out",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="deadline-of-a-dead-driver",
        rule="a batch that runs again does not inherit the deadline of the run before",
        section="§10",
        file="pyspark_txnstore/sink/attempt.py",
        old='        if not self._run.supersedes(header["attempt"]):',
        new='        if header["attempt"]:',
        tests=("tests/spark/sink/test_sink_runs.py::test_x1_a_newer_run_begins_anew_with_all_of_its_time",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="older-run-takes-over",
        rule="an older run never aborts what a newer one has begun",
        section="§10",
        file="pyspark_txnstore/sink/runs.py",
        old="        return _is_run(attempt) and attempt[: 2 * _RUN_BYTES] < self.stamp[:_RUN_BYTES].hex()",
        new="        return _is_run(attempt) and attempt[: 2 * _RUN_BYTES] != self.stamp[:_RUN_BYTES].hex()",
        tests=("tests/spark/sink/test_sink_runs.py::test_x1_an_older_run_joins_a_newer_one_and_one_of_them_counts",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="failed-run-aborts-a-newer-one",
        rule="a run that fails aborts nothing that a newer one has begun",
        section="§10",
        file="pyspark_txnstore/sink/sink.py",
        old="            if not run.is_superseded_by(one.attempt):",
        new="            if one.attempt is not None:",
        tests=("tests/spark/sink/test_sink_runs.py::test_x1_an_older_run_that_fails_aborts_nothing_of_the_newer_one",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="writer-given-twice",
        rule="each attempt of a batch is a writer of its own",
        section="§10",
        file="pyspark_txnstore/sink/attempt.py",
        old="    if writer_id in _writers:\n        return None\n",
        new="",
        tests=("tests/spark/sink/test_sink_runs.py::test_two_attempts_of_one_number_are_two_writers",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="writers-run-too-short",
        rule="a record's list of writers comes out as it went in",
        section="§10",
        file="txnstore/writes/writer_lists.py",
        old="        found.extend(range(first, first + many))",
        new="        found.extend(range(first, first + max(many - 1, 1)))",
        tests=(
            "tests/txnstore/writes/test_writer_lists.py::test_a_list_comes_out_as_it_went_in_whichever_way_it_is_written",
        ),
        why_tests="no transaction of the simulation has 20 000 writers",
    ),
    Mutant(
        name="shown-before-it-is-whole",
        rule="a transaction is shown only once all heads are known that may be its",
        section="§10",
        file="pyspark_txnstore/source/walk.py",
        old="            if txn is not None and txn.txn_id not in self._hidden:\n                return self._cut",
        new="            if txn is not None and txn.txn_id in self._hidden:\n                return self._cut",
        tests=(
            "tests/spark/source/test_limits_cases.py::test_a_transaction_is_shown_only_once_it_is_known_to_be_whole",
        ),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="decided-before-it-is-known",
        rule="what was pending at the start and has been decided is shown only once all heads are known",
        section="§10",
        file="pyspark_txnstore/source/walk.py",
        old="        if not self._hidden.issuperset(self._start.pending):\n            return None\n",
        new="",
        tests=(
            "tests/spark/source/test_limits_cases.py::test_what_was_pending_at_the_start_and_has_been_decided_needs_all_heads",
        ),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="child-behind-half-a-parent",
        rule="a batch goes into a segment only behind all that it came from, also where that is not all known",
        section="§8",
        file="pyspark_txnstore/source/walk.py",
        old="        return self.is_known and self.met == len(self.fresh)",
        new="        return self.met == len(self.fresh)",
        tests=(
            "tests/spark/source/test_limits_cases.py::"
            "test_a_child_waits_for_all_of_its_parent_though_only_some_of_that_is_known",
        ),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="one-parent-of-two",
        rule="a merged segment follows both of its parents",
        section="§8",
        file="pyspark_txnstore/source/successions.py",
        old="dict.fromkeys(owners[first:end])",
        new="dict.fromkeys(owners[first : first + 1])",
        tests=("tests/spark/source/test_successions.py::test_whoever_shares_keys_is_behind_all_that_had_them",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="other-rows-under-an-old-name",
        rule="a batch that would repeat a commit with other rows fails",
        section="§10",
        file="pyspark_txnstore/sink/winners.py",
        old="    if committed == content:",
        new="    if committed is not None:",
        tests=("tests/spark/sink/test_sink_names.py::test_x1_a_repeat_with_other_rows_fails_unless_that_is_allowed",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="isolation-changed-on-a-checkpoint",
        rule="an offset is gone on from under its own isolation alone",
        section="§10",
        file="pyspark_txnstore/shared/offset_codec.py",
        old="    if found != isolation:",
        new="    if found is None:",
        tests=("tests/spark/shared/test_offsets.py::test_an_offset_of_the_other_isolation_is_refused",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="failed-topic-unheard",
        rule="rows for a topic that cannot be written fail their task (X1)",
        section="§10",
        file="pyspark_txnstore/sink/attempt.py",
        old=("        for sent in sends:\n            if not sent.cancelled():\n                sent.result()\n"),
        new="",
        tests=(
            "tests/spark/sink/test_sink_runs.py::"
            "test_x1_rows_for_a_topic_that_cannot_be_written_fail_their_task_though_others_were_sent",
        ),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="newest-writer-forgotten",
        rule="a writer's number that was given lately is not given again (X1)",
        section="§10",
        file="pyspark_txnstore/sink/attempt.py",
        old="        del _writers[next(iter(_writers))]\n",
        new="        del _writers[writer_id]\n",
        tests=("tests/spark/sink/test_sink_runs.py::test_a_number_that_was_given_lately_is_remembered_for_longest",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="other-write-taken-for-former",
        rule="a write of this version is no earlier version's commit of a batch (X1)",
        section="§10",
        file="pyspark_txnstore/sink/sink.py",
        old='return found["outcome"] == "COMMITTED" and Content.parse(found.get("note")) is None',
        new='return found["outcome"] == "COMMITTED"',
        tests=(
            "tests/spark/sink/test_sink_runs.py::test_x1_a_write_of_this_version_under_a_former_name_is_another_one",
        ),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="settled-by-the-first-part",
        rule="one commit among all that were held back is a loss (X2)",
        section="§10",
        file="pyspark_txnstore/source/cuts.py",
        old="        for first in range(0, len(unknown), ASKED_AT_ONCE):\n",
        new="        for first in (0,):\n",
        tests=("tests/spark/source/test_settled.py::test_x2_one_commit_among_many_that_were_held_back_is_a_loss",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="name-not-synced",
        rule="a published version's name is on the disk",
        section="§10",
        file="pyspark_txnstore/shared/versioned_folder.py",
        old="        _sync(self.path)\n",
        new="",
        tests=(
            "tests/spark/shared/test_versioned_folder.py::"
            "test_a_version_is_on_the_disk_before_it_has_its_name_and_its_name_before_it_counts",
        ),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="removed-generation-fails",
        rule="a generation that goes while it is looked for leaves the one before",
        section="§10",
        file="pyspark_txnstore/source/compacted_files.py",
        old=("            except FileNotFoundError:\n                continue  # removed since it was listed\n"),
        new=("            except FileNotFoundError:\n                raise\n"),
        tests=(
            "tests/spark/source/test_compacted_files.py::"
            "test_a_generation_that_is_removed_while_it_is_looked_for_leaves_the_one_before",
        ),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="cut-with-a-tail",
        rule="an offset with something behind its cut is damaged (X2)",
        section="§10",
        file="pyspark_txnstore/shared/offset_codec.py",
        old="    if not unpacking.eof or unpacking.unused_data:\n",
        new="    if not unpacking.eof:\n",
        tests=("tests/spark/shared/test_offsets.py::test_a_damaged_offset_says_what_is_wrong",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="names-error-ends-query",
        rule="a query at rest does not end by a question that fails",
        section="§10",
        file="pyspark_txnstore/source/idle.py",
        old=(
            "            return self._cuts.names_others(self._cut)\n        except TxnError:\n            return True\n"
        ),
        new=("            return self._cuts.names_others(self._cut)\n        except TxnError:\n            raise\n"),
        tests=("tests/spark/source/test_idle_errors.py::test_what_cannot_be_told_is_looked_for",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="lost-watch-tells-nothing",
        rule="a query at rest takes a cut where its watch is lost",
        section="§10",
        file="pyspark_txnstore/source/idle.py",
        old=("            self._lose(error)\n            return True\n"),
        new=("            self._lose(error)\n            return False\n"),
        tests=("tests/spark/source/test_idle_errors.py::test_what_cannot_be_told_is_looked_for",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="one-abort-fails-the-others",
        rule="one that has committed keeps no other of a failed batch open (X1)",
        section="§10",
        file="pyspark_txnstore/sink/sink.py",
        old=(
            "    except InvalidTxnState:\n"
            '        _log.warning("%r failed here and is committed, by another run of it: nothing is '
            'lost", name)\n'
        ),
        new=("    except InvalidTxnState:\n        raise\n"),
        tests=(
            "tests/spark/sink/test_sink_runs.py::test_x1_one_that_has_committed_keeps_no_other_of_a_failed_batch_open",
        ),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="commit-given-up-early",
        rule="a batch's commit is asked for again for minutes (X1)",
        section="§10",
        file="pyspark_txnstore/sink/sink.py",
        old="        timeout_s = max(COMMIT_TIMEOUT_S, options.timeout_s)\n",
        new="        timeout_s = options.timeout_s\n",
        tests=(
            "tests/spark/sink/test_sink_runs.py::"
            "test_x1_a_commit_is_asked_for_again_for_longer_than_a_request_may_take",
        ),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="lock-of-the-parent",
        rule="a child that was forked while its parent opened a client does not hang",
        section="§10",
        file="pyspark_txnstore/shared/process_client.py",
        old="os.register_at_fork(after_in_child=_forked)\n",
        new="",
        tests=(
            "tests/spark/shared/test_process_client.py::"
            "test_a_child_that_was_forked_amid_an_opening_does_not_wait_for_it",
        ),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="offsets-that-went",
        rule="a checkpoint is read though its query forgets batches meanwhile",
        section="§10",
        file="pyspark_txnstore/checkpoint.py",
        old=("        except FileNotFoundError:\n            continue  # a running query forgets its oldest batches\n"),
        new=("        except FileNotFoundError:\n            raise\n"),
        tests=("tests/spark/test_checkpoint.py::test_a_batch_that_the_query_forgets_meanwhile_is_left_out",),
        why_tests=NO_SPARK,
    ),
    Mutant(
        name="former-unlooked",
        rule="what an earlier version has committed of a batch is told (X1)",
        section="§10",
        file="txnctl/commands/spark.py",
        old=(
            '    if outcome != "COMMITTED" and await _outcome_of(cluster, name.former) == '
            '"COMMITTED":\n'
            '        return {"transaction": name.former, "outcome": "COMMITTED"}\n'
        ),
        new="",
        tests=(
            "tests/txnctl/commands/test_careful_commands.py::"
            "test_x1_a_checkpoint_is_told_with_what_the_sink_has_committed",
        ),
        why_tests=NO_SPARK,
    ),
)
