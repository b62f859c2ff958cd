"""Settings of a server process: a TOML file, then environment `TXN_…`, then flags; later ones win (API.md)."""

from __future__ import annotations

import difflib
import logging
import os
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from txnctl.process.amounts import seconds_of, size_of
from txnctl.process.name_settings import MOST_KEEP_S, bounds, keeps
from txnstore.etcd.settings import DEFAULT_QUOTA_BYTES, EtcdSettings
from txnwire.errors import InvalidArgument
from txnwire.names import validate_name

ROLES = ("coordinator", "controller", "broker", "admin")

NO_ADMIN = "off"
"""`admin_listen` of a process without HTTP."""

ENVIRONMENT = "TXN_"


OF_COMMANDS = ("TXN_URL", "TXN_CONFIG")
"""Environment variables that are options of commands, not settings of a server."""

SECRET = ("etcd_password",)


BYTES = ("etcd_quota_bytes", "ledger_roll_bytes", "min_free_bytes")
SECONDS = (
    "lease_ttl_s",
    "header_retention_s",
    "max_transaction_timeout_s",
    "client_grace_s",
    "consumer_grace_s",
    "clock_warn_s",
)
MOST_S = MOST_KEEP_S
"""100 years: etcd and sockets refuse times that are much longer, and a TOML file may say `inf`."""
MOST = 2**53


class ServerSettings(BaseSettings):
    """One server process. Durations are in seconds, sizes in bytes; text with a unit counts too: `2m`, `64MiB`."""

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT, extra="forbid", frozen=True)

    roles: Annotated[tuple[str, ...], NoDecode] = ROLES
    id: str = "server-1"
    listen: str = "127.0.0.1:6650"
    advertise: str | None = None
    admin_listen: str = "127.0.0.1:0"
    data_dir: Path = Path("txnstore-data")

    etcd: str = "http://127.0.0.1:2379"
    etcd_prefix: str = ""
    etcd_user: str | None = None
    etcd_password: str | None = None
    etcd_ca: Path | None = None
    etcd_cert: Path | None = None
    etcd_key: Path | None = None
    etcd_quota_bytes: int = Field(default=DEFAULT_QUOTA_BYTES, ge=1024 * 1024, le=MOST)
    allow_development_etcd: bool = False

    tcids: int = Field(default=16, ge=1, le=65536)
    lease_ttl_s: float = Field(default=10.0, ge=1.0, le=MOST_S)
    header_retention_s: float = Field(default=60.0, ge=0.0, le=MOST_S)
    max_transaction_timeout_s: float = Field(default=3600.0, gt=0, le=MOST_S)
    client_grace_s: float = Field(default=10.0, ge=0.0, le=MOST_S)
    consumer_grace_s: float = Field(default=2.0, ge=0.0, le=MOST_S)
    clock_warn_s: float = Field(default=5.0, gt=0, le=MOST_S)
    ledger_roll_bytes: int = Field(default=64 * 1024 * 1024, ge=1024 * 1024, le=MOST)
    min_free_bytes: int = Field(default=1024 * 1024 * 1024, ge=0, le=MOST)
    autoscale: bool = True
    max_connections: int = Field(default=10_000, ge=1, le=MOST)
    max_open_transactions: int = Field(default=16_384, ge=1, le=MOST)
    names_keep: str = "7d"
    names_max: str = "2000000"
    log_level: str = "info"

    @field_validator(*BYTES, mode="before")
    @classmethod
    def _size(cls, value: Any) -> Any:
        return size_of(value) if isinstance(value, str) else value

    @field_validator(*SECONDS, mode="before")
    @classmethod
    def _seconds(cls, value: Any) -> Any:
        return seconds_of(value) if isinstance(value, str) else value

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
        if len(set(value)) < len(value):
            raise ValueError("expected each role once")
        return value

    @field_validator("listen", "advertise", "admin_listen")
    @classmethod
    def _host_and_port(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and not (info.field_name == "admin_listen" and value == NO_ADMIN):
            host_and_port(value, part=str(info.field_name))
        return value

    @field_validator("names_keep")
    @classmethod
    def _keeps(cls, value: str) -> str:
        keeps(value)
        return value

    @field_validator("names_max", mode="before")
    @classmethod
    def _bounds(cls, value: Any) -> Any:
        bounds(str(value))
        return str(value)

    @field_validator("log_level")
    @classmethod
    def _known_level(cls, value: str) -> str:
        if value.upper() not in logging.getLevelNamesMapping():
            raise ValueError("expected debug, info, warning or error")
        return value

    @field_validator("etcd_ca", "etcd_cert", "etcd_key")
    @classmethod
    def _is_there(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            raise ValueError("there is no such file")
        return value

    @field_validator("id")
    @classmethod
    def _legal_id(cls, value: str) -> str:
        return validate_name(value, part="server id")


def load(config_file: Path | None, *, without: Collection[str] = (), **flags: Any) -> ServerSettings:
    """Reads settings from `config_file` (TOML), the environment and the flags that are not None. `without`: optional
    settings that have no value, whatever the environment says.

    Raises `InvalidArgument` naming each wrong setting and what was expected: every error of `serve` that depends on
    settings alone, not on the machine or etcd.
    """
    from_file = _read_toml(config_file) if config_file is not None else {}
    unknown = [name for name in from_file if name not in ServerSettings.model_fields]
    if unknown:
        raise InvalidArgument(f"configuration file {config_file}: " + "; ".join(map(_unknown, unknown)))
    in_environment = _in_environment()
    chosen = {name: value for name, value in from_file.items() if name not in in_environment}
    chosen |= dict.fromkeys(without)
    chosen |= {name: value for name, value in flags.items() if value is not None}
    try:
        settings = ServerSettings(**chosen)
    except ValidationError as error:
        wrong = [
            f"{'.'.join(map(str, one['loc']))}: {one['msg'].removeprefix('Value error, ')}, found "
            f"{'***' if one['loc'][:1] in [(name,) for name in SECRET] else repr(one['input'])}"
            for one in error.errors()
        ]
        raise InvalidArgument("wrong settings: " + "; ".join(wrong)) from None  # its own text has the values
    etcd_settings(settings).addresses()
    return settings


def etcd_settings(settings: ServerSettings) -> EtcdSettings:
    return EtcdSettings(
        endpoints=tuple(part.strip() for part in settings.etcd.split(",") if part.strip()),
        prefix=settings.etcd_prefix,
        user=settings.etcd_user,
        password=settings.etcd_password,
        ca=settings.etcd_ca,
        certificate=settings.etcd_cert,
        key=settings.etcd_key,
        quota_bytes=settings.etcd_quota_bytes,
        development=settings.allow_development_etcd,
    )


@dataclass(frozen=True, slots=True)
class Effective:
    """One setting in effect. `source`: `default`, `file PATH`, `environment NAME` or `flag`; secrets are masked."""

    setting: str
    value: Any
    source: str


def effective(config_file: Path | None, **flags: Any) -> list[Effective]:
    """Every setting with its source, in the order of `ServerSettings`. Raises as `load` does."""
    settings = load(config_file, **flags)
    from_file = _read_toml(config_file) if config_file is not None else {}
    in_environment = _in_environment()
    found = []
    for name in ServerSettings.model_fields:
        value = getattr(settings, name)
        if flags.get(name) is not None:
            source = "flag"
        elif name in in_environment:
            source = f"environment {in_environment[name]}"
        elif name in from_file:
            source = f"file {config_file}"
        else:
            source = "default"
        shown = "***" if name in SECRET and value is not None else str(value) if isinstance(value, Path) else value
        found.append(Effective(name, shown, source))
    return found


def unknown_in_environment() -> list[str]:
    """Environment variables that look like settings but are none: one line each. Not an error: orchestrators add
    variables of their own."""
    return [
        f"{name} is no setting{_nearest(name.lower().removeprefix(ENVIRONMENT.lower()), prefix=ENVIRONMENT)}"
        for name in sorted(os.environ)
        if name.upper().startswith(ENVIRONMENT)
        and name not in OF_COMMANDS
        and name.lower().removeprefix(ENVIRONMENT.lower()) not in ServerSettings.model_fields
    ]


def _in_environment() -> Mapping[str, str]:
    """Variables by their setting; in any case, as pydantic takes them."""
    names: Iterable[str] = ServerSettings.model_fields
    variables = {name.lower(): name for name in os.environ}
    return {name: variables[variable] for name in names if (variable := f"{ENVIRONMENT}{name}".lower()) in variables}


def _unknown(name: str) -> str:
    return f"{name!r} is no setting{_nearest(name)}"


def _nearest(name: str, *, prefix: str = "") -> str:
    """A question that suggests the nearest known setting, or says that there is none like it."""
    near = difflib.get_close_matches(name.lower().replace("-", "_"), ServerSettings.model_fields, n=1, cutoff=0.6)
    if not near:
        return "; `txnctl settings` lists those there are"
    return f"; did you mean {prefix}{near[0].upper() if prefix else near[0]}?"


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:  # no TOML, or no UTF-8
        raise InvalidArgument(f"configuration file {path}: {error}") from error


def host_and_port(address: str, *, part: str) -> tuple[str, int]:
    """Splits `host:port`; raises `InvalidArgument` naming `part`."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidArgument(f"{part} {address!r}: expected host:port")
    return host, int(port)


def bare_host(host: str) -> str:
    """Without the brackets of an IPv6 address, as sockets take it."""
    return host.removeprefix("[").removesuffix("]")
