"""What only a format says stays in its dialect: configs and models know `config.json` alone."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import attrs
import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

from inferno.catalog import load_catalog
from inferno.contracts import Architecture
from inferno.contracts.lazy import Lazy

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "plugins" / "models"
DIALECTS = sorted(MODELS.glob("*/src/*/*gguf.py"))
MODULES = sorted(
    path
    for path in MODELS.glob("*/src/**/*.py")
    if path not in DIALECTS
    and path.name != "__init__.py"
    and "inferno_transformers" not in path.parts
)
COMMON = {
    "num_labels",
    "partial_rotary_factor",
    "rope",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
}
"""Fields of any model, of older or newer releases of transformers."""
PUBLISHED = {
    "bert": {"position_embedding_type"},
    "deepseek": {
        "indexer_rope_interleave",
        "moe_layer_freq",
        "rope_interleave",
        "scoring_func",
        "topk_method",
    },
    "ernie4_5": {"moe_gate_act"},
    "gemma": {"text_config", "inner_sizes"},  # the list that Gemma 3n's intermediate_size may be
    "glm4_moe": {"scoring_func"},
    "granite_hybrid": {"position_embedding_type"},
    "hunyuan": {
        "mlp_bias",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_shared_expert",
        "use_cla",
        "use_qk_norm",
    },
    "kimi_linear": {
        "mla_use_nope",
        "moe_layer_freq",
        "moe_router_activation_func",
        "num_nextn_predict_layers",
    },
    "minimax": {
        "qk_norm_type",
        "rotary_dim",
        "scoring_func",
        "shared_intermediate_size",
        "use_qk_norm",
        "use_routing_bias",
    },
    "phi": {"attention_bias", "mlp_bias", "lm_head_bias"},
}
"""Fields of published config.json files that transformers' classes do not have."""
DERIVED = {
    "bert": {"attention_bias", "fused_mlp", "fused_qkv", "mlp_bias"},
    "deepseek": {
        "first_k_dense_replace",
        "norm_topk_prob",
    },  # of Glm4MoeLite, which lists layers' types
    "granite_hybrid": {"mlp_bias", "shared_intermediate_size", "split_mlp"},
    "llama": {"down_bias", "output_bias"},  # of TeleChat
    "nemotron_h": {"dt_limit"},
    "qwen3_next": {
        "decoder_sparse_step",
        "grouped_ba",
        "mlp_only_layers",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_experts",
        "num_experts_per_tok",
        "num_nextn_predict_layers",
        "separate_projections",
        "shared_expert_intermediate_size",
        "tiled_heads",
    },
}
"""Fields that a config has of a sibling, of a model that another format recasts, or of a field of
another name."""
TEXT = {
    "DeepseekForCausalLM": "deepseek_ocr2_text",
    "Gemma3ForConditionalGeneration": "gemma3_text",
    "MinistralForCausalLM": "ministral",
}


_MAPPINGS: tuple[Mapping[str, Any], ...] = (
    MODEL_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)
TYPES = {name: kind for each in _MAPPINGS for kind, name in each.items() if isinstance(name, str)}
TYPES |= TEXT


def architectures(*, dialects: bool = True) -> list[Architecture]:
    """Those of this repository, only if files of other formats can have them, unless not
    `dialects`."""
    offers = load_catalog().of("inferno_architectures")
    ours = [offer.item for offer in offers if (MODELS / offer.distribution).is_dir()]
    return [each for each in ours if each.dialects or not dialects]


def known_fields(architecture: str) -> set[str]:
    """What transformers' config class of that architecture has, or reads of older files."""
    config = CONFIG_MAPPING[TYPES[architecture]]
    words = set(re.findall(r"\w+", inspect.getsource(config)))
    return words | set(vars(config())) | set(config.attribute_map) | COMMON


def read_by_name(module: Path) -> Iterator[str]:
    """Fields that a config module asks `config.json` for beside its class's own."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called, texts = (
            ast.unparse(node.func),
            [a for a in node.args if isinstance(a, ast.Constant)],
        )
        if called in ("config.get", "given.get", "text.get", "check_known") and texts:
            yield str(texts[0].value)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_configs_and_models_mention_no_other_format(path: Path) -> None:
    assert "gguf" not in path.read_text(encoding="utf-8").lower()


@pytest.mark.parametrize("path", DIALECTS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_dialect_imports_configs_contracts_and_errors_only(path: Path) -> None:
    imported = re.findall(r"^from (inferno\S*|torch\S*)", path.read_text(encoding="utf-8"), re.M)
    allowed = {"inferno.configs", "inferno.contracts", "inferno.errors"}
    allowed |= {f"inferno.configs.{name}" for name in ("encoder_files", "mamba_files")}
    assert set(imported) <= allowed | {f"{path.parent.name}.vision_config"}


OWN_CONFIGS = [each for each in architectures() if isinstance(each.config, Lazy)]
"""Those with a config of their own: other classes (`spelled`) have their family's."""


@pytest.mark.parametrize("architecture", OWN_CONFIGS, ids=lambda a: a.name)
def test_a_config_reads_fields_of_the_original_checkpoints(architecture: Architecture) -> None:
    assert isinstance(architecture.config, Lazy)
    made: Any = architecture.config.resolved()
    config = getattr(made, "__self__", None) or get_type_hints(made)["return"]  # its class
    family = config.__module__.partition(".")[0]
    shared = {
        field.name
        for base in config.__mro__
        if attrs.has(base) and not base.__module__.startswith(family)
        for field in attrs.fields(base)
    }
    own = {
        field.name
        for field in attrs.fields(config)
        if field.name not in shared and "RopeConfig" not in str(field.type)
    }
    short = family.removeprefix("inferno_")
    known = (
        known_fields(architecture.name) | PUBLISHED.get(short, set()) | DERIVED.get(short, set())
    )
    assert sorted(own - known) == []


@pytest.mark.parametrize(
    "path", sorted(MODELS.glob("*/src/*/config.py")), ids=lambda p: p.parent.name
)
def test_what_a_config_asks_for_by_name_is_a_field_of_the_original_checkpoints(path: Path) -> None:
    family = path.parent.name
    matches = [a for a in architectures() if str(a.config).startswith(f"{family}.")]
    if not matches:
        pytest.skip("it reads any config.json")
    every = [a for a in architectures(dialects=False) if a.name in TYPES]
    names = [a.name for a in every if str(a.config).startswith(f"{family}.")]
    known = set().union(*map(known_fields, names))
    known |= PUBLISHED.get(family.removeprefix("inferno_"), set())
    assert sorted(set(read_by_name(path)) - known) == []


def test_the_check_sees_what_a_config_asks_for(tmp_path: Path) -> None:
    module = tmp_path / "config.py"
    module.write_text('check_known(config, "a", 1)\nconfig.get("b", 2)\nother.get("c")')
    assert sorted(read_by_name(module)) == ["a", "b"]
    assert "key_length_mla" not in known_fields("DeepseekV2ForCausalLM")
