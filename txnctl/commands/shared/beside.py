"""Settings of commands that work on etcd and a data folder: by default those of the server on the same machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from txnctl.commands.shared.asking import DEFAULT_URL, asking
from txnctl.process.served import read_served
from txnctl.process.settings import ServerSettings, load
from txnwire.errors import TxnError


async def settings_beside(config: Path | None, **flags: Any) -> ServerSettings:
    """Flags, the environment and the file come first. If none of them names etcd: what brokers have noted in the data
    folder, then what the server at `TXN_URL` says, then the default. Raises as `load`."""
    named = {"allow_development_etcd": True, **{name: one for name, one in flags.items() if one is not None}}
    settings = load(config, **named)
    if "etcd" in settings.model_fields_set:
        return settings
    for folder in (settings.data_dir, settings.data_dir / "data", Path("data")):
        if (noted := read_served(folder)) is not None:
            print(f"etcd {noted['etcd']}, as the brokers of {folder} have it", file=sys.stderr)
            return load(config, **{**noted, "data_dir": folder, **named})
    url = os.environ.get("TXN_URL", DEFAULT_URL)
    try:
        async with asking(url) as server:
            told = await server.ask("process.describe")
    except TxnError:
        return settings  # no server answers: the default will do
    found = {name: told[name] for name in ("etcd", "etcd_prefix") if told.get(name)}
    if found:
        print(f"etcd {found['etcd']}, as server {told['id']} at {url} has it", file=sys.stderr)
    return load(config, **{**found, **named})
