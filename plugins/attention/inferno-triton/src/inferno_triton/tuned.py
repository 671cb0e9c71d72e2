"""Tiles that `python -m inferno_triton.tune` measured. They are kept in a file for each device and
override the built-in table. Imports neither torch nor triton."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from inferno_triton.tiles import Chip, Product, Tile

VERSION = 3
"""Version of the file and of the kernels: tiles of other kernels are not used."""

_MOST = 1024
"""Upper limit of a tile's numbers, to detect damaged files."""


class DamagedFileError(Exception):
    """The file is not what was written. The message says why."""


def path_of(device: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file of a device, by its name: in the user's cache folder, which `XDG_CACHE_HOME`
    may name."""
    base = environ.get("XDG_CACHE_HOME", "")
    cache = Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()
    name = "".join(c if c.isalnum() else "-" for c in device.lower())
    return cache / "inferno" / "triton" / f"{name}.json"


def save(path: Path, device: str, chip: Chip) -> None:
    """Write a chip's tiles, as measured on the device. The file is replaced as a whole."""
    content = {
        "version": VERSION,
        "device": device,
        "shared_memory": chip.shared_memory,
        "tiles": [[*key, *attrs.astuple(tile)] for key, tile in chip.tiles.items()],
        "products": [[key, *attrs.astuple(each)] for key, each in chip.products.items()],
        "grouped": [[key, *attrs.astuple(each)] for key, each in chip.grouped.items()],
        "rounded": [*attrs.astuple(chip.rounded)],
    }
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps({**content, "sha256": _digest(content)}, indent=1) + "\n")
    part.replace(path)


def read(path: Path, device: str, chip: Chip) -> Chip:
    """Return the chip with the tiles in the file, if there is one for this device and its thread
    blocks have the memory that they were measured with. A damaged file is ignored, with a
    warning."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return chip
    except (OSError, UnicodeDecodeError) as error:
        return _ignored(path, str(error), chip)
    try:
        return _parsed(text, device, chip)
    except DamagedFileError as error:
        return _ignored(path, str(error), chip)


def _ignored(path: Path, why: str, chip: Chip) -> Chip:
    warnings.warn(
        f"{path} is ignored, and the built-in tiles are used: {why}. Delete it, or write it again: "
        f"python -m inferno_triton.tune",
        stacklevel=3,
    )
    return chip


def _parsed(text: str, device: str, chip: Chip) -> Chip:
    try:
        content = json.loads(text)
        stored = content.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DamagedFileError("it is not a file of tiles") from error
    if _digest(content) != stored:
        raise DamagedFileError("its checksum is another")
    if content.get("version") != VERSION:
        raise DamagedFileError(f"its version is {content.get('version')}, not {VERSION}")
    if content.get("device") != device:
        raise DamagedFileError(f"it was measured on {content.get('device')}")
    if content.get("shared_memory") != chip.shared_memory:
        raise DamagedFileError(
            f"its tiles fit into {content.get('shared_memory')} bytes of shared memory, and the "
            f"chip has {chip.shared_memory}"
        )
    try:
        return attrs.evolve(
            chip,
            tiles={(w, d): Tile(*_numbers(rest)) for w, d, *rest in content["tiles"]},
            products={key: Product(*_numbers(rest)) for key, *rest in content["products"]},
            grouped={key: Product(*_numbers(rest)) for key, *rest in content["grouped"]},
            rounded=Product(*_numbers(content["rounded"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError("an entry is not a tile") from error


def _numbers(found: Any) -> list[int]:
    """Return the numbers of a tile. Raises ValueError if they cannot be."""
    if not all(type(each) is int and 0 < each <= _MOST for each in found):
        raise ValueError(found)
    return list(found)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
