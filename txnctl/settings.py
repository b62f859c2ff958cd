"""Settings of a server process: a TOML file, then environment `TXN_…`, then flags, the later winning (API.md)."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from txnwire.errors import InvalidArgument
from txnwire.names import validate_name

ROLES = ("coordinator", "controller", "broker", "admin")


class ServerSettings(BaseSettings):
    """One server process. Durations are in seconds, sizes in bytes unless the name says otherwise."""

    model_config = SettingsConfigDict(env_prefix="TXN_", extra="forbid", frozen=True)

    roles: Annotated[tuple[str, ...], NoDecode] = ROLES
    id: str = "server-1"
    listen: str = "127.0.0.1:6650"
    advertise: str | None = None
    admin_listen: str | None = None
    data_dir: Path = Path("txnstore-data")

    etcd: str = "http://127.0.0.1:2379"
    etcd_prefix: str = ""
    etcd_user: str | None = None
    etcd_password: str | None = None
    etcd_ca: Path | None = None
    etcd_cert: Path | None = None
    etcd_key: Path | None = None
    allow_development_etcd: bool = False

    tcids: int = Field(default=16, ge=1, le=65536)
    lease_ttl_s: float = Field(default=10.0, ge=1.0)
    header_retention_s: float = Field(default=60.0, ge=0.0)
    max_transaction_timeout_s: float = Field(default=3600.0, gt=0)
    client_grace_s: float = Field(default=10.0, ge=0.0)
    consumer_grace_s: float = Field(default=2.0, ge=0.0)
    ledger_roll_bytes: int = Field(default=64 * 1024 * 1024, ge=1024 * 1024)
    log_level: str = "info"

    @field_validator("roles", mode="before")
    @classmethod
    def _split_roles(cls, value: Any) -> Any:
        return tuple(role.strip() for role in value.split(",") if role.strip()) if isinstance(value, str) else value

    @field_validator("roles")
    @classmethod
    def _known_roles(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [role for role in value if role not in ROLES]
        if unknown or not value:
            raise ValueError(f"unknown role {', '.join(unknown) or '(none)'}: expected some of {', '.join(ROLES)}")
        return value

    @field_validator("listen", "advertise", "admin_listen")
    @classmethod
    def _host_and_port(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            host_and_port(value, part=str(info.field_name))
        return value

    @field_validator("id")
    @classmethod
    def _legal_id(cls, value: str) -> str:
        return validate_name(value, part="server id")


def load(config_file: Path | None, **flags: Any) -> ServerSettings:
    """Settings from `config_file` (TOML), the environment and the flags that are not None.

    Raises `InvalidArgument` naming each wrong setting and what was expected of it.
    """
    from_file = _read_toml(config_file) if config_file is not None else {}
    prefix = ServerSettings.model_config.get("env_prefix", "")
    in_environment = {name.lower() for name in os.environ}
    chosen = {name: value for name, value in from_file.items() if f"{prefix}{name}".lower() not in in_environment}
    chosen |= {name: value for name, value in flags.items() if value is not None}
    try:
        return ServerSettings(**chosen)
    except ValidationError as error:
        wrong = [
            f"{'.'.join(map(str, one['loc']))}: {one['msg'].removeprefix('Value error, ')}, found {one['input']!r}"
            for one in error.errors()
        ]
        raise InvalidArgument("wrong settings: " + "; ".join(wrong)) from error


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgument(f"configuration file {path}: {error}") from error


def host_and_port(address: str, *, part: str) -> tuple[str, int]:
    """Split `host:port`; raises `InvalidArgument` naming `part`."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidArgument(f"{part} {address!r}: expected host:port")
    return host, int(port)
