from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file

from inferno.errors import CheckpointError
from inferno.testing import EncoderTests, embedded, load_toy, plan_of, transformers_model
from inferno_bert.config import BertConfig, RobertaConfig
from inferno_bert.gated_config import GteConfig, NomicConfig
from inferno_bert.modernbert_config import ModernBertConfig

BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 192,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
ROBERTA: dict[str, Any] = {
    **BERT,
    "architectures": ["XLMRobertaModel"],
    "model_type": "xlm-roberta",
    "max_position_embeddings": 194,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
MODERNBERT: dict[str, Any] = {
    "architectures": ["ModernBertModel"],
    "model_type": "modernbert",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 192,
    "local_attention": 16,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
NOMIC: dict[str, Any] = {
    **{name: BERT[name] for name in BERT if name not in ("hidden_act", "position_embedding_type")},
    "architectures": ["NomicBertModel"],
    "model_type": "nomic_bert",
    "hidden_act": "silu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}
GTE: dict[str, Any] = {
    **NOMIC,
    "architectures": ["GteModel"],
    "model_type": "gte",
    "hidden_act": "gelu",
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 160_000.0},
}
NTK: dict[str, Any] = {"type": "ntk", "factor": 8.0}
NEW: dict[str, Any] = {
    "model_type": "new",
    "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
    "rope_parameters": None,
    "rope_scaling": NTK,
    "rope_theta": 20_000,
    "position_embedding_type": "rope",
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "pack_qkv": True,
    "unpad_inputs": True,
    "use_memory_efficient_attention": True,
}
"""What the config.json of gte-multilingual-base says otherwise than transformers'."""
ONE_LABEL = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}


class TestBert(EncoderTests):
    """bge, e5, gte and all-MiniLM."""

    config = BERT


class TestBertThatClassifies(EncoderTests):
    """cross-encoder/ms-marco-MiniLM: one label, of the pooled first token."""

    config = {**BERT, **ONE_LABEL, "architectures": ["BertForSequenceClassification"]}


class TestXLMRoberta(EncoderTests):
    """bge-m3 and multilingual-e5: positions from 2 on, one token type."""

    config = ROBERTA


class TestXLMRobertaThatClassifies(EncoderTests):
    """bge-reranker-v2-m3."""

    config = {**ROBERTA, **ONE_LABEL, "architectures": ["XLMRobertaForSequenceClassification"]}


class TestModernBert(EncoderTests):
    """gte-modernbert-base: windows of 8 tokens on either side, one layer of three without."""

    config = MODERNBERT


class TestModernBertWithBiases(EncoderTests):
    """Of no checkpoint: a bias wherever there may be one, layers named one by one."""

    config = {
        **MODERNBERT,
        "norm_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }


class TestModernBertThatClassifies(EncoderTests):
    """gte-reranker-modernbert-base: one label, of the mean of all states."""

    config = {
        **MODERNBERT,
        **ONE_LABEL,
        "architectures": ["ModernBertForSequenceClassification"],
        "classifier_pooling": "mean",
    }


class TestNomicBert(EncoderTests):
    """nomic-embed-text-v1.5."""

    config = NOMIC
    gguf_unsaid = frozenset({"fused_qkv"})


class TestNomicBertThatClassifies(EncoderTests):
    """Of no known checkpoint: one label, of the pooled first token."""

    config = {**NOMIC, **ONE_LABEL, "architectures": ["NomicBertForSequenceClassification"]}


class TestGte(EncoderTests):
    """snowflake-arctic-embed-m-v2.0 and gte-multilingual-base, as transformers has them."""

    config = GTE


class TestGteThatClassifies(EncoderTests):
    """gte-multilingual-reranker-base; no token types, as in gte-base-en-v1.5."""

    config = {
        **GTE,
        **ONE_LABEL,
        "architectures": ["GteForSequenceClassification"],
        "type_vocab_size": 0,
    }


PROMPTS = [[5, 6, 7, 8], [9] * 20, [4, 1, 1, 11, 1], [1, 12, 13]]
"""In some, a text writes `<pad>` itself: token 1."""


def means(config: dict[str, Any], prompts: list[list[int]]) -> torch.Tensor:
    """Return what transformers' model of a config gives."""
    model = cast(Any, transformers_model(config, "AutoModel"))
    with torch.inference_mode():
        vectors = [model(torch.tensor([ids])).last_hidden_state[0].mean(0) for ids in prompts]
    return torch.stack(vectors)


def written(
    folder: Path, config: dict[str, Any], renamed: dict[str, str], prefix: str = ""
) -> Path:
    """Write the same model, with its parameters' names changed."""
    tensors = {}
    for name, value in transformers_model(config, "AutoModel").state_dict().items():
        for old, new in renamed.items():
            name = name.replace(old, new)
        tensors[prefix + name] = value.contiguous()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_padding_that_a_text_writes_itself_takes_no_position(tmp_path: Path) -> None:
    toy = load_toy(written(tmp_path, ROBERTA, {}))
    expected = means(ROBERTA, PROMPTS)
    torch.testing.assert_close(embedded(toy, PROMPTS, "mean"), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "renamed", "prefix"),
    [
        ({**BERT, "architectures": ["BertForMaskedLM"]}, {}, "bert."),
        (BERT, {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}, ""),
        ({**ROBERTA, "architectures": ["RobertaForMaskedLM"]}, {}, "roberta."),
        ({**MODERNBERT, "architectures": ["ModernBertForMaskedLM"]}, {}, "model."),
        (NOMIC, {}, ""),  # transformers' names: queries, keys and values apart
        (GTE, {}, "new."),
        ({k: v for k, v in BERT.items() if k != "architectures"}, {}, ""),
    ],
)
def test_other_names_of_the_same_model_load(
    tmp_path: Path, config: dict[str, Any], renamed: dict[str, str], prefix: str
) -> None:
    toy = load_toy(written(tmp_path, config, renamed, prefix))
    expected = means(config, PROMPTS[:2])
    torch.testing.assert_close(embedded(toy, PROMPTS[:2], "mean"), expected, rtol=1e-4, atol=1e-4)


def published(
    folder: Path, name: str, *, types: int, packed: bool, ntk: Mapping[str, Any] = NTK
) -> Any:
    """Write a GTE as Alibaba-NLP publishes them, and return transformers' model of it, which has
    the frequencies that `ntk` makes."""
    classifies = name == "NewForSequenceClassification"
    head = "AutoModelForSequenceClassification" if classifies else "AutoModel"
    config = {**GTE, **ONE_LABEL, "type_vocab_size": types}
    model = cast(Any, transformers_model(config, head))
    model.save_pretrained(folder)  # it writes the names of the checkpoints' own code
    tensors = load_file(folder / "model.safetensors")
    assert any("encoder.layer.0.attention.qkv_proj.weight" in each for each in tensors)
    for each in [] if packed else [each for each in tensors if ".qkv_proj." in each]:
        for part, value in zip("qkv", tensors.pop(each).chunk(3), strict=True):
            tensors[each.replace("qkv", part)] = value.contiguous()
    if not classifies:
        tensors["classifier.weight"] = torch.ones(1, config["hidden_size"])
    save_file(tensors, folder / "model.safetensors")
    fields = {**config, **NEW, "architectures": [name], "pack_qkv": packed, "rope_scaling": ntk}
    (folder / "config.json").write_text(json.dumps(fields))
    half, factor = config["hidden_size"] // config["num_attention_heads"] // 2, ntk["factor"]
    slower_E = factor ** (torch.arange(1, half + 1).double() / half)
    turning_E = NEW["rope_theta"] ** -(torch.arange(half).double() / half)
    base = model.gte if classifies else model
    base.rotary_emb.inv_freq.copy_((turning_E / slower_E).float())
    return model


@pytest.mark.parametrize(
    ("name", "types", "packed", "ntk"),
    [
        ("NewModel", 0, True, {"factor": 2.0, "type": "ntk"}),  # gte-base-en-v1.5
        ("NewForTokenClassification", 1, True, NTK),  # gte-multilingual-base
        ("GteNewModel", 1, False, {"factor": 1, "rope_type": "ntk"}),
    ],
)
def test_gte_as_published_gives_the_same_vectors(
    tmp_path: Path, name: str, types: int, packed: bool, ntk: dict[str, Any]
) -> None:
    model = published(tmp_path, name, types=types, packed=packed, ntk=ntk)
    prompts = [*PROMPTS, list(range(3, 150))]
    with torch.inference_mode():
        theirs = [model(torch.tensor([ids])).last_hidden_state[0].mean(0) for ids in prompts]
    ours = embedded(load_toy(tmp_path), prompts, "mean")
    torch.testing.assert_close(ours, torch.stack(theirs), rtol=1e-4, atol=1e-4)


def test_gte_as_published_gives_the_same_labels(tmp_path: Path) -> None:
    """gte-multilingual-reranker-base."""
    model = published(tmp_path, "NewForSequenceClassification", types=1, packed=True)
    prompts = [*PROMPTS, list(range(3, 150))]
    with torch.inference_mode():
        theirs = [model(torch.tensor([ids])).logits[0] for ids in prompts]
    ours = embedded(load_toy(tmp_path), prompts, "score")
    torch.testing.assert_close(ours, torch.stack(theirs), rtol=1e-4, atol=1e-4)


def test_what_a_published_gte_leaves_out_is_what_its_own_code_takes() -> None:
    config = {**GTE, "model_type": "new", "rope_parameters": None, "max_position_embeddings": None}
    read = GteConfig.from_json(config)
    assert (read.max_position_embeddings, read.rope.rope_theta) == (2048, 10_000.0)


def test_the_fields_of_nomics_own_code_mean_the_same() -> None:
    ours = {
        "vocab_size": 30528,
        "n_embd": 768,
        "n_head": 12,
        "n_inner": 3072,
        "n_layer": 12,
        "n_positions": 8192,
        "layer_norm_epsilon": 1e-12,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "activation_function": "swiglu",
        "type_vocab_size": 2,
    }
    read = NomicConfig.from_json(ours)
    assert (read.hidden_size, read.num_hidden_layers, read.intermediate_size) == (768, 12, 3072)
    assert (read.max_position_embeddings, read.rope.rope_theta) == (8192, 1000.0)


@pytest.mark.parametrize(
    ("read", "config", "named"),
    [
        (BertConfig.from_json, {**BERT, "position_embedding_type": "relative_key"}, "position"),
        (BertConfig.from_json, {**BERT, "hidden_act": "mish"}, "hidden_act"),
        (BertConfig.from_json, {**BERT, "num_attention_heads": 5}, "num_attention_heads"),
        (BertConfig.from_json, {**BERT, "is_decoder": True}, "is_decoder"),
        (RobertaConfig.from_json, {**ROBERTA, "max_position_embeddings": 2}, "max_position"),
        (RobertaConfig.from_json, {**ROBERTA, "pad_token_id": 0}, "pad_token_id"),
        (ModernBertConfig.from_json, {**MODERNBERT, "layer_types": ["x"] * 4}, "layer_types"),
        (ModernBertConfig.from_json, {**MODERNBERT, "classifier_pooling": "max"}, "pooling"),
        (NomicConfig.from_json, {**NOMIC, "num_experts": 8}, "num_experts"),
        (NomicConfig.from_json, {**NOMIC, "rotary_emb_fraction": 0.5}, "fraction"),
        (GteConfig.from_json, {**GTE, "rope_parameters": {"rope_type": "ntk"}}, "factor"),
        (GteConfig.from_json, {**GTE, "rope_parameters": {**NTK, "factor": 0.5}}, "factor"),
        (GteConfig.from_json, {**GTE, "rope_parameters": {**NTK, "mixed_b": 0.6}}, "mixed_b"),
        (GteConfig.from_json, {**GTE, "layer_norm_type": "rms_norm"}, "layer_norm_type"),
        (GteConfig.from_json, {**GTE, "position_embedding_type": "absolute"}, "position"),
        (GteConfig.from_json, {**GTE, "logn_attention_scale": True}, "logn"),
    ],
)  # fmt: skip
def test_a_config_that_is_not_computed_is_refused_by_name(
    read: Any, config: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        read(config)


def test_a_step_shorter_than_the_context_is_said(tmp_path: Path) -> None:
    path = written(tmp_path, BERT, {})
    plan = plan_of(path, max_num_batched_tokens=100, max_model_len=None)
    assert plan.max_model_len == 100
    assert any("--max-num-batched-tokens 192" in note for note in plan.notes)


def test_a_step_of_small_weights_uses_every_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(6))
    assert plan_of(written(tmp_path, BERT, {})).threads == 1, "a layer takes microseconds"
    assert plan_of(written(tmp_path, {**BERT, "vocab_size": 40_000}, {})).threads == 6


def test_a_checkpoint_may_limit_a_string(tmp_path: Path) -> None:
    path = written(tmp_path, BERT, {})
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 80}))
    plan = plan_of(path, max_model_len=None)
    assert plan.max_model_len == 80
    assert any("--max-model-len 192" in note for note in plan.notes)
    assert plan_of(path, max_model_len=192).max_model_len == 192
