"""Stored models: formats of whole checkpoints, and schemes of single matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from attrs import field, frozen

from inferno.contracts import lazy
from inferno.errors import CheckpointError, PluginError, UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

    from inferno.nn.weight import Weight

_HEAD = "lm_head.weight"


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
    image_processor: Mapping[str, Any] = field(factory=dict)
    """`preprocessor_config.json`: how images are scaled and cut."""
    audio_processor: Mapping[str, Any] = field(factory=dict)
    """The same: how spectrograms are made."""
    modules: tuple[Mapping[str, Any], ...] = ()
    """The entries of sentence-transformers' `modules.json`, which embedding models and rerankers
    have, each with its own configuration under `config`; one with tensors of its own has under
    `read` a function that returns them by name, as numpy arrays of float32."""
    prompts: Mapping[str, str] = field(factory=dict)
    """`prompts` of `config_sentence_transformers.json`: what is written before a kind of string,
    by its name ("query")."""
    default_prompt: str = ""
    """Its `default_prompt_name`: which is written before strings of no kind; empty: none."""
    max_seq_length: int | None = None
    """Of `sentence_bert_config.json`: the longest string in tokens, special ones included."""


class Checkpoint(Protocol):
    """An opened checkpoint under Hugging Face's names, whatever its format. Opening it reads only
    headers. A format whose tensors depend on nothing but some files' content and `config` has an
    attribute `files`, a tuple of their paths, which can be read after `close` too: then packed
    weights and blocks of the cache may be kept on disk. One that returns a tensor's bytes without
    torch has a method `peek`, one that stores the name of the model's licence an attribute
    `license`, one that assumes what its files lack `notes`, a tuple of sentences for the plan."""

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

    def peek(self, name: str) -> bytes:
        """Return a tensor's bytes. Subclasses with other names define it where they are needed."""
        return peek(self.checkpoint, name)

    def held(self, stored: StoredMatrix) -> HeldMatrix:
        """As the function `held`."""
        return held(self.checkpoint, stored)

    def close(self) -> None:
        self.checkpoint.close()


def held(checkpoint: Checkpoint, stored: StoredMatrix) -> HeldMatrix:
    """Return what a quantized matrix of the checkpoint will be in memory, as the installed scheme
    that loads it says: for an `Architecture.adapt` that divides it. Raises UnsupportedError if no
    installed scheme loads it, or if the checkpoint knows no schemes to ask."""
    ask: Callable[[StoredMatrix], HeldMatrix] | None = getattr(checkpoint, "held", None)
    if ask is None:
        raise UnsupportedError(
            f"{stored.path} is quantized, and this checkpoint knows no scheme to ask how",
            "Use a checkpoint that is not quantized.",
        )
    return ask(stored)


def peek(checkpoint: Checkpoint, name: str) -> bytes:
    """Return the bytes of a tensor that describes others, such as a shape, for a
    `QuantScheme.adapt`: without torch if the format can. The caller checks that it is small. Raises
    CheckpointError."""
    of_format: Callable[[str], bytes] | None = getattr(checkpoint, "peek", None)
    return of_format(name) if of_format is not None else checkpoint.read(name).numpy().tobytes()


@frozen(eq=False)
class RenamedView(CheckpointView):
    """A checkpoint's tensors under other names. Those that get none are left out."""

    names: Mapping[str, str]
    """Name in the model -> stored name."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        stored = self.checkpoint.tensors
        return {name: stored[theirs] for name, theirs in self.names.items()}

    def read(self, name: str) -> Tensor:
        return self.checkpoint.read(self.names[name])

    def peek(self, name: str) -> bytes:
        return peek(self.checkpoint, self.names[name])


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

    def peek(self, name: str) -> bytes:
        return peek(self.checkpoint, name.removeprefix("model."))


@frozen(eq=False)
class _Headless(CheckpointView):
    """A decoder saved without its head, under the names of a model that ties it."""

    @property
    def config(self) -> Mapping[str, Any]:
        return {**self.checkpoint.config, "tie_word_embeddings": True}

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self.checkpoint.tensors

    def read(self, name: str) -> Tensor:
        return self.checkpoint.read(name)


def with_head(checkpoint: Checkpoint) -> Checkpoint:
    """View a checkpoint whose decoder is not under `model` as a `BareDecoder`, and give that of a
    base class (`XModel`) its embedding as the head; others as they are. An `Architecture.adapt`."""
    if not any(name.startswith(("model.", "lm_head.")) for name in checkpoint.tensors):
        return BareDecoder(checkpoint)
    return with_tied_head(checkpoint)


def with_tied_head(checkpoint: Checkpoint) -> Checkpoint:
    """View a checkpoint of a base class (`XModel`) that stores no head as one that ties it; others
    as they are."""
    classes = checkpoint.config.get("architectures") or [""]
    headless = not any(name.startswith("lm_head.") for name in checkpoint.tensors)
    return _Headless(checkpoint) if headless and causal_of(str(classes[0])) else checkpoint


def causal_of(name: str) -> str:
    """Return the class with a head for the base class `XModel`: `XForCausalLM`. Empty for
    others."""
    return f"{name.removesuffix('Model')}ForCausalLM" if name.endswith("Model") else ""


@frozen(eq=False)
class _ComputedHead(CheckpointView):
    compute: Callable[[Tensor], Tensor]

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self.checkpoint.tensors

    def read(self, name: str) -> Tensor:
        stored = self.checkpoint.read(name)
        return self.compute(stored.float()).to(stored.dtype) if name == _HEAD else stored


def with_computed_head(
    checkpoint: Checkpoint, compute: Callable[[Tensor], Tensor], reason: str
) -> Checkpoint:
    """View a checkpoint whose model multiplies by `compute(stored head)`, both (V, D) in
    float32. Raises CheckpointError with `reason` if no unquantized head is stored."""
    if _HEAD not in checkpoint.tensors:
        raise CheckpointError(
            f"the checkpoint has no {_HEAD}, {reason}",
            "Use one in which the head is not quantized.",
        )
    return _ComputedHead(checkpoint, compute)


@frozen(eq=False)
class _Fewer(CheckpointView):
    tensors: Mapping[str, TensorInfo]

    def read(self, name: str) -> Tensor:
        return self.checkpoint.read(name)


def without(checkpoint: Checkpoint, ends: tuple[str, ...]) -> Checkpoint:
    """View a checkpoint without the tensors whose names have one of these ends; one without such
    tensors as it is. For a `QuantScheme.adapt`."""
    infos = {n: info for n, info in checkpoint.tensors.items() if not n.endswith(ends)}
    return _Fewer(checkpoint, infos) if len(infos) < len(checkpoint.tensors) else checkpoint


def left_out(checkpoint: Checkpoint) -> set[str]:
    """Return the names of the stored tensors that `without` has left out."""
    omissions, view = set[str](), cast(object, checkpoint)
    while isinstance(view, CheckpointView):
        if isinstance(view, _Fewer):
            omissions |= view.checkpoint.tensors.keys() - view.tensors.keys()
        view = view.checkpoint
    return omissions


class Refused(ValueError):
    """Why a scheme cannot read a matrix, as a sentence."""


def refusal_of(read: Callable[[StoredMatrix], object]) -> Callable[[StoredMatrix], str | None]:
    """Make a `QuantScheme.refuses` of a function that raises Refused."""

    def refuses(stored: StoredMatrix) -> str | None:
        try:
            read(stored)
        except Refused as refused:
            return str(refused)
        return None

    return refuses


@frozen(kw_only=True)
class StoredMatrix:
    """A module's matrix as a checkpoint stores it: what schemes are asked about, by headers."""

    path: str
    """The module's path in the checkpoint."""
    parts: Mapping[str, TensorInfo]
    """The tensors stored under that path, the bias excepted: {"weight"} when dense, {"qweight",
    "scales", "qzeros"} for GPTQ."""
    quant_config: Mapping[str, Any] = field(factory=dict)
    """`quantization_config` of `config.json`; empty if there is none."""


Along = tuple[tuple[int, int, int] | None, tuple[int, int, int] | None]
"""Of a stored tensor, along the rows of its matrix and along the columns: the axis, and how many
rows or columns are in how many entries of it. None: it is the same for all of them."""


@frozen(kw_only=True)
class HeldMatrix:
    """What a matrix is in memory, once its scheme has loaded it."""

    layout: str = ""
    """Its `Weight.layout`, by which kernels are chosen: one of the
    [public layouts](layouts.md) or the scheme's own. Empty: a plain matrix of the compute dtype."""
    shape: tuple[int, int] | None
    """Rows and columns: output and input features. None: known only once it is loaded."""
    nbytes: int
    """Bytes of memory that the weight takes."""
    values: int = 0
    """Rows times columns, where headers do not tell the shape: the plan then finds the shape of a
    matrix that reads or gives hidden states. 0: they do not tell that either."""
    unit: tuple[int, int] | None = None
    """Rows and columns that `Weight.cut` keeps together, such as those of a block: (1, 1) for a
    plain matrix. 0 columns: it is cut by rows only, as where columns are in another order. None: it
    cannot be cut, so that several ranks cannot share it."""
    along: Mapping[str, Along] = field(factory=dict, eq=False)
    """How stored tensors lie along its rows and columns, by part, where its scheme converts them
    when it loads: of a matrix that is cut, only what a rank has is read then, and is loaded as a
    smaller matrix. Parts that are left out are given whole. Empty: the loaded weight is cut."""


def _undeclared(*_: object) -> Any:
    raise PluginError(
        "a quantization scheme lacks `refuses` or `holds`",
        "Report this to the plugin's authors.",
    )


@frozen(kw_only=True)
class QuantScheme:
    """A quantization scheme: how a stored matrix becomes a weight. Of the schemes that do not
    refuse a matrix, the one with the highest priority loads it.
    """

    name: str
    refuses: Callable[[StoredMatrix], str | None] = field(
        default=_undeclared, converter=lazy.function
    )
    """Returns a sentence that says why it cannot read the matrix, or None if it can. It is shown if
    no scheme can. Imports no torch."""
    holds: Callable[[StoredMatrix, str], HeldMatrix] = field(
        default=_undeclared, converter=lazy.function
    )
    """holds(stored, dtype) -> what the loaded weight will be; `dtype` is the compute dtype. Asked
    only about matrices that it does not refuse. Raises CheckpointError. Imports no torch."""
    load: Callable[..., Weight] = field(converter=lazy.function)
    """load(stored, tensors, *, dtype) -> the Weight that these tensors encode; `tensors` has those
    of `stored.parts`, which it must not change. Raises CheckpointError. In version 1:
    load(tensors, *, quant_config, dtype)."""
    adapt: Callable[[Checkpoint], Checkpoint] | None = field(default=None, converter=lazy.optional)
    """adapt(checkpoint) -> the checkpoint under other names, before the architecture sees it: for
    tensors that are not parts of a module, such as scales of the KV cache. Returns checkpoints
    without such tensors as they are. Imports no torch."""
    pack: Callable[..., Weight] | None = field(default=None, converter=lazy.optional)
    """pack(weight_OI, ...) -> the matrix, quantized; None if the scheme cannot quantize. If
    `weighted`, it has the keyword `importance`, float32 (I,): how much the squared errors of each
    column count. If a kernel provider quantizes to its layout, it is given the provider's
    `quantize` as a keyword."""
    packs: Callable[[tuple[int, int], str], HeldMatrix] | None = field(
        default=None, converter=lazy.optional
    )
    """packs(shape, dtype) -> what `pack` will make of a dense matrix of these rows and columns.
    Raises Refused, with a sentence, if it cannot. Imports no torch. None: known once packed."""
    weighted: bool = False
    """Whether `pack` takes `importance`."""
    instead: tuple[str, ...] = ()
    """Names of schemes that take the matrices whose shape `packs` refuses, best first."""
    spellings: tuple[str, ...] = ()
    """Other names that users may write for it. Case, hyphens and underscores never matter."""
    layout: str = ""
    """`Weight.layout` of what `pack` returns. In version 1, of every matrix of the scheme."""
    owns: Callable[[Mapping[str, TensorInfo], Mapping[str, Any]], bool] | None = field(
        default=None, converter=lazy.optional
    )
    """Version 1 only, in place of `refuses`: owns(parts, quantization_config)."""
    nbytes: Callable[[Mapping[str, TensorInfo], str], int] | None = field(
        default=None, converter=lazy.optional
    )
    """Version 1 only, in place of `holds`: nbytes(parts, dtype) -> bytes of the loaded weight."""
    priority: int = 0
    api_version: int = 2
