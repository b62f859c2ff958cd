"""The manifest of a backup: what belongs to it, with sizes and checksums. Pure.

The file holds two lines: the manifest as JSON, and the SHA-256 of that line in hex.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from txnwire.errors import DataCorrupt

VERSION: Final = 1


class CopiedFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file. `path`: relative to the folder `ledgers` of the data folder. `mtime_ns`: the source's, or 0 if it had
    been changed so shortly before that another change might have left the time as it was."""

    path: str
    size: int
    sha256: str
    mtime_ns: int = 0

    @property
    def object(self) -> str:
        """The path of the content below `DIR/ledgers`. ▲ Named after the content, so that no backup changes a file that
        an earlier one relies on."""
        return f"{self.path}.{self.sha256[:16]}"


class EtcdCopy(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot of etcd. It holds at least all up to `revision`."""

    size: int
    sha256: str
    revision: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`store`: etcd's identity; `revision`: that of etcd when the last ledger had been copied; `prefix`: before every
    key in etcd; `taken_ms`: wall clock at the beginning. `damaged`: what was damaged in the data folder already."""

    v: int = VERSION
    store: str
    former: list[str]
    generation: int
    segment_floor: int
    prefix: str
    taken_ms: int
    etcd: EtcdCopy
    revision: int
    files: list[CopiedFile]
    damaged: list[str] = []

    @property
    def bytes(self) -> int:
        return self.etcd.size + sum(one.size for one in self.files)


def encode_manifest(manifest: Manifest) -> bytes:
    line = msgspec.json.encode(manifest)
    return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Raises `DataCorrupt` that names `where`."""
    line, _, told = data.partition(b"\n")
    if hashlib.sha256(line).hexdigest().encode() != told.strip():
        raise DataCorrupt(
            f"{where}: its checksum does not match: the manifest is damaged, and this backup cannot be used: "
            "take its folder away"
        )
    try:
        manifest = msgspec.json.decode(line, type=Manifest)
    except msgspec.DecodeError as error:
        raise DataCorrupt(f"{where}: not a manifest of version {VERSION}: {error}") from error
    if manifest.v != VERSION:
        raise DataCorrupt(f"{where}: manifest version {manifest.v}; this program reads {VERSION}")
    return manifest
