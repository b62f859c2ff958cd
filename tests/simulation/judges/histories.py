"""Histories that are clean, and one with each anomaly planted, for the checker's self-test."""

from __future__ import annotations

from simulation.judges.history import (
    Ack,
    Operation,
)
from tests.simulation import planted_promises
from tests.simulation.judges.history_steps import acked, moved, on_sub, op, over, poll, sent

A, B, C = sent("a", 0), sent("b", 1), sent("c", 2)


ALL = poll((0, "a"), (1, "b"), (2, "c"))


WROTE = [op(sends=[A]), op(sends=[B]), op(sends=[C])]


SPLIT = [op(sends=[moved("a", 1, 0), moved("b", 1, 7)]), op(sends=[moved("c", 4, 0)])]


"""A key's segment 1 was split; the key goes on in segment 4, whose entries count from 0."""


READ_SPLIT = op("r", polls=[over((1, 0, "a"), (1, 7, "b"), (4, 0, "c"))])


LEFT_OPEN = [
    *WROTE,
    op("s", "failed", polls=[poll((1, "b"), subscription="sub", at=2.0)], acks=acked("b", 2.1), left=True),
]


CLEAN: dict[str, list[Operation]] = {
    "a child is read once its parent is acked, in one transaction and outside": [
        *SPLIT,
        op("s", polls=[on_sub((1, 0, "a"), (1, 7, "b"), at=2.0)], acks=acked("a", 2.1)),
        op("s", "unknown", acks=acked("b", 2.2)),
        op("t", polls=[on_sub((4, 0, "c"), at=3.0)]),
        READ_SPLIT,
    ],
    "the drain acks what it reads": [
        *SPLIT,
        op("s", "failed", polls=[on_sub((1, 0, "a"), at=2.0)], acks=acked("a", 2.1)),
        op("d", polls=[on_sub((1, 0, "a"), (1, 7, "b"), at=20.0), on_sub((4, 0, "c"), at=21.0)], name="drain"),
        READ_SPLIT,
    ],
    "another one's abort starts a consumer over, whose own transaction holds what it has acked": [
        *WROTE,
        op("s", "failed", polls=[poll((0, "a"), subscription="sub", at=2.0)], acks=acked("a", 2.1)),
        op(
            "s",
            "failed",
            polls=[
                poll((1, "b"), subscription="sub", at=3.0),
                poll((0, "a"), (2, "c"), subscription="sub", at=4.0, assignment=1),
            ],
            acks=[*acked("b", 3.1), *acked("ac", 4.1)],
        ),
        op("d", polls=[poll((0, "a"), (1, "b"), (2, "c"), subscription="sub")], name="drain"),
    ],
    "a parent out of a stale buffer, while another consumer reads its child": [
        *SPLIT,
        op("t", "failed", polls=[on_sub((1, 0, "a"), at=2.0, assigned_at=1.0)], acks=acked("a", 2.1)),
        op("s", polls=[on_sub((1, 0, "a"), (1, 7, "b"), at=4.0)], acks=acked("ab", 4.1)),
        op("s", polls=[on_sub((4, 0, "c"), at=5.0)]),
        op("t", polls=[on_sub((1, 7, "b"), at=6.0, assigned_at=1.0)]),
        READ_SPLIT,
    ],
    "a transaction on both sides of a seal": [
        op(sends=[moved("a", 1, 0), moved("c", 4, 0)]),
        op("q", "failed", [moved("x", 1, 1), moved("y", 4, 1)]),
        op("r", polls=[over((1, 0, "a")), over((4, 0, "c"))]),
    ],
    "acked in vain out of a stale buffer, and by a transaction that committed": [
        op(sends=[A]),
        op("t", polls=[poll((0, "a"), subscription="sub")], acks=[Ack(subscription="sub", value="a", at=9.0)], at=9.1),
        op(
            "s",
            "failed",
            polls=[poll((0, "a"), subscription="sub")],
            acks=[Ack(subscription="sub", value="a", at=11.0)],
            at=11.1,
        ),
    ],
    "nothing happened": [],
    "two writers of a named transaction of whom one counts": [
        op(sends=[A], shared="job T"),
        op("q", "failed", [sent("b")], reports=["aborted"], shared="job T"),
        op("r", polls=[poll((0, "a"))]),
    ],
    "what a writer acked is passed over while its transaction is open, and comes again when it is not counted": [
        *WROTE,
        op(
            "t",
            "failed",
            polls=[poll((0, "a"), (1, "b"), subscription="sub")],
            acks=[Ack(subscription="sub", value="b", at=9.1)],
            shared="job T",
        ),
        op("t", polls=[poll((0, "a"), (2, "c"), at=9.5, assignment=1, subscription="sub")]),
        op("t", polls=[poll((1, "b"), at=12.0, assignment=2, assigned_at=11.0, subscription="sub")]),
        op("s", polls=[ALL]),
    ],
    "what a process acked in a transaction that it left open is passed over by it, and comes again": [
        *LEFT_OPEN,
        op("s", polls=[poll((0, "a"), (2, "c"), subscription="sub", at=3.0, assignment=1)]),
        op("s", polls=[poll((1, "b"), subscription="sub", at=5.0, assignment=2)]),
        op("r", polls=[ALL]),
    ],
    "everything read once": [*WROTE, op("r", polls=[ALL])],
    "an aborted value is not read": [op(sends=[A]), op("q", "failed", [B]), op("r", polls=[poll((0, "a"))])],
    "an unknown one was read": [op(sends=[A], outcome="unknown"), op("r", polls=[poll((0, "a"))])],
    "an unknown one was not read": [op(sends=[A], outcome="unknown"), op("r", polls=[poll()])],
    "a gap where aborted entries are": [op(sends=[A]), op("q", sends=[C]), op("r", polls=[poll((0, "a"), (2, "c"))])],
    "going back after a new assignment": [*WROTE, op("r", polls=[ALL]), op("r", polls=[poll((0, "a"), assignment=1)])],
    "two readers at different places": [*WROTE, op("r", polls=[ALL]), op("s", polls=[poll((1, "b"))])],
    "an acked value is passed over": [
        *WROTE,
        op("s", polls=[poll((1, "b"), subscription="sub")], acks=[Ack(subscription="sub", value="b", at=9.1)]),
        op("r", polls=[poll((0, "a"), (2, "c"), subscription="sub", assignment=1)]),
        op("t", polls=[ALL]),
    ],
    "an ack of a failed transaction is delivered again": [
        op(sends=[A]),
        op(
            "s", "failed", polls=[poll((0, "a"), subscription="sub")], acks=[Ack(subscription="sub", value="a", at=9.5)]
        ),
        op("s", polls=[poll((0, "a"), subscription="sub", assignment=1, at=11.0)]),
    ],
    "what was acked in a transaction that failed comes first, to itself or to another consumer": [
        *WROTE,
        op("s", "failed", polls=[poll((0, "a"), subscription="sub", at=2.0)], acks=acked("a", 2.1), told=3.0),
        op("s", polls=[poll((0, "a"), (1, "b"), subscription="sub", at=4.0, assignment=1)]),
        op("s", "failed", acks=acked("b", 4.1), told=5.0),
        op("t", polls=[poll((1, "b"), subscription="sub", at=6.0)]),
        op("s", polls=[poll((1, "b"), (2, "c"), subscription="sub", at=7.0, assignment=2)]),
        op("r", polls=[ALL]),
    ],
    "read on while the transaction was open, or before its end was known": [
        *WROTE,
        op(
            "s",
            "failed",
            polls=[poll((0, "a"), subscription="sub", at=2.0), poll((1, "b"), subscription="sub", at=2.5)],
            acks=acked("a", 2.1),
            told=3.0,
        ),
        op("s", polls=[poll((0, "a"), (1, "b"), (2, "c"), subscription="sub", at=4.0, assignment=1)]),
        op("s", "failed", acks=acked("a", 4.1)),
        op("s", polls=[poll((2, "c"), subscription="sub", at=5.0, assignment=2)]),
        op("s", polls=[poll((0, "a"), subscription="sub", at=6.0, assignment=3)]),
        op("r", polls=[ALL]),
    ],
    "a plain ack was forgotten, the consumer goes on after what it holds": [
        *WROTE,
        op("s", polls=[poll((0, "a"), (1, "b"), subscription="sub")]),
        op("s", "unknown", acks=[Ack(subscription="sub", value="a", at=9.1)]),
        op("s", polls=[poll((0, "a"), (2, "c"), subscription="sub")]),
    ],
    "a chain of reads": [
        op(sends=[A]),
        op("q", polls=[poll((0, "a"))], sends=[sent("x", 0, "other")]),
        op("r", polls=[poll((0, "x"), key="other")]),
    ],
    "a snapshot without what was pending in it": [
        op(sends=[A]),
        op("q", sends=[sent("b", 1)]),
        op("p", sends=[sent("c", 2)]),
        op("r", polls=[poll((0, "a"), (2, "c"), snapshot="1")]),
        op("s", polls=[poll((0, "a"), (1, "b"), (2, "c"))]),
    ],
    "a snapshot before and one after": [
        op(sends=[A, sent("x", 0, "other")]),
        op("r", polls=[poll(snapshot="1"), poll(key="other", snapshot="1")]),
        op("r", polls=[poll((0, "a"), snapshot="2"), poll((0, "x"), key="other", snapshot="2")]),
    ],
}


PLANTED: dict[str, tuple[list[str], list[Operation]]] = {
    "over a split: lost at the end of the parent": (
        ["lost write", "poll skip", "unseen"],
        [
            op(sends=[moved("a", 1, 0)]),
            op(sends=[moved("b", 1, 7)]),
            op(sends=[moved("c", 4, 0)]),
            op("r", polls=[over((1, 0, "a"), (4, 0, "c"))]),
        ],
    ),
    "over a split: doubled, sent again to the child": (
        ["duplicate"],
        [*SPLIT, op("r", polls=[over((1, 0, "a"), (1, 7, "b"), (4, 0, "c"), (4, 1, "b"))])],
    ),
    "over a split: the child before the parent in one reading": (
        ["non-monotonic poll"],
        [*SPLIT, op("r", polls=[over((4, 0, "c"), (1, 0, "a"), (1, 7, "b"))])],
    ),
    "over a split: a reader passes over the end of the parent": (
        ["poll skip"],
        [*SPLIT, READ_SPLIT, op("t", polls=[over((1, 0, "a")), over((4, 0, "c"))])],
    ),
    "over a split: sent to the child first": (
        ["non-monotonic send"],
        [op(sends=[moved("c", 4, 0)]), op(sends=[moved("b", 1, 7)]), op("r", polls=[over((1, 7, "b"), (4, 0, "c"))])],
    ),
    "over a split: torn between parent and child": (
        ["lost write", "poll skip", "torn transaction", "unseen"],
        [
            op(sends=[moved("a", 1, 0)]),
            op(sends=[moved("b", 1, 7), moved("c", 4, 0)]),
            op("r", polls=[over((1, 0, "a"), (4, 0, "c"))]),
        ],
    ),
    "over a split: a child is given to a subscription before its parent is acked": (
        ["poll skip"],
        [
            *SPLIT,
            op("s", polls=[on_sub((1, 0, "a"), (1, 7, "b"), at=2.0)], acks=acked("a", 2.1)),
            op("t", polls=[on_sub((4, 0, "c"), at=3.0)]),
            op("s", acks=acked("b", 3.5)),
            READ_SPLIT,
        ],
    ),
    "over a split: a child is given out while the parent's ack is in a transaction that failed": (
        ["poll skip"],
        [
            *SPLIT,
            op("s", polls=[on_sub((1, 0, "a"), (1, 7, "b"), at=2.0)], acks=acked("a", 2.1)),
            op("s", "failed", acks=acked("b", 2.2)),
            op("t", polls=[on_sub((4, 0, "c"), at=3.0)]),
            op("s", polls=[on_sub((1, 7, "b"), at=4.0, assignment=1)], acks=acked("b", 4.1)),
            READ_SPLIT,
        ],
    ),
    "over a split: a drained parent comes again": (
        ["non-monotonic poll"],
        [
            *SPLIT,
            op("s", "unknown", polls=[on_sub((1, 0, "a"), (1, 7, "b"), at=2.0)], acks=acked("ab", 2.1)),
            op("t", polls=[on_sub((4, 0, "c"), at=3.0)]),
            op("t", polls=[on_sub((1, 7, "b"), at=5.0, assigned_at=4.0)]),
            READ_SPLIT,
        ],
    ),
    "over a split: a subscription never gets the end of the parent": (
        ["unseen"],
        [
            *SPLIT,
            op("s", polls=[on_sub((1, 0, "a"), at=2.0)], acks=acked("a", 2.1)),
            READ_SPLIT,
            op("d", polls=[on_sub((4, 0, "c"), at=20.0)], acks=acked("b", 2.1), outcome="unknown"),
        ],
    ),
    "inconsistent positions": (
        ["inconsistent positions"],
        [
            op("q", "unknown", [sent("a")]),
            op("q", "unknown", [sent("b")]),
            op("r", polls=[poll((0, "a"))]),
            op("s", polls=[poll((0, "b"))]),
        ],
    ),
    "inconsistent positions, told to the sender": (
        ["inconsistent positions"],
        [op(sends=[sent("a")]), op("q", "failed", [sent("x", 0)]), op("r", polls=[poll((0, "a"))])],
    ),
    "duplicate": (["duplicate"], [op(sends=[sent("a")]), op("r", polls=[poll((0, "a"), (1, "a"))])]),
    "duplicate, the sender was told another place": (
        ["duplicate"],
        [op(sends=[A]), op("r", polls=[poll((3, "a"))])],
    ),
    "aborted read": (["aborted read"], [op("q", "failed", [A]), op("r", polls=[poll((0, "a"))])]),
    "lost write": (
        ["lost write", "unseen"],
        [op(sends=[A]), op("q", sends=[B]), op("r", polls=[poll((1, "b"))])],
    ),
    "torn transaction, lost": (
        ["lost write", "poll skip", "torn transaction", "unseen"],
        [op(sends=[A, B, C]), op("r", polls=[poll((0, "a"), (2, "c"))])],
    ),
    "torn transaction, of unknown outcome": (
        ["torn transaction", "unseen"],
        [op("q", "unknown", [sent("a"), sent("x", key="other")]), op("r", polls=[poll((0, "a"))])],
    ),
    "torn transaction, between two writers": (
        ["torn transaction", "unseen"],
        [
            op(sends=[A], shared="job T"),
            op("q", sends=[sent("x", key="other")], shared="job T"),
            op("r", polls=[poll((0, "a"))]),
        ],
    ),
    "aborted read of a writer that does not count": (
        ["aborted read"],
        [
            op(sends=[A], shared="job T"),
            op("q", "failed", [B], shared="job T"),
            op("r", polls=[poll((0, "a"), (1, "b"))]),
        ],
    ),
    "two outcomes: two lists of writers were told": (
        ["two outcomes"],
        [op(sends=[A], reports=["committed", "aborted"], shared="job T"), op("r", polls=[poll((0, "a"))])],
    ),
    "unseen": (["unseen"], [op(sends=[A]), op("r", polls=[poll()])]),
    "poll skip in one poll": (["poll skip"], [*WROTE, op("r", polls=[poll((0, "a"), (2, "c"))]), op("s", polls=[ALL])]),
    "poll skip of what the operation acks only later": (
        ["poll skip"],
        [
            *WROTE,
            op(
                "s",
                "failed",
                polls=[
                    poll((0, "a"), (2, "c"), subscription="sub", at=2.0),
                    poll((1, "b"), subscription="sub", at=3.0, assignment=1),
                ],
                acks=acked("b", 3.1),
            ),
            op("d", polls=[poll((0, "a"), (1, "b"), (2, "c"), subscription="sub")], name="drain"),
        ],
    ),
    "poll skip between polls": (
        ["poll skip"],
        [*WROTE, op("r", polls=[poll((0, "a"))]), op("r", polls=[poll((2, "c"))]), op("s", polls=[ALL])],
    ),
    "poll skip by another than who left it open": (
        ["poll skip"],
        [
            *LEFT_OPEN,
            op("t", polls=[poll((0, "a"), (2, "c"), subscription="sub", at=3.0)]),
            op("s", polls=[poll((1, "b"), subscription="sub", at=5.0, assignment=2)]),
            op("r", polls=[ALL]),
        ],
    ),
    "poll skip before it was acked by who left it open": (
        ["poll skip"],
        [
            *LEFT_OPEN,
            op("s", polls=[poll((0, "a"), (2, "c"), subscription="sub", at=1.9, assignment=1)]),
            op("s", polls=[poll((1, "b"), subscription="sub", at=5.0, assignment=2)]),
            op("r", polls=[ALL]),
        ],
    ),
    "non-monotonic poll in one poll": (
        ["non-monotonic poll"],
        [*WROTE, op("r", polls=[poll((1, "b"), (0, "a"))]), op("s", polls=[ALL])],
    ),
    "non-monotonic poll between polls": (
        ["non-monotonic poll"],
        [*WROTE, op("r", polls=[poll((0, "a"), (1, "b"))]), op("r", polls=[poll((1, "b"), (2, "c"))])],
    ),
    "non-monotonic poll, the predecessor's pending ack was not awaited": (
        ["non-monotonic poll"],
        [
            *WROTE,
            op(
                "s",
                "failed",
                polls=[poll((0, "a"), subscription="sub")],
                acks=[Ack(subscription="sub", value="a", at=9.0)],
            ),
            op("t", polls=[poll((1, "b"), (2, "c"), subscription="sub", at=10.0)]),
            op("t", polls=[poll((0, "a"), subscription="sub", at=11.0, assignment=1)]),
        ],
    ),
    "read past its own failed ack": (
        ["read past its own failed ack"],
        [
            *WROTE,
            op("s", "failed", polls=[poll((0, "a"), subscription="sub", at=2.0)], acks=acked("a", 2.1), told=3.0),
            op("s", polls=[poll((1, "b"), subscription="sub", at=4.0, assignment=1)]),
            op("s", polls=[poll((0, "a"), (1, "b"), (2, "c"), subscription="sub", at=5.0, assignment=2)]),
            op("r", polls=[ALL]),
        ],
    ),
    "non-monotonic send": (
        ["non-monotonic send"],
        [op(sends=[B]), op(sends=[A]), op("r", polls=[poll((0, "a"), (1, "b"))])],
    ),
    "non-monotonic send, seen by a reader only": (
        ["non-monotonic send"],
        [op(sends=[sent("b")]), op(sends=[sent("a")]), op("r", polls=[poll((0, "a"), (1, "b"))])],
    ),
    "precommitted read": (["precommitted read"], [op(sends=[A], polls=[poll((0, "a"))])]),
    "G1c": (
        ["G1c"],
        [
            op("p", sends=[A], polls=[poll((0, "x"), key="other")]),
            op("q", sends=[sent("x", 0, "other")], polls=[poll((0, "a"))]),
        ],
    ),
    "two outcomes, ok and aborted": (["two outcomes"], [op(reports=["aborted"])]),
    "two outcomes, failed and committed": (["two outcomes"], [op(outcome="failed", reports=["committed"])]),
    "two outcomes, both told": (["two outcomes"], [op(outcome="unknown", reports=["committed", "aborted"])]),
    "ack leak, never delivered again": (
        ["ack leak"],
        [
            op(sends=[A]),
            op(
                "s",
                "failed",
                polls=[poll((0, "a"), subscription="sub")],
                acks=[Ack(subscription="sub", value="a", at=9.5)],
            ),
        ],
    ),
    "ack leak, delivered after the commit": (
        ["ack leak"],
        [
            op(sends=[A]),
            op(
                "s",
                polls=[poll((0, "a"), subscription="sub")],
                acks=[Ack(subscription="sub", value="a", at=9.5)],
                at=10.0,
            ),
            op("t", polls=[poll((0, "a"), subscription="sub", assignment=1, assigned_at=12.0, at=13.0)]),
        ],
    ),
    "ack leak, acked twice": (
        ["ack leak"],
        [
            op(sends=[A]),
            op("s", polls=[poll((0, "a"), subscription="sub")], acks=[Ack(subscription="sub", value="a", at=9.5)]),
            op("t", polls=[poll((0, "a"), subscription="sub")], acks=[Ack(subscription="sub", value="a", at=9.6)]),
        ],
    ),
    "torn snapshot between two writers": (
        ["torn snapshot"],
        [
            op(sends=[A], shared="job T"),
            op("q", sends=[sent("x", 0, "other")], shared="job T"),
            op("r", polls=[poll((0, "a"), snapshot="1"), poll(key="other", snapshot="1")]),
            op("s", polls=[poll((0, "a")), poll((0, "x"), key="other")]),
        ],
    ),
    "a snapshot that goes back": (
        ["non-monotonic poll"],
        [op(sends=[A, sent("b", 1)]), op("r", polls=[poll((1, "b"), (0, "a"), snapshot="1")])],
    ),
    "torn snapshot": (
        ["torn snapshot"],
        [
            op(sends=[A, sent("x", 0, "other")]),
            op("r", polls=[poll((0, "a"), snapshot="1"), poll(key="other", snapshot="1")]),
            op("s", polls=[poll((0, "a")), poll((0, "x"), key="other")]),
        ],
    ),
}


CLEAN |= planted_promises.CLEAN


PLANTED |= planted_promises.PLANTED
