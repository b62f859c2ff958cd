"""Break the rules of the command line, of operators' queries, and of `txnctl dev` (DESIGN §11)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

NO_COMMANDS = "the simulation runs no commands"
ROW = "the test dies of this line alone; whether a seed shows it was not tried"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="acked-before-printed",
        rule="what the reader of a pipe did not get stays unacked",
        section="§11",
        file="txnctl/commands/piping.py",
        old=(
            "            if not write(messages, output, end):\n"
            "                return False\n"
            "            if messages:\n"
            "                await consumer.ack(messages)\n"
        ),
        new=(
            "            if messages:\n"
            "                await consumer.ack(messages)\n"
            "            if not write(messages, output, end):\n"
            "                return False\n"
        ),
        tests=(
            "tests/txnctl/commands/test_careful_commands.py::test_what_the_reader_of_a_pipe_did_not_get_stays_unacked",
        ),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="more-than-the-count",
        rule="consume takes no more messages than it was asked for",
        section="§11",
        file="txnctl/commands/piping.py",
        old=("        return CHUNK_MESSAGES if self.count is None else min(CHUNK_MESSAGES, self.count - self.seen)"),
        new="        return CHUNK_MESSAGES",
        tests=("tests/txnctl/commands/test_careful_commands.py::test_no_more_than_the_count_is_printed_and_acked",),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="endless-line-unheard",
        rule="a line that is too long stops produce with an error",
        section="§11",
        file="txnctl/commands/piping.py",
        old="            raise chunk\n",
        new="            return\n",
        tests=(
            "tests/txnctl/commands/test_careful_commands.py::test_a_line_that_is_too_long_stops_produce_and_is_told",
        ),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="false-is-no-change",
        rule="a policy that is set to false is changed",
        section="§11",
        file="txnctl/commands/topics.py",
        old="if value is not None}",
        new="if value}",
        tests=("tests/txnctl/commands/test_careful_commands.py::test_policies_that_are_false_are_policies_too",),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="create-forgets-undrained",
        rule="a topic is created with the policies that were asked for",
        section="§11",
        file="txnctl/commands/topics.py",
        old=(
            "                retention_bytes=retention_bytes,\n"
            "                trim_undrained=trim_undrained,\n"
            "                autoscale=thresholds,\n"
        ),
        new=(
            "                retention_bytes=None,\n"
            "                trim_undrained=None,\n"
            "                autoscale=thresholds,\n"
        ),
        tests=("tests/txnctl/commands/test_careful_commands.py::test_policies_that_are_false_are_policies_too",),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="set-and-dropped",
        rule="a policy that is both set and dropped is refused",
        section="§11",
        file="txnctl/commands/topics.py",
        old=('        if name in changes:\n            raise InvalidArgument(f"{name} is both set and dropped")\n'),
        new="",
        tests=("tests/txnctl/commands/test_careful_commands.py::test_policies_that_are_false_are_policies_too",),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="list-any-owner",
        rule="transactions are listed of the owner that was asked for",
        section="§11",
        file="txnctl/commands/transactions.py",
        old="                owner=owner,\n",
        new="",
        tests=(
            "tests/txnctl/commands/test_careful_commands.py::"
            "test_transactions_are_listed_by_owner_and_age_and_aborted_by_an_operator",
        ),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="list-of-any-age",
        rule="transactions are listed of the age that was asked for",
        section="§11",
        file="txnctl/commands/transactions.py",
        old="                older_than_s=older_than,\n",
        new="",
        tests=(
            "tests/txnctl/commands/test_careful_commands.py::"
            "test_transactions_are_listed_by_owner_and_age_and_aborted_by_an_operator",
        ),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="keys-deleted-unasked",
        rule="a person is asked before a key's holder is fenced",
        section="§11",
        file="txnctl/commands/keys.py",
        old='    expect_yes(f"fence the holder of transaction key {key} of {owner}?", yes=yes)\n',
        new="",
        tests=(
            "tests/txnctl/commands/test_careful_commands.py::"
            "test_at_a_terminal_nothing_that_cannot_be_undone_goes_unasked",
        ),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="subscription-deleted-unasked",
        rule="a person is asked before a subscription is deleted",
        section="§11",
        file="txnctl/commands/subscriptions.py",
        old='    expect_yes(f"Delete subscription {subscription} of {topic}?", yes=yes)\n',
        new="",
        tests=(
            "tests/txnctl/commands/test_careful_commands.py::"
            "test_at_a_terminal_nothing_that_cannot_be_undone_goes_unasked",
        ),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="subscription-never-forced",
        rule="a subscription with consumers is deleted by force",
        section="§11",
        file="txnctl/commands/subscriptions.py",
        old="await client.delete_subscription(topic, subscription, force=force)",
        new="await client.delete_subscription(topic, subscription)",
        tests=(
            "tests/txnctl/commands/test_careful_commands.py::"
            "test_a_subscription_with_consumers_is_deleted_by_force_alone",
        ),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="first-address-alone",
        rule="a command asks the next server where the first is down",
        section="§11",
        file="txnctl/commands/shared/asking.py",
        old="    for address in addresses_of(url):\n",
        new="    for address in addresses_of(url)[:1]:\n",
        tests=(
            "tests/txnctl/commands/test_careful_commands.py::test_another_server_is_asked_where_the_first_one_is_down",
        ),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="splitter-adds-up",
        rule="lines that are cut on their way do not add up to one that is too long",
        section="§11",
        file="txnctl/commands/shared/lines.py",
        old="        self._parts, self._size = [], 0\n",
        new="        self._parts = []\n",
        tests=(
            "tests/txnctl/commands/shared/test_lines.py::"
            "test_lines_that_are_cut_on_their_way_do_not_add_up_to_one_that_is_too_long",
        ),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="all-not-drawn",
        rule="all segments are drawn where that is asked for",
        section="§11",
        file="txnctl/commands/topics.py",
        old="draw(answer, everything=everything)",
        new="draw(answer)",
        tests=("tests/txnctl/commands/test_careful_commands.py::test_all_segments_are_drawn_where_that_is_asked_for",),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="total-of-the-silent",
        rule="the total is of the coordinators that answer",
        section="§11",
        file="txnctl/admin/admin_cluster.py",
        old='    answered = [row for row in rows if "error" not in row]\n',
        new="    answered = rows\n",
        tests=(
            "tests/txnctl/admin/test_admin.py::"
            "test_a_process_that_does_not_answer_is_named_in_its_row_and_the_others_are_counted",
        ),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="silent-process-fails-all",
        rule="a process that does not answer is named in its row",
        section="§11",
        file="txnctl/admin/admin_cluster.py",
        old='            return {"error": f"{type(error).__name__}: {error}"}\n',
        new="            raise error\n",
        tests=(
            "tests/txnctl/admin/test_admin.py::"
            "test_a_process_that_does_not_answer_is_named_in_its_row_and_the_others_are_counted",
        ),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="lost-connection-kept",
        rule="a lost connection between roles is opened again",
        section="§11",
        file="txnctl/admin/role_calls.py",
        old="        if caller is None or caller.closed:\n",
        new="        if caller is None:\n",
        tests=(
            "tests/txnctl/admin/test_admin.py::test_a_connection_that_was_lost_is_opened_again_by_the_next_question",
        ),
        why_tests=ROW,
    ),
    Mutant(
        name="outcomes-first-part",
        rule="outcomes are told of all transactions that are asked for",
        section="§11",
        file="txnctl/admin/admin.py",
        old='in in_parts(list(args.get("txns") or []), ASKED_AT_ONCE):',
        new='in in_parts(list(args.get("txns") or [])[:ASKED_AT_ONCE], ASKED_AT_ONCE):',
        tests=(
            "tests/txnctl/admin/test_admin.py::test_outcomes_of_more_transactions_than_are_read_at_once_are_all_told",
        ),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="ownerless-unsaid",
        rule="what hangs in a segment of nobody says so (E6)",
        section="§11",
        file="txnctl/admin/admin.py",
        old='            row["why"] += "; the segment has no owner" if path in one.ownerless else ""\n',
        new="",
        tests=("tests/txnctl/admin/test_admin.py::test_e6_what_hangs_without_an_owner_or_behind_its_decision_says_so",),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="not-cleaned-unsaid",
        rule="what hangs behind its decision says so (E6)",
        section="§11",
        file="txnctl/admin/admin.py",
        old=('            row["why"] += "" if is_open else f"; {one.record.header.state}, but not cleaned up"\n'),
        new="",
        tests=("tests/txnctl/admin/test_admin.py::test_e6_what_hangs_without_an_owner_or_behind_its_decision_says_so",),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="stubborn-child",
        rule="a child that does not stop is killed",
        section="§11",
        file="txnctl/launch/supervisor.py",
        old=("            self.signal(signal.SIGKILL)\n            await process.wait()\n"),
        new="            await process.wait()\n",
        tests=("tests/txnctl/launch/test_supervisor.py::test_a_child_that_does_not_stop_is_killed",),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="rate-without-bound",
        rule="a load of more calls than the loop can begin is refused",
        section="§11",
        file="txnctl/commands/bench.py",
        old="    typer.Option(min=0.1, max=MOST, help",
        new="    typer.Option(min=0.1, help",
        tests=("tests/txnctl/commands/test_bench.py::test_a_load_without_end_is_refused_at_once",),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="number-of-any-length",
        rule="a size or duration that is infinite is refused in words",
        section="§11",
        file="txnctl/process/amounts.py",
        old='r"([0-9]{1,30}(?:',
        new='r"([0-9]+(?:',
        tests=("tests/txnctl/process/test_amounts.py::test_anything_else_is_refused_with_what_was_expected",),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="infinite-timeout",
        rule="a setting that no clock can count is refused",
        section="§11",
        file="txnctl/process/settings.py",
        old="    max_transaction_timeout_s: float = Field(default=3600.0, gt=0, le=MOST_S)\n",
        new="    max_transaction_timeout_s: float = Field(default=3600.0, gt=0)\n",
        tests=("tests/txnctl/process/test_settings.py::test_a_duration_that_no_clock_can_count_is_named",),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="seals-unchecked-behind-a-segment-without-a-list",
        rule="`check` looks at all segments of a topic, also behind one that had no owner yet",
        section="§8",
        file="txnctl/checking/invariants.py",
        old="                continue\n            if topology.segments[segment_id].state == SEALED",
        new="                return\n            if topology.segments[segment_id].state == SEALED",
        tests=("tests/txnctl/commands/test_check_of_several.py::test_each_of_several_violations_is_named",),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="noted-settings-before-flags",
        rule="a flag counts before what brokers have noted in the data folder",
        section="§11",
        file="txnctl/commands/shared/beside.py",
        old='**{**noted, "data_dir": folder, **named}',
        new='**{**named, **noted, "data_dir": folder}',
        tests=(
            "tests/txnctl/commands/shared/test_beside.py::test_a_flag_counts_before_what_brokers_noted_of_the_rest",
        ),
        why_tests=NO_COMMANDS,
    ),
    Mutant(
        name="told-settings-before-flags",
        rule="a flag counts before what a server says of itself",
        section="§11",
        file="txnctl/commands/shared/beside.py",
        old="**{**found, **named}",
        new="**{**named, **found}",
        tests=("tests/txnctl/commands/shared/test_beside.py::test_a_server_tells_the_prefix_of_its_keys_too",),
        why_tests=NO_COMMANDS,
    ),
)
