"""What chaos is made of: the schedule of faults, what is kept over a kill, the moments it waits for, the taps."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from simulation.clients.recorder import Recorder
from simulation.workloads.acking_work import AckingLog, NamedAck, Outside
from simulation.workloads.passing_work import Generation, PassingLog
from simulation.workloads.queue_work import Taken
from tests.etcd_members import Tap
from tests.process.chaos.faults import BROKERS, KINDS, SERVERS, schedule
from tests.process.chaos.journal import Journal, JournalReader, draft_of, open_journal
from tests.process.chaos.judging import ALARM
from tests.process.chaos.kept import LOGS, Kept, TakenOnDisk, WriteAheadConnection, read_kept, read_taken
from tests.process.chaos.moments import Moments
from tests.process.chaos.works import WORKS
from txnstore import keys
from txnstore.records import OwnerRecord, encode
from txnstore.store import Event, EventKind, KeyValue
from txnwire.ids import TxnId
from txnwire.proto import txn_pb2 as pb

WORKERS = tuple(WORKS)


# ---- the schedule --------------------------------------------------------------------------------------------------


def test_leaving_faults_out_changes_none_of_the_others() -> None:
    every = schedule(7, 300.0, WORKERS)
    assert every == schedule(7, 300.0, WORKERS)
    assert [fault.number for fault in every] == list(range(1, len(every) + 1))
    assert schedule(7, 300.0, WORKERS, only=[2, 5]) == [every[1], every[4]]
    assert schedule(7, 300.0, WORKERS, kinds=[]) == []


def test_seeds_differ_in_which_kinds_take_part_and_how_often() -> None:
    kinds = [frozenset(fault.kind for fault in schedule(seed, 2000.0, WORKERS)) for seed in range(60)]
    assert set().union(*kinds) == set(KINDS)
    assert len(set(kinds)) > 4
    counts = [len(schedule(seed, 2000.0, WORKERS)) for seed in range(60)]
    assert max(counts) > 2 * min(counts)


def test_targets_are_there_and_what_lasts_has_an_end() -> None:
    for fault in schedule(3, 3000.0, WORKERS, kinds=tuple(KINDS)):
        assert 0.0 <= fault.for_s <= 13.0
        if fault.kind.endswith("worker"):
            assert set(fault.targets) <= set(WORKERS)
        elif not fault.kind.startswith(("etcd", "strike")):
            assert set(fault.targets) <= set(SERVERS)


# ---- what is kept over a kill --------------------------------------------------------------------------------------


def test_a_journal_tells_the_latest_state_of_what_a_killed_worker_had_begun(tmp_path: Path) -> None:
    path = tmp_path / "history-1.jsonl"
    file = open_journal(path)
    reader = JournalReader(path)
    recorder = Recorder(lambda: 1.0, Journal(file, "first").write)
    draft = recorder.begin("first", "txn")
    draft.sending("in/k", "v")
    assert reader.read_on()[-1].outcome == "unknown"
    recorder.end(draft, "ok")
    Recorder(lambda: 2.0, Journal(file, "second").write).begin("second", "txn")
    with path.open("ab") as cut:
        cut.write(b'["second",1,{"proc')
    assert [(one.process, one.outcome) for one in reader.read_on()] == [("first", "ok"), ("second", "unknown")]
    assert [one.process for one in reader.operations] == ["first", "second"]
    assert draft_of(reader.operations[0]).operation() == reader.operations[0] == draft.operation()


def test_what_a_worker_of_a_queue_took_is_read_up_to_the_line_that_a_kill_has_cut(tmp_path: Path) -> None:
    path = tmp_path / "queue-1.taken.jsonl"
    taken = [Taken("queue-1.1", "3-1", ("a", "b")), Taken("queue-1.2", "3-2", ())]
    for one in taken:
        TakenOnDisk(path).append(one)
    with path.open("ab") as cut:
        cut.write(b'{"process":"qu')
    assert read_taken(path) == taken


async def test_what_is_known_of_the_topic_that_passes_is_on_disk_before_a_server_hears_of_it(tmp_path: Path) -> None:
    path = tmp_path / "passing.json"
    kept = Kept(path, PassingLog)
    heard: list[dict[str, None]] = []

    class Real:
        peer, pending_bytes = "broker", 0

        def send_nowait(self, command: pb.Command) -> None:
            heard.append(read_kept(path, PassingLog).attempts)

    connection = WriteAheadConnection(Real(), kept.write)  # type: ignore[arg-type]
    kept.log.generations.append(Generation(0, 1, None, acked=[("3-1", 1, "0-1")], in_txn={"0-1": ("3-1", 1)}))
    kept.log.attempts["3-1"] = None
    connection.send_nowait(pb.Command())
    assert heard == [{"3-1": None}]
    assert read_kept(path, PassingLog) == kept.log


def test_every_log_that_is_kept_comes_back_as_it_was(tmp_path: Path) -> None:
    for kind, log in LOGS.items():
        kept = Kept(tmp_path / kind, log)
        kept.write()
        assert read_kept(tmp_path / kind, log) == kept.log
    acking = Kept(tmp_path / "acking", AckingLog)
    acking.log.within.append(("3-1", NamedAck(up_to=((0, 1, 2, 3),))))
    acking.log.outside.append(Outside(NamedAck(values=("a",)), dropped=(NamedAck(values=("b",)),)))
    acking.log.owed["c"] = (0, 1, 2, 4)
    acking.write()
    assert read_kept(tmp_path / "acking", AckingLog) == acking.log


# ---- moments -------------------------------------------------------------------------------------------------------


def put(key: bytes, value: bytes) -> Event:
    return Event(EventKind.PUT, KeyValue(key=key, value=value, mod_revision=2, create_revision=2, version=1, lease=0))


async def test_a_strike_waits_for_its_kind_of_write_and_is_told_who_has_a_part_in_it() -> None:
    moments = Moments()
    path, txn_id = "public/sim/in/0000-ffff-0", TxnId(1, 2)
    owner = put(keys.OWNER + path.encode(), encode(OwnerRecord(broker=BROKERS[1], address="h:1")))
    moments.saw([owner])
    waiting = asyncio.ensure_future(moments.next("op"))
    decision = asyncio.ensure_future(moments.next("decision"))
    await asyncio.sleep(0)
    moments.saw([owner])
    assert not waiting.done()
    moments.saw([put(keys.op(keys.write_ops(txn_id, path), 1, 1), b"{}")])
    assert await waiting == BROKERS[1]
    assert not decision.done()
    decision.cancel()


# ---- taps ----------------------------------------------------------------------------------------------------------


async def test_a_muted_server_hears_and_is_not_heard_until_it_is_joined_again() -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            heard.put_nowait(data)
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    tap = Tap(server.sockets[0].getsockname()[1])
    await tap.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", tap.port)
        tap.mute()
        writer.write(b"one")
        assert await asyncio.wait_for(heard.get(), 10) == b"one"
        answer = asyncio.ensure_future(reader.read(100))
        await asyncio.wait({answer}, timeout=0.05)
        assert not answer.done()
        tap.join()
        assert await asyncio.wait_for(answer, 10) == b"one"
        tap.cut()
        writer.write(b"two")
        await asyncio.wait({ear := asyncio.ensure_future(heard.get())}, timeout=0.05)
        assert not ear.done()
        tap.reset()
        assert await asyncio.wait_for(reader.read(100), 10) == b""
        ear.cancel()
        writer.close()
        await writer.wait_closed()
    finally:
        await tap.close()
        server.close()
        await server.wait_closed()


# ---- judging -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"2026-11-21T03:40:55Z [error    ] segment_failed error=x", True),
        (b"Traceback (most recent call last):", True),
        (b"UNEXPECTED 1.0 history-1: DataCorrupt: x", True),
        (b"Task exception was never retrieved", True),
        (b"2026-11-21T03:40:55Z [info     ] segment_sealed sealed=True", False),
        (b"txnctl: InternalError: a role of this server has failed", True),
        (b"txnctl: StoreUnavailable: etcd does not answer", False),
        (b"12.000 history-1.7-1 met Timeout: asking", False),
    ],
)
def test_lines_of_logs_that_are_findings(line: bytes, found: bool) -> None:
    assert bool(ALARM.search(b"before\n" + line + b"\nafter")) is found
