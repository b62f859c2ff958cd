from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import txnclient
from txnclient.connection.address import parse_url
from txnclient.connection.topic_layout import TopicLayout, topic_of_segment
from txnclient.consuming.places.starts import isolation_to_wire, start_to_wire, topics_of
from txnwire.ids import MessageId, Position
from txnwire.proto import txn_pb2 as pb


def layout(*bounds: tuple[int, int], exists: bool = True) -> TopicLayout:
    wire = pb.Layout(topic="topic://a/b/c", exists=exists, epoch=3, revision=7)
    wire.segments.add(segment_id=99, lo=0, hi=0xFFFF, state="SEALED", path="a/b/c/0000-ffff-99", children=[0, 1])
    for number, (lo, hi) in enumerate(reversed(bounds)):
        wire.segments.add(
            segment_id=number,
            lo=lo,
            hi=hi,
            state="ACTIVE",
            path=f"a/b/c/{lo:04x}-{hi:04x}-{number}",
            owner="b1",
            owner_address="h:1",
            parents=[99],
        )
    return TopicLayout.from_wire(wire)


@given(st.lists(st.integers(1, 0xFFFF), unique=True, max_size=8), st.integers(0, 0xFFFF))
def test_every_hash_has_its_one_active_segment(cuts: list[int], key_hash: int) -> None:
    bounds = [0, *sorted(cuts), 0x10000]
    found = layout(*((lo, hi - 1) for lo, hi in itertools.pairwise(bounds))).segment_of_hash(key_hash)
    assert found.range[0] <= key_hash <= found.range[1]
    assert found.state == "ACTIVE"


def test_a_description_says_what_the_wire_said() -> None:
    described = layout((0, 0x7FFF), (0x8000, 0xFFFF))
    assert described.epoch == 3
    assert sorted(described.segments) == [0, 1, 99]
    info = described.segments[1]
    assert (info.name, info.range, info.parents) == ("segment://a/b/c/0000-7fff-1", (0, 0x7FFF), (99,))
    assert described.segments[99].children == (0, 1)
    assert described.segment_by_path(info.path) is info
    assert described.segment_by_path("a/b/c/0000-ffff-5") is None
    assert topic_of_segment(info.path) == "topic://a/b/c"


def test_every_segment_of_a_large_layout_is_found_by_its_path() -> None:
    many = layout(*((16 * number, 16 * number + 15) for number in range(4095)))
    assert all(many.segment_by_path(one.path) is one for one in many.segments.values())
    assert many.segment_by_path("a/b/c/0000-ffff-4711") is None


def test_a_topic_that_does_not_exist_says_so() -> None:
    with pytest.raises(txnclient.TopicNotFound, match="create it first"):
        layout(exists=False)


def test_a_hole_in_a_layout_is_an_error_and_no_wrong_segment() -> None:
    with pytest.raises(txnclient.ServiceError):
        layout((0, 0x7FFF)).segment_of_hash(0x8000)


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("txn://127.0.0.1:6650", ["127.0.0.1:6650"]),
        ("txn://a:1,b-c.d:65535,a:1/", ["a:1", "b-c.d:65535"]),
        ("txn://[::1]:6650", ["[::1]:6650"]),
    ],
)
def test_service_urls(url: str, addresses: list[str]) -> None:
    assert parse_url(url) == addresses


@pytest.mark.parametrize(
    "url",
    ["", "localhost:1", "http://a:1", "txn://", "txn://a:0", "txn://a:65536", "txn://a:1,,b:2", "txn://a:x"],
)
def test_malformed_service_urls(url: str) -> None:
    with pytest.raises(txnclient.InvalidArgument, match="service URL"):
        parse_url(url)


def test_starts() -> None:
    message_id = MessageId("a/b/c/0000-ffff-0", Position(2, 3), 4)
    assert start_to_wire("earliest") == pb.Start(earliest=True)
    assert start_to_wire("latest") == pb.Start(latest=True)
    assert start_to_wire(1700000000000) == pb.Start(timestamp_ms=1700000000000)
    assert start_to_wire(message_id) == pb.Start(segment=message_id.segment, ledger_id=2, entry_id=3, index=4)
    for wrong in ("newest", 0, -5, True, None, 1.5):
        with pytest.raises(txnclient.InvalidArgument, match="start"):
            start_to_wire(wrong)  # type: ignore[arg-type]


def test_isolation_and_topics() -> None:
    assert isolation_to_wire("read_committed") == pb.ISOLATION_READ_COMMITTED
    for wrong in ("READ_COMMITTED", "serializable"):
        with pytest.raises(txnclient.InvalidArgument, match="isolation"):
            isolation_to_wire(wrong)
    assert topics_of("topic://a/b/c") == ["topic://a/b/c"]
    assert topics_of(["topic://a/b/c", "topic://a/b/d", "topic://a/b/c"]) == ["topic://a/b/c", "topic://a/b/d"]
    for malformed in ([], "orders", ["topic://a/b"]):
        with pytest.raises(txnclient.InvalidArgument):
            topics_of(malformed)
