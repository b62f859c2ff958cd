"""Serves `/healthz`, `/readyz` and `/metrics` of one process, by the standard library's server in its own thread.

Their data belongs to the event loop, so they are read there, with a timeout: a health check must find a stuck loop.
Nothing is collected between two scrapes.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import ClassVar, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from txnctl.process.settings import bare_host, host_and_port
from txnwire.errors import InvalidArgument

ANSWER_WITHIN_S = 5.0
"""How long the event loop may take for one turn: beyond that the process does not count as alive."""
SILENT_S = 10.0
"""How long a connection may be silent: each one holds a thread and a descriptor."""

TEXT = "text/plain; charset=utf-8"

S = TypeVar("S")
T = TypeVar("T")


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _ServerOfIPv6(_Server):
    """▲ The standard library's server takes addresses of IPv4 alone. Bound to `::`, this one serves both."""

    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout: ClassVar[float] = SILENT_S

    def handle(self) -> None:
        with suppress(TimeoutError):  # it is closed without a line
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        """Does not log: health checks come every few seconds."""


class _Collected(Collector):
    """Families already read, in the form that `prometheus_client` wants."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = tuple(families)

    def collect(self) -> Iterator[Family]:
        yield from self._families


class HttpEndpoint:
    """Made in the event loop of `not_ready` (why the process does not serve, or None), `remark` (what it does not do,
    though it serves, or None) and `statistics` (frozen). `families`: the metrics made of these, in another thread.
    `address` is `host:port` as bound. `process`: metrics that any thread may collect."""

    def __init__(
        self,
        listen: str,
        *,
        not_ready: Callable[[], str | None],
        statistics: Callable[[], Coroutine[object, object, S]],
        families: Callable[[S], Iterable[Family]],
        remark: Callable[[], str | None] = lambda: None,
        process: Collector,
        answer_within_s: float = ANSWER_WITHIN_S,
    ) -> None:
        """Raises `InvalidArgument` if it cannot listen on `listen`."""
        self._loop = asyncio.get_running_loop()
        self._not_ready = not_ready
        self._read: Callable[[], Iterable[Family]] = partial(self._families_of, statistics, families)
        self._remark = remark
        self._process = process
        self._answer_within_s = answer_within_s
        host, port = host_and_port(listen, part="admin_listen")
        try:
            kind = _ServerOfIPv6 if host.startswith("[") else _Server
            self._server = kind((bare_host(host), port), _QuietHandler)
        except OSError as error:
            raise InvalidArgument(f"cannot serve HTTP on {listen!r}: {error}") from error
        self._server.set_app(self._answer)
        self.address = f"{host}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """▲ The thread checks every half second for its end, and may be waiting for the loop's answer. So the loop goes
        on meanwhile: blocking it would stall its services before they are handed over."""
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()
        self._thread.join(timeout=5.0)

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        kind = TEXT
        try:
            match environ.get("PATH_INFO", "/"):
                case "/healthz":
                    self._in_loop(_turn)
                    status, body = HTTPStatus.OK, b"alive\n"
                case "/readyz":
                    status, body = _readiness(*self._in_loop(self._readiness))
                case "/metrics":
                    status, (body, kind) = HTTPStatus.OK, self._metrics(environ.get("HTTP_ACCEPT", ""))
                case _:
                    status, body = HTTPStatus.NOT_FOUND, b"try /healthz, /readyz or /metrics\n"
        except TimeoutError:
            status = HTTPStatus.SERVICE_UNAVAILABLE
            body = f"the event loop has not turned for {self._answer_within_s:g} s\n".encode()
        start_response(f"{status.value} {status.phrase}", [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [body]

    def _metrics(self, accept: str) -> tuple[bytes, str]:
        """Metrics in the format that `accept` asks for, and its content type."""
        encode, kind = choose_encoder(accept)
        return encode(_Collected([*self._read(), *self._process.collect()])), kind

    def _families_of(
        self, statistics: Callable[[], Coroutine[object, object, S]], families: Callable[[S], Iterable[Family]]
    ) -> Iterable[Family]:
        """Read in the loop, and summed here: statistics are frozen, and may cover very many segments."""
        return families(self._in_loop(statistics))

    async def _readiness(self) -> tuple[str | None, str | None]:
        return self._not_ready(), self._remark()

    def _in_loop(self, read: Callable[[], Coroutine[object, object, T]]) -> T:
        """Returns `read`'s result in the event loop. Raises `TimeoutError`, and the errors of `read`."""
        answer = asyncio.run_coroutine_threadsafe(read(), self._loop)
        try:
            return answer.result(timeout=self._answer_within_s)
        finally:
            answer.cancel()


async def _turn() -> None:
    """One turn of the loop: that is enough to be alive."""


def _readiness(not_ready: str | None, remark: str | None) -> tuple[HTTPStatus, bytes]:
    if not_ready is None:
        return HTTPStatus.OK, b"ready\n" if remark is None else f"ready, but {remark}\n".encode()
    return HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {not_ready}\n".encode()
