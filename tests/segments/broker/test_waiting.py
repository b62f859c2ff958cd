"""Requests that wait for segments which are being taken over: each hears of its own segment, and all of the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from segments.broker.waiting import Waiters
from txnwire.errors import NotOwner, StoreUnavailable


def served_segment(path: str) -> Any:
    return SimpleNamespace(path=path)


async def test_the_end_of_a_broker_is_told_to_all_who_wait_for_any_of_its_segments() -> None:
    waiters, paths = Waiters(), [f"t/n/x/{number}" for number in range(3)]
    waiting, over = [waiters.join(path) for path in (*paths, paths[0])], NotOwner("the broker is shutting down")
    waiters.fail_all(over)
    assert [one.exception() for one in waiting if one.done()] == [over] * 4
    assert not waiters


async def test_what_becomes_of_one_segment_is_told_to_those_who_wait_for_it_alone() -> None:
    waiters, segment = Waiters(), served_segment("t/n/x/1")
    failed, served, left = (waiters.join(f"t/n/x/{number}") for number in range(3))
    waiters.fail("t/n/x/0", StoreUnavailable("etcd does not answer"))
    waiters.serve(segment)
    with pytest.raises(StoreUnavailable):
        await failed
    assert await served is segment
    assert not left.done()
    assert list(waiters) == ["t/n/x/2"]
    waiters.fail("t/n/x/2", NotOwner("lost"))
    assert waiters.join("t/n/x/2") is not left, "who comes later waits anew"
