"""E8, the store's half: an etcd that was restored from a backup is found out, by who starts and by who goes on."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path

import grpc
import pytest

from tests.etcd_members import EtcdMembers
from txnstore import keys
from txnstore.access.lineage import Lineage, StoreUnfit
from txnstore.etcd import rpc_pb2 as pb
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnstore.records import Incarnation, encode
from txnstore.store import Commit, Delete, KeyValue, Put, StoreWatch
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import TxnError


def incarnation(id: str = "a", *, raft_lead: int | None = 3, repair: str = "") -> KeyValue:
    return KeyValue(
        keys.INCARNATION, encode(Incarnation(id=id, created_ms=1, raft_lead=raft_lead, repair=repair)), 1, 7, 7
    )


def admit(lineage: Lineage, record: KeyValue | None, *, revision: int = 20, raft_index: int = 30) -> None:
    lineage.admit(record, floor=lineage.newest, revision=revision, raft_index=raft_index, raft_revision=revision)


def test_e8_a_log_that_has_begun_anew_is_a_backup_restored() -> None:
    admit(Lineage(), incarnation(), raft_index=23)
    with pytest.raises(StoreUnfit, match="restored from a backup"):
        admit(Lineage(), incarnation(), raft_index=22)
    admit(Lineage(), incarnation(raft_lead=None), raft_index=4)  # of a store that is older than this knowledge
    admit(Lineage(), None, raft_index=4)  # a new one
    admit(Lineage(repairing=True), incarnation(), raft_index=4)


def test_e8_a_revision_never_goes_back_under_a_client() -> None:
    lineage = Lineage()
    admit(lineage, incarnation())
    lineage.answered(lineage.newest, 25)
    lineage.answered(20, 24)  # was sent before 25 was told
    with pytest.raises(StoreUnfit, match="gone back from revision 25 to 24"):
        lineage.answered(25, 24)
    with pytest.raises(StoreUnfit, match="gone back"):
        admit(lineage, incarnation(), revision=24)
    # ▲ A member that was asked before 25 was told, and has answered after that.
    lineage.admit(incarnation(), floor=20, revision=24, raft_index=40, raft_revision=30)
    assert lineage.newest == 25


def test_e8_another_identity_or_a_repair_under_way_is_no_store_to_work_with() -> None:
    lineage = Lineage()
    admit(lineage, None)
    admit(lineage, incarnation("a"))  # founded meanwhile
    for record in (incarnation("b"), None):
        with pytest.raises(StoreUnfit, match="repaired or replaced"):
            admit(lineage, record)
    with pytest.raises(StoreUnfit, match=r"must be repaired \(half done\)"):
        admit(Lineage(), incarnation(repair="half done"))


async def connect(etcd: EtcdMembers, **options: object) -> EtcdStore:
    settings = EtcdSettings(endpoints=etcd.urls, prefix="/c", request_timeout_s=2.0, **options)  # type: ignore[arg-type]
    return await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())


class Member:
    """An etcd that answers what admission asks, over a real socket: `looks` are the (member, log index) that its
    statuses tell, the last one for ever. Its revision is 100; when /incarnation was written 10 behind its log."""

    def __init__(self, *looks: tuple[int, int]) -> None:
        self.looks = list(looks)
        self.server = grpc.aio.server()
        methods = {"KV": {"Range": self.range, "Txn": self.txn}, "Maintenance": {"Status": self.status}}
        for service, handlers in methods.items():
            named = {name: grpc.unary_unary_rpc_method_handler(handler) for name, handler in handlers.items()}
            self.server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(f"etcdserverpb.{service}", named),)
            )

    async def range(self, request: bytes, _: object) -> bytes:
        record = incarnation(raft_lead=10)
        found = pb.KeyValue(key=b"/c" + record.key, value=record.value, version=1, create_revision=7, mod_revision=7)
        kvs = [found] if pb.RangeRequest.FromString(request).key == found.key else []
        return pb.RangeResponse(header=self.header(1), kvs=kvs).SerializeToString()

    async def txn(self, _: bytes, __: object) -> bytes:
        return pb.TxnResponse(header=self.header(1), succeeded=True).SerializeToString()

    async def status(self, _: bytes, __: object) -> bytes:
        member, index = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        answer = pb.StatusResponse(header=self.header(member), version="3.5.9", leader=1, raftIndex=index)
        return answer.SerializeToString()

    def header(self, member: int) -> pb.ResponseHeader:
        return pb.ResponseHeader(cluster_id=1, member_id=member, revision=100)


READS_ITS_LOG, HAS_READ_IT = (1, 40), (1, 115)


@pytest.mark.parametrize(
    ("looks", "alarm"),
    [
        # The first is of the admission's own status, before it looks at the store.
        ((HAS_READ_IT, READS_ITS_LOG, HAS_READ_IT), False),
        ((HAS_READ_IT, (2, 40), HAS_READ_IT), False),
        ((HAS_READ_IT, READS_ITS_LOG, READS_ITS_LOG), True),
    ],
)
async def test_e8_a_member_that_still_reads_its_log_raises_no_alarm(
    looks: tuple[tuple[int, int], ...], alarm: bool
) -> None:
    """▲ Restarted in the midst of being looked at, or with another one behind its address: a second look tells."""
    member = Member(*looks)
    port = member.server.add_insecure_port("127.0.0.1:0")
    await member.server.start()
    settings = EtcdSettings(endpoints=(f"127.0.0.1:{port}",), prefix="/c")
    try:
        with pytest.raises(StoreUnfit, match="backup") if alarm else nullcontext():
            store = await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())
            await store.close()
    finally:
        await member.server.stop(None)


async def exhausted(watch: StoreWatch) -> None:
    async for _ in watch:
        pass


@pytest.mark.process
@pytest.mark.timeout(60)
async def test_e8_a_real_etcd_restored_is_refused_by_who_starts_and_by_who_goes_on(tmp_path: Path) -> None:
    etcd = EtcdMembers(tmp_path, size=1)
    await etcd.start()
    stores: list[EtcdStore] = []
    try:
        stores.append(idle := await connect(etcd))
        await idle.incarnation()
        stores.append(busy := await connect(etcd))
        for number in range(20):
            await busy.commit(Commit(puts=(Put(b"/k/%d" % number, b""),)))
        watch = idle.watch(b"/k/", b"/k0", from_revision=1)
        await anext(watch)
        await etcd.save(tmp_path / "backup")
        stores.append(await connect(etcd))  # taking a backup harms nothing
        await etcd.members[0].stop()
        await etcd.members[0].start()
        await busy.commit(Commit(puts=(Put(b"/k/restarted", b""),)))  # nor does a restart
        await etcd.restore(tmp_path / "backup")
        with pytest.raises(StoreUnfit, match="restored from a backup"):
            await connect(etcd)
        for store in (idle, busy):
            with pytest.raises(StoreUnfit):
                await store.get(b"/k/0")
            async with asyncio.timeout(10):
                assert isinstance(await store.wait_unfit(), StoreUnfit)
        with pytest.raises(StoreUnfit):
            await asyncio.wait_for(exhausted(watch), 10)
        stores.append(repairing := await connect(etcd, repairing=True))
        found = await repairing.range(b"/k/", b"/k0")
        assert len(found.records) == 20, "nobody has written to it: neither with nor without having seen it before"
    finally:
        for store in stores:
            await store.close()
        await etcd.stop()


@pytest.mark.process
async def test_e8_a_repair_takes_the_right_to_write_from_whoever_is_still_connected(etcd: str, key_prefix: str) -> None:
    """▲ Not even the write that is on its way passes, nor one by a process that has not sent anything for long."""
    settings = EtcdSettings(endpoints=(etcd,), prefix=key_prefix, development=True)
    zombie = await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())
    repairing = await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())
    try:
        before = await zombie.identity()
        await zombie.commit(Commit(puts=(Put(b"/k/a", b""),)))
        after = encode(Incarnation(id="another", created_ms=1, former=[before.id]))
        senders = Delete(keys.SENDER, keys.prefix_end(keys.SENDER))
        await repairing.commit(Commit(puts=(Put(keys.INCARNATION, after),), deletes=(senders,)))
        with pytest.raises(TxnError, match="repaired or replaced"):
            await zombie.commit(Commit(puts=(Put(b"/k/b", b""),)))
        assert isinstance(await zombie.wait_unfit(), StoreUnfit)
        fresh = await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())
        assert await fresh.get(b"/k/b") is None
        await fresh.close()
    finally:
        await zombie.close()
        await repairing.close()
