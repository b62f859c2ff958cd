"""Break the rules of transaction keys (DESIGN §9)."""

# ruff: noqa: E501  (texts stand on one line, as in the code)
from __future__ import annotations

from simulation.mutants.mutant import Edit, Mutant

KEYED_BEGINS = "tests/coordinator_v5/naming/test_keyed_begins.py::"
KEYS = "tests/coordinator_v5/naming/test_transaction_keys.py::"
REPEATED = KEYED_BEGINS + "test_a_begin_repeated_at_the_successor_makes_its_transaction_the_holder_s_again"
ALONE = "its test dies of this line alone; whether a seed shows it was not tried"

MUTANTS = (
    Mutant(
        name="late-connect-fences",
        rule="a connect whose epoch has moved on, a late duplicate, is refused",
        section="§9",
        faults="lose replies,reset,pause,cut a connection",
        file="txnstore/writes/key_transitions.py",
        old="    if record.epoch == epoch:\n        return None\n",
        new="    if record.epoch >= epoch and record.attempt != attempt:\n        return None\n",
    ),
    Mutant(
        name="connect-leaves-the-holders-transaction-open",
        rule="a connect aborts what the holder before has open, in the same etcd transaction",
        section="§9",
        file="coordinator_v5/naming/transaction_keys.py",
        old="            opened = header if is_open(header) else None\n            commit, taken = plan_connect(",
        new="            opened = None\n            commit, taken = plan_connect(",
    ),
    Mutant(
        name="holder-of-a-lost-id-noted",
        rule="who connects while its coordinator loses the id is noted by the next coordinator alone",
        section="§9",
        file="coordinator_v5/naming/transaction_keys.py",
        old="        if tcid not in self._state.tcids:\n            return\n",
        new="",
        tests=(
            "tests/coordinator_v5/naming/test_keyed_losses.py::"
            "test_k7_a_holder_whose_connect_is_answered_once_its_id_was_lost_is_nobody_s_here",
        ),
        why_tests=ALONE,
    ),
    Mutant(
        name="connect-over-a-begin",
        rule="a connect compares the key's record as it was read: it lands before a begin of the old holder or sees it",
        section="§9",
        faults="slow etcd,pause",
        file="txnstore/writes/key_transitions.py",
        old="    compares: list[Compare] = [unchanged_since(key, state.mod_revision)]\n",
        new="    compares: list[Compare] = []\n",
    ),
    Mutant(
        name="begin-of-a-fenced-holder",
        rule="a begin of a key compares the key's record: a fenced holder begins nothing",
        section="§9",
        faults="slow etcd,pause",
        file="txnstore/writes/key_transitions.py",
        old="    return unchanged_since(key, state.mod_revision)\n",
        new="    return Compare(key, Target.MOD, Relation.NOT_EQUAL, -state.mod_revision - 1)\n",
    ),
    Mutant(
        name="two-transactions-of-a-key",
        rule="a keyed client has one open transaction at a time",
        section="§9",
        file="txnstore/writes/key_transitions.py",
        old="    if is_open(header) or begin.number == state.record.begins:\n",
        new="    if begin.number == state.record.begins:\n",
        more=(
            Edit(
                "txnstore/writes/key_transitions.py",
                "    ended = () if before is None else (Compare(keys.txn(before), Target.VERSION, Relation.NOT_EQUAL, 1),)\n",
                "    ended: tuple[Compare, ...] = ()\n",
            ),
            Edit(
                "txnclient/transactions/transaction_keys.py",
                "        elif latest.state in (TransactionState.OPEN, TransactionState.COMMITTING):\n",
                "        elif latest.state in (TransactionState.OPEN,):\n",
            ),
        ),
        tests=("tests/txnstore/writes/test_key_transitions.py::test_which_begins_are_let_in",),
        why_tests="the client that holds a key begins nothing while it has one open",
    ),
    Mutant(
        name="late-begin-of-a-key",
        rule="a begin of a key that comes late, behind the holder's next one, opens nothing",
        section="§9",
        file="txnstore/writes/key_transitions.py",
        old="    if begin.number < state.record.begins:\n",
        new="    if begin.number < 0:\n",
        tests=("tests/txnstore/writes/test_key_transitions.py::test_which_begins_are_let_in",),
        why_tests="it takes a begin that outlives its repetition, the end of that one and its collection",
    ),
    Mutant(
        name="deleted-key-keeps-its-epoch",
        rule="deleting a key raises its epoch",
        section="§9",
        file="txnstore/writes/key_transitions.py",
        old="    record = TransactionKey(epoch=state.record.epoch + 1, since_ms=state.record.since_ms, deleted_ms=now_ms)\n",
        new="    record = TransactionKey(epoch=state.record.epoch, since_ms=state.record.since_ms, deleted_ms=now_ms)\n",
    ),
    Mutant(
        name="decided-commit-fails-the-next-begin",
        rule="a begin goes on where the cancelled commit before it has been decided",
        section="§9",
        file="txnclient/transactions/transaction_keys.py",
        old="            with suppress(TxnDecided):",
        new="            with suppress():",
        tests=(
            "tests/test_transaction_keys.py::test_a_begin_goes_on_where_the_cancelled_commit_before_it_has_been_decided",
        ),
        why_tests="it takes a begin within the moment in which a cancelled commit is being settled",
    ),
    Mutant(
        name="begun-behind-its-holder",
        rule="a transaction whose holder went before its begin had landed ends after the grace (K7)",
        section="§9",
        file="coordinator_v5/naming/transaction_keys.py",
        old="            state.sessions.taken_over(txn, state.awake_s)  #",
        new="            pass  #",
        tests=(
            KEYED_BEGINS + "test_k7_a_transaction_whose_holder_went_before_its_begin_had_landed_ends_after_the_grace",
        ),
        why_tests=ALONE,
    ),
    Mutant(
        name="repeated-begin-is-of-nobody",
        rule="a begin that is repeated at a successor makes its transaction its client's",
        section="§9",
        file="coordinator_v5/naming/transaction_keys.py",
        old="                self._state.sessions.opened(txn, session, connection)\n            if txn.session is",
        new="                pass\n            if txn.session is",
        tests=(REPEATED,),
        why_tests=ALONE,
    ),
    Mutant(
        name="repeated-begin-unclaimed",
        rule="a begin that is repeated at a successor shows that its client is there",
        section="§9",
        file="coordinator_v5/naming/transaction_keys.py",
        old="            if txn.session is session:\n                self._state.sessions.claimed(txn, connection)\n",
        new="",
        tests=(REPEATED,),
        why_tests=ALONE,
    ),
    Mutant(
        name="key-not-deleted-and-said-to-be",
        rule="the deletion of a key that was overtaken looks again (K4)",
        section="§9",
        file="coordinator_v5/naming/transaction_keys.py",
        old="        result = await store.commit(commit)\n        if result.succeeded:\n            return deleted",
        new="        result = await store.commit(commit)\n        if result.revision:\n            return deleted",
        tests=(f"{KEYS}test_k4_a_key_is_deleted_though_its_holder_begins_another_transaction_just_then",),
        why_tests=ALONE,
    ),
    Mutant(
        name="same-begin-from-memory",
        rule="the same begin again is looked up, whatever is remembered of its key",
        section="§9",
        file="coordinator_v5/naming/transaction_keys.py",
        old="        return holder.state if holder.state.record.begins < asked.number else None\n",
        new="        return holder.state if holder.state.record.begins <= asked.number else None\n",
        tests=(KEYED_BEGINS + "test_the_same_begin_again_behind_the_end_of_its_transaction_is_told_that",),
        why_tests=ALONE,
    ),
    Mutant(
        name="slower-connect-stays-with-its-epoch",
        rule="of two clients that connect at once the slower one reads the epoch anew (K3)",
        section="§9",
        file="txnclient/transactions/transaction_keys.py",
        old='                _log.debug("another client was first: %s", error)\n                self._connect = None\n',
        new='                _log.debug("another client was first: %s", error)\n',
        tests=(
            "tests/test_transaction_keys.py::"
            "test_k3_of_clients_that_connect_at_once_each_becomes_the_holder_and_the_last_one_stays_it",
        ),
        why_tests=ALONE,
    ),
    Mutant(
        name="given-up-begin-served",
        rule="what a begin has made that was given up is not the client's next transaction",
        section="§9",
        file="txnclient/transactions/transaction_keys.py",
        old="            if not (resumed and ok.joined):\n                return txn\n",
        new="            if txn:\n                return txn\n",
        tests=("tests/test_transaction_keys.py::test_what_was_begun_and_given_up_is_not_the_next_transaction",),
        why_tests=ALONE,
    ),
    Mutant(
        name="expired-keeps-the-key-busy",
        rule="a transaction whose time is up keeps no client with a key from the next one",
        section="§9",
        file="txnclient/transactions/transaction_keys.py",
        old="        if latest is None or latest.expires_at <= self._session.clock.monotonic():\n",
        new="        if latest is None:\n",
        tests=(
            "tests/test_transaction_keys.py::"
            "test_a_transaction_whose_time_is_up_keeps_no_client_with_a_key_from_the_next_one",
        ),
        why_tests=ALONE,
    ),
    Mutant(
        name="refused-begins-of-a-key-stay-open",
        rule="a begin of a key that the store refuses takes no room from others",
        section="§9",
        file="coordinator_v5/naming/transaction_keys.py",
        old="            answer = error\n            txn.tc.remove(txn)\n",
        new="            answer = error\n",
        tests=(f"{KEYS}test_begins_of_a_key_that_the_store_refuses_take_no_room_from_others",),
        why_tests=ALONE,
    ),
)
