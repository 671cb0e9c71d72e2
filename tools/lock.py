"""Writes `deploy/requirements.lock`: what inferno and all plugins need at run time, each at the
version of `constraints.txt`, with the SHA-256 of every file that the index has of it.

    python tools/lock.py [--index https://pypi.org/simple]

`pip install --require-hashes -r deploy/requirements.lock` then installs these bytes or nothing.
torch and what comes with it are left out: each build, of each index, has hashes of its own.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Collection, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import httpx
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "deploy" / "requirements.lock"
HEAD = f"""\
# Written by tools/lock.py: `pip install --require-hashes -r {LOCK.relative_to(ROOT)}`, after torch.
"""
EXTRAS = {"audio", "images", "otel"}
"""Of inferno itself: those that the container has."""
BY_BUILD = {"torch", "triton"}
"""Not locked, nor is what only they need."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def roots() -> Iterator[Requirement]:
    """Yield what the distributions of this repository declare."""
    for path in [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/*/pyproject.toml"))]:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        yield from map(Requirement, project["dependencies"])
        for extra, needs in project.get("optional-dependencies", {}).items():
            if path.parent == ROOT and extra in EXTRAS:
                yield from map(Requirement, needs)


def needed(wanted: Iterable[Requirement], but: Collection[str] = ()) -> dict[str, set[str]]:
    """Return what the requirements need on Linux, on any supported Python: canonical names, with
    those of what each needs itself. `but` and what only they need is left out. Raises SystemExit
    for one that is not installed here."""
    needs: dict[str, set[str]] = {}
    queue = [("", each, frozenset[str]()) for each in wanted]
    seen = set[tuple[str, frozenset[str]]]()
    while queue:
        parent, each, extras = queue.pop()
        name = canonicalize_name(each.name)
        if name in but or not _applies(each.marker, extras):
            continue
        needs.setdefault(name, set())
        if parent:
            needs[parent].add(name)
        case = name, frozenset(each.extras)
        if case not in seen:
            seen.add(case)
            queue += [(name, Requirement(text), case[1]) for text in _requires(name)]
    return needs


def _requires(name: str) -> list[str]:
    try:
        return distribution(name).requires or []
    except PackageNotFoundError:
        raise SystemExit(f"{name} is not installed: make dev") from None


def _applies(marker: Marker | None, extras: Iterable[str]) -> bool:
    if marker is None:
        return True
    linux = {"sys_platform": "linux", "platform_system": "Linux"}
    return any(
        marker.evaluate({**linux, "python_version": python, "extra": extra})
        for python in PYTHONS
        for extra in ("", *extras)
    )


def is_ours(name: str) -> bool:
    """Return whether a distribution is of this repository, by its canonical name."""
    return name.partition("-")[0] == "inferno"


def constrained() -> dict[str, str]:
    """Return the versions of `constraints.txt` by canonical name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def hashes(index: httpx.Client, name: str, version: str) -> list[str]:
    """Return the SHA-256 of every file of a version. Raises SystemExit if there is none."""
    answer = index.get(f"{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    files = answer.raise_for_status().json()["files"]
    digests = sorted(f["hashes"]["sha256"] for f in files if _version(f["filename"]) == version)
    if not digests:
        raise SystemExit(f"the index has no file of {name} {version}: change constraints.txt")
    return digests


def _version(filename: str) -> str:
    try:
        if filename.endswith(".whl"):
            return str(parse_wheel_filename(filename)[1])
        return str(parse_sdist_filename(filename)[1])
    except ValueError:  # an egg, or an installer of Windows
        return ""


def main() -> None:
    """Write the lock."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--index", default="https://pypi.org/simple", metavar="URL")
    options = parser.parse_args()
    versions = constrained()
    names = sorted(n for n in needed(roots(), BY_BUILD) if not is_ours(n))
    if missing := [name for name in names if name not in versions]:
        raise SystemExit(f"constraints.txt has no version of {', '.join(missing)}")
    text = [HEAD]
    with httpx.Client(base_url=options.index.rstrip("/") + "/", timeout=60) as index:
        for name in names:
            lines = [f"{name}=={versions[name]}", *hashes(index, name, versions[name])]
            text.append(" \\\n    --hash=sha256:".join(lines) + "\n")
    LOCK.write_text("".join(text), encoding="utf-8")
    print(f"{len(names)} packages in {LOCK.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
