"""A causal language model of transformers, through inferno's paged attention.

Suffixes: T packed tokens, S sampled rows, D hidden, V vocabulary, H query heads, K key/value heads,
C head dim, X heads x head dim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from inspect import signature
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor, nn
from transformers import PreTrainedModel

from inferno.nn import Attention, Layer, Linear, State
from inferno.nn.batch import Batch
from inferno_transformers import skeleton
from inferno_transformers.config import HostedConfig
from inferno_transformers.listed import ListedStates
from inferno_transformers.scores import Mask, Products, Reader, is_of_pairs
from inferno_transformers.states import KEPT, Kept, call, slots_of
from inferno_transformers.step import PagedCache, current, running

ATTENTION = "inferno_attention"
"""What inferno's attention is called in the module that attends; a second one of a module, which
attends twice in a step, has a number behind it."""


class HostedForCausalLM(Layer):
    """transformers' module under its own paths, with the interface of `contracts.Model`."""

    def __init__(self, config: HostedConfig) -> None:
        super().__init__()
        outline = skeleton.build(config.fields, config.plain)
        causal = outline.model
        # States are multiplied by a module's tables, and code takes both to be of one type.
        keeping = {path.rpartition(".")[0] for path in config.states}
        own = {name for name in outline.tables if name.rpartition(".")[0] in keeping}
        self.keep_fp32 = outline.keep_fp32 - own
        for layer_id, (path, spec) in enumerate(config.attention.items()):
            parent, _, name = path.rpartition(".")
            causal.get_submodule(parent).add_module(name, Attention(layer_id, spec))
        for layer_id, (path, state) in enumerate(config.states.items(), len(config.attention)):
            _keep(causal.get_submodule(path.rpartition(".")[0]), State(layer_id, state))
        for path in config.products:
            _read_products(causal.get_submodule(path))
        decoder = set(_decoder(causal).modules())
        for module in causal.modules():
            if isinstance(module, Linear) and module not in decoder:
                module.sampled = True
        # Shares its dicts of modules and parameters, so that what the loader sets here is set
        # there too.
        self._modules, self._parameters, self._buffers = (
            causal._modules,
            causal._parameters,
            causal._buffers,
        )
        self._causal = [causal]  # in a list: not a submodule

    def forward(self, batch: Batch) -> Tensor:
        with running(_Paged(batch)):
            return hidden(self._causal[0], batch.token_ids_T[None], batch.positions_T[None])

    def logits(self, x_SD: Tensor) -> Tensor:
        return logits(self._causal[0], x_SD)


def hidden(causal: Any, token_ids_1T: Tensor, positions_1T: Tensor) -> Tensor:
    """Compute the final hidden states, (T, D), of one packed row."""
    decoder = _decoder(causal)
    outputs = decoder(
        input_ids=token_ids_1T,
        position_ids=positions_1T,
        use_cache=False,
        **{(name := _cache_name(decoder)): ListedStates() if name == "state" else PagedCache()},
    )
    x_1TD: Tensor = outputs[0]
    return x_1TD[0]


def _cache_name(decoder: nn.Module) -> str:
    """What a decoder calls its cache, or its list of states."""
    names = _names(type(decoder).forward)
    return next((name for name in ("cache_params", "state") if name in names), "past_key_values")


@cache
def _names(function: Callable[..., Any]) -> Collection[str]:
    return signature(function).parameters.keys()


def logits(causal: Any, x_SD: Tensor) -> Tensor:
    """Compute logits from final hidden states with the model's own forward: head, scale and cap."""
    decoder, dummy_1S = (
        _decoder(causal),
        torch.zeros(1, len(x_SD), dtype=torch.int64, device=x_SD.device),
    )
    decoder.forward = lambda *args, **kwargs: _Outputs(x_SD[None])
    try:
        y_1SV: Tensor = causal(input_ids=dummy_1S, use_cache=False).logits
    finally:
        del decoder.forward
    return y_1SV[0]


def _decoder(causal: Any) -> Any:
    """The module from token ids to hidden states. In some models it is inside the base model."""
    backbone = causal.get_decoder()
    return (
        backbone if isinstance(backbone, PreTrainedModel) else causal.base_model
    )  # some heads are `decoder`


@frozen(eq=False)
class _Outputs:
    """A base model's output with hidden states only."""

    last_hidden_state: Tensor

    def __getitem__(self, index: int | slice) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _keep(module: Any, state: State) -> None:
    """Call a module's code with the states of each sequence."""
    code = module.forward
    module.add_module(KEPT, state)

    def forward(*args: Any, **kwargs: Any) -> Any:
        step = current()
        assert isinstance(step, _Paged), "the inspection has no such modules"
        return call(code, args, kwargs, state, step.batch, step.using, slots_of(module))

    module.forward = forward


def _read_products(module: Any) -> None:
    """Let the step attend where a module's code writes attention out. Its tables of which token
    sees which are not read then: they become one expanded value."""
    code = module.forward
    for name, table in list(module.named_buffers(recurse=False)):
        if is_of_pairs(table):
            del module._buffers[name]
            setattr(module, name, table.new_ones(1).expand(table.shape))

    def forward(*args: Any, **kwargs: Any) -> Any:
        with Products(READER, lambda _: module):
            return code(*args, **kwargs)

    module.forward = forward


@frozen(eq=False)
class _Paged:
    """A step of inferno's engine."""

    batch: Batch
    calls: Counter[nn.Module] = field(factory=Counter)
    states: list[Kept] = field(factory=list)
    """Of the call that runs."""

    @contextmanager
    def using(self, states: Kept) -> Iterator[None]:
        self.states.append(states)
        try:
            yield
        finally:
            self.states.pop()

    def kept(self) -> Kept:
        return self.states[-1]

    def attend(
        self,
        module: nn.Module,
        q_1HTC: Tensor,
        k_1KTC: Tensor,
        v_1KTC: Tensor,
        mask: object,
        asked: dict[str, Any],
    ) -> Tensor:
        q_TX, k_TX, v_TX = (x[0].transpose(0, 1).flatten(1) for x in (q_1HTC, k_1KTC, v_1KTC))
        call = self.calls[module]
        self.calls[module] += 1
        layer: Any = getattr(module, f"{ATTENTION}{call or ''}")
        y_TX: Tensor = layer(q_TX, k_TX, v_TX, self.batch, asked.get("s_aux"))
        return y_TX.view(1, len(y_TX), q_1HTC.shape[1], -1)

    def mask(self, allows: Callable[..., Tensor], shape: torch.Size) -> Mask:
        """Any: inferno's attention is causal, with the window in the layer's spec."""
        return Mask(None, shape)


def _attend(*args: Any) -> Tensor:
    return current().attend(*args)


READER = Reader(attend=_attend, mask=None)
