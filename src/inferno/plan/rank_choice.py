"""Chooses what starts an engine's ranks."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from inferno.catalog import Catalog
from inferno.catalog.choice import choose
from inferno.contracts import Device, ModelConfig
from inferno.plan.decided import Decided
from inferno.plan.joining import choose_join
from inferno.plan.numa import process_cores
from inferno.plan.options import Options
from inferno.plan.pipeline import Shared
from inferno.plan.rank_use import RankUse


def choose_ranks(
    catalog: Catalog,
    options: Options,
    device: Device,
    shared: Shared,
    model: ModelConfig,
    dtype: str,
    environ: Mapping[str, str],
) -> Decided[RankUse | None]:
    """Choose what starts the ranks. Raises UnsupportedError, OptionError."""
    if options.ranks == 1:
        return Decided(None)
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
    use = evolve(use, count=options.ranks, weights=shared.ranks)
    if (pipeline := shared.pipeline) is not None:
        use = evolve(use, pipeline=pipeline.stages, passed_bytes=pipeline.passed_bytes)
    join, launcher = choose_join(catalog, options, device, environ)
    use, offers = evolve(use, join=join), [("executor", choice.offer)]
    if launcher is not None:
        offers.append(("machines", launcher))
    if options.numa is not None:
        first = process_cores(options)[: options.ranks_here]  # of the first engine
        use = evolve(use, numa=options.numa, cores=first * options.nodes)
    return Decided(use, tuple(offers), choice.refusals)
