"""The plan: one value between "what do you want" and "what runs".

`resolve` reads headers only and imports no torch. `explain` prints the value, `serve`, `chat`, `generate` and `bench` execute
exactly it, and an engine process receives it serialised: there is one code path.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import attrs
import cattrs
from attrs import field, frozen
from cattrs.preconf.msgspec import make_converter

from inferno import memory
from inferno.catalog import Catalog, Offer, Refusal, load_catalog
from inferno.contracts import (
    DTYPE_BYTES,
    DType,
    Architecture,
    AttentionNeed,
    CacheTensor,
    Checkpoint,
    FetchOptions,
    ModelConfig,
    TensorInfo,
    TextAssets,
)
from inferno.errors import CheckpointError, OptionError, OutOfMemoryError, UnsupportedError

COMPUTE_DTYPES = ("float32", "bfloat16", "float16")
DEFAULT_MEMORY = "70%"


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
    """The most the engine may use for weights, cache and workspace together: `8GiB`, or `60%` of the device's total."""
    gpu_memory_utilization: float | None = None
    """The same as a fraction of a GPU's total, as at vLLM."""
    block_size: int | None = None
    attention_backend: str = "auto"
    cache_policy: str = "auto"
    tensor_parallel_size: int = 1
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
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "tensor_parallel_size"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise OptionError(f"{name} is {value!r}", "It must be a whole number of at least 1.")
        if self.dtype not in ("auto", *COMPUTE_DTYPES):
            raise OptionError(f"dtype {self.dtype!r} is not known", f"Known: auto, {', '.join(COMPUTE_DTYPES)}.")
        if self.tensor_parallel_size != 1:
            raise OptionError(
                f"tensor_parallel_size {self.tensor_parallel_size}: no installed executor runs several ranks",
                "Leave it at 1.",
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise OptionError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below max_num_seqs {self.max_num_seqs}",
                "Every running sequence needs a token in each step: raise the one or lower the other.",
            )
        if self.memory is not None and self.gpu_memory_utilization is not None:
            raise OptionError("memory and gpu_memory_utilization exclude each other", "Give one of them.")


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
    attention: tuple[AttentionUse, ...]
    cache_policy: str
    executor: str
    dtype: str
    device: str
    seed: int | None
    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int
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
    def kv_tokens(self) -> int:
        """Tokens the cache holds, over all sequences."""
        return self.num_blocks * self.block_size

    @property
    def kv_bytes_per_token(self) -> float:
        return sum(_block_bytes(use) for use in self.attention) / self.block_size

    def catalog(self) -> Catalog:
        """The catalog as it was when the plan was made: the same plugins switched off."""
        return load_catalog(disable=self.disable, only=self.only)


def resolve(ref: str, options: Options | None = None, catalog: Catalog | None = None) -> Plan:
    """Decide everything. Fetches the model if its source must. Raises an InfernoError naming every refusal."""
    options = options or Options()
    catalog = catalog or load_catalog(disable=options.disable, only=options.only)
    source = catalog.source_of(ref)
    fetch = FetchOptions(revision=options.revision, offline=options.offline, progress=options.progress)
    path = source.item.fetch(ref, fetch)
    found = catalog.format_of(path)
    checkpoint = found.item.open(path)
    try:
        return _Resolver(catalog, options, checkpoint).plan(ref, path, source.offer, found.offer)
    finally:
        checkpoint.close()


def open_checkpoint(plan: Plan, catalog: Catalog | None = None) -> Checkpoint:
    """The plan's checkpoint, headers read."""
    catalog = catalog or plan.catalog()
    checkpoint: Checkpoint = catalog.format_of(Path(plan.path)).item.open(Path(plan.path))
    return checkpoint


def open_text(plan: Plan) -> tuple[TextAssets, Mapping[str, Any]]:
    """The plan's tokenizer and template files, and the model's config."""
    checkpoint = open_checkpoint(plan)
    try:
        return checkpoint.text(), plan.config
    finally:
        checkpoint.close()


def architecture_name(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list | tuple) or not names or not isinstance(names[0], str):
        raise CheckpointError('config.json names no "architectures"', "It must hold a list with the model class.")
    return names[0]


def modules_of(tensors: Mapping[str, TensorInfo], unused: tuple[str, ...]) -> dict[str, dict[str, TensorInfo]]:
    """Stored tensors by module path and part: {"model.norm": {"weight": ...}}. `unused` names are left out."""
    from fnmatch import fnmatchcase

    modules: dict[str, dict[str, TensorInfo]] = defaultdict(dict)
    for name, info in tensors.items():
        if not any(fnmatchcase(name, pattern) for pattern in unused):
            path, _, part = name.rpartition(".")
            modules[path][part] = info
    return modules


def is_matrix(parts: Mapping[str, TensorInfo]) -> bool:
    """Whether a scheme must hold what is stored: anything but a vector weight and a bias."""
    return any(part not in ("weight", "bias") or (part == "weight" and len(i.shape) > 1) for part, i in parts.items())


class _Resolver:
    """One resolution: the catalog is asked, the reasons are kept."""

    def __init__(self, catalog: Catalog, options: Options, checkpoint: Checkpoint) -> None:
        self._catalog, self._options, self._checkpoint = catalog, options, checkpoint
        self._config = checkpoint.config
        self._considered: list[Refusal] = []
        self._distributions: dict[str, str] = {}
        self._notes: list[str] = []

    def plan(self, ref: str, path: Path, source: Offer[Any], found: Offer[Any]) -> Plan:
        options = self._options
        self._used("source", source)
        self._used("format", found)
        architecture = self._choose("architecture", self._catalog.architecture(architecture_name(self._config)))
        model = _model_config(architecture.item, self._config)
        device = self._device()
        dtype = self._dtype()
        schemes = self._schemes(model, dtype)
        needs = [attrs.evolve(need, dtype=dtype, device=device) for need in model.attention_needs()]
        attention, block_size = self._attention(needs)
        policy = self._choose("cache policy", self._catalog.cache_policy(options.cache_policy))
        if options.isq is not None:
            self._isq(options.isq)
        limit = self._memory_limit(device)
        items = self._fixed_memory(schemes, dtype, model)
        max_model_len, num_blocks = self._size_cache(model, attention, block_size, limit, items)
        return Plan(
            ref=ref, path=str(path), model_id=options.served_model_name or ref, source=source.item.name,
            architecture=architecture.item.name, format=found.item.name, config=dict(self._config), schemes=schemes,
            isq=options.isq, attention=attention, cache_policy=policy.item.name, executor="single process",
            dtype=dtype, device=device, seed=options.seed, vocab_size=model.vocab_size, max_model_len=max_model_len,
            max_num_seqs=options.max_num_seqs, max_num_batched_tokens=options.max_num_batched_tokens,
            block_size=block_size, num_blocks=num_blocks, memory_limit=limit, memory=tuple(items),
            distributions=self._distributions, considered=tuple(self._considered), notes=tuple(self._notes),
            disable=options.disable, only=options.only,
        )  # fmt: skip

    def _used(self, what: str, offer: Offer[Any]) -> None:
        versions = {p.distribution: p.version for p in self._catalog.plugins}
        self._distributions[f"{what} {offer.item.name}"] = f"{offer.distribution} {versions[offer.distribution]}"

    def _choose(self, what: str, choice: Any) -> Offer[Any]:
        self._considered += [r for r in choice.refusals if r not in self._considered]
        self._used(what, choice.offer)
        offer: Offer[Any] = choice.offer
        return offer

    def _device(self) -> str:
        device = self._options.device
        if device == "auto":
            return "cuda" if memory.has_gpu() else "cpu"
        if device.partition(":")[0] not in ("cpu", "cuda"):
            raise OptionError(f"device {device!r} is not known", "Known: auto, cpu, cuda.")
        return device

    def _dtype(self) -> DType:
        """What was asked for, else what the config says, else what most of the weights are stored in."""
        if self._options.dtype != "auto":
            return cast(DType, self._options.dtype)
        declared = str(self._config.get("dtype") or self._config.get("torch_dtype") or "").removeprefix("torch.")
        if declared in COMPUTE_DTYPES:
            return cast(DType, declared)
        stored = Counter(i.dtype for i in self._checkpoint.tensors.values() if i.dtype in COMPUTE_DTYPES)
        return cast(DType, stored.most_common(1)[0][0]) if stored else "bfloat16"

    def _schemes(self, model: ModelConfig, dtype: str) -> tuple[SchemeUse, ...]:
        quant_config = self._config.get("quantization_config") or {}
        grouped: dict[str, list[tuple[str, dict[str, TensorInfo], Offer[Any]]]] = defaultdict(list)
        for path, parts in modules_of(self._checkpoint.tensors, unused_tensors(model)).items():
            if is_matrix(parts):
                matrix = {part: info for part, info in parts.items() if part != "bias"}
                offer = self._choose("scheme", self._catalog.scheme_of(matrix, quant_config, path))
                grouped[offer.item.name].append((path, matrix, offer))
        return tuple(
            SchemeUse(
                name=name,
                distribution=held[0][2].distribution,
                classes=tuple(dict.fromkeys(path.rpartition(".")[2] for path, _, _ in held)),
                stored=tuple(sorted({info.dtype for _, parts, _ in held for info in parts.values()})),
                count=len(held),
                nbytes=sum(offer.item.nbytes(parts, dtype) for _, parts, offer in held),
            )
            for name, held in grouped.items()
        )

    def _attention(self, needs: list[AttentionNeed]) -> tuple[tuple[AttentionUse, ...], int]:
        if not needs:
            raise CheckpointError("the model has no attention layers", "Its config.json is not one inferno can run.")
        layers: dict[AttentionNeed, list[int]] = defaultdict(list)
        for layer, need in enumerate(needs):
            layers[need].append(layer)
        chosen = {
            need: self._choose("attention", self._catalog.attention(need, self._options.attention_backend))
            for need in layers
        }
        block_size = self._options.block_size or max(offer.item.block_size for offer in chosen.values())
        return tuple(
            AttentionUse(
                name=offer.item.name, distribution=offer.distribution, need=need, layers=tuple(layers[need]),
                cache=dict(offer.item.cache(need, block_size)),
            )  # fmt: skip
            for need, offer in chosen.items()
        ), block_size

    def _isq(self, name: str) -> None:
        offer = self._catalog.scheme(name)
        if offer.item.pack is None:
            raise OptionError(f"scheme {name!r} cannot quantize while loading", "Choose one that packs.")
        self._used("in-situ scheme", offer)

    def _memory_limit(self, device: str) -> int:
        options, total = self._options, memory.device_total(device)
        if options.gpu_memory_utilization is not None:
            if device == "cpu":
                raise OptionError("gpu_memory_utilization on the CPU", "Use --memory, with a size or a share.")
            if not 0 < options.gpu_memory_utilization <= 1:
                raise OptionError(f"gpu_memory_utilization {options.gpu_memory_utilization}", "Between 0 and 1.")
            return int(total * options.gpu_memory_utilization)
        return memory.parse(options.memory or DEFAULT_MEMORY, total)

    def _fixed_memory(self, schemes: tuple[SchemeUse, ...], dtype: str, model: ModelConfig) -> list[MemoryItem]:
        modules = modules_of(self._checkpoint.tensors, unused_tensors(model)).values()
        vectors = sum(
            math.prod(i.shape) * DTYPE_BYTES[dtype]
            for parts in modules for part, i in parts.items() if part == "bias" or not is_matrix(parts)
        )  # fmt: skip
        weights = sum(s.nbytes for s in schemes) + vectors
        if self._options.isq is not None:
            self._notes.append(f"memory is planned for the weights before {self._options.isq}: it will be less")
        tokens, rows = self._options.max_num_batched_tokens, self._options.max_num_seqs
        hidden, inner = (int(self._config.get(k) or 0) for k in ("hidden_size", "intermediate_size"))
        activations = tokens * (8 * hidden + 3 * inner) * DTYPE_BYTES[dtype]
        logits = rows * model.vocab_size * 4 * 3
        runtime = 512 * memory.UNITS["MI"]
        return [
            MemoryItem("weights", weights, f"{len(self._checkpoint.tensors)} tensors as {dtype}"),
            MemoryItem("activations", activations, f"{tokens} tokens in one step"),
            MemoryItem("logits and sampling", logits, f"{rows} rows of {model.vocab_size}"),
            MemoryItem("runtime", runtime, "torch, the interpreter, attention scratch"),
        ]

    def _size_cache(
        self, model: ModelConfig, attention: tuple[AttentionUse, ...], block_size: int, limit: int,
        items: list[MemoryItem],
    ) -> tuple[int, int]:  # fmt: skip
        """The longest context and the number of blocks: what is left of the limit, but no more than could be used."""
        options, longest = self._options, model.max_position_embeddings
        if options.max_model_len is not None and options.max_model_len > longest:
            raise OptionError(f"max_model_len {options.max_model_len} is beyond the model's {longest}", "Lower it.")
        wanted = options.max_model_len or longest
        fixed = sum(i.nbytes for i in items)
        per_block = sum(_block_bytes(use) for use in attention)
        fits = max(0, limit - fixed) // per_block
        if fits * block_size < min(wanted, options.max_model_len or block_size):
            raise OutOfMemoryError(
                f"{memory.show(fixed)} for weights and workspace leave room for {fits * block_size} tokens of "
                f"{memory.show(per_block / block_size)} in {memory.show(limit)}; {wanted} are wanted",
                f"Raise --memory (it is {options.memory or DEFAULT_MEMORY}), or lower --max-model-len, --max-num-seqs or "
                "--max-num-batched-tokens.",
            )
        if fits * block_size < wanted:
            self._notes.append(f"context lowered from {wanted} to {fits * block_size} tokens: that is what fits")
            wanted = fits * block_size
        blocks = min(fits, options.max_num_seqs * -(-wanted // block_size))
        why = f"{blocks} blocks of {block_size} tokens, {memory.show(per_block / block_size)} per token"
        items.append(MemoryItem("KV cache", blocks * per_block, why))
        return wanted, blocks


def _model_config(architecture: Architecture, config: Mapping[str, Any]) -> ModelConfig:
    try:
        model = architecture.config(config)
    except (KeyError, TypeError, ValueError) as error:  # a plugin less careful than `read_config`
        raise CheckpointError(f"{architecture.name} cannot read config.json: {error!r}", "Check the file.") from error
    if not isinstance(model, ModelConfig):
        raise UnsupportedError(
            f"{architecture.name}: its config lacks attributes of contracts.ModelConfig", "Upgrade the plugin."
        )
    return model


def unused_tensors(model: ModelConfig) -> tuple[str, ...]:
    return tuple(getattr(model, "unused_tensors", ()))


def _block_bytes(use: AttentionUse) -> int:
    return len(use.layers) * sum(math.prod(t.shape) * DTYPE_BYTES[t.dtype] for t in use.cache.values())


_converter = make_converter()


def plan_to_json(plan: Plan) -> str:
    """The plan as an indented JSON document."""
    import json

    return json.dumps(_converter.unstructure(plan), indent=2)


def plan_from_json(text: str | bytes) -> Plan:
    """The plan a document holds. Raises OptionError when it holds none."""
    try:
        return _converter.loads(text.encode() if isinstance(text, str) else text, Plan)
    except (cattrs.BaseValidationError, ValueError, KeyError, TypeError) as error:
        raise OptionError(f"this is no plan: {error}", "Write it anew with `inferno explain REF --lock`.") from error
