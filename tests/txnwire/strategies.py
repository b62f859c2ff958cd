"""Hypothesis strategies for what txnwire names and encodes; other packages' tests may use them."""

from __future__ import annotations

from hypothesis import strategies as st

from txnwire.entry import OutgoingMessage
from txnwire.ids import MAX_COUNTER, MAX_TCID, MessageId, Position, TxnId
from txnwire.names import SegmentName, TopicName

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)
topics = st.builds(TopicName, names, names, names)
hash_ranges = st.tuples(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF)).map(sorted)
segments = st.builds(
    lambda topic, span, segment_id: SegmentName(topic, span[0], span[1], segment_id),
    topics,
    hash_ranges,
    st.integers(0, 10**18),
)
txn_ids = st.builds(TxnId, st.integers(0, MAX_TCID), st.integers(1, MAX_COUNTER))
positions = st.builds(Position, st.integers(0, 10**18 - 1), st.integers(-1, 10**18 - 1))
message_ids = st.builds(
    lambda segment, position, index: MessageId(segment.path, position, index),
    segments,
    positions,
    st.integers(0, 10**9 - 1),
)
messages = st.builds(
    OutgoingMessage,
    st.binary(max_size=300),
    st.none() | st.binary(max_size=40),
    st.none() | st.dictionaries(st.text(max_size=12), st.text(max_size=12), max_size=4),
    st.none() | st.integers(-(2**63), 2**63 - 1),
)
