"""`EtcdStore`: the production metadata store, on an etcd cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator

from txnstore.access.backend import Refused, Unanswered
from txnstore.access.store_client import StoreClient
from txnstore.etcd.backend import EtcdBackend
from txnstore.etcd.connection import EtcdConnection
from txnstore.etcd.settings import EtcdSettings
from txnwire.errors import InternalError, StoreUnavailable, Unauthorized
from txnwire.ports import Clock, Random

__all__ = ["EtcdSettings", "EtcdStore"]


class EtcdStore(StoreClient):
    """`await EtcdStore.connect(...)`, then `close()`."""

    @classmethod
    async def connect(cls, settings: EtcdSettings, *, clock: Clock, random: Random) -> EtcdStore:
        """Raises `StoreUnavailable`, `Unauthorized`, `InvalidArgument` (a setting; a refused etcd release),
        `StoreUnfit` (restored from a backup, or an unfinished repair)."""
        connection = EtcdConnection(settings, clock)
        backend = EtcdBackend(connection, settings.prefix.encode(), repairing=settings.repairing)
        try:
            await backend.open()
        except Unanswered as error:
            await connection.close()
            raise StoreUnavailable(f"etcd does not answer: {error}") from error
        except Refused as refusal:
            await connection.close()
            raise Unauthorized(str(refusal)) from refusal
        except BaseException:
            await connection.close()
            raise
        return cls(backend, clock, random, quota_bytes=settings.quota_bytes)

    async def snapshot(self) -> AsyncIterator[bytes]:
        """A backup of etcd, in pieces, with all that was acknowledged before the call. Raises `StoreUnavailable` if it
        breaks off, `Unauthorized` if the user has not the role root."""
        if not isinstance(self._backend, EtcdBackend):
            raise InternalError("this store has no snapshots of etcd")
        try:
            async for piece in self._backend.snapshot():
                yield piece
        except Unanswered as error:
            raise StoreUnavailable(f"etcd broke its snapshot off: {error}") from error
        except Refused as refusal:
            raise Unauthorized(f"etcd gives no snapshot ({refusal}): its user needs the role root") from refusal
