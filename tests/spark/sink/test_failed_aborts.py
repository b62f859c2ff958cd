"""A failed batch's transactions are aborted while no server answers: that is told, and stops nothing."""

from __future__ import annotations

import logging

import pytest

from pyspark_txnstore.shared.options import SinkOptions
from pyspark_txnstore.sink import sink
from pyspark_txnstore.sink.runs import BatchRun
from txnstore.etcd.embedded_etcd import free_port


def test_an_abort_that_nobody_answers_is_logged_and_the_next_one_is_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """▲ Raised, it would leave the others open to their deadlines as well, and look for no straggler."""
    monkeypatch.setattr(sink, "STRAGGLERS_S", 0.0)
    given = {"service.url": f"txn://127.0.0.1:{free_port()}", "service.timeoutMs": "100"}
    options = SinkOptions.parse(given, use="stream write")
    run = BatchRun.begin()
    names = [f"batch/{number}" for number in range(3)]
    left = [sink._OpenTransaction(name, f"0001-{number:016x}", run.stamp.hex()) for number, name in enumerate(names)]
    with caplog.at_level(logging.WARNING):
        sink._abort(options, run, lambda: left)
    told = [one.getMessage() for one in caplog.records if "is aborted at its deadline only" in one.getMessage()]
    assert [name for name in names if any(repr(name) in line for line in told)] == names
