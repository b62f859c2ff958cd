"""The reserve of a real folder; what a broker does with it is in `tests/segments/log/test_room.py`."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from segments.ledger.file_ledger import FileLedgerStore
from segments.log.room import FreeSpace


async def test_without_a_watermark_no_reserve_is_kept_and_none_is_missed(tmp_path: Path) -> None:
    """`min_free_bytes` 0: no file of no bytes can be allocated, which was warned of each second."""
    ledgers = FileLedgerStore(tmp_path)
    room = FreeSpace(ledgers, min_free_bytes=0, in_flight=lambda: 0)
    with capture_logs() as logs:
        await room.start()
    room.check()
    assert logs == []
    assert list(tmp_path.iterdir()) == []
    await room.close()
    await ledgers.close()
