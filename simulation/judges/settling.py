"""Measures how long each kind of work goes on after everything has healed and clients have stopped."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from segments.layout.topology import ACTIVE
from txnctl.checking.picture import Picture
from txnstore.records import OPEN

LIMITS_S: Mapping[str, float] = {
    "open transactions": 35.0,
    "op records of decided transactions": 35.0,
    "headers to collect": 45.0,
    "segments without an owner": 20.0,
    "layout changes": 40.0,
    "deletions": 40.0,
    "pruning": 40.0,
    "draining: reading everything": 60.0,
    "draining: queue": 45.0,
    "draining: copies": 45.0,
    "draining: passing topic": 45.0,
    "draining: sought subscription": 80.0,
    "draining: acks of every kind": 45.0,
    "draining: large values": 45.0,
    "draining: dead letters": 45.0,
    "draining: stream from cut to cut": 45.0,
    "draining: hanging workers": 45.0,
    "draining: numbered items": 60.0,
}
"""Kind of work → how long after the clients' stop the last of it may be seen. A transaction may be open for 15 s, is
swept within 1.5 s, and its header is kept for another 5 s; a lease has 4 s."""


class Settling:
    """Call it with a picture now and then. `took_s`: how long each kind of work lasted, in seconds after the clients'
    stop, or after its first sight if later: segments go on following their load."""

    def __init__(self) -> None:
        self.took_s: dict[str, float] = dict.fromkeys(LIMITS_S, 0.0)
        self._first_s: dict[tuple[str, Hashable], float] = {}

    def look(self, after_s: float, picture: Picture) -> None:
        begun_s = after_s if self._first_s else 0.0  # the work in the first picture was there before
        for what, left in work_left(picture).items():
            for item in left:
                first_s = self._first_s.setdefault((what, item), begun_s)
                self.took_s[what] = max(self.took_s[what], after_s - first_s)
        self._first_s.setdefault(("", ""), 0.0)

    def drained(self, what: str, took_s: float) -> None:
        self.took_s[f"draining: {what}"] = took_s

    def findings(self) -> list[str]:
        return [
            f"{what}: the last one {took_s:.1f} s after everything healed, {LIMITS_S[what]:g} s are allowed"
            for what, took_s in self.took_s.items()
            if took_s > LIMITS_S[what]
        ]


def work_left(picture: Picture) -> Mapping[str, Sequence[Hashable]]:
    """Kind of work → what of it remains."""
    headers, topics = picture.headers, picture.topics.values()
    alive = [topology for topology in topics if not topology.record.deleting_ms]
    active = [topology.paths[one.id] for topology in alive for one in topology.segments.values() if one.state == ACTIVE]
    return {
        "open transactions": [txn_id for txn_id, header in headers.items() if header.state == OPEN],
        "op records of decided transactions": [op for op in picture.ops if headers[op[0]].state != OPEN],
        "headers to collect": list(headers),
        "segments without an owner": [path for path in active if path not in picture.owners],
        "layout changes": [change.id for topology in topics for change in topology.record.changes],
        "deletions": [path for path, topology in picture.topics.items() if topology.record.deleting_ms]
        + [key for key, record in picture.subscriptions.items() if record.deleting_ms],
        "pruning": [(path, one) for path, topology in picture.topics.items() for one in topology.record.pruning],
    }
