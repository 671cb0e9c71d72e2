"""What an architecture declares, and the protocols of its config and its model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from attrs import field, frozen

from inferno.contracts import lazy
from inferno.contracts.attention import AttentionSpec
from inferno.contracts.checkpoints import Checkpoint
from inferno.contracts.dialect import Dialect
from inferno.contracts.encoder_files import EncoderDialect
from inferno.contracts.media import AudioProcessor, ImageProcessor
from inferno.contracts.ranks import Divided
from inferno.contracts.states import StateSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

    from inferno.nn.batch import Batch


def _texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(texts)


@runtime_checkable
class ModelConfig(Protocol):
    """An architecture's parsed `config.json`: its own fields, and these. It may also have
    `unused_tensors`, a tuple of patterns (`*` matches anything) of stored tensors that the model
    does not read, `num_experts`, if layers have routed experts (`nn.Experts`), `divides`, as its
    architecture has it, by the whole path of a matrix, and `spec_layers`, the layer of each of
    `cache_specs`, unless each of its `num_hidden_layers` has exactly one. For pipeline stages it
    has, if that is not usual, `stage_starts`, the layers that a stage may begin with, where others
    read more than hidden states of the layers before them; `first_modules`, the names of modules
    that the first stage has beside the embedding; and `passed_size`, how many numbers of each token
    go from stage to stage, instead of `hidden_size`."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_position_embeddings(self) -> int:
        """Longest context the model was trained for, in tokens."""
        ...

    def cache_specs(self) -> Sequence[AttentionSpec | StateSpec]:
        """Return the spec of each layer with attention or a recurrent state, in the order of the
        layer ids."""
        ...


@runtime_checkable
class MTPModelConfig(ModelConfig, Protocol):
    """The config of a model with multi-token-prediction layers, stored in addition to its own."""

    @property
    def mtp_tensors(self) -> tuple[str, ...]:
        """Name patterns of their stored tensors. They are read only if these layers propose
        drafts."""
        ...

    def mtp_specs(self) -> Sequence[AttentionSpec]:
        """Return the spec of each layer, none if the model has no such layers. Their layer ids
        follow the model's."""
        ...


class Model(Protocol):
    """The torch module that an architecture builds: two calls."""

    def __call__(self, batch: Batch) -> Tensor:
        """Return the step's final hidden states, (T, hidden): one row per packed token."""
        ...

    def logits(self, x_SD: Tensor) -> Tensor:
        """Return the logits of these hidden states, (S, vocab), in float32: rounded to the compute
        dtype, many of them tie."""
        ...


class MTP(Protocol):
    """The torch module of a model's multi-token-prediction layers: layer k predicts the token k + 2
    positions after its own. The logits of its hidden states are `Model.logits`."""

    @property
    def num_layers(self) -> int:
        """Number of layers, at least 1."""
        ...

    def __call__(self, layer: int, x_TD: Tensor, batch: Batch) -> Tensor:
        """Return a layer's hidden states, (T, hidden). `x_TD` are those of the layer before it at
        the same positions, the model's for layer 0. `batch.token_ids_T` are the tokens `layer` + 1
        positions later."""
        ...


@frozen(kw_only=True)
class Reranker:
    """How models of a family judge whether a document answers a query: by the probability of one
    token against another's. For checkpoints that do not say it themselves (`modules.json`)."""

    template: str
    """Jinja template over messages of the roles system (the instruction, optional), query and
    document."""
    yes: str
    """Token that means relevant, as written in the vocabulary."""
    no: str
    """Token that means not relevant."""
    instruction: str = ""
    """What the query asks for, unless the request says it."""


@frozen(kw_only=True)
class Architecture:
    """A model the kernel can build.

    Module paths must equal the checkpoint's tensor names (Hugging Face's), so that formats and
    schemes need no name map.
    """

    name: str
    """As in `config.json`'s "architectures"; `*` is the fallback for names that no other plugin
    offers."""
    aliases: tuple[str, ...] = field(default=(), converter=_texts)
    """Other classes that checkpoints name for the same model. Its base class (`XModel` for
    `XForCausalLM`) and other spellings in lower and upper case need no entry."""
    model_types: tuple[str, ...] = field(default=(), converter=_texts)
    """Values of "model_type" that mean it, where no class is named: in a `config.json`, or in its
    `text_config`, if the model reads more than text."""
    config: Callable[[Mapping[str, Any]], ModelConfig] = field(converter=lazy.function)
    """Parses the checkpoint's config (plain JSON). Imports no torch. Raises CheckpointError."""
    build: Callable[[Any], nn.Module] = field(converter=lazy.function)
    """Builds the model of that config on the current device (the kernel builds on meta)."""
    mtp: Callable[[Any, Any], nn.Module] | None = field(default=None, converter=lazy.optional)
    """mtp(config, model) -> the multi-token-prediction layers of that model, an `MTP`, built on the
    current device. The config is an `MTPModelConfig`."""
    dialects: Mapping[str, Dialect] = field(factory=dict)
    """Checkpoint format -> how its files name fields and modules: {"gguf": Dialect(...)}. Formats
    that keep Hugging Face's names need no entry."""
    adapt: Callable[[Checkpoint], Checkpoint] | None = field(default=None, converter=lazy.optional)
    """Returns a view of the checkpoint under the model's names, if the stored names differ
    (`CheckpointView`). Imports no torch before a tensor is read."""
    unquantized: tuple[str, ...] = field(
        default=("*.gate", "*.router", "*.router.*"), converter=_texts
    )
    """Patterns of module paths whose matrices are never quantized in situ: routers, whose matrix is
    a plain parameter of float32."""
    stop_tokens: tuple[str, ...] = field(default=(), converter=_texts)
    """Special tokens that end the output even if the checkpoint does not list them; a vocabulary
    may lack them."""
    chat_template: str | None = None
    """Jinja template for chat checkpoints that store none."""
    reranker: Reranker | None = None
    """How its rerankers judge."""
    checkpoints: tuple[str, ...] = field(default=(), converter=_texts)
    """Published models of this architecture, for listings: "Qwen/Qwen3-0.6B"."""
    varies: Callable[[Any], str | None] | None = field(default=None, converter=lazy.optional)
    """Of a model that multiplies in torch itself, outside of the layers of `inferno.nn`: returns
    what depends on the shape of a step with that config, as a sentence with which
    `--batch-invariant` is refused, or None. Imports no torch. None: nothing does."""
    divides: Mapping[str, Divided] = field(factory=dict)
    """What its matrices are divided by if several ranks compute a step, by the last part of their
    module's path, or the last two; a matrix that is not named is held whole by every rank. For
    models of the layers of `inferno.nn` with the usual names: `DECODER`, and `MAMBA2` beside it.
    Empty: it cannot be divided, nor its layers among pipeline stages."""
    images: Callable[[Any, Mapping[str, Any], int], ImageProcessor] | None = field(
        default=None, converter=lazy.optional
    )
    """images(config, fields, most) -> what prepares images for a model that sees them, whose config
    is an `ImageModelConfig`: with the checkpoint's `preprocessor_config.json`, and so that no image
    takes more than `most` positions. Called in a process that needs no torch; imports Pillow. None:
    the model reads text only."""
    audio: Callable[[Any, Mapping[str, Any]], AudioProcessor] | None = field(
        default=None, converter=lazy.optional
    )
    """audio(config, fields) -> what prepares audio for a model that hears it, whose config is an
    `AudioModelConfig`, with the checkpoint's `preprocessor_config.json`. Called in a process that
    needs no torch. None: the model hears none."""
    encoders: Mapping[str, EncoderDialect] = field(factory=dict)
    """Checkpoint format -> how its files hold the encoder of images apart from the text model, for
    an architecture with `images`. The text model's own dialect is that of the architecture that
    reads it alone."""
    note: str = ""
    """A note for users; the plan shows it."""
    api_version: int = 1

    @property
    def has_encoder(self) -> bool:
        """Whether its models read images or audio."""
        return self.images is not None or self.audio is not None

    def is_named(self, name: str) -> bool:
        """Return whether a checkpoint that names this class means it."""
        return name.lower() in {each.lower() for each in (self.name, *self.aliases)}
