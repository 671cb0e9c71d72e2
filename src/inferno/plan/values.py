"""What was asked for and what was decided, as values that can be written down. Nothing here
decides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import attrs
import cattrs
from attrs import field, frozen
from cattrs.preconf.msgspec import make_converter

from inferno.catalog import Catalog, Refusal, load_catalog
from inferno.contracts import (
    COMPUTE_DTYPES,
    Architecture,
    AttentionNeed,
    CacheDType,
    CacheTensor,
    Checkpoint,
    TextAssets,
)
from inferno.errors import OptionError
from inferno.plan.cache_groups import CacheGroupPlan, StateUse


@frozen(kw_only=True)
class Options:
    """What a user may ask of an engine. Names are vLLM's where the meaning is."""

    dtype: str = "auto"
    """Compute and cache type; auto takes the checkpoint's."""
    device: str = "auto"
    max_model_len: int | None = None
    """Longest context in tokens, output included; None: the model's own, or what fits."""
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    memory: str | None = None
    """The most the engine may use for weights, cache and workspace together: `8GiB`, or `60%` of
    the device's total."""
    gpu_memory_utilization: float | None = None
    """The same as a fraction of a GPU's total, as at vLLM."""
    block_size: int | None = None
    attention_backend: str = "auto"
    kv_cache_dtype: str = "auto"
    """What keys and values are stored as: auto is the compute type; fp8_e4m3 and int8 take half of
    it or less."""
    cache_policy: str = "auto"
    tensor_parallel_size: int = 1
    threads: int | None = None
    """CPU threads of a step; None: the cores this process may use, or one where the model is too
    small to share."""
    isq: str | None = None
    """Scheme to quantize the dense matrices with while loading."""
    seed: int | None = None
    """Makes requests without a seed of their own reproducible from run to run."""
    revision: str | None = None
    offline: bool = False
    progress: bool = False
    served_model_name: str | None = None
    disable: tuple[str, ...] = field(default=(), converter=tuple)
    only: tuple[str, ...] = field(default=(), converter=tuple)

    def __attrs_post_init__(self) -> None:
        for name in (
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
            "threads",
            "tensor_parallel_size",
        ):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise OptionError(
                    f"{name} is {value!r}", "It must be a whole number of at least 1."
                )
        if self.dtype not in ("auto", *COMPUTE_DTYPES):
            raise OptionError(
                f"dtype {self.dtype!r} is not known", f"Known: auto, {', '.join(COMPUTE_DTYPES)}."
            )
        if self.kv_cache_dtype not in (known := get_args(CacheDType)):
            raise OptionError(
                f"kv_cache_dtype {self.kv_cache_dtype!r} is not known",
                f"Known: {', '.join(known)}.",
            )
        if self.tensor_parallel_size != 1:
            raise OptionError(
                f"tensor_parallel_size {self.tensor_parallel_size}: no installed executor "
                f"runs several ranks",
                "Leave it at 1.",
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise OptionError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below max_num_seqs "
                f"{self.max_num_seqs}",
                "Every running sequence needs a token in each step: raise the one or lower "
                "the other.",
            )
        if self.memory is not None and self.gpu_memory_utilization is not None:
            raise OptionError(
                "memory and gpu_memory_utilization exclude each other", "Give one of them."
            )


@frozen(kw_only=True)
class SchemeUse:
    """The matrices one scheme holds."""

    name: str
    distribution: str
    classes: tuple[str, ...]
    """Last path components: q_proj, embed_tokens."""
    stored: tuple[str, ...]
    """Types they are stored in."""
    count: int
    nbytes: int
    """Once loaded."""


@frozen(kw_only=True)
class KernelUse:
    """An op that a kernel provider computes."""

    op: str
    layout: str
    """Of the matrices, for `linear`."""
    name: str
    distribution: str


@frozen(kw_only=True)
class AttentionUse:
    """The layers one attention backend serves with one need."""

    name: str
    distribution: str
    need: AttentionNeed
    layers: tuple[int, ...]
    cache: Mapping[str, CacheTensor]
    """What each layer keeps per block."""


@frozen
class MemoryItem:
    """One line of the memory plan."""

    name: str
    nbytes: int
    why: str


@frozen(kw_only=True)
class Plan:
    """Everything that was decided, before the first token."""

    ref: str
    path: str
    model_id: str
    source: str
    architecture: str
    format: str
    config: Mapping[str, Any]
    """The checkpoint's, as its format tells it."""
    schemes: tuple[SchemeUse, ...]
    isq: str | None
    kernels: tuple[KernelUse, ...]
    """What is not listed, torch computes."""
    attention: tuple[AttentionUse, ...]
    states: tuple[StateUse, ...] = ()
    """Layers with a recurrent state."""
    cache_policy: str
    executor: str
    dtype: str
    device: str
    threads: int
    seed: int | None
    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    groups: tuple[CacheGroupPlan, ...]
    """What layers keep in common. The first is the full group."""
    memory_limit: int
    memory: tuple[MemoryItem, ...]
    distributions: Mapping[str, str]
    """What was chosen -> distribution and version it comes from."""
    considered: tuple[Refusal, ...]
    """Candidates that were not chosen, and why."""
    notes: tuple[str, ...]
    """What a user should know: limits lowered to fit, and so on."""
    disable: tuple[str, ...]
    only: tuple[str, ...]

    @property
    def num_blocks(self) -> int:
        """Blocks of the full group: what sequences and the prefix cache name."""
        return self.groups[0].num_blocks

    @property
    def kv_tokens(self) -> int:
        """Tokens of context the cache holds, over all sequences."""
        return self.num_blocks * self.block_size

    @property
    def kv_bytes_per_token(self) -> float:
        """Of a context's tokens beyond every window that has a group of its own."""
        return sum(group.bytes_per_token for group in self.groups)

    @property
    def kv_bytes(self) -> int:
        """The whole cache."""
        return sum(group.nbytes for group in self.groups)

    def fitting(self, tokens: int) -> int:
        """How many sequences of this length the cache holds at once, each computing its share of a
        step."""
        step = -(-self.max_num_batched_tokens // self.block_size)
        found = [self.max_num_seqs]
        for group in self.groups:
            if (blocks := group.blocks_of(tokens)) > 0:
                spare = group.num_blocks - (step if group.kind == "window" else 0)
                found.append(spare // blocks)
        return min(found)

    def catalog(self) -> Catalog:
        """The catalog as it was when the plan was made: the same plugins switched off."""
        return load_catalog(disable=self.disable, only=self.only)


def open_checkpoint(plan: Plan, catalog: Catalog | None = None) -> Checkpoint:
    """The plan's checkpoint, headers read."""
    catalog = catalog or plan.catalog()
    return adapted(catalog.open(Path(plan.path))[1], catalog.architecture(plan.architecture).item)


def adapted(checkpoint: Checkpoint, architecture: Architecture) -> Checkpoint:
    """The checkpoint as the architecture sees it."""
    return architecture.adapt(checkpoint) if architecture.adapt is not None else checkpoint


def open_text(plan: Plan) -> tuple[TextAssets, Mapping[str, Any]]:
    """The plan's tokenizer and template files, with what its architecture adds to them, and the
    model's config."""
    catalog = plan.catalog()
    architecture = catalog.architecture(plan.architecture).item
    checkpoint = open_checkpoint(plan, catalog)
    try:
        assets = checkpoint.text()
    finally:
        checkpoint.close()
    template = (
        assets.chat_template
        or assets.tokenizer_config.get("chat_template")
        or architecture.chat_template
    )
    return attrs.evolve(
        assets, chat_template=template, stop_tokens=architecture.stop_tokens
    ), plan.config


_converter = make_converter()


def plan_to_json(plan: Plan) -> str:
    """The plan as an indented JSON document."""
    return json.dumps(_converter.unstructure(plan), indent=2)


def plan_from_json(text: str | bytes) -> Plan:
    """The plan a document holds. Raises OptionError when it holds none."""
    try:
        return _converter.loads(text.encode() if isinstance(text, str) else text, Plan)
    except (cattrs.BaseValidationError, ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"this is no plan: {error}", "Write it anew with `inferno explain REF --lock`."
        ) from error
