"""Sizes the cache again, once loading has measured the memory of everything else."""

from __future__ import annotations

from attrs import evolve

from inferno import host
from inferno.errors import OutOfMemoryError
from inferno.plan.cache_groups import CacheGroupPlan
from inferno.plan.cache_size import CacheSizes, describe
from inferno.plan.measured_use import Measured
from inferno.plan.plan import MemoryItem, Plan


def trial_lengths(plan: Plan) -> list[int]:
    """Return the prompt lengths of a step with the most tokens and sequences: first as long as
    possible, then short."""
    lengths: list[int] = []
    budget, longest = plan.max_num_batched_tokens, plan.max_model_len - 1  # one is for the output
    for others in reversed(range(plan.max_num_seqs)):
        lengths.append(min(longest, budget - others))
        budget -= lengths[-1]
    return [length for length in lengths if length > 0]


def trial_plan(plan: Plan) -> Plan:
    """Return the plan with a cache for `trial_lengths` only, or the planned one if it is smaller.
    The scheduler leaves each sequence a block to grow into."""
    lengths = trial_lengths(plan)
    blocks = sum(-(-length // plan.block_size) for length in lengths) + len(lengths)

    def small(group: CacheGroupPlan) -> CacheGroupPlan:
        return evolve(group, num_blocks=min(blocks, group.num_blocks), num_snapshots=0)

    return evolve(plan, groups=tuple(small(group) for group in plan.groups))


def with_measured(plan: Plan, measured: Measured) -> Plan:
    """Return the plan with the cache that fits beside what was measured. Raises OutOfMemoryError if
    the longest context does not: callers were promised it, so it is never lowered here."""
    limit = min(plan.memory_limit, measured.free)
    # The trial verified no drafts, so what they take is still what was planned.
    drafts = sum(i.nbytes for i in plan.memory if i.name in ("draft logits", "draft activations"))
    sizes = CacheSizes(
        plan.attention,
        plan.states,
        plan.block_size,
        plan.max_num_seqs,
        plan.max_num_batched_tokens,
        room=max(0, limit - measured.used - measured.captured - drafts),
        num_drafts=0 if plan.speculation is None else plan.speculation.num_drafts,
    )
    reason = (
        f"the weights and a step of {plan.max_num_batched_tokens} tokens take "
        f"{host.format_bytes(measured.used + drafts)} on {plan.device}, where "
        f"{host.format_bytes(plan.fixed_bytes)} were planned; of {host.format_bytes(limit)} this "
        "leaves "
    )
    if sizes.state_bytes() > sizes.room:
        raise OutOfMemoryError(
            f"{reason}{host.format_bytes(sizes.room)} for states of "
            f"{host.format_bytes(sizes.state_bytes())}",
            "Lower --max-num-seqs or --max-num-batched-tokens, or raise --memory.",
        )
    groups = sizes.choose(plan.max_model_len)
    tokens = groups[0].num_blocks * plan.block_size
    if tokens < plan.max_model_len:
        lower = f"--max-model-len to {tokens}, or " if tokens > 1 else ""
        raise OutOfMemoryError(
            f"{reason}room for {tokens} tokens, and max_model_len is {plan.max_model_len}",
            f"Lower {lower}--max-num-batched-tokens or --max-num-seqs, or raise --memory.",
        )
    summary = plan.memory[-1].why if plan.whole_prompts else describe(groups)
    cache = MemoryItem("KV cache", sum(group.nbytes for group in groups), summary)
    return evolve(plan, groups=groups, memory=(*plan.memory[:-1], cache), measured=measured)
