"""What several engines count, as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from attrs import fields

from inferno.process.health import Health
from inferno.request.linked import LinkedInstance
from inferno.request.requests import EngineStats


def total_stats(each: Sequence[EngineStats]) -> EngineStats:
    """Return the sum. The share of caches in use is their mean, and what a token takes is what it
    takes engines that work beside each other."""
    total = EngineStats()
    apart = ("step_sizes", "fallbacks", "instances")
    summed = [a.name for a in fields(EngineStats) if a.name not in apart]
    for name in summed:
        setattr(total, name, sum(getattr(stats, name) for stats in each))
    total.step_sizes = [sum(sizes) for sizes in zip(*(s.step_sizes for s in each), strict=True)]
    fallbacks = Counter[str]()
    for stats in each:
        fallbacks.update(stats.fallbacks)
    total.fallbacks = dict(fallbacks)
    total.instances = _total_instances(stats.instances for stats in each)
    total.kv_usage /= len(each)
    total.prompt_seconds = _beside(stats.prompt_seconds for stats in each)
    total.row_seconds = _beside(stats.row_seconds for stats in each)
    return total


def total_health(each: Sequence[Health]) -> Health:
    """Return the sum of what is counted, and the longest of silences. As long as an engine starts,
    none is given up."""
    summed = ("restarts", "given_up", "checks", "check_seconds", "checker_kills")
    return Health(
        **{name: sum(getattr(health, name) for health in each) for name in summed},
        failed_starts=min(health.failed_starts for health in each),
        silence=max(health.silence for health in each),
        still=max(health.still for health in each),
    )


def _total_instances(each: Iterable[dict[str, LinkedInstance]]) -> dict[str, LinkedInstance]:
    """Return what all engines know of each instance: it is connected if all
    engines that send it prompts are connected to it."""
    known = dict[str, list[LinkedInstance]]()
    for instances in each:
        for url, instance in instances.items():
            known.setdefault(url, []).append(instance)
    total = dict[str, LinkedInstance]()
    for url, all_of in known.items():
        failures = Counter[str]()
        for one in all_of:
            failures.update(one.failures)
        total[url] = LinkedInstance(
            all(one.connected for one in all_of),
            sum(one.waiting for one in all_of),
            sum(one.prompts for one in all_of),
            dict(failures),
        )
    return total


def _beside(seconds: Iterable[float]) -> float:
    """Return what something takes on average where all work at once; 0 while it is not known."""
    known = [each for each in seconds if each]
    return sum(known) / len(known) ** 2 if known else 0.0
