"""From a reference and options to a plan, or to every refusal with its remedy. Reads headers only,
imports no torch."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from inferno import host
from inferno.catalog import ANY, Catalog, Choice, Offer, Refusal, load_catalog
from inferno.catalog.hints import install_hint
from inferno.contracts import (
    COMPUTE_DTYPES,
    DTYPE_BYTES,
    EXPERT_OPS,
    GROUPED,
    LINEAR,
    OPS,
    Architecture,
    AttentionNeed,
    AttentionSpec,
    CacheDType,
    Checkpoint,
    DType,
    FetchOptions,
    KernelNeed,
    ModelConfig,
    QuantScheme,
    TensorInfo,
)
from inferno.errors import CheckpointError, OptionError, OutOfMemoryError, UnsupportedError
from inferno.plan.cache_groups import CacheGroupPlan, StateUse, state_uses
from inferno.plan.cache_size import CacheSizes, describe
from inferno.plan.stored import architecture_name, modules_of, unused_tensors
from inferno.plan.values import (
    AttentionUse,
    KernelUse,
    MemoryItem,
    Options,
    Plan,
    SchemeUse,
    adapted,
)

DEFAULT_MEMORY = "70%"
SHARED_FROM = 64 * host.UNITS["MI"]
"""Bytes of weights from which a step is worth more than one thread."""
STATE_BLOCK_SIZE = 64
"""Tokens per block of a model without attention, where blocks are only names of prefixes."""


def resolve(ref: str, options: Options | None = None, catalog: Catalog | None = None) -> Plan:
    """Decide everything. Fetches the model if its source must. Raises an InfernoError naming every
    refusal."""
    options = options or Options()
    catalog = catalog or load_catalog(disable=options.disable, only=options.only)
    source = catalog.source_of(ref)
    fetch = FetchOptions(
        revision=options.revision, offline=options.offline, progress=options.progress
    )
    path = source.item.fetch(ref, fetch)
    found, checkpoint = catalog.open(path)
    try:
        return _Resolver(catalog, options, checkpoint).plan(ref, path, source.offer, found.offer)
    finally:
        checkpoint.close()


class _Resolver:
    """One resolution: the catalog is asked, the reasons are kept."""

    def __init__(self, catalog: Catalog, options: Options, checkpoint: Checkpoint) -> None:
        self._catalog, self._options, self._checkpoint = catalog, options, checkpoint
        self._config = checkpoint.config
        self._considered: list[Refusal] = []
        self._distributions: dict[str, str] = {}
        self._notes: list[str] = []
        self._plain: list[TensorInfo] = []
        """Stored tensors that no scheme holds: norms, biases, a router's corrections."""

    def plan(self, ref: str, path: Path, source: Offer[Any], found: Offer[Any]) -> Plan:
        options = self._options
        self._used("source", source)
        self._used("format", found)
        architecture = self._choose(
            "architecture", self._catalog.architecture(architecture_name(self._config))
        )
        self._checkpoint = adapted(self._checkpoint, architecture.item)
        model = _model_config(architecture.item, self._config)
        if architecture.item.note:
            self._notes.append(architecture.item.note)
        if architecture.item.name == ANY and (
            hint := install_hint(architecture_name(self._config))
        ):
            self._notes.append(
                f"a plugin made for {architecture_name(self._config)} is not installed: {hint}"
            )
        device = self._device()
        dtype = self._dtype()
        schemes = self._schemes(model, dtype)
        cache_dtype = cast(CacheDType, options.kv_cache_dtype)
        specs = dict(enumerate(model.cache_specs()))
        states = state_uses(specs, dtype)
        attention, block_size = self._attention(
            {
                layer: AttentionNeed.of(spec, dtype=dtype, device=device, cache_dtype=cache_dtype)
                for layer, spec in specs.items()
                if isinstance(spec, AttentionSpec)
            }
        )
        policy = self._choose("cache policy", self._catalog.cache_policy(options.cache_policy))
        if options.isq is not None:
            self._isq(options.isq)
        kernels = self._kernels(schemes, model, dtype, device)
        limit = self._memory_limit(device)
        items = self._fixed_memory(schemes, dtype, model)
        max_model_len, groups = self._size_cache(model, attention, states, block_size, limit, items)
        return Plan(
            ref=ref,
            path=str(path),
            model_id=options.served_model_name or ref,
            source=source.item.name,
            architecture=architecture_name(self._config),
            format=found.item.name,
            config=dict(self._config),
            schemes=schemes,
            isq=options.isq,
            kernels=kernels,
            attention=attention,
            states=states,
            cache_policy=policy.item.name,
            executor="single process",
            dtype=dtype,
            device=device,
            threads=self._threads(schemes),
            seed=options.seed,
            vocab_size=model.vocab_size,
            max_model_len=max_model_len,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            block_size=block_size,
            groups=groups,
            memory_limit=limit,
            memory=tuple(items),
            distributions=self._distributions,
            considered=tuple(self._considered),
            notes=tuple(self._notes),
            disable=options.disable,
            only=options.only,
        )

    def _used(self, what: str, offer: Offer[Any]) -> None:
        versions = {p.distribution: p.version for p in self._catalog.plugins}
        self._distributions[f"{what} {offer.item.name}"] = (
            f"{offer.distribution} {versions[offer.distribution]}"
        )

    def _choose(self, what: str, choice: Choice[Any]) -> Offer[Any]:
        self._considered += [r for r in choice.refusals if r not in self._considered]
        self._used(what, choice.offer)
        offer: Offer[Any] = choice.offer
        return offer

    def _device(self) -> str:
        device = self._options.device
        if device == "auto":
            return "cuda" if host.has_gpu() else "cpu"
        if device.partition(":")[0] not in ("cpu", "cuda"):
            raise OptionError(f"device {device!r} is not known", "Known: auto, cpu, cuda.")
        return device

    def _dtype(self) -> DType:
        """What was asked for, else what the config says, else what most of the weights are stored
        in."""
        if self._options.dtype != "auto":
            return cast(DType, self._options.dtype)
        declared = str(
            self._config.get("dtype") or self._config.get("torch_dtype") or ""
        ).removeprefix("torch.")
        if declared in COMPUTE_DTYPES:
            return declared
        stored = Counter(
            i.dtype for i in self._checkpoint.tensors.values() if i.dtype in COMPUTE_DTYPES
        )
        return stored.most_common(1)[0][0] if stored else "bfloat16"

    def _schemes(self, model: ModelConfig, dtype: str) -> tuple[SchemeUse, ...]:
        quant_config = self._config.get("quantization_config") or {}
        grouped: dict[str, list[tuple[str, dict[str, TensorInfo], Offer[Any]]]] = defaultdict(list)
        for path, parts in modules_of(self._checkpoint.tensors, unused_tensors(model)).items():
            matrix = {part: info for part, info in parts.items() if part != "bias"}
            if all(
                info.dtype in COMPUTE_DTYPES for info in matrix.values()
            ):  # then only a "weight" can be one
                matrix = {
                    part: info
                    for part, info in matrix.items()
                    if part == "weight" and len(info.shape) == 2
                }
            self._plain += [
                info for part, info in parts.items() if part not in matrix
            ]  # read as they are, by no scheme
            if not matrix:
                continue
            offer = self._choose("scheme", self._catalog.scheme_of(matrix, quant_config, path))
            grouped[offer.item.name].append((path, matrix, offer))
        return tuple(
            SchemeUse(
                name=name,
                distribution=held[0][2].distribution,
                classes=tuple(dict.fromkeys(path.rpartition(".")[2] for path, _, _ in held)),
                stored=tuple(
                    sorted({info.dtype for _, parts, _ in held for info in parts.values()})
                ),
                count=len(held),
                nbytes=sum(offer.item.nbytes(parts, dtype) for _, parts, offer in held),
            )
            for name, held in grouped.items()
        )

    def _attention(
        self, needs: Mapping[int, AttentionNeed]
    ) -> tuple[tuple[AttentionUse, ...], int]:
        """The backends of the layers with attention, and the tokens of a block."""
        options, layers = self._options, defaultdict[AttentionNeed, list[int]](list)
        for layer, need in needs.items():
            layers[need].append(layer)
        chosen = {
            need: self._choose(
                "attention",
                self._catalog.attention(need, options.attention_backend, options.block_size),
            )
            for need in layers
        }
        block_size = options.block_size or max(
            (offer.item.block_size for offer in chosen.values()), default=STATE_BLOCK_SIZE
        )
        return tuple(
            AttentionUse(
                name=offer.item.name,
                distribution=offer.distribution,
                need=need,
                layers=tuple(layers[need]),
                cache=dict(offer.item.cache(need, block_size)),
            )
            for need, offer in chosen.items()
        ), block_size

    def _kernels(
        self, schemes: tuple[SchemeUse, ...], model: ModelConfig, dtype: DType, device: str
    ) -> tuple[KernelUse, ...]:
        """Who computes what: products for each layout the weights come in, and the ops between."""
        names = {use.name for use in schemes} | (
            {self._options.isq} if self._options.isq else set()
        )
        layouts = sorted(
            {self._catalog.named(QuantScheme, name).item.layout or dtype for name in names}
            | {dtype}
        )
        products, ops = (
            ((LINEAR, GROUPED), OPS + EXPERT_OPS)
            if getattr(model, "num_experts", 0)
            else ((LINEAR,), OPS)
        )
        needs = [
            KernelNeed(op=op, layout=layout, dtype=dtype, device=device)
            for op in products
            for layout in layouts
        ]
        needs += [KernelNeed(op=op, dtype=dtype, device=device) for op in ops]
        chosen = []
        for need in needs:
            offer, refusals = self._catalog.kernel(need)
            self._considered += [r for r in refusals if r not in self._considered]
            if offer is not None:
                self._used("kernels", offer)
                chosen.append(
                    KernelUse(
                        op=need.op,
                        layout=need.layout,
                        name=offer.item.name,
                        distribution=offer.distribution,
                    )
                )
        if device == "cpu" and not any(use.op == LINEAR for use in chosen):
            self._notes.append(
                "no native kernels: torch multiplies the matrices, slower (pip install inferno-cpu)"
            )
        return tuple(chosen)

    def _isq(self, name: str) -> None:
        offer = self._catalog.named(QuantScheme, name)
        if offer.item.pack is None:
            raise OptionError(
                f"scheme {name!r} cannot quantize while loading", "Choose one that packs."
            )
        self._used("in-situ scheme", offer)

    def _threads(self, schemes: tuple[SchemeUse, ...]) -> int:
        """Handing a part of a step to another core costs microseconds: a tiny model's whole layer
        takes no longer."""
        if self._options.threads is not None:
            return self._options.threads
        return 1 if sum(s.nbytes for s in schemes) < SHARED_FROM else host.usable_cores()

    def _memory_limit(self, device: str) -> int:
        options, total = self._options, host.device_total(device)
        if options.gpu_memory_utilization is not None:
            if device == "cpu":
                raise OptionError(
                    "gpu_memory_utilization cannot be honoured on the CPU", "Use --memory."
                )
            if not 0 < options.gpu_memory_utilization <= 1:
                raise OptionError(
                    f"gpu_memory_utilization {options.gpu_memory_utilization}", "Between 0 and 1."
                )
            return int(total * options.gpu_memory_utilization)
        return host.parse_memory(options.memory or DEFAULT_MEMORY, total)

    def _fixed_memory(
        self, schemes: tuple[SchemeUse, ...], dtype: str, model: ModelConfig
    ) -> list[MemoryItem]:
        weights = (
            sum(s.nbytes for s in schemes)
            + sum(math.prod(i.shape) for i in self._plain) * DTYPE_BYTES[dtype]
        )
        if self._options.isq is not None:
            self._notes.append(
                f"memory is planned for the weights before {self._options.isq}: it will be less"
            )
        tokens, rows = self._options.max_num_batched_tokens, self._options.max_num_seqs
        sizes = ("hidden_size", "intermediate_size", "moe_intermediate_size", "num_experts_per_tok")
        hidden, inner, expert, picked = (self._number(model, name) for name in sizes)
        widest = max(
            3 * inner, picked * (3 * (expert or inner) + 2 * hidden)
        )  # each picked expert has a row of its own
        activations = tokens * (8 * hidden + widest) * DTYPE_BYTES[dtype]
        logits = rows * model.vocab_size * 4 * 3
        runtime = 448 * host.UNITS["MI"]
        return [
            MemoryItem("weights", weights, f"{len(self._checkpoint.tensors)} tensors as {dtype}"),
            MemoryItem("activations", activations, f"{tokens} tokens in one step"),
            MemoryItem("logits and sampling", logits, f"{rows} rows of {model.vocab_size}"),
            MemoryItem("runtime", runtime, "torch, the interpreter, attention scratch"),
        ]

    def _number(self, model: ModelConfig, name: str) -> int:
        """As the architecture read it: a model that also sees has its language model's sizes
        elsewhere in `config.json`."""
        number = getattr(model, name, self._config.get(name))
        return number if isinstance(number, int) else 0

    def _size_cache(
        self,
        model: ModelConfig,
        attention: tuple[AttentionUse, ...],
        states: tuple[StateUse, ...],
        block_size: int,
        limit: int,
        items: list[MemoryItem],
    ) -> tuple[int, tuple[CacheGroupPlan, ...]]:
        """The longest context and the cache groups: what is left of the limit, but no more than
        could be used."""
        options, longest = self._options, model.max_position_embeddings
        if options.max_model_len is not None and options.max_model_len > longest:
            raise OptionError(
                f"max_model_len {options.max_model_len} is beyond the model's {longest}",
                "Lower it.",
            )
        wanted = options.max_model_len or longest
        fixed = sum(i.nbytes for i in items)
        sizes = CacheSizes(
            attention,
            states,
            block_size,
            options.max_num_seqs,
            options.max_num_batched_tokens,
            room=max(0, limit - fixed),
        )
        if sizes.state_bytes() > sizes.room:
            raise OutOfMemoryError(
                f"{host.format_bytes(fixed)} for weights and workspace leave "
                f"{host.format_bytes(sizes.room)} of {host.format_bytes(limit)}; the states of "
                f"{options.max_num_seqs} sequences take {host.format_bytes(sizes.state_bytes())}",
                "Lower --max-num-seqs, or raise --memory (it is "
                f"{options.memory or DEFAULT_MEMORY}).",
            )
        groups = sizes.choose(wanted)
        fits = groups[0].num_blocks
        if fits * block_size < min(wanted, options.max_model_len or block_size):
            raise OutOfMemoryError(
                f"{host.format_bytes(fixed)} for weights and workspace leave room for "
                f"{fits * block_size} tokens of "
                f"{host.format_bytes(sizes.per_token())} in {host.format_bytes(limit)}; "
                f"{wanted} are wanted",
                f"Raise --memory (it is {options.memory or DEFAULT_MEMORY}), or lower "
                f"--max-model-len, --max-num-seqs or "
                "--max-num-batched-tokens.",
            )
        if fits * block_size < wanted:
            self._notes.append(
                f"context lowered from {wanted} to {fits * block_size} tokens: that is what fits"
            )
            wanted = fits * block_size
        items.append(MemoryItem("KV cache", sum(g.nbytes for g in groups), describe(groups)))
        return wanted, groups


def _model_config(architecture: Architecture, config: Mapping[str, Any]) -> ModelConfig:
    try:
        model = architecture.config(config)
    except (KeyError, TypeError, ValueError) as error:  # a plugin less careful than `read_config`
        raise CheckpointError(
            f"{architecture.name} cannot read config.json: {error!r}", "Check the file."
        ) from error
    if not isinstance(model, ModelConfig):
        raise UnsupportedError(
            f"{architecture.name}: its config lacks attributes of contracts.ModelConfig",
            "Upgrade the plugin.",
        )
    return model
