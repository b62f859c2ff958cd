"""The client of this process, whose connections outlive tasks: Spark creates a new source and sink for each task.

A Python worker of Spark runs task after task, maybe in threads; each would open and close a client. So each process
keeps one client per service until it ends, and all clients share the one loop thread of `txnclient.sync`.
"""

from __future__ import annotations

import os
import threading

import txnclient.sync
from txnclient.connection.address import parse_url
from txnwire.errors import InvalidArgument

DEFAULT_TIMEOUT_S = 30.0
"""Timeout of a call that is given none."""

_Key = tuple[int, tuple[str, ...], float]

_lock = threading.Lock()
_clients: dict[_Key, txnclient.sync.Client] = {}
_connected_in: int | None = None
"""The process that connected first; its forked children cannot connect any more."""


def client_of(url: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> txnclient.sync.Client:
    """Returns the client of this process for `txn://host:port[,host:port…]`, opened by the first call. Do not close it.

    ▲ Refuses a child of a process that connected before the fork: gRPC's threads do not exist there, so a call would
    hang or end the process. (Spark forks workers from a daemon that does not connect.)

    Raises `InvalidArgument` in such a child or for a wrong URL; `Timeout` if no server answers.
    """
    global _connected_in
    pid = os.getpid()
    key = (pid, tuple(parse_url(url)), timeout_s)
    with _lock:
        client = _clients.get(key)
        if client is None:
            if _connected_in not in (None, pid):
                raise InvalidArgument(
                    f"process {pid} was forked by {_connected_in}, which had connected to a service by then: a child "
                    "cannot connect any more; connect in the children only, or start them by 'spawn'"
                )
            _connected_in = pid
            client = _clients[key] = txnclient.sync.connect(url, timeout=timeout_s, client_name="spark")
        return client


def close_clients() -> None:
    """Closes the clients of this process; the next call opens new ones. For tests, and for a driver that is done with
    Spark."""
    with _lock:
        own = [key for key in _clients if key[0] == os.getpid()]
        for key in own:
            _clients.pop(key).close()


def _forked() -> None:
    """In the child the lock's holder does not exist."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)
