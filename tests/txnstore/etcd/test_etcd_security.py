"""TLS, mutual TLS, users with passwords and tokens that are lost, and releases that are refused, on a real etcd."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import msgspec
import pytest
from structlog.testing import capture_logs

from tests.txnstore.etcd.test_etcd_process import renewed
from tests.txnstore.silent_etcd import SilentEtcd
from tests.waiting import until
from txnstore.access.backend import Unanswered
from txnstore.etcd import connection
from txnstore.etcd.backend import EtcdBackend
from txnstore.etcd.connection import EtcdConnection
from txnstore.etcd.embedded_etcd import EmbeddedEtcd, EtcdCommand, free_port
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnstore.store import Commit, Put
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import InvalidArgument, StoreUnavailable, TxnError, Unauthorized

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

FAILING = grpc.ChannelConnectivity.TRANSIENT_FAILURE
KEYS = (b"/k/", b"/k0")


async def connect(settings: EtcdSettings) -> EtcdStore:
    return await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())


@asynccontextmanager
async def connected(settings: EtcdSettings) -> AsyncIterator[EtcdStore]:
    store = await connect(settings)
    try:
        yield store
    finally:
        await store.close()


async def works(store: EtcdStore) -> None:
    """Every kind of request: a group, a read, a watch, a lease."""
    results = await asyncio.gather(*[store.commit(Commit(puts=(Put(b"/k/%d" % n, b""),))) for n in range(20)])
    assert all(result.succeeded for result in results)
    assert len((await store.range(*KEYS)).records) == 20
    watch = store.watch(*KEYS, from_revision=results[0].revision)
    async with asyncio.timeout(10):
        assert (await anext(watch)).events
    await watch.close()
    lease = await store.grant_lease(5)
    assert (await store.commit(Commit(puts=(Put(b"/k/lease", b"", lease.id),)))).succeeded
    await lease.revoke()


# --- TLS ---


@dataclass(frozen=True)
class Certificates:
    directory: Path

    def path(self, name: str) -> Path:
        return self.directory / name


def openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=30)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return made_in(tmp_path_factory.mktemp("certificates"))


def made_in(directory: Path) -> Certificates:
    """An authority, a server's pair for 127.0.0.1, a client's pair, and a foreign authority; others each time."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    made = Certificates(directory)
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    for authority in ("ca", "foreign"):
        out = ["-keyout", made.path(f"{authority}.key"), "-out", made.path(f"{authority}.pem")]
        openssl("req", "-x509", *curve, "-subj", f"/CN={authority}", *out)
    extensions = made.path("extensions")
    extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n")
    for name in ("server", "client"):
        request, pair = made.path(f"{name}.csr"), made.path(f"{name}.pem")
        openssl("req", *curve, "-subj", f"/CN={name}", "-keyout", made.path(f"{name}.key"), "-out", request)
        signed = ["-CA", made.path("ca.pem"), "-CAkey", made.path("ca.key"), "-CAcreateserial", "-days", "2"]
        openssl("x509", "-req", "-in", request, *signed, "-extfile", extensions, "-out", pair)
    return made


@asynccontextmanager
async def secured_etcd(directory: Path, certificates: Certificates, *flags: str) -> AsyncIterator[str]:
    """An etcd whose clients come by TLS; its health is told on a plain port beside."""
    url, etcd = secured(directory, certificates, *flags)
    await etcd.start()
    try:
        yield url
    finally:
        await etcd.stop()


def secured(directory: Path, certificates: Certificates, *flags: str) -> tuple[str, EmbeddedEtcd]:
    url = f"https://127.0.0.1:{free_port()}"
    health_port = free_port()
    command = EtcdCommand(
        data_dir=directory / "etcd",
        client_port=health_port,
        extra=(
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-metrics-urls=http://127.0.0.1:{health_port}",
            f"--cert-file={certificates.path('server.pem')}",
            f"--key-file={certificates.path('server.key')}",
            *flags,
        ),
    )
    return url, EmbeddedEtcd(command)


async def test_tls(tmp_path: Path, certificates: Certificates) -> None:
    async with secured_etcd(tmp_path, certificates) as url:
        settings = EtcdSettings(
            endpoints=(url,), ca=certificates.path("ca.pem"), connect_timeout_s=5.0, development=True
        )
        async with connected(settings) as store:
            await works(store)
        foreign = msgspec.structs.replace(settings, ca=certificates.path("foreign.pem"), connect_timeout_s=1.0)
        with pytest.raises(StoreUnavailable):
            await connect(foreign)
        plain = EtcdSettings(endpoints=(url.replace("https", "http"),), connect_timeout_s=1.0)
        with pytest.raises(StoreUnavailable):
            await connect(plain)


async def test_mutual_tls(tmp_path: Path, certificates: Certificates) -> None:
    flags = ("--client-cert-auth=true", f"--trusted-ca-file={certificates.path('ca.pem')}")
    async with secured_etcd(tmp_path, certificates, *flags) as url:
        nameless = EtcdSettings(
            endpoints=(url,), ca=certificates.path("ca.pem"), connect_timeout_s=1.0, development=True
        )
        with pytest.raises(StoreUnavailable):
            await connect(nameless)
        named = msgspec.structs.replace(
            nameless,
            certificate=certificates.path("client.pem"),
            key=certificates.path("client.key"),
            connect_timeout_s=5.0,
        )
        async with connected(named) as store:
            await works(store)


async def test_tls_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"missing\.pem"):
        await connect(EtcdSettings(endpoints=("https://127.0.0.1:1",), ca=tmp_path / "missing.pem"))


async def test_whoever_cannot_connect_is_told_what_is_wrong(tmp_path: Path, certificates: Certificates) -> None:
    path, nobody = certificates.path, f"127.0.0.1:{free_port()}"
    flags = ("--client-cert-auth=true", f"--trusted-ca-file={path('ca.pem')}")
    async with secured_etcd(tmp_path, certificates, *flags) as url:
        right = EtcdSettings(
            endpoints=(url,),
            ca=path("ca.pem"),
            certificate=path("client.pem"),
            key=path("client.key"),
            connect_timeout_s=1.0,
            development=True,
        )
        plain = msgspec.structs.replace(right, ca=None, certificate=None, key=None)
        wrong = {
            "its certificate is not of the authority": msgspec.structs.replace(right, ca=path("foreign.pem")),
            "no connection without a certificate": msgspec.structs.replace(right, certificate=None, key=None),
            "do not belong together": msgspec.structs.replace(right, key=path("server.key")),
            "write https://": msgspec.structs.replace(plain, endpoints=(url.replace("https", "http"),)),
            "Connection refused": msgspec.structs.replace(plain, endpoints=(f"http://{nobody}",)),
            "no-such-host.invalid": msgspec.structs.replace(plain, endpoints=("http://no-such-host.invalid:2379",)),
        }
        told = await asyncio.gather(*[connect(settings) for settings in wrong.values()], return_exceptions=True)
        assert [type(error) for error in told] == [StoreUnavailable] * len(wrong)
        whys = [str(error).partition(" s: ")[2] for error in told]
        assert [part in why for part, why in zip(wrong, whys, strict=True)] == [True] * len(wrong), whys


async def test_certificates_that_were_renewed_on_disk_are_read_when_the_former_ones_no_longer_do(
    tmp_path: Path,
) -> None:
    """▲ As a Secret is renewed in a pod: whoever runs on would be cut off for ever, and a new process connects."""
    path = made_in(tmp_path).path
    flags = ("--client-cert-auth=true", f"--trusted-ca-file={path('ca.pem')}")
    url, etcd = secured(tmp_path, Certificates(tmp_path), *flags)
    settings = EtcdSettings(
        endpoints=(url,), ca=path("ca.pem"), certificate=path("client.pem"), key=path("client.key"), development=True
    )
    try:
        await etcd.start()
        async with connected(settings) as store:
            watch = store.watch(*KEYS, from_revision=1)
            path("client.key").rename(path("gone"))  # for a moment, as it happens amid a renewal
            await etcd.stop()
            reading = asyncio.create_task(store.get(b"/k/0", timeout_s=60.0))
            with capture_logs() as logs:
                await until(lambda: [log for log in logs if "not read again" in log["event"]])
            made_in(tmp_path)
            await etcd.start()
            assert await reading is None
            await works(store)
            async with asyncio.timeout(20):
                assert (await anext(watch)).events
            await watch.close()
    finally:
        await etcd.stop()


async def test_calls_and_watches_of_a_channel_that_is_opened_anew_are_unanswered(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ A member that goes still lets them run: whoever waits for one would end as if it had been cancelled."""
    monkeypatch.setattr(connection, "GRACE_S", 0.1)
    ca = tmp_path / "ca.pem"
    shutil.copy(certificates.path("ca.pem"), ca)
    pair = [certificates.path(f"server.{part}").read_bytes() for part in ("key", "pem")]
    etcd = SilentEtcd(grpc.ssl_server_credentials([(pair[0], pair[1])]))
    await etcd.start()
    settings = EtcdSettings(endpoints=(f"https://127.0.0.1:{etcd.port}",), ca=ca, request_timeout_s=60.0)
    backend = EtcdBackend(EtcdConnection(settings, SystemClock()), b"")
    try:
        await backend.open()
        etcd.applies.clear()
        (endpoint,) = backend._connection.endpoints
        receiving = asyncio.create_task((await backend.open_watch(b"/a", b"/b", 1)).receive())
        before = etcd.asked["range"]
        reading = asyncio.create_task(backend.read_many((b"/k",), 0))
        await until(lambda: etcd.asked["range"] > before and etcd.watching)
        going = asyncio.create_task(etcd.close(60.0))
        await until(lambda: not endpoint.ready() and endpoint.channel.get_state() is FAILING)
        former = endpoint.channel
        await backend._connection._reopen_renewed()
        assert endpoint.channel is former, "its files are the same"
        ca.write_bytes(ca.read_bytes() + b"\n")
        backend._connection._files_looked_at = 0.0
        await backend._connection._reopen_renewed()
        for waiting in (reading, receiving):
            with pytest.raises(Unanswered):
                await waiting
        etcd.go_on()
        await going
    finally:
        etcd.go_on()
        await backend.close()
        await etcd.close()


# --- users ---


async def etcdctl(etcd: EmbeddedEtcd, *arguments: str, said: bytes = b"") -> None:
    command = ["etcdctl", f"--endpoints={etcd.url}", *arguments]
    pipe = subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(20):
        _, errors = await process.communicate(said)
    assert process.returncode == 0, errors


@pytest.fixture
async def guarded(etcd_process: EmbeddedEtcd) -> EmbeddedEtcd:
    """User `txn` may do everything below /ours and nothing else."""
    if shutil.which("etcdctl") is None:
        pytest.skip("etcdctl is not installed")
    for command in (
        "user add root:secret",
        "user grant-role root root",
        "user add txn:password",
        "role add ours",
        "role grant-permission ours readwrite --prefix=true /ours/",
        "user grant-role txn ours",
    ):
        await etcdctl(etcd_process, *command.split())
    await etcdctl(etcd_process, "auth", "enable")
    return etcd_process


def as_user(etcd: EmbeddedEtcd, **changes: str | float | None) -> EtcdSettings:
    chosen = {"user": "txn", "password": "password", "prefix": "/ours", "connect_timeout_s": 5.0} | changes
    return msgspec.convert({"endpoints": (etcd.url,), "development": True} | chosen, EtcdSettings)


async def test_a_user_with_a_password(guarded: EmbeddedEtcd) -> None:
    async with connected(as_user(guarded)) as store:
        await works(store)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"password": "wrong"}, "etcd user 'txn'"),
        ({"user": "nobody"}, "etcd user 'nobody'"),
        ({"user": None}, "none is configured"),
        ({"prefix": "/theirs"}, "permission denied"),
    ],
)
async def test_who_may_not_is_told_so(guarded: EmbeddedEtcd, changes: dict[str, str | None], says: str) -> None:
    with pytest.raises(Unauthorized, match=says):
        await connect(as_user(guarded, **changes))


async def test_a_lost_token_is_renewed(guarded: EmbeddedEtcd) -> None:
    """etcd forgets its simple tokens in a restart: calls, watches and keep-alives go on with a new one."""
    async with connected(as_user(guarded)) as store:
        lease = await store.grant_lease(8)
        watch = store.watch(*KEYS, from_revision=1)
        await store.commit(Commit(puts=(Put(b"/k/a", b"1"),)))
        assert (await anext(watch)).events[0].record.value == b"1"
        for value in (b"2", b"3"):
            guarded.kill()
            await guarded.start()
            assert (await store.commit(Commit(puts=(Put(b"/k/a", value),)), timeout_s=20)).succeeded
            async with asyncio.timeout(20):
                assert (await anext(watch)).events[0].record.value == value
            await renewed(lease)
        await watch.close()


async def test_a_changed_password_shuts_out_until_it_is_changed_back(guarded: EmbeddedEtcd) -> None:
    async def change(password: bytes) -> None:
        await etcdctl(
            guarded, "--user=root:secret", "user", "passwd", "txn", "--interactive=false", said=password + b"\n"
        )

    commit = Commit(puts=(Put(b"/k/a", b""),))
    async with connected(as_user(guarded)) as store:
        await store.commit(commit)
        await change(b"another")
        with pytest.raises(Unauthorized, match="etcd user 'txn'"):
            await store.commit(commit)
        with pytest.raises(Unauthorized, match="etcd user 'txn'"):
            await store.get(b"/k/a")
        await change(b"password")
        assert (await store.commit(commit)).succeeded


async def test_what_a_user_may_not_touch_is_refused(guarded: EmbeddedEtcd) -> None:
    """Sent alone: etcd 3.4.23 checks no permissions inside nested transactions, so it refuses no grouped commit."""
    await etcdctl(guarded, "--user=root:secret", "role", "add", "narrow")
    for prefix in ("/ours/k/", "/ours/probe", "/ours/sender/", "/ours/incarnation"):
        grant = ["role", "grant-permission", "narrow", "readwrite", "--prefix=true", prefix]
        await etcdctl(guarded, "--user=root:secret", *grant)
    await etcdctl(guarded, "--user=root:secret", "user", "add", "small:password")
    await etcdctl(guarded, "--user=root:secret", "user", "grant-role", "small", "narrow")
    async with connected(as_user(guarded, user="small")) as store:
        assert (await store.commit(Commit(puts=(Put(b"/k/a", b""),)))).succeeded
        with pytest.raises(Unauthorized, match="permission denied"):
            await store.commit(Commit(puts=(Put(b"/elsewhere", b""),)))
        with pytest.raises(Unauthorized, match="permission denied"):
            await store.get(b"/elsewhere")
        watch = store.watch(b"/elsewhere", b"/elsewherf", from_revision=1)
        with pytest.raises(Unauthorized, match="permission denied"):
            async with asyncio.timeout(10):
                await anext(watch)
        await watch.close()
        with pytest.raises(Unauthorized, match=r"permission denied.*its user needs the role root"):
            await anext(store.snapshot())


async def test_a_snapshot_is_refused_to_a_user_who_may_not_read_what_it_begins_with(guarded: EmbeddedEtcd) -> None:
    for command in (
        "role add probing",
        "role grant-permission probing readwrite /ours/probe",
        "user add nearly-nobody:password",
        "user grant-role nearly-nobody probing",
    ):
        await etcdctl(guarded, "--user=root:secret", *command.split())
    async with connected(as_user(guarded, user="nearly-nobody")) as store:
        with pytest.raises(Unauthorized, match=r"permission denied.*its user needs the role root"):
            await anext(store.snapshot())


async def test_a_user_where_etcd_asks_for_none(etcd_process: EmbeddedEtcd) -> None:
    """A configured user that cannot be checked is an error, not a silent way in."""
    with pytest.raises(TxnError, match="authentication is not enabled"):
        await connect(as_user(etcd_process))
