"""Each protocol of its own opens with its theory of operation, numbered, and its package points there."""

from __future__ import annotations

import importlib
import re

import pytest

PROTOCOLS = {
    "visibility": "watchers.visibility",
    "group commit": "txnstore.access.group_commit",
    "order of a send": "segments.log.sends.send_order",
    "take-over": "segments.owner.take_over",
    "sealing": "segments.owner.sealing",
    "cursors": "segments.subscription.cursors.cursor",
    "queue": "segments.subscription.queueing.queue",
}


@pytest.mark.parametrize("module", PROTOCOLS.values(), ids=PROTOCOLS)
def test_a_protocol_opens_with_its_theory_of_operation_numbered(module: str) -> None:
    numbers = re.findall(r"^(\d+)\. ", importlib.import_module(module).__doc__ or "", re.MULTILINE)
    assert len(numbers) >= 5
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]


@pytest.mark.parametrize("module", PROTOCOLS.values(), ids=PROTOCOLS)
def test_its_package_points_there(module: str) -> None:
    package, _, name = module.rpartition(".")
    text = importlib.import_module(package).__doc__ or ""
    assert re.search(rf"theor(y|ies) of\s+operation in[^.;]*`{name}`", text)
