"""Stored models: formats of whole checkpoints, and schemes of single matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attrs import field, frozen

from inferno.contracts import lazy
from inferno.contracts.dialect import Dialect

if TYPE_CHECKING:
    from torch import Tensor

    from inferno.contracts.architectures import Architecture
    from inferno.nn.weight import Weight


@frozen
class TensorInfo:
    """A stored tensor as its header tells it."""

    dtype: str
    """By torch's names: "bfloat16", "uint8"."""
    shape: tuple[int, ...]
    nbytes: int


@frozen(kw_only=True)
class TextAssets:
    """What a checkpoint says about text. All optional: without a tokenizer a model still runs on
    token ids."""

    tokenizer_json: bytes | None = None
    """A `tokenizer.json` document, UTF-8."""
    tokenizer_dir: str | None = None
    """Else a directory that transformers can make a fast tokenizer from."""
    tokenizer_config: Mapping[str, Any] = field(factory=dict)
    """`tokenizer_config.json`: names of special tokens, `add_bos_token`, `response_template`."""
    chat_template: str | None = None
    generation_config: Mapping[str, Any] = field(factory=dict)
    """`generation_config.json`: default sampling and `eos_token_id`."""


class Checkpoint(Protocol):
    """An opened checkpoint, speaking Hugging Face names whatever is on disk. Opening reads headers
    only."""

    @property
    def config(self) -> Mapping[str, Any]:
        """`config.json`, or what the format makes of its own metadata."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def text(self) -> TextAssets: ...

    def read(self, name: str) -> Tensor:
        """The tensor, in host memory; a view of the mapped file where the format can. The first
        call may import torch. Raises CheckpointError."""
        ...

    def close(self) -> None: ...


@frozen(eq=False)
class CheckpointView:
    """What `Architecture.adapt` gives: another checkpoint under other names. One that derives has
    `tensors` and `read`."""

    checkpoint: Checkpoint

    @property
    def config(self) -> Mapping[str, Any]:
        return self.checkpoint.config

    def text(self) -> TextAssets:
        return self.checkpoint.text()

    def close(self) -> None:
        self.checkpoint.close()


@frozen(kw_only=True)
class CheckpointFormat:
    """A way a model lies on disk."""

    name: str
    matches: Callable[[Path], bool] = field(converter=lazy.function)
    """Whether `path` is of this format, from names or first bytes only."""
    open: Callable[[Path, Sequence[Architecture]], Checkpoint] = field(converter=lazy.function)
    """open(path, architectures): reads and checks the headers. Imports no torch. A format with
    names of its own finds their translation in the installed architectures. Raises CheckpointError
    on anything damaged."""
    dialect: Dialect | None = None
    """What its files call the fields and modules of most architectures: `Architecture.dialects`
    say where theirs differ. None: files have Hugging Face's names."""
    priority: int = 0
    api_version: int = 1


@frozen(kw_only=True)
class QuantScheme:
    """A layout of a stored matrix.

    A module's *parts* are the tensors stored under its path: {"weight"} when dense, {"qweight",
    "scales", "qzeros"} for GPTQ. They alone decide which scheme owns it.
    """

    name: str
    owns: Callable[[Mapping[str, TensorInfo], Mapping[str, Any]], bool] = field(
        converter=lazy.function
    )
    """owns(parts, quantization_config). Imports no torch."""
    load: Callable[..., Weight] = field(converter=lazy.function)
    """load(parts, *, quant_config, dtype) -> the Weight these tensors encode."""
    nbytes: Callable[[Mapping[str, TensorInfo], str], int] = field(converter=lazy.function)
    """nbytes(parts, dtype) -> bytes the loaded weight holds in memory. Imports no torch."""
    layout: str = ""
    """`Weight.layout` of what `load` gives: what a kernel is asked for. Empty: a plain matrix of
    the compute type."""
    pack: Callable[[Tensor], Weight] | None = field(default=None, converter=lazy.optional)
    """Encode a dense matrix: in-situ quantization. None where the scheme cannot."""
    priority: int = 0
    api_version: int = 1
