"""Writes the repository's address into every distribution's metadata, before a release is built.

    python tools/urls.py https://github.com/OWNER/REPO v1.0.0

The workflow that builds a release knows its address. In the sources it would be wrong in a fork.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def urls(address: str, ref: str, folder: str = "") -> dict[str, str]:
    """Return the URLs of the distribution in a folder of the repository, at a tag."""
    source = f"{address}/tree/{ref}"
    return {
        "Source": f"{source}/{folder}" if folder else source,
        "Documentation": f"{source}/docs",
        "Changelog": f"{address}/blob/{ref}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }


def write(root: Path, address: str, ref: str) -> int:
    """Write the URLs of all distributions below `root`. Returns how many there are. Raises
    SystemExit, and writes none, if one has some or the address is not https."""
    if not address.startswith("https://"):
        raise SystemExit(f"{address} is not https. Give the repository's page.")
    files = [root / "pyproject.toml", *sorted(root.glob("plugins/*/*/pyproject.toml"))]
    for file in files:
        if "urls" in tomllib.loads(file.read_text(encoding="utf-8"))["project"]:
            raise SystemExit(f"{file} has URLs. Check out the release anew.")
    for file in files:
        folder = file.parent.relative_to(root).as_posix().removeprefix(".")
        own = urls(address.rstrip("/"), ref, folder)
        lines = [f"{name} = {json.dumps(url)}\n" for name, url in own.items()]
        with file.open("a", encoding="utf-8") as text:
            text.write("\n[project.urls]\n" + "".join(lines))
    return len(files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("address", help="the repository's page")
    parser.add_argument("ref", help="the tag that is released")
    given = parser.parse_args()
    print(f"{write(ROOT, given.address, given.ref)} distributions")


if __name__ == "__main__":
    main()
