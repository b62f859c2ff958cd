"""What only a process of its own shows of `txnctl serve`: signals, exit codes, its pages, its log, its files."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

import txnclient
from tests.process.serving import FEW_FILES, READY_S, Serving, serving
from tests.txnctl.command_line import done, txnctl
from tests.waiting import until, until_accepted, until_answer
from txnctl.process.serve import OTHER_FILES
from txnctl.process.store_mark import StoreMark
from txnstore import keys, records
from txnstore.etcd.embedded_etcd import EmbeddedEtcd, EtcdCommand, free_port
from txnstore.etcd.etcd_store import EtcdStore
from txnstore.records import BrokerRegistration, DataFolder
from txnstore.store import Commit, Delete, Put

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

TOPIC = "topic://public/default/served"
LEASED = (keys.OWNER, keys.BROKER, keys.TC, keys.TC_MEMBER, keys.LEADER)


async def leased(store: EtcdStore) -> dict[str, int]:
    """How many keys of each kind that a process holds by its lease are in etcd."""
    return {prefix.decode(): await store.count(prefix, keys.prefix_end(prefix)) for prefix in LEASED}


async def value_of(server: Serving, metric: str) -> float:
    lines = (await server.get("/metrics")).body.splitlines()
    return float(next(line for line in lines if line.startswith(f"{metric} ")).split()[1])


async def test_a_server_works_as_it_was_told_and_leaves_at_sigterm_without_a_trace(
    tmp_path: Path, etcd: str, key_prefix: str, store: EtcdStore
) -> None:
    """Settings from a file, the environment and flags; pages, log and files of a server at work; a graceful end."""
    listen = f"127.0.0.1:{free_port()}"
    advertised = listen.replace("127.0.0.1", "localhost")
    config = tmp_path / "server.toml"
    config.write_text(
        f'id = "one"\nroles = "broker"\nlease_ttl_s = 5\nadvertise = "{advertised}"\nmax_connections = 700\n'
    )
    environment = {"TXN_CONFIG": str(config), "TXN_ROLES": "coordinator,controller,broker,admin", "TXN_IDD": "typo"}
    async with serving(
        tmp_path, "--listen", listen, "--tcids", "2", etcd=etcd, prefix=key_prefix, environment=environment
    ) as server:
        await server.until_ready()
        told = await server.until_logged("serving", "http ")

        assert "TXN_IDD" in told, "what looks like a setting and is none"
        assert f"address={advertised}" in told
        assert f"address={server.admin}" in told
        assert "\x1b" not in told, "colours are for terminals"

        limits = Path(f"/proc/{server.process.pid}/limits").read_text().splitlines()
        soft = next(line.split()[3] for line in limits if line.startswith("Max open files"))
        assert int(soft) == 700 + OTHER_FILES > FEW_FILES

        [broker] = (await store.range(keys.BROKER, keys.prefix_end(keys.BROKER))).records
        assert records.decode(BrokerRegistration, broker.value, key=broker.key).address == advertised
        [listed] = (await done("brokers", "list", "-o", "json", url=f"txn://{listen}")).json
        assert (listed["broker"], listed["pid"], listed["admin"]) == ("one", server.process.pid, server.admin)

        mark = StoreMark(tmp_path / "data").read()
        assert mark is not None
        assert mark.incarnation == (await store.identity()).id
        assert (tmp_path / "data" / "ledgers" / "folder-id").is_file()
        assert (tmp_path / "data" / "reserve").stat().st_size > 0

        nowhere = await server.get("/nothing")
        assert (nowhere.status, nowhere.body) == (404, "try /healthz, /readyz or /metrics\n")
        for page in ("/healthz", "/readyz", "/nothing"):
            answer = await server.get(page)
            assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
            assert int(answer.headers["Content-Length"]) == len(answer.body)

        async with txnclient.connect(f"txn://{listen}") as client:
            await client.create_topic(TOPIC)
            async with await client.producer(TOPIC) as producer, client.transaction() as txn:
                await producer.send(b"value", txn=txn)

            os.kill(server.process.pid, signal.SIGSTOP)
            await asyncio.sleep(0.6)  # it sleeps, not the test: its own clock is to show the pause
            os.kill(server.process.pid, signal.SIGCONT)
            assert await value_of(server, "txnstore_longest_pause_seconds") >= 0.5
            assert await value_of(server, "txnstore_longest_pause_cpu_seconds") < 0.5

            revision, _ = await store.get_many([keys.INCARNATION])

            def kept() -> bool:
                mark = StoreMark(tmp_path / "data").read()
                return mark is not None and mark.revision >= revision

            await until(kept, "the mark of etcd, kept every ten seconds", within_s=READY_S)

        assert all((await leased(store)).values()), await leased(store)
        server.process.send_signal(signal.SIGTERM)
        assert await server.wait(10.0) == 0
        assert (await leased(store)) == dict.fromkeys(await leased(store), 0), "nobody waits for a lease to end"
        assert server.process.stdout is not None
        assert await server.process.stdout.read() == b""
        told = server.log.read_text()
        last = told.splitlines()[-1]
        assert "stopped" in last
        assert "id=one" in last
        assert "[debug" not in told, "of connections that come and go, say"
        assert "GET " not in told, "health checks come every few seconds"


async def test_a_second_signal_ends_a_server_whose_etcd_does_not_answer(
    tmp_path: Path, etcd_process: EmbeddedEtcd
) -> None:
    async with serving(tmp_path, "--listen", "127.0.0.1:0", etcd=etcd_process.url, prefix="/c") as server:
        await server.until_ready()
        await etcd_process.pause()
        server.process.send_signal(signal.SIGTERM)
        answer = await until_answer(
            lambda: server.get("/readyz"),
            lambda page: page.body == "not ready: it is going down\n",
            "a page that says that it goes down",
            within_s=READY_S,
        )
        assert answer.status == 503
        assert (await server.get("/healthz")).status == 200
        assert "txnstore_ready{" in (await server.get("/metrics")).body
        server.process.send_signal(signal.SIGTERM)
        assert await server.wait() == -signal.SIGTERM


HUNG_DISK = """
import os, pathlib, time
flag = pathlib.Path(os.environ["HUNG_DISK"])
def held(real):
    def sync(fd):
        while flag.exists():
            flag.with_suffix(".held").touch()
            time.sleep(0.05)
        return real(fd)
    return sync
os.fsync, os.fdatasync = held(os.fsync), held(os.fdatasync)
"""


async def test_a_server_whose_disk_hangs_ends_at_sigterm_all_the_same(
    tmp_path: Path, etcd: str, key_prefix: str
) -> None:
    """▲ Its supervisor would wait for it, and nobody would start it again."""
    (tmp_path / "sitecustomize.py").write_text(HUNG_DISK)
    flag, listen = tmp_path / "disk.hangs", f"127.0.0.1:{free_port()}"
    environment = {"PYTHONPATH": f"{tmp_path}:{os.getcwd()}", "HUNG_DISK": str(flag)}
    async with serving(tmp_path, "--listen", listen, etcd=etcd, prefix=key_prefix, environment=environment) as server:
        await server.until_ready()
        flag.touch()
        await until(flag.with_suffix(".held").exists, "the mark of etcd, kept every ten seconds", within_s=READY_S)
        server.process.send_signal(signal.SIGTERM)
        assert await server.wait(40.0) == 1
        assert "ended without its threads" in server.log.read_text().splitlines()[-1]


@pytest.mark.parametrize(
    ("asked_for", "code"), [("ledgers/folder-id", 0), ("store-mark", 1)], ids=["of the ledgers", "of the mark"]
)
async def test_a_server_whose_disk_does_not_answer_as_it_starts_heeds_the_first_sigterm(
    tmp_path: Path, etcd: str, key_prefix: str, store: EtcdStore, asked_for: str, code: int
) -> None:
    """A pipe in place of a file stands for that disk: who reads it waits. ▲ An operator would wait for the server."""
    record = DataFolder(id="known", broker="before", path="there")
    await store.commit(Commit(puts=(Put(keys.DATA_FOLDER, records.encode(record)),)))
    pipe = tmp_path / "data" / asked_for
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    async with serving(tmp_path, "--listen", "127.0.0.1:0", etcd=etcd, prefix=key_prefix) as server:
        writer = await until_accepted(
            lambda: asyncio.to_thread(os.open, pipe, os.O_WRONLY | os.O_NONBLOCK),
            OSError,
            "a server that reads it",
            within_s=READY_S,
        )
        try:
            server.process.send_signal(signal.SIGTERM)
            assert await server.wait() == code
        finally:
            os.close(writer)
        told = server.log.read_text()
        assert "stopped" in told
        assert ("ended without its threads" in told.splitlines()[-1]) == (code == 1)


@pytest.mark.parametrize("log", ["on a full disk", "without a reader"])
async def test_a_server_whose_log_cannot_be_written_serves_and_leaves_all_the_same(
    tmp_path: Path, etcd: str, key_prefix: str, log: str
) -> None:
    """▲ A segment would be owned and never served: the line that tells of its take-over is written before that."""
    listen = f"127.0.0.1:{free_port()}"
    reader, writer = os.pipe() if log == "without a reader" else (None, os.open("/dev/full", os.O_WRONLY))
    async with serving(tmp_path, "--listen", listen, etcd=etcd, prefix=key_prefix, stderr=writer) as server:
        os.close(writer)
        await server.until_ready()
        if reader is not None:
            os.close(reader)
        async with txnclient.connect(f"txn://{listen}", timeout=20.0) as client:
            await client.create_topic(TOPIC)
            async with await client.producer(TOPIC) as producer, client.transaction() as txn:
                await producer.send(b"value", txn=txn)
        assert (await server.get("/readyz")).body == "ready\n"
        server.process.send_signal(signal.SIGTERM)
        assert await server.wait() == 0


async def test_a_server_ends_with_a_word_when_its_etcd_has_no_identity_any_more_and_where_none_answers(
    tmp_path: Path, etcd: str, key_prefix: str, store: EtcdStore
) -> None:
    """Its supervisor starts it again, and finds out. Neither shows a traceback."""
    nobody = f"http://127.0.0.1:{free_port()}"
    common = ("serve", "--listen", "127.0.0.1:0", "--admin-listen", "off", "--data-dir", str(tmp_path / "none"))
    refused = asyncio.create_task(txnctl(*common, "--etcd", nobody))
    async with serving(
        tmp_path, "--roles", "coordinator", "--listen", "127.0.0.1:0", etcd=etcd, prefix=key_prefix
    ) as server:
        await server.until_ready()
        await store.commit(Commit(deletes=(Delete(keys.INCARNATION),)))
        assert await server.wait() == 1
        last = server.log.read_text().splitlines()[-1]
        assert last.startswith("txnctl: StoreUnfit: etcd was store ")
        assert last.endswith("it has no identity any more")
        assert "Traceback" not in server.log.read_text()
    answer = await refused
    assert answer.code == 1
    assert nobody.removeprefix("http://") in answer.err
    assert not (tmp_path / "none").exists(), "nothing is made before etcd answers"


async def test_e4_a_server_ends_with_a_word_once_another_cluster_is_at_its_etcds_address(
    tmp_path: Path, key_prefix: str
) -> None:
    """▲ Waiting for the first one it would hold its place for ever, and its supervisor would take it for alive."""
    port = free_port()
    first = EmbeddedEtcd(EtcdCommand(data_dir=tmp_path / "first", client_port=port))
    another = EtcdCommand(data_dir=tmp_path / "other", client_port=port, extra=("--initial-cluster-token=other",))
    other = EmbeddedEtcd(another)
    try:
        await first.start()
        async with serving(tmp_path, "--listen", "127.0.0.1:0", etcd=first.url, prefix=key_prefix) as server:
            await server.until_ready()
            await first.stop()
            await other.start()
            assert await server.wait() == 1
            told = server.log.read_text()
            last = told.splitlines()[-1]
            assert last.startswith("txnctl: ")
            assert f"etcd at 127.0.0.1:{port} belongs to cluster " in last
            assert told.count("etcd endpoint must not be used") == 1
    finally:
        await first.stop()
        await other.stop()
