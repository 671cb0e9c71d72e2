"""Metrics and health of the instances that compute prompts for a model's engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from inferno.plan import Plan
from inferno.plan.addresses import urls_of
from inferno.request.linked import LinkedInstance
from inferno.request.requests import EngineStats

_LABELS = ["model_name", "prefill", "engine"]
"""`prefill`: the instance's address, as `--decode-with` has it."""


def link_metrics(running: Sequence[tuple[list[str], EngineStats]]) -> Iterator[Metric]:
    """Yield what each engine knows of the instances that it sends prompts to. `running` are the
    engines' labels and stats."""
    known = [
        ([model, url, *engine], instance)
        for (model, *engine), stats in running
        for url, instance in stats.instances.items()
    ]
    connected = GaugeMetricFamily(
        "inferno_kv_link_connected", "1 while a prefill instance takes prompts.", labels=_LABELS
    )
    waiting = GaugeMetricFamily(
        "inferno_kv_link_waiting", "Prompts that a prefill instance has to compute.", labels=_LABELS
    )
    prompts = CounterMetricFamily(
        "inferno_kv_link_instance_prompts", "Prompts sent to a prefill instance.", labels=_LABELS
    )
    failures = CounterMetricFamily(
        "inferno_kv_link_instance_failures",
        "Prompts of which a prefill instance did not send all blocks.",
        labels=["model_name", "prefill", "cause", "engine"],
    )
    for labels, instance in known:
        connected.add_metric(labels, instance.connected)
        waiting.add_metric(labels, instance.waiting)
        prompts.add_metric(labels, instance.prompts)
        for cause, count in instance.failures.items():
            failures.add_metric([*labels[:2], cause, *labels[2:]], count)
    yield from (connected, waiting, prompts, failures)


def link_health(plan: Plan, stats: EngineStats) -> dict[str, str]:
    """Return the instances, numbered as `--decode-with` has them, each as `connected` if it is to
    all engines that send it prompts, else as `disconnected`. Numbers, because /health needs no key,
    and addresses are not for everybody."""
    link = plan.store.link if plan.store is not None else None
    if link is None or link.role == "prefill":
        return {}
    known = (stats.instances.get(url, LinkedInstance()) for url in urls_of(link.url))
    return {
        str(i): "connected" if each.connected else "disconnected" for i, each in enumerate(known)
    }
