"""Stored models: formats of whole checkpoints, and schemes of single matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attrs import field, frozen

from inferno.contracts import lazy

if TYPE_CHECKING:
    from torch import Tensor

    from inferno.nn.weight import Weight


@frozen
class TensorInfo:
    """A stored tensor's header."""

    dtype: str
    """Torch's name: "bfloat16", "uint8"."""
    shape: tuple[int, ...]
    nbytes: int


@frozen(kw_only=True)
class TextAssets:
    """A checkpoint's tokenizer, chat template and generation config. All optional: without a
    tokenizer a model still runs on token ids."""

    tokenizer_json: bytes | None = None
    """A `tokenizer.json` document, UTF-8."""
    tokenizer_dir: str | None = None
    """Else a directory from which transformers can build a fast tokenizer."""
    tokenizer_config: Mapping[str, Any] = field(factory=dict)
    """`tokenizer_config.json`: names of special tokens, `add_bos_token`, `response_template`."""
    chat_template: str | None = None
    generation_config: Mapping[str, Any] = field(factory=dict)
    """`generation_config.json`: default sampling and `eos_token_id`."""
    modules: tuple[Mapping[str, Any], ...] = ()
    """The entries of sentence-transformers' `modules.json`, which embedding models and rerankers
    have, each with its own configuration under `config`."""
    prompts: Mapping[str, str] = field(factory=dict)
    """`prompts` of `config_sentence_transformers.json`: what is written before a kind of string,
    by its name ("query")."""


class Checkpoint(Protocol):
    """An opened checkpoint under Hugging Face's names, whatever its format. Opening it reads only
    headers. A format whose tensors depend on nothing but some files' content and `config` has an
    attribute `files`, a tuple of their paths: then its packed weights may be kept on disk."""

    @property
    def config(self) -> Mapping[str, Any]:
        """`config.json`, or its equivalent, built from the format's metadata."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def text(self) -> TextAssets: ...

    def read(self, name: str) -> Tensor:
        """Return the tensor in host memory, if possible as a view of the mapped file. The first
        call may import torch. Raises CheckpointError."""
        ...

    def close(self) -> None: ...


@frozen(eq=False)
class CheckpointView:
    """Base class of what `Architecture.adapt` returns: a checkpoint under other names. Subclasses
    define `tensors` and `read`."""

    checkpoint: Checkpoint

    @property
    def config(self) -> Mapping[str, Any]:
        return self.checkpoint.config

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(getattr(self.checkpoint, "files", ()))

    def text(self) -> TextAssets:
        return self.checkpoint.text()

    def close(self) -> None:
        self.checkpoint.close()


@frozen(eq=False)
class BareDecoder(CheckpointView):
    """A decoder saved without its head, as embedding models are, under the names of a model with
    one. Its head is tied: nothing reads it unless the model generates."""

    @property
    def config(self) -> Mapping[str, Any]:
        return {**self.checkpoint.config, "tie_word_embeddings": True}

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {f"model.{name}": info for name, info in self.checkpoint.tensors.items()}

    def read(self, name: str) -> Tensor:
        return self.checkpoint.read(name.removeprefix("model."))


def with_head(checkpoint: Checkpoint) -> Checkpoint:
    """View a checkpoint whose decoder is not under `model` as a `BareDecoder`; others as they are.
    An `Architecture.adapt`."""
    bare = not any(name.startswith(("model.", "lm_head.")) for name in checkpoint.tensors)
    return BareDecoder(checkpoint) if bare else checkpoint


@frozen(kw_only=True)
class QuantScheme:
    """A quantization scheme: how a stored matrix becomes a weight.

    A module's *parts* are the tensors stored under its path: {"weight"} when dense, {"qweight",
    "scales", "qzeros"} for GPTQ. Which scheme owns a module is decided by its parts.
    """

    name: str
    owns: Callable[[Mapping[str, TensorInfo], Mapping[str, Any]], bool] = field(
        converter=lazy.function
    )
    """owns(parts, quantization_config). Imports no torch."""
    load: Callable[..., Weight] = field(converter=lazy.function)
    """load(parts, *, quant_config, dtype) -> the Weight these tensors encode."""
    nbytes: Callable[[Mapping[str, TensorInfo], str], int] = field(converter=lazy.function)
    """nbytes(parts, dtype) -> bytes of memory that the loaded weight takes. Imports no torch."""
    layout: str = ""
    """`Weight.layout` of the loaded weight, by which kernels are chosen. Empty: a plain matrix of
    the compute dtype."""
    pack: Callable[[Tensor], Weight] | None = field(default=None, converter=lazy.optional)
    """Quantizes a dense matrix in situ; None if the scheme cannot."""
    priority: int = 0
    api_version: int = 1
