"""The memory plan: what is needed besides the cache, and how large the cache may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from inferno import host
from inferno.contracts import DTYPE_BYTES, Checkpoint, Device, ModelConfig
from inferno.errors import OptionError, OutOfMemoryError
from inferno.plan.cache_groups import CacheGroupPlan, StateUse
from inferno.plan.cache_size import CacheSizes, describe
from inferno.plan.decided import Decided
from inferno.plan.encoders import longest_prompt
from inferno.plan.host_use import HostExpertsUse
from inferno.plan.options import Options
from inferno.plan.plan import AttentionUse, MemoryItem
from inferno.plan.schemes import Matrices

CPU_PERCENT, GPU_PERCENT = 70, 90
"""The default limit: of a CPU's total memory, which others use as well, or of what is free on
another device."""
RUNTIME_BYTES = 448 * host.UNITS["MI"]
"""Resident memory besides weights and cache: measured at 265 MiB after a tiny model's first
responses (torch 2.13, Linux x86-64); the rest is for thread stacks and the scratch of large
steps."""


def memory_limit(options: Options, device: Device, *, elsewhere: bool = False) -> Decided[int]:
    """Return the bytes that the engine may use. `elsewhere`: the plan is for another machine, so
    it may have more than `device`. Raises OptionError, OutOfMemoryError."""
    if (share := options.gpu_memory_utilization) is not None:
        if device.kind == "cpu":
            raise OptionError(
                "gpu_memory_utilization does not apply to CPUs", "Use --memory instead."
            )
        if not 0 < share <= 1:
            raise OptionError(
                f"gpu_memory_utilization is {share}", "It must be greater than 0 and at most 1."
            )
        limit = int(device.total * share)
    elif options.memory is not None:
        limit = host.parse_memory(options.memory, device.total)
    elif device.kind == "cpu":
        return Decided(device.total * CPU_PERCENT // 100)
    else:
        return Decided(device.free * GPU_PERCENT // 100)
    if limit > device.total:
        exceeds = (
            f"--memory {options.memory} exceeds the {host.format_bytes(device.total)} of {device}"
        )
        if elsewhere:
            return Decided(limit, notes=(f"{exceeds}: the plan is for another machine",))
        raise OutOfMemoryError(
            exceeds, "Lower it; `inferno explain` plans for a machine that has more."
        )
    if elsewhere:
        return Decided(limit)
    if device.kind != "cpu" and limit > device.free:
        raise OutOfMemoryError(
            f"{host.format_bytes(limit)} were asked for, but {host.format_bytes(device.free)} of "
            f"{host.format_bytes(device.total)} are free on {device}",
            "Lower --memory or --gpu-memory-utilization, or stop what else uses the device.",
        )
    return Decided(limit)


def fixed_memory(
    matrices: Matrices,
    checkpoint: Checkpoint,
    model: ModelConfig,
    dtype: str,
    options: Options,
    hosted: HostExpertsUse | None = None,
) -> tuple[MemoryItem, ...]:
    """Return the memory of everything but the cache, without weights that are `hosted`."""
    tokens, rows = options.max_num_batched_tokens, options.max_num_seqs

    def size(name: str) -> int:
        """Return a size as the architecture read it: multimodal models store their text model's
        sizes elsewhere in `config.json`."""
        value = getattr(model, name, checkpoint.config.get(name))
        return value if isinstance(value, int) else 0

    hidden, inner = size("hidden_size"), size("intermediate_size")
    picked, expert = size("num_experts_per_tok"), size("moe_intermediate_size") or inner
    widest = max(3 * inner, picked * (3 * expert + 2 * hidden))  # a row for each selected expert
    weights = matrices.nbytes + matrices.num_plain * DTYPE_BYTES[dtype]
    weights -= 0 if hosted is None else hosted.nbytes
    buffers = 0 if hosted is None or hosted.fetch is None else hosted.fetch.buffer_bytes
    fetched = MemoryItem("fetched experts", buffers, "one is copied while one is multiplied")
    activations = tokens * (8 * hidden + widest) * DTYPE_BYTES[dtype]
    others = (options.dp - 1) * tokens * (3 * hidden + picked * (3 * expert + 2 * hidden))
    others *= DTYPE_BYTES[dtype] if options.deals else 0
    exchanged = MemoryItem(
        "tokens of other engines", others, "all of them, if all need the experts of this one"
    )
    logits = rows * model.vocab_size * 4 * 3
    return (
        MemoryItem("weights", weights, f"{len(checkpoint.tensors)} tensors as {dtype}"),
        *((fetched,) if buffers else ()),
        MemoryItem("activations", activations, f"{tokens} tokens in one step"),
        *((exchanged,) if others else ()),
        MemoryItem("logits and sampling", logits, f"{rows} rows of {model.vocab_size}"),
        MemoryItem("runtime", RUNTIME_BYTES, "torch, the interpreter, attention scratch"),
    )


@frozen
class CacheSize:
    """The size of the cache."""

    max_model_len: int
    groups: tuple[CacheGroupPlan, ...]
    memory: MemoryItem


def size_cache(
    options: Options,
    model: ModelConfig,
    attention: Sequence[AttentionUse],
    states: Sequence[StateUse],
    block_size: int,
    *,
    limit: int,
    fixed: int,
    declared: int | None = None,
    num_drafts: int = 0,
    count: Callable[[Sequence[int]], int] = len,
) -> Decided[CacheSize]:
    """Size the cache to fit into `limit` alongside `fixed` bytes, but no larger than could be used.
    `declared`: the checkpoint's limit of a string (`TextAssets.max_seq_length`). `num_drafts`: the
    most of a sequence in one step. `count`: see `CacheSizes`.
    Raises OptionError, OutOfMemoryError."""
    longest = model.max_position_embeddings
    if options.max_model_len is not None and options.max_model_len > longest:
        raise OptionError(
            f"max_model_len {options.max_model_len} exceeds the model's {longest}", "Lower it."
        )
    encoder = any(use.need.bidirectional for use in attention)
    usual = Decided(options.max_model_len or longest)
    prompt = longest_prompt(options, longest, declared) if encoder else usual
    wanted = prompt.value
    sizes = CacheSizes(
        attention,
        states,
        block_size,
        options.max_num_seqs,
        options.max_num_batched_tokens * options.pp,
        room=max(0, limit - fixed),
        num_drafts=num_drafts,
        count=count,
    )
    fewer = f"; or use fewer than {options.dp} engines: --dp." if options.dp > 1 else "."
    drafts = " and of drafts" if num_drafts else ""
    if sizes.state_bytes() > sizes.room:
        raise OutOfMemoryError(
            f"{host.format_bytes(fixed)} for weights and workspace leave "
            f"{host.format_bytes(sizes.room)} of {host.format_bytes(limit)}; the states of "
            f"{options.max_num_seqs} sequences{drafts} take "
            f"{host.format_bytes(sizes.state_bytes())}",
            "Lower --max-num-seqs"
            + (" or --num-speculative-tokens" if num_drafts else "")
            + ", or raise --memory"
            + fewer,
        )
    groups = sizes.choose(wanted)
    tokens = groups[0].num_blocks * block_size
    if tokens < min(wanted, options.max_model_len or block_size):
        raise OutOfMemoryError(
            f"{host.format_bytes(fixed)} for weights and workspace leave room for {tokens} tokens "
            f"of {host.format_bytes(sizes.per_token())} in {host.format_bytes(limit)}; "
            f"{wanted} are needed",
            "Raise --memory, or lower --max-model-len, --max-num-seqs or --max-num-batched-tokens"
            + fewer,
        )
    notes = prompt.notes
    if tokens < wanted:
        notes += (f"context lowered from {wanted} to {tokens} tokens to fit into memory",)
    summary = "none: prompts are computed whole" if encoder else describe(groups)
    memory = MemoryItem("KV cache", sum(group.nbytes for group in groups), summary)
    return Decided(CacheSize(min(wanted, tokens), groups, memory), notes=notes)
