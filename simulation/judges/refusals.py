"""Names the reason why a conditional write was refused, from the failed compares and the intended puts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from txnstore import keys
from txnstore.records import ABORTED, COMMITTED, OPEN, Header, decode
from txnstore.store import Commit, Compare, KeyValue

Look = Callable[[bytes], KeyValue | None]

_BY_KEYS: Final = (
    (keys.TXN_OP, keys.TXN, "op refused: its transaction was decided"),
    (keys.TXN_OP, keys.OWNER, "op of a former owner refused"),
    (keys.TXN_OP, keys.TXN_OP, "op repeated that had landed"),
    (keys.TXN_BY_DEADLINE, keys.TXN, "deadline key refused: decided before"),
    (keys.TXN_BY_DEADLINE, keys.TC, "deadline key of a former coordinator refused"),
    (keys.TXN_SEQ, keys.TC, "id block or mark of a former coordinator refused"),
    (keys.TXN_SEQ, keys.TXN_SEQ, "id block or mark lost to a former sending"),
    (keys.TXN_OUTCOME, keys.TXN_OP, "collection waited for an op"),
    (keys.TXN_OUTCOME, keys.TXN_NAME, "collection lost to a change of the name"),
    (keys.CURSOR, keys.OWNER, "cursor write of a former owner refused"),
    (keys.SEGMENT_STATE, keys.OWNER, "watermark or aborted record of a former owner refused"),
    (keys.LEDGER, keys.OWNER, "ledger list of a former owner refused"),
    (keys.TOPIC, keys.TOPIC, "change of a topic lost to another one"),
    (keys.TOPIC, keys.LEDGER, "change of a layout refused: a seal had changed"),
    (keys.TOPIC, keys.LEADER, "change of a layout by a former controller refused"),
    (keys.ASSIGNMENT, keys.LEADER, "assignment of a former controller refused"),
    (keys.OWNER, keys.OWNER, "segment taken by another one first"),
    (keys.TC, keys.TC, "coordinator id taken by another one first"),
    (keys.TXN_KEY, keys.TXN_KEY, "connect with a key lost to another one"),
)  # fmt: skip
"""(intended put, what had changed, the branch)"""

REFUSALS: Final = (
    *(branch for _, _, branch in _BY_KEYS),
    "begin repeated that had landed",
    "begin of a former coordinator refused",
    "begin of a name lost to another one",
    "begin under a key that had changed hands",
    "commit lost to the deadline",
    "deadline lost to the commit",
    "commit lost to the next holder of its key",
    "end repeated that had landed",
    "end lost to another end",
    "end by a former coordinator refused",
    "clean-up of a former owner refused",
)  # fmt: skip


def refusal(commit: Commit, failing: Sequence[Compare], look: Look) -> str | None:
    """The branch it stands for, or None. `failing`: its compares that do not hold."""
    for put in commit.puts:
        if put.key.startswith(keys.TXN):
            return _header_refused(decode(Header, put.value, key=put.key), put.key, failing, look)
    for prefix, changed, branch in _BY_KEYS:
        if any(put.key.startswith(prefix) for put in commit.puts) and _on(failing, changed):
            return branch
    if any(delete.key.startswith(keys.TXN_OP) for delete in commit.deletes) and _on(failing, keys.OWNER):
        return "clean-up of a former owner refused"
    return None


def _on(failing: Sequence[Compare], prefix: bytes) -> bool:
    """▲ A repeated create of a topic is not rare: every client does that."""
    creates = prefix == keys.TOPIC
    return any(compare.key.startswith(prefix) and (compare.value or not creates) for compare in failing)


def _header_refused(put: Header, key: bytes, failing: Sequence[Compare], look: Look) -> str | None:
    found = look(key)
    live = None if found is None else decode(Header, found.value, key=key)
    if put.state == OPEN:
        if live is not None and live.attempt == put.attempt:
            return "begin repeated that had landed"
        if _on(failing, keys.TC):
            return "begin of a former coordinator refused"
        if _on(failing, keys.TXN_NAME):
            return "begin of a name lost to another one"
        return "begin under a key that had changed hands" if _on(failing, keys.TXN_KEY) else None
    if live is None or live.state == OPEN:
        return "end by a former coordinator refused" if _on(failing, keys.TC) else None
    if live == put:
        return "end repeated that had landed"
    if put.state == COMMITTED and live.reason == "timeout":
        return "commit lost to the deadline"
    if put.state == COMMITTED and live.reason == "fenced":
        return "commit lost to the next holder of its key"
    if put.state == ABORTED and put.reason == "timeout" and live.state == COMMITTED:
        return "deadline lost to the commit"
    return "end lost to another end"
