"""Prometheus metrics: vLLM's names with the prefix `inferno_`, one registry per app. The label
`model_name` is the model's first name; what each of several engines counts has `engine` too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from attrs import frozen
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from inferno.request.requests import STEP_SIZES
from inferno.server.access.limits import Key
from inferno.server.observe.links import link_metrics
from inferno.server.observe.processes import (
    LABELS,
    LAG_SECONDS,
    Kept,
    ModelView,
    Processes,
    Stores,
    Tried,
    WrongKeys,
)

_MODEL = "model_name"
_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKENS = tuple(float(2**i) for i in range(0, 21))

_GAUGES = {
    "num_requests_running": ("num_running", "Requests running in the batch."),
    "num_requests_waiting": ("num_waiting", "Requests waiting to run."),
    "kv_cache_usage_perc": ("kv_usage", "Fraction of the KV cache in use, 0 to 1."),
    "kv_store_host_bytes": ("store_host_bytes", "Blocks that a store holds in host memory."),
    "kv_store_disk_bytes": ("store_folder_bytes", "Files of blocks on disk."),
    "sessions": ("sessions", "Sessions whose blocks are kept."),
    "session_blocks": ("session_blocks", "Blocks pinned for sessions, once for each session."),
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
    "kv_store_saved_bytes": ("store_saved_bytes", "Copied out of the KV cache to a store."),
    "kv_store_loaded_bytes": ("store_loaded_bytes", "Copied into the KV cache from a store."),
    "kv_store_skipped_tokens": (
        "store_skipped_tokens",
        "Tokens computed because that was faster than loading their blocks from a store.",
    ),
    "kv_store_lost_parts": ("store_lost_parts", "Stored parts of blocks missing or damaged."),
    "kv_event_batches": ("event_batches", "Batches of cache events published."),
    "kv_event_batches_dropped": (
        "dropped_event_batches",
        "Batches of cache events dropped because too many waited.",
    ),
    "kv_link_prompts": (
        "linked_prompts",
        "Prompts sent to a prefill instance, or computed by one for others.",
    ),
    "kv_link_bytes": ("linked_bytes", "Bytes of blocks pulled, or given to others."),
    "non_finite_requests": (
        "non_finite",
        "Requests that ended because the model's numbers were NaN or infinite.",
    ),
    "engine_steps": ("steps", "Forward passes."),
}
_KEY_COUNTERS = {
    "key_requests": ("requests", "Requests of a key."),
    "key_rejected_requests": ("rejected", "Requests of a key that were over its limits."),
    "key_prompt_tokens": ("prompt_tokens", "Prompt tokens of a key."),
    "key_prompt_tokens_cached": ("cached_tokens", "Prompt tokens of a key found in the cache."),
    "key_generation_tokens": ("completion_tokens", "Tokens generated for a key."),
}


class _Models(Collector):
    """The models and their engines, read at each scrape. An engine's counters begin at zero when it
    starts, as Prometheus expects of a restart."""

    def __init__(self, views: Callable[[], Iterable[ModelView]]) -> None:
        self._views = views

    def collect(self) -> Iterator[Metric]:
        views = list(self._views())
        up = GaugeMetricFamily(
            "inferno_engine_up", "1 while the model's engine takes requests.", labels=LABELS
        )
        state = GaugeMetricFamily(
            "inferno_model_state", "1 for the state of a model.", labels=[_MODEL, "state"]
        )
        memory = GaugeMetricFamily(
            "inferno_model_memory_bytes", "Bytes planned for a loaded model.", labels=[_MODEL]
        )
        for view in views:
            if not view.parts:
                up.add_metric([view.name], False)
            for labels, each in view.parts:
                up.add_metric(labels, each.state == "ok")
            state.add_metric([view.name, view.state], 1)
            memory.add_metric([view.name], view.nbytes)
        yield from (up, state, memory)
        running = [(labels, each.stats) for view in views for labels, each in view.parts]
        for name, (attribute, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"inferno_{name}", text, labels=LABELS)
            for labels, stats in running:
                gauge.add_metric(labels, getattr(stats, attribute))
            yield gauge
        for name, (attribute, text) in _COUNTERS.items():
            counter = CounterMetricFamily(f"inferno_{name}", text, labels=LABELS)
            for labels, stats in running:
                counter.add_metric(labels, getattr(stats, attribute))
            yield counter
        fallbacks = CounterMetricFamily(
            "inferno_kv_link_fallbacks",
            "Prompts computed here that were to be sent to a prefill instance.",
            labels=[_MODEL, "cause", "engine"],
        )
        for (model, *engine), stats in running:
            for cause, count in stats.fallbacks.items():
                fallbacks.add_metric([model, cause, *engine], count)
        yield fallbacks
        yield from link_metrics(running)
        sizes = HistogramMetricFamily(
            "inferno_iteration_tokens_total",
            "Tokens that a forward pass computes.",
            labels=LABELS,
        )
        for labels, stats in running:
            counts = accumulate(stats.step_sizes)
            limits = (*map(floatToGoString, STEP_SIZES), "+Inf")
            sizes.add_metric(labels, list(zip(limits, counts, strict=True)), stats.step_tokens)
        yield sizes


class _Keys(Collector):
    """What each key has used since the server started."""

    def __init__(
        self, keys: Callable[[], Iterable[Key]], waiting: Callable[[str], int] | None
    ) -> None:
        self._keys, self._waiting = keys, waiting or (lambda owner: 0)

    def collect(self) -> Iterator[Metric]:
        keys = list(self._keys())
        running = GaugeMetricFamily(
            "inferno_key_requests_running", "Requests of a key in progress.", labels=["key"]
        )
        for key in keys:
            running.add_metric([key.name], key.account.running)
        yield running
        waiting = GaugeMetricFamily(
            "inferno_key_outputs_waiting",
            "Outputs of a key that have no token yet.",
            labels=["key"],
        )
        for key in keys:
            waiting.add_metric([key.name], self._waiting(key.digest.hex()))
        yield waiting
        for name, (attribute, text) in _KEY_COUNTERS.items():
            counter = CounterMetricFamily(f"inferno_{name}", text, labels=["key"])
            for key in keys:
                counter.add_metric([key.name], getattr(key.account.usage, attribute))
            yield counter


class Metrics:
    """Metrics of the server, its models and its keys."""

    def __init__(
        self,
        models: Callable[[], Iterable[ModelView]],
        keys: Callable[[], Iterable[Key]] | None = None,
        store: Kept | None = None,
        waiting: Callable[[str], int] | None = None,
        guesses: Tried | None = None,
    ) -> None:
        """`keys` are shown by name, if given, with the outputs of an owner that are `waiting`.
        `guesses` counts wrong ones."""
        self._registry = registry = CollectorRegistry()
        registry.register(_Models(models))
        self._all_keys, self._waiting = keys, waiting
        if store is not None:
            registry.register(Stores(store))
        if guesses is not None:
            registry.register(WrongKeys(guesses))
        registry.register(Processes(models))

        def histogram(name: str, text: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
            return Histogram(f"inferno_{name}", text, [_MODEL], buckets=buckets, registry=registry)

        self._first_token = histogram(
            "time_to_first_token_seconds", "From the request to its first token."
        )
        self._inter_token = histogram(
            "inter_token_latency_seconds",
            "Between tokens; averaged over tokens that arrive together.",
        )
        self._per_token = histogram(
            "request_time_per_output_token_seconds",
            "Of an output, the mean time per token after the first.",
        )
        self._whole = histogram(
            "e2e_request_latency_seconds", "From the request to its last token."
        )
        self._decode = histogram(
            "request_decode_time_seconds", "From a request's first token to its last."
        )
        self._queue = histogram(
            "request_queue_time_seconds", "How long a request waited in the engine's queue."
        )
        self._prefill = histogram(
            "request_prefill_time_seconds", "From a request's admission to its first token."
        )
        self._prompt = histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._generated = histogram("request_generation_tokens", "Tokens of an output.", _TOKENS)
        self._success = Counter(
            "inferno_request_success",
            "Finished outputs.",
            [_MODEL, "finished_reason"],
            registry=registry,
        )
        self._lag = Histogram(
            "inferno_event_loop_lag_seconds",
            "By how much the server's event loop is late, ten times a second.",
            buckets=LAG_SECONDS,
            registry=registry,
        )
        self._http = Counter(
            "inferno_http_requests", "Responses by status.", ["status"], registry=registry
        )

    def of(self, model: str) -> ModelMetrics:
        """Return the metrics of one model's requests."""
        return ModelMetrics(
            self._success,
            model,
            self._first_token.labels(model),
            self._inter_token.labels(model),
            self._per_token.labels(model),
            self._whole.labels(model),
            self._decode.labels(model),
            self._queue.labels(model),
            self._prefill.labels(model),
            self._prompt.labels(model),
            self._generated.labels(model),
        )

    def lagged(self, seconds: float) -> None:
        """Record by how much the event loop was late."""
        self._lag.observe(max(0.0, seconds))

    def answered(self, status: int) -> None:
        """Count a response."""
        self._http.labels(str(status)).inc()

    def text(self, key: Key | None = None) -> bytes:
        """Render the exposition format. A `key` that may not administrate sees its own usage of
        that of all keys."""
        text: bytes = generate_latest(self._registry)
        if self._all_keys is None:
            return text
        shown = _Keys(self._all_keys if key is None or key.admin else lambda: [key], self._waiting)
        registry = CollectorRegistry()
        registry.register(shown)
        return text + generate_latest(registry)


@frozen(eq=False)
class ModelMetrics:
    """Metrics of one model's requests."""

    _success: Counter
    _model: str
    _first_token: Histogram
    _inter_token: Histogram
    _per_token: Histogram
    _whole: Histogram
    _decode: Histogram
    _queue: Histogram
    _prefill: Histogram
    _prompt: Histogram
    _generated: Histogram

    def first_token(self, seconds: float, queued: float) -> None:
        """Record an output's first tokens: `seconds` after the request, `queued` of them spent in
        the engine's queue."""
        self._first_token.observe(seconds)
        self._queue.observe(queued)
        self._prefill.observe(max(0.0, seconds - queued))

    def next_tokens(self, count: int, seconds: float) -> None:
        """Record `count` tokens of an output, so long after its last ones."""
        for _ in range(count):
            self._inter_token.observe(seconds / count)

    def finished(self, reason: str, seconds: float, first: float | None, tokens: int) -> None:
        """Record an output that ended by itself, `seconds` after the request, with its first token
        after `first` seconds, if it has one."""
        self._success.labels(self._model, reason).inc()
        self._whole.observe(seconds)
        self._generated.observe(tokens)
        if first is not None:
            self._decode.observe(seconds - first)
            if tokens > 1:
                self._per_token.observe((seconds - first) / (tokens - 1))

    def aborted(self, outputs: int) -> None:
        """Count outputs that ended before their end."""
        self._success.labels(self._model, "abort").inc(outputs)

    def prompt(self, tokens: int) -> None:
        """Record the length of a prompt."""
        self._prompt.observe(tokens)
