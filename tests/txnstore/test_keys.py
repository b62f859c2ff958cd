"""Every key that is taken apart again gives back what it was built of, whatever the names look like (SCENARIOS C10)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strange_names import PARTS_OF_KEYS, free_texts, names, segments, topics, txn_ids
from txnstore import keys
from txnwire.errors import InvalidArgument
from txnwire.ids import TxnId
from txnwire.names import SegmentName, TopicName, validate_name

EPOCHS = st.integers(1, 2**62)
WRITERS = st.none() | st.integers(0, 2**64 - 1)


@given(segments, txn_ids, WRITERS)
def test_c10_aborted_records_and_watermarks(segment: SegmentName, txn_id: TxnId, writer: int | None) -> None:
    key = keys.aborted(segment.path, txn_id, writer)
    assert keys.aborted_parts(key) == (txn_id, writer)
    path, what = keys.segment_state_parts(key)
    assert (path, what.startswith("aborted/")) == (segment.path, True)
    assert keys.segment_state_parts(keys.watermark(segment.path)) == (segment.path, "watermark")
    assert keys.watermark(segment.path).startswith(keys.segment_state(segment.path))


@given(segments, names, txn_ids, EPOCHS, EPOCHS)
def test_c10_op_records(segment: SegmentName, subscription: str, txn_id: TxnId, epoch: int, counter: int) -> None:
    write = keys.op(keys.write_ops(txn_id, segment.path), epoch, counter)
    ack = keys.op(keys.ack_ops(txn_id, segment.path, subscription), epoch, counter)
    assert keys.op_parts(write) == (txn_id, segment.path, None)
    assert keys.op_parts(ack) == (txn_id, segment.path, subscription)


@given(segments, names, txn_ids, st.integers(0, 10**13 - 1))
def test_c10_keys_that_end_with_a_transaction(
    segment: SegmentName, subscription: str, txn_id: TxnId, due_ms: int
) -> None:
    index = keys.ack_index(segment.path, subscription, txn_id)
    built = [keys.txn(txn_id), keys.write_index(segment.path, txn_id), index, keys.deadline(due_ms, txn_id)]
    assert [keys.txn_of(key) for key in built] == [txn_id] * 4
    assert keys.ack_index_parts(index) == (segment.path, subscription, txn_id)
    assert keys.deadline_parts(keys.deadline(due_ms, txn_id)) == (due_ms, txn_id)


@given(free_texts)
def test_c10_names_of_transactions(name: str) -> None:
    assert keys.txn_name_text(keys.txn_name(name)) == name


@given(free_texts, free_texts.filter(lambda text: "&" not in text))
def test_c10_transaction_keys(owner: str, key: str) -> None:
    assert keys.txn_key_parts(keys.txn_key(owner, key)) == (owner, key)


@given(topics, names, names, st.integers(0, 10**18))
def test_c10_keys_that_end_with_a_name(topic: TopicName, subscription: str, other: str, segment_id: int) -> None:
    assert keys.topic_and_name(keys.subscription(topic.path, subscription)) == (topic.path, subscription)
    assert keys.topic_and_name(keys.assignment(topic.path, subscription)) == (topic.path, subscription)
    drained = keys.drained(topic.path, subscription, segment_id)
    assert keys.drained_parts(drained) == (topic.path, subscription, segment_id)
    within = keys.drained_by_subscription(topic.path, other)
    assert drained.startswith(within) == (subscription == other)


@given(segments, segments, names, names, st.sampled_from(("mark", "7-0")))
def test_c10_a_cursor_is_in_the_range_of_its_own_subscription_alone(
    one: SegmentName, other: SegmentName, subscription: str, another: str, block: str
) -> None:
    key = keys.cursor_block(one.path, subscription, block)
    assert keys.cursor_parts(key) == (one.path, subscription, block)
    assert key.startswith(keys.cursors(other.path)) == (one == other)
    assert key.startswith(keys.cursor_blocks(one.path, another)) == (subscription == another)


@pytest.mark.parametrize(
    "key",
    [
        b"/segment-state/t/n/aborted/0000-ffff-0",
        b"/segment-state/t/n/x/0000-ffff-0/other",
        b"/segment-state/t/n/x/0000-ffff-0/watermark/aborted/0001-0000000000000005",
    ],
)
def test_what_is_no_aborted_record_is_told_by_its_key(key: bytes) -> None:
    with pytest.raises(InvalidArgument, match="expected /segment-state/"):
        keys.aborted_parts(key)


def test_a_watermark_is_no_aborted_record() -> None:
    with pytest.raises(InvalidArgument, match="aborted"):
        keys.aborted_parts(keys.watermark("t/n/aborted/0000-ffff-0"))


def test_what_looks_like_a_part_of_a_key_is_a_legal_name() -> None:
    for name in PARTS_OF_KEYS:
        assert validate_name(name, part="name") == name


def test_c10_names_that_look_like_what_names_are_written_as_are_told_apart() -> None:
    texts = ["a/b", "a%2Fb", "a%252Fb", "%", "%41", "A"]
    assert [keys.txn_name_text(keys.txn_name(text)) for text in texts] == texts
    assert len({keys.txn_name(text) for text in texts}) == len(texts)


@pytest.mark.parametrize("key", [b"/txn/\xff", b"/idx/txn-by-deadline/1/\xff", b"/txn/" + "\u0661".encode()])
def test_c10_a_key_that_ends_with_no_transaction_is_an_error_of_ours(key: bytes) -> None:
    with pytest.raises(InvalidArgument):
        keys.txn_of(key)


@pytest.mark.parametrize("digits", ["\u00b2", "\u0661", "", "x", "-1", "9" * 5000])
def test_c10_a_deadline_key_without_a_time_is_an_error_of_ours(digits: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a deadline key"):
        keys.deadline_parts(keys.TXN_BY_DEADLINE + f"{digits}/0000-0000000000000001".encode())


def test_c10_an_assignment_of_a_topic_named_after_subscriptions_is_its_own() -> None:
    topic = "subscription/subscription/subscription"
    for build in (keys.assignment, keys.subscription):
        assert keys.topic_and_name(build(topic, "subscription")) == (topic, "subscription")
