"""llama.cpp's LoRA adapters: a GGUF file with `X.lora_a` and `X.lora_b` for some tensors X of a
model's file. Rows of the second matrix are divided and ordered as those of X are.

Suffixes: E experts, R rank, I inputs, O outputs, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from inferno.configs.files import opened
from inferno.contracts import AdapterBase, Dialect, LowRank, RowRange, rotary_heads
from inferno.errors import CheckpointError, UnsupportedError
from inferno_gguf.checkpoint import halves_apart
from inferno_gguf.defaults import DEFAULTS
from inferno_gguf.ggml import BY_NAME
from inferno_gguf.reader import DAMAGED, GgufFile, Stored
from inferno_gguf.stored import StoredTensors
from inferno_gguf.translate import translate

if TYPE_CHECKING:
    from torch import Tensor

_OTHER = "It belongs to another model: serve it beside that one."
_EMBEDDING = "token_embd.weight"
"""Its first matrix is stored by rows, one for each token."""
_CHUNK = 1 << 20


@frozen
class Source:
    """Where the pair of a matrix is stored."""

    stored: str
    """The tensor of the model's file."""
    rows: RowRange
    heads: int
    """Whose rows have rotary pairs interleaved; 0: not interleaved."""


@frozen(eq=False)
class GgufAdapter:
    """See `contracts.AdapterFile`."""

    path: Path
    digest: str
    pairs: Mapping[str, LowRank]
    sources: Mapping[str, Source]

    @classmethod
    def open(cls, path: Path, base: AdapterBase) -> GgufAdapter:
        """Read and check the header. Raises CheckpointError, UnsupportedError."""
        path = _only_file(path)
        digest, file = _digest(path), GgufFile.open(path)
        dialect = base.architecture.dialects.get("gguf")
        if dialect is None:
            raise UnsupportedError(
                f"the plugin of {base.architecture.name} does not say how GGUF files name it",
                "Serve the adapter that this file was converted from.",
            )
        if dialect.recast is not None and dialect.recast(base.config) is not None:
            raise UnsupportedError(
                f"GGUF files of {base.architecture.name} have other matrices than this checkpoint",
                "Serve the adapter that this file was converted from, or a GGUF file of the model.",
            )
        dialect = dialect.of(base.config).over(DEFAULTS)
        alpha = _alpha(file, dialect)
        shapes = dict(_shapes(file))
        wholes = {name: _whole(name, *pair) for name, pair in shapes.items()}
        plain = evolve(dialect, rotary_pairs={}, added={}, joins={}, squeezed={}, matrices={})
        ranges = translate(_as_stored(file, wholes), plain, base.config).ranges
        pairs: dict[str, LowRank] = {}
        sources: dict[str, Source] = {}
        for name, rows in ranges.items():
            module, heads = name.removesuffix(".weight"), rotary_heads(dialect, base.config, name)
            shape, rank = wholes[rows.stored], shapes[rows.stored][1].shape[-1]
            outputs = len(range(*rows.rows.indices(shape[-2])))
            if heads and outputs % (2 * heads):
                raise CheckpointError(f"{path.name}: {rows.stored} has {outputs} rows", _OTHER)
            scale = alpha / rank if alpha else 1.0
            pairs[module] = LowRank(rank=rank, scale=scale, inputs=shape[-1], outputs=outputs)
            sources[module] = Source(rows.stored, rows, heads)
        if not pairs:
            raise CheckpointError(f"{path.name} has no pair of matrices", DAMAGED)
        return cls(path, digest, pairs, sources)

    def read(self) -> Mapping[str, tuple[Tensor, Tensor]]:
        if _digest(self.path) != self.digest:
            raise CheckpointError(
                f"{self.path}: the adapter has changed since it was opened",
                "Load the adapter again.",
            )
        stored = StoredTensors.of([GgufFile.open(self.path)], {})
        values = {each.stored: _values(stored, each.stored) for each in self.sources.values()}
        return {path: _pair(each, *values[each.stored]) for path, each in self.sources.items()}


def _only_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) != 1:
        raise CheckpointError(f"{path} has {len(files)} GGUF files", "Name one of them.")
    return files[0]


def _digest(path: Path) -> str:
    """Return 128 bits of SHA-256, in hexadecimal."""
    hasher = hashlib.sha256()
    try:
        with opened(path) as stream:
            while chunk := stream.read(_CHUNK):
                hasher.update(chunk)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}", DAMAGED) from error
    return hasher.hexdigest()[:32]


def _alpha(file: GgufFile, dialect: Dialect) -> float:
    """Check what the metadata say. Returns alpha; 0 without one."""
    metadata, name = file.metadata, file.path.name
    if metadata.get("general.type") != "adapter":
        raise UnsupportedError(
            f"{name} is no adapter: its general.type is {str(metadata.get('general.type'))[:40]!r}",
            "Serve it as a model, or name an adapter.",
        )
    if (kind := metadata.get("adapter.type")) != "lora":
        raise UnsupportedError(
            f"{name} is an adapter of type {str(kind)[:40]!r}", "Only lora can be served."
        )
    if "adapter.alora.invocation_tokens" in metadata:
        raise UnsupportedError(
            f"{name} is an activated LoRA (aLoRA), which begins in mid-prompt",
            "Train it as a LoRA without invocation tokens: it cannot be merged either.",
        )
    if (architecture := metadata.get("general.architecture")) != dialect.architecture:
        raise CheckpointError(
            f"{name} is for models of {str(architecture)[:40]!r}, not {dialect.architecture}",
            _OTHER,
        )
    alpha = metadata.get("adapter.lora.alpha", 0.0)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise CheckpointError(f"{name}: adapter.lora.alpha is {str(alpha)[:40]!r}", DAMAGED)
    return float(alpha)


def _shapes(file: GgufFile) -> Iterator[tuple[str, tuple[Stored, Stored]]]:
    """Yield the two tensors of each pair, by the name of the model's tensor."""
    for name in file.tensors:
        whole, _, part = name.rpartition(".")
        if part not in ("lora_a", "lora_b"):
            raise UnsupportedError(
                f"{file.path.name}: {name[:100]} is no part of a pair of matrices",
                "Merge the adapter with llama.cpp's llama-export-lora, and serve that.",
            )
        a, b = (file.tensors.get(f"{whole}.{each}") for each in ("lora_a", "lora_b"))
        if a is None or b is None:
            raise CheckpointError(
                f"{file.path.name}: {whole[:100]} has no second matrix of its pair", DAMAGED
            )
        yield whole, (a, b)


def _whole(name: str, a: Stored, b: Stored) -> tuple[int, ...]:
    """Return the shape of the tensor that a pair changes."""
    first, second = (a.shape[::-1], b.shape) if name == _EMBEDDING else (a.shape, b.shape)
    fits = len(first) == len(second) in (2, 3) and first[:-2] == second[:-2]
    if not fits or first[-2] != second[-1]:
        raise CheckpointError(
            f"{name[:100]} has lora_a of {list(a.shape)} and lora_b of {list(b.shape)}: their "
            "ranks differ",
            DAMAGED,
        )
    if name == _EMBEDDING:
        return first[-1], second[-2]
    return (*second[:-1], first[-1])


def _as_stored(file: GgufFile, shapes: Mapping[str, tuple[int, ...]]) -> StoredTensors:
    """Return the model's tensors that have pairs, without values."""
    tensors = {
        name: Stored(name, BY_NAME["f32"], shape, 0, 4 * math.prod(shape))
        for name, shape in shapes.items()
    }
    return StoredTensors.of([evolve(file, tensors=tensors)], {})


def _values(stored: StoredTensors, name: str) -> tuple[Tensor, Tensor]:
    """Return the two tensors of a pair, dequantized: A (..., R, I) and B (..., O, R)."""
    a, b = (_dense(stored, f"{name}.{part}") for part in ("lora_a", "lora_b"))
    return (b.T, a) if name == _EMBEDDING else (a, b)


def _dense(stored: StoredTensors, name: str) -> Tensor:
    import torch

    from inferno_gguf.unpacked import dequantize

    tensor, kind = stored[name], stored[name].type
    values = stored.in_host_order(name, stored.read(name))
    if kind.dtype is None:
        values = dequantize(kind.name, values.reshape(-1, values.shape[-1]), torch.float32)
    return values.view(tensor.shape)


def _pair(source: Source, a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Return A (R, I) and B (O, R) of a matrix in a stored tensor."""
    a_RI = a if source.rows.member is None else a[source.rows.member]
    b_OR = source.rows.of(b)
    return a_RI, halves_apart(b_OR, source.heads) if source.heads else b_OR
