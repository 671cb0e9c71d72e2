"""Families through transformers' own module, each against transformers' own attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hosted_families import TINY, FamilyTests, HostedTests, family, reference_of
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, BertConfig

from inferno.errors import UnsupportedError
from inferno.nn import Linear, LMHead
from inferno.testing import (
    Catalog,
    TextPartTests,
    Toy,
    generate,
    load_catalog,
    load_toy,
    randomize,
    run_python,
)
from inferno_transformers.config import HostedConfig


class TestCohere2(HostedTests):
    """Sliding windows in three layers of four, attention and MLP in parallel, LayerNorm, scaled
    logits, a tied head."""

    config = family("cohere2", num_hidden_layers=4, sliding_window=24, logit_scale=0.25)


class TestOlmoe(HostedTests):
    """Experts: stored one by one, computed as one tensor."""

    rerouted = True
    uncaptured = "aten.nonzero.default in OlmoeExperts.forward"
    most_of_two = 1.0  # all experts of a layer are one tensor, which each rank has whole
    config = family("olmoe", num_experts=12, num_experts_per_tok=2, intermediate_size=48)


class TestGPT2(FamilyTests):
    """Absolute positions, biases everywhere, a tied head."""

    uncaptured = "aten.lift_fresh.default in GPT2Model.warn_if_padding_and_no_attention_mask"
    most_of_two = 1.0  # its linear layers are Conv1D, which ranks do not share
    config = family("gpt2", n_embd=64, n_head=4, n_layer=2, n_positions=256)

    def test_a_checkpoint_of_the_time_gives_the_same(
        self, toy: Toy, checkpoint: Path, catalog: Catalog, prompts: list[list[int]], tmp_path: Path
    ) -> None:
        """As openai-community/gpt2 is stored: without the prefix, with each layer's mask."""
        tensors = {
            k.removeprefix("transformer."): v
            for k, v in load_file(checkpoint / "model.safetensors").items()
        }
        tensors |= {f"h.{i}.attn.bias": torch.ones(1, 1, 256, 256) for i in range(2)}
        save_file(tensors, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(self.config))
        [ours], [theirs] = (generate(t, prompts[-1:]) for t in (load_toy(tmp_path, catalog), toy))
        torch.testing.assert_close(ours.logits_NV, theirs.logits_NV)


class TestOlmo2(FamilyTests):
    """Norms of queries and keys, norms after each block."""

    config = family("olmo2")


class TestModernBertDecoder(FamilyTests):
    """A head that the code calls `decoder`, and hands its argument by name."""

    config = family(
        "modernbert-decoder", sliding_window=24, global_attn_every_n_layers=2, num_hidden_layers=3
    )


class TestBert(FamilyTests):
    """As a decoder: its head has a layer before the tied matrix, which adapters change, too."""

    config = family("bert", is_decoder=True)


class TestGranite(FamilyTests):
    """Multipliers on embeddings, scores, residuals and logits."""

    config = family(
        "granite",
        embedding_multiplier=6.0,
        attention_multiplier=0.2,
        residual_multiplier=0.3,
        logits_scaling=4.0,
    )


class TestGPTNeoX(FamilyTests):
    """One matrix for queries, keys and values; a quarter of each head turns."""

    config = family("gpt_neox")


class TestSmolLM3(FamilyTests):
    """Every other layer knows no positions."""

    config = family("smollm3", no_rope_layer_interval=2)
    trained_error = 1.3


class TestGptOss(FamilyTests):
    """Sinks, windows in every other layer, experts with biases."""

    rerouted = True
    uncaptured = "aten.nonzero.default in GptOssExperts.forward"
    most_of_two = 1.0
    config = family(
        "gpt_oss", head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=24
    )


class TestGemma2(FamilyTests):
    """Embeddings scaled by their own class, capped scores and logits."""

    config = family("gemma2", head_dim=16, query_pre_attn_scalar=24, sliding_window=24)


class TestDeepseekV3(FamilyTests):
    """Latent attention, expanded: values of another size than keys. A router's correction that is a
    buffer."""

    rerouted = True
    uncaptured = "aten.nonzero.default in DeepseekV3Experts.forward"
    config = family(
        "deepseek_v3",
        num_key_value_heads=4,
        q_lora_rank=32,
        kv_lora_rank=32,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        moe_intermediate_size=48,
    )

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls) -> nn.Module:
        model: nn.Module = reference_of(cls.config)
        [bias] = [
            buffer
            for name, buffer in model.named_buffers()
            if name.endswith("e_score_correction_bias")
        ]
        bias.copy_(torch.linspace(-0.5, 0.5, len(bias)))
        return model

    def test_the_routers_correction_is_not_rounded(
        self, checkpoint: Path, catalog: Catalog
    ) -> None:
        model = load_toy(checkpoint, catalog, dtype="bfloat16").model
        [bias] = [
            p for name, p in model.named_parameters() if name.endswith("e_score_correction_bias")
        ]
        torch.testing.assert_close(bias.data, torch.linspace(-0.5, 0.5, len(bias)), rtol=0, atol=0)


class TestPhi3LongRope(FamilyTests):
    """Rotary frequencies that would change when a context outgrows the first one: those of the
    longest, from the first token on. transformers' module does so where both sets are the same."""

    long = [1.0 + i / 4 for i in range(8)]
    config = family(
        "phi3",
        original_max_position_embeddings=64,
        rope_scaling={"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": long},
    )
    trained = {"rope_scaling": {"rope_type": "longrope", "short_factor": long, "long_factor": long}}

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls) -> nn.Module:
        scaling = {**cls.config["rope_scaling"], "short_factor": cls.long}
        model: nn.Module = reference_of({**cls.config, "rope_scaling": scaling})
        return model


class HostedTextPartTests(TextPartTests):
    """By the fallback alone, whatever other plugins have of the family."""

    computed_by = "*"

    @pytest.fixture(scope="class")
    @classmethod
    def catalog(cls) -> Catalog:
        return load_catalog(only=["inferno-transformers"])


class TestMinistral3(HostedTextPartTests):
    config = {
        "model_type": "mistral3",
        "text_config": {**TINY, "model_type": "ministral3", "head_dim": 16},
        "vision_config": {"model_type": "pixtral"},
        "image_token_index": 150,
    }


class TestGemma4(HostedTextPartTests):
    """Each layer adds an embedding of its own."""

    plain_embedding = False
    config = {
        "model_type": "gemma4",
        "text_config": {
            **TINY,
            "num_hidden_layers": 6,
            "head_dim": 16,
            "global_head_dim": 16,
            "sliding_window": 24,
            "num_kv_shared_layers": 0,
            "vocab_size_per_layer_input": 160,
            "hidden_size_per_layer_input": 16,
        },
        "vision_config": {"model_type": "gemma4_vision", "head_dim": 16},
        "image_token_id": 150,
    }


class TestLlava(HostedTextPartTests):
    config = {
        "model_type": "llava",
        "text_config": {**TINY, "model_type": "olmo2"},
        "vision_config": {"model_type": "clip_vision_model"},
        "image_token_index": 150,
    }


def test_a_base_class_without_a_head_ties_it(tmp_path: Path) -> None:
    reference = reference_of(TestOlmo2.config)
    reference.base_model.save_pretrained(tmp_path)
    catalog = load_catalog(only=["inferno-transformers"])
    reference.lm_head.weight.data = reference.get_input_embeddings().weight.data
    logits_V = load_toy(tmp_path, catalog).logits([5, 6, 7])
    with torch.inference_mode():
        theirs_V = reference(torch.tensor([[5, 6, 7]])).logits[0, -1]
    torch.testing.assert_close(logits_V, theirs_V, rtol=1e-4, atol=1e-4)


def test_every_matrix_but_the_head_can_be_packed(tmp_path: Path) -> None:
    """transformers' linears are inferno's: schemes and kernels serve them."""
    catalog = load_catalog(only=["inferno-transformers", "inferno-gguf"])
    packs = [o.item.name for o in catalog.of("inferno_quant_schemes") if o.item.pack is not None]
    if not packs:
        pytest.skip("no plugin packs matrices")
    reference_of(TestOlmo2.config).save_pretrained(tmp_path)
    model = load_toy(tmp_path, catalog, isq=packs[0]).model
    dense = {
        name
        for name, m in model.named_modules()
        if isinstance(m, Linear) and m.weight.layout in ("float32", "bfloat16")
    }
    assert dense == {"lm_head"} and isinstance(model.get_submodule("lm_head"), LMHead)


@pytest.mark.slow
def test_config_and_headers_need_no_torch(tmp_path: Path) -> None:
    reference_of(TestOlmoe.config).save_pretrained(tmp_path)
    code = (
        "import atexit, sys; from inferno.cli import main\n"
        "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
        "sys.argv[1:] = ['explain', sys.argv[1], '--only', 'inferno-transformers']\n"
        "main()"
    )
    done = run_python(code, str(tmp_path))
    assert done.returncode == 0 and "transformers' own module" in done.stdout, done.stderr
    assert done.stderr == "False\n"


def test_code_that_a_checkpoint_brings_is_never_run(tmp_path: Path) -> None:
    """Neither asked about nor loaded, whatever config.json says of it; the model is that of the
    installed transformers."""
    reference_of(TestOlmo2.config).save_pretrained(tmp_path)
    evil = "import pathlib; pathlib.Path(__file__).with_name('ran').touch()\nclass Evil: pass\n"
    (tmp_path / "modeling_evil.py").write_text(evil)
    ours, classes = (
        TestOlmo2.config,
        {"AutoConfig": "modeling_evil.Evil", "AutoModelForCausalLM": "modeling_evil.Evil"},
    )
    kernels = {
        "attn_implementation": "evil/kernels",
        "_attn_implementation": "evil/kernels",
        "use_kernels": True,
    }
    config = {
        **ours,
        **kernels,
        "auto_map": classes,
        "_name_or_path": str(tmp_path),
        "trust_remote_code": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    catalog = load_catalog(only=["inferno-transformers"])
    model = load_toy(tmp_path, catalog).model
    assert not (tmp_path / "ran").exists()
    assert type(model._causal[0]).__module__ == "transformers.models.olmo2.modeling_olmo2"  # type: ignore[index]
    unknown = {**config, "architectures": ["EvilForCausalLM"], "model_type": "evil"}
    with pytest.raises(UnsupportedError, match="nor does transformers"):
        HostedConfig.from_json(unknown)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("stored", [("bias",), ("decoder.bias",), ("bias", "decoder.bias")])
def test_a_heads_bias_may_be_stored_under_either_of_its_names(
    tmp_path: Path, stored: tuple[str, ...]
) -> None:
    """BERT as a decoder: its head has the bias itself, and its `decoder` computes with it."""
    config = {"architectures": ["BertLMHeadModel"], "model_type": "bert", "is_decoder": True}
    reference: Any = AutoModelForCausalLM.from_config(BertConfig(**{**TINY, **config}))
    randomize(reference.eval())
    bias = torch.randn(TINY["vocab_size"], generator=torch.Generator().manual_seed(0))
    reference.cls.predictions.decoder.bias.data.copy_(bias)
    reference.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**reference.config.to_dict(), **config}))
    tensors = load_file(tmp_path / "model.safetensors")
    others = {name: t for name, t in tensors.items() if not name.startswith("cls.predictions.bias")}
    others.pop("cls.predictions.decoder.bias", None)
    biases = {f"cls.predictions.{name}": bias.clone() for name in stored}
    save_file({**others, **biases}, tmp_path / "model.safetensors")
    toy = load_toy(tmp_path, only=("inferno-transformers",))
    prompts = [[5, 6, 7], [9] * 20]
    for prompt, outcome in zip(prompts, generate(toy, prompts, 4), strict=True):
        ids = torch.tensor([[*prompt, *outcome.token_ids]])
        with torch.inference_mode():
            expected = reference(ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        torch.testing.assert_close(outcome.logits_NV, expected, rtol=1e-4, atol=1e-4)
