"""Models whose code writes attention out, or attends several times in one module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hosted_families import FamilyTests, assert_same_tokens, family
from torch import Tensor, nn

from inferno.errors import UnsupportedError
from inferno_transformers.scores import Mask, Products, Reader


class TestGPTNeo(FamilyTests):
    """No scale; windows in every other layer, which the code reads from a table."""

    config = family(
        "gpt_neo",
        num_layers=2,
        attention_types=[[["global", "local"], 1]],
        window_size=24,
    )
    uncaptured = "aten.lift_fresh.default in GPTNeoSelfAttention._attn"  # a mask's value


class TestFalcon(FamilyTests):
    """One head of keys and values for all queries; a subclass of torch's linear layers."""

    config = family("falcon", multi_query=True)
    uncaptured = "_split_heads"  # it indexes heads by a list, in Python


class TestDiffLlama(FamilyTests):
    """Each layer attends twice: the same queries and keys, two sets of values."""

    config = family("diffllama", head_dim=16)


OTHERS: dict[str, dict[str, Any]] = {
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "gptj": {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, "rotary_dim": 8},
    "codegen": {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, "rotary_dim": 8},
    "openai-gpt": {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256},
    "gpt_neox_japanese": {},
    "xglm": {"d_model": 64, "attention_heads": 4, "num_layers": 2, "ffn_dim": 96},
    "rembert": {"is_decoder": True, "input_embedding_size": 32, "output_embedding_size": 48},
    "megatron-bert": {"is_decoder": True},
    "big_bird": {"is_decoder": True},
}


@pytest.mark.parametrize("name", OTHERS)
def test_attention_that_is_written_out_gives_the_same_tokens(name: str, tmp_path: Path) -> None:
    assert_same_tokens(family(name, **OTHERS[name]), tmp_path, 1e-4)


TOKENS, HEADS, DIM = 5, 2, 4


def attend(code: Any) -> list[Any]:
    """What a code's product of queries and keys asks of the step."""
    arguments: list[Any] = []

    def attended(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        arguments.extend(rest)
        return v.transpose(1, 2)

    def table(allowed: Tensor) -> Mask:
        return Mask(int(allowed[..., -1, :].sum()), allowed.shape)

    q, k, v = torch.randn(3, 1, HEADS, TOKENS, DIM)
    read = Reader(attend=attended, mask=table)
    with Products(read, lambda _: nn.Identity()):
        torch.testing.assert_close(code(q @ k.transpose(-1, -2)) @ v, v)
    return arguments


CAUSAL = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()


@pytest.mark.parametrize(
    ("code", "scale", "window"),
    [
        (lambda s: (s * 0.5 / 2).softmax(-1), 0.25, None),
        (
            lambda s: torch.softmax(torch.where(CAUSAL, s, torch.finfo(s.dtype).min), -1),
            1.0,
            TOKENS,
        ),
        (
            lambda s: s.masked_fill(~CAUSAL, -1e9).view(2, 5, -1).view(1, 2, 5, 5).softmax(-1),
            1.0,
            TOKENS,
        ),
        (
            lambda s: (s + torch.zeros(5, 5).masked_fill(~CAUSAL, -1e9)).float().softmax(-1),
            1.0,
            TOKENS,
        ),
        (lambda s: (s * CAUSAL.float() + -1e4 * (1 - CAUSAL.float())).softmax(-1), 1.0, TOKENS),
    ],
)
def test_scales_and_masks_are_read(code: Any, scale: float, window: int | None) -> None:
    mask, options = attend(code)
    assert options == {"scaling": scale} and (mask and mask.window) == window


@pytest.mark.parametrize(
    "code",
    [
        lambda s: s,  # no softmax
        lambda s: (s + torch.arange(5.0)).softmax(-1),  # a bias
        lambda s: s.masked_fill(~CAUSAL, -1.0).softmax(-1),  # a key that is not excluded
        lambda s: s.softmax(-1) * 2.0,
        lambda s: s.softmax(-2),
        lambda s: s.tanh().softmax(-1),
    ],
)
def test_what_is_not_attention_is_refused(code: Any) -> None:
    with pytest.raises(UnsupportedError, match="attention is its own"):
        attend(code)
