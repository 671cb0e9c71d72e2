"""Random histories of an engine with adapters: names that are loaded, replaced and unloaded, and
requests that are aborted and preempted. Each answer is that of its request alone."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import define, evolve, field
from safetensors.torch import load_file, save_file
from tests.peft_adapters import matrices

from inferno.builtin.lru import LRUPrefixCache
from inferno.constraints import Constraint
from inferno.core.engine import Engine, scheduler_of
from inferno.core.kvcache import CacheGroups
from inferno.core.runner import ModelRunner
from inferno.plan import AdapterRoom, resolve
from inferno.plan.cache_groups import with_num_blocks
from inferno.request.requests import AdapterRef, Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing import Toy, load_toy
from inferno.testing.adapters import MemoryAdapter, with_adapters
from inferno.testing.tiny import torch_only

PROMPTS = [tuple(5 + (3 * j + k // 3) % 90 for j in range(6 + 11 * k)) for k in range(4)]
"""Some begin alike."""
MOST = 36
"""Tokens of an answer."""
NAMES = "abc"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model's first two layers. A single one would have keys and values on which adapters
    change nothing."""
    demo, folder = Path(resolve("demo").path), tmp_path_factory.mktemp("two-layers")
    config = json.loads((demo / "config.json").read_text())
    config |= {"num_hidden_layers": 2, "layer_types": config["layer_types"][:2]}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(demo / "model.safetensors")
    layers = {n: t for n, t in tensors.items() if re.match(r"model\.(?!layers\.[2-9])", n)}
    save_file(layers, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def given(model: Path) -> list[MemoryAdapter]:
    weights = matrices(model, ("q_proj", "o_proj", "down_proj"))
    return [MemoryAdapter.random(i, weights, 2 + i) for i in range(1, 4)]


@pytest.fixture(scope="module")
def toy(model: Path, given: list[MemoryAdapter]) -> Toy:
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 128}
    return with_adapters(load_toy(model, torch_only(), **options), given)


def engine_of(toy: Toy, num_blocks: int, slots: int, lag: int) -> Engine:
    """An engine that reads adapters as the real one does, and forgets those of no request."""
    adapters = toy.adapters
    assert adapters is not None
    room = AdapterRoom(slots=slots, rank=8)
    sizes = with_num_blocks(toy.plan.groups, num_blocks)
    plan = evolve(toy.plan, adapters=room, groups=sizes)
    groups = CacheGroups(num_blocks, plan.block_size, LRUPrefixCache(num_blocks))
    runner = ModelRunner(toy.model, plan, overlaps=lag > 0, adapters=adapters)

    def constrain(request: Request) -> Constraint | None:
        if request.adapter is not None:
            adapters.read(request.adapter)
        return None

    scheduler = scheduler_of(plan, groups)
    return Engine(plan, scheduler, runner, lag=lag, constrain=constrain, forget=adapters.keep)


def request(number: int, prompt: int, adapter: AdapterRef | None, tokens: int = MOST) -> Request:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    return Request(id=str(number), token_ids=PROMPTS[prompt], params=params, adapter=adapter)


def drained(engine: Engine) -> Iterator[tuple[str, int]]:
    while engine.busy:
        for output in engine.step():
            assert not output.error and output.token_id is not None
            yield output.request_id, output.token_id
        engine.check()


@pytest.fixture(scope="module")
def alone(toy: Toy, given: list[MemoryAdapter]) -> dict[tuple[int, str], list[int]]:
    """The answer of each prompt with each adapter, and with none."""
    answers: dict[tuple[int, str], list[int]] = {}
    for prompt in range(len(PROMPTS)):
        for ref in (None, *(each.ref for each in given)):
            engine = engine_of(toy, 32, 3, 0)
            engine.submit(request(0, prompt, ref))
            answers[prompt, "" if ref is None else ref.digest] = [id for _, id in drained(engine)]
    assert len({tuple(ids) for ids in answers.values()}) > len(PROMPTS)
    return answers


@define(eq=False)
class History:
    """One life of an engine."""

    engine: Engine
    draw: random.Random
    given: list[MemoryAdapter]
    names: dict[str, AdapterRef] = field(factory=dict)
    asked: dict[str, tuple[int, str, int]] = field(factory=dict)
    """By request: its prompt, its adapter's content and its tokens."""
    answers: dict[str, list[int]] = field(factory=dict)
    aborted: set[str] = field(factory=set)

    def run(self) -> None:
        for _ in range(self.draw.randint(5, 14)):
            act = self.draw.choice(
                [self.load, self.unload, self.ask, self.ask, self.ask, self.abort]
            )
            act()
            for _ in range(self.draw.randint(0, 4)):
                self.step()
        while self.engine.busy:
            self.step()

    def load(self) -> None:
        """Another content under a name changes nothing for requests that have the old one."""
        self.names[self.draw.choice(NAMES)] = self.draw.choice(self.given).ref

    def unload(self) -> None:
        self.names.pop(self.draw.choice(NAMES), None)

    def ask(self) -> None:
        ref = self.draw.choice([None, *self.names.values()])
        number, prompt = len(self.asked), self.draw.randrange(len(PROMPTS))
        tokens = self.draw.randint(1, MOST)
        self.asked[str(number)] = prompt, "" if ref is None else ref.digest, tokens
        self.answers[str(number)] = []
        query = request(number, prompt, ref, tokens)
        self.engine.submit(query, wait=self.draw.random() < 0.5)

    def abort(self) -> None:
        if self.asked:
            chosen = self.draw.choice([*self.asked])
            self.engine.abort(chosen)
            self.aborted.add(chosen)

    def step(self) -> None:
        for output in self.engine.step():
            assert not output.error and output.token_id is not None
            self.answers[output.request_id].append(output.token_id)
        self.engine.check()

    def check(self, alone: dict[tuple[int, str], list[int]]) -> None:
        for id, (prompt, digest, tokens) in self.asked.items():
            expected, answer = alone[prompt, digest][:tokens], self.answers[id]
            if id in self.aborted:
                assert answer == expected[: len(answer)]
            else:
                assert answer == expected


def run(
    toy: Toy,
    given: list[MemoryAdapter],
    alone: dict[tuple[int, str], list[int]],
    seeds: range,
) -> int:
    """Run the histories of these seeds. Returns the number of preemptions."""
    preempted = 0
    for seed in seeds:
        draw = random.Random(seed)
        engine = engine_of(toy, draw.randint(6, 9), draw.randint(1, 2), draw.randint(0, 1))
        history = History(engine, draw, given)
        history.run()
        history.check(alone)
        preempted += engine.stats().preemptions
    return preempted


def test_each_answer_of_a_random_history_is_that_of_the_request_alone(
    toy: Toy, given: list[MemoryAdapter], alone: dict[tuple[int, str], list[int]]
) -> None:
    assert run(toy, given, alone, range(4)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_each_answer_of_a_thousand_histories_is_that_of_the_request_alone(
    toy: Toy, given: list[MemoryAdapter], alone: dict[tuple[int, str], list[int]], first: int
) -> None:
    assert run(toy, given, alone, range(first, first + 250)) > 20
