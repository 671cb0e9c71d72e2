"""Rows of a plan about the engines that share requests, the ranks that share each layer, and the
host, which may compute experts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from inferno import host

if TYPE_CHECKING:
    from inferno.plan import Plan
    from inferno.plan.dealt_use import DealtUse
    from inferno.plan.engine_use import EnginesUse
    from inferno.plan.fetch_use import FetchUse
    from inferno.plan.rank_use import ExpertUse, JoinUse, RankUse


def rank_rows(plan: Plan, origin: str) -> Iterable[tuple[str, str, str]]:
    """Return what each rank has, what every one has whole and why, and what they exchange. `origin`
    is the distribution that starts them."""
    if plan.engines is not None:
        yield from _engine_rows(plan, plan.engines)
    if plan.dealt is not None:
        yield from _dealt_rows(plan, plan.dealt)
    if (ranks := plan.ranks) is None:
        return
    weights = plan.memory[0].nbytes / max(1, ranks.weight_bytes)
    by = ranks.executor if ranks.started > 1 or ranks.join is None else _starter(ranks.join)
    yield "ranks", f"{ranks.count}, started by {by}; sizes below are of one", origin
    if ranks.join is not None:
        yield "machines", _machines(ranks, ranks.join), ranks.join.distribution
    shared = ", ".join((f"{weights:.0%} of the weights", *_heads(plan)))
    if ranks.pipeline:
        yield from _stage_rows(plan, ranks)
    if ranks.shard.unit > 1:
        shared += f"; inner widths in multiples of {ranks.shard.unit}"
    yield "each has", shared, ""
    if ranks.devices and plan.engines is None:
        kind = plan.device.kind
        yield "devices", _by_rank(f"{kind}:{number}" for number in ranks.devices), ""
    if ranks.cores and plan.engines is None:
        yield "cores", _by_rank(map(_spans, ranks.cores)), ""
    for whole in ranks.whole:
        size = host.format_bytes(whole.nbytes)
        yield "whole", f"{whole.modules}, {size} on every rank: {whole.why}", ""
    yield from _expert_rows(ranks.experts, "rank")
    for copied in ranks.copied:
        yield "copied", copied, ""
    if ranks.shard.ranks == 1:
        return
    wire = host.format_bytes(ranks.wire_bytes)
    gathers = f" and {ranks.num_gathers} results gathered" if ranks.num_gathers else ""
    exchanged = f"{ranks.num_sums} sums{gathers} in a step, {wire} received per token by each"
    exchanged += ", in all stages" if ranks.pipeline else ""
    yield _exchange_row(plan, exchanged, " over TCP" if ranks.join is not None else "")


def _dealt_rows(plan: Plan, use: DealtUse) -> Iterable[tuple[str, str, str]]:
    """Say what each of several engines has, and what they exchange."""
    share = max(use.weights) / max(1, use.weight_bytes)
    yield "each has", f"{share:.0%} of the weights: all but the experts of others", ""
    yield from _expert_rows(use.experts, "engine")
    wire = host.format_bytes(use.wire_bytes)
    exchanged = f"tokens in {use.mixtures} mixtures of a step, {wire} received per token by each"
    yield _exchange_row(plan, exchanged)


def _expert_rows(uses: Iterable[ExpertUse], whose: str) -> Iterable[tuple[str, str, str]]:
    for dealt in uses:
        fewest, most = min(dealt.counts), max(dealt.counts)
        each = f"{most}" if fewest == most else f"{fewest} or {most}"
        has = f"{each} of {sum(dealt.counts)}, {host.format_bytes(dealt.nbytes)}"
        yield "experts", f"{dealt.modules}: each {whose} has {has}, whole", ""


def _exchange_row(plan: Plan, what: str, over: str = "") -> tuple[str, str, str]:
    """Say what processes exchange, and through what."""
    from inferno.contracts import COLLECTIVES  # no command's --help imports the contracts

    used = next((use for use in plan.kernels if use.op == COLLECTIVES), None)
    if used is None:
        by = "gloo" if plan.ranks is None else plan.ranks.exchange
        return "exchange", f"{what}, through {by}{over}", ""
    return "exchange", f"{what}, through memory of {used.name}", used.distribution


def host_rows(plan: Plan) -> Iterable[tuple[str, str, str]]:
    """Return which experts the host has, what computes them there, and what goes to and fro."""
    if (use := plan.host_experts) is None:
        return
    by = dict.fromkeys(f"{k.name}{f' ({k.level})' if k.level else ''}" for k in use.kernels)
    has = f"{', '.join(use.modules)}: {use.count} of {use.of} in each of {use.layers} layers"
    has += f", {host.format_bytes(use.nbytes)}"
    has += f", computed there by {', '.join(by) or 'torch'}" if use.computes else ""
    yield "on the host", has, ", ".join(dict.fromkeys(each.distribution for each in use.kernels))
    if use.moved_bytes:
        moved = host.format_bytes(use.moved_bytes)
        yield "host link", f"{moved} to the host and back for each token, in all layers", ""
    if use.fetch is not None:
        yield "fetched", _fetched(use.fetch), ""


def _fetched(use: FetchUse) -> str:
    """Say in which steps the device fetches experts, and what was measured."""
    size = host.format_bytes(use.buffer_bytes)
    if use.from_tokens == 1:
        return f"in all steps: the device copies them into {size}"
    what = f"the device copies them into {size}, and computes them"
    if use.from_tokens is not None:
        return f"in steps of {use.from_tokens} tokens and more {what}"
    if not use.measured:
        return f"in steps of many tokens {what}; of how many, is measured at the start"
    rate = f"as measured, with {host.format_bytes(round(use.copy_rate))}/s"
    if use.chosen is None:
        return f"in no steps: the host is faster, {rate}"
    return f"in steps of {use.chosen} tokens and more {what}, {rate}"


def _stage_rows(plan: Plan, ranks: RankUse) -> Iterable[tuple[str, str, str]]:
    """Say which layers each stage has, on which ranks, and what that takes of each of them."""
    from inferno.plan import plan_of_stage

    each = ranks.shard.ranks
    for stage, use in enumerate(ranks.pipeline):
        span, first = use.span, (ranks.stages - 1 - stage) * each
        parts = ("embedding",) * span.begins + (f"layers {span.first}-{span.stop - 1}",)
        parts += ("output head",) * span.ends
        on = f"rank{'s' * (each > 1)} {_spans(range(first, first + each))}"
        weights, cache = use.weight_bytes, plan_of_stage(plan, stage).kv_bytes
        sizes = f"{host.format_bytes(weights)} of weights, {host.format_bytes(cache)} of cache"
        yield f"stage {stage + 1}", f"{', '.join(parts)} on {on}: {sizes}", ""
    passed = host.format_bytes(ranks.passed_bytes)
    over = " over TCP" if ranks.join is not None else ""
    traffic = f"{passed} per token from stage to stage, through gloo{over}"
    yield "pipeline", f"{ranks.stages} steps in flight, one in each stage; {traffic}", ""


def _by_rank(values: Iterable[str]) -> str:
    return "; ".join(f"rank {i}: {value}" for i, value in enumerate(values))


def _engine_rows(plan: Plan, engines: EnginesUse) -> Iterable[tuple[str, str, str]]:
    each = 1 if plan.ranks is None else plan.ranks.count
    has = f"{plan.threads} thread{'s' * (plan.threads > 1)}"
    has += f" in each of {each} ranks" if each > 1 else ""
    memory = host.format_bytes(each * plan.memory_limit)
    yield "engines", f"{engines.count}, each with {has} and {memory}; sizes below are of one", ""
    if engines.devices:
        kind = plan.device.kind
        named = ["; ".join(f"{kind}:{number}" for number in own) for own in engines.devices]
        yield "devices", _by_engine(named), ""
    if engines.cores:
        yield "cores", _by_engine("; ".join(map(_spans, ranks)) for ranks in engines.cores), ""


def _by_engine(values: Iterable[str]) -> str:
    return " | ".join(f"engine {i}: {value}" for i, value in enumerate(values))


def _machines(ranks: RankUse, join: JoinUse) -> str:
    """Say which machine has which ranks."""
    per = ranks.here
    runs = [_spans(range(n * per, (n + 1) * per)) for n in range(join.nodes)]
    word = "ranks" if per > 1 else "rank"
    others = "".join(f", machine {n} {word} {runs[n]}" for n in range(1, join.nodes))
    return f"{join.nodes}: this one has {word} {runs[0]}{others}; joined at {join.host}:{join.port}"


def _starter(join: JoinUse) -> str:
    return join.executor or "hand"


def how_to_join(plan: Plan) -> None:
    """Print what to run on the other machines, if somebody is to do that."""
    if plan.ranks is None or (join := plan.ranks.join) is None or join.executor:
        return
    import rich_click as click

    from inferno.cli.launched import environ
    from inferno.cli.rank_options import TOKEN

    secret = TOKEN if environ().get(TOKEN) else join.token_file
    where = f"[{join.host}]" if ":" in join.host else join.host
    click.echo(
        f"Run on {join.nodes - 1} more machine{'s' * (join.nodes > 2)}, with a copy of the model "
        f"and of {secret}:\n  inferno rank --join {where}:{join.port}",
        err=True,
    )


def _heads(plan: Plan) -> Iterable[str]:
    assert plan.ranks is not None, "asked for a plan with ranks"
    shard, needs = plan.ranks.shard, [use.need for use in plan.attention]
    if needs and not shard.attention:
        yield "all heads"
    elif needs:
        counts = dict.fromkeys((need.num_heads, need.num_kv_heads) for need in needs)
        yield " and ".join(f"{heads} query heads over {kv_heads}" for heads, kv_heads in counts)
    if plan.states:
        yield f"{plan.states[0].spec.heads} heads of states" if shard.states else "all states"


def _spans(cores: Sequence[int]) -> str:
    """Return numbers as ranges: `0-3 8`."""
    spans = list[list[int]]()
    for core in cores:
        if spans and spans[-1][-1] == core - 1:
            spans[-1][1:] = [core]
        else:
            spans.append([core])
    return " ".join("-".join(map(str, each)) for each in spans)
