"""The protocol between the loader and the modules: which tensors stay float32, and what a layer
does once its weights are loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, runtime_checkable

from attrs import frozen
from torch import nn

from inferno.contracts import Attend, AttentionNeed, Shard
from inferno.nn.fetching import Fetching
from inferno.nn.weight import Weight
from inferno.ops.reference import TORCH, Ops


class Stack(Protocol):
    """Chooses the kernel of a matrix."""

    def __call__(
        self, weights: Sequence[Weight], *, grouped: bool = False, rows: bool = False
    ) -> Weight | None:
        """Return one weight that stacks these along their rows, in its final layout, or None if
        their layouts do not allow it. The layer will call its `Weight.grouped` if `grouped`, else
        its `Weight.matmul`; if `rows`, also its `Weight.rows`."""
        ...


def torch_stack(
    weights: Sequence[Weight], *, grouped: bool = False, rows: bool = False, onednn: bool = True
) -> Weight | None:
    """Stack in torch, without a kernel provider. `onednn`: a matrix that is only multiplied by may
    be held in oneDNN's layout."""
    whole = weights[0].concatenate(weights[1:]) if len(weights) > 1 else weights[0]
    if whole is None or grouped or rows or not onednn:
        return whole
    return whole.for_matmul()


class Attends(Protocol):
    """Builds attention backends."""

    def __call__(self, layer_id: int, need: AttentionNeed | None = None) -> Attend:
        """Return the attention backend of a layer id, for a `need` that its cache can serve too;
        None: the layer's."""
        ...


def no_attention(layer_id: int, need: AttentionNeed | None = None) -> Attend:
    """The stand-in for attention backends in a model finalized without a plan."""
    raise AssertionError("only a plan gives attention layers a backend")


@frozen(eq=False, kw_only=True)
class Finalize:
    """What a layer is given to finalize: kernels, ops and attention backends."""

    stack: Stack = torch_stack
    ops: Ops = TORCH
    host_stack: Stack = torch_stack
    """Those of layers whose matrices stay in the host's memory, where it computes them."""
    host_ops: Ops = TORCH
    fetching: Fetching | None = None
    """What such layers share if the device may fetch matrices too; None: the host computes all."""
    fetch_from: int | None = None
    """From how many tokens of a step it does; None: none yet. 1: the host computes nothing."""
    attend: Attends = no_attention
    need: Callable[[int], AttentionNeed | None] = lambda layer_id: None
    """Returns what the attention backend of a layer id serves; None without a plan."""
    max_model_len: int | None = None
    """Longest context in tokens; None: the model's."""
    batch_invariant: bool = False
    """Whether what a layer multiplies itself, without a kernel, must have the same bits whatever
    else is in the step (`ops.rows`)."""


class Layer(nn.Module):
    """A module with work to do at load. Modules without are plain `nn.Module`s.

    The loader fills parameters and weights first, then calls `finalize` once on every layer,
    parents before children. A layer may replace or drop its children; the loader continues with
    those that it has afterwards.

    A module that several ranks can share has `divide(shard)` (`Divisible`). The loader calls it
    once, on meta, before the checkpoint is paired with the model, and children before parents. It
    says in `cuts` what is kept of its own parameters and weight, by name; their shapes stay those
    of the checkpoint until they are loaded. A module without it is held whole by every rank.
    """

    keep_fp32: Collection[str] = ()
    """Parameters that stay float32 whatever the compute dtype; those of submodules by their
    path."""

    def finalize(self, to: Finalize) -> None:
        """Fuse and repack matrices, choose kernels, precompute tables."""


@runtime_checkable
class Divisible(Protocol):
    """A module of which a rank may hold a part."""

    def divide(self, shard: Shard) -> None:
        """Keep this rank's part."""
        ...


def divide(module: nn.Module, shard: Shard) -> None:
    """Divide a model that is on meta."""
    for child in module.children():
        divide(child, shard)
    if isinstance(module, Divisible):
        module.divide(shard)


def finalize(module: nn.Module, to: Finalize) -> None:
    """Finalize every layer of a model whose weights are loaded."""
    if isinstance(module, Layer):
        module.finalize(to)
    for child in list(module.children()):
        finalize(child, to)
