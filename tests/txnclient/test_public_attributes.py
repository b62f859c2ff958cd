"""An object of the client shows what applications use, and nothing else: as much as its synchronous twin."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import txnclient
import txnclient.sync
from tests.segments.virtual_time import run
from tests.txnclient.scripted_server import connected
from tests.txnclient.test_closed_and_foreign_calls import opened

CLIENT = Path(txnclient.__file__).parent
ONLY_ASYNC: dict[str, set[str]] = {}
"""By class: what only the asynchronous one can have."""
TWINS = {
    cls: getattr(txnclient.sync, cls.__name__)
    for cls in (txnclient.Client, txnclient.Producer, txnclient.Consumer, txnclient.Reader, txnclient.Transaction)
}


def shown(of: object) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


def test_an_asynchronous_object_shows_no_more_than_a_synchronous_one() -> None:
    """▲ Of objects, not of classes: attributes set at the beginning of an object's life are shown, too."""

    async def scenario() -> None:
        async with connected() as (cluster, client):
            things = await opened(client, cluster.servers["broker:1"])
            found = {type(one): shown(one) for one in things if type(one) in TWINS}
            assert len(found) == len(TWINS)
            for cls, names in found.items():
                assert names - ONLY_ASYNC.get(cls.__name__, set()) == shown(TWINS[cls]), cls.__name__

    run(scenario())


def test_a_watch_shows_no_more_than_a_synchronous_one() -> None:
    assert shown(txnclient.Watch) == shown(txnclient.sync.Watch)


@pytest.mark.parametrize("cls", [*TWINS, txnclient.Watch], ids=lambda cls: cls.__name__)
def test_every_public_call_is_documented_once(cls: type) -> None:
    for name, member in inspect.getmembers(cls, inspect.isfunction):
        if not name.startswith("_") and name != "close":
            assert "See `" not in (inspect.getdoc(member) or ""), f"{cls.__name__}.{name} points elsewhere"
            assert inspect.getdoc(member), f"{cls.__name__}.{name}"


def test_no_other_module_reaches_behind_a_public_class() -> None:
    """The way behind one is `transaction_impl(txn)` and its like."""
    reaching = [
        f"{path.relative_to(CLIENT)}:{number}"
        for path in sorted(CLIENT.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "._impl" in line.replace("self._impl", "") and not line.strip().startswith("return ")
    ]
    assert reaching == []


def test_files_of_the_client_stay_short() -> None:
    lengths = {str(path.relative_to(CLIENT)): path.read_text().count("\n") for path in CLIENT.rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length >= 500} == {}
