"""Decides from load samples when to split or merge a topic's segments automatically (PIP-483). Pure.

    owners ── `/load/<segment>`, where it has changed by a quarter ──► controller ── `observe`, `decide` ──► one change

Splits are fast, merges are slow: the first sample above a threshold causes a split, but a pair must be cold for
`merge_cooldown_s` before it is merged. A topic has at most one change at a time. After every layout change, requested
or automatic, splits wait `split_cooldown_s` and merges `merge_cooldown_s`. The gap between the two thresholds prevents
a new split of merged segments. Defaults are PIP-483's; autoscale is on unless a topic's policy says "off".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Final, NamedTuple

from segments.layout.topology import Topology
from txnwire.errors import InvalidArgument

OFF: Final = "off"
MAX_THRESHOLD: Final = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The policy of one topic. Rates are incoming, per segment and second. `min_segments`: None means the number at
    creation, so that a topic created wide ahead of its load is not merged while it idles."""

    split_messages_per_s: float = 10_000
    split_bytes_per_s: float = 50_000_000
    merge_messages_per_s: float = 1_000
    merge_bytes_per_s: float = 5_000_000
    split_cooldown_s: float = 60
    merge_cooldown_s: float = 300
    min_segments: float | None = None
    max_segments: float = 64


DEFAULTS: Final = Thresholds()
_NAMES: Final = tuple(field.name for field in fields(Thresholds))
_MAY_BE_ZERO: Final = ("merge_messages_per_s", "merge_bytes_per_s", "split_cooldown_s", "merge_cooldown_s")


def parse_thresholds(policy: Any) -> Thresholds | None:
    """Parse a topic's policy `autoscale`: None if it is "off"; thresholds it does not name have their defaults.
    Raises `InvalidArgument` that names the fault."""
    if policy is None:
        return DEFAULTS
    if policy == OFF:
        return None
    if not isinstance(policy, Mapping):
        raise InvalidArgument(f'policy autoscale: expected "off" or an object of numbers, found {policy!r}')
    for name, value in policy.items():
        if name not in _NAMES:
            raise InvalidArgument(f"policy autoscale: unknown threshold {name!r}, expected some of {', '.join(_NAMES)}")
        if (
            type(value) not in (int, float)
            or not 0 <= value <= MAX_THRESHOLD
            or (value == 0 and name not in _MAY_BE_ZERO)
        ):
            wanted = "zero or a positive number" if name in _MAY_BE_ZERO else "a positive number"
            raise InvalidArgument(
                f"policy autoscale: {name}: expected {wanted}, found {value!r}; at most {MAX_THRESHOLD:g}"
            )
    thresholds = Thresholds(**policy)
    _check(thresholds)
    return thresholds


def _check(thresholds: Thresholds) -> None:
    if thresholds.min_segments is not None and thresholds.min_segments > thresholds.max_segments:
        raise InvalidArgument(
            f"policy autoscale: min_segments {thresholds.min_segments} is above max_segments {thresholds.max_segments}"
        )
    for what in ("messages_per_s", "bytes_per_s"):
        split, merge = getattr(thresholds, f"split_{what}"), getattr(thresholds, f"merge_{what}")
        if merge * 2 > split:
            raise InvalidArgument(
                f"policy autoscale: merge_{what} {merge} is above half of split_{what} {split}: two segments just "
                "below it would be merged into one that is split at once"
            )


class SegmentLoad(NamedTuple):
    """The incoming rate of one segment."""

    messages_per_s: float
    bytes_per_s: float


class Split(NamedTuple):
    """A decision: split the segment with this id in the middle of its range."""

    segment: int
    reason: str


class Merge(NamedTuple):
    """A decision: merge these two neighbours."""

    lower: int
    upper: int
    reason: str


@dataclass(frozen=True, slots=True)
class Watched:
    """The controller's memory of a topic between two checks. `changed_s`: when it first saw the present layout;
    `cold_since_s`: id of each active segment with a load below both merge thresholds → since when. Times are of one
    monotonic clock."""

    epoch: int
    changed_s: float
    cold_since_s: Mapping[int, float]


def observe(
    before: Watched | None, topology: Topology, loads: Mapping[int, SegmentLoad], thresholds: Thresholds, now_s: float
) -> Watched:
    """The state after one look at a topic. `loads`: known loads of active segments, by id. A new controller treats the
    layout as new, so that its predecessor's last change gets its cooldown."""
    known = {} if before is None else before.cold_since_s
    cold = {
        entry.id: known.get(entry.id, now_s)
        for entry in topology.active
        if entry.id in loads and _is_cold(loads[entry.id], thresholds)
    }
    unchanged = before is not None and before.epoch == topology.epoch
    return Watched(topology.epoch, before.changed_s if before is not None and unchanged else now_s, cold)


def decide(
    watched: Watched, topology: Topology, loads: Mapping[int, SegmentLoad], thresholds: Thresholds, now_s: float
) -> Split | Merge | None:
    """The one change that is due, if any; None while another change of the topic is under way. One hot segment
    prevents every merge in its topic: load moves."""
    if topology.record.changes or topology.deleting:
        return None
    if (hottest := _hottest(topology, loads, thresholds)) is None:
        return _merge(watched, topology, loads, thresholds, now_s)
    if len(topology.active) >= thresholds.max_segments or now_s - watched.changed_s < thresholds.split_cooldown_s:
        return None
    load = loads[hottest]
    above = f"above {thresholds.split_messages_per_s:g} and {thresholds.split_bytes_per_s:g}"
    return Split(hottest, f"{load.messages_per_s:.0f} messages/s, {load.bytes_per_s:.0f} bytes/s: {above}")


def _hottest(topology: Topology, loads: Mapping[int, SegmentLoad], thresholds: Thresholds) -> int | None:
    """The id of the segment furthest above a split threshold, except segments of a single hash."""
    found, heat = None, 1.0
    for entry in topology.active:
        load = loads.get(entry.id)
        if load is None or entry.lo == entry.hi:
            continue
        how = max(
            load.messages_per_s / thresholds.split_messages_per_s, load.bytes_per_s / thresholds.split_bytes_per_s
        )
        if how > heat:
            found, heat = entry.id, how
    return found


def _is_cold(load: SegmentLoad, thresholds: Thresholds) -> bool:
    return load.messages_per_s < thresholds.merge_messages_per_s and load.bytes_per_s < thresholds.merge_bytes_per_s


def _merge(
    watched: Watched, topology: Topology, loads: Mapping[int, SegmentLoad], thresholds: Thresholds, now_s: float
) -> Merge | None:
    """Picks the coldest pair of neighbours that have both been cold for long enough."""
    least = topology.record.created_segments if thresholds.min_segments is None else thresholds.min_segments
    if len(topology.active) <= least or now_s - watched.changed_s < thresholds.merge_cooldown_s:
        return None

    def long_cold(segment: int) -> bool:
        since_s = watched.cold_since_s.get(segment)
        return since_s is not None and now_s - since_s >= thresholds.merge_cooldown_s

    pairs = [
        (loads[lower.id].messages_per_s + loads[upper.id].messages_per_s, lower.id, upper.id)
        for lower, upper in pairwise(topology.active)
        if long_cold(lower.id) and long_cold(upper.id)
    ]
    if not pairs:
        return None
    messages, lower_id, upper_id = min(pairs)
    return Merge(
        lower_id,
        upper_id,
        f"{messages:.0f} messages/s in both, each below {thresholds.merge_messages_per_s:g} for "
        f"{thresholds.merge_cooldown_s:g} s",
    )
