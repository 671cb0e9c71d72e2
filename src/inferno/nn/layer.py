"""What the loader and the modules agree on: which tensors keep float32, and what a layer does once
its weights are in place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from attrs import frozen
from torch import nn

from inferno.contracts import Attend
from inferno.nn.ops import TORCH, Ops
from inferno.nn.weight import Weight


class Stack(Protocol):
    """Chooses the kernel of a matrix."""

    def __call__(
        self, weights: Sequence[Weight], *, grouped: bool = False, rows: bool = False
    ) -> Weight | None:
        """Return one weight for these, stacked along their rows, in its final layout; None when
        their layouts do not allow it. The layer asks it for `Weight.grouped` if `grouped`, else for
        `Weight.matmul`; with `rows`, for `Weight.rows` too."""
        ...


def torch_stack(
    weights: Sequence[Weight], *, grouped: bool = False, rows: bool = False
) -> Weight | None:
    """Stack as torch can: without any kernel provider."""
    whole = weights[0].concatenate(weights[1:]) if len(weights) > 1 else weights[0]
    if whole is None or grouped or rows:
        return whole
    return whole.for_matmul()


def no_attention(layer_id: int) -> Attend:
    """The backend of a model that is finalized without a plan: none."""
    raise AssertionError("only a plan gives attention layers a backend")


@frozen(eq=False, kw_only=True)
class Finalize:
    """What a layer is given once its weights are in place."""

    stack: Stack = torch_stack
    ops: Ops = TORCH
    attend: Callable[[int], Attend] = no_attention
    """The attention backend of a layer id."""
    max_model_len: int | None = None
    """Longest context in tokens; None: the model's own."""


class Layer(nn.Module):
    """A module with work to do at load. One without is a plain `nn.Module`.

    The loader fills parameters and weights first, then calls `finalize` once on every layer, those
    above before those below. A layer may replace or drop what is below it: the loader goes on with
    what is there afterwards.
    """

    keep_fp32: Collection[str] = ()
    """Parameters that stay float32 whatever the compute type. Those of modules below are named by
    their path."""

    def finalize(self, to: Finalize) -> None:
        """Fuse and repack matrices, choose kernels, precompute tables."""


def finalize(module: nn.Module, to: Finalize) -> None:
    """Finalize every layer of a model whose weights are in place."""
    if isinstance(module, Layer):
        module.finalize(to)
    for child in list(module.children()):
        finalize(child, to)
