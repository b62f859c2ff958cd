"""`txnstore.access.backend.Backend` over a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final

import grpc
import structlog

from txnstore import keys as store_keys
from txnstore.access.backend import Fenced, RangePage, Reason, Refused, RequestFence, StoreStatus, Unanswered
from txnstore.access.grouping import GroupMember
from txnstore.access.lineage import Lineage, StoreUnfit
from txnstore.etcd import rpc_pb2 as pb
from txnstore.etcd import wire
from txnstore.etcd.connection import Endpoint, EtcdConnection
from txnstore.etcd.hedging import first_answer
from txnstore.etcd.watch import EtcdWatchStream, record_of
from txnstore.store import Commit, CommitVerdict, Compacted, KeyValue, Put, Read, unchanged_since

_RANGE: Final = "/etcdserverpb.KV/Range"
_TXN: Final = "/etcdserverpb.KV/Txn"
_COMPACT: Final = "/etcdserverpb.KV/Compact"
_GRANT: Final = "/etcdserverpb.Lease/LeaseGrant"
_REVOKE: Final = "/etcdserverpb.Lease/LeaseRevoke"
_KEEP_ALIVE: Final = "/etcdserverpb.Lease/LeaseKeepAlive"
_STATUS: Final = "/etcdserverpb.Maintenance/Status"
_DEFRAGMENT: Final = "/etcdserverpb.Maintenance/Defragment"
_SNAPSHOT: Final = "/etcdserverpb.Maintenance/Snapshot"
_ALARM: Final = "/etcdserverpb.Maintenance/Alarm"

USEFUL_TXN_OPS: Final = 1024  # more than a group of 500 with members of 100 needs
_NO_SPACE: Final = 1
_ALARM_GET: Final = 0
_ALARM_DEACTIVATE: Final = 2
KEEP_ALIVE_TIMEOUT_S: Final = 2.0
NEXT_MEMBER_S: Final = 0.4
"""A keep-alive not answered within this time is sent to the next member as well."""
_ADMISSION_TIMEOUT_S: Final = 2.0
_COMPACT_TIMEOUT_S: Final = 30.0
_DEFRAGMENT_TIMEOUT_S: Final = 300.0

log = structlog.get_logger(__name__)


class EtcdBackend:
    """Sends requests to a real etcd; call `open` first. Adds `prefix` to sent keys, removes it from received ones."""

    def __init__(self, connection: EtcdConnection, prefix: bytes, *, repairing: bool = False) -> None:
        self._connection = connection
        self._lineage = Lineage(repairing=repairing)
        connection.check_store = self._check_store
        self._prefix = prefix
        self._encoder = wire.CommitEncoder(prefix)
        self._max_txn_ops = 0
        self._fence: tuple[RequestFence | None, bytes] = (None, b"")
        self.known_as = self._lineage.known_as
        self.encode: Callable[[Commit], bytes] = self._encoder.transaction
        self.wait_ready = connection.wait_ready
        self.why_not_ready = connection.why_not_ready
        self.wait_unfit = connection.wait_unfit
        self.condemn = connection.condemn

    @property
    def max_txn_ops(self) -> int:
        return self._max_txn_ops

    @property
    def pages_divided_by(self) -> int:
        return 1

    async def open(self) -> None:
        """Connect and find the limit by read-only requests. Raises the errors of `EtcdConnection.open`, including
        `StoreUnfit`, and `Unanswered`."""
        await self._connection.open()
        allowed, refused = 0, USEFUL_TXN_OPS + 1
        guess = USEFUL_TXN_OPS
        while refused - allowed > 1:
            if await self._allows(guess):
                allowed = guess
            else:
                refused = guess
            guess = (allowed + refused) // 2
        self._max_txn_ops = allowed

    async def _allows(self, ops: int) -> bool:
        compare = pb.Compare(key=self._prefix + b"/probe", version=0)
        request = pb.TxnRequest(compare=[compare] * ops)
        try:
            await self._connection.unary(_TXN, request.SerializeToString())
        except Refused as refusal:
            if refusal.reason is Reason.MALFORMED and "too many operations" in str(refusal):
                return False
            raise
        return True

    # --- the store's identity (`txnstore.access.lineage`) ---

    async def _check_store(self, endpoint: Endpoint) -> None:
        """▲ An unfit store stops everything, so it takes two looks: a member restarted between its two answers reports
        how far it has read its log, next to the revision of its file."""
        try:
            await self._look(endpoint)
        except StoreUnfit as error:
            log.warning("etcd seems unfit, looking again", endpoint=endpoint.address, error=str(error))
            await self._look(endpoint)

    async def _look(self, endpoint: Endpoint) -> None:
        """Both answers come from the same member, the record first: the log position is then no older than the record.
        ▲ etcd reads the revision before the log position."""
        floor = self._lineage.newest
        request = pb.RangeRequest(key=self._prefix + store_keys.INCARNATION).SerializeToString()
        reply = await self._connection.unary(_RANGE, request, timeout_s=_ADMISSION_TIMEOUT_S, endpoint=endpoint)
        found = pb.RangeResponse.FromString(reply)
        reply = await self._connection.unary(_STATUS, b"", timeout_s=_ADMISSION_TIMEOUT_S, endpoint=endpoint)
        status = pb.StatusResponse.FromString(reply)
        if status.header.member_id != found.header.member_id:
            raise Unanswered("two members answer at one address: their answers cannot be combined")
        self._lineage.admit(
            next(iter(self._records(found.kvs)), None),
            floor=floor,
            revision=found.header.revision,
            raft_index=status.raftIndex,
            raft_revision=status.header.revision,
        )

    async def raft_lead(self) -> int | None:
        """▲ Reads the log's index first, the revision after it: the result is never too large."""
        status = pb.StatusResponse.FromString(await self._connection.unary(_STATUS, b""))
        revision, _ = await self.read_many((store_keys.INCARNATION,), 0)
        return int(status.raftAppliedIndex) - revision

    def _told(self, floor: int, revision: int) -> int:
        try:
            self._lineage.answered(floor, revision)
        except StoreUnfit as error:
            raise self._connection.condemn(error) from None
        return revision

    # --- keys ---

    async def commit(
        self, members: Sequence[GroupMember], *, repeated: bool, fence: RequestFence | None = None
    ) -> list[CommitVerdict]:
        alone = len(members) == 1
        request = members[0].wire if alone else wire.group([member.wire for member in members])
        floor = self._lineage.newest
        answer = pb.TxnResponse.FromString(await self._connection.unary(_TXN, self._under(fence) + request))
        revision = self._told(floor, answer.header.revision)
        if fence is not None and not answer.succeeded and self._is_down(fence, answer):
            raise Fenced(f"{fence} was raised before this request came")
        if alone:
            # Not nested, so that etcd counts its puts towards the quota.
            return [self._verdict(answer, revision, repeated, skip=fence is not None)]
        success = CommitVerdict(True, revision, (), repeated)
        nested = [operation.response_txn for operation in answer.responses]
        if len(nested) != len(members):
            raise Unanswered(f"etcd answered {len(nested)} of {len(members)} nested transactions")
        return [success if one.succeeded else self._verdict(one, revision, repeated) for one in nested]

    def _under(self, fence: RequestFence | None) -> bytes:
        """The beginning of a request: the compare of its fence, and the read that shows whether this compare failed.
        Protobuf joins them with the compares and reads that follow."""
        if fence is None:
            return b""
        if self._fence[0] != fence:
            compare = unchanged_since(fence.key, fence.revision)
            commit = Commit(compares=(compare,), else_reads=(Read(fence.key),))
            self._fence = (fence, self._encoder.transaction(commit))
        return self._fence[1]

    @staticmethod
    def _is_down(fence: RequestFence, answer: pb.TxnResponse) -> bool:
        """▲ The fence decides, read at the revision of the compares: a commit that lost a compare of its own has a
        verdict, one sent under a lowered fence has none."""
        found = answer.responses[0].response_range.kvs
        return (found[0].mod_revision if found else 0) != fence.revision

    async def raise_fence(self, fence: RequestFence, lease: int) -> int:
        incarnation = self._lineage.incarnation_revision
        commit = Commit(
            # ▲ Only for this store: a repair deletes every process's fence, and no older process gets a new one.
            (unchanged_since(fence.key, fence.revision), unchanged_since(store_keys.INCARNATION, incarnation)),
            (Put(fence.key, b"", lease),),
            (),
            (Read(fence.key), Read(store_keys.INCARNATION)),
        )
        floor = self._lineage.newest
        reply = await self._connection.unary(_TXN, self._encoder.transaction(commit))
        answer = pb.TxnResponse.FromString(reply)
        result = self._verdict(answer, self._told(floor, answer.header.revision), False)
        if result.succeeded:
            return result.revision
        if (result.reads[1][0].mod_revision if result.reads[1] else 0) != incarnation:
            self._connection.look_again()
            raise Unanswered("the store's identity was written again: the client checks it before it sends")
        return result.reads[0][0].mod_revision if result.reads[0] else 0

    def _verdict(self, answer: pb.TxnResponse, revision: int, repeated: bool, *, skip: bool = False) -> CommitVerdict:
        """`skip`: its first read is that of the fence."""
        if answer.succeeded:
            return CommitVerdict(True, revision, (), repeated)
        reads = tuple([self._records(operation.response_range.kvs) for operation in answer.responses[skip:]])
        return CommitVerdict(False, revision, reads, repeated)

    async def read_many(self, keys: Sequence[bytes], revision: int) -> tuple[int, list[KeyValue | None]]:
        floor = self._lineage.newest
        if len(keys) == 1:
            request = pb.RangeRequest(key=self._prefix + keys[0], revision=revision)
            found = pb.RangeResponse.FromString(await self._connection.unary(_RANGE, request.SerializeToString()))
            records = self._records(found.kvs)
            return self._told(floor, found.header.revision), [records[0] if records else None]
        reads = [pb.RequestOp(request_range=pb.RangeRequest(key=self._prefix + key, revision=revision)) for key in keys]
        reply = await self._connection.unary(_TXN, pb.TxnRequest(success=reads).SerializeToString())
        answer = pb.TxnResponse.FromString(reply)
        pages = [self._records(operation.response_range.kvs) for operation in answer.responses]
        return self._told(floor, answer.header.revision), [page[0] if page else None for page in pages]

    async def read_page(self, start: bytes, end: bytes, *, revision: int, limit: int, keys_only: bool) -> RangePage:
        request = pb.RangeRequest(
            key=self._prefix + start or b"\0",
            range_end=self._prefix + end,
            limit=limit,
            revision=revision,
            keys_only=keys_only,
        )
        floor = self._lineage.newest
        found = pb.RangeResponse.FromString(await self._connection.unary(_RANGE, request.SerializeToString()))
        return RangePage(self._told(floor, found.header.revision), self._records(found.kvs), found.more)

    async def read_pages(self, ranges: Sequence[tuple[bytes, bytes]], *, revision: int, limit: int) -> list[RangePage]:
        reads = [
            pb.RequestOp(
                request_range=pb.RangeRequest(
                    key=self._prefix + start or b"\0", range_end=self._prefix + end, limit=limit, revision=revision
                )
            )
            for start, end in ranges
        ]
        floor = self._lineage.newest
        reply = await self._connection.unary(_TXN, pb.TxnRequest(success=reads).SerializeToString())
        answer = pb.TxnResponse.FromString(reply)
        told = self._told(floor, answer.header.revision)
        pages = [operation.response_range for operation in answer.responses]
        return [RangePage(told, self._records(page.kvs), page.more) for page in pages]

    async def count(self, start: bytes, end: bytes) -> int:
        request = pb.RangeRequest(key=self._prefix + start or b"\0", range_end=self._prefix + end, count_only=True)
        found = pb.RangeResponse.FromString(await self._connection.unary(_RANGE, request.SerializeToString()))
        return found.count

    def _records(self, found: Sequence[pb.KeyValue]) -> tuple[KeyValue, ...]:
        return tuple([record_of(kv, len(self._prefix)) for kv in found])

    # --- watches and leases ---

    async def open_watch(self, start: bytes, end: bytes, from_revision: int) -> EtcdWatchStream:
        create = pb.WatchCreateRequest(
            key=self._prefix + start or b"\0", range_end=self._prefix + end, start_revision=from_revision
        )
        return await EtcdWatchStream.open(self._connection, create, len(self._prefix))

    async def grant(self, ttl_s: int) -> tuple[int, float]:
        reply = await self._connection.unary(_GRANT, pb.LeaseGrantRequest(TTL=ttl_s).SerializeToString())
        granted = pb.LeaseGrantResponse.FromString(reply)
        return granted.ID, float(granted.TTL)

    async def keep_alive(self, lease_id: int) -> float:
        """Asks one member, and the others too if it stays silent for a while; the first answer counts."""
        renewers = self._connection.renewers()
        if not renewers:
            raise Unanswered("no etcd endpoint is connected")
        return await first_answer([partial(self._keep_alive_at, one, lease_id) for one in renewers], NEXT_MEMBER_S)

    async def _keep_alive_at(self, endpoint: Endpoint, lease_id: int) -> float:
        _, call = self._connection.stream(_KEEP_ALIVE, timeout_s=KEEP_ALIVE_TIMEOUT_S, endpoint=endpoint)
        try:
            await call.write(pb.LeaseKeepAliveRequest(ID=lease_id).SerializeToString())
            await call.done_writing()
            reply = await call.read()
        except grpc.aio.AioRpcError as error:
            await self._connection.stream_failed(endpoint, error.code(), error.details() or "")
        except asyncio.InvalidStateError:  # it ended before the write
            await self._connection.stream_failed(endpoint, await call.code(), await call.details() or "")
        finally:
            call.cancel()
        if not isinstance(reply, bytes):
            await self._connection.stream_failed(endpoint, grpc.StatusCode.UNAVAILABLE, "the keep-alive stream ended")
        renewed = pb.LeaseKeepAliveResponse.FromString(reply)
        if not self._connection.is_of_this_cluster(renewed.header.cluster_id):
            raise Unanswered(f"{endpoint.address} belongs to another cluster now")
        return max(float(renewed.TTL), 0.0)

    async def revoke(self, lease_id: int) -> None:
        try:
            await self._connection.unary(_REVOKE, pb.LeaseRevokeRequest(ID=lease_id).SerializeToString())
        except Refused as refusal:
            if refusal.reason is not Reason.LEASE_GONE:
                raise

    # --- maintenance ---

    async def status(self) -> StoreStatus:
        # ▲ After a linearizable read: a member that no longer applies still reports its status. The read detects it and
        # fails over, even in a process that only watches.
        await self.read_many((store_keys.INCARNATION,), 0)
        status = pb.StatusResponse.FromString(await self._connection.unary(_STATUS, b""))
        return StoreStatus(
            version=status.version,
            revision=status.header.revision,
            db_bytes=status.dbSize,
            db_bytes_in_use=status.dbSizeInUse,
            quota_bytes=status.dbSizeQuota,
            no_space=any("NOSPACE" in error for error in status.errors),
        )

    async def compact(self, revision: int) -> None:
        request = pb.CompactionRequest(revision=revision)
        try:
            await self._connection.unary(_COMPACT, request.SerializeToString(), timeout_s=_COMPACT_TIMEOUT_S)
        except Compacted:
            log.debug("compacted already", revision=revision)

    async def defragment(self) -> None:
        for endpoint in self._connection.endpoints:
            if endpoint.ready():
                await self._connection.unary(_DEFRAGMENT, b"", timeout_s=_DEFRAGMENT_TIMEOUT_S, endpoint=endpoint)

    async def snapshot(self) -> AsyncIterator[bytes]:
        """The file of one member, as `etcdctl snapshot save` writes it: its records and, behind them, their SHA-256.

        ▲ After a linearizable read by that same member: one that lags would leave out what was acknowledged before."""
        endpoint = self._connection.current
        request = pb.RangeRequest(key=self._prefix + store_keys.INCARNATION)
        await self._connection.unary(_RANGE, request.SerializeToString(), endpoint=endpoint)
        async for message in self._connection.download(_SNAPSHOT, b"", endpoint):
            yield pb.SnapshotResponse.FromString(message).blob

    async def disarm(self) -> None:
        request = pb.AlarmRequest(action=_ALARM_GET, alarm=_NO_SPACE)
        raised = pb.AlarmResponse.FromString(await self._connection.unary(_ALARM, request.SerializeToString()))
        for alarm in raised.alarms:
            if alarm.alarm == _NO_SPACE:
                off = pb.AlarmRequest(action=_ALARM_DEACTIVATE, memberID=alarm.memberID, alarm=_NO_SPACE)
                await self._connection.unary(_ALARM, off.SerializeToString())

    async def close(self) -> None:
        await self._connection.close()
