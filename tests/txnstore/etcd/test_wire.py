"""The hand-written bytes, read back by the generated messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from txnstore.etcd import rpc_pb2 as pb
from txnstore.etcd import wire
from txnstore.store import Commit, Compare, Delete, Put, Read, Relation, Target

keys = st.binary(min_size=1, max_size=300)
ends = st.none() | keys
numbers = st.integers(0, 2**63 - 1)
commits = st.builds(
    Commit,
    st.lists(
        st.builds(Compare, keys, st.sampled_from(list(Target)), st.sampled_from(list(Relation)), numbers, ends),
        max_size=3,
    ).map(tuple),
    st.lists(st.builds(Put, keys, st.binary(max_size=20_000), numbers), max_size=3).map(tuple),
    st.lists(st.builds(Delete, keys, ends), max_size=2).map(tuple),
    st.lists(st.builds(Read, keys, ends), max_size=2).map(tuple),
)
prefixes = st.sampled_from([b"", b"/cluster-7"])

_NUMBERS = {
    Target.VERSION: "version",
    Target.CREATE: "create_revision",
    Target.MOD: "mod_revision",
    Target.LEASE: "lease",
}


def expected(commit: Commit, prefix: bytes) -> pb.TxnRequest:
    def end(range_end: bytes | None) -> bytes:
        return b"" if range_end is None else prefix + range_end

    request = pb.TxnRequest()
    for compare in commit.compares:
        one = request.compare.add(
            key=prefix + compare.key, result=compare.relation, target=compare.target, range_end=end(compare.range_end)
        )
        setattr(one, _NUMBERS[compare.target], compare.value)
    for put in commit.puts:
        request.success.add(request_put=pb.PutRequest(key=prefix + put.key, value=put.value, lease=put.lease))
    for delete in commit.deletes:
        span = pb.DeleteRangeRequest(key=prefix + delete.key, range_end=end(delete.range_end))
        request.success.add(request_delete_range=span)
    for read in commit.else_reads:
        request.failure.add(request_range=pb.RangeRequest(key=prefix + read.key, range_end=end(read.range_end)))
    return request


@given(commits, prefixes)
def test_a_commit_is_what_protobuf_would_have_written(commit: Commit, prefix: bytes) -> None:
    assert pb.TxnRequest.FromString(wire.CommitEncoder(prefix).transaction(commit)) == expected(commit, prefix)


@given(st.lists(commits, max_size=4), prefixes)
def test_a_group_nests_its_members_in_order(members: list[Commit], prefix: bytes) -> None:
    encoder = wire.CommitEncoder(prefix)
    request = pb.TxnRequest.FromString(wire.group([encoder.transaction(member) for member in members]))
    assert [operation.request_txn for operation in request.success] == [expected(one, prefix) for one in members]
    assert not request.compare
    assert not request.failure
