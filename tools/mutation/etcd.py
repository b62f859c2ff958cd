"""An etcd until standard input ends: the tests of all mutants in one tree share it. Prints its URL."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from txnstore.etcd.embedded_etcd import EmbeddedEtcd, EtcdCommand, free_port


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="mutation-etcd-") as folder:
        etcd = EmbeddedEtcd(EtcdCommand(data_dir=Path(folder) / "etcd", client_port=free_port()))
        await etcd.start()
        try:
            print(etcd.url, flush=True)
            await asyncio.to_thread(sys.stdin.read)
        finally:
            await etcd.stop()


if __name__ == "__main__":
    asyncio.run(main())
