from hypothesis import given
from hypothesis import strategies as st

from txnstore.access.spans import Spans


def test_each_of_several_keys_is_kept_and_looked_for() -> None:
    spans = Spans()
    spans.add_range(b"c", b"e")
    assert not spans.meets_range(b"f", b"z")  # from here on the keys are sorted
    spans.add_keys([b"m", b"n"])
    assert spans.meets_key(b"n")
    assert spans.meets_range(b"n", b"o")
    assert spans.meets_any([b"a", b"d"])
    assert not spans.meets_any([b"a", b"e"])


key = st.binary(min_size=1, max_size=2).map(lambda raw: bytes(byte % 8 for byte in raw))
span = st.tuples(key, key).filter(lambda pair: pair[0] < pair[1])


@given(st.lists(key), st.lists(span), st.lists(key), st.lists(span), st.lists(key))
def test_meets_what_a_plain_search_meets(
    keys: list[bytes],
    ranges: list[tuple[bytes, bytes]],
    asked_keys: list[bytes],
    asked: list[tuple[bytes, bytes]],
    later: list[bytes],
) -> None:
    spans = Spans()
    spans.add_keys(keys)
    for start, end in ranges:
        spans.add_range(start, end)
        spans.meets_range(start, end)  # sorts the keys: those added later must be found too
    spans.add_keys(later)
    everything = [*keys, *later]
    for one in asked_keys:
        expected = one in everything or any(start <= one < end for start, end in ranges)
        assert spans.meets_key(one) == expected
        assert spans.meets_any([one]) == expected
    for first, last in asked:
        inside = any(first <= one < last for one in everything)
        assert spans.meets_range(first, last) == (inside or any(first < end and start < last for start, end in ranges))
