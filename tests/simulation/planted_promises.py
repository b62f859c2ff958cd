"""Histories of careless callers, for the checker's self-test (X5): clean ones, and those that break each rule."""

from __future__ import annotations

from simulation.judges.history import Call, Ended, Operation, Outcome, Poll, ReadObservation, Send


def call(what: str, values: str, ended: Ended) -> Call:
    """`values`: each of one letter."""
    return Call(what=what, values=list(values), ended=ended)


def txn(values: str, *calls: Call, outcome: Outcome = "ok", acks: bool = False) -> Operation:
    sends = [] if acks else [Send(key="k", value=value) for value in values]
    return Operation(process="p", invoked=1.0, completed=1.5, outcome=outcome, sends=sends, calls=list(calls))


def producer(*calls: Call) -> Operation:
    return Operation(process="p/1", invoked=1.0, completed=1.5, outcome="ok", name="producer", calls=list(calls))


def plain(value: str, outcome: Outcome = "unknown") -> Operation:
    return Operation(
        process="p/1", invoked=1.1, completed=1.2, outcome=outcome, sends=[Send(key="k", value=value)], name="send"
    )


def read(values: str) -> Operation:
    reads = {"k": [ReadObservation((1, number), value) for number, value in enumerate(values)]}
    return Operation(process="r", invoked=9.0, completed=9.5, outcome="ok", polls=[Poll(reads=reads, at=9.0)])


CLEAN: dict[str, list[Operation]] = {
    "a send of many was cut, and its transaction failed": [
        txn("abc", call("send_many", "abc", "cut"), outcome="failed"),
        read(""),
    ],
    "a send of many raised, and nobody knows of its transaction": [
        txn("abc", call("send_many", "abc", "raised"), outcome="unknown"),
        read(""),
    ],
    "all calls returned, and all is there": [
        txn("ab", call("send", "a", "returned"), call("send", "b", "returned")),
        read("ab"),
    ],
    "a process was killed amid a call, and its transaction was committed by another one": [
        txn("a", call("send", "a", ""), outcome="unknown"),
        read("a"),
    ],
    "acks need not be seen": [txn("a", call("ack", "a", "returned"), acks=True), read("")],
    "accepted and stored, whatever the caller was told": [
        producer(call("accept", "a", "returned"), call("flush", "", "cut"), call("close", "", "returned")),
        plain("a"),
        read("a"),
    ],
    "accepted and lost, and close said so": [
        producer(call("accept", "a", "returned"), call("close", "", "raised")),
        plain("a"),
        read(""),
    ],
    "accepted and lost, and a later send said so": [
        producer(call("accept", "a", "returned"), call("accept", "b", "raised"), call("close", "", "returned")),
        plain("a"),
        plain("b"),
        read(""),
    ],
    "the close was cut, and nobody has called the producer since": [
        producer(call("accept", "a", "returned"), call("close", "", "cut")),
        plain("a"),
        read(""),
    ],
    "refused at the call": [
        producer(call("accept", "a", "raised"), call("close", "", "returned")),
        plain("a"),
        read(""),
    ],
}

PLANTED: dict[str, tuple[list[str], list[Operation]]] = {
    "broken promise: a send of many that was cut is committed in part": (
        ["broken promise", "torn transaction", "unseen"],
        [txn("abc", call("send_many", "abc", "cut")), read("ab")],
    ),
    "broken promise: a send of many whose iterator raised is committed, and of unknown outcome": (
        ["broken promise", "torn transaction", "unseen"],
        [txn("abc", call("send_many", "abc", "raised"), outcome="unknown"), read("a")],
    ),
    "broken promise: a cancelled ack is committed": (
        ["broken promise"],
        [txn("a", call("ack", "a", "cut"), acks=True), read("")],
    ),
    "broken promise: a send waited for room when its transaction committed": (
        ["broken promise", "torn transaction", "unseen"],
        [txn("ab", call("send", "a", "returned"), call("send", "b", "raised")), read("a")],
    ),
    "broken promise: a send returned in a transaction that committed, and is missing": (
        ["broken promise", "torn transaction", "unseen"],
        [txn("ab", call("send", "a", "returned"), call("send", "b", "returned")), read("a")],
    ),
    "unheard loss: a block ends as if all were stored": (
        ["unheard loss"],
        [producer(call("accept", "a", "returned"), call("close", "", "returned")), plain("a"), read("")],
    ),
    "unheard loss: a flush returned, and the close behind it raised of something else": (
        ["unheard loss"],
        [
            producer(
                call("accept", "a", "returned"),
                call("flush", "", "returned"),
                call("accept", "b", "returned"),
                call("close", "", "raised"),
            ),
            plain("a"),
            plain("b"),
            read(""),
        ],
    ),
    "unheard loss: lost behind an error that was heard": (
        ["unheard loss"],
        [
            producer(
                call("accept", "a", "returned"),
                call("flush", "", "raised"),
                call("accept", "b", "returned"),
                call("close", "", "returned"),
            ),
            plain("a"),
            plain("b"),
            read(""),
        ],
    ),
    "unheard loss: the flush was cut, and the close says nothing": (
        ["unheard loss"],
        [
            producer(
                call("accept", "a", "returned"), call("flush", "", "cut"), call("close", "", "returned")
            ),
            plain("a"),
            read(""),
        ],
    ),
}  # fmt: skip
