"""Builds `config.json` from a GGUF file's metadata and tensors, with the names in the
architecture's dialect, as in the original checkpoint.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any

from inferno.contracts import Architecture, Dialect, tensor_pattern
from inferno.errors import CheckpointError
from inferno_gguf.reader import DAMAGED, GgufFile, Stored

DEFAULT_THETA = 10_000.0
"""llama.cpp's default rotary base."""
FREQS, SHORT, LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
ROPE_TENSORS = frozenset({FREQS, SHORT, LONG})
"""Tensors that are configuration: divisors of the rotary frequencies."""


def make_config(
    architecture: Architecture, dialect: Dialect, files: list[GgufFile]
) -> Mapping[str, Any]:
    """Build the config of the model in `files`. The dialect's own values override those derived
    here."""
    values = _Values(files[0], dialect.architecture)
    stored = {name: s for file in files for name, s in file.tensors.items()}
    layers = values.number("block_count") or 0
    if layers > len(stored):
        raise CheckpointError(
            f"{files[0].path.name}: {layers} layers of {len(stored)} tensors", DAMAGED
        )
    config: dict[str, Any] = {"architectures": [architecture.name]}
    if (dtype := _dtype(stored)) is not None:
        config["torch_dtype"] = dtype
    config |= _rope(values, files, stored)
    for name, key in dialect.fields.items():
        if key is not None and (value := values.field(key)) is not None:
            config[name] = _spelt(value, dialect.values.get(name, {}))
    for name, tensor in dialect.layers_with.items():
        config[name] = [tensor.replace("{n}", str(n)) in stored for n in range(int(layers))]
    if "num_key_value_heads" in dialect.fields and "num_attention_heads" in config:
        # Omitted in files without grouped queries.
        config.setdefault("num_key_value_heads", config["num_attention_heads"])
    if (rows := _vocab_size(values, stored)) is not None:
        config["vocab_size"] = rows
    config["tie_word_embeddings"] = "output.weight" not in stored
    names = {*stored, *map(tensor_pattern, stored)}
    config |= {name: tensor in names for name, tensor in dialect.present.items()}
    config |= dialect.constants
    if dialect.config is None:
        return config
    try:
        return dialect.config(config)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{files[0].path.name}: no config of {architecture.name} has its sizes: {error}",
            DAMAGED,
        ) from error


def _spelt(value: Any, spelling: Mapping[Any, Any]) -> Any:
    return value if isinstance(value, list) else spelling.get(value, value)


class _Values:
    """An architecture's metadata, checked as it is read."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self.file, self._prefix = file, architecture

    def field(self, key: str) -> Any:
        """The value under the architecture's prefix. A list that repeats one value per layer
        becomes that value."""
        value = self.file.metadata.get(f"{self._prefix}.{key}")
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            value = value[0]
        return shortest(value) if isinstance(value, float) else value

    def number(self, key: str) -> float | None:
        value = self.field(key)
        if value is not None and (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise CheckpointError(
                f"{self.file.path.name}: {self._prefix}.{key} is {value!r}, not a number", DAMAGED
            )
        return value

    def size(self, key: str) -> int | None:
        value = self.number(key)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise CheckpointError(
                f"{self.file.path.name}: {self._prefix}.{key} is {value!r}, not a size", DAMAGED
            )
        return value


def shortest(value: float) -> float:
    """The shortest decimal with the same float32 value: most are stored as float32, so 1e-6 is read
    as 9.99999997e-07."""
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        return value
    if struct.unpack("<f", packed)[0] != value:
        return value
    return next(
        short
        for digits in range(6, 10)
        if struct.pack("<f", short := float(f"{value:.{digits}g}")) == packed
    )


def _dtype(stored: Mapping[str, Stored]) -> str | None:
    """The compute type: that of most values in dense matrices; bfloat16 if matrices are packed.
    None for float16: models of bfloat16 are stored in it too, and no key of the file tells them
    from models whose activations fit into its range."""
    matrices = [s for s in stored.values() if len(s.shape) > 1]
    if not matrices or any(s.type.dtype is None for s in matrices):
        return "bfloat16"
    sizes: Counter[str] = Counter()
    for s in matrices:
        sizes[str(s.type.dtype)] += math.prod(s.shape)
    most = sizes.most_common(1)[0][0]
    return None if most == "float16" else most


def _vocab_size(values: _Values, stored: Mapping[str, Stored]) -> int | None:
    embedding = stored.get("token_embd.weight")
    return (
        embedding.shape[0]
        if embedding is not None and embedding.shape
        else values.size("vocab_size")
    )


def _rope(values: _Values, files: list[GgufFile], stored: Mapping[str, Stored]) -> dict[str, Any]:
    """Build `rope_theta`, `rope_scaling` and `partial_rotary_factor` for `configs.RopeConfig`."""
    theta = values.number("rope.freq_base")
    config: dict[str, Any] = {"rope_theta": DEFAULT_THETA if theta is None else float(theta)}
    rotated, head_dim = values.size("rope.dimension_count"), _head_dim(values)
    if rotated is not None and head_dim is not None:
        config["partial_rotary_factor"] = rotated / head_dim
    scaling = _scaling(
        values,
        {name: _factors(name, files, rotated or head_dim) for name in ROPE_TENSORS & stored.keys()},
    )
    return config | ({"rope_scaling": scaling} if scaling else {})


def _head_dim(values: _Values) -> int | None:
    given = values.size("attention.key_length")
    heads, width = values.field("attention.head_count"), values.size("embedding_length")
    if given is not None or width is None or not isinstance(heads, int) or heads < 1:
        return given
    return width // heads


def _scaling(values: _Values, factors: Mapping[str, list[float]]) -> dict[str, Any]:
    """Build `rope_scaling`; empty without scaling.

    Divisors stored in a file (Llama 3's) are exactly longrope's factors: the same for any context,
    with no factor on the attention.
    """
    kind = values.field("rope.scaling.type")
    factor = values.number("rope.scaling.factor") or values.number("rope.scale_linear") or 1.0
    original = values.size("rope.scaling.original_context_length")
    attention = values.number("rope.scaling.attn_factor")
    known: dict[str, Any] = (
        {} if original is None else {"original_max_position_embeddings": original}
    )
    if kind not in (None, "none", "linear", "yarn", "longrope"):
        raise CheckpointError(
            f"{values.file.path.name}: rotary scaling {kind!r} is not supported",
            "Supported: none, linear, yarn, longrope.",
        )
    if FREQS in factors:
        if kind == "yarn":
            raise CheckpointError(
                f"{values.file.path.name}: rotary divisors together with yarn are not supported",
                "Report this model: none is known to have both.",
            )
        divisors = [f * (1.0 if kind == "none" else factor) for f in factors[FREQS]]
        return {
            "rope_type": "longrope",
            "short_factor": divisors,
            "long_factor": divisors,
            "attention_factor": 1.0,
            **known,
        }
    if SHORT in factors and LONG in factors:
        known |= {} if attention is None else {"attention_factor": attention}
        return {
            "rope_type": "longrope",
            "short_factor": factors[SHORT],
            "long_factor": factors[LONG],
            **known,
        }
    if kind == "yarn":
        return {"rope_type": "yarn", "factor": factor, **_yarn(values, factor, attention), **known}
    return (
        {"rope_type": "linear", "factor": factor}
        if kind in (None, "linear") and factor != 1.0
        else {}
    )


def _yarn(values: _Values, factor: float, attention: float | None) -> dict[str, float]:
    keys = {"beta_fast": "rope.scaling.yarn_beta_fast", "beta_slow": "rope.scaling.yarn_beta_slow"}
    terms = {name: value for name, key in keys.items() if (value := values.number(key)) is not None}
    if (
        attention is not None and attention != 1.0 and factor > 0
    ):  # multiplied with yarn's own, as in llama.cpp
        terms["attention_factor"] = attention * (1.0 + 0.1 * math.log(max(factor, 1.0)))
    return terms


def _factors(name: str, files: list[GgufFile], rotated: int | None) -> list[float]:
    """Read a tensor of divisors, one per rotated pair."""
    file = next(f for f in files if name in f.tensors)
    stored = file.tensors[name]
    count = math.prod(stored.shape)
    if stored.type.name != "f32" or (rotated is not None and count != rotated // 2):
        raise CheckpointError(
            f"{file.path.name}: {name} holds {count} {stored.type.name} for {rotated or '?'} "
            f"rotated dimensions",
            DAMAGED,
        )
    pages, begin = file.pages_of(stored)
    factors = list(struct.unpack_from(f"{file.order}{count}f", pages, begin))
    if not all(math.isfinite(f) and f > 0 for f in factors):
        raise CheckpointError(
            f"{file.path.name}: {name} holds a divisor that is not positive", DAMAGED
        )
    return factors
