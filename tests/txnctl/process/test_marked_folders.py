"""Which processes keep a data folder's mark, and where it cannot be written (E8)."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from txnctl.process import store_mark
from txnctl.process.serve import _keeps_mark, _write_mark
from txnctl.process.settings import ServerSettings
from txnctl.process.store_mark import StoreMark
from txnstore.records import Incarnation

STORE = Incarnation(id="a", created_ms=1)


def test_e8_whoever_shares_a_folder_with_a_broker_looks_at_its_mark(tmp_path: Path) -> None:
    """▲ It finds out as early that etcd has gone back, though no broker runs."""
    broker, coordinator = (ServerSettings(roles=(role,), data_dir=tmp_path) for role in ("broker", "coordinator"))
    assert (_keeps_mark(broker), _keeps_mark(coordinator)) == (True, False)
    StoreMark(tmp_path).write(STORE, 1)
    assert _keeps_mark(coordinator)


def test_e8_on_a_full_disk_a_folder_is_served_with_the_mark_that_it_has_and_never_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ Without one nobody would find out that etcd was put back."""

    def full(_: Path, __: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    mark = StoreMark(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(store_mark, "replace_file", full)
        with pytest.raises(OSError, match="No space left"):
            _write_mark(mark, STORE, 1)
    _write_mark(mark, STORE, 1)
    monkeypatch.setattr(store_mark, "replace_file", full)
    with capture_logs() as logs:
        _write_mark(mark, STORE, 2)
    assert [entry["event"] for entry in logs] == ["store mark not written"]
    found = mark.read()
    assert found is not None
    assert found.revision == 1
