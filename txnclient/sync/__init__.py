"""The client without `await`: the same names and signatures, for scripts, threads and notebooks.

    with txnclient.sync.connect("txn://127.0.0.1:6650") as client:
        producer = client.producer("topic://public/default/orders")
        with client.transaction() as txn:
            producer.send(b"...", txn=txn)

Any number of threads may use one client. All work runs in one event loop in a separate thread, which starts with the
first client and ends with the last; it is independent of any loop in the calling thread. Ctrl-C ends the current call.
Values, errors, messages and ids are those of `txnclient`.

Decides how a call waits for the event loop. Imports the asynchronous client alone. Begin with `bridge`;
`tools/generate_sync.py` writes the classes.
"""

from __future__ import annotations

import txnclient
from txnclient.sync.bridge import Bridge
from txnclient.sync.client import Client
from txnclient.sync.consumer import Consumer
from txnclient.sync.processing import process, process_batches
from txnclient.sync.producer import Producer
from txnclient.sync.reader import Reader, Watch
from txnclient.sync.transaction import Transaction
from txnwire.ports import Clock, Random, Transport

__all__ = ["Client", "Consumer", "Producer", "Reader", "Transaction", "Watch", "connect", "process", "process_batches"]


def connect(
    url: str,
    *,
    token: str | None = None,
    tls: object | None = None,
    transaction_key: str | None = None,
    timeout: float = 30.0,
    client_name: str = "txnclient",
    transport: Transport | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
) -> Client:
    """Open a client; use it in `with`, or close it. See `txnclient.connect`."""
    return Client(
        *Bridge.open_client(
            lambda: txnclient.connect(
                url,
                token=token,
                tls=tls,
                transaction_key=transaction_key,
                timeout=timeout,
                client_name=client_name,
                transport=transport,
                clock=clock,
                random=random,
            )
        )
    )
