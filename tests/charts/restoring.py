"""The Jobs of `examples/kubernetes/restore.yaml`, for the release that tests render."""

from __future__ import annotations

import yaml

from tests.charts.rendering import NAMESPACE, RELEASE, ROOT, Object

RESTORE = ROOT / "examples" / "kubernetes" / "restore.yaml"
FULL_NAME = f"{RELEASE}-txnstore"


def restoring(backup: str) -> list[Object]:
    """Every object of the file. `backup`: its name."""
    text = RESTORE.read_text().replace("shop-shop-txnstore", f"{NAMESPACE}-{FULL_NAME}")
    text = text.replace(".shop.svc", f".{NAMESPACE}.svc").replace("shop-txnstore", FULL_NAME)
    text = text.replace("instance: shop", f"instance: {RELEASE}").replace("BACKUP", backup)
    return [one for one in yaml.load_all(text, yaml.CSafeLoader) if one]
