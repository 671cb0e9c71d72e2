"""Models: what an architecture declares, and what its config and its module are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from attrs import field, frozen

from inferno.contracts import lazy
from inferno.contracts.attention import AttentionSpec
from inferno.contracts.checkpoints import Checkpoint
from inferno.contracts.dialect import Dialect
from inferno.contracts.states import StateSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

    from inferno.nn.batch import Batch


def _texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(texts)


@runtime_checkable
class ModelConfig(Protocol):
    """What an architecture makes of `config.json`: whatever it likes, and these. It may also have
    `unused_tensors`, a tuple of name patterns (`*` matches anything) that checkpoints store and the
    model does not read, and `num_experts`, where layers have routed experts (`nn.Experts`)."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_position_embeddings(self) -> int:
        """Longest context, in tokens, that the model was made for."""
        ...

    def cache_specs(self) -> Sequence[AttentionSpec | StateSpec]:
        """What each layer with attention or a recurrent state keeps, in the order of the layer
        ids."""
        ...


class Model(Protocol):
    """What an architecture builds: a torch module with two calls."""

    def __call__(self, batch: Batch) -> Tensor:
        """One step's final hidden states, (T, hidden), one row per packed token."""
        ...

    def logits(self, x_SD: Tensor) -> Tensor:
        """Hidden rows to logits, (S, vocab)."""
        ...


@frozen(kw_only=True)
class Architecture:
    """A model the kernel can build.

    Module paths equal the checkpoint's tensor names (Hugging Face's): then no format and no scheme
    needs a map.
    """

    name: str
    """As in `config.json`'s "architectures"; `*` is taken for a name that nobody else offers."""
    config: Callable[[Mapping[str, Any]], ModelConfig] = field(converter=lazy.function)
    """Reads the checkpoint's config (plain JSON). Imports no torch. Raises CheckpointError."""
    build: Callable[[Any], nn.Module] = field(converter=lazy.function)
    """The model of that config, on whatever device is current (the kernel builds on meta)."""
    dialects: Mapping[str, Dialect] = field(factory=dict)
    """Name of a checkpoint format -> how its files are named: {"gguf": Dialect(...)}. Formats that
    keep Hugging Face's names need no entry."""
    adapt: Callable[[Checkpoint], Checkpoint] | None = field(default=None, converter=lazy.optional)
    """A view of a checkpoint under the model's own names, where it has others (`CheckpointView`).
    Imports no torch before a tensor is read."""
    stop_tokens: tuple[str, ...] = field(default=(), converter=_texts)
    """Special tokens that end an answer even where a checkpoint does not say so; a vocabulary may
    lack them."""
    chat_template: str | None = None
    """A Jinja template for checkpoints that were trained to chat and carry none."""
    checkpoints: tuple[str, ...] = field(default=(), converter=_texts)
    """Published models that have it, for people to find it by: "Qwen/Qwen3-0.6B"."""
    note: str = ""
    """What a user should know; the plan repeats it."""
    api_version: int = 1
