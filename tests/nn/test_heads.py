"""Heads: logits are float32, whatever the compute type and the form of the matrix, and stay so.

Suffixes: V vocabulary, D hidden, S rows of logits.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from inferno.nn import (
    CausalLM,
    Dense,
    Embedding,
    Finalize,
    IntGroups,
    LMHead,
    Permuted,
    TiedLMHead,
    Weight,
    finalize,
)
from inferno.nn.weight import Later, linear_float32
from inferno.testing import trained_hidden, trained_matrix

VOCAB, HIDDEN = 300, 64
TYPES = [torch.float32, torch.bfloat16, torch.float16]


def ints(dtype: torch.dtype) -> IntGroups:
    data_OB = torch.randint(0, 256, (VOCAB, HIDDEN), dtype=torch.uint8)
    return IntGroups(data_OB, torch.rand(VOCAB, 2).half() / 256, None, 8, dtype)


def dense(dtype: torch.dtype) -> Dense:
    return Dense(trained_matrix(VOCAB, HIDDEN).to(dtype))


WEIGHTS: dict[str, Callable[[torch.dtype], Weight]] = {
    "dense": dense,
    "integers": ints,
    "permuted": lambda dtype: Permuted(ints(dtype), torch.randperm(HIDDEN)),
    "read on its first use": lambda dtype: Later((VOCAB, HIDDEN), "lm_head", lambda: dense(dtype)),
}


def exact(weight: Weight, x_SD: Tensor) -> tuple[Tensor, Tensor]:
    """The product in float64, and the sum of magnitudes that rounding in float32 is measured by."""
    w_VD = weight.rows(torch.arange(VOCAB)).double()
    return x_SD.double() @ w_VD.T, x_SD.double().abs() @ w_VD.abs().T


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("scale", [1.0, 40.0])
@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_the_product_in_float32(dtype: torch.dtype, scale: float, tied: bool) -> None:
    """Peaks of some tens, and of thousands."""
    embedding, head = Embedding(VOCAB, HIDDEN), LMHead(HIDDEN, VOCAB)
    module = TiedLMHead(embedding) if tied else head
    weight = dense(dtype)
    embedding.weight = head.weight = weight
    for layer in (embedding, module):
        finalize(layer, Finalize())
    x_SD = (scale * trained_hidden(9, HIDDEN).clamp(-1000, 1000)).to(dtype)
    exact_SV, size_SV = exact(weight, x_SD)
    logits_SV = module(x_SD)
    assert logits_SV.dtype == torch.float32
    assert ((logits_SV - exact_SV).abs() <= 1e-6 * size_SV).all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("held", WEIGHTS)
def test_every_weight_has_a_product_in_float32(held: str, dtype: torch.dtype) -> None:
    weight, bias_V = WEIGHTS[held](dtype), torch.randn(VOCAB).to(dtype)
    x_SD = trained_hidden(9, HIDDEN).clamp(-1000, 1000).to(dtype)
    exact_SV, size_SV = exact(weight, x_SD)
    # Rows of integers are rounded to the compute type, products of them are not.
    lost = 1e-6 if isinstance(weight, Dense | Later) else 1e-6 + torch.finfo(dtype).eps
    for bias in (None, bias_V):
        added_V = 0.0 if bias is None else bias.double()
        y_SV = weight.matmul_float32(x_SD, bias)
        assert y_SV.dtype == torch.float32
        assert ((y_SV - exact_SV - added_V).abs() <= lost * size_SV + 1e-5).all()
        assert dtype == torch.float32 or (y_SV != y_SV.to(dtype)).any()


def test_a_weight_that_does_not_say_how_rounds_first() -> None:
    class Foreign(Weight):
        def matmul(self, x_TI: Tensor, bias_O: Tensor | None = None) -> Tensor:
            return x_TI @ torch.ones(4, 3, dtype=x_TI.dtype)

    x_TI = torch.tensor([[1.0, 2.0**-9, 0.0, 0.0]]).bfloat16()
    assert Foreign().matmul_float32(x_TI).tolist() == [[1.0] * 3]
    assert Foreign().matmul_float32(x_TI).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_the_compute_type_cannot_tell_apart_does_not_tie(dtype: torch.dtype) -> None:
    """43 and 43 + 2^-10; a soft cap keeps them apart, and their order."""

    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens = Embedding(VOCAB, 2)

    for cap in (None, 30.0):
        model = CausalLM(Body(), tied=False, soft_cap=cap)
        w_VD = torch.tensor([43.0, 0.0]).repeat(VOCAB, 1)
        w_VD[200, 1] = 1
        model.lm_head.weight = Dense(w_VD.to(dtype))
        logits_SV = model.logits(torch.tensor([[1.0, 2.0**-10]], dtype=dtype))
        assert logits_SV.dtype == torch.float32 and int(logits_SV.argmax()) == 200
        assert (logits_SV[0] == logits_SV[0, 200]).sum() == 1


@pytest.mark.parametrize("dtype", TYPES)
def test_a_large_dense_matrix_is_converted_in_pieces(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    w_VD, x_SD = trained_matrix(VOCAB, HIDDEN).to(dtype), torch.randn(3, HIDDEN).to(dtype)
    bias_V = torch.randn(VOCAB).to(dtype)
    whole_SV = linear_float32(x_SD, w_VD, bias_V)
    monkeypatch.setattr("inferno.nn.weight._CONVERTED", 7 * HIDDEN)
    torch.testing.assert_close(linear_float32(x_SD, w_VD, bias_V), whole_SV)
