"""How to reach the etcd of a data folder: noted in it by its brokers, for commands that run on the same machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from segments.ledger.ledger_files import replace_file
from txnctl.process.settings import ServerSettings
from txnwire.errors import InvalidArgument

FILE: Final = "served-with.json"
NOTED: Final = ("etcd", "etcd_prefix", "etcd_user", "etcd_ca", "etcd_cert", "etcd_key", "tcids")
"""▲ Not the password: others may read the folder."""


def write_served(settings: ServerSettings) -> None:
    """Raises `OSError`."""
    found = {name: getattr(settings, name) for name in NOTED}
    noted = {name: str(one.absolute()) if isinstance(one, Path) else one for name, one in found.items()}
    data = msgspec.json.encode({"v": 1, **noted}) + b"\n"
    path = settings.data_dir / FILE
    if not path.exists() or path.read_bytes() != data:
        replace_file(path, data)


def read_served(data_dir: Path) -> dict[str, Any] | None:
    """The settings that are noted; None if there are none. Raises `InvalidArgument` for a file that is something
    else."""
    path = data_dir / FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"{path}: {error}: name etcd with --etcd") from error
    return {name: found[name] for name in NOTED if found.get(name) is not None}
