"""`txnctl health`: asks one server process whether it is ready, for container engines. Imports little: it runs every
few seconds."""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Annotated

import typer

NO_ADMIN = "off"
"""As in `txnctl.process.settings`, which takes too long to import."""

ANY = ("0.0.0.0", "[::]", "")


def health(
    admin_listen: Annotated[
        str, typer.Option(envvar="TXN_ADMIN_LISTEN", help="host:port of its HTTP, as `serve` was given it")
    ] = "127.0.0.1:6660",
    alive: Annotated[bool, typer.Option("--alive", help="whether it runs, ready or not")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, max=86_400, help="seconds to wait for the answer")] = 6.0,
) -> None:
    """Whether the server process here is ready; exit 1, and why, if it is not."""
    if admin_listen == NO_ADMIN:
        print("the server here has no HTTP (admin_listen is off): nothing tells whether it is ready")
        raise typer.Exit(1)
    host, _, port = admin_listen.rpartition(":")
    host = "127.0.0.1" if host in ANY else host
    url = f"http://{host}:{port}/{'healthz' if alive else 'readyz'}"
    # ▲ Container engines give the machine's proxy to every container, and that proxy cannot reach this host.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=timeout) as answer:
            print(answer.read().decode().strip())
    except urllib.error.HTTPError as error:
        print(error.read().decode().strip())
        raise typer.Exit(1) from error
    except (OSError, HTTPException, ValueError, OverflowError) as error:  # also of a name that is none, of a port
        print(f"no server answers HTTP at {host}:{port}: {error!r}")
        raise typer.Exit(1) from error
