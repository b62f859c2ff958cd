"""Channels with TLS and mutual TLS, against a real server with certificates made on the spot."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from txnwire.transport.grpc_transport import TlsFiles, open_channel

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


def _openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True, timeout=30)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ca.pem`, and `server` and `client` with `.pem` and `.key`, signed by it; `stranger.pem` is another authority."""
    directory = tmp_path_factory.mktemp("tls")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for authority in ("ca", "stranger"):
        subject = f"/CN={authority}"
        _openssl(
            directory, "req", "-x509", *new_key, "-keyout", f"{authority}.key", "-out", f"{authority}.pem",
            "-days", "2", "-subj", subject,
        )  # fmt: skip
    (directory / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    for name in ("server", "client"):
        _openssl(directory, "req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        _openssl(
            directory, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", f"{name}.pem", "-days", "2", "-extfile", "names",
        )  # fmt: skip
    return directory


async def _greet(_requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    await context.write(b"welcome")


@pytest.fixture(params=[False, True], ids=["tls", "mutual"])
async def address(certificates: Path, request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, bool]]:
    """A TLS server, and whether it asks for the client's certificate."""
    server = grpc.aio.server()
    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(_greet)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Door", {"Knock": method}),))
    pair = ((certificates / "server.key").read_bytes(), (certificates / "server.pem").read_bytes())
    trusted = (certificates / "ca.pem").read_bytes()
    credentials = grpc.ssl_server_credentials([pair], trusted, request.param)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    yield f"127.0.0.1:{port}", request.param
    await server.stop(None)


async def _knock(address: str, tls: TlsFiles | None) -> bytes | grpc.StatusCode:
    channel = open_channel(address, tls=tls)
    try:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream("/test.Door/Knock")()
        answer = await call.read()
        assert isinstance(answer, bytes)
        return answer
    except grpc.aio.AioRpcError as error:
        return error.code()
    finally:
        await channel.close()


async def test_only_a_client_with_the_right_files_gets_in(address: tuple[str, bool], certificates: Path) -> None:
    at, mutual = address
    mine = {"certificate": certificates / "client.pem", "key": certificates / "client.key"}
    refused = grpc.StatusCode.UNAVAILABLE
    assert await _knock(at, TlsFiles(ca=certificates / "ca.pem", **mine)) == b"welcome"
    assert await _knock(at, TlsFiles(ca=certificates / "ca.pem")) == (refused if mutual else b"welcome")
    assert await _knock(at, TlsFiles(ca=certificates / "stranger.pem", **mine)) == refused
    assert await _knock(at, None) == refused
