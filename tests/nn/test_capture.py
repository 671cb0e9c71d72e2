"""A captured computation computes anew what eager torch computes, or says why it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from inferno.contracts import Uncaptured
from inferno.nn.arena import Arena
from inferno.nn.capture import CallCapture

Function = Callable[[Tensor], Tensor]
WEIGHT = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
IDS = torch.tensor([2, 0, 1])


def cleared(x: Tensor) -> Tensor:
    """By an operator that returns nothing."""
    y = torch.stack([x, x])
    torch._foreach_mul_([y[0], y[1]], 2.0)
    return y


def stored(x: Tensor) -> Tensor:
    """In place, to a view, and past a result that is dropped."""
    y = x.new_empty(5, 8)
    y[1:4] = x
    y[::4].zero_()
    y.index_copy_(0, IDS, x.exp())
    return y.mul_(x.sum())


CAPTURED: dict[str, Function] = {
    "sum": lambda x: x + x.t().reshape(3, 8),
    "scaled": lambda x: x * 0.5 - 1,
    "vector": lambda x: x * WEIGHT[0],
    "gate": lambda x: torch.sigmoid(x) * F.silu(x) + F.gelu(x, approximate="tanh"),
    "soft cap": lambda x: 30.0 * torch.tanh(x / 30.0),
    "norm": lambda x: F.layer_norm(F.rms_norm(x, (8,), None, 1e-6), (8,), WEIGHT[0], WEIGHT[1]),
    "type": lambda x: x.bfloat16().float(),
    "linear": lambda x: F.linear(x, WEIGHT, WEIGHT[0]) @ WEIGHT,
    "softmax": lambda x: x.softmax(-1).cumsum(-1),
    "top": lambda x: x.topk(3).values * x.topk(3).indices + x.max(-1, keepdim=True).values,
    "joined": lambda x: torch.cat([x, x.new_ones(3, 1), torch.zeros(3, 2)], -1),
    "chosen": lambda x: torch.where(x > 0, x, -torch.inf).masked_fill(x > 1, 3.0)[IDS],
    "embedding": lambda x: F.embedding(x[:, 0].long().clamp(0, 7), WEIGHT),
    "repeated": lambda x: x.repeat_interleave(2, 1).view(3, 4, 4).flip(0),
    "counted": lambda x: x[:2].repeat_interleave(torch.arange(1, 3), 0, output_size=3),
    "dropout": lambda x: F.dropout(x, 0.5, training=False) + 1,
    "views": lambda x: x.unsqueeze(0).expand(2, 3, 8).transpose(0, 1),
    "cleared": cleared,
    "stored": stored,
}


def values() -> list[Tensor]:
    return [torch.randn(3, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]


@pytest.mark.parametrize("name", CAPTURED)
@torch.inference_mode()
def test_it_computes_what_eager_torch_computes(name: str) -> None:
    compute, x = CAPTURED[name], torch.zeros(3, 8)
    capture = CallCapture()
    captured, other = (capture(lambda: compute(x)) for _ in range(2))
    for given_x in values():
        x.copy_(given_x)
        other.replay()  # they share their memory
        captured.replay()
        wanted = compute(given_x)
        assert captured.output.dtype == wanted.dtype
        assert torch.equal(captured.output, wanted)


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "item": (lambda x: x * x.max().item(), "reads values in Python"),
    "branch": (lambda x: x if x.sum() > 0 else -x, "reads values in Python"),
    "list": (lambda x: x * len(x.tolist()), "reads values in Python"),
    "numpy": (lambda x: x + float(x.numpy()[0, 0]), "reads values in Python"),
    "equal": (lambda x: x * torch.equal(x, x), "reads values in Python"),
    "nonzero": (lambda x: x.nonzero().float(), "depends on values"),
    "mask": (lambda x: x[x > 0], "depends on values"),
    "written mask": (lambda x: x.clone().index_put_((x > 0,), x[0, 0]), "depends on values"),
    "counts": (lambda x: x.repeat_interleave(IDS, 0), "depends on values"),
    "one hot": (lambda x: F.one_hot(x.long()), "values"),
    "made": (lambda x: x * torch.tensor([1.0]), "takes values from Python"),
    "random": (lambda x: x + torch.rand(8), "draws random numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
@torch.inference_mode()
def test_what_depends_on_python_is_refused_by_name(name: str) -> None:
    compute, reason = REFUSED[name]

    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = compute(x)
            return y

    model = Model()
    with pytest.raises(Uncaptured, match=reason) as refused:
        CallCapture()(lambda: model(torch.zeros(3, 8)))
    assert str(refused.value).startswith("aten.")
    assert "in Model.forward (test_capture.py:" in str(refused.value)


@torch.inference_mode()
def test_work_that_torch_does_not_see_is_refused() -> None:
    def hidden(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        with _disable_current_modes():
            torch.exp(x, out=y)
        return y + 1

    x = torch.zeros(3, 8)
    with pytest.raises(Uncaptured, match="neither torch nor the kernel provider"):
        CallCapture()(lambda: hidden(x))


@torch.inference_mode()
def test_results_share_memory_once_they_are_dropped() -> None:
    def long(x: Tensor) -> Tensor:
        for _ in range(200):
            x = x + 1
        return x

    capture, x = CallCapture(), torch.zeros(2**18)
    captured = capture(lambda: long(x))
    assert capture.nbytes < 8 * x.nbytes
    captured.replay()
    assert torch.equal(captured.output, torch.full_like(x, 200))


@torch.inference_mode()
def test_what_a_model_keeps_is_not_overwritten() -> None:
    cache: list[Tensor] = []

    def cached(x: Tensor) -> Tensor:
        if not cache:
            cache.append(torch.arange(8).float().exp())
        return (x + 1) * cache[0]

    capture, x = CallCapture(), torch.ones(3, 8)
    first, second = (capture(lambda: cached(x)) for _ in range(2))
    for captured in (second, first, second):
        captured.replay()
        assert torch.equal(captured.output, 2 * torch.arange(8).float().exp().expand(3, 8))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3 * 2**20)), max_size=60))
def test_no_two_tensors_of_an_arena_overlap(changes: list[tuple[int, int]]) -> None:
    arena, live = Arena(), dict[int, Tensor]()
    for i, size in changes:
        live.pop(i, None)
        live[i] = arena.like(torch.empty(size // 2, dtype=torch.bfloat16)).fill_(i)
        assert live[i].data_ptr() % 64 == 0
    assert all(torch.equal(arena.borrowed(live[i]), torch.full_like(live[i], i)) for i in live)
    live.clear()
    whole = arena.like(torch.empty(2**20, dtype=torch.uint8))
    assert len(arena._free) <= len(arena._chunks), "what is free is one piece again"
    assert whole.numel() == 2**20
