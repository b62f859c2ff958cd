"""Creating topics: names, policies, and the one conditional write with its verdict (DESIGN §8). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from segments.topology import create_record
from txnstore import keys
from txnstore.records import TopicRecord, decode, encode
from txnstore.store import Commit, CommitResult, Compare, Put, Read, absent
from txnwire.errors import InvalidArgument, TopicExists
from txnwire.names import TopicName

RETENTION_MS: Final = "retention_ms"
RETENTION_BYTES: Final = "retention_bytes"
TRIM_UNDRAINED: Final = "trim_undrained"
AUTOSCALE: Final = "autoscale"

_LIMITS = (RETENTION_MS, RETENTION_BYTES)
_POLICIES = (*_LIMITS, TRIM_UNDRAINED, AUTOSCALE)


def parse_policies(text: str) -> dict[str, Any]:
    """Policies from one JSON object; an empty text means none, a null value leaves its policy out.

    `retention_ms`, `retention_bytes`: positive integers. `trim_undrained`: whether retention takes also what a
    subscription has not consumed. `autoscale`: "off" or an object of numeric thresholds. Raises
    `InvalidArgument` naming the policy and what was expected.
    """
    try:
        policies = msgspec.json.decode(text) if text else {}
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"policies are not JSON: {error}") from error
    if not isinstance(policies, dict):
        raise InvalidArgument(f"policies: expected one JSON object, found {text[:80]!r}")
    given = {name: value for name, value in sorted(policies.items()) if value is not None}
    for name, value in given.items():
        _check_policy(name, value)
    return given


def _check_policy(name: str, value: object) -> None:
    if name in _LIMITS:
        if type(value) is not int or value <= 0:
            raise InvalidArgument(f"policy {name}: expected a positive integer, found {value!r}")
    elif name == TRIM_UNDRAINED:
        if type(value) is not bool:
            raise InvalidArgument(f"policy {name}: expected true or false, found {value!r}")
    elif name == AUTOSCALE:
        if value != "off" and not _are_thresholds(value):
            raise InvalidArgument(f'policy autoscale: expected "off" or an object of numbers, found {value!r}')
    else:
        raise InvalidArgument(f"unknown policy {name!r}: expected some of {', '.join(_POLICIES)}")


def _are_thresholds(value: object) -> bool:
    return isinstance(value, dict) and all(type(threshold) in (int, float) for threshold in value.values())


def plan_create(
    topic: TopicName, segments: int, policies: Mapping[str, Any], *, still_held: Compare, created_ms: int
) -> Commit:
    """Put the topic's record if there is none. Raises `InvalidArgument` for an impossible number of segments."""
    key = keys.topic(topic.path)
    record = create_record(segments, policies=policies, created_ms=created_ms)
    return Commit(
        compares=(still_held, absent(key)),
        puts=(Put(key, encode(record)),),
        else_reads=(Read(key), Read(still_held.key)),
    )


def read_created(topic: TopicName, segments: int, policies: Mapping[str, Any], result: CommitResult) -> bool:
    """Whether the topic now stands as asked for: made by this write, or there before with the same shape.

    False: it is not there and was not made (the election was lost). Raises `TopicExists` for another shape. "The same
    shape" is the same number of segments at creation, and equal values of the policies that are named in the request;
    so it stays the same over splits and merges.
    """
    if result.succeeded:
        return True
    if not result.reads[0]:
        return False
    found = decode(TopicRecord, result.reads[0][0].value, key=result.reads[0][0].key)
    named = {name: found.policies.get(name) for name in policies}
    if found.created_segments != segments or named != dict(policies):
        raise TopicExists(
            f"{topic} exists with another shape: it was created with {found.created_segments} segments and policies "
            f"{found.policies}, asked for were {segments} and {dict(policies)}"
        )
    return True
