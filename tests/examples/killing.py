"""Programs of `examples/` as processes, killed in the middle of their work."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path

import txnclient
from txnclient.connection import any_server
from txnwire.proto import txn_pb2 as pb

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
TIMEOUT_S = 60.0


async def started(name: str, *arguments: str, url: str) -> asyncio.subprocess.Process:
    """A program with `--url`, its output in one pipe."""
    command = [sys.executable, str(EXAMPLES / name), "--url", url, *arguments]
    return await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )


async def told(name: str, *arguments: str, url: str) -> str:
    """What a program says that ends well."""
    return await ended(await started(name, *arguments, url=url))


async def ended(process: asyncio.subprocess.Process) -> str:
    output, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    assert process.returncode == 0, output.decode()
    return output.decode()


async def killed(process: asyncio.subprocess.Process) -> None:
    """SIGKILL. Fails if it had ended before: then it was not in the middle."""
    assert process.returncode is None, (await process.communicate())[0].decode()
    process.send_signal(signal.SIGKILL)
    await process.communicate()
    assert process.returncode == -signal.SIGKILL


async def stored(reader: txnclient.Reader, count: int) -> None:
    """Waits until `count` more messages are stored, for a reader of what is not committed, too."""
    for _ in range(count):
        await reader.receive(timeout=TIMEOUT_S)


async def aborted_in_the_middle(
    client: txnclient.Client, reader: txnclient.Reader, process: asyncio.subprocess.Process
) -> None:
    """Aborts the transaction that the program has open, while it stands still. `reader`: of what it writes."""
    for _ in range(100):
        await stored(reader, 1)
        assert process.returncode is None, (await process.communicate())[0].decode()
        process.send_signal(signal.SIGSTOP)
        try:
            for row in (await client.admin("transactions.list", state="OPEN"))["transactions"]:
                with suppress(txnclient.InvalidTxnState):  # it had asked for the commit
                    await _abort(client, txnclient.TxnId.parse(row["txn"]))
                    return
        finally:
            process.send_signal(signal.SIGCONT)
    raise AssertionError("no transaction was open whenever it stood still")


async def _abort(client: txnclient.Client, txn_id: txnclient.TxnId) -> None:
    end = pb.EndTxn(
        txnid_most_bits=txn_id.most_bits,
        txnid_least_bits=txn_id.least_bits,
        action=pb.TXN_ACTION_ABORT,
        forced=True,
    )
    await any_server.call(client._session, pb.Command(end_txn=end), f"aborting {txn_id}", role="coordinator")
