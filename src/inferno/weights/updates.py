"""Weights that replace those of a checkpoint: tensors of safetensors files, under the names that
the checkpoint stores them by."""

from __future__ import annotations

import difflib
import json
import os
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from inferno.builtin.safetensors import DTYPES, SafetensorsCheckpoint
from inferno.contracts import COMPUTE_DTYPES, Checkpoint, CheckpointView, TensorInfo
from inferno.errors import CheckpointError, RequestError
from inferno.weights.packed.digest import state

if TYPE_CHECKING:
    from torch import Tensor

_CODES = {dtype: code for code, dtype in DTYPES.items()}
"""Safetensors' names of dtypes, by torch's."""
_NAME_FILE = "Name a safetensors file, or a folder with such files."
_PREFIX = "inferno_weights_"
_LEFT = 24 * 3600
"""Seconds after which nobody will take a temporary file any more."""
_SHOWN = 3
"""Names that an error lists."""


@define(eq=False)
class Update:
    """Tensors of a file, or of the files in a folder. They are copied when they are read: whoever
    writes the files may write the next ones over them once the model is loaded."""

    tensors: SafetensorsCheckpoint
    _held: int | None = None
    """The descriptor that keeps a file without a name."""
    _states: Mapping[Path, list[int]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._states = {file: self._state_of(file) for file in self.tensors.files}

    @classmethod
    def of(cls, path: Path, *, temporary: bool = False, held: bool = False) -> Update:
        """Read the headers. A `temporary` file loses its name, so that the system deletes it with
        this process, however that ends; one that is `held` may lose it. Raises CheckpointError."""
        descriptor = None
        try:
            if temporary or held:
                descriptor, named = os.open(path, os.O_RDONLY), path
                path = Path(f"/dev/fd/{descriptor}")
                if temporary:
                    named.unlink()
            tensors = SafetensorsCheckpoint.of_tensors(path)
            if not tensors.stored:
                raise CheckpointError(f"{path} has no tensors", _NAME_FILE)
            return cls(tensors, descriptor)
        except BaseException as error:
            if descriptor is not None:
                os.close(descriptor)
            if isinstance(error, OSError):
                why = error.strerror or error
                raise CheckpointError(f"{path} cannot be read: {why}", _NAME_FILE) from error
            raise

    def read(self, name: str) -> Tensor:
        """Return a copy of a tensor. Raises CheckpointError, also if its file has changed."""
        import torch

        file = self.tensors.stored[name].file
        self._check_unchanged(file)
        info, data = self.tensors.tensors[name], self.tensors.peek(name)
        if len(data) != info.nbytes:
            raise CheckpointError(f"{file} became shorter while it was read", "Write it again.")
        dtype = getattr(torch, info.dtype)
        if not data:
            return torch.empty(info.shape, dtype=dtype)
        return torch.frombuffer(bytearray(data), dtype=dtype).view(info.shape)

    def check_unchanged(self) -> None:
        """Raise CheckpointError if a file has changed."""
        for file in self._states:
            self._check_unchanged(file)

    def _state_of(self, file: Path) -> list[int]:
        """Return what changes with the content: another process may take a held file's name away,
        which its last time tells."""
        return state(file) if self._held is None else state(file)[:-1]

    def _check_unchanged(self, file: Path) -> None:
        try:
            same = self._state_of(file) == self._states[file]
        except OSError:
            same = False
        if not same:
            raise CheckpointError(
                f"{file} has changed since the weights were updated from it",
                "Update all weights again, and keep the file until then.",
            )

    def close(self) -> None:
        """Let go of the file if it is temporary, which deletes it."""
        descriptor, self._held = self._held, None
        if descriptor is not None:
            os.close(descriptor)


@frozen(eq=False)
class Updated(CheckpointView):
    """A checkpoint with tensors replaced by those of updates, the last one that has it counts."""

    source: Mapping[str, Update]
    """By the tensor's name."""
    tensors: Mapping[str, TensorInfo]

    @classmethod
    def of(cls, checkpoint: Checkpoint, updates: Sequence[Update]) -> Checkpoint:
        """Return the checkpoint with the tensors of the updates that it has."""
        known = checkpoint.tensors
        source = {n: each for each in updates for n in each.tensors.stored if n in known}
        changed = {name: each.tensors.stored[name].info for name, each in source.items()}
        return cls(checkpoint, source, {**known, **changed}) if source else checkpoint

    def read(self, name: str) -> Tensor:
        update = self.source.get(name)
        return self.checkpoint.read(name) if update is None else update.read(name)

    def peek(self, name: str) -> bytes:
        update = self.source.get(name)
        return super().peek(name) if update is None else update.tensors.peek(name)


def needed(updates: Iterable[Update]) -> tuple[Update, ...]:
    """Return the updates of which a tensor is still used, oldest first: of those with the same
    tensor the last one counts."""
    latest, names = list[Update](), set[str]()
    for update in reversed(list(updates)):
        if not update.tensors.stored.keys() <= names:
            latest.append(update)
            names |= update.tensors.stored.keys()
    return tuple(reversed(latest))


def check_update(
    update: Update, checkpoint: Checkpoint, dtype: str, unread: Collection[str] = ()
) -> None:
    """Raise CheckpointError unless the tensors of an update can replace those of a checkpoint, as
    it is stored: names, shapes, dtypes and finite numbers, also in the compute `dtype`. `unread`
    are names that the model does without, such as a tied head's or a cache's scales."""
    known = checkpoint.tensors
    if unknown := [n for n in update.tensors.stored if n not in known and n not in unread]:
        near = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.6)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise CheckpointError(
            f"the checkpoint has no tensor {', '.join(n[:200] for n in unknown[:_SHOWN])}"
            + (f", and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""),
            f"{hint}Use the checkpoint's own names. Nothing was changed.",
        )
    for name, info in update.tensors.tensors.items():
        if name in known:
            _check_header(name, info, known[name])
    for name in update.tensors.stored:
        _check_numbers(name, update.read(name), dtype)


def _check_header(name: str, info: TensorInfo, stored: TensorInfo) -> None:
    if info.shape != stored.shape:
        raise CheckpointError(
            f"{name} is {info.shape}, the checkpoint has {stored.shape}",
            "Give tensors of the shapes that the model was loaded with. Nothing was changed.",
        )
    plain = {info.dtype, stored.dtype} <= set(COMPUTE_DTYPES)
    if info.dtype != stored.dtype and not plain:
        raise CheckpointError(
            f"{name} is {info.dtype}, the checkpoint has {stored.dtype}",
            f"Give {stored.dtype}; or load the model from a checkpoint of plain numbers, and "
            "quantize it with --isq. Nothing was changed.",
        )


def _check_numbers(name: str, tensor: Tensor, dtype: str) -> None:
    import torch

    if not tensor.is_floating_point():
        return
    plain = str(tensor.dtype).removeprefix("torch.") in COMPUTE_DTYPES
    numbers = tensor.to(getattr(torch, dtype)) if plain else tensor.float()
    if not bool(numbers.isfinite().all()):
        raise CheckpointError(
            f"{name} has numbers that are not finite in {dtype}",
            "The training has diverged, or the tensor is damaged. Nothing was changed.",
        )


def write_tensors(tensors: Iterable[tuple[str, Any]], folder: Path | None = None) -> Path:
    """Write tensors to a temporary safetensors file that only this user may read, and return its
    path. Raises RequestError for what are no tensors."""
    import torch

    _sweep(Path(folder or tempfile.gettempdir()))
    given: dict[str, Tensor] = {}
    header, offset = dict[str, Any](), 0
    for name, tensor in _pairs(tensors):
        code = _CODES.get(str(tensor.dtype).removeprefix("torch."))
        if code is None:
            raise RequestError(f"{name} is {tensor.dtype}", "Convert it to float32 or bfloat16.")
        if name in given:
            raise RequestError(f"{name} is given twice", "Give each tensor once.")
        given[name] = tensor
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": code,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with tempfile.NamedTemporaryFile(
        prefix=_PREFIX, suffix=".safetensors", dir=folder, delete=False
    ) as stream:
        path = Path(stream.name)
        try:
            stream.write(len(head).to_bytes(8, "little") + head)
            for tensor in given.values():
                flat = tensor.detach().cpu().contiguous().flatten()
                stream.write(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return path


def _sweep(folder: Path) -> None:
    """Delete files of processes that were killed before an engine had taken them."""
    for file in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's, or gone
            if time.time() - file.stat().st_mtime > _LEFT:
                file.unlink()


def _pairs(tensors: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Tensor]]:
    import torch

    for pair in tensors.items() if isinstance(tensors, Mapping) else tensors:
        match pair:
            case (str() as name, torch.Tensor() as tensor):
                yield name, tensor
            case _:
                raise RequestError(
                    f"{str(pair)[:80]} is no pair of a name and a tensor",
                    "Give pairs, as `model.named_parameters()` does, or the path of a file.",
                )
