"""What people and programs see: errors as JSON, completion, colour and width, questions before a deletion."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from tests.cluster import InProcessCluster
from tests.txnctl.command_line import done, on_a_terminal, txnctl
from txnctl.commands.shared.asking import start_of
from txnctl.main import wants_json
from txnwire.errors import InvalidArgument
from txnwire.ids import MessageId, Position

TOPIC = "topic://public/default/orders"


async def test_errors_are_json_for_who_asked_for_json(cluster: InProcessCluster) -> None:
    answers = await asyncio.gather(
        txnctl("topics", "describe", "topic://a/b/none", "-o", "json", url=cluster.url),
        txnctl("topics", "describe", "nonsense", "--output=json", url=cluster.url),
        txnctl("topics", "describe", "--output", "json", url=cluster.url),
        txnctl("nosuch", "-o", "json"),
    )
    told = [msgspec.json.decode(answer.err) for answer in answers]
    assert [answer.code for answer in answers] == [1, 2, 2, 2] == [one["exit_code"] for one in told]
    assert [one["error"] for one in told] == ["TopicNotFound", "InvalidArgument", "Usage", "Usage"]
    assert not any(answer.out for answer in answers)
    assert "does not exist" in told[0]["message"]
    assert told[0]["retriable"] is False


@pytest.mark.parametrize(
    ("words", "json"),
    [
        (["topics", "list", "-o", "json"], True),
        (["topics", "list", "-ojson"], True),
        (["topics", "list", "--output=json"], True),
        (["topics", "list", "-o", "table"], False),
        (["produce", "json"], False),
        (["topics", "list", "-o"], False),
        ([], False),
    ],
)
def test_json_is_told_from_the_words(words: list[str], json: bool) -> None:
    assert wants_json(words) is json


async def test_without_a_command_it_tells_its_commands() -> None:
    told = await txnctl()
    assert "transactions" in told.out + told.err


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("txnctl tr", "transactions"),
        ("txnctl transactions ha", "hanging"),
        ("txnctl consume --isolation read_u", "read_uncommitted"),
    ],
)
def test_the_shell_completes_commands_and_choices(line: str, offered: str) -> None:
    environment = os.environ | {
        "_TXNCTL_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    completed = subprocess.run(
        [Path(sys.executable).parent / "txnctl"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert completed.stdout.split() == [offered]


def test_starts_are_read_as_people_type_them() -> None:
    assert start_of("earliest") == "earliest"
    assert start_of("1700000000000") == 1_700_000_000_000
    assert start_of("a/b/c/0000-ffff-0@7:42:0") == MessageId("a/b/c/0000-ffff-0", Position(7, 42), 0)
    time = start_of("2026-11-20T21:00:00Z")
    assert not isinstance(time, str | int | MessageId)
    assert time.isoformat() == "2026-11-20T21:00:00+00:00"
    assert start_of("2026-11-20T21:00") == datetime(2026, 11, 20, 21).astimezone()
    with pytest.raises(InvalidArgument, match="expected 'earliest', 'latest', milliseconds"):
        start_of("yesterday")


async def test_colour_and_width_are_for_terminals_alone(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, url=cluster.url)
    words = ("topics", "stats", TOPIC, "--url", cluster.url)
    code, shown = await asyncio.to_thread(on_a_terminal, *words, columns=100)
    assert code == 0
    assert "\x1b[1m" in shown
    plain = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line).rstrip() for line in shown.splitlines()]
    assert max(map(len, plain)) <= 100
    piped = await done(*words[:3], url=cluster.url)
    assert "\x1b" not in piped.out
    assert not re.search(r"[─-╿]", piped.out)
    topic, header, row = piped.out.splitlines()
    assert topic == TOPIC
    assert header.split()[:3] == ["segment", "state", "owner"]
    assert len(header.split()) == len(row.split())


async def test_a_narrow_terminal_gets_blocks_instead_of_a_table_with_columns_cut_off(
    cluster: InProcessCluster,
) -> None:
    await done("topics", "create", TOPIC, url=cluster.url)
    _, shown = await asyncio.to_thread(
        lambda: on_a_terminal("topics", "stats", TOPIC, "--url", cluster.url, columns=60)
    )
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).splitlines()
    assert plain[0] == TOPIC
    assert [line.split()[0] for line in plain[1:]] == [
        *("segment", "state", "owner", "entries", "confirmed", "readable", "open", "producers", "readers"),
        *("read", "to"),
    ]


async def test_at_a_terminal_nothing_is_deleted_without_being_asked(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, url=cluster.url)
    words = ("topics", "delete", TOPIC, "--url", cluster.url)
    code, shown = await asyncio.to_thread(on_a_terminal, *words, columns=100, answer="n\n")
    assert code == 1
    assert f"Delete {TOPIC} with all its messages" in shown
    assert (await done("topics", "list", "-o", "json", url=cluster.url)).json == [{"topic": TOPIC}]
    code, _ = await asyncio.to_thread(on_a_terminal, *words, columns=100, answer="y\n")
    assert code == 0
    assert (await done("topics", "list", "-o", "json", url=cluster.url)).json == []
