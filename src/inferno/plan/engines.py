"""Decides how many engines a model has, and what each of them is given."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from inferno import host
from inferno.contracts import Device
from inferno.errors import OptionError, UnsupportedError
from inferno.plan.decided import Decided
from inferno.plan.device_plan import device_numbers, for_device
from inferno.plan.engine_use import EnginesUse
from inferno.plan.numa import process_cores
from inferno.plan.options import Options
from inferno.plan.plan import Plan


def choose_engines(
    options: Options, devices: Sequence[Device], *, elsewhere: bool = False
) -> Decided[EnginesUse | None]:
    """Return the engines, if there are several, on the devices of each process. `elsewhere`: the
    plan is for another machine, which may have more cores. Raises OptionError, UnsupportedError."""
    if options.dp == 1:
        return Decided(None)
    flag, device = f"--dp {options.dp}", devices[0]
    if device.kind not in ("cpu", "cuda"):
        raise UnsupportedError(
            f"{flag}: several engines compute on CPUs and CUDA devices only, not on {device}",
            "Start a server for each device (--device), or add --device cpu.",
        )
    given = {
        "--nodes": options.nodes > 1,
        "--executor": options.executor,
    }
    if names := [name for name, value in given.items() if value]:
        raise UnsupportedError(
            f"{flag} cannot be combined with {', '.join(names)}: engines share no other machine",
            "Leave one of them out, or start a server for each engine behind a router.",
        )
    cores, count = host.usable_cores(), options.processes_here
    notes = tuple[str, ...]()
    if options.dp > cores and device.kind == "cpu":
        cause = f"{flag} needs a core for each engine, and this machine has {cores}"
        if not elsewhere:
            raise OptionError(cause, f"Use --dp {cores}." if cores > 1 else "Leave --dp out.")
        notes = (f"{cause}: the plan is for another machine",)
    elif count > cores:  # slow, as more ranks of one engine than cores are
        notes = (f"{count} processes take turns on {cores} cores: fewer would be faster",)
    shares, each = process_cores(options, devices), options.ranks
    numbers = device_numbers(devices)
    use = EnginesUse(
        count=options.dp,
        cores=tuple(shares[i : i + each] for i in range(0, len(shares), each)),
        devices=tuple(numbers[i : i + each] for i in range(0, len(numbers), each)),
    )
    return Decided(use, notes=notes)


def plan_of_engine(plan: Plan, index: int, folder: str = "") -> Plan:
    """Return the plan of one engine by itself; the plan, if there is only one. Engines that
    share experts meet in the `folder`."""
    if plan.engines is None:
        return plan
    by_rank = plan.engines.cores[index] if plan.engines.cores else ()
    if plan.engines.devices:
        numbers = plan.engines.devices[index]
        plan = for_device(plan, numbers[0])
        if plan.ranks is not None:
            plan = evolve(plan, ranks=evolve(plan.ranks, devices=numbers))
    if plan.store is not None:
        plan = evolve(plan, store=evolve(plan.store, engine=index))
    if plan.events is not None:
        plan = evolve(plan, events=evolve(plan.events, engine=index))
    if (drafts := plan.speculation) is not None and drafts.draft is not None:
        own = plan_of_engine(drafts.draft, index)
        plan = evolve(plan, speculation=evolve(drafts, draft=own))
    if plan.dealt is not None:
        shard = evolve(plan.dealt.shard, rank=index)
        plan = evolve(plan, dealt=evolve(plan.dealt, shard=shard, folder=folder))
    if plan.ranks is not None:
        return evolve(plan, engines=None, ranks=evolve(plan.ranks, cores=by_rank))
    return evolve(plan, engines=None, cores=by_rank[0] if by_rank else ())
