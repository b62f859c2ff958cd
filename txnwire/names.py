"""Names of topics, segments, subscriptions, producers and brokers, with their validation.

Source: DESIGN §3; the scheme `segment://` and its `<lo>-<hi>-<id>` descriptor are PIP-471's, "Scalable topics".
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from txnwire.errors import InvalidArgument

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_DESCRIPTOR = re.compile(r"([0-9a-f]{4})-([0-9a-f]{4})-(0|[1-9][0-9]{0,18})\Z")

TOPIC_SCHEME = "topic://"
SEGMENT_SCHEME = "segment://"

MAX_TXN_NAME_BYTES = 512
"""As UTF-8; percent-encoding at most triples it, so the key stays small."""

MAX_TRANSACTION_KEY_BYTES = 512

MAX_CLIENT_NAME_BYTES = 4096

MAX_NOTE_BYTES = 256
"""As UTF-8. Each name is kept with its note for a month or longer."""


def validate_name(name: str, *, part: str) -> str:
    """Return `name` if it is a legal name, else raise `InvalidArgument` that says which `part` is wrong and why."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidArgument(
            f"{part} {name!r} is not a legal name: expected a letter or digit, then up to 127 letters, digits, "
            "dots, underscores or hyphens"
        )
    return name


def validate_txn_name(name: str) -> str:
    """Return `name` if it can name a transaction: free text, e.g. `job-7/42`. Raises `InvalidArgument`."""
    return _validate_free_text(name, "transaction name", MAX_TXN_NAME_BYTES, "job-7/42")


def namespace_of(txn_name: str) -> str:
    """The part of a transaction name before the first `/`; empty for a name without one."""
    namespace, slash, _ = txn_name.partition("/")
    return namespace if slash else ""


def validate_note(note: str) -> str:
    """Return `note` if it is a legal note of a commit: free text, kept with its outcome. Raises `InvalidArgument`."""
    return _validate_free_text(note, "note", MAX_NOTE_BYTES, "rows=1000")


def validate_transaction_key(key: str) -> str:
    """Return `key` if it can be a transaction key: free text without `&` (003). Raises `InvalidArgument`."""
    _validate_free_text(key, "transaction key", MAX_TRANSACTION_KEY_BYTES, "nightly-job")
    if "&" in key:
        raise InvalidArgument(f"the transaction key {key!r} contains '&', which parts the owner from the key: use none")
    return key


def validate_client_name(name: str) -> str:
    """Return `name` if a client can go by it in a server's log: free text, also empty. Raises `InvalidArgument`."""
    return name if name == "" else _validate_free_text(name, "client name", MAX_CLIENT_NAME_BYTES, "billing")


def _validate_free_text(text: str, what: str, most_bytes: int, example: str) -> str:
    if not isinstance(text, str):
        raise InvalidArgument(f"a {what} is text, not {type(text).__name__}")
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the {what} {text!r} is not valid Unicode: {error}") from error
    if not 0 < length <= most_bytes:
        raise InvalidArgument(f"a {what} of {length} bytes: expected 1 to {most_bytes}, as UTF-8, e.g. {example}")
    return text


class TopicName(NamedTuple):
    """`topic://tenant/namespace/name`; `path` is the form used inside etcd keys, without the scheme."""

    tenant: str
    namespace: str
    name: str

    @property
    def path(self) -> str:
        return f"{self.tenant}/{self.namespace}/{self.name}"

    def __str__(self) -> str:
        return TOPIC_SCHEME + self.path

    @staticmethod
    def parse(text: str) -> TopicName:
        """Parse `topic://tenant/namespace/name`; raises `InvalidArgument` naming the wrong part."""
        return _parse_topic(text)

    @staticmethod
    def from_path(path: str) -> TopicName:
        return _parse_topic(TOPIC_SCHEME + path)


@lru_cache(maxsize=4096)
def _parse_topic(text: str) -> TopicName:
    if not isinstance(text, str) or not text.startswith(TOPIC_SCHEME):
        raise InvalidArgument(f"topic {text!r}: expected topic://tenant/namespace/name{_full_form(text)}")
    parts = text[len(TOPIC_SCHEME) :].split("/")
    if len(parts) != 3:
        meant = _full_form(text[len(TOPIC_SCHEME) :])
        raise InvalidArgument(
            f"topic {text!r} has {len(parts)} part{'s' * (len(parts) != 1)}: expected topic://tenant/namespace/name{meant}"
        )
    for part, value in zip(("tenant", "namespace", "topic name"), parts, strict=True):
        validate_name(value, part=f"{part} of {text!r}:")
    return TopicName(*parts)


def _full_form(text: object) -> str:
    """Suggests a full topic name, as text for an error, to a user who wrote `orders` or left out the scheme."""
    parts = text.split("/") if isinstance(text, str) else []
    if len(parts) not in (1, 3) or not all(_NAME.match(part) for part in parts):
        return ""
    path = "/".join(parts) if len(parts) == 3 else f"public/default/{parts[0]}"
    return f", such as {TOPIC_SCHEME}{path}"


class SegmentName(NamedTuple):
    """`segment://tenant/namespace/name/<lo>-<hi>-<id>`: inclusive 16-bit hash range, then an id unique in its topic.

    Code passes a segment's name as its `path` (`tenant/namespace/name/0000-7fff-3`), the form in etcd keys.
    """

    topic: TopicName
    lo: int
    hi: int
    segment_id: int

    @property
    def descriptor(self) -> str:
        return f"{self.lo:04x}-{self.hi:04x}-{self.segment_id}"

    @property
    def path(self) -> str:
        return f"{self.topic.path}/{self.descriptor}"

    def __str__(self) -> str:
        return SEGMENT_SCHEME + self.path

    @staticmethod
    def parse(text: str) -> SegmentName:
        """Parse `segment://…` ; raises `InvalidArgument` naming the wrong part."""
        return _parse_segment(text)

    @staticmethod
    def from_path(path: str) -> SegmentName:
        return _parse_segment(SEGMENT_SCHEME + path)


@lru_cache(maxsize=16384)
def _parse_segment(text: str) -> SegmentName:
    if not isinstance(text, str) or not text.startswith(SEGMENT_SCHEME):
        raise InvalidArgument(f"segment {text!r}: expected segment://tenant/namespace/name/<lo>-<hi>-<id>")
    topic_path, _, descriptor = text[len(SEGMENT_SCHEME) :].rpartition("/")
    if topic_path.count("/") != 2:  # the topic parser's message would name a topic that the caller never gave
        raise InvalidArgument(f"segment {text!r}: expected segment://tenant/namespace/name/<lo>-<hi>-<id>")
    topic = _parse_topic(TOPIC_SCHEME + topic_path)
    match = _DESCRIPTOR.match(descriptor)
    if match is None:
        raise InvalidArgument(f"segment {text!r}: descriptor {descriptor!r} is not <lo>-<hi>-<id>, as in 0000-7fff-3")
    lo, hi = int(match[1], 16), int(match[2], 16)
    if lo > hi:
        raise InvalidArgument(f"segment {text!r}: its hash range is empty, {match[1]} is above {match[2]}")
    return SegmentName(topic, lo, hi, int(match[3]))
