"""`EtcdStore`: the metadata store a user runs, on an etcd cluster."""

from __future__ import annotations

from pathlib import Path

import msgspec

from txnstore.store_client import StoreClient
from txnwire.ports import Clock, Random


class EtcdSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach etcd. `endpoints`: `http://host:port`, `https://…` or `host:port`, tried in turn. `prefix` goes before
    every key. `quota_bytes`: etcd's `--quota-backend-bytes` where it does not tell it (before 3.6). `development` admits
    the releases that can lose applied entries (3.5.0–3.5.2)."""

    endpoints: tuple[str, ...]
    prefix: str = ""
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    user: str | None = None
    password: str | None = None
    quota_bytes: int = 2 * 1024**3
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 5.0
    development: bool = False


class EtcdStore(StoreClient):
    @classmethod
    async def connect(cls, settings: EtcdSettings, *, clock: Clock, random: Random) -> EtcdStore:
        """Raises `StoreUnavailable`, `Unauthorized`, `InvalidArgument` (a setting; an etcd release that is refused)."""
        raise NotImplementedError
