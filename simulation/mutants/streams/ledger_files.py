"""Break the rules that keep ledgers' files, their fences and their folder trustworthy (DESIGN §6, §7; C12)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

FAILING_FOLDERS = "tests/segments/owner/test_failing_folders.py::"

ENDS = "tests/segments/ledger/test_file_ledger_ends.py::"

IO_THREADS = "tests/segments/ledger/test_io_threads.py::"

WHILE_CLOSING = (
    "tests/segments/ledger/test_file_ledger_ends.py::"
    "test_what_a_store_opens_while_it_closes_stays_neither_open_nor_in_use"
)

REAL_FILES = "the simulation has disks of its own: real files are behind `LedgerStore`"
PUT_BACK = "the simulation puts no data folder back, and has no repair"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="later-count-replaces",
        rule="of two who count a fenced ledger the first count stands",
        section="§6",
        file="segments/ledger/ledger_files.py",
        old="    create_once(paths.count, _encode_fence(FenceFile(entries=entries)))",
        new="    replace_file(paths.count, _encode_fence(FenceFile(entries=entries)))",
        tests=(
            "tests/segments/ledger/test_file_ledger.py::"
            "TestContract::test_of_two_successors_that_count_at_once_the_first_count_stands",
            "tests/segments/ledger/test_file_ledger.py::test_a_failed_sync_does_not_shorten_what_a_successor_has_counted",
        ),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="folder-of-others-trusted",
        rule="a directory is synced into its parent before anything in it counts, whoever made it",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old=(
            "    if not path.is_dir():\n"
            "        make_directories(path.parent)\n"
            "        path.mkdir(exist_ok=True)\n"
            "    try:\n"
        ),
        new=(
            "    if path.is_dir():\n"
            "        return\n"
            "    make_directories(path.parent)\n"
            "    path.mkdir(exist_ok=True)\n"
            "    try:\n"
        ),
        tests=(
            "tests/segments/ledger/test_file_ledger.py::"
            "test_a_folder_that_somebody_else_has_just_made_is_synced_before_a_ledger_in_it_counts",
        ),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="gone-folder-is-empty",
        rule="what is not found in a data folder that has gone was not never made (C12)",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old="(found := read_mark(root)) != mark:",
        new="(found := read_mark(root) or mark) != mark:",
        tests=(
            "tests/segments/ledger/test_file_ledger.py::"
            "TestContract::test_c12_what_is_not_there_because_the_place_has_gone_was_not_never_made",
        ),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="moved-ledger-goes-on",
        rule="a writer whose file was moved away acks nothing more: it sees no fence (C12)",
        section="§7",
        file="segments/ledger/file_ledger_writer.py",
        old="    if fenced is None:\n",
        new="    if fenced is None and fd < 0:\n",
        tests=(
            "tests/segments/ledger/test_file_ledger.py::"
            "TestContract::test_c12_a_writer_whose_place_has_gone_acks_nothing_more",
        ),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="lost-ledger-is-empty",
        rule="a ledger that was made and is not there is no empty one (C12)",
        section="§6",
        file="segments/ledger/ledger_evidence.py",
        old="    if not found.present and made == ledger_id:",
        new="    if not found.present and made == -1:",
        tests=(
            "tests/segments/log/ledgers/test_ledgers.py::test_c12_a_ledger_that_was_made_and_is_not_there_is_no_empty_one",
        ),
        why_tests="no ledger of the simulation is lost without its folder",
    ),
    Mutant(
        name="end-not-recorded",
        rule="where a failed sync's bound cannot be kept beside the ledger it goes to /ledger (L5)",
        section="§7",
        file="segments/log/ledgers/segment_log.py",
        old="        if writer is None or end is None:",
        new="        if writer is None or end is None or end.entries >= 0:",
        tests=(
            "tests/segments/log/ledgers/test_ledgers.py::test_l5_the_end_of_a_ledger_that_the_disk_does_not_take_goes_to_the_list",
            FAILING_FOLDERS + "test_l5_an_owner_whose_disk_takes_nothing_any_more_records_the_end_before_it_gives_up",
        ),
        why_tests="it takes another broker as successor, and a power failure behind that: few seeds have both",
    ),
    Mutant(
        name="end-not-remembered",
        rule="a process that could not record a ledger's end does not count further itself (L5)",
        section="§7",
        file="segments/ledger/file_ledger.py",
        old="        self._ends[segment, ledger_id] = entries\n",
        new="        self._ends.pop((segment, ledger_id), None)\n",
        tests=(
            "tests/segments/ledger/test_file_ledger.py::"
            "TestContract::test_l5_a_writer_tells_its_end_where_the_disk_does_not_take_it",
        ),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="unwritten-pages-kept",
        rule="behind a failed sync nobody reads from the page cache what is not on the disk (L5)",
        section="§7",
        file="segments/ledger/file_ledger_writer.py",
        old="        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)",
        new="        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_NORMAL)",
        tests=(
            "tests/segments/ledger/test_file_ledger.py::test_behind_a_failed_sync_the_kernel_is_told_to_drop_what_it_holds",
        ),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="beyond-its-ledger-served",
        rule="a segment whose watermark lies beyond its ledger is not served, nor its length written down (C12)",
        section="§6",
        file="segments/log/ledgers/segment_log.py",
        old="            await expect_evidence(self._store, self._segment, closed)\n",
        new="            pass\n",
        tests=(
            "tests/segments/log/ledgers/test_ledgers.py::test_c12_a_folder_that_lacks_what_was_decided_is_not_believed",
            "tests/txnctl/checking/test_older_folder.py::"
            "test_c12_a_segment_that_lacks_what_was_decided_is_refused_and_check_says_so",
        ),
        why_tests=PUT_BACK,
    ),
    Mutant(
        name="shorter-closed-ledger-served",
        rule="a segment whose last closed ledger is shorter than it was is not served (C12)",
        section="§6",
        file="segments/ledger/ledger_evidence.py",
        old="    if entries < (info.closed_length or 0):",
        new="    if entries < 0:",
        tests=(
            "tests/segments/log/ledgers/test_ledgers.py::test_c12_a_closed_ledger_that_is_shorter_than_it_was_is_not_served",
        ),
        why_tests=PUT_BACK,
    ),
    Mutant(
        name="torn-transactions-kept",
        rule="a repair drops transactions that lost a part whole (C12)",
        section="§6",
        file="txnctl/checking/missing.py",
        old="header.state == COMMITTED and picture.header_revisions.get(txn_id, 0) > folder_revision",
        new="header.state == COMMITTED and picture.header_revisions.get(txn_id, 0) < 0 * folder_revision",
        tests=(
            "tests/txnctl/checking/test_older_folder.py::"
            "test_c12_a_repair_drops_transactions_that_lost_a_part_whole_and_keeps_the_rest",
        ),
        why_tests=PUT_BACK,
    ),
    Mutant(
        name="torn-parts-below-the-watermark-kept",
        rule="what is left of a dropped transaction is aborted also below the watermark (C12)",
        section="§6",
        file="txnctl/checking/repair.py",
        old="                if lost or position > decided or txn_id in self._dropping.dropped:",
        new="                if lost or position > decided:",
        tests=(
            "tests/txnctl/checking/test_older_folder.py::"
            "test_c12_a_repair_drops_transactions_that_lost_a_part_whole_and_keeps_the_rest",
        ),
        why_tests=PUT_BACK,
    ),
    Mutant(
        name="lost-sidecar-forgotten",
        rule="what a lost sidecar had listed as aborted stays so (C12)",
        section="§6",
        file="txnctl/checking/repair.py",
        old="                if lost or position > decided or txn_id in self._dropping.dropped:",
        new="                if position > decided or txn_id in self._dropping.dropped:",
        tests=(
            "tests/txnctl/checking/test_older_folder.py::test_c12_what_a_lost_ledger_or_sidecar_had_listed_as_aborted_stays_so",
        ),
        why_tests=PUT_BACK,
    ),
    Mutant(
        name="dropped-forgotten-by-the-next-repair",
        rule="a repair that goes on drops what the one before it had begun to drop (C12)",
        section="§6",
        file="txnctl/checking/dropping.py",
        old="if header.reason == REASON_LOST",
        new='if header.reason == "nobody"',
        tests=(
            "tests/txnctl/checking/test_older_folder.py::"
            "test_c12_a_repair_drops_transactions_that_lost_a_part_whole_and_keeps_the_rest",
        ),
        why_tests=PUT_BACK,
    ),
    Mutant(
        name="mark-at-a-bare-mount-point",
        rule="where a data folder has gone no mark is written in its place (C12)",
        section="§7",
        file="txnctl/process/store_mark.py",
        old="        if before is None and again:",
        new="        if before is None and again is None:",
        tests=("tests/txnctl/process/test_store_mark.py::test_c12_nothing_is_written_where_a_data_folder_was",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="create-once-dir-unsynced",
        rule="a fence or count that is found is made durable before anybody goes by it (L3)",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old="    sync_directory(target.parent)  # ▲ its creator may have died before this sync\n",
        new="",
        tests=(
            "tests/segments/ledger/test_file_ledger_ends.py::"
            "test_a_fence_or_count_that_is_found_is_durable_before_anybody_goes_by_it",
        ),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="fence-end-forgotten-on-error",
        rule="an end that the disk has not taken is known here until a fence has counted by it (L5)",
        section="§7",
        file="segments/ledger/file_ledger.py",
        old="segment, self._ends.get((segment, ledger_id)))",
        new="segment, self._ends.pop((segment, ledger_id), None))",
        tests=(
            "tests/segments/ledger/test_file_ledger_ends.py::"
            "test_l5_a_fence_that_fails_forgets_no_end_that_the_disk_has_not_taken",
        ),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="entries-hidden-by-their-footer",
        rule="a footer that is damaged hides no entry of its ledger",
        section="§7",
        file="segments/ledger/file_ledger.py",
        old='        log.warning("ledger_scanned", error=str(error))\n        return None\n',
        new="        raise error\n",
        tests=("tests/segments/ledger/test_file_ledger_ends.py::test_a_footer_that_is_damaged_hides_no_entry[False]",),
        why_tests="the simulation has disks of its own",
    ),
    Mutant(
        name="fence-not-seen-is-none",
        rule="a fence that cannot be looked for does not pass for none",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old="    except FileNotFoundError:\n        return False\n    return True\n",
        new="    except OSError:\n        return False\n    return True\n",
        tests=(
            "tests/segments/ledger/test_file_ledger_ends.py::"
            "test_a_fence_that_cannot_be_looked_for_is_an_error_and_leaves_no_file_open",
        ),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="file-left-open-behind-its-fence",
        rule="no file stays open of a ledger whose creation fails",
        section="§7",
        file="segments/ledger/file_ledger.py",
        old="                os.close(fd)\n                raise\n            return fd, fenced",
        new="                raise\n            return fd, fenced",
        tests=(
            "tests/segments/ledger/test_file_ledger_ends.py::"
            "test_a_fence_that_cannot_be_looked_for_is_an_error_and_leaves_no_file_open",
        ),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="cancelled-job-runs",
        rule="a job that was cancelled before a thread began it does not run",
        section="§7",
        file="segments/ledger/io_threads.py",
        old="                if not future.cancelled():\n                    result = job()",
        new="                result = job()",
        tests=(IO_THREADS + "test_a_job_cancelled_before_it_began_does_not_run_and_one_after_is_not_told",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="job-waits-at-the-end",
        rule="at the end of the threads, no job stays unanswered",
        section="§7",
        file="segments/ledger/io_threads.py",
        old="                self._settle(waiting[1], None, asyncio.CancelledError())",
        new="                pass",
        tests=(IO_THREADS + "test_at_the_end_what_has_begun_is_done_and_the_rest_is_cancelled",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="idle-thread-keeps-its-job",
        rule="an idle thread keeps neither data nor a traceback",
        section="§7",
        file="segments/ledger/io_threads.py",
        old="            del taken, job, future, result, error",
        new="            pass",
        tests=(IO_THREADS + "test_an_idle_thread_keeps_neither_the_job_nor_its_result_nor_its_error",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="python-waits-for-a-hung-disk",
        rule="a process ends though its disk does not answer",
        section="§7",
        file="segments/ledger/io_threads.py",
        old="daemon=True",
        new="daemon=False",
        tests=(IO_THREADS + "test_python_ends_without_waiting_for_a_job_that_never_does",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="thread-that-never-was-counts",
        rule="a thread that the system refused is tried again: no job waits for it",
        section="§7",
        file="segments/ledger/io_threads.py",
        old="                if not self._threads:  # otherwise an existing thread will take the job",
        new="                self._threads += 1\n                if self._threads == 1:",
        tests=(IO_THREADS + "test_a_thread_that_cannot_start_is_an_error_of_the_job_and_counts_for_none",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="job-waits-for-no-thread",
        rule="where no thread can be started a job fails, with an error of the disk's kind",
        section="§7",
        file="segments/ledger/io_threads.py",
        old="                if not self._threads:  # otherwise",
        new="                if self._threads < 0:  # otherwise",
        tests=(IO_THREADS + "test_a_thread_that_cannot_start_is_an_error_of_the_job_and_counts_for_none",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="answers-in-another-loop",
        rule="threads take no job of another loop than the one they answer in",
        section="§7",
        file="segments/ledger/io_threads.py",
        old="        if self._loop is not None:\n            raise",
        new="        if False:\n            raise",
        tests=(IO_THREADS + "test_a_job_of_another_loop_is_refused",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="writer-of-a-closed-store",
        rule="a store that has closed makes no writer of a ledger whose creation was under way",
        section="§7",
        file="segments/ledger/file_ledger.py",
        old="        self._expect_open()  # ▲ if the store has closed",
        new="        # ▲ if the store has closed",
        tests=(WHILE_CLOSING + "[create]",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="kept-by-a-closed-store",
        rule="a store that has closed keeps no file open that was being opened",
        section="§7",
        file="segments/ledger/file_ledger.py",
        old="        if self._stopped:\n            ledger.file.release()\n        self._expect_open()\n",
        new="",
        tests=(WHILE_CLOSING + "[fence]", WHILE_CLOSING + "[read]"),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="hung-jobs-left-unsaid",
        rule="a store that closes tells of jobs that its disk does not answer",
        section="§7",
        file="segments/ledger/file_ledger.py",
        old="            if left:\n",
        new="            if not left:\n",
        tests=(
            "tests/segments/ledger/test_file_ledger_ends.py::"
            "test_a_store_that_closes_tells_of_jobs_that_its_disk_does_not_answer",
        ),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="closed-number-remembered",
        rule="the number of a closed file is forgotten: by the next close another file has it",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old="            fd, self.fd = self.fd, -1\n            close_file(fd)\n",
        new="            close_file(self.fd)\n",
        tests=(ENDS + "test_l5_a_ledger_whose_close_fails_takes_no_file_from_another_one",),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="failed-close-raised",
        rule="a file that fails to close stops neither the end of its ledger, nor a fence, nor the close of the store",
        section="§7",
        file="segments/ledger/ledger_files.py",
        old='        log.warning("file_not_closed", error=str(error))\n',
        new='        log.warning("file_not_closed", error=str(error))\n        raise\n',
        tests=(
            ENDS + "test_l5_a_ledger_whose_close_fails_takes_no_file_from_another_one",
            ENDS + "test_a_close_that_fails_hides_no_fence_and_keeps_no_store_from_closing",
        ),
        why_tests=REAL_FILES,
    ),
    Mutant(
        name="reserve-of-nothing",
        rule="without a watermark there is no reserve, and no warning of it each second",
        section="§7",
        file="segments/ledger/ledger_reserve.py",
        old="        if not size:\n",
        new="        if size < 0:\n",
        tests=(
            "tests/segments/ledger/test_ledger_reserve.py::test_without_a_watermark_no_reserve_is_kept_and_none_is_missed",
        ),
        why_tests=REAL_FILES,
    ),
)
