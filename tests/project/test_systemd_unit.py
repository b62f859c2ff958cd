"""The unit of `packaging/systemd`: systemd takes it, its command is one, and docs/deploy.md has settings for it."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from segments.log.settings import BrokerSettings
from tests.project.test_documentation import ROOT, blocks
from txnctl.cli import app
from txnctl.process.settings import load

UNIT = ROOT / "packaging" / "systemd" / "txnstore@.service"
DEPLOYING = ROOT / "docs" / "deploy.md"


def unit() -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, strict=True)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]  # the names are in both cases
    parsed.read_string(UNIT.read_text())
    return parsed


def test_the_unit_starts_a_server_with_a_file_of_settings() -> None:
    service = unit()["Service"]
    program, *words = shlex.split(service["ExecStart"].replace("%i", "server-1"))
    assert CliRunner().invoke(app, [*words, "--help"]).exit_code == 0
    text = DEPLOYING.read_text()
    assert f"{Path(program).parent}/pip install" in text
    assert words[-1] in text
    assert (
        f"useradd --system --home-dir /var/lib/{service['StateDirectory']} --shell /usr/sbin/nologin {service['User']}"
        in text
    )


def test_a_server_has_the_time_it_needs_to_end_and_is_started_again() -> None:
    parsed = unit()
    assert float(parsed["Service"]["TimeoutStopSec"]) > 2 * BrokerSettings().hand_over_s
    assert parsed["Service"]["Restart"] == "always"
    assert parsed["Unit"]["StartLimitIntervalSec"] == "0", "or it is given up while etcd is away"


def test_the_settings_shown_are_some_and_write_where_the_unit_lets_them(tmp_path: Path) -> None:
    (shown,) = blocks(DEPLOYING, "toml")
    file = tmp_path / "server-1.toml"
    file.write_text(shown)
    settings = load(file)
    assert settings.id == "server-1"
    assert str(settings.data_dir) == f"/var/lib/{unit()['Service']['StateDirectory']}"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """Its program is replaced by one that is here: systemd refuses what it cannot execute."""
    here = tmp_path / "txnstore@server-1.service"
    here.write_text(UNIT.read_text().replace("/opt/txnstore/bin/txnctl", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(here)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = [line for line in done.stderr.splitlines() if here.name in line]
    assert said == [], done.stderr
    assert done.returncode == 0, done.stderr
