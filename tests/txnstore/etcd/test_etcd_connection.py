"""Endpoints, releases and what an error of etcd's means. Pure tables."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import grpc
import pytest
from msgspec.structs import replace

from txnstore.access.backend import Reason, Refused, Unanswered
from txnstore.access.lineage import StoreUnfit
from txnstore.etcd.connection import EtcdConnection, TokenExpired, meaning_of
from txnstore.etcd.embedded_etcd import free_port
from txnstore.etcd.releases import check_release
from txnstore.etcd.settings import EtcdSettings
from txnstore.store import Compacted
from txnwire.clock import SystemClock
from txnwire.errors import InvalidArgument, StoreUnavailable

Code = grpc.StatusCode


@pytest.mark.parametrize(
    ("code", "text", "reason"),
    [
        (Code.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request", Reason.MALFORMED),
        (Code.INVALID_ARGUMENT, "etcdserver: request is too large", Reason.MALFORMED),
        (Code.INVALID_ARGUMENT, "etcdserver: user name is empty", Reason.DENIED),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Reason.FULL),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Reason.BUSY),
        (Code.RESOURCE_EXHAUSTED, "grpc: received message larger than max", Reason.MALFORMED),
        (Code.NOT_FOUND, "etcdserver: requested lease not found", Reason.LEASE_GONE),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", Reason.DENIED),
        (Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision", Reason.MALFORMED),
    ],
)
def test_refusals_are_definite(code: grpc.StatusCode, text: str, reason: Reason) -> None:
    meaning = meaning_of(code, text)
    assert isinstance(meaning, Refused)
    assert meaning.reason is reason


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (Code.UNAVAILABLE, "etcdserver: request timed out"),
        (Code.UNAVAILABLE, "etcdserver: leader changed"),
        (Code.UNAVAILABLE, "etcdserver: no leader"),
        (Code.UNAVAILABLE, "Socket closed"),
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded"),
        (Code.CANCELLED, "the channel was closed"),
        (Code.UNKNOWN, "anything"),
        (Code.INTERNAL, "Received RST_STREAM"),
        (Code.ABORTED, ""),
        (Code.NOT_FOUND, "something else"),
    ],
)
def test_e2_everything_else_leaves_the_fate_open(code: grpc.StatusCode, text: str) -> None:
    """▲ DESIGN §4: these also come from etcd itself, when a proposal is lost or late."""
    assert isinstance(meaning_of(code, text), Unanswered)


def test_compaction_and_tokens_are_told_apart() -> None:
    assert isinstance(
        meaning_of(Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted"), Compacted
    )
    assert isinstance(meaning_of(Code.UNAUTHENTICATED, "etcdserver: invalid auth token"), TokenExpired)
    assert isinstance(meaning_of(Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old"), TokenExpired)


@pytest.mark.parametrize("version", ["3.5.0", "3.5.1", "3.5.2"])
def test_releases_that_lose_entries_are_for_development_only(version: str) -> None:
    with pytest.raises(InvalidArgument, match="can lose applied entries"):
        check_release(version, development=False, endpoint="e:1")
    check_release(version, development=True, endpoint="e:1")


@pytest.mark.parametrize("version", ["3.4.20", "3.4.23", "3.5.3", "3.5.21", "3.6.0", "4.0.0", "3.5.22+build7"])
def test_other_releases_serve(version: str) -> None:
    check_release(version, development=False, endpoint="e:1")


@pytest.mark.parametrize(("version", "says"), [("3.3.27", "oldest that will do"), ("", "major.minor.patch")])
def test_what_is_no_etcd_of_ours_is_refused(version: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        check_release(version, development=True, endpoint="e:1")


@pytest.mark.parametrize(
    ("endpoint", "tls_files", "expected"),
    [
        ("http://127.0.0.1:2379", False, ("127.0.0.1:2379", False)),
        ("https://etcd-0.etcd:2379/", False, ("etcd-0.etcd:2379", True)),
        ("etcd:2379", False, ("etcd:2379", False)),
        ("etcd:2379", True, ("etcd:2379", True)),
        ("https://[::1]:2379", True, ("[::1]:2379", True)),
        ("http://etcd:65535", False, ("etcd:65535", False)),
    ],
)
def test_endpoints_are_read(endpoint: str, tls_files: bool, expected: tuple[str, bool]) -> None:
    settings = EtcdSettings(endpoints=(endpoint,), ca=Path("ca.pem") if tls_files else None)
    assert settings.addresses() == [expected]


def test_every_endpoint_is_read() -> None:
    settings = EtcdSettings(endpoints=("http://a:1", "https://b:2", "c:3"))
    assert settings.addresses() == [("a:1", False), ("b:2", True), ("c:3", False)]


@pytest.mark.parametrize(
    ("endpoints", "says"),
    [
        ((), "at least one"),
        (("127.0.0.1",), "http://host:port"),
        (("ftp://a:1",), "ftp://a:1"),
        (("http://a:1/x",), "a:1/x"),
        (("http://a:1", "http://a:65536"), "http://a:65536': expected a port from 1 to 65535"),
        (("a:0",), "expected a port from 1"),
    ],
)
def test_malformed_endpoints_are_named(endpoints: tuple[str, ...], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        EtcdSettings(endpoints=endpoints).addresses()


async def test_every_endpoint_is_named_distrusted_and_closed_and_tells_all_that_use_it() -> None:
    ports = [free_port() for _ in range(3)]
    settings = EtcdSettings(endpoints=tuple(f"http://127.0.0.1:{port}" for port in ports), connect_timeout_s=0.1)
    connection = EtcdConnection(settings, SystemClock())
    with pytest.raises(StoreUnavailable, match=", ".join(f"127.0.0.1:{port}" for port in ports)):
        await connection.open()
    left: list[str] = []
    for distrust in (connection.look_again, lambda: connection.condemn(StoreUnfit("another one"))):
        for endpoint in connection.endpoints:
            endpoint.admitted = True
        distrust()
        assert not any(endpoint.admitted for endpoint in connection.endpoints)
    for name in ("watch", "another"):
        connection.current.left[partial(left.append, name)] = None
    connection.current.leave()
    assert left == ["watch", "another"]
    await connection.close()
    states = [endpoint.channel.get_state() for endpoint in connection.endpoints]
    assert states == [grpc.ChannelConnectivity.SHUTDOWN] * 3


@pytest.mark.parametrize("file", ["ca", "certificate", "key"])
def test_plain_http_with_tls_files_is_a_mistake(file: str) -> None:
    """▲ Any of them shows that TLS is meant: a plain connection shows what it sends to whoever listens."""
    with pytest.raises(InvalidArgument, match="write https://"):
        replace(EtcdSettings(endpoints=("http://a:1",)), **{file: Path("a.pem")}).addresses()
    assert replace(EtcdSettings(endpoints=("a:1",)), **{file: Path("a.pem")}).addresses() == [("a:1", True)]
