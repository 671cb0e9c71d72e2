"""Replaces torch's linears and embeddings by inferno's, which hold matrices in any scheme and
layout.

Suffixes: T tokens, O output features.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from inferno.contracts import Divided, Shard
from inferno.errors import UnsupportedError
from inferno.nn import Embedding, Linear, LMHead, TiedLMHead, Unloaded
from inferno_transformers.refusals import HEAD_BIAS, REMEDY


def host(model: Any, plain: Collection[str]) -> tuple[str, ...]:
    """Replace a model's matrices, except at the paths `plain`. Returns the names of tied ones.
    Raises UnsupportedError if any but a head and an embedding are tied."""
    shared = defaultdict[int, list[str]](list)
    for name, param in model.named_parameters(remove_duplicate=False):
        shared[id(param)].append(name)
    owners: dict[int, HostedEmbedding] = {}
    tied: list[str] = []
    head = model.get_output_embeddings()
    for kind in (
        nn.Embedding,
        nn.Linear,
    ):  # embeddings first: a head may be tied to one
        for path, module in list(model.named_modules()):
            if isinstance(module, kind) and path not in plain:
                matrix = id(module.weight)
                hosted = _hosted(module, owners.get(matrix), is_head=module is head)
                if isinstance(hosted, HostedEmbedding):
                    owners[matrix] = hosted
                elif isinstance(hosted, HostedTiedHead):
                    tied.append(f"{path}.weight")
                if hosted is not None:
                    model.set_submodule(path, hosted)
    for names in shared.values():
        if sorted(names) == _tied_biases(names):
            tied.append(names[0])
            owner = model.get_submodule(names[0].rpartition(".")[0])
            owner.bias = None  # what its code computes with is the decoder's
        if len(set(names) - set(tied)) > 1:
            raise UnsupportedError(f"{type(model).__name__} ties {' and '.join(names)}", REMEDY)
    return tuple(tied)


def _tied_biases(names: Sequence[str]) -> list[str]:
    """Return the two names of a bias that BERT's heads have once more (`HEAD_BIAS`), if these could
    be them."""
    path = min(names, key=len).removesuffix(".bias")
    return [f"{path}.bias", f"{path}{HEAD_BIAS}"]


def divides(model: nn.Module) -> dict[str, Divided]:
    """Return what each matrix is divided by among ranks, by path."""
    axes: dict[str, Divided] = {}
    for path, module in model.named_modules():
        if isinstance(module, HostedEmbedding | HostedHead):
            axes[path] = "vocabulary"
        elif isinstance(module, HostedLinear):
            axes[path] = "outputs"
    return axes


def _hosted(module: nn.Module, owner: HostedEmbedding | None, *, is_head: bool) -> nn.Module | None:
    """Make the replacement of a linear or an embedding. None for a class whose code may do more: it
    stays, with a dense matrix."""
    if (
        isinstance(module, nn.Embedding)
        and owner is None
        and dict(module.named_parameters()).keys() == {"weight"}
    ):
        return HostedEmbedding(module)
    if not isinstance(module, nn.Linear) or not _is_plain(type(module)):
        return None
    if owner is not None:
        return HostedTiedHead(owner, module.bias)
    return (HostedHead if is_head else HostedLinear)(module)


def _is_plain(kind: type[nn.Linear]) -> bool:
    """Whether a class of linear layers computes what torch's own does: a small one is tried."""
    if kind.forward is nn.Linear.forward:
        return True
    with torch.device("cpu"):  # models are built without memory, and the inspection with it
        x_TI, weight, bias = (torch.arange(n, dtype=torch.float32) for n in (8, 12, 3))
        x_TI, weight = x_TI.view(2, 4), weight.view(3, 4)
        original = nn.Linear(4, 3, dtype=torch.float32)
        original._parameters.update(
            weight=nn.Parameter(weight, requires_grad=False),
            bias=nn.Parameter(bias, requires_grad=False),
        )
        tried = kind.__new__(kind)
        tried.__dict__.update(original.__dict__)
        try:
            return torch.equal(tried(x_TI), F.linear(x_TI, weight, bias))
        except Exception:  # it needs what its constructor makes
            return False


def _by_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Flatten leading dimensions, as inferno's matrices take packed tokens."""
    y_TO = function(x.reshape(-1, x.shape[-1]))
    return y_TO.view(*x.shape[:-1], y_TO.shape[-1])


class HostedLinear(Linear):
    def __init__(self, original: nn.Linear) -> None:
        super().__init__(original.in_features, original.out_features)
        self.bias = original.bias
        self.in_features, self.out_features = original.in_features, original.out_features

    def divide(self, shard: Shard) -> None:
        """Compute some outputs: the module around it does not know of ranks."""
        self.keep_outputs(shard)

    def forward(self, input: Tensor) -> Tensor:  # some code names the argument, as torch does
        return _by_rows(super().forward, input)


class HostedHead(HostedLinear, LMHead):
    """The output head, which in-situ quantization skips."""

    def divide(self, shard: Shard) -> None:
        self.keep_outputs(shard, 1)


class HostedTiedHead(TiedLMHead):
    def __init__(self, embedding: Embedding, bias: nn.Parameter | None) -> None:
        super().__init__(embedding)
        self.bias = bias

    @property
    def weight(self) -> Tensor:
        """A row: code reads its dtype."""
        if isinstance(self.embedding.weight, Unloaded):
            raise AttributeError("nothing is loaded")
        device = next(iter(self.embedding.weight.buffers())).device
        row: Tensor = self.embedding(torch.zeros(1, dtype=torch.int64, device=device))
        return row

    def forward(self, input: Tensor) -> Tensor:
        y = _by_rows(super().forward, input)
        return y if self.bias is None else y + self.bias


class HostedEmbedding(Embedding):
    """An embedding of transformers, with its class's scale or offset, over inferno's rows."""

    def __init__(self, original: nn.Embedding) -> None:
        super().__init__(original.num_embeddings, original.embedding_dim)
        self.num_embeddings, self.embedding_dim = original.num_embeddings, original.embedding_dim
        self.padding_idx = original.padding_idx
        self.is_plain = type(original) is nn.Embedding
        if not self.is_plain:
            del original._parameters["weight"]
            self.original = original

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        if self.is_plain:
            return self.rows(*args, **kwargs)
        original: Any = self.original
        if "weight" not in original.__dict__:  # its code reads the weight's dtype
            given = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
            original.__dict__["weight"] = self.rows(
                torch.zeros(1, dtype=torch.int64, device=given.device)
            )
        with _Rows(self):
            y: Tensor = original(*args, **kwargs)
        return y

    def rows(self, input: Tensor) -> Tensor:
        return super().forward(input.reshape(-1)).view(*input.shape, self.embedding_dim)


class _Rows(TorchFunctionMode):
    """Context in which torch's embedding takes its rows from a HostedEmbedding."""

    def __init__(self, embedding: HostedEmbedding) -> None:
        self._embedding = embedding

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.embedding:
            return self._embedding.rows(args[0])
        return func(*args, **(kwargs or {}))
