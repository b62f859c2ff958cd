"""How to connect to etcd, and the checks on these settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from txnwire.errors import InvalidArgument

DEFAULT_QUOTA_BYTES: Final = 2 * 1024**3
DEFAULT_PORT: Final = 2379
HIGHEST_PORT: Final = 65535
_ENDPOINT: Final = re.compile(r"(?:(https?)://)?((?:[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\]))(:[0-9]{1,5})?/?\Z")


class EtcdSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`endpoints`: `http://host:port`, `https://host:port`, or `host:port` (TLS if a file for it is given); a URL
    without a port has 2379. `prefix` goes before every key. `quota_bytes`: etcd's `--quota-backend-bytes`, used
    if etcd does not report it (before 3.6). `development` admits releases that can lose applied entries (3.5.0–3.5.2).
    `repairing` admits an unfit store (`txnstore.access.lineage`)."""

    endpoints: tuple[str, ...]
    prefix: str = ""
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    user: str | None = None
    password: str | None = None
    quota_bytes: int = DEFAULT_QUOTA_BYTES
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 5.0
    development: bool = False
    repairing: bool = False

    def addresses(self) -> list[tuple[str, bool]]:
        """(`host:port`, whether over TLS) of every endpoint. Raises `InvalidArgument` naming the wrong one."""
        if not self.endpoints:
            raise InvalidArgument("no etcd endpoint is given: expected at least one, as in http://127.0.0.1:2379")
        return [self._address(endpoint) for endpoint in self.endpoints]

    def _address(self, endpoint: str) -> tuple[str, bool]:
        match = _ENDPOINT.match(endpoint)
        if match is None or not (match[1] or match[3]):
            raise InvalidArgument(f"etcd endpoint {endpoint!r}: expected http://host:port or https://host:port")
        if match[3] and not 1 <= int(match[3][1:]) <= HIGHEST_PORT:
            raise InvalidArgument(f"etcd endpoint {endpoint!r}: expected a port from 1 to {HIGHEST_PORT}")
        has_tls_files = any(file is not None for file in (self.ca, self.certificate, self.key))
        if match[1] == "http" and has_tls_files:
            raise InvalidArgument(f"etcd endpoint {endpoint!r} is without TLS, but TLS files are given: write https://")
        address = match[2] + (match[3] or f":{DEFAULT_PORT}")
        return address, has_tls_files if match[1] is None else match[1] == "https"
