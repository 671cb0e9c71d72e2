"""What callers give to change an engine's weights, or to wake it up."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from inferno.errors import EngineDeadError, RequestError
from inferno.llm.client import Client
from inferno.process.protocol import Control
from inferno.request.requests import pause_mode

Weights = str | PathLike[str] | Iterable[tuple[str, Any]]
"""A safetensors file, a folder with such, or pairs of a checkpoint's name and a torch tensor."""
_TAGS = ("weights", "kv_cache")


def weights_file(weights: Weights, folder: str | None = None) -> tuple[Path, bool]:
    """Return the file with the weights, and whether it is temporary: pairs of names and tensors are
    written to one in `folder`, or where the system keeps such. Raises RequestError."""
    if isinstance(weights, str | PathLike):
        path = Path(weights)
        try:
            known = "\0" not in str(path) and bool(str(path).encode())
        except UnicodeEncodeError:  # half a character, which no file has in its name
            known = False
        if not known:
            raise RequestError(
                f"{ascii(str(path))[:80]} cannot be the name of a file",
                "Name a safetensors file, or a folder with such files.",
                param="weights",
            )
        return path, False
    from inferno.weights.updates import write_tensors  # imports torch

    return write_tensors(weights, None if folder is None else Path(folder)), True


@contextmanager
def unless_failed(path: Path, temporary: bool) -> Iterator[None]:
    """Delete a temporary file that nobody else knows yet, if what comes first fails."""
    try:
        yield
    except BaseException:
        if temporary:
            path.unlink(missing_ok=True)
        raise


async def send_update(
    client: Client, weights: Weights, version: str | None, mode: str, *, temporary: bool = False
) -> None:
    """Have an engine process update its weights, and delete the file if it is `temporary`. Raises
    RequestError, CheckpointError, EngineDeadError, and OptionError for a file that a confined
    engine may not read."""
    chosen, sandbox = pause_mode(mode), client.plan.sandbox
    path, written = await asyncio.to_thread(weights_file, weights, client.scratch)
    temporary |= written
    if sandbox is not None and not temporary:
        sandbox.check(path)
    control = Control(
        action="update_weights",
        mode=chosen,
        path=str(path.absolute()),
        temporary=temporary,
        version=version,
    )
    try:
        await client.control(control)
    except EngineDeadError:
        if temporary:  # nobody else knows it any more
            path.unlink(missing_ok=True)
        raise


def woken_wholly(tags: Collection[str] | None) -> bool:
    """Return whether vLLM's `tags` ask for more than the weights. Raises RequestError."""
    for tag in tags or ():
        if tag not in _TAGS:
            raise RequestError(
                f"the tag {tag[:80]!r} is not known", f"Known: {', '.join(_TAGS)}.", param="tags"
            )
    return not tags or "kv_cache" in tags
