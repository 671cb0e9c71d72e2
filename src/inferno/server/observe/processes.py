"""Metrics of what a server consists of, besides its models' requests: engine processes, checkers of
grammars, the store, wrong API keys, and the event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from attrs import frozen
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inferno.process.health import EngineState, EngineView, Health
from inferno.request.requests import EngineStats

_MODEL = "model_name"
LABELS = (_MODEL, "engine")
"""Of what an engine says of itself. Only a model with several has the second."""
LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
"""Limits by which delays of the event loop are counted."""
_GAUGES = {
    "engine_failed_starts": ("failed_starts", "Starts of an engine failed one after another."),
    "engine_silence_seconds": ("silence", "Seconds since an engine's last sign of life."),
    "engine_still_seconds": ("still", "Seconds since an engine's loop came round."),
}
_COUNTERS = {
    "engine_restarts": ("restarts", "Engine processes that ended or hung."),
    "engine_given_up_requests": ("given_up", "Requests ended because the engine did not answer."),
    "grammar_checks": ("checks", "Grammars that were checked."),
    "grammar_check_seconds": ("check_seconds", "Time of these checks, with the wait for them."),
    "grammar_checker_kills": ("checker_kills", "Checks that ended the checker's process."),
}


@frozen
class ModelView:
    """One model's values at the time of a scrape."""

    name: str
    state: str
    alive: bool
    """Whether its engine takes requests."""
    nbytes: int
    """Bytes planned for it; 0 while it is not loaded."""
    stats: EngineStats | None
    """None while it is not loaded."""
    health: Health | None = None
    """Of its processes; None while it is not loaded."""
    engines: Sequence[EngineView] = ()
    """Of each engine, if it has several."""
    wait: float = 0.0
    """Seconds that a request without a key would wait for its first token."""

    @property
    def parts(self) -> list[tuple[list[str], EngineView]]:
        """Each engine with its labels: one without a label, if the model has no more. None while it
        is not loaded."""
        if self.engines:
            return [([self.name, str(i)], each) for i, each in enumerate(self.engines)]
        if self.stats is None or self.health is None:
            return []
        state: EngineState = "ok" if self.alive else "restarting"
        return [([self.name], EngineView(state=state, stats=self.stats, health=self.health))]


class Processes(Collector):
    """How the processes of models are, and how long a request would wait."""

    def __init__(self, views: Callable[[], Iterable[ModelView]]) -> None:
        self._views = views

    def collect(self) -> Iterator[Metric]:
        views = list(self._views())
        wait = GaugeMetricFamily(
            "inferno_expected_wait_seconds",
            "Seconds that a request without a key would wait for its first token.",
            labels=[_MODEL],
        )
        for view in views:
            wait.add_metric([view.name], view.wait)
        yield wait
        known = [(labels, each.health) for view in views for labels, each in view.parts]
        for name, (attribute, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"inferno_{name}", text, labels=LABELS)
            for labels, health in known:
                gauge.add_metric(labels, getattr(health, attribute))
            yield gauge
        for name, (attribute, text) in _COUNTERS.items():
            counter = CounterMetricFamily(f"inferno_{name}", text, labels=LABELS)
            for labels, health in known:
                counter.add_metric(labels, getattr(health, attribute))
            yield counter


class Kept(Protocol):
    """What is told of the store."""

    errors: int

    @property
    def used_bytes(self) -> int: ...

    @property
    def file_bytes(self) -> int: ...

    def free_bytes(self) -> int | None: ...


class Stores(Collector):
    """The store of responses, conversations, files and batches."""

    def __init__(self, store: Kept) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "inferno_store_errors",
            "Times that stored responses, conversations, files or batches could not be used.",
            value=self._store.errors,
        )
        used = GaugeMetricFamily(
            "inferno_store_used_bytes",
            "Bytes of responses with conversations, and of files with batches.",
            labels=["kind"],
        )
        used.add_metric(["responses"], self._store.used_bytes)
        used.add_metric(["files"], self._store.file_bytes)
        yield used
        if (free := self._store.free_bytes()) is not None:
            yield GaugeMetricFamily(
                "inferno_store_free_bytes", "Free bytes of the store's disk.", value=free
            )


class Tried(Protocol):
    """What is told of wrong keys."""

    wrong: int
    refused: int


class WrongKeys(Collector):
    """API keys that were wrong, and requests that were refused because of them."""

    def __init__(self, guesses: Tried) -> None:
        self._guesses = guesses

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "inferno_wrong_api_keys", "Wrong API keys.", value=self._guesses.wrong
        )
        yield CounterMetricFamily(
            "inferno_refused_api_keys",
            "Requests refused because their address had sent too many wrong API keys.",
            value=self._guesses.refused,
        )
