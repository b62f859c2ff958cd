"""Two topics, and the heads of their entries."""

from __future__ import annotations

import asyncio
from typing import Any

import txnclient
import txnclient.sync
from txnclient import EntryHead
from txnwire.ids import EARLIEST, Position

ORDERS, INVOICES = "topic://acme/orders/placed", "topic://globex/billing/invoices"


async def heads_of(client: txnclient.Client, path: str, end: Position, **options: Any) -> list[EntryHead]:
    async with asyncio.timeout(60):
        pages = [page async for page in client.scan_entries(path, after=EARLIEST, end=end, **options)]
    return [head for page in pages for head in page]
