"""Names of topics and segments (DESIGN §3): what is legal, what is refused, and which part the refusal names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.txnwire import strategies
from txnwire.errors import InvalidArgument
from txnwire.names import SegmentName, TopicName, validate_client_name, validate_name


@pytest.mark.parametrize("name", ["a", "0", "orders", "Orders-2.v_1", "a" * 128])
def test_legal_names_pass_through(name: str) -> None:
    assert validate_name(name, part="subscription") == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "-a", "_a", ".a", "a/b", "a b", "a\n", "a\0", "é", "a%2f", "a&b", "a" * 129, "٣", None, 7, b"a"],
)
def test_illegal_names_are_refused_with_the_part_they_are_for(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^producer .*is not a legal name"):
        validate_name(name, part="producer")


@given(strategies.topics)
def test_topic_text_and_path_round_trip(topic: TopicName) -> None:
    assert TopicName.parse(str(topic)) == topic
    assert TopicName.from_path(topic.path) == topic


@given(strategies.segments)
def test_segment_text_and_path_round_trip(segment: SegmentName) -> None:
    assert SegmentName.parse(str(segment)) == segment
    assert SegmentName.from_path(segment.path) == segment


def test_the_design_s_examples_parse() -> None:
    assert TopicName.parse("topic://public/default/orders") == ("public", "default", "orders")
    segment = SegmentName.parse("segment://tenant/namespace/name/0000-7fff-3")
    assert (segment.topic.path, segment.lo, segment.hi, segment.segment_id) == ("tenant/namespace/name", 0, 0x7FFF, 3)
    assert segment.path == "tenant/namespace/name/0000-7fff-3"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "expected topic://tenant/namespace/name"),
        ("public/default/orders", "expected topic://tenant/namespace/name"),
        ("orders", "expected topic://tenant/namespace/name, such as topic://public/default/orders$"),
        ("sales/eu/orders", "expected topic://tenant/namespace/name, such as topic://sales/eu/orders$"),
        (
            "topic://orders",
            "has 1 part: expected topic://tenant/namespace/name, such as topic://public/default/orders$",
        ),
        ("orders!", "expected topic://tenant/namespace/name$"),
        ("eu/orders", "expected topic://tenant/namespace/name$"),
        ("sales/eu/orders!", "expected topic://tenant/namespace/name$"),
        ("Topic://a/b/c", "expected topic://tenant/namespace/name"),
        ("persistent://a/b/c", "expected topic://tenant/namespace/name"),
        ("topic://a/b", "has 2 parts"),
        ("topic://a/b/c/d", "has 4 parts"),
        ("topic://a/b/c/", "has 4 parts"),
        ("topic:///b/c", "^tenant of"),
        ("topic://a/ /c", "^namespace of"),
        ("topic://a/b/c\n", "^topic name of"),
        ("topic://a/b/..", "^topic name of"),
        (None, "expected topic://tenant/namespace/name"),
    ],
)
def test_a_malformed_topic_is_refused_naming_the_part(text: str, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        TopicName.parse(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("topic://a/b/c", "expected segment://"),
        ("segment://a/b/c", "expected segment://"),
        ("segment://a/b/c/d/0000-ffff-1", "expected segment://"),
        ("segment://a/b/-c/0000-ffff-1", "^topic name of"),
        ("segment://a/b/c/0000-ffff", "descriptor '0000-ffff'"),
        ("segment://a/b/c/0000-FFFF-1", "descriptor '0000-FFFF-1'"),
        ("segment://a/b/c/000-ffff-1", "descriptor"),
        ("segment://a/b/c/0000-ffff-01", "descriptor"),
        ("segment://a/b/c/0000-ffff--1", "descriptor"),
        ("segment://a/b/c/0000-ffff-1\n", "descriptor"),
        ("segment://a/b/c/0000-ffff-" + "9" * 20, "descriptor"),
        ("segment://a/b/c/8000-7fff-1", "hash range is empty, 8000 is above 7fff"),
        (None, "expected segment://"),
    ],
)
def test_a_malformed_segment_is_refused_naming_the_part(text: str, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        SegmentName.parse(text)


def test_a_text_that_is_no_unicode_is_refused() -> None:
    assert validate_client_name("billing ü") == "billing ü"
    with pytest.raises(InvalidArgument, match="not valid Unicode"):
        validate_client_name("billing \ud800")


@given(st.text(max_size=60))
def test_no_text_whatever_gives_another_error(text: str) -> None:
    for parse in (TopicName.parse, TopicName.from_path, SegmentName.parse, SegmentName.from_path):
        try:
            parsed = parse(text)
        except InvalidArgument:
            continue
        assert text in (str(parsed), parsed.path)
