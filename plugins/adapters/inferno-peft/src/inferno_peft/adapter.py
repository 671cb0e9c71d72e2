"""PEFT's folder of an adapter."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen
from safetensors import SafetensorError, safe_open

from inferno.contracts import AdapterBase, LowRank
from inferno.errors import CheckpointError, UnsupportedError
from inferno_peft import CONFIG
from inferno_peft.config import DAMAGED, MERGE, PeftConfig

if TYPE_CHECKING:
    from torch import Tensor

FILE = "adapter_model.safetensors"
_NAME = re.compile(
    r"(?:base_model\.model\.)?(?P<path>[\w.]+?)\.lora_(?P<part>[AB])(?:\.default)?\.weight", re.A
)
_OTHERS = {
    "lora_magnitude_vector": "it is a DoRA, which scales rows by their norms",
    "lora_embedding_": "it changes the embeddings",
    "lora_bias": "it has biases of its own",
}
_FLOATS = ("F32", "F16", "BF16", "F64")


@frozen(eq=False)
class PeftAdapter:
    """An adapter of PEFT (`contracts.AdapterFile`)."""

    folder: Path
    digest: str
    pairs: Mapping[str, LowRank]
    names: Mapping[str, tuple[str, str]]
    """The names of each pair's tensors."""

    def read(self) -> Mapping[str, tuple[Tensor, Tensor]]:
        from safetensors.torch import load

        config, data = read_files(self.folder)
        if digest_of(config, data) != self.digest:
            raise CheckpointError(
                f"{self.folder}: the adapter's files have changed since they were opened",
                "Load the adapter again.",
            )
        tensors = load(data)
        return {path: (tensors[a], tensors[b]) for path, (a, b) in self.names.items()}


def open_adapter(path: Path, base: AdapterBase) -> PeftAdapter:
    """Read and check the headers of an adapter. Raises CheckpointError, UnsupportedError."""
    file = path / FILE
    if not file.is_file():
        if any(path.glob("adapter_model.*")):
            raise UnsupportedError(
                f"{path}: the adapter's weights are no safetensors file; other files may run code",
                "Save it again with PEFT: save_pretrained(..., safe_serialization=True).",
            )
        raise CheckpointError(f"{file} is missing", DAMAGED)
    data, weights = read_files(path)
    config = PeftConfig.parse(data)
    parts = _parts(file)
    pairs = {name: _pair(file, name, own, config) for name, own in parts.items()}
    if not pairs:
        raise CheckpointError(f"{file} has no pair of matrices", DAMAGED)
    names = {name: (own["A"][0], own["B"][0]) for name, own in parts.items()}
    return PeftAdapter(path, digest_of(data, weights), pairs, names)


def read_files(folder: Path) -> tuple[bytes, bytes]:
    """Return the bytes of the config and of the weights. Raises CheckpointError."""
    try:
        return (folder / CONFIG).read_bytes(), (folder / FILE).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{folder}: {error.strerror or error}", DAMAGED) from error


def digest_of(config: bytes, weights: bytes) -> str:
    """Return 128 bits of SHA-256, in hexadecimal."""
    inner = hashlib.sha256(config).digest() + hashlib.sha256(weights).digest()
    return hashlib.sha256(inner).hexdigest()[:32]


_Part = tuple[str, tuple[int, ...], str]
"""A tensor's name, shape and dtype."""


def _parts(file: Path) -> dict[str, dict[str, _Part]]:
    """Return the tensors of each module, by A and B."""
    found: dict[str, dict[str, _Part]] = {}
    for name, shape, dtype in _headers(file):
        match = _NAME.fullmatch(name)
        if match is None:
            reason = next((why for part, why in _OTHERS.items() if part in name), None)
            raise UnsupportedError(
                f"{file}: {reason or 'it is no pair of matrices of a linear layer'}: {name[:100]}",
                MERGE,
            )
        own = found.setdefault(match["path"], {})
        if match["part"] in own:
            raise CheckpointError(f"{file}: {name[:100]} is there twice", DAMAGED)
        own[match["part"]] = name, shape, dtype
    return found


def _headers(file: Path) -> list[_Part]:
    """Return the tensors of a file, checked by safetensors' own library."""
    try:
        with safe_open(file, framework="np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}
            return [(n, tuple(s.get_shape()), s.get_dtype()) for n, s in slices.items()]
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}", DAMAGED) from error


def _pair(file: Path, path: str, own: Mapping[str, _Part], config: PeftConfig) -> LowRank:
    if set(own) != {"A", "B"}:
        missing = "A" if "B" in own else "B"
        raise CheckpointError(f"{file}: {path}.lora_{missing} is missing", DAMAGED)
    (_, a, a_dtype), (_, b, b_dtype) = own["A"], own["B"]
    if len(a) != 2 or len(b) != 2 or a[0] != b[1] or not all((*a, *b)):
        raise CheckpointError(
            f"{file}: {path} has A of {list(a)} and B of {list(b)}: their ranks differ", DAMAGED
        )
    if not {a_dtype, b_dtype} <= set(_FLOATS):
        raise CheckpointError(f"{file}: {path} is stored as {a_dtype} and {b_dtype}", DAMAGED)
    if a[0] != config.rank_of(path):
        raise CheckpointError(
            f"{file}: {path} has rank {a[0]}, adapter_config.json says {config.rank_of(path)}",
            DAMAGED,
        )
    return LowRank(rank=a[0], scale=config.scale_of(path), inputs=a[1], outputs=b[0])
