"""Names that look like parts of keys (SCENARIOS C10)."""

from __future__ import annotations

from hypothesis import strategies as st

from txnwire.ids import TxnId
from txnwire.names import SegmentName, TopicName

PARTS_OF_KEYS = (
    "aborted",
    "watermark",
    "w",
    "a",
    "mark",
    "txn",
    "txn-op",
    "segment-state",
    "cursor",
    "0000-ffff-0",
    "0001-0000000000000005",
    "3-000000000001",
    "1.",
    "0",
    "a.b_c-d",
    "x" * 128,
)
"""All of them legal names."""

names = st.sampled_from(PARTS_OF_KEYS) | st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)
topics = st.builds(TopicName, names, names, names)
segments = st.builds(
    lambda topic, one, other, number: SegmentName(topic, min(one, other), max(one, other), number),
    topics,
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFFFF),
    st.integers(0, 10**18),
)
txn_ids = st.builds(TxnId, st.integers(0, 0xFFFF), st.integers(1, 2**64 - 1))
free_texts = st.sampled_from(
    (*PARTS_OF_KEYS, "/", "//", "a/b", "%2F", "%", "../aborted", " ", "ü/\U0001f600", "\0")
) | (st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=120))
"""Texts that may name a transaction: everything that UTF-8 can encode."""
