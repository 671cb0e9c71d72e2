"""Writes a bill of materials beside each wheel (CycloneDX 1.6): what it needs at run time, with the
versions and licences of what is installed here.

    python tools/sbom.py dist/*.whl
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable
from importlib.metadata import PackageMetadata, PathDistribution, distribution
from pathlib import Path
from zipfile import Path as ZipPath

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.insert(0, str(Path(__file__).parent))  # imported by a test, too
from lock import needed

VERSION = SchemaVersion.V1_6


def bill(wheel: Path) -> str:
    """Return the bill of a wheel, as JSON. Raises SystemExit if what it needs is not installed."""
    about = metadata(wheel)
    subject = _component(about, hashlib.sha256(wheel.read_bytes()).hexdigest())
    wanted = [Requirement(text) for text in about.get_all("Requires-Dist") or []]
    graph = needed(wanted)
    parts = {name: _component(distribution(name).metadata) for name in sorted(graph)}
    bom = Bom(components=parts.values())
    bom.metadata.component = subject
    direct = {canonicalize_name(each.name) for each in wanted} & parts.keys()
    bom.register_dependency(subject, [parts[name] for name in sorted(direct)])
    for name, theirs in graph.items():
        bom.register_dependency(parts[name], [parts[each] for each in sorted(theirs)])
    text = make_outputter(bom, OutputFormat.JSON, VERSION).output_as_string(indent=1)
    if problem := JsonStrictValidator(VERSION).validate_str(text):
        raise SystemExit(f"the bill of {wheel.name} is not CycloneDX: {problem}")
    return text


def metadata(wheel: Path) -> PackageMetadata:
    """Return what a wheel says of itself."""
    [folder] = [p for p in ZipPath(wheel).iterdir() if p.name.endswith(".dist-info")]
    return PathDistribution(folder).metadata


def _component(about: PackageMetadata, digest: str = "") -> Component:
    name, version = canonicalize_name(about["Name"]), about["Version"]
    url = PackageURL("pypi", name=name, version=version)
    terms = about["License-Expression"] or _classified(about.get_all("Classifier") or [])
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        purl=url,
        bom_ref=url.to_string(),
        licenses=[LicenseFactory().make_from_string(terms)] if terms else None,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest else None,
    )


def _classified(classifiers: Iterable[str]) -> str:
    """Return the licence that classifiers name, or nothing."""
    named = [c.rpartition(" :: ")[2] for c in classifiers if c.startswith("License :: ")]
    return named[0] if len(named) == 1 else ""


def main() -> None:
    """Write the bills."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    for wheel in parser.parse_args().wheels:
        path = wheel.with_suffix(".cdx.json")
        path.write_text(bill(wheel), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
