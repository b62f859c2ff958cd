"""Break rules that only a separate process exercises: signals, exit codes, pages, logs, files; and folders above the
data."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

REAL = "it concerns a real process: its signals, files, pages or log"

SERVER = "tests/process/test_server_process.py::"
AT_WORK = f"{SERVER}test_a_server_works_as_it_was_told_and_leaves_at_sigterm_without_a_trace"
SECOND = f"{SERVER}test_a_second_signal_ends_a_server_whose_etcd_does_not_answer"
NO_ETCD = f"{SERVER}test_a_server_ends_with_a_word_when_its_etcd_has_no_identity_any_more_and_where_none_answers"
HUNG_START = f"{SERVER}test_a_server_whose_disk_does_not_answer_as_it_starts_heeds_the_first_sigterm"
NO_LOG = f"{SERVER}test_a_server_whose_log_cannot_be_written_serves_and_leaves_all_the_same"
SILENT = "tests/txnctl/process/test_silent_connections.py::test_a_connection_that_stays_silent_is_closed_without_a_line"
DEV = (
    "tests/txnctl/launch/test_dev_signals.py::"
    "test_ctrl_c_at_a_terminal_reaches_dev_alone_which_stops_its_processes_in_order"
)


def process(name: str, rule: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name=name, rule=rule, section="§2", file=file, old=old, new=new, tests=tests, why_tests=REAL)


SERVE = "txnctl/process/serve.py"
HTTP = "txnctl/process/http.py"
SUPERVISOR = "txnctl/launch/supervisor.py"

MUTANTS: tuple[Mutant, ...] = (
    process(
        "sigterm-is-a-kill",
        "a server hands over at SIGTERM",
        SERVE,
        "    for number in (signal.SIGTERM, signal.SIGINT):\n",
        "    for number in (signal.SIGINT,):\n",
        AT_WORK,
    ),
    process(
        "sigterm-unheeded-by-a-start",
        "a server heeds SIGTERM also while it starts",
        SERVE,
        "        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)\n",
        "        await asyncio.wait({task})\n",
        HUNG_START,
    ),
    process(
        "mark-read-in-the-loop",
        "a server heeds SIGTERM also while it starts",
        SERVE,
        "            await asyncio.to_thread(mark.read)",
        "            mark.read()",
        HUNG_START,
    ),
    process(
        "folder-waited-for-without-end",
        "a start that waits for a disk or a role ends, and says for which",
        SERVE,
        "        async with asyncio.timeout(START_TIMEOUT_S) as limit:\n",
        "        async with asyncio.timeout(None) as limit:\n",
        "tests/txnctl/process/test_start_limits.py::test_a_folder_whose_disk_does_not_answer_is_named",
    ),
    process(
        "start-ends-without-a-word",
        "a start that waits for a disk or a role ends, and says for which",
        "txnctl/process/server.py",
        "                    if not limit.expired():\n                        raise\n",
        "                    raise\n",
        "tests/txnctl/process/test_start_limits.py::test_a_role_that_does_not_start_is_named",
    ),
    process(
        "second-signal-waits",
        "a second signal ends a server that cannot hand over",
        SERVE,
        "    asyncio.get_running_loop().remove_signal_handler(number)\n",
        "",
        SECOND,
    ),
    process(
        "open-files-as-found",
        "a server raises its limit of open files to its bound of connections",
        SERVE,
        "    allow_open_files(settings.max_connections)\n",
        "",
        AT_WORK,
    ),
    process(
        "pages-gone-before-the-server",
        "/readyz tells that a server goes down until it has gone",
        SERVE,
        "                await server.close()  # /readyz",
        "                await http.close() if http is not None else None\n"
        "                await server.close()  # /readyz",
        SECOND,
    ),
    process(
        "mark-not-made",
        "a broker marks its folder before it serves",
        SERVE,
        "            await asyncio.to_thread(_write_mark, mark, identity, revision)\n",
        "",
        AT_WORK,
    ),
    process(
        "mark-not-kept",
        "a broker raises its folder's mark while it serves",
        SERVE,
        "    if _keeps_mark(settings):\n        with server.tasks",
        "    if False:\n        with server.tasks",
        AT_WORK,
    ),
    process(
        "pauses-not-measured",
        "a server tells how long it did nothing else",
        SERVE,
        '                restarted(pauses.run, name="pauses"),\n',
        "",
        AT_WORK,
    ),
    process(
        "identity-not-followed",
        "a server ends when its etcd is another, or has no identity",
        SERVE,
        "        await asyncio.wait({ended, followed}, return_when=asyncio.FIRST_COMPLETED)\n",
        "        await asyncio.wait({ended}, return_when=asyncio.FIRST_COMPLETED)\n",
        NO_ETCD,
    ),
    process(
        "health-checks-logged",
        "a health check leaves no line in the log",
        HTTP,
        "    def log_message(",
        "    def log_nothing(",
        AT_WORK,
    ),
    process(
        "silent-connections-kept",
        "a connection to the pages that stays silent is closed",
        HTTP,
        "    timeout: ClassVar[float] = SILENT_S\n",
        "",
        SILENT,
    ),
    process(
        "silent-connections-told",
        "a connection to the pages that stays silent leaves no line in the log",
        HTTP,
        "        with suppress(TimeoutError):  # it",
        "        with suppress(KeyError):  # it",
        SILENT,
    ),
    process(
        "role-taken-twice",
        "a server has each role once",
        "txnctl/process/settings.py",
        "        if len(set(value)) < len(value):\n",
        "        if False:\n",
        "tests/txnctl/process/test_settings.py::test_wrong_settings_are_named",
    ),
    process(
        "log-on-standard-output",
        "logs go to standard error, in lines without colours",
        "txnctl/process/logs.py",
        "os.write(sys.stderr.fileno(), ",
        "os.write(sys.stdout.fileno(), ",
        AT_WORK,
    ),
    process(
        "full-log-ends-what-logs",
        "a line of the log that cannot be written is lost, and nothing with it",
        "txnctl/process/logs.py",
        "suppress(OSError, ValueError)",
        "suppress(ValueError)",
        NO_LOG,
    ),
    process(
        "end-told-before-it-counts",
        "the end of a vital task ends its process, also where its log cannot be written",
        "txnwire/tasks.py",
        "        end = TaskEnd(name, of, error, fatal)\n",
        '        end = TaskEnd(name, of, error, fatal)\n        log.error("task_ended", task=name)\n',
        "tests/txnwire/test_tasks.py::"
        "test_the_end_of_a_vital_task_is_the_end_of_its_process_though_its_log_cannot_be_written",
    ),
    process(
        "colours-in-files",
        "logs have colours at a terminal alone",
        "txnctl/process/logs.py",
        "colors=sys.stderr.isatty()",
        "colors=True",
        AT_WORK,
    ),
    process(
        "every-level-logged",
        "a log has its level and what is above",
        "txnctl/process/logs.py",
        "make_filtering_bound_logger(number)",
        "make_filtering_bound_logger(0)",
        AT_WORK,
    ),
    process(
        "typo-in-the-environment",
        "what looks like a setting in the environment and is none is told",
        "txnctl/cli.py",
        "    for line in unknown_in_environment():\n        structlog",
        "    for line in ():\n        structlog",
        AT_WORK,
    ),
    process(
        "advertises-what-it-bound",
        "a server is registered at the address that it was told to advertise",
        "txnctl/process/server.py",
        "self._settings.advertise or listener.address",
        "listener.address",
        AT_WORK,
    ),
    process(
        "children-at-the-terminal",
        "Ctrl-C at a terminal reaches the supervisor alone",
        SUPERVISOR,
        "                start_new_session=True,",
        "                start_new_session=False,",
        DEV,
    ),
    process(
        "ready-before-it-is",
        "the line of dev is printed once the cluster serves",
        "txnctl/launch/dev.py",
        "            await self._wait_started()\n        except",
        "            pass\n        except",
        DEV,
    ),
    process(
        "etcd-stopped-first",
        "etcd is stopped behind the servers, which hand over to it",
        SUPERVISOR,
        "        for child in reversed(self.children.values()):\n",
        "        for child in self.children.values():\n",
        DEV,
    ),
    process(
        "lock-names-nobody",
        "the lock of a folder names its holder",
        "txnctl/launch/preflight.py",
        '        os.pwrite(descriptor, f"{os.getpid()}\\n".encode(), 0)\n',
        "",
        DEV,
    ),
    process(
        "lock-that-cannot-be-taken-is-held",
        "a folder that cannot be locked is in use by nobody",
        "txnctl/launch/preflight.py",
        "        except BlockingIOError as error:\n",
        "        except OSError as error:\n",
        "tests/txnctl/launch/test_preflight.py::test_a_folder_that_cannot_be_locked_is_in_use_by_nobody",
    ),
    process(
        "host-too-long-to-ask-for",
        "a host that no name server can be asked for is told without a traceback",
        "txnctl/launch/preflight.py",
        "    except (OSError, UnicodeError) as error:  # ",
        "    except OSError as error:  # ",
        "tests/txnctl/launch/test_preflight.py::test_a_host_that_no_name_server_can_be_asked_for_is_told",
    ),
    process(
        "child-lost-with-its-log",
        "a child that could not be started again is tried until it runs",
        SUPERVISOR,
        '            except OSError as error:\n                log.warning("child_not_started"',
        '            except ChildProcessError as error:\n                log.warning("child_not_started"',
        "tests/txnctl/launch/test_failing_starts.py::"
        "test_a_child_whose_log_file_cannot_be_opened_comes_back_once_it_can",
    ),
    process(
        "folder-of-versions-not-synced",
        "the folders above an export's first version are on the disk before it counts",
        "pyspark_txnstore/shared/versioned_folder.py",
        "    try:\n        _sync(folder.parent)\n    except PermissionError:\n",
        "    try:\n        pass\n    except PermissionError:\n",
        "tests/spark/shared/test_durable_folders.py::test_the_folders_above_a_version_are_on_the_disk_before_it_counts",
    ),
    Mutant(
        name="keyed-begin-behind-the-loss-is-nobody-s",
        rule="a keyed begin that is answered once its coordinator id was lost stays its client's (K7)",
        section="§9",
        file="coordinator_v5/naming/transaction_keys.py",
        old="        if txn.tc.lost:\n            state.sessions.dropped(txn)\n",
        new="",
        tests=(
            "tests/coordinator_v5/naming/test_keyed_losses.py::"
            "test_k7_a_keyed_begin_that_is_answered_once_its_id_was_lost_stays_its_client_s",
        ),
        why_tests="the simulation seldom loses an id within a begin",
    ),
    Mutant(
        name="held-at-a-seek-not-heard-of",
        rule="behind a seek of which only the next attach tells, all that is not acked comes again",
        section="§7",
        file="txnclient/consuming/feeds/feed.py",
        old="            self._inbox.sought()\n",
        new="            pass\n",
        tests=(
            "tests/txnclient/consuming/feeds/test_lost_closes.py::"
            "test_behind_a_seek_that_only_the_next_attach_tells_of_what_is_held_comes_again",
        ),
        why_tests="a close seldom gets lost with its connection",
    ),
    Mutant(
        name="ends-with-a-disk-that-hangs",
        rule="a server ends at SIGTERM, also where its disk answers nothing any more",
        section="§12",
        file="txnctl/process/serve.py",
        old="    timer.daemon = True\n    timer.start()\n",
        new="    timer.daemon = True\n",
        tests=("tests/process/test_server_process.py::test_a_server_whose_disk_hangs_ends_at_sigterm_all_the_same",),
        why_tests="a simulated process has no threads",
    ),
    Mutant(
        name="full-collections-never-look",
        rule="a server collects what only a full collection frees, again and again",
        section="§12",
        file="txnctl/process/full_collections.py",
        old="                    break\n            self.look()\n",
        new="                    break\n",
        tests=("tests/txnctl/process/test_full_collections.py::test_a_process_looks_again_and_again",),
        why_tests="a simulated process has no garbage collector of its own",
    ),
)
