"""The option `where`: what it says, which segments it leaves out, and what it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_txnstore.shared.condition import EVERYTHING, Condition, parse
from pyspark_txnstore.shared.options import SourceOptions
from tests.spark.log_world import World
from txnwire.errors import InvalidArgument
from txnwire.ids import TxnId, hash_key

TOPIC = "topic://public/shop/orders"
LOWER, UPPER, CHILD = (f"public/shop/orders/{name}" for name in ("0000-7fff-0", "8000-ffff-1", "0000-3fff-2"))


def test_a_condition_names_columns_with_values() -> None:
    assert parse(f"topic = '{TOPIC}'") == Condition(topics=frozenset([TOPIC]))
    assert parse(f"Segment IN ('segment://{LOWER}' , 'segment://{UPPER}') ") == Condition(
        segments=frozenset([f"segment://{LOWER}", f"segment://{UPPER}"])
    )
    assert parse("key='it''s' AND txn_id = '0003-0000000000000011'") == Condition(
        keys=frozenset([b"it's"]), txn_ids=frozenset([TxnId(3, 17)])
    )
    assert parse("txn_id in ('0003-0000000000000011', '0003-0000000000000012')") == Condition(
        txn_ids=frozenset([TxnId(3, 17), TxnId(3, 18)])
    )
    assert parse(f"topic in ('{TOPIC}', '{TOPIC}2')") == Condition(topics=frozenset([TOPIC, f"{TOPIC}2"]))
    assert parse("key in (X'00fF', 'and')") == Condition(keys=frozenset([b"\x00\xff", b"and"]))
    assert parse("key in ('a', 'b') and key in ('b', 'c')") == Condition(keys=frozenset([b"b"]))


@pytest.mark.parametrize(
    ("text", "lower", "upper"),
    [
        ("publish_time = '1970-01-01T00:00:01Z'", 1_000_000, 1_000_000),
        ("publish_time >= '1970-01-01T00:00:01Z' and publish_time < '1970-01-01T00:00:02Z'", 1_000_000, 1_999_999),
        ("publish_time > '1970-01-01T00:00:01Z' and publish_time <= '1970-01-01T00:00:02Z'", 1_000_001, 2_000_000),
        ("publish_time > '1970-01-01T01:00:01+01:00'", 1_000_001, None),
        ("publish_time >= '1970-01-01T00:00:03Z' and publish_time >= '1970-01-01 00:00:02Z'", 3_000_000, None),
    ],
)
def test_a_condition_on_publish_times_is_a_range(text: str, lower: int | None, upper: int | None) -> None:
    assert parse(text) == Condition(from_us=lower, through_us=upper)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a column"),
        ("value = 'a'", "no condition on 'value', only on topic, segment, key"),
        ("key > 'a'", "key >: expected = or in"),
        ("key is null", "expected a column"),
        ("key = a", "expected a value"),
        ("key = 'a", "expected a value"),
        ("key in ()", "expected a value"),
        ("key in ('a'", "in brackets"),
        ("key = 'a' or key = 'b'", "expected 'and' and another"),
        ("key = 'a' and", "expected a column"),
        ("topic = 'orders'", "expected topic://"),
        ("txn_id = 'x'", "transaction id"),
        ("topic = X'ff'", "topic: expected text"),
        ("publish_time >= 'yesterday'", "is no time, such as"),
        ("publish_time >= '2026-11-24T06:00:00'", "has no time zone: write"),
        ("publish_time in ('2026-11-24T06:00:00Z', '2026-11-25T06:00:00Z')", "expected a range"),
    ],
)
def test_anything_else_is_refused_with_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^option 'where': .*{message}"):
        SourceOptions.parse({"service.url": "txn://h:1", "topic": TOPIC, "where": text}, use="read")


@given(st.binary(max_size=4))
def test_a_key_is_looked_for_in_all_segments_that_could_ever_have_held_it(key: bytes) -> None:
    found = {path for path in (LOWER, UPPER, CHILD) if Condition(keys=frozenset([key])).may_hold_in(path)}
    hashed = hash_key(key)
    assert found == ({UPPER} if hashed > 0x7FFF else {LOWER, CHILD} if hashed <= 0x3FFF else {LOWER})


@given(st.lists(st.binary(max_size=4), max_size=3))
def test_several_keys_are_looked_for_where_any_of_them_could_be(keys: list[bytes]) -> None:
    """None in none: two conditions that no key meets."""
    each = [Condition(keys=frozenset([key])) for key in keys]
    for path in (LOWER, UPPER, CHILD):
        assert Condition(keys=frozenset(keys)).may_hold_in(path) == any(one.may_hold_in(path) for one in each)


@given(st.data())
def test_over_splits_and_merges_a_key_is_in_no_other_segment(data: st.DataObject) -> None:
    world = World(lambda n: data.draw(st.integers(0, n - 1)))
    key = data.draw(st.binary(max_size=4))
    where = Condition(keys=frozenset([key]))
    held: set[str] = set()
    for _ in range(10):
        (world.split, world.merge)[data.draw(st.integers(0, 1))]()
        active = [segment.name for segment in world.segments() if not segment.sealed]
        held |= {name.path for name in active if name.lo <= hash_key(key) <= name.hi}
    assert {segment.name.path for segment in world.segments() if where.may_hold_in(segment.name.path)} >= held


def test_segments_and_topics_that_are_not_named_are_left_out() -> None:
    assert EVERYTHING.may_hold_in(LOWER)
    assert [parse(f"segment = 'segment://{LOWER}'").may_hold_in(path) for path in (LOWER, UPPER)] == [True, False]
    assert [parse(f"topic = '{TOPIC}'").may_hold_in(path) for path in (LOWER, "a/b/c/0000-ffff-0")] == [True, False]


def test_a_compacted_read_takes_a_condition_on_keys_alone() -> None:
    options = {"service.url": "txn://h:1", "topic": TOPIC, "compacted": "true", "compactedPath": "/tmp"}
    assert SourceOptions.parse(options | {"where": "key = 'a'"}, use="read").where.keys == {b"a"}
    for text in (
        "key = 'a' and txn_id = '0000-0000000000000001'",
        "publish_time >= '2026-11-24T06:00:00Z'",
        f"topic = '{TOPIC}'",
    ):
        with pytest.raises(InvalidArgument, match="'where': a compacted read takes only a condition on key"):
            SourceOptions.parse(options | {"where": text}, use="read")
