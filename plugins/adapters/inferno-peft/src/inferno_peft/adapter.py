"""PEFT's folder of an adapter."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen
from safetensors import SafetensorError, safe_open

from inferno.configs.files import MAX_CONFIG, contents, opened
from inferno.contracts import AdapterBase, LowRank
from inferno.errors import CheckpointError, UnsupportedError
from inferno_peft import CONFIG
from inferno_peft.config import DAMAGED, DORA, MERGE, WITH_PEFT, PeftConfig
from inferno_peft.experts import ExpertPair, expert_pairs, parameters

if TYPE_CHECKING:
    from torch import Tensor

FILE = "adapter_model.safetensors"
_NAME = re.compile(
    r"(?:base_model\.model\.)?(?P<path>[\w.]+?)\.(?:"
    r"lora_(?P<part>[AB])(?:\.default)?\.weight|"
    r"lora_embedding_(?P<rows>[AB])(?:\.default)?|"
    r"(?P<base>base_layer)\.weight|"
    r"(?P<norms>lora_magnitude_vector)(?:\.default)?(?:\.weight)?)",
    re.A,
)
_OTHERS = {
    "lora_bias": "it has biases of its own",
    "modules_to_save": "it replaces whole modules (modules_to_save)",
}
_FLOATS = ("F32", "F16", "BF16", "F64")


@frozen
class Source:
    """Where the pair of a matrix is stored."""

    a: str
    b: str
    transposed: bool = False
    """Whether the stored pair is that of the transposed matrix, as of embeddings."""
    expert: ExpertPair | None = None
    norms: str = ""
    """A vector of the rows' norms; empty: there is none."""

    def of(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        a, b = tensors[self.a], tensors[self.b]
        if self.expert is not None:
            return self.expert.of(a, b)
        return (b.T, a.T) if self.transposed else (a, b)


@frozen(eq=False)
class PeftAdapter:
    """An adapter of PEFT (`contracts.AdapterFile`)."""

    folder: Path
    digest: str
    pairs: Mapping[str, LowRank]
    sources: Mapping[str, Source]
    copies: tuple[tuple[str, str], ...] = ()
    """Tensors of the head's pair and those of the embedding's that they are, transposed."""

    def read(self) -> Mapping[str, tuple[Tensor, Tensor]]:
        from safetensors.torch import load

        config, data = read_files(self.folder)
        if digest_of(config, hashlib.sha256(data).digest()) != self.digest:
            raise CheckpointError(
                f"{self.folder}: the adapter's files have changed since they were opened",
                "Load the adapter again.",
            )
        tensors = load(data)
        if not all(tensors[copy].equal(tensors[name].T) for copy, name in self.copies):
            raise UnsupportedError(
                f"{self.folder}: the head's pair is not the embedding's, though they are tied",
                "Train it without a pair of the head, or beside a model whose head is its own.",
            )
        return {path: source.of(tensors) for path, source in self.sources.items()}

    def magnitudes(self) -> Mapping[str, Tensor]:
        """Return the norms of rows of merged matrices, by path: see `contracts.AdapterFile`."""
        from safetensors.torch import load

        tensors = load(read_files(self.folder)[1])
        return {p: tensors[each.norms] for p, each in self.sources.items() if each.norms}


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
    data = contents(path / CONFIG, MAX_CONFIG)
    config = PeftConfig.parse(data, merging=base.merging)
    pairs: dict[str, LowRank] = {}
    sources: dict[str, Source] = {}
    parts = _parts(file)
    copies = tuple(_copies(parts)) if config.tied else ()
    for name, members in parts.items():
        entries = list(_matrices(file, name, members, config, base))
        pairs |= {path: pair for path, pair, _ in entries}
        sources |= {path: source for path, _, source in entries}
    if not pairs:
        raise CheckpointError(f"{file} has no pair of matrices", DAMAGED)
    return PeftAdapter(path, digest_of(data, _sha256(file)), pairs, sources, copies)


def read_files(folder: Path) -> tuple[bytes, bytes]:
    """Return the bytes of the config and of the weights. Raises CheckpointError."""
    return contents(folder / CONFIG, MAX_CONFIG), contents(folder / FILE, MAX_WEIGHTS)


def digest_of(config: bytes, weights: bytes) -> str:
    """Return 128 bits of SHA-256, in hexadecimal. `weights`: the SHA-256 of theirs."""
    return hashlib.sha256(hashlib.sha256(config).digest() + weights).hexdigest()[:32]


def _sha256(file: Path) -> bytes:
    """Return the SHA-256 of a file of any size, in pieces. Raises CheckpointError."""
    digest = hashlib.sha256()
    with opened(file) as stream:
        try:
            while piece := stream.read(_PIECE):
                digest.update(piece)
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error}", DAMAGED) from error
    return digest.digest()


_PIECE = 1 << 20
MAX_WEIGHTS = 2**34
"""Bytes of an adapter's weights that are read to memory."""
_Part = tuple[str, tuple[int, ...], str]
"""A tensor's name, shape and dtype."""
_ROWS, _BASE, _NORMS = "embedding_", "base_layer", "lora_magnitude_vector"
"""Before A and B of an embedding; for the model's own matrix, which PEFT saves with those of
embeddings and heads; and for the norms of a DoRA's rows."""


def _parts(file: Path) -> dict[str, dict[str, _Part]]:
    """Return the tensors of each module, by A and B."""
    by_path: dict[str, dict[str, _Part]] = {}
    for name, shape, dtype in _headers(file):
        match = _NAME.fullmatch(name)
        if match is None:
            reason = next((why for part, why in _OTHERS.items() if part in name), None)
            raise UnsupportedError(
                f"{file}: {reason or 'it is no pair of matrices of a linear layer'}: {name[:100]}",
                WITH_PEFT,
            )
        members = by_path.setdefault(match["path"], {})
        part = match["part"] or match["base"] or match["norms"] or f"{_ROWS}{match['rows']}"
        if part in members:
            raise CheckpointError(f"{file}: {name[:100]} is there twice", DAMAGED)
        members[part] = name, shape, dtype
    return by_path


def _copies(parts: dict[str, dict[str, _Part]]) -> Iterator[tuple[str, str]]:
    """Remove the pair of a head that PEFT ties to that of the embedding, transposed: inferno adds
    the embedding's in both places. Yields its tensors' names, each with that of the embedding's."""
    rows = f"{_ROWS}B", f"{_ROWS}A"
    tied = [members for members in parts.values() if members.keys() >= {*rows}]
    for path, members in list(parts.items()):
        for embedding in tied if members.keys() >= {*"AB"} else ():
            pairs = [(members[part], embedding[row]) for part, row in zip("AB", rows, strict=True)]
            if all(copy[1] == stored[1][::-1] for copy, stored in pairs):
                yield from ((copy[0], stored[0]) for copy, stored in pairs)
                parts.pop(path, None)


def _headers(file: Path) -> list[_Part]:
    """Return the tensors of a file, checked by safetensors' own library."""
    try:
        with safe_open(file, framework="np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}
            return [(n, tuple(s.get_shape()), s.get_dtype()) for n, s in slices.items()]
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}", DAMAGED) from error


def _matrices(
    file: Path, path: str, own: dict[str, _Part], config: PeftConfig, base: AdapterBase
) -> Iterator[tuple[str, LowRank, Source]]:
    """Yield the pairs of a module's matrices."""
    dense, rows = own.pop(_BASE, None), any(part.startswith(_ROWS) for part in own)
    norms = own.pop(_NORMS, None)
    if norms is not None and not base.merging:
        raise UnsupportedError(f"{file}: {DORA}: {path[:100]}", MERGE)
    named = {part.removeprefix(_ROWS): each for part, each in own.items()}
    if len(named) < len(own) or not named:
        raise UnsupportedError(
            f"{file}: {path[:100]} is no pair of matrices of a linear layer or an embedding",
            WITH_PEFT,
        )
    a, b = (_named(file, path, named, part) for part in "AB")
    targets = parameters(path, config.parameters)
    rank = config.rank_of(path)
    shapes = _shapes(file, path, a, b)
    if targets and (targets != ["weight"] or a[1][0] != rank):
        pair = LowRank(rank=a[1][0], scale=1, inputs=a[1][1], outputs=b[1][0])
        for where, each, expert in expert_pairs(path, pair, targets, config, base):
            yield where, each, Source(a[0], b[0], expert=expert)
        return
    if shapes[0] != rank:
        raise CheckpointError(
            f"{file}: {path} has rank {shapes[0]}, adapter_config.json says {rank}", DAMAGED
        )
    if rank > max(shapes[1:]):  # none of use, and there may be gigabytes of it
        raise CheckpointError(
            f"{file}: {path[:100]} has rank {rank}, more than the matrix has rows or columns",
            DAMAGED,
        )
    inputs, outputs = shapes[1:][::-1] if rows else shapes[1:]
    if dense is not None and dense[1] != (outputs, inputs):
        raise UnsupportedError(
            f"{file}: {path[:100]} has {list(dense[1])} beside a pair for ({outputs}, {inputs})",
            WITH_PEFT,
        )
    if norms is not None and (rows or norms[1] != (outputs,)):
        raise CheckpointError(f"{file}: {path[:100]} has norms of {list(norms[1])}", DAMAGED)
    pair = LowRank(rank=rank, scale=config.scale_of(path), inputs=inputs, outputs=outputs)
    yield path, pair, Source(a[0], b[0], transposed=rows, norms="" if norms is None else norms[0])


def _named(file: Path, path: str, own: Mapping[str, _Part], part: str) -> _Part:
    if part not in own:
        raise CheckpointError(f"{file}: {path}.lora_{part} is missing", DAMAGED)
    return own[part]


def _shapes(file: Path, path: str, first: _Part, second: _Part) -> tuple[int, int, int]:
    """Return the rank of a pair, and A's columns and B's rows."""
    (_, a, a_dtype), (_, b, b_dtype) = first, second
    if len(a) != 2 or len(b) != 2 or a[0] != b[1] or not all((*a, *b)):
        raise CheckpointError(
            f"{file}: {path} has A of {list(a)} and B of {list(b)}: their ranks differ", DAMAGED
        )
    if not {a_dtype, b_dtype} <= set(_FLOATS):
        raise CheckpointError(f"{file}: {path} is stored as {a_dtype} and {b_dtype}", DAMAGED)
    return a[0], a[1], b[0]
