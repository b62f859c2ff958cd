"""Shares out coordinator ids evenly among coordinators, with few moves. Pure. Source: DESIGN §9.

All coordinators follow the same keys and compute the same shares: each free id has one taker, so coordinators never
compete for it, and one with more than its share gives up only as many as others lack. If a view lags, a compare
decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Share(NamedTuple):
    """`take`: free ids that this coordinator may take now. `give_up`: its ids that another one should have."""

    take: list[int]
    give_up: list[int]


def share(tcids: int, members: Sequence[str], held: Mapping[int, str], me: str) -> Share:
    """The share of `me` in ids 0 … `tcids` - 1, given `held` (id → coordinator) and `members`; empty if `me` is not a
    member.

    Every member ends up with `tcids // n` or one more; those that hold most get the one more, so that few ids move.
    """
    if me not in members:
        return Share([], [])
    counts = dict.fromkeys(sorted(members), 0)
    for tcid in range(tcids):
        holder = held.get(tcid)
        if holder in counts:
            counts[holder] += 1
    least, more = divmod(tcids, len(counts))
    in_order = sorted(counts, key=lambda member: (-counts[member], member))
    lacks = {member: least + (at < more) - counts[member] for at, member in enumerate(in_order)}
    wanted = {member: lack for member, lack in lacks.items() if lack > 0}
    free = [tcid for tcid in range(tcids) if tcid not in held]
    short = sum(wanted.values()) - len(free)
    mine = [tcid for tcid in range(tcids) if held.get(tcid) == me]
    return Share(_mine_of(free, wanted, me), mine[len(mine) - _to_give(lacks, in_order, short, me) :])


def _mine_of(free: Sequence[int], wanted: dict[str, int], me: str) -> list[int]:
    """The free ids for `me`: each goes to the member that lacks most."""
    found = []
    for tcid in free:
        taker = max(sorted(wanted), key=lambda member: wanted[member], default=None)
        if taker is None or not wanted[taker]:
            break
        wanted[taker] -= 1
        if taker == me:
            found.append(tcid)
    return found


def _to_give(lacks: Mapping[str, int], in_order: Sequence[str], short: int, me: str) -> int:
    """How many ids `me` gives up: all members together give up as many as are missing beyond the free ids."""
    for member in in_order:
        given = min(max(0, -lacks[member]), max(0, short))
        if member == me:
            return given
        short -= given
    return 0
