"""The mixes of llama.cpp's `llama-quantize`: which type each matrix gets under a name like Q4_K_M.

The rules are those of `llama_tensor_get_type_impl`
(https://github.com/ggml-org/llama.cpp/blob/master/src/llama-quant.cpp), for the types that this
plugin writes. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from attrs import frozen

from inferno.contracts import DenseMatrices, Mixed, QuantMix
from inferno.errors import OptionError
from inferno_gguf.names import Name, names_of

_VALUES = ("attn_v", "attn_qkv", "attn_kv_b")
"""Matrices that make values: the most sensitive ones."""
_KEPT = ("ffn_gate_inp", "ssm_conv1d", "per_layer_model_proj")
"""Small matrices that stay as they are."""
_MANY_HEADS, _FEW_EXPERTS = 4, 8
_LARGE_LAYERS, _LARGE_GROUPS = 80, 8

MIXES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "q2_k": ("q2_k", ()),
    "q2_k_s": ("q2_k", ()),
    "q3_k_s": ("q3_k", ()),
    "q3_k_m": ("q3_k", ("q3_k",)),
    "q3_k_l": ("q3_k", ()),
    "q4_0": ("q4_0", ("q4",)),
    "q4_1": ("q4_1", ()),
    "q4_k_s": ("q4_k", ()),
    "q4_k_m": ("q4_k", ("q4_k",)),
    "q5_0": ("q5_0", ("q5",)),
    "q5_1": ("q5_1", ()),
    "q5_k_s": ("q5_k", ()),
    "q5_k_m": ("q5_k", ("q5_k",)),
    "q6_k": ("q6_k", ()),
    "q8_0": ("q8_0", ("q8",)),
    "iq4_nl": ("iq4_nl", ()),
}
"""Name of the mix -> the type of most matrices, and other spellings."""


def mixes() -> tuple[QuantMix, ...]:
    return tuple(
        QuantMix(name=name, choose=partial(choose, name), spellings=spellings)
        for name, (_, spellings) in MIXES.items()
    )


@frozen
class _Model:
    """What the rules ask about a model."""

    num_layers: int
    queries_per_head: int
    num_experts: int
    num_values: int
    """Number of matrices that make values."""
    weighted: bool


def choose(mix: str, matrices: DenseMatrices, weighted: bool) -> Mapping[str, Mixed]:
    """Return the type of each matrix. Matrices outside the layers that files have no name for stay
    as they are. Raises OptionError for a mix that is not to be made without importance."""
    if mix == "q2_k_s" and not weighted:
        raise OptionError(
            f"{mix} needs the importance of columns: without it, most matrices become useless",
            "Name an importance matrix with --imatrix, or choose q2_k.",
        )
    names = names_of(matrices)
    values = _in_order(names)
    model = _model(matrices.config, names, len(values), weighted)
    tied = not any(name.path == "output" for name in names.values())
    types: dict[str, Mixed] = {}
    for path in matrices.shapes:
        name = names.get(path)
        if name is None and not any(part.isdecimal() for part in path.split(".")):
            continue
        if name is not None and name.kind in _KEPT:
            continue
        types[path] = _mixed(mix, model, name, values, tied, matrices.shapes[path][1])
    return types


def _model(
    config: Mapping[str, Any], names: Mapping[str, Name], num_values: int, weighted: bool
) -> _Model:
    text = config.get("text_config")
    fields = {**(text if isinstance(text, Mapping) else {}), **config}

    def number(*keys: str) -> int:
        """Return the first field that is a number."""
        return next((fields[key] for key in keys if type(fields.get(key)) is int), 0)

    heads = number("num_attention_heads")
    layers = [name.layer for name in names.values() if name.layer is not None]
    return _Model(
        num_layers=max(layers, default=-1) + 1,
        queries_per_head=heads // (number("num_key_value_heads") or heads or 1),
        num_experts=number("num_experts", "num_local_experts", "n_routed_experts"),
        num_values=num_values,
        weighted=weighted,
    )


def _in_order(names: Mapping[str, Name]) -> dict[str, int]:
    """Number the matrices that make values, in the order of the layers. Rows of one stored matrix
    count once."""
    stored = {name.path: name for name in names.values() if name.kind in _VALUES}
    ordered = sorted(stored.values(), key=lambda name: (name.layer or 0, name.path))
    return {name.path: index for index, name in enumerate(ordered)}


def _more_bits(layer: int, layers: int) -> bool:
    """Whether a layer is in the half that gets more bits: the first and last eighth, and every
    third between."""
    first = layers // 8
    return layer < first or layer >= 7 * layers // 8 or (layer - first) % 3 == 2


def _mixed(
    mix: str,
    model: _Model,
    name: Name | None,
    values: Mapping[str, int],
    tied: bool,
    columns: int,
) -> Mixed:
    base = MIXES[mix][0]
    usual = Mixed(base, "most matrices")
    if name is None:
        return usual
    if name.path == "output" or (tied and name.path == "token_embd"):
        if columns % (256 if base.endswith("_k") else 32):
            return Mixed("q8_0", "output head")
        return Mixed("q8_0" if base == "q8_0" else "q6_k", "output head")
    if name.path in values:
        return _of_values(mix, model, values[name.path], usual)
    few = model.num_experts == _FEW_EXPERTS
    if name.kind == "attn_k" and few:
        return Mixed("q8_0", "keys beside 8 experts")
    if name.kind.startswith("ffn_down"):
        return _of_down(mix, model, name.layer or 0, usual)
    if name.kind == "attn_output":
        if few:
            finer = mix in ("q2_k", "q3_k_s", "q3_k_m", "iq4_nl", "q4_k_s", "q4_k_m")
            return Mixed("q5_k", "attention output beside 8 experts") if finer else usual
        by_mix = {"q2_k": "q3_k", "q3_k_m": "q4_k", "q3_k_l": "q5_k"}
        return Mixed(by_mix[mix], "attention output") if mix in by_mix else usual
    return usual


def _of_values(mix: str, model: _Model, index: int, usual: Mixed) -> Mixed:
    shared = model.queries_per_head >= _MANY_HEADS
    scheme, why = usual.scheme, "values"
    if mix == "q2_k":
        scheme = "q4_k" if shared else "q3_k"
    elif mix == "q2_k_s" and shared:
        scheme = "q4_k"
    elif mix == "q3_k_m":
        scheme = "q5_k" if index < 2 else "q4_k"
    elif mix == "q3_k_l":
        scheme = "q5_k"
    elif mix == "iq4_nl" and shared:
        scheme = "q5_k"
    elif mix in ("q4_k_m", "q5_k_m") and _more_bits(index, model.num_values):
        scheme, why = "q6_k", "values of half of the layers"
    elif mix == "q4_k_s" and index < 4:
        scheme, why = "q5_k", "values of the first layers"
    if (
        scheme in ("q3_k", "q4_k")
        and model.num_layers == _LARGE_LAYERS
        and model.queries_per_head == _LARGE_GROUPS
    ):
        scheme, why = "q5_k", "values, small beside the queries"
    if model.num_experts == _FEW_EXPERTS:
        scheme, why = "q8_0", "values beside 8 experts"
    return usual if scheme == usual.scheme else Mixed(scheme, why)


def _of_down(mix: str, model: _Model, layer: int, usual: Mixed) -> Mixed:
    first = layer < model.num_layers // 8
    if mix == "q2_k":
        return Mixed("q3_k", "down projections")
    if mix == "q2_k_s" and first:
        return Mixed("q4_k", "down projections of the first layers")
    if mix == "q3_k_m":
        sixteenth = layer < model.num_layers // 16
        return Mixed("q5_k" if sixteenth else "q4_k", "down projections")
    if mix == "q3_k_l":
        return Mixed("q5_k", "down projections")
    if mix in ("q4_k_m", "q5_k_m") and _more_bits(layer, model.num_layers):
        return Mixed("q6_k", "down projections of half of the layers")
    if mix == "iq4_nl" and first and not model.weighted:
        return Mixed("q5_k", "down projections of the first layers")
    if mix == "q4_k_s" and first:
        return Mixed("q5_k", "down projections of the first layers")
    if mix in ("q4_0", "q5_0") and first and model.weighted:
        return Mixed(f"{mix[:3]}1", "down projections of the first layers")
    return usual
