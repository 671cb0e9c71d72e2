"""Whether experts are fetched is measured on a model's weights."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
from attrs import evolve
from torch import Tensor

from inferno.catalog import Catalog, load_catalog
from inferno.device.side_queue import NoQueue
from inferno.nn import fetching as forms
from inferno.nn.fetched_experts import FetchedExperts
from inferno.nn.fetching import BUFFERS
from inferno.nn.host_experts import HostExperts
from inferno.plan import Opened, Options, open_model, resolve
from inferno.plan.fetching import BUFFERS as PLANNED
from inferno.testing import TOY_MOE_SIZES, random_tensors
from inferno.testing.host_experts import fetching
from inferno.testing.thread_ranks import SEEDED, answers, load_shared, tokens_of
from inferno.testing.tiny import small_options, without_kernels
from inferno.weights import fetched, loading
from inferno.weights.fetched import choose_way, with_times

pytest.importorskip("transformers")

CONFIG = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **TOY_MOE_SIZES}
PROMPTS = [[107, 32, 79], list(range(30, 70)), [5]]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six experts, and the tokenizer of `demo`."""
    path, demo = tmp_path_factory.mktemp("toy"), resolve("demo", Options(device="cpu"))
    config = {**CONFIG, "vocab_size": demo.vocab_size}
    random_tensors(config, path)
    (path / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        copy(Path(demo.path) / name, path)
    return path


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return without_kernels(load_catalog())


@pytest.fixture
def opened(toy: Path, catalog: Catalog) -> Iterator[Opened]:
    options = small_options({"device": "cpu", "experts_on_host": 4, "max_num_batched_tokens": 80})
    with open_model(str(toy), options, catalog) as opened:
        yield evolve(opened, plan=fetching(opened.plan, None))


class Clock:
    """Time that passes only while experts are computed on the host, and while they are copied."""

    def __init__(self, patched: pytest.MonkeyPatch, token: float, expert: float) -> None:
        """Seconds that the host takes for a token, and a copy for an expert."""
        self.now, clock = 0.0, self
        group, copied = HostExperts.computed, NoQueue.copy

        def computed(host: HostExperts, x_TD: Tensor, *rest: Any, **more: Any) -> Any:
            clock.now += token * len(x_TD)
            return group(host, x_TD, *rest, **more)

        def slowly(queue: NoQueue, pairs: Sequence[tuple[Tensor, Tensor]], behind: Any) -> None:
            clock.now += expert
            copied(queue, pairs, behind)

        patched.setattr(HostExperts, "computed", computed)
        patched.setattr(NoQueue, "copy", slowly)

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("token", "expert", "least", "most"),
    [
        (1e-3, 4e-3, 15, 17),  # 4 experts of a layer, 16 ms
        (1e-3, 1e-9, 1, 1),
        (1e-3, 1e-2, 38, 42),
        (1e-3, 1.0, math.inf, math.inf),
    ],
)
def test_steps_are_fetched_from_where_that_is_faster(
    token: float,
    expert: float,
    least: float,
    most: float,
    opened: Opened,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, token, expert)
    monkeypatch.setattr(loading, "choose_way", partial(choose_way, clock=clock))
    model = loading.load_model(opened)
    hosts = [each for each in model.modules() if isinstance(each, HostExperts)]
    assert len(hosts) > 1 and {each.fetch_from for each in hosts} == {hosts[0].fetch_from}
    assert least <= hosts[0].fetch_from <= most
    plan = with_times(opened.plan, [model])
    assert plan.host_experts is not None and plan.host_experts.fetch is not None
    use, fetches = plan.host_experts.fetch, least < math.inf
    assert (use.chosen or math.inf) == hosts[0].fetch_from
    assert plan.host_experts.host_bytes == plan.host_experts.nbytes * (2 if fetches else 1)
    for host in hosts:
        assert (host.fetched is not None) == fetches, "an unused copy is freed"
        assert host.fetching is not None and (host.fetching.nbytes > 0) == fetches
    if (one := hosts[0].fetched) is not None:
        nbytes = sum(tensor.nbytes for tensor in one.each[0].tensors)
        assert use.copy_rate == pytest.approx(nbytes / expert, rel=0.1)
    assert use.measured[0].tokens == 1 and use.measured[-1].tokens <= 80
    for each in use.measured:
        assert each.computed == pytest.approx(token * each.tokens, rel=1e-3)


def test_a_fixed_number_of_tokens_is_not_measured(
    toy: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetched, "Layers", None)
    engine = load_shared(toy, catalog, 1, partial(fetching, tokens=7), experts_on_host=2)
    plan = engine.plan
    engine.close()
    assert plan.host_experts is not None and plan.host_experts.fetch is not None
    assert plan.host_experts.fetch.chosen == 7


def test_what_would_compute_other_results_is_not_fetched(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As if a kernel held tensors where they are not found."""
    start = FetchedExperts.start

    def other(experts: FetchedExperts, x_TD: Tensor, *rest: Tensor) -> Any:
        wait = start(experts, x_TD, *rest)
        return lambda: None if (y_TD := wait()) is None else y_TD * 1.3

    monkeypatch.setattr(FetchedExperts, "start", other)
    clock = Clock(monkeypatch, 1e-3, 1e-9)
    monkeypatch.setattr(loading, "choose_way", partial(choose_way, clock=clock))
    model = loading.load_model(opened)
    hosts = [each for each in model.modules() if isinstance(each, HostExperts)]
    assert {each.fetch_from for each in hosts} == {math.inf}
    assert any("would compute other results" in record.message for record in caplog.records)
    plan = with_times(opened.plan, [model])
    assert plan.host_experts is not None and plan.host_experts.fetch is None


def test_experts_of_too_many_forms_are_computed_on_the_host(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(forms, "MOST_KINDS", 0)
    model = loading.load_model(opened)
    hosts = [each for each in model.modules() if isinstance(each, HostExperts)]
    assert hosts and all(each.fetched is None for each in hosts)
    assert any("forms" in record.message for record in caplog.records)
    plan = with_times(opened.plan, [model])
    assert plan.host_experts is not None and plan.host_experts.fetch is None


def test_what_was_measured_changes_no_token(toy: Path, catalog: Catalog) -> None:
    """With the kernels of this machine, whatever they are; of ranks too, each of which measures."""
    expected = load_shared(toy, catalog, 1)
    for ranks in (1, 2):
        ours = load_shared(
            toy, load_catalog(), ranks, partial(fetching, tokens=None), experts_on_host=3
        )
        tokens = tokens_of(answers(ours, PROMPTS, SEEDED))
        assert tokens == tokens_of(answers(expected, PROMPTS, SEEDED))
        ours.close()
    expected.close()


def test_packed_experts_are_fetched_as_they_are_packed(toy: Path, catalog: Catalog) -> None:
    more: dict[str, Any] = {"isq": "q4_0", "experts_on_host": 4}
    rows = []
    for plan in (partial(fetching, tokens=1), lambda plan: plan):
        engine = load_shared(toy, catalog, 1, plan, **more)
        rows.append(tokens_of(answers(engine, PROMPTS, SEEDED)))
        engine.close()
    assert rows[0] == rows[1]


def test_the_plan_counts_the_buffers_that_there_are() -> None:
    assert BUFFERS == PLANNED
