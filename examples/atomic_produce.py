"""Files into a stream, all of them or none: the large ones in pieces, the lines of the small ones in bulk.

    txnctl dev &                                          # a cluster on this machine
    python examples/atomic_produce.py --load data/*.csv film.mp4
    python examples/atomic_produce.py --list

A `.csv` or `.txt` file becomes one message a line, sent in bulk; any other file becomes one message, however large.
What was loaded is told in another topic, with how much of it there is, in the same transaction: whoever reads of a load
there finds all of it, and a load that fails, or is killed, has never been.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import sys
from pathlib import Path

import txnclient

FILES, LOADS = "topic://public/archive/files", "topic://public/archive/loads"
BY_LINES = (".csv", ".txt")


async def load_files(client: txnclient.Client, paths: list[Path]) -> None:
    """One transaction for all files; what it is told to have loaded is by name either lines or bytes and a digest."""
    told: dict[str, dict[str, int | str]] = {}
    async with (
        client.producer(FILES) as files,
        client.producer(LOADS, serializer="json") as loads,
        client.transaction(timeout=300) as txn,
    ):
        for path in paths:
            data = path.read_bytes()  # a file that cannot be read aborts the others, too
            if path.suffix in BY_LINES:
                lines = data.splitlines()
                await files.send_many([(path.name, line) for line in lines], txn=txn)
                told[path.name] = {"lines": len(lines)}
            else:
                await files.send(data, key=path.name, chunk=True, txn=txn)
                told[path.name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        await loads.send({"id": str(txn.id), "files": told}, txn=txn)
    print(f"loaded {len(paths)} files in transaction {txn.id}")


async def check(client: txnclient.Client) -> None:
    """Read every load that is told of, and find all of it."""
    until = await client.snapshot([LOADS, FILES])
    found: dict[str, dict[str, dict[str, int | str]]] = {}
    async with client.reader(FILES, end=until) as files:
        async for message in files:
            of_load = found.setdefault(str(message.txn_id), {})
            name = (message.key or b"").decode()
            if Path(name).suffix in BY_LINES:
                of_load[name] = {"lines": int(of_load.get(name, {"lines": 0})["lines"]) + 1}
            else:
                value = message.value
                of_load[name] = {"bytes": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    async with client.reader(LOADS, end=until, serializer="json") as loads:
        async for load in loads:
            told = load.value
            whole = found.pop(told["id"], None) == told["files"]
            print(f"{told['id']}: {', '.join(told['files'])}: {'whole' if whole else 'NOT WHOLE'}")
            if not whole:
                raise SystemExit(1)
    if found:
        raise SystemExit(f"parts of loads that nobody has told of: {sorted(found)}")


async def run(url: str, paths: list[Path]) -> None:
    async with txnclient.connect(url) as client:
        for topic in (FILES, LOADS):
            await client.create_topic(topic, segments=1)
        if paths:
            await load_files(client, paths)
        await check(client)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default=os.environ.get("TXN_URL", "txn://127.0.0.1:6650"))
    parser.add_argument("--load", type=Path, nargs="+", metavar="FILE", default=[], help="load these, then list")
    parser.add_argument("--list", action="store_true", help="list what has been loaded, and check it")
    given = parser.parse_args()
    if not given.load and not given.list:
        parser.error("give --load FILE… or --list")
    try:
        asyncio.run(run(given.url, given.load))
    except OSError as error:
        sys.exit(f"{error}: nothing was loaded")


if __name__ == "__main__":
    main()
