from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inferno.nn import Fp8Blocks
from inferno.testing import (
    Encoded,
    QuantSchemeTests,
    alike,
    assert_same_tokens,
    proposals,
    random_tensors,
    stored_matrix,
    write_twins,
)
from inferno_fp8 import refuses
from inferno_fp8.weight import load

CONFIG = {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"}
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "num_nextn_predict_layers": 0,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}


def encode(weight_OI: Tensor, block: int = 32) -> tuple[dict[str, Tensor], Tensor]:
    """A matrix as checkpoints store it, block by block, and the numbers that this stands for."""
    rows, columns = weight_OI.shape
    data_OI = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    scale_PQ = torch.empty(-(-rows // block), -(-columns // block))
    values_OI = torch.empty(rows, columns)
    for i in range(0, rows, block):
        for j in range(0, columns, block):
            part = weight_OI[i : i + block, j : j + block].float()
            scale = scale_PQ[i // block, j // block] = part.abs().max() / 448
            data_OI[i : i + block, j : j + block] = (part / scale).to(torch.float8_e4m3fn)
            values_OI[i : i + block, j : j + block] = (
                data_OI[i : i + block, j : j + block].float() * scale
            )
    return {"weight": data_OI, "weight_scale_inv": scale_PQ}, values_OI


def loaded(parts: Mapping[str, Tensor], config: Mapping[str, Any] = CONFIG) -> Fp8Blocks:
    return load(stored_matrix(parts, config), parts, dtype="float32")


class TestFp8Blocks(QuantSchemeTests):
    scheme = "fp8"
    quant_config = CONFIG
    shapes = ((64, 96), (70, 50), (8, 33))

    @pytest.fixture(autouse=True)
    def several_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The last one short."""
        monkeypatch.setattr("inferno.nn.fp8.CHUNK", 600)

    def parts(self, rows: int, columns: int, seed: int) -> dict[str, Tensor]:
        return encode(torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)))[0]

    def dense(self, parts: Mapping[str, Tensor]) -> Tensor:
        data_OI, scale_PQ = parts["weight"].float(), parts["weight_scale_inv"]
        block_O, block_I = (torch.arange(size) // 32 for size in data_OI.shape)
        return data_OI * scale_PQ[block_O[:, None], block_I]


def test_transformers_unpacks_to_the_same_numbers() -> None:
    finegrained = pytest.importorskip("transformers.integrations.finegrained_fp8")
    parts, _ = encode(torch.randn(64, 96))
    theirs = finegrained._dequantize_fp8_weight(
        parts["weight"], parts["weight_scale_inv"], [32, 32], torch.float32
    )
    assert torch.equal(loaded(parts).rows(torch.arange(64)), theirs)


def test_matrices_that_end_within_a_block_are_not_stacked() -> None:
    whole, cut = (loaded(encode(torch.randn(rows, 40))[0]) for rows in (64, 50))
    both = whole.concatenate([cut])
    assert isinstance(both, Fp8Blocks)
    assert torch.equal(
        both.rows(torch.arange(114)),
        torch.cat([w.rows(torch.arange(w.shape[0])) for w in (whole, cut)]),
    )
    assert cut.concatenate([whole]) is None


class ScaleTests(QuantSchemeTests):
    """Scales of the whole matrix, or of each row."""

    quant_config = {"quant_method": "fp8", "activation_scheme": "static"}
    shapes = ((64, 96), (7, 33))
    part = "weight_scale"
    kind = torch.float32
    sizes: tuple[int | None, ...]
    """Of the scales; None: the rows."""

    def parts(self, rows: int, columns: int, seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        values_OI = torch.randn(rows, columns, generator=generator).to(torch.float8_e4m3fn)
        shape = [rows if size is None else size for size in self.sizes]
        scale = torch.rand(shape, generator=generator) + 0.5
        return {"weight": values_OI, self.part: scale.to(self.kind), "input_scale": torch.ones(1)}

    def dense(self, parts: Mapping[str, Tensor]) -> Tensor:
        return parts["weight"].float() * parts[self.part].float().reshape(-1, 1)


class TestScalar(ScaleTests):
    scheme = "fp8"
    sizes = ()


class TestOne(ScaleTests):
    scheme = "fp8"
    part = "weight_scale_inv"
    kind = torch.bfloat16
    sizes = (1,)


class TestRows(ScaleTests):
    scheme = "fp8"
    sizes = (None, 1)


class TestVector(ScaleTests):
    scheme = "fp8"
    sizes = (None,)


@pytest.mark.parametrize("wrong", [[16, 16], 32, None, [32, 0]])
def test_scales_that_are_not_as_many_as_the_blocks_are_refused(wrong: Any) -> None:
    parts, _ = encode(torch.randn(64, 64))
    stored = stored_matrix(parts, {**CONFIG, "weight_block_size": wrong})
    assert "weight_block_size" in str(refuses(stored))


@alike
@pytest.mark.parametrize("config", [QWEN3, DEEPSEEK_V3], ids=["qwen3", "deepseek-v3"])
def test_a_checkpoint_gives_the_tokens_of_its_unpacked_twin(
    config: dict[str, Any], tmp_path: Path
) -> None:
    """Qwen3-0.6B-FP8, DeepSeek-V3: every matrix but embedding, head and router in blocks."""
    pytest.importorskip("transformers")
    pytest.importorskip(f"inferno_{config['model_type'].removesuffix('_v3')}")
    assert_same_tokens(written_twice(tmp_path, config, random_tensors(config, tmp_path / "source")))


@pytest.mark.slow
def test_multi_token_prediction_layers_in_blocks_give_the_drafts_of_their_unpacked_twin(
    tmp_path: Path,
) -> None:
    """DeepSeek-V3: `eh_proj` is not in blocks."""
    pytest.importorskip("inferno_deepseek")
    pytest.importorskip("transformers")
    one_more = {**DEEPSEEK_V3, "num_hidden_layers": 3}
    tensors = random_tensors(one_more, tmp_path / "source")
    projection = torch.randn(64, 128, generator=torch.Generator().manual_seed(0)) / 8
    tensors["model.layers.2.eh_proj.weight"] = projection
    for name in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"model.layers.2.{name}.weight"] = torch.ones(64)
    config = {**DEEPSEEK_V3, "num_nextn_predict_layers": 1}
    ours, theirs = (proposals(p, config) for p in written_twice(tmp_path, config, tensors))
    assert len(ours) > 20
    for one, other in zip(ours, theirs, strict=True):
        assert (one.token_ids, one.drafts) == (other.token_ids, other.drafts)
        for x_V, y_V in zip(one.logits, other.logits, strict=True):
            torch.testing.assert_close(x_V, y_V, rtol=1e-4, atol=1e-4)


def written_twice(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[Path, Path]:
    """Write a checkpoint with its matrices in blocks, and a scale of an FP8 cache that is left out;
    and one with the values of these."""

    def stored(name: str, number: int, tensor: Tensor) -> Encoded:
        if tensor.ndim != 2 or "embed" in name or "lm_head" in name:
            return None
        return None if name.endswith(("mlp.gate.weight", "eh_proj.weight")) else encode(tensor)

    scales = {"model.layers.0.self_attn.k_scale": torch.ones(1)}
    return write_twins(folder, config, CONFIG, stored, tensors=tensors, extra=scales)
