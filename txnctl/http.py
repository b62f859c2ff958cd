"""`/healthz`, `/readyz` and `/metrics` of one process: Prometheus' own WSGI app behind the standard library's server.

It runs in a thread of its own, so it answers also while the event loop is busy, and it reads snapshots only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app

from txnwire.errors import InvalidArgument


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Health checks every few seconds are no news."""


class HttpEndpoint:
    """`address` is `host:port` as bound. `ready` says whether the process serves."""

    def __init__(self, listen: str, *, ready: Callable[[], bool], registry: CollectorRegistry) -> None:
        host, _, port = listen.rpartition(":")
        self._ready = ready
        self._metrics = make_wsgi_app(registry)
        try:
            self._server = _Server((host, int(port)), _QuietHandler)
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"cannot serve HTTP on {listen!r}: {error}") from error
        self._server.set_app(self._answer)
        self.address = f"{host}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5.0)

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            metrics: Iterable[bytes] = self._metrics(environ, start_response)
            return metrics
        answers = {
            "/healthz": ("200 OK", b"alive\n"),
            "/readyz": ("200 OK", b"ready\n") if self._ready() else ("503 Service Unavailable", b"not ready\n"),
        }
        status, body = answers.get(path, ("404 Not Found", b"try /healthz, /readyz or /metrics\n"))
        start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))])
        return [body]
