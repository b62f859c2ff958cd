"""Transaction keys end to end: real clients, servers, etcd, ledgers and gRPC (003; DESIGN §9, SCENARIOS K1–K7)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.processes import read_all
from tests.txnclient.lossy_transport import LossyTransport
from tests.txnclient.test_with_cluster import receive
from tests.txnctl.command_line import done, txnctl
from tests.waiting import until, until_answer, until_turn
from txnclient import ExpiredTransaction, InvalidArgument, InvalidTxnState, TransactionState, TxnConflict
from txnclient.transactions.transaction import transaction_impl
from txnctl.admin import admin_keys
from txnctl.metrics.catalogue import families
from txnstore import keys
from txnstore.store import Commit, Put
from txnwire.clock import SystemClock
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.grpc_transport import GrpcTransport

TOPIC = "topic://public/default/keyed"
KEY = "nightly/job 7"


async def test_k1_a_new_holder_aborts_the_old_one_s_transaction_and_everything_of_that_one_fails(
    cluster: InProcessCluster,
) -> None:
    async with cluster.connect(transaction_key=KEY) as old:
        assert (old.transaction_key, old.key_epoch) == (KEY, 0)
        await old.create_topic(TOPIC, segments=2)
        producer = await old.producer(TOPIC)
        await producer.send(b"input", key="a")
        consumer = await old.consumer(TOPIC, "sub")
        (message,) = await consumer.receive_many(1, timeout=10.0)
        txn = await old.begin()
        await producer.send(b"of the old one", txn=txn)
        async with cluster.connect(transaction_key=KEY) as new:
            assert new.key_epoch == 1
            with pytest.raises(ExpiredTransaction):
                await producer.send(b"late", txn=txn)
            with pytest.raises(ExpiredTransaction):
                await consumer.ack(message, txn=txn)
            with pytest.raises(ExpiredTransaction):
                await txn.commit()
            assert txn.state is TransactionState.ABORTED
            with pytest.raises(ExpiredTransaction):
                await old.begin()
            async with new.transaction() as fresh, await new.producer(TOPIC) as other:
                await other.send(b"of the new one", txn=fresh)
            assert sorted(await read_all(new, TOPIC)) == [b"input", b"of the new one"]
            with pytest.raises(ExpiredTransaction, match="fenced"):
                async with old.transaction():
                    raise AssertionError("never begun")


async def test_k1_an_abort_of_the_old_holder_fails_too_and_leaves_it_aborted(cluster: InProcessCluster) -> None:
    async with cluster.connect(transaction_key=KEY) as old, cluster.connect() as other:
        txn = await old.begin()
        async with cluster.connect(transaction_key=KEY):
            with pytest.raises(ExpiredTransaction):
                await txn.abort()
            assert txn.state is TransactionState.ABORTED
            assert (await other.transaction_info(txn.id))["header"]["reason"] == "fenced"


async def test_a_client_with_a_key_has_one_transaction_at_a_time_and_no_named_ones(cluster: InProcessCluster) -> None:
    async with cluster.connect(transaction_key=KEY) as client:
        txn = await client.begin()
        with pytest.raises(InvalidTxnState, match="one at a time"):
            await client.begin()
        await txn.commit()
        second, third = await asyncio.gather(client.begin(), client.begin(), return_exceptions=True)
        assert isinstance(second, txnclient.Transaction)
        assert isinstance(third, InvalidTxnState)
        await second.abort()
        with pytest.raises(InvalidArgument, match="named"):
            await client.begin(name="job-7/42")
        for _ in range(5):
            async with client.transaction():
                pass
    with pytest.raises(InvalidArgument, match="&"):
        cluster.connect(transaction_key="a&b")


async def test_k2_a_client_that_loses_its_connection_keeps_its_epoch_and_its_transaction(
    cluster: InProcessCluster,
) -> None:
    async with cluster.connect(transaction_key=KEY) as client:
        await client.create_topic(TOPIC)
        async with await client.producer(TOPIC) as producer:
            txn = await client.begin()
            await producer.send(b"before", txn=txn)
            await cluster.restart_server("control")
            await producer.send(b"after", txn=txn)
            await asyncio.sleep(3.0)  # longer than the grace of a client that is gone
            await txn.commit()
            assert client.key_epoch == 0
            async with client.transaction() as second:
                await producer.send(b"next", txn=second)
            assert held(cluster) == [(KEY, 0)]
            assert await read_all(client, TOPIC) == [b"before", b"after", b"next"]


def held(cluster: InProcessCluster) -> list[tuple[str, int]]:
    """(key, epoch) of holders whose connections the coordinator knows."""
    coordinator = cluster.servers["control"].server.coordinator
    assert coordinator is not None
    return [(key.key, key.epoch) for key in coordinator.statistics().held_keys]


async def test_a_client_that_was_fenced_while_nobody_could_tell_it_hears_of_it(cluster: InProcessCluster) -> None:
    """Its header is collected by then: only the key still tells why its transaction has ended."""
    cluster.overrides["header_retention_s"] = 0.2
    await cluster.restart_server("control")
    async with cluster.connect(transaction_key=KEY) as old, cluster.connect(transaction_key=KEY) as new:
        assert (old.key_epoch, new.key_epoch) == (0, 1)
        async with new.transaction():
            pass
        with pytest.raises(ExpiredTransaction, match="fenced"):
            await old.begin()
    async with cluster.connect(transaction_key=KEY) as old:
        txn = await old.begin()
        async with cluster.connect(transaction_key=KEY) as new:
            async with asyncio.timeout(30):
                while (await new.outcomes([txn.id]))[txn.id] != "ABORTED" or await headers_of(new):
                    await asyncio.sleep(0.05)
            with pytest.raises(ExpiredTransaction, match="fenced"):
                await txn.commit()
            assert txn.state is TransactionState.ABORTED


@pytest.mark.parametrize("what", ["send", "send_many", "ack_cumulative", "abort"])
async def test_k1_whatever_comes_first_after_everything_is_collected_tells_that_it_was_fenced(
    cluster: InProcessCluster, what: str
) -> None:
    cluster.overrides["header_retention_s"] = 0.1
    await cluster.restart_server("control")
    async with cluster.connect(transaction_key=KEY) as old, cluster.connect() as other:
        await old.create_topic(TOPIC)
        async with await old.producer(TOPIC) as producer:
            await producer.send(b"input")
            consumer = await old.consumer(TOPIC, "sub")
            message = await consumer.receive(timeout=10.0)
            txn = await old.begin()
            if what.startswith("ack"):
                await consumer.ack_cumulative(message, txn=txn)
            # By nothing that its connection would tell it of.
            await other.admin("keys.delete", key=KEY)
            async with asyncio.timeout(30):
                while await headers_of(other):
                    await asyncio.sleep(0.02)
            if what.startswith("send"):  # nor does its broker remember
                await cluster.restart_server("broker")
            tried: dict[str, Callable[[], Awaitable[object]]] = {
                "send": lambda: producer.send(b"late", txn=txn),
                "send_many": lambda: producer.send_many([b"late"], txn=txn),
                "ack_cumulative": lambda: consumer.ack_cumulative(message, txn=txn),
                "abort": txn.abort,
            }
            with pytest.raises(ExpiredTransaction, match="fenced"):
                await tried[what]()
            assert txn.state is (TransactionState.ABORTED if what == "abort" else TransactionState.OPEN)


async def headers_of(client: txnclient.Client) -> list[object]:
    found: list[object] = (await client.admin("transactions.list"))["transactions"]
    return found


async def test_k1_a_fenced_client_asks_until_it_hears_so_also_over_lost_answers(cluster: InProcessCluster) -> None:
    """Being fenced closes its connection: what it asks over that one, right then, gets no answer."""
    transport = LossyTransport(GrpcTransport(SystemClock()))
    async with cluster.connect(transaction_key=KEY, transport=transport) as old:
        txn = await old.begin()
        transport.lose["error"] = 3
        async with cluster.connect(transaction_key=KEY):
            reason = await transaction_impl(txn).reason(TxnConflict("what it has acked is delivered again"))
        assert isinstance(reason, ExpiredTransaction)
        assert not transport.lose["error"]


async def test_k4_k7_keys_are_listed_their_transactions_aborted_and_deleted(cluster: InProcessCluster) -> None:
    async with cluster.connect(transaction_key=KEY) as client, cluster.connect() as other:
        await client.create_topic(TOPIC)
        txn = await client.begin()
        (row,) = (await done("keys", "list", "-o", "json", url=cluster.url)).json
        assert (row["key"], row["owner"], row["epoch"], row["state"]) == (KEY, "anonymous", 0, "in use")
        assert (row["txn"], row["txn_state"], row["begins"]) == (str(txn.id), "OPEN", 1)
        listed = await done("transactions", "list", "--transaction-key", KEY, "-o", "json", url=cluster.url)
        assert [(one["txn"], one["transaction_key"]) for one in listed.json] == [(str(txn.id), KEY)]
        shown, plain, described = await asyncio.gather(
            done("transactions", "get-transaction-key", KEY, "-o", "json", url=cluster.url),
            done("transactions", "list-transaction-keys", url=cluster.url),
            done("transactions", "describe", str(txn.id), url=cluster.url),
        )
        assert {name: shown.json[name] for name in ("key", "epoch", "txn")} == {
            "key": KEY,
            "epoch": 0,
            "txn": str(txn.id),
        }
        assert plain.out.splitlines()[0].split("  ")[0] == "key"
        assert f"transaction key {KEY}, epoch 0" in described.out
        # Its holder never comes back: an administrator ends what it has open, which fences nobody.
        await done("transactions", "abort", str(txn.id), url=cluster.url)
        with pytest.raises(InvalidTxnState, match="admin"):
            await txn.commit()
        txn = await client.begin()
        gone = await done("keys", "delete", KEY, url=cluster.url)
        assert gone.out == f"{KEY}: deleted, {txn.id} aborted\n"
        with pytest.raises(ExpiredTransaction):
            await txn.commit()
        with pytest.raises(ExpiredTransaction, match="deleted"):
            await client.begin()
        listed, all_of_them, again, unknown = await asyncio.gather(
            done("keys", "list", "-o", "json", url=cluster.url),
            done("keys", "list", "--deleted", "-o", "json", url=cluster.url),
            done("transactions", "delete-transaction-key", KEY, "-o", "json", url=cluster.url),
            txnctl("keys", "get", "no such", url=cluster.url),
        )
        assert listed.json == []
        assert [(one["key"], one["epoch"], one["state"]) for one in all_of_them.json] == [(KEY, 1, "deleted")]
        assert (again.json["epoch"], again.json["state"]) == (1, "deleted")
        assert (unknown.code, "no transaction key 'no such'" in unknown.err) == (1, True)
        async with cluster.connect(transaction_key=KEY) as back:
            assert back.key_epoch == 2
            async with back.transaction():
                pass
        assert not other.transaction_key


async def test_metrics_tell_of_the_keys_whose_holders_are_here(cluster: InProcessCluster) -> None:
    async with cluster.connect(transaction_key=KEY), cluster.connect(transaction_key=KEY):
        found = {family.name: family for family in families(cluster.servers["control"].server.statistics())}
    (count,) = found["pulsar_txn_transaction_key_count"].samples
    (epoch,) = found["pulsar_txn_transaction_key_epoch"].samples
    age = {sample.name: sample for sample in found["pulsar_txn_transaction_key_age"].samples}
    assert count.value == 1
    assert (epoch.value, epoch.labels) == (1, {"transaction_key": f"anonymous&{KEY}"})
    assert age["pulsar_txn_transaction_key_age_count"].value == 1
    assert 0 <= age["pulsar_txn_transaction_key_age_sum"].value < 60


async def test_k7_a_key_whose_holder_is_gone_is_idle_until_it_or_another_one_comes(cluster: InProcessCluster) -> None:
    async with cluster.connect() as onlooker:

        async def wait_state(wanted: str) -> None:
            listed = partial(onlooker.admin, "keys.list")
            await until_answer(listed, lambda answer: answer["keys"][0]["state"] == wanted, f"the key to be {wanted}")
            assert (await onlooker.admin("keys.get", key=KEY))["state"] == wanted

        async with cluster.connect(transaction_key=KEY):
            await wait_state("in use")
        await wait_state("idle")
        async with cluster.connect(transaction_key=KEY) as old, cluster.connect(transaction_key=KEY):
            await old.close()
            await wait_state("in use")
        await wait_state("idle")
        silent = Put(keys.tc(200), b'{"v":1,"id":"silent","address":"127.0.0.1:1"}')
        await cluster.servers["control"].store.commit(Commit(puts=(silent,)))
        await wait_state("unknown")  # its holder may be connected there


async def test_k7_of_keys_in_several_requests_none_is_idle_while_a_coordinator_is_silent(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ It is asked once: it counts for the keys of later requests as well."""
    monkeypatch.setattr(admin_keys, "KEYS_AT_ONCE", 1)
    for number in range(3):
        async with cluster.connect(transaction_key=f"job {number}"):
            pass
    async with cluster.connect(transaction_key="job 3") as onlooker:
        silent = Put(keys.tc(200), b'{"v":1,"id":"silent","address":"127.0.0.1:1"}')
        await cluster.servers["control"].store.commit(Commit(puts=(silent,)))

        async def listed() -> dict[str, str]:
            return {row["key"]: row["state"] for row in (await onlooker.admin("keys.list"))["keys"]}

        states = await until_answer(
            listed, lambda found: found["job 0"] == "unknown", "the silent coordinator to count", within_s=20
        )
    assert states == {"job 0": "unknown", "job 1": "unknown", "job 2": "unknown", "job 3": "in use"}


async def test_k6_a_fenced_stream_consumer_s_acks_are_refused(cluster: InProcessCluster) -> None:
    """In its transaction by the fence; outside of one once the new holder's consumer has its segments."""
    async with cluster.connect(transaction_key=KEY) as old:
        await old.create_topic(TOPIC)
        async with await old.producer(TOPIC) as producer:
            for number in range(6):
                await producer.send(b"%d" % number)
        zombie = await old.consumer(TOPIC, "sub", name="worker")
        first, second, third = await receive(zombie, 3)
        txn = await old.begin()
        await zombie.ack_cumulative(first, txn=txn)
        async with cluster.connect(transaction_key=KEY) as new:
            with pytest.raises(ExpiredTransaction):
                await zombie.ack_cumulative(second, txn=txn)
            with pytest.raises(ExpiredTransaction):
                await txn.commit()
            async with await new.consumer(TOPIC, "sub", name="worker") as consumer:
                mine = await receive(consumer, 6)
                assert [message.value for message in mine] == [b"%d" % number for number in range(6)]
                await ack_of_a_fenced_consumer(zombie, third)
                async with new.transaction() as fresh:
                    await consumer.ack_cumulative(mine[-1], txn=fresh)


async def ack_of_a_fenced_consumer(zombie: txnclient.Consumer, message: txnclient.Message) -> None:
    with pytest.raises(txnclient.TxnError) as refused:
        await asyncio.wait_for(zombie.ack_cumulative(message), 10.0)
    assert isinstance(refused.value, txnclient.NotAllowed | txnclient.ProducerFenced | InvalidArgument), refused.value


async def test_the_loop_keeps_to_one_transaction_at_a_time_and_ends_where_its_client_is_fenced(
    cluster: InProcessCluster,
) -> None:
    out = f"{TOPIC}-out"
    async with cluster.connect(transaction_key=KEY) as old, cluster.connect() as other:
        for topic in (TOPIC, out):
            await old.create_topic(topic, segments=2)
        async with await other.producer(TOPIC) as producer:
            await producer.send_many([(str(number % 7), b"%d" % number) for number in range(200)])

        async def work(client: txnclient.Client, idle_timeout: float | None) -> txnclient.ProcessStatistics:
            async with client.consumer(TOPIC, "sub", name="worker") as consumer, client.producer(out) as producer:
                return await txnclient.process(
                    consumer, lambda message: message.value, producer, batch_messages=10, idle_timeout=idle_timeout
                )

        first = asyncio.create_task(work(old, None))
        async with asyncio.timeout(30):
            while len(await read_all(other, out)) < 50:
                await asyncio.sleep(0.01)
            async with cluster.connect(transaction_key=KEY) as new:
                done_by_new = await work(new, 3.0)
                with pytest.raises(ExpiredTransaction):
                    await old.begin()
                first.cancel() if not first.done() else None
                await asyncio.wait((first,))
        values = await read_all(other, out)
        assert sorted(values, key=int) == [b"%d" % number for number in range(200)]
        assert done_by_new.again == 0


async def test_dead_letters_are_moved_beside_the_one_transaction_of_a_key(cluster: InProcessCluster) -> None:
    async with cluster.connect(transaction_key=KEY) as client:
        for topic in (TOPIC, f"{TOPIC}-dead"):
            await client.create_topic(topic)
        async with await client.producer(TOPIC) as producer:
            await producer.send(b"poison")
        async with client.consumer(
            TOPIC, "jobs", type="queue", max_redeliveries=1, dead_letter_topic=f"{TOPIC}-dead", redelivery_delay=0.0
        ) as consumer:
            txn = await client.begin()
            for _ in range(2):
                await consumer.nack(await consumer.receive(timeout=10.0))
            with pytest.raises(txnclient.Timeout):
                await consumer.receive(timeout=1.0)
            await until_answer(
                lambda: read_all(client, f"{TOPIC}-dead"),
                lambda found: found == [b"poison"],
                "the dead letter",
                within_s=10,
            )
            await txn.commit()


async def test_c5_a_keyed_begin_that_was_cancelled_is_aborted(cluster: InProcessCluster) -> None:
    """Dies where it stays open until its deadline, or until the client begins again."""
    transport = LossyTransport(GrpcTransport(SystemClock()))
    async with cluster.connect() as other, cluster.connect(transaction_key="job", transport=transport) as client:

        async def states() -> list[str]:
            return [one["state"] for one in (await other.admin("transactions.list"))["transactions"]]

        beginning = asyncio.create_task(client.begin(timeout=600.0))
        await until_turn(lambda: transport.sent["new_txn"], "the begin to be sent")
        beginning.cancel()
        await asyncio.wait((beginning,))
        await until_answer(states, lambda found: found == ["ABORTED"], "its transaction to be aborted", within_s=20)


@pytest.mark.parametrize("turns", range(1, 6))
async def test_c5_a_keyed_begin_that_was_cancelled_keeps_nobody_from_the_next(
    cluster: InProcessCluster, turns: int
) -> None:
    async with cluster.connect(transaction_key="job") as client:
        beginning = asyncio.create_task(client.begin(timeout=600.0))
        for _ in range(turns):
            await asyncio.sleep(0)
        beginning.cancel()
        await asyncio.wait((beginning,))
        await (await client.begin(timeout=600.0)).commit()


async def test_of_begins_that_wait_for_one_abort_one_begins(cluster: InProcessCluster) -> None:
    async with cluster.connect(transaction_key=KEY) as client:
        txn = await client.begin()
        aborting = asyncio.create_task(txn.abort())
        await asyncio.sleep(0)
        aborting.cancel()
        await asyncio.wait((aborting,))
        assert txn.state is TransactionState.ABORTING
        found = await asyncio.gather(*(client.begin() for _ in range(3)), return_exceptions=True)
        (begun,) = [one for one in found if isinstance(one, txnclient.Transaction)]
        assert all("one at a time" in str(one) for one in found if one is not begun)
        await begun.commit()


async def test_a_begin_waits_for_the_abort_of_the_former_transaction(cluster: InProcessCluster) -> None:
    """To the coordinator that one is still open: it would refuse the begin."""
    transport = LossyTransport(GrpcTransport(SystemClock()))
    async with cluster.connect(transaction_key=KEY, transport=transport) as client:
        former = await client.begin()
        transport.hold.add("end_txn")
        aborting = asyncio.create_task(former.abort())
        async with asyncio.timeout(20):
            while not transport.held:
                await asyncio.sleep(0.01)
        beginning = asyncio.create_task(client.begin())
        await asyncio.sleep(0.2)
        assert not beginning.done()
        transport.release()
        await aborting
        await (await beginning).commit()


async def test_a_begin_goes_on_where_the_cancelled_commit_before_it_has_been_decided(cluster: InProcessCluster) -> None:
    """▲ It raised `TxnDecided`, which asks not to do the work again that was to be begun."""
    transport = LossyTransport(GrpcTransport(SystemClock()))
    async with cluster.connect(transaction_key=KEY, transport=transport) as client:
        former = await client.begin()
        transport.lose["end_txn_ok"], transport.hold = 1, {"end_txn"}
        committing = asyncio.create_task(former.commit())
        await until(lambda: transport.held)
        connection, commit = transport.held.pop()
        connection.send_nowait(commit)  # the one that decides; what repeats it is held
        await until(lambda: not transport.lose["end_txn_ok"])
        committing.cancel()
        beginning = asyncio.create_task(client.begin())
        await until(lambda: [one.end_txn.action for _, one in transport.held].count(pb.TXN_ACTION_ABORT) == 2)
        transport.release()
        await (await beginning).commit()
        assert (await client.transaction_info(former.id))["outcome"] == "COMMITTED"


async def test_k3_of_clients_that_connect_at_once_each_becomes_the_holder_and_the_last_one_stays_it(
    cluster: InProcessCluster,
) -> None:
    """Who was too slow reads the epoch anew."""
    opening = [cluster.connect(transaction_key=KEY, timeout=10.0) for _ in range(4)]
    opened = await asyncio.gather(*opening, return_exceptions=True)
    clients = [one for one in opened if isinstance(one, txnclient.Client)]
    try:
        assert {client.key_epoch for client in clients} == set(range(4))
        for client in clients:
            if client.key_epoch == 3:
                await (await client.begin()).commit()
            else:
                with pytest.raises(ExpiredTransaction):
                    await client.begin()
    finally:
        await asyncio.gather(*(client.close() for client in clients))


async def test_what_was_begun_and_given_up_is_not_the_next_transaction(cluster: InProcessCluster) -> None:
    """Its time runs since then, which nobody has been told of; and a client with a key has one at a time."""
    transport = LossyTransport(GrpcTransport(SystemClock()))
    async with (
        cluster.connect() as other,
        cluster.connect(transaction_key=KEY, transport=transport, timeout=2.0) as client,
    ):
        transport.lose["new_txn_ok"] = 1_000_000
        with pytest.raises(txnclient.Timeout):
            await client.begin()
        transport.lose.clear()
        txn = await client.begin()
        listed = (await other.admin("transactions.list"))["transactions"]
        assert {one["txn"]: one["state"] for one in listed}.pop(str(txn.id)) == "OPEN"
        assert sorted(one["state"] for one in listed) == ["ABORTED", "OPEN"]
        await txn.commit()


async def test_a_transaction_whose_time_is_up_keeps_no_client_with_a_key_from_the_next_one(
    cluster: InProcessCluster,
) -> None:
    async with cluster.connect(transaction_key=KEY) as client:
        first = await client.begin(timeout=0.2)
        async with asyncio.timeout(20):
            while (await client.outcomes([first.id]))[first.id] == "OPEN":
                await asyncio.sleep(0.02)
        second = await client.begin()
        await second.commit()
