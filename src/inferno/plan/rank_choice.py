"""Chooses what starts an engine's ranks."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from attrs import evolve

from inferno.catalog import Catalog
from inferno.catalog.choice import choose
from inferno.contracts import DTYPE_BYTES, Device, ModelConfig
from inferno.plan.decided import Decided
from inferno.plan.device_plan import device_numbers
from inferno.plan.joining import choose_join
from inferno.plan.numa import process_cores
from inferno.plan.options import Options
from inferno.plan.pipeline import Shared
from inferno.plan.plan import MemoryItem
from inferno.plan.rank_use import RankUse

NCCL_BYTES = 512 << 20
"""What NCCL takes of a device for its channels to the others."""


def choose_ranks(
    catalog: Catalog,
    options: Options,
    devices: Sequence[Device],
    shared: Shared,
    model: ModelConfig,
    dtype: str,
    environ: Mapping[str, str],
) -> Decided[RankUse | None]:
    """Choose what starts the ranks, on the devices of each process. Raises UnsupportedError,
    OptionError."""
    if options.ranks == 1:
        return Decided(None)
    device = devices[0]
    choice = choose(
        [offer for offer in catalog.of("inferno_executors") if offer.item.start is not None],
        f"{options.ranks} ranks",
        lambda offer: offer.item.refuses(options.ranks, device),
    )
    starter, distribution = choice.item.name, choice.offer.distribution
    if shared.division is not None:
        use = shared.division.use(starter, distribution, model, dtype)
    else:
        nbytes = sum(each.nbytes for each in shared.matrices.uses)
        use = RankUse(executor=starter, distribution=distribution, weight_bytes=nbytes)
    numbers = device_numbers(devices)[: options.ranks_here]  # of the first engine
    exchange = exchange_of(devices, options.ranks_here)
    use = evolve(use, count=options.ranks, weights=shared.ranks, devices=numbers, exchange=exchange)
    if (pipeline := shared.pipeline) is not None:
        use = evolve(use, pipeline=pipeline.stages, passed_bytes=pipeline.passed_bytes)
    join, launcher = choose_join(catalog, options, device, environ)
    use, offers = evolve(use, join=join), [("executor", choice.offer)]
    if launcher is not None:
        offers.append(("machines", launcher))
    if options.numa is not None:
        first = process_cores(options, devices)[: options.ranks_here]  # of the first engine
        use = evolve(use, numa=options.numa, cores=first * options.nodes)
    return Decided(use, tuple(offers), choice.refusals)


def exchange_memory(
    use: RankUse | None, model: ModelConfig, dtype: str, tokens: int
) -> tuple[MemoryItem, ...]:
    """Return what a device needs to exchange a step of `tokens` tokens."""
    if use is None or use.exchange != "nccl" or use.shard.ranks == 1:  # stages use gloo
        return ()
    hidden: int = getattr(model, "hidden_size", 0)
    parts = 2 * tokens * hidden * DTYPE_BYTES[dtype]  # of all ranks
    return (MemoryItem("exchange", NCCL_BYTES + parts, "NCCL, and parts of other ranks"),)


def exchange_of(devices: Sequence[Device], each: int) -> str:
    """Return how torch.distributed exchanges tensors of these devices: NCCL needs Linux, and a
    separate device for each of an engine's ranks, of which it has `each` here."""
    numbers = device_numbers(devices)
    engines = [numbers[i : i + each] for i in range(0, len(numbers), each)]
    distinct = bool(engines) and all(len({*own}) == len(own) for own in engines)
    return "nccl" if distinct and sys.platform == "linux" else "gloo"
