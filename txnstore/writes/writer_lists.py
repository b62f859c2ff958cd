"""Lists of writers in records. Pure.

    ["0000000000000007", "0000000000000100+2710"]     writer 7, and 0x2710 writers from 0x100 on

Short lists hold one writer per item, 16 hex digits each. Only a list longer than earlier versions take is written in
runs of consecutive writers: those versions cannot read runs. So the list of a Spark batch of very many tasks, whose
writers are consecutive, stays small.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from txnwire.errors import DataCorrupt, InvalidArgument

MAX_LISTED: Final = 20_000
"""Items of a list. A record of them, 19 bytes for a plain item and up to 25 for a run, stays well below etcd's 1.5 MiB
a request (a test writes one into a real etcd)."""

MAX_WRITERS: Final = 200_000
"""Writers of a commit. The wire, owners and coordinators hold them one by one."""


def pack(writers: Sequence[str]) -> list[str]:
    """The record's form of a list. `writers`: 16 hex digits each, distinct. Raises `InvalidArgument` for too many."""
    if len(writers) <= MAX_LISTED:
        return list(writers)
    if len(writers) > MAX_WRITERS:
        raise InvalidArgument(f"a commit lists {len(writers)} writers: a commit takes at most {MAX_WRITERS}")
    runs = _runs(sorted(int(writer, 16) for writer in writers))
    if len(runs) > MAX_LISTED:
        raise InvalidArgument(
            f"a commit lists {len(writers)} writers in {len(runs)} runs of ids that follow each other: at most "
            f"{MAX_LISTED} runs fit into its record"
        )
    return [f"{first:016x}" if count == 1 else f"{first:016x}+{count:x}" for first, count in runs]


def _runs(ordered: Iterable[int]) -> list[tuple[int, int]]:
    """(first, how many)."""
    found: list[tuple[int, int]] = []
    for writer in ordered:
        if found and found[-1][0] + found[-1][1] == writer:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((writer, 1))
    return found


def unpack(listed: Iterable[str]) -> tuple[str, ...]:
    """The writers of a record's list, 16 hex digits each. Raises `DataCorrupt` for an invalid list."""
    return tuple(f"{writer:016x}" for writer in numbers(listed))


def numbers(listed: Iterable[str]) -> list[int]:
    """As `unpack`, as numbers."""
    found: list[int] = []
    for item in listed:
        first, many = _run(item)
        if len(found) + many > MAX_WRITERS:
            raise DataCorrupt(f"a list of more than {MAX_WRITERS} writers")
        found.extend(range(first, first + many))
    return found


def holds(listed: Iterable[str], writer: int) -> bool:
    """Whether a record's list has this writer. Raises as `unpack`."""
    for item in listed:
        first, many = _run(item)
        if 0 <= writer - first < many:
            return True
    return False


def _run(item: str) -> tuple[int, int]:
    """(first, how many). ▲ One unreadable list fails only its own transaction: any other error would end the process
    that follows all decisions."""
    first, plus, count = item.partition("+")
    try:
        return int(first, 16), int(count, 16) if plus else 1
    except ValueError as error:
        raise DataCorrupt(f"{item!r} in a list of writers: expected hex digits, or a run of them") from error
