"""Number and digest of a write's rows: what they tell apart, and what does not count."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_txnstore.sink.content import NOTHING, Content, content_of, total
from txnwire.entry import Columns, OutgoingMessage

TOPIC, OTHER = "topic://public/default/a", "topic://public/default/b"

_texts = st.text(max_size=2)
_messages = st.builds(
    OutgoingMessage,
    st.binary(max_size=2),
    st.none() | st.binary(max_size=2),
    st.none() | st.dictionaries(_texts, _texts, max_size=2),
    st.none() | st.integers(-2, 2),
)
_rows = st.lists(st.tuples(st.sampled_from([TOPIC, OTHER]), _messages), max_size=6)


def of(*rows: tuple[str, OutgoingMessage]) -> Content:
    """Each row as a batch of its own."""
    return content_of([(topic, Columns.of([message])) for topic, message in rows])


def canonical(rows: list[tuple[str, OutgoingMessage]]) -> list[str]:
    return sorted(
        repr((topic, one.value, one.key, sorted((one.properties or {}).items()), one.event_time_ms))
        for topic, one in rows
    )


@given(_rows, _rows)
def test_two_writes_have_one_content_if_they_have_the_same_rows(
    one: list[tuple[str, OutgoingMessage]], other: list[tuple[str, OutgoingMessage]]
) -> None:
    assert (of(*one) == of(*other)) == (canonical(one) == canonical(other))


@given(_rows, st.randoms(use_true_random=False))
def test_neither_their_order_nor_their_division_counts(
    rows: list[tuple[str, OutgoingMessage]], chance: random.Random
) -> None:
    whole = of(*rows)
    chance.shuffle(rows)
    parts = [
        content_of([(topic, Columns.of([one for name, one in part if name == topic])) for topic in dict(part)])
        for first in range(0, len(rows), 3)
        if (part := rows[first : first + 3])
    ]
    assert total(parts) == whole


def test_rows_that_differ_in_one_field_or_by_which_field_it_is_differ() -> None:
    time = (1_700_000_000_000).to_bytes(8, "big")
    rows = [
        (TOPIC, OutgoingMessage(b"v")),
        (OTHER, OutgoingMessage(b"v")),
        (TOPIC, OutgoingMessage(b"w")),
        (TOPIC, OutgoingMessage(b"v", b"")),
        (TOPIC, OutgoingMessage(b"v", b"k")),
        (TOPIC, OutgoingMessage(b"", b"vk")),
        (TOPIC, OutgoingMessage(b"v", time)),
        (TOPIC, OutgoingMessage(b"v", None, None, 1_700_000_000_000)),
        (TOPIC, OutgoingMessage(b"v", None, {"k": ""})),
        (TOPIC, OutgoingMessage(b"v", None, {"": "k"})),
        (TOPIC, OutgoingMessage(b"v", None, {"k": "v"})),
        (TOPIC, OutgoingMessage(b"v", b"v", {"k": "v"})),
        (TOPIC, OutgoingMessage(b"v", None, {"k": "v", "v": "k"})),
    ]
    assert len({of(row) for row in rows}) == len(rows)
    assert of(rows[0], rows[0]) not in (of(rows[0]), NOTHING)


def test_a_digest_is_made_as_it_always_was() -> None:
    """▲ A batch that runs again after an upgrade is compared with what an earlier version has noted."""
    rows = [
        (TOPIC, OutgoingMessage(b"value", b"key", {"b": "2", "a": "1"}, 1_700_000_000_000)),
        (TOPIC, OutgoingMessage(b"value")),
    ]
    assert str(of(*rows)) == "rows=2 digest=6134c8283378d197"


@pytest.mark.parametrize("content", [NOTHING, Content(1, 2**64 - 1), Content(10**15, 7)])
def test_a_note_is_read_as_it_was_written(content: Content) -> None:
    assert Content.parse(str(content)) == content
    assert len(str(content)) <= 64
