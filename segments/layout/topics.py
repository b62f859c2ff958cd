"""Plans the creation and change of topics: policies, conditional writes and their verdicts (DESIGN §8). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from segments.layout.autoscale import parse_thresholds
from segments.layout.topology import create_record
from txnstore import keys
from txnstore.records import TopicRecord, decode, encode
from txnstore.store import Commit, CommitVerdict, Compare, KeyValue, Put, Read, absent, unchanged_since
from txnstore.writes.deletion_transitions import segment_id_floor
from txnwire.errors import InvalidArgument, TopicExists, TopicNotFound
from txnwire.names import TopicName

RETENTION_MS: Final = "retention_ms"
RETENTION_BYTES: Final = "retention_bytes"
TRIM_UNDRAINED: Final = "trim_undrained"
AUTOSCALE: Final = "autoscale"

MAX_LIMIT: Final = 1 << 53
"""JSON readers may round larger numbers."""

_LIMITS = (RETENTION_MS, RETENTION_BYTES)
_POLICIES = (*_LIMITS, TRIM_UNDRAINED, AUTOSCALE)


def parse_policies(text: str) -> dict[str, Any]:
    """Parse policies from one JSON object; an empty text means none, and a null value omits its policy.

    `retention_ms`, `retention_bytes`: positive integers. `trim_undrained`: whether retention also trims messages that a
    subscription has not acked. `autoscale`: "off" or an object of thresholds (`segments.layout.autoscale`). Raises
    `InvalidArgument` that names the policy and what was expected.
    """
    return {name: value for name, value in parse_changes(text).items() if value is not None}


def parse_changes(text: str) -> dict[str, Any]:
    """As `parse_policies`, but keeps null values, which remove a policy."""
    try:
        policies = msgspec.json.decode(text) if text else {}
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"policies are not JSON: {error}") from error
    if not isinstance(policies, dict):
        raise InvalidArgument(f"policies: expected one JSON object, found {text[:80]!r}")
    for name, value in sorted(policies.items()):
        if name not in _POLICIES:
            raise InvalidArgument(f"unknown policy {name!r}: expected some of {', '.join(_POLICIES)}")
        if value is not None:
            _check_policy(name, value)
    return dict(sorted(policies.items()))


def _check_policy(name: str, value: object) -> None:
    if name in _LIMITS:
        if type(value) is not int or not 0 < value <= MAX_LIMIT:
            raise InvalidArgument(f"policy {name}: expected a positive integer, found {value!r}; at most {MAX_LIMIT}")
    elif name == TRIM_UNDRAINED:
        if type(value) is not bool:
            raise InvalidArgument(f"policy {name}: expected true or false, found {value!r}")
    else:
        parse_thresholds(value)


def plan_create(
    topic: TopicName,
    segments: int,
    policies: Mapping[str, Any],
    ids: KeyValue | None,
    *,
    still_held: Compare,
    created_ms: int,
) -> Commit:
    """Put the topic's record if there is none. ▲ Its segment ids begin after those of deleted topics (`ids`: the record
    of `keys.SEGMENT_IDS`, compared as unchanged). Raises `InvalidArgument` for an impossible number of segments."""
    key = keys.topic(topic.path)
    record = create_record(segments, policies=policies, created_ms=created_ms, first_segment_id=segment_id_floor(ids))
    return Commit(
        compares=(still_held, absent(key), unchanged_since(keys.SEGMENT_IDS, 0 if ids is None else ids.mod_revision)),
        puts=(Put(key, encode(record)),),
        else_reads=(Read(key), Read(still_held.key)),
    )


class Created(Enum):
    """The outcome of a creation. `DELETING`: an earlier topic of the name is still being deleted. `AGAIN`: a topic was
    deleted meanwhile; plan again with the present ids. `NOT_LEADING`: this process is no longer the controller."""

    DONE = "done"
    DELETING = "deleting"
    AGAIN = "again"
    NOT_LEADING = "not leading"


def read_created(
    topic: TopicName, segments: int, policies: Mapping[str, Any], commit: Commit, result: CommitVerdict
) -> Created:
    """Interpret the verdict. `DONE`: this write created the topic, or it existed before with the same shape.

    Raises `TopicExists` for another shape. "The same shape" is the same number of segments at creation, and equal
    values of the policies that the request names; splits and merges do not change it.
    """
    if result.succeeded:
        return Created.DONE
    record, holder = result.reads
    if not record:
        leads = bool(holder) and holder[0].create_revision == commit.compares[0].value
        return Created.AGAIN if leads else Created.NOT_LEADING
    found = decode(TopicRecord, record[0].value, key=record[0].key)
    if found.deleting_ms:
        return Created.DELETING
    named = {name: found.policies.get(name) for name in policies}
    if found.created_segments != segments or named != dict(policies):
        raise TopicExists(
            f"{topic} exists with another shape: it was created with {found.created_segments} segments and policies "
            f"{found.policies}, asked for were {segments} and {dict(policies)}"
        )
    return Created.DONE


def plan_policies(record: KeyValue, changes: Mapping[str, Any], *, still_held: Compare) -> Commit | None:
    """Change the policies that `changes` names; a value of None removes one. Returns None if nothing changes. Raises
    `TopicNotFound` for a topic that is being deleted, `DataCorrupt`."""
    topic = decode(TopicRecord, record.value, key=record.key)
    if topic.deleting_ms:
        raise TopicNotFound(f"{record.key.decode()} is being deleted")
    policies = {name: value for name, value in {**topic.policies, **changes}.items() if value is not None}
    if policies == topic.policies:
        return None
    return Commit(
        compares=(still_held, unchanged_since(record.key, record.mod_revision)),
        puts=(Put(record.key, encode(msgspec.structs.replace(topic, policies=policies))),),
        else_reads=(Read(still_held.key), Read(record.key)),
    )
