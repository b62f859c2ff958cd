"""An address that accepts connections and never answers, like a stopped process."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def mute_endpoint() -> AsyncIterator[str]:
    """`host:port`. The kernel accepts connections and data; no process reads them."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
