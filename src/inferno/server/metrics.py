"""Prometheus metrics: vLLM's names with the prefix `inferno_`, one registry per app."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inferno.core.types import EngineStats

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

_GAUGES = {
    "num_requests_running": ("num_running", "Requests running in the batch."),
    "num_requests_waiting": ("num_waiting", "Requests waiting to run."),
    "kv_cache_usage_perc": ("kv_usage", "Fraction of the KV cache in use, 0 to 1."),
}
_COUNTERS = {
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of admitted requests."),
    "prompt_tokens_cached": ("cached_tokens", "Prompt tokens found in the cache."),
    "generation_tokens": ("generated_tokens", "Tokens generated."),
    "spec_decode_num_draft_tokens": ("draft_tokens", "Draft tokens verified."),
    "spec_decode_num_accepted_tokens": ("accepted_tokens", "Draft tokens accepted."),
    "prefix_cache_queries": ("prefix_queries", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("prefix_hits", "Prompt tokens found in the prefix cache."),
    "num_preemptions": ("preemptions", "Requests preempted because blocks ran out."),
    "engine_steps": ("steps", "Forward passes."),
}


class _EngineCollector(Collector):
    """The engine's own statistics, read at each scrape. Its counters restart at zero with it."""

    def __init__(self, stats: Callable[[], EngineStats], alive: Callable[[], bool]) -> None:
        self._stats, self._alive = stats, alive

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield GaugeMetricFamily(
            "inferno_engine_up", "1 while the engine process is alive.", value=self._alive()
        )
        for name, (attribute, text) in _GAUGES.items():
            yield GaugeMetricFamily(f"inferno_{name}", text, value=getattr(stats, attribute))
        for name, (attribute, text) in _COUNTERS.items():
            yield CounterMetricFamily(f"inferno_{name}", text, value=getattr(stats, attribute))


class Metrics:
    """Metrics of the server's requests and of the engine."""

    def __init__(self, stats: Callable[[], EngineStats], alive: Callable[[], bool]) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(_EngineCollector(stats, alive))

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"inferno_{name}", text, buckets=_SECONDS, registry=registry)

        self._first_token = histogram(
            "time_to_first_token_seconds", "From the request to its first token."
        )
        self._inter_token = histogram(
            "inter_token_latency_seconds",
            "Between tokens; averaged over tokens that arrive together.",
        )
        self._whole = histogram(
            "e2e_request_latency_seconds", "From the request to its last token."
        )
        self._success = Counter(
            "inferno_request_success", "Finished outputs.", ["finished_reason"], registry=registry
        )
        self._http = Counter(
            "inferno_http_requests", "Responses by status.", ["status"], registry=registry
        )

    def tokens(self, count: int, seconds: float, *, first: bool) -> None:
        """Record `count` tokens of one output, `seconds` after its last ones or after the
        request."""
        if first:
            self._first_token.observe(seconds)
            return
        for _ in range(count):
            self._inter_token.observe(seconds / count)

    def finished(self, reason: str, outputs: int = 1, seconds: float | None = None) -> None:
        self._success.labels(reason).inc(outputs)
        if seconds is not None:
            self._whole.observe(seconds)

    def answered(self, status: int) -> None:
        self._http.labels(str(status)).inc()

    def text(self) -> bytes:
        """Render the exposition format."""
        return generate_latest(self._registry)
