"""A part that the runner does not know: an id for each row, which a layer reads in every step.

Suffixes: T tokens of the step, I ids, D hidden, R rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from attrs import evolve
from torch import Tensor, nn

from inferno.builtin.lru import LRUPrefixCache
from inferno.contracts import Capture
from inferno.core.engine import Engine, scheduler_of
from inferno.core.kvcache import CacheGroups
from inferno.core.runner import ModelRunner, PartResults, StepArrays, StepPart
from inferno.core.types import NewSequence, Step
from inferno.nn.capture import CallCapture
from inferno.plan import CaptureUse
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing import Toy, alike, load_toy
from inferno.testing.tiny import torch_only

NAMES = ("", "first", "second", "third")
"""A request says its id by its salt: rows of different ids share no cached block."""
MOST_TOKENS = 64
"""In a step."""


class Shifted(nn.Module):
    """A layer, and a vector for each id that is added to its output."""

    def __init__(self, layer: nn.Module, size: int) -> None:
        super().__init__()
        self.layer = layer
        draw = torch.Generator().manual_seed(1)
        self.shift_ID = torch.randn(len(NAMES), size, generator=draw) * 3
        self.shift_ID[0] = 0
        self.ids_T = torch.zeros(MOST_TOKENS, dtype=torch.int64)
        """Resident: written before each step."""

    def forward(self, x_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.layer(x_TD)
        return y_TD + self.shift_ID[self.ids_T[: len(x_TD)]]


class RowIds(StepPart):
    """Writes the id of each token's row. Steps with a row of a watched id are not replayed."""

    def __init__(self, ids_T: Tensor, watched: str | None = None) -> None:
        self.ids_T, self.watched = ids_T, watched
        self.ids_R = np.zeros(4, np.int64)
        self.num_steps = self.num_computed = 0
        """Steps with a row of the watched id, and those whose hidden states were shown."""

    def admit(self, new: NewSequence) -> None:
        self.ids_R[new.row] = NAMES.index(new.request.cache_salt)

    def before(self, arrays: StepArrays) -> None:
        ids = np.repeat(self.ids_R[arrays.rows], np.diff(arrays.query_starts))
        self.ids_T[: len(ids)] = torch.from_numpy(ids)
        self.num_steps += self.refuses_replay(arrays)

    def refuses_replay(self, arrays: StepArrays) -> bool:
        return self.watched is not None and NAMES.index(self.watched) in self.ids_R[arrays.rows]

    def after(
        self, step: Step, arrays: StepArrays, hidden_TD: Tensor, results: PartResults
    ) -> None:
        assert len(hidden_TD) == len(arrays.positions)
        self.num_computed += self.refuses_replay(arrays)


@pytest.fixture(scope="module")
def toy() -> Toy:
    options = {"max_num_seqs": 4, "max_num_batched_tokens": MOST_TOKENS, "max_model_len": 128}
    toy = load_toy("demo", torch_only(), **options)
    layer = toy.model.get_submodule("model.layers.0")
    layer.mlp = Shifted(
        layer.get_submodule("mlp"), toy.model.get_parameter("model.norm.weight").shape[0]
    )
    blocks = -(-toy.plan.max_model_len // toy.plan.block_size)
    use = CaptureUse(name="torch", sizes=(1, 4), blocks=(blocks,), ahead=True)
    return Toy(evolve(toy.plan, capture=use), toy.model)


def shifted(toy: Toy) -> Shifted:
    layer = toy.model.get_submodule("model.layers.0.mlp")
    assert isinstance(layer, Shifted)
    return layer


def engine_of(
    toy: Toy,
    part: StepPart | None = None,
    *,
    lag: int = 0,
    capture: Capture | None = None,
    num_blocks: int | None = None,
) -> Engine:
    plan = toy.plan
    count = num_blocks or plan.num_blocks
    groups = CacheGroups(count, plan.block_size, LRUPrefixCache(count))
    parts = () if part is None else (part,)
    runner = ModelRunner(toy.model, plan, capture=capture, overlaps=lag > 0, parts=parts)
    runner.capture_ahead()
    assert capture is None or (runner.replays is not None and runner.replays.refusal is None)
    return Engine(plan, scheduler_of(plan, groups), runner, lag=lag)


def requests() -> Iterator[Request]:
    """More than run at once, of equal prompts and of others, with every id."""
    for i in range(10):
        name = NAMES[i % 4]
        prompt = tuple(5 + (3 * j + i // 4) % 90 for j in range(30 + 9 * (i % 3)))
        params = SamplingParams(temperature=0, max_tokens=20 + i, ignore_eos=True)
        yield Request(id=f"{i} {name}", token_ids=prompt, params=params, cache_salt=name)


def answers(engine: Engine, requests: list[Request]) -> dict[str, list[int | None]]:
    for request in requests:
        engine.submit(request)
    token_ids: dict[str, list[int | None]] = {request.id: [] for request in requests}
    while engine.busy:
        for output in engine.step():
            token_ids[output.request_id].append(output.token_id)
        engine.check()
    return token_ids


@pytest.fixture(scope="module")
def expected(toy: Toy) -> dict[str, list[int | None]]:
    """What models say in which every token has the same id: no part writes any."""
    layer, outputs = shifted(toy), dict[str, list[int | None]]()
    for number, name in enumerate(NAMES):
        layer.ids_T.fill_(number)
        group = [request for request in requests() if request.cache_salt == name]
        outputs |= answers(engine_of(toy), group)
    assert len({tuple(ids[:8]) for ids in outputs.values()}) > 6, "ids change the answers"
    return outputs


@alike
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("captured", [False, True], ids=["computed", "replayed"])
def test_a_layer_reads_the_ids_of_the_steps_rows(
    toy: Toy, expected: dict[str, list[int | None]], captured: bool, lag: int
) -> None:
    part = RowIds(shifted(toy).ids_T)
    engine = engine_of(toy, part, lag=lag, capture=CallCapture() if captured else None)
    assert answers(engine, list(requests())) == expected
    again = [evolve(request, id=f"{request.id} again") for request in requests()]
    outputs = answers(engine, again)
    assert outputs == {f"{name} again": ids for name, ids in expected.items()}, "from the cache"


def test_preempted_rows_get_their_ids_back(toy: Toy, expected: dict[str, list[int | None]]) -> None:
    engine = engine_of(toy, RowIds(shifted(toy).ids_T), num_blocks=11)
    assert answers(engine, list(requests())) == expected
    assert engine.stats().preemptions > 0


def test_a_part_sees_the_hidden_states_of_steps_that_it_does_not_let_be_replayed(
    toy: Toy, expected: dict[str, list[int | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    part = RowIds(shifted(toy).ids_T, watched="second")
    engine = engine_of(toy, part, capture=CallCapture())
    runner, replayed = engine._runner, list[bool]()
    assert isinstance(runner, ModelRunner) and runner.replays is not None
    run = runner.replays.run

    def noted(arrays: StepArrays) -> Tensor | None:
        assert not part.refuses_replay(arrays)
        logits_TV = run(arrays)
        replayed.append(logits_TV is not None)
        return logits_TV

    monkeypatch.setattr(type(runner.replays), "run", lambda self, arrays: noted(arrays))
    assert answers(engine, list(requests())) == expected
    assert part.num_computed == part.num_steps > 0 and any(replayed)
