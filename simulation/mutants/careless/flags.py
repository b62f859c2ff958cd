"""Break the three flags of errors: a client may obey them without looking further."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

OBEYED = "tests/txnclient/test_obeyed_flags.py::"
SELDOM = "a seed with clients that obey the flags shows it only where a segment moves amid a transaction"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="not-allowed-asks-for-nothing",
        rule="an ack of what is somebody else's now asks for an abort of its transaction",
        section="§6",
        file="txnwire/errors.py",
        old=(
            "    code = pb.ERROR_CODE_NOT_ALLOWED\n"
            "    grpc_status = grpc.StatusCode.FAILED_PRECONDITION\n"
            "    requires_abort = True\n"
        ),
        new="    code = pb.ERROR_CODE_NOT_ALLOWED\n    grpc_status = grpc.StatusCode.FAILED_PRECONDITION\n",
        tests=(f"{OBEYED}test_an_ack_that_is_not_allowed_any_more_asks_for_an_abort_and_the_work_is_done_once",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="ended-transaction-asks-for-nothing",
        rule="a commit behind the deadline asks for an abort, which is ok",
        section="§6",
        file="txnwire/errors.py",
        old="    requires_abort = True\n\n\nclass TxnTimedOut",
        new="    requires_abort = False\n\n\nclass TxnTimedOut",
        tests=(f"{OBEYED}test_a_commit_behind_the_deadline_asks_for_an_abort_which_is_ok",),
        why_tests=SELDOM,
    ),
)
