"""A command's connection to a running cluster: questions by name, answers as plain dicts."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec
import typer

import txnclient
from txnclient.connection.address import parse_url
from txnclient.consuming.places.starts import StartArgument
from txnctl.process.amounts import time_of
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import ConnectionLost, InvalidArgument, TxnError
from txnwire.ids import MessageId
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import PROTOCOL_VERSION
from txnwire.transport.calls import Caller
from txnwire.transport.grpc_transport import GrpcTransport

CALL_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0

Url = Annotated[
    str, typer.Option("--url", envvar="TXN_URL", help="servers of the cluster: txn://host:port, more after commas")
]
DEFAULT_URL = "txn://127.0.0.1:6650"

Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask; without a terminal the command never asks")]


def expect_yes(question: str, *, yes: bool) -> None:
    """Asks for confirmation before something is deleted for good; without a terminal it does not ask. Exits with code 1
    if the answer is no."""
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def start_of(text: str) -> StartArgument:
    """Parses a start as people type it: `earliest`, `latest`, milliseconds since the Unix epoch, a time in ISO 8601
    (`2026-11-20T21:00`, `2026-11-20T21:00:00Z`), or a message's id. Raises `InvalidArgument`."""
    if text in ("earliest", "latest"):
        return text
    if text.isdecimal():
        return int(text)
    if "@" in text:
        return MessageId.parse(text)
    time = time_of(text)
    if time is None:
        raise InvalidArgument(
            f"start {text!r}: expected 'earliest', 'latest', milliseconds since 1970, a time as 2026-11-20T21:00 or "
            "2026-11-20T21:00:00Z, or a message id as consume -o json shows it"
        )
    return time


def addresses_of(url: str) -> list[str]:
    """The `host:port`s of `txn://host[:port][,host[:port]…]`. Raises `InvalidArgument`."""
    try:
        return parse_url(url)
    except InvalidArgument as error:
        raise InvalidArgument(f"--url: {error}") from None


class Asking:
    """One connection. `ask` takes the question's name and its arguments, and returns the answer's object."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def ask(self, what: str, **args: Any) -> dict[str, Any]:
        request = pb.AdminRequest(what=what, args_json=msgspec.json.encode({"v": 1, **args}).decode())
        reply = await self.call(pb.Command(admin_request=request))
        answer: dict[str, Any] = msgspec.json.decode(reply.admin_reply.reply_json)
        return answer

    async def call(self, command: pb.Command) -> pb.Command:
        return await self._caller.call(command, timeout_s=CALL_TIMEOUT_S)


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[Asking]:
    """Connects to the first address that answers. Raises `ConnectionLost` with the error of each address."""
    clock, session_id = SystemClock(), SystemRandom().getrandbits(128).to_bytes(16, "big")
    failures = []
    for address in addresses_of(url):
        hello = pb.Hello(protocol_version=PROTOCOL_VERSION, client_name="txnctl", session_id=session_id)
        try:
            caller = await Caller.open(
                GrpcTransport(clock),
                address,
                hello,
                clock=clock,
                on_push=lambda _: None,
                timeout_s=CONNECT_TIMEOUT_S,
            )
        except (TimeoutError, TxnError) as error:
            failures.append(str(error) if str(error).startswith(address) else f"{address}: {error}")
            continue
        try:
            yield Asking(caller)
        finally:
            await caller.close()
        return
    raise ConnectionLost(f"no server answers ({'; '.join(failures)}). Is the cluster running? `txnctl dev` starts one")


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[txnclient.Client]:
    """Yields a client of the cluster, and reports a wrong address at once. The client itself would retry, because a
    cluster may restart under a program; somebody who has just typed a command should not wait."""
    async with asking(url):
        pass
    async with txnclient.connect(url) as client:
        yield client
