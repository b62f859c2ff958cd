"""Says why etcd cannot be reached, by gRPC's words for a connection that failed. Pure."""

from __future__ import annotations

import re
from typing import Final

_PREAMBLE: Final = re.compile(r"failed to connect to all addresses; last error: [A-Z_]+: ")
_MEANINGS: Final = (
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not of the authority that is trusted here"),
    ("Unwrap failed", "it takes no connection without a certificate of its authority; check certificate and key"),
    ("Failed to create security handshaker", "certificate and key do not belong together"),
    ("WRONG_VERSION_NUMBER", "it speaks no TLS: write http://"),
    ("Socket closed", "it ends the connection; if it speaks TLS, write https://"),
)


def why_unreachable(details: str) -> str:
    """`details` of a call that was UNAVAILABLE; gRPC's own words stay in the text, behind what they mean."""
    words = _PREAMBLE.sub("", details) or "gRPC gives no reason"
    meaning = next((meaning for part, meaning in _MEANINGS if part in words), None)
    return words if meaning is None else f"{meaning} ({words})"
