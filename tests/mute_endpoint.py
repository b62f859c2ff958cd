"""An address where connections are taken and nothing is ever answered, as of a process that is stopped."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def mute_endpoint() -> AsyncIterator[str]:
    """`host:port`. The kernel takes connections, and what is sent; nobody reads it."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
