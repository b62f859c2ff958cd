"""What an operator may ask, what is refused, and what is told where nothing is known."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any, cast

import msgspec
import pytest

from coordinator_v5.naming.kept_names import KeptName
from coordinator_v5.queries import KeyDescription
from segments.layout.directory import Directory
from tests.segments.memory_transport import MemoryTransport
from tests.segments.virtual_time import LoopClock, virtual_time
from txnctl.admin import admin
from txnctl.admin.admin import Administration
from txnctl.admin.admin_arguments import MAX_ROWS, number_of
from txnctl.admin.admin_keys import KeyAnswers
from txnctl.admin.admin_names import NameAnswers
from txnctl.admin.admin_requests import AdminRequests
from txnctl.admin.role_calls import RoleCalls
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import COMMITTED, OPEN, Header, Op, TransactionKey, encode
from txnstore.store import Commit, Put
from txnstore.writes.name_transitions import Keep
from txnwire.errors import InvalidArgument, NameNotFound, TopicNotFound, TxnNotFound
from txnwire.ids import TxnId
from txnwire.proto import txn_pb2 as pb

NOW_MS = 1_700_000_100_000


@pytest.mark.parametrize(("given", "number"), [({}, 7.0), ({"n": None}, 7.0), ({"n": 0}, 0.0), ({"n": 10.0}, 10.0)])
def test_a_number_may_be_left_out_and_be_at_its_bounds(given: Mapping[str, Any], number: float) -> None:
    assert number_of(given, "n", 7.0, most=10) == number


@pytest.mark.parametrize("value", [-1, -0.001, 10.001, 11, float("nan"), float("inf"), "5", True, [], "x" * 1000])
def test_what_is_no_number_within_the_bounds_is_refused_in_few_words(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^n .{1,100}: expected a number from 0 to 10$"):
        number_of({"n": value}, "n", 7.0, most=10)


async def test_a_question_that_nobody_answers_here_is_refused_with_those_that_are() -> None:
    requests, asked = AdminRequests(), list[Mapping[str, Any]]()

    async def answer(args: Mapping[str, Any]) -> dict[str, Any]:
        asked.append(args)
        return {"found": 7}

    async def ask(what: str, arguments: str) -> pb.Command:
        handler: Any = requests.handlers["admin_request"]
        request = pb.AdminRequest(what=what, args_json=arguments)
        reply: pb.Command = await handler(None, pb.Command(admin_request=request))
        return reply

    with pytest.raises(InvalidArgument, match=r"does not answer 'a'; it answers: none \(it has no role"):
        await ask("a", "")
    requests.add({"b": answer})
    requests.add({"a": answer})
    with pytest.raises(InvalidArgument, match=r"does not answer 'c'; it answers: a, b$"):
        await ask("c", "{}")
    for arguments in ("", '{"x": 1}'):
        reply = await ask("a", arguments)
        assert msgspec.json.decode(reply.admin_reply.reply_json) == {"v": 1, "found": 7}
    assert asked == [{}, {"x": 1}]


@asynccontextmanager
async def asked() -> AsyncIterator[tuple[MemoryStore, Mapping[str, Any]]]:
    """All answers of an admin role over an empty store, in which there is no coordinator."""
    clock = LoopClock()
    async with AsyncExitStack() as closing:
        store = MemoryStore(MemoryEtcd(clock), clock, Random(1))
        closing.push_async_callback(store.close)
        directory = Directory(store, clock)
        await directory.start()
        closing.push_async_callback(directory.close)
        calls = RoleCalls(directory, MemoryTransport(), clock, Random(2), name="admin")
        closing.push_async_callback(calls.close)
        yield (
            store,
            {
                **Administration(store, directory, calls, clock).answers,
                **KeyAnswers(store, clock, directory, calls).answers,
                **NameAnswers(store, clock).answers,
            },
        )


TOPIC = {"topic": "topic://t/n/x"}
REFUSED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("topics.describe", {}, InvalidArgument, "topic is missing: expected text, found None"),
    ("topics.describe", {"topic": ""}, InvalidArgument, "topic is missing: expected text, found ''"),
    ("topics.stats", {"topic": 7}, InvalidArgument, "topic is missing: expected text, found 7"),
    ("topics.stats", TOPIC, TopicNotFound, "topic://t/n/x does not exist; `txnctl topics list`"),
    ("subscriptions.list", TOPIC, TopicNotFound, "does not exist"),
    ("subscriptions.lag", TOPIC, TopicNotFound, "does not exist"),
    ("subscriptions.positions", TOPIC, TopicNotFound, "does not exist"),
    ("transactions.list", {"state": 7}, InvalidArgument, "state 7: expected one of OPEN, COMMITTED, ABORTED"),
    ("transactions.list", {"segment": "segment://t/n/x/0000-ffff-0"}, TopicNotFound, "does not exist"),
    ("transactions.list", {"limit": MAX_ROWS + 1}, InvalidArgument, "limit 100001: expected a number from 0 to 100000"),
    ("transactions.list", {"older_than_s": -1}, InvalidArgument, "older_than_s -1: expected a number"),
    ("transactions.describe", {}, InvalidArgument, "txn is missing"),
    ("transactions.describe", {"name": "a"}, TxnNotFound, "no transaction is known by the name 'a'"),
    ("transactions.describe", {"txn": "0003-0000000000000001"}, TxnNotFound, "nothing is known of transaction 0003-"),
    ("transactions.hanging", {"older_than_s": "5"}, InvalidArgument, "older_than_s 5: expected a number"),
    ("transactions.outcomes", {"txns": ["a"]}, InvalidArgument, "lower-case hex digits"),
    ("keys.list", {"limit": MAX_ROWS + 1}, InvalidArgument, "limit 100001"),
    ("keys.get", {}, InvalidArgument, "key"),
    ("keys.get", {"key": "job"}, NameNotFound, "anonymous has no transaction key 'job'; `txnctl keys list`"),
    ("keys.delete", {"key": "job", "owner": "alice"}, NameNotFound, "alice has no transaction key 'job'"),
    ("names.list", {"limit": MAX_ROWS + 1}, InvalidArgument, "limit 100001"),
    ("names.list", {"prefix": 7}, InvalidArgument, "prefix 7: expected text"),
    ("names.list", {"namespace": []}, InvalidArgument, r"namespace \[\]: expected text"),
    ("names.delete", {}, InvalidArgument, "expected either a name or a prefix of names"),
    ("names.delete", {"name": "a", "prefix": "b"}, InvalidArgument, "expected either a name or a prefix of names"),
    ("names.delete", {"name": 7}, InvalidArgument, "name 7: expected text"),
]


@virtual_time
async def test_what_cannot_be_answered_is_refused_with_what_was_expected() -> None:
    async with asked() as (_, answers):
        for what, args, error, said in REFUSED:
            with pytest.raises(error, match=said):
                await answers[what](args)


@virtual_time
async def test_nothing_is_told_of_an_empty_cluster() -> None:
    async with asked() as (_, answers):
        told = {what: await answers[what]({}) for what in ("transactions.list", "transactions.hanging")}
        told |= {what: await answers[what]({}) for what in ("transactions.outcomes", "keys.list", "names.list")}
        assert told == {
            "transactions.list": {"transactions": []},
            "transactions.hanging": {"hanging": []},
            "transactions.outcomes": {"outcomes": {}},
            "keys.list": {"keys": []},
            "names.list": {"names": []},
        }
        assert await answers["names.delete"]({"prefix": "a"}) == {
            **{"deleted": 0, "open": 0, "kept": 0, "changed": 0},
            "after": None,
        }


@virtual_time
async def test_transactions_of_a_state_are_listed_in_whatever_case_it_is_typed() -> None:
    async with asked() as (store, answers):
        for number, state in enumerate((OPEN, COMMITTED), 1):
            header = Header(state=state, timeout_ms=NOW_MS, created_ms=1, finalized_ms=2 if state == COMMITTED else 0)
            await store.commit(Commit(puts=(Put(keys.txn(TxnId(0, number)), encode(header)),)))
        found = {"open": [OPEN], "Committed": [COMMITTED], "ABORTED": [], None: [OPEN, COMMITTED]}
        for asked_for, states in found.items():
            rows = (await answers["transactions.list"]({"state": asked_for, "limit": 0}))["transactions"]
            assert [row["state"] for row in rows] == states
            assert [row["timeout_in_s"] is None for row in rows] == [state != OPEN for state in states]


@pytest.mark.parametrize("most", [2, 3, 6])
@virtual_time
async def test_no_more_places_of_hanging_transactions_are_told_than_an_answer_has_room_for(most: int) -> None:
    segments = [f"t/n/gone/{name}" for name in ("0000-7fff-0", "8000-ffff-1")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admin, "HANGING_ROWS", most)
        async with asked() as (store, answers):
            for number in (1, 2, 3):
                txn_id = TxnId(0, number)
                puts = [Put(keys.txn(txn_id), encode(Header(state=OPEN, timeout_ms=NOW_MS, created_ms=number)))]
                for segment in segments:
                    op = encode(Op(v=1, kind="write", segment=segment, messages=1))
                    puts.append(Put(keys.op(keys.write_ops(txn_id, segment), 3, number), op))
                    puts.append(Put(keys.write_index(segment, txn_id), b""))
                await store.commit(Commit(puts=tuple(puts)))
            rows = (await answers["transactions.hanging"]({"older_than_s": 0}))["hanging"]
    every = [(str(TxnId(0, number)), segment) for number in (1, 2, 3) for segment in segments]
    assert [(row["txn"], row["segment"]) for row in rows] == every[:most]


class At:
    def wall_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("ended_ms", "keep_ms", "told"),
    [
        (0, 60_000, (None, None)),
        (NOW_MS - 1_250, 60_000, (1.2, 59)),
        (NOW_MS - 90_000, 60_000, (90.0, 0)),
        (NOW_MS + 5_000, 60_000, (0.0, 65)),
    ],
    ids=["open", "kept", "over", "by a clock that is ahead"],
)
def test_a_name_is_told_with_the_time_since_its_end_and_how_long_it_is_known(
    ended_ms: int, keep_ms: int, told: tuple[float | None, float | None]
) -> None:
    one = KeptName("job/1", TxnId(3, 1), COMMITTED, ended_ms, False, Keep(ms=keep_ms, newest=True), "rows=1")
    row = NameAnswers(cast(Any, None), At())._row(one)
    assert (row.pop("ended_s"), row.pop("known_for_s")) == told
    assert row == {
        **{"name": "job/1", "txn": str(TxnId(3, 1)), "state": COMMITTED},
        **{"keep_newest": True, "note": "rows=1"},
    }


def test_a_key_is_told_with_the_age_of_its_open_transaction_alone() -> None:
    answers = KeyAnswers(cast(Any, None), At(), cast(Any, None), cast(Any, None))
    record = TransactionKey(epoch=3, since_ms=NOW_MS - 2_500, begins=4, txn_id=str(TxnId(3, 1)))
    opened = Header(state=OPEN, timeout_ms=NOW_MS, created_ms=NOW_MS - 1_500)
    ended = msgspec.structs.replace(opened, state=COMMITTED, finalized_ms=NOW_MS)
    told = []
    for header in (opened, ended, None):
        row = answers._row(KeyDescription("alice", "job", record, header), "idle")
        told.append((row["state"], row["held_s"], row["begins"], row["txn_state"], row["txn_age_s"]))
    assert told == [("idle", 2.5, 4, OPEN, 1.5), ("idle", 2.5, 4, COMMITTED, None), ("idle", 2.5, 4, None, None)]
