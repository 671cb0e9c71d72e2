"""Models that installed Python packages ship. Reference `package:NAME` or `package:NAME/FILE`.

The package's metadata says which files it has; its code is never imported.
"""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Source

PREFIX = "package:"


def is_package(ref: str) -> bool:
    return ref.startswith(PREFIX)


@hookimpl
def inferno_sources() -> list[Source]:
    return [
        Source(
            name="package",
            describe="the model of an installed Python package: package:NAME, or one of several: "
            "package:NAME/FILE",
            matches=is_package,
            fetch="inferno_package.models:fetch",
            list="inferno_package.models:references",
            origin="inferno_package.models:origin",
            priority=30,  # above local paths: a file of that name is ./package:NAME
        )
    ]
