"""The mixes give each matrix the type that `llama-quantize` gives it. `llama_mixes.json` has what
0.3.36 of llama-cpp-python wrote of three random models, with and without an importance matrix."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from inferno.contracts import DenseMatrices, QuantScheme, Refused
from inferno.errors import OptionError
from inferno.testing import load_catalog
from inferno_gguf.mixes import MIXES, choose
from inferno_gguf.names import names_of

WRITTEN: Mapping[str, Mapping[str, Mapping[str, str]]] = json.loads(
    Path(__file__).with_name("llama_mixes.json").read_text()
)
MODELS: Mapping[str, Mapping[str, Any]] = {
    "dense": {"hidden": 256, "layers": 20, "heads": (4, 1)},
    "tied288": {"hidden": 288, "layers": 17, "heads": (4, 2), "tied": True},
    "moe": {"hidden": 256, "layers": 16, "heads": (4, 2), "experts": 8},
}
CATALOG = load_catalog()
CASES = [(model, mix) for model, mixes in WRITTEN.items() for mix in mixes]


def matrices(
    hidden: int, layers: int, heads: tuple[int, int], *, tied: bool = False, experts: int = 0
) -> DenseMatrices:
    """The matrices of a Qwen3 with heads of 64 and an inner width of 512, or of 256 per expert."""
    queries, keys = heads
    shapes = {"model.embed_tokens": (512, hidden)}
    for layer in range(layers):
        path = f"model.layers.{layer}"
        for name, count in (("q", queries), ("k", keys), ("v", keys)):
            shapes[f"{path}.self_attn.{name}_proj"] = (64 * count, hidden)
        shapes[f"{path}.self_attn.o_proj"] = (hidden, 64 * queries)
        inner = 256 if experts else 512
        for prefix in [f"experts.{e}." for e in range(experts)] or [""]:
            for name in ("gate", "up"):
                shapes[f"{path}.mlp.{prefix}{name}_proj"] = (inner, hidden)
            shapes[f"{path}.mlp.{prefix}down_proj"] = (hidden, inner)
    if not tied:
        shapes["lm_head"] = (512, hidden)
    config = {"num_attention_heads": queries, "num_key_value_heads": keys, "num_experts": experts}
    name = "Qwen3MoeForCausalLM" if experts else "Qwen3ForCausalLM"
    architecture = CATALOG.architecture(name).item
    return DenseMatrices(shapes=shapes, architecture=architecture, config=config)


def written(types: Mapping[str, str], stored: str) -> str:
    """The type that llama.cpp's file has for a stored tensor: `blk.3.attn_v`."""
    _, _, rest = stored.partition("blk.")
    layer, _, kind = rest.partition(".") if rest else ("", "", stored)
    for scheme, where in types.items():
        for each in where.split(", ") if scheme != "others" else ():
            name, *ranges = each.split()
            bounds = [tuple(map(int, r.split("-"))) for r in ranges]
            if name == kind and (
                not layer or any(bound[0] <= int(layer) <= bound[-1] for bound in bounds)
            ):
                return scheme
    return types["others"]


def fitting(name: str, shape: tuple[int, int]) -> str:
    """The scheme that takes the shape: the named one, or its fallback."""
    scheme = CATALOG.named(QuantScheme, name).item
    assert scheme.packs is not None
    try:
        scheme.packs(shape, "bfloat16")
    except Refused:
        [name] = scheme.instead
    return name


@pytest.mark.parametrize(("model", "mix"), CASES)
def test_every_matrix_gets_llama_cpps_type(model: str, mix: str) -> None:
    label, _, weighted = model.partition(" ")
    dense = matrices(**MODELS[label])
    chosen, names = choose(mix, dense, bool(weighted)), names_of(dense)
    assert set(chosen) == set(dense.shapes)
    for path, mixed in chosen.items():
        wanted = written(WRITTEN[model][mix], names[path].path)
        assert fitting(mixed.scheme, dense.shapes[path]) == wanted, path


def test_every_mix_is_compared() -> None:
    assert {mix for _, mix in CASES} == set(MIXES)


def test_routers_stay_and_so_does_what_files_do_not_name() -> None:
    dense = matrices(**MODELS["moe"])
    shapes = {**dense.shapes, "model.layers.0.mlp.gate": (8, 256), "score": (2, 256)}
    shapes["model.layers.0.self_attn.unheard_of"] = (256, 256)
    chosen = choose(
        "q4_k_m",
        DenseMatrices(shapes=shapes, architecture=dense.architecture, config=dense.config),
        False,
    )
    assert "model.layers.0.mlp.gate" not in chosen and "score" not in chosen
    assert chosen["model.layers.0.self_attn.unheard_of"].scheme == "q4_k"


def test_a_mix_that_needs_importance_says_so() -> None:
    with pytest.raises(OptionError, match="importance") as caught:
        choose("q2_k_s", matrices(**MODELS["dense"]), False)
    assert "--imatrix" in caught.value.remedy
