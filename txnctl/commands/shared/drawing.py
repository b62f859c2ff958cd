"""Draws a topic's segments as lines: parents first, children below them, one line each. Pure.

Draws an old sealed segment only if something waits for it, unless all are requested: a topic that was split and merged
a thousand times has a thousand of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from txnctl.commands.shared.output import cell, counted

Segment = Mapping[str, Any]

BAR_WIDTH: Final = 16
HASHES: Final = 0x10000
WAITING_SHOWN: Final = 3


class Drawn(NamedTuple):
    """One segment and its place in the drawing."""

    branch: str
    segment: Segment


class Column(NamedTuple):
    title: str
    of: Callable[[Segment], str]
    right: bool = False


def draw(answer: Mapping[str, Any], *, everything: bool = False) -> Iterator[str]:
    """Unfolded lines for the answer of `topics.describe`."""
    segments: Sequence[Segment] = answer["segments"]
    sealed = [one for one in segments if one["state"] != "ACTIVE"]
    yield (
        f"{answer['topic']}  layout epoch {answer['epoch']}: {len(segments) - len(sealed)} active"
        f"{f', {len(sealed)} sealed' if sealed else ''}"
    )
    if answer["policies"]:
        yield "policies: " + ", ".join(f"{name} {cell(value)}" for name, value in answer["policies"].items())
    for change in answer["changes"]:
        yield f"under way: {change['kind']} of {' and '.join(change['segments'])}, for {cell(change['for_s'])} s"
    of_now = {parent for one in segments if one["state"] == "ACTIVE" for parent in (one["id"], *one["parents"])}
    shown = [one for one in segments if everything or one["id"] in of_now or _is_waited_for(one)]
    yield ""
    yield from _lines(list(_tree(shown)))
    if hidden := len(segments) - len(shown):
        entries = sum(one["entries"] or 0 for one in segments) - sum(one["entries"] or 0 for one in shown)
        yield ""
        yield (
            f"{counted(hidden, 'older segment', 'older segments')} more, sealed, with {cell(entries)} entries that no "
            "subscription needs; --all shows them"
        )


def _is_waited_for(segment: Segment) -> bool:
    return bool(segment["pinned_by"] or segment["error"] or any(segment["backlog"].values()))


def _tree(shown: Sequence[Segment]) -> Iterator[Drawn]:
    by_id = {one["id"]: one for one in shown}

    def children(of: Segment) -> list[Segment]:
        # A merged segment is drawn once, below the first of its drawn parents.
        found = [by_id[one] for one in of["children"] if one in by_id]
        return [one for one in found if min(parent for parent in one["parents"] if parent in by_id) == of["id"]]

    def below(segment: Segment, indent: str) -> Iterator[Drawn]:
        ones = children(segment)
        for at, one in enumerate(ones):
            last = at == len(ones) - 1
            yield Drawn(indent + ("└─ " if last else "├─ "), one)
            yield from below(one, indent + ("   " if last else "│  "))

    for segment in shown:
        if not any(parent in by_id for parent in segment["parents"]):
            yield Drawn("", segment)
            yield from below(segment, "")


def _lines(drawn: Sequence[Drawn]) -> Iterator[str]:
    names = [one.branch + one.segment["descriptor"] for one in drawn]
    wide = max((len(name) for name in names), default=0)
    columns = [column for column in _COLUMNS if any(column.of(one.segment) for one in drawn)]
    cells = [[column.of(one.segment) for column in columns] for one in drawn]
    widths = [
        max(len(column.title), *(len(line[at]) for line in cells)) if cells else 0 for at, column in enumerate(columns)
    ]
    titles = _joined([column.title for column in columns], columns, widths)
    yield f"{'segment':<{wide}}  {'0000':<{BAR_WIDTH - 4}}ffff  {titles}".rstrip()
    for one, name, line in zip(drawn, names, cells, strict=True):
        yield f"{name:<{wide}}  {_bar(one.segment)}  {_joined(line, columns, widths)}".rstrip()
        if one.segment["error"]:
            yield f"{'':<{wide}}  {one.segment['error']}"
        for pin in one.segment["pinned_by"]:
            held = f"held at {pin['position']} by {pin['txn']} of {pin['owner']}"
            yield f"{'':<{wide}}  {held}, {counted(pin['entries_behind'], 'entry', 'entries')} behind it"


def _joined(line: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    return "  ".join(
        f"{text:>{width}}" if column.right else f"{text:<{width}}"
        for text, column, width in zip(line, columns, widths, strict=True)
    )


def _bar(segment: Segment) -> str:
    lo, hi = int(segment["lo"]), int(segment["hi"])
    first, last = lo * BAR_WIDTH // HASHES, max(1, -(-(hi + 1) * BAR_WIDTH // HASHES))
    return "·" * first + "█" * (last - first) + "·" * (BAR_WIDTH - last)


def _from(segment: Segment) -> str:
    return "+".join(map(str, segment["parents"])) if len(segment["parents"]) > 1 else ""


def _rate(segment: Segment) -> str:
    load = segment["load"]
    if load is None or segment["state"] != "ACTIVE":
        return ""
    return f"{load['messages_per_s']:,.0f}/s {load['bytes_per_s'] / 1000:,.0f} kB/s"


def _waiting(segment: Segment) -> str:
    behind = sorted(((count, name) for name, count in segment["backlog"].items() if count), key=lambda one: -one[0])
    shown = ", ".join(f"{name} {cell(count)}" for count, name in behind[:WAITING_SHOWN])
    return shown + (f" and {len(behind) - WAITING_SHOWN} more" if len(behind) > WAITING_SHOWN else "")


_COLUMNS: Final = (
    Column("state", lambda one: str(one["state"]).lower()),
    Column("merged", _from),
    Column("owner", lambda one: str(one["owner"] or "nobody")),
    Column("entries", lambda one: "" if one["entries"] is None else str(cell(one["entries"])), right=True),
    Column("end", lambda one: str(one["last_confirmed"] or "")),
    Column("readable", lambda one: str(one["max_read_position"] or "")),
    Column("comes in", _rate, right=True),
    Column("backlog", _waiting),
)
