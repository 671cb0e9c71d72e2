"""What is among a checkpoint's files, by their names and kinds. None is opened but JSON."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from inferno.configs.files import MAX_CONFIG, MAX_TEXT, contents
from inferno.errors import CheckpointError

CODE = {
    ".py": "Python code",
    ".so": "machine code",
    ".dll": "machine code",
    ".dylib": "machine code",
    ".sh": "a script",
}
PICKLES = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".dill"}
"""Files whose readers run what is written in them."""
MOST_FILES = 20_000
_CONFIGS = ("config.json", "tokenizer_config.json", "generation_config.json")


def survey(path: Path) -> Iterator[str]:
    """Yield a sentence for each thing that is unusual, none of which inferno uses."""
    if not path.is_dir():
        return
    home = path.resolve()
    # A hub's folder: snapshots/REVISION has links to blobs/.
    inside = home.parent.parent if home.parent.name == "snapshots" else home
    for number, file in enumerate(_files(path)):
        if number >= MOST_FILES:
            yield f"There are more than {MOST_FILES} files; the rest was not looked at."
            return
        yield from _odd(file, str(file.relative_to(path)), inside)
    for name in _CONFIGS:
        yield from _auto_map(path / name)


def _files(path: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(path):
        names.sort()
        yield from (Path(folder, name) for name in sorted(files))
        yield from (Path(folder, name) for name in names if Path(folder, name).is_symlink())


def _odd(file: Path, name: str, inside: Path) -> Iterator[str]:
    try:
        status = file.lstat()
        if stat.S_ISLNK(status.st_mode):
            target = file.resolve(strict=True)
            if not target.is_relative_to(inside):
                yield f"{name} is a link that leads out of the folder, to {target}."
            status = target.stat()
    except (OSError, RuntimeError):  # RuntimeError: a loop, in Python 3.12 and older
        yield f"{name} is a link that leads nowhere."
        return
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        yield f"{name} is no file: a pipe, a socket or a device."
        return
    if (what := CODE.get(file.suffix)) is not None:
        yield f"{name} is {what}: it is never run."
    elif file.suffix in PICKLES:
        yield f"{name} may be a pickle, which runs code when it is read: it is never read."
    most = MAX_TEXT if file.name == "tokenizer.json" else MAX_CONFIG
    if file.suffix == ".json" and status.st_size > most:
        yield f"{name} has {status.st_size} bytes, more than any configuration: it is not read."


def _auto_map(file: Path) -> Iterator[str]:
    try:
        config = json.loads(contents(file, MAX_CONFIG)) if file.exists() else {}
    except (CheckpointError, OSError, ValueError, RecursionError):
        return  # the trial says it
    if isinstance(config, dict) and config.get("auto_map"):
        yield f"{file.name} asks for code of its own (auto_map): other programs run it, this not."
