"""`EtcdStore`: the production metadata store, on an etcd cluster."""

from __future__ import annotations

from txnstore.access.backend import Refused, Unanswered
from txnstore.access.store_client import StoreClient
from txnstore.etcd.backend import EtcdBackend
from txnstore.etcd.connection import EtcdConnection
from txnstore.etcd.settings import EtcdSettings
from txnwire.errors import StoreUnavailable, Unauthorized
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
