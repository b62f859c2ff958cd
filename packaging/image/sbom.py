"""What the image is made of, as CycloneDX 1.6: `python sbom.py ENVIRONMENT`. Python's distributions there, and Debian's
packages of this system."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from email import message_from_string
from importlib.metadata import distributions
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

STATUS = Path("/var/lib/dpkg/status")


def _component(
    kind: str, name: str, version: str, namespace: str | None = None, of: ComponentType | None = None
) -> Component:
    url = PackageURL(kind, namespace, name, version)
    return Component(name=name, version=version, type=of or ComponentType.LIBRARY, purl=url, bom_ref=str(url))


def python_components(environment: Path) -> Iterator[Component]:
    (folder,) = environment.glob("lib/python*/site-packages")
    for one in distributions(path=[str(folder)]):
        yield _component("pypi", one.metadata["Name"].lower(), one.version)


def debian_components(status: str) -> Iterator[Component]:
    for paragraph in status.split("\n\n"):
        package = message_from_string(paragraph)
        if package["Package"] and package["Status"] == "install ok installed":
            yield _component("deb", package["Package"], package["Version"], namespace="debian")


def main() -> None:
    found = [*python_components(Path(sys.argv[1])), *debian_components(STATUS.read_text() if STATUS.exists() else "")]
    (ours,) = [one for one in found if one.name == "txnstore"]
    bom = Bom(components=[one for one in found if one is not ours])
    bom.metadata.component = _component("pypi", ours.name, str(ours.version), of=ComponentType.CONTAINER)
    print(make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1))


if __name__ == "__main__":
    main()
