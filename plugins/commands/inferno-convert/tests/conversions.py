"""The model that is converted, and the plugins."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
from safetensors.torch import save_file

from inferno.catalog import Catalog, Offer, load_catalog
from inferno.contracts import Writer
from inferno.testing import TOY_SIZES, random_tensors
from inferno_convert.place import MANIFEST

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    **TOY_SIZES,
}

GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
    "sliding_window": 16,
    "rope_theta": 150_000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 8.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 32,
    },
}


def content(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.name != MANIFEST}


def with_writer(catalog: Catalog, writer: Writer) -> Catalog:
    offers = {**catalog.offers}
    offer = Offer(writer, "inferno")
    offers["inferno_writers"] = (*offers["inferno_writers"], offer)
    return attrs.evolve(catalog, offers=offers)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama in bfloat16."""
    folder = tmp_path_factory.mktemp("convert") / "model"
    tensors = random_tensors(CONFIG, folder.with_name("source"))
    folder.mkdir()
    save_file({n: t.bfloat16() for n, t in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "dtype": "bfloat16"}))
    (folder / "generation_config.json").write_text('{"temperature": 0.5}')
    return folder


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()
