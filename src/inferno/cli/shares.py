"""Rows of a plan about the ranks that share each layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from inferno import host
from inferno.contracts import COLLECTIVES

if TYPE_CHECKING:
    from inferno.plan import Plan


def rank_rows(plan: Plan, origin: str) -> Iterable[tuple[str, str, str]]:
    """Return what each rank has, what every one has whole and why, and what they exchange. `origin`
    is the distribution that starts them."""
    if (ranks := plan.ranks) is None:
        return
    weights = plan.memory[0].nbytes / max(1, ranks.weight_bytes)
    yield "ranks", f"{ranks.count}, started by {ranks.executor}; sizes below are of one", origin
    shared = f"{weights:.0%} of the weights, {_attention(plan)}"
    if ranks.shard.unit > 1:
        shared += f"; inner widths in multiples of {ranks.shard.unit}"
    yield "each has", shared, ""
    if ranks.cores:
        bound = "; ".join(f"rank {i}: {_spans(own)}" for i, own in enumerate(ranks.cores))
        yield "cores", bound, ""
    for whole in ranks.whole:
        size = host.format_bytes(whole.nbytes)
        yield "whole", f"{whole.modules}, {size} on every rank: {whole.why}", ""
    wire = host.format_bytes(ranks.wire_bytes)
    exchanged = f"{ranks.num_sums} sums in a step, {wire} received per token by each"
    by = next((use for use in plan.kernels if use.op == COLLECTIVES), None)
    if by is None:
        yield "exchange", f"{exchanged}, through gloo", ""
    else:
        yield "exchange", f"{exchanged}, through memory of {by.name}", by.distribution


def _attention(plan: Plan) -> str:
    assert plan.ranks is not None, "asked for a plan with ranks"
    if not plan.ranks.shard.attention:
        return "all heads"
    needs = dict.fromkeys((use.need.num_heads, use.need.num_kv_heads) for use in plan.attention)
    return " and ".join(f"{heads} query heads over {kv_heads}" for heads, kv_heads in needs)


def _spans(cores: Sequence[int]) -> str:
    """Return numbers as ranges: `0-3 8`."""
    found = list[list[int]]()
    for core in cores:
        if found and found[-1][-1] == core - 1:
            found[-1][1:] = [core]
        else:
            found.append([core])
    return " ".join("-".join(map(str, each)) for each in found)
