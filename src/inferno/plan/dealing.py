"""Deals routed experts out to engines, each of which has all other weights."""

from __future__ import annotations

from collections.abc import Container, Mapping

from inferno.contracts import DTYPE_BYTES, Architecture, Device, HeldMatrix, ModelConfig, Shard
from inferno.errors import UnsupportedError
from inferno.plan.dealt_use import DealtUse
from inferno.plan.options import Options
from inferno.plan.rank_experts import Dealt
from inferno.plan.ranks import Division

PAIR_BYTES = 12
"""Bytes that say which expert a token is for, and with what weight."""


def check_dealing(options: Options, device: Device, name: str, architecture: Architecture) -> None:
    """Raise UnsupportedError for what engines that share experts cannot do yet. `name` is the
    model's architecture."""
    if not options.deals:
        return
    flag = f"--dp {options.dp} --ep"
    if device.kind != "cpu":
        raise UnsupportedError(
            f"{flag}: engines that share experts compute on CPUs only, not on {device}",
            "Leave --ep out: every engine has all experts. Or add --device cpu.",
        )
    if not architecture.divides:
        raise UnsupportedError(
            f"{flag}: {name} does not say how it is divided, so its experts cannot be dealt out",
            "Leave --ep out: every engine has all experts.",
        )
    given: Mapping[str, object] = {
        "--pp": options.pp > 1,
        "--lora": options.loras,
        "--max-loras": options.max_loras is not None and not options.loras,
        "--experts-on-host": options.experts_on_host,
        "--sandbox": options.sandbox,
        "--prefill-for": options.prefill_for,
        "--decode-with": options.decode_with,
    }
    if names := [name for name, value in given.items() if value]:
        raise UnsupportedError(
            f"{flag} cannot be combined with {', '.join(names)} yet",
            "Leave out one of them; without --ep every engine has all experts.",
        )


def divide_engines(
    held: Mapping[str, HeldMatrix], engines: int, further: Container[str] = ()
) -> Division:
    """Deal the experts among these matrices out to engines, except those of `further` modules:
    layers of multi-token prediction are whole, because engines propose drafts independently. Raises
    UnsupportedError if there are no experts, or fewer than engines."""
    shard = Shard(ranks=engines, attention=False, states=False, experts=True, own_tokens=True)
    dealt = Dealt.of(shard, {path: held[path] for path in held if path not in further})
    return Division(shard=shard, divides={}, spec=None, held=held, dealt=dealt)


def dealt_use(
    division: Division, weights: tuple[int, ...], config: ModelConfig, dtype: str
) -> DealtUse | None:
    """Return what the plan says of dealt experts; None if they are not dealt out to engines.
    `weights` are the bytes of each engine's weights."""
    if not division.shard.own_tokens:
        return None
    deal, ranks = division.dealt, division.shard.ranks
    hidden: int = getattr(config, "hidden_size", 0)
    chosen: int = getattr(config, "num_experts_per_tok", 0) or 0
    given = hidden * DTYPE_BYTES[dtype] + chosen * PAIR_BYTES
    summed = hidden * DTYPE_BYTES[dtype] * ranks
    mixtures = len(deal.counts)
    return DealtUse(
        shard=division.shard,
        experts=deal.uses(division.held),
        weight_bytes=sum(each.nbytes for each in division.held.values()),
        weights=weights,
        mixtures=mixtures,
        wire_bytes=mixtures * (ranks - 1) * (given + summed),
    )
