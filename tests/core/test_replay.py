"""Recorded steps give what computed steps give, whatever comes and goes between them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from attrs import evolve
from torch import Tensor, nn

from inferno.catalog import Catalog, Offer, Plugin, load_catalog
from inferno.contracts import AttentionNeed
from inferno.core.engine import Engine
from inferno.core.runner import ModelRunner, Tables
from inferno.core.runner.inputs import InputSpec
from inferno.core.runner.replay import Replays
from inferno.core.types import Slice, Step
from inferno.nn import Router
from inferno.nn.batch import Batch
from inferno.nn.capture import CallCapture
from inferno.plan import CaptureUse, Options, open_model
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing import alike, randomize

_native = pytest.importorskip(
    "inferno_cpu._native", reason="the native kernels are not compiled here"
)

ARRIVALS = {0: (0,), 3: (1,), 9: (2, 3), 20: (4,), 30: (5, 6, 7)}
"""Step -> requests that come then: between 1 and 7 run at once."""


UNTIED: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "attention_bias": True,
}


WINDOWED: dict[str, Any] = {
    **UNTIED,
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "use_sliding_window": True,
    "sliding_window": 40,
    "max_window_layers": 1,
}


EXPERTS: dict[str, Any] = {
    **UNTIED,
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "attention_bias": False,
}


def made(config: dict[str, Any], folder: Path, seed: int = 0) -> Path:
    """A checkpoint of random weights."""
    fields = {k: v for k, v in config.items() if k not in ("model_type", "architectures")}
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(config["model_type"], **fields)
    )
    randomize(model, seed)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def load(ref: str | Path, isq: str | None = None) -> Engine:
    options = Options(
        device="cpu", dtype="bfloat16", max_model_len=512, max_num_batched_tokens=256, isq=isq
    )
    return Engine.load(open_model(str(ref), options))


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(EXPERTS, tmp_path_factory.mktemp("experts"))


@pytest.fixture(
    scope="module", params=["demo", "untied, with biases", "windowed", "experts", "packed experts"]
)
def engine(
    request: pytest.FixtureRequest, experts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Engine:
    match request.param:
        case "demo":
            engine = load("demo")
        case "experts":
            engine = load(experts)
        case "packed experts":
            engine = load(experts, isq="q8_0")
        case name:
            engine = load(
                made(WINDOWED if name == "windowed" else UNTIED, tmp_path_factory.mktemp("toy"))
            )
    assert (len(engine.plan.groups) > 1) == (request.param == "windowed")
    return engine


def runner_of(engine: Engine) -> ModelRunner:
    assert isinstance(engine._runner, ModelRunner)
    return engine._runner


def fresh(engine: Engine) -> Replays:
    """Replays without a recording: the engine is that of other tests too."""
    runner, use = runner_of(engine), engine.plan.capture
    assert use is not None
    capture = CallCapture(_native.Recording)
    made = Replays.of_model(runner._model, capture, use, runner._input_spec, runner._begin)
    assert made is not None
    return made


def tokens(engine: Engine) -> dict[str, list[int]]:
    """What eight requests of different lengths get."""
    ids: dict[str, list[int]] = defaultdict(list)
    for step in range(400):
        for i in ARRIVALS.get(step, ()):
            prompt = tuple(100 + (7 * i + 3 * j) % 900 for j in range(1 + 40 * i % 150))
            engine.submit(
                Request(
                    id=str(i),
                    token_ids=prompt,
                    params=SamplingParams(temperature=0, max_tokens=40 + 30 * i),
                )
            )
        for token in engine.step():
            assert token.token_id is not None
            ids[token.request_id].append(token.token_id)
    assert not engine.busy
    return ids


def test_the_rest_of_a_prompt_whose_blocks_are_cached_is_replayed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the second time on, alone and beside sequences that decode: with the tokens of computed
    steps."""
    runner = runner_of(engine)

    def found() -> list[tuple[list[int], int]]:
        """The tokens of a request and of one that decodes beside it, and how many of its prompt's
        tokens were cached."""
        outcomes = []
        greedy = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        for rest in (15, 7, 1):
            prompt = tuple(100 + (11 * j) % 900 for j in range(96 + rest))
            for _ in range(3):
                got: dict[str, list[int]] = {"other": [], "own": []}
                cached: dict[str, int] = {}
                waiting = {"other": tuple(range(9, 50)), "own": prompt}
                while waiting or engine.busy:
                    for name in list(waiting)[:1]:
                        request = Request(id=name, token_ids=waiting.pop(name), params=greedy)
                        engine.submit(request)
                    for output in engine.step():
                        got[output.request_id].append(output.token_id or 0)
                        cached.setdefault(output.request_id, output.num_cached)
                outcomes.append((got["other"] + got["own"], cached["own"]))
        return outcomes

    assert runner.replays is not None
    replays = fresh(engine)
    monkeypatch.setattr(runner, "replays", replays)
    replayed = found()
    assert all(cached >= 96 for _, cached in replayed[1:])
    assert {count for count, _ in replays.shapes} >= {16, 8}, "with the other's token"
    monkeypatch.setattr(runner, "replays", None)
    assert [tokens for tokens, _ in found()] == [tokens for tokens, _ in replayed]


@alike
def test_replayed_and_computed_steps_agree(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of(engine)
    replayed = tokens(engine)
    assert runner.replays is not None
    assert {count for count, _ in runner.replays.shapes} >= {1, 2, 4, 6}, "steps were recorded"
    monkeypatch.setattr(runner, "replays", None)
    assert tokens(engine) == replayed


def test_few_shapes_with_padding_rows_give_what_computed_steps_give(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As devices capture them: the whole table, and inputs that are copied there."""
    runner, plan = runner_of(engine), engine.plan
    few = CaptureUse(name="cpu", sizes=(1, 4, 8), blocks=(-(-plan.max_model_len // 16),))
    capture = CallCapture(_native.Recording)
    padded = Replays.of_model(runner._model, capture, few, runner._input_spec, runner._begin)
    assert padded is not None
    padded.spec = evolve(InputSpec.of_plan(plan), copied=True)
    monkeypatch.setattr(runner, "replays", padded)
    ids = tokens(engine)
    assert {count for count, _ in padded.shapes} == {1, 4, 8}
    monkeypatch.setattr(runner, "replays", None)
    assert tokens(engine) == ids


def test_a_choice_within_groups_is_torchs_and_recorded_too(experts: Path) -> None:
    engine = load(experts)
    runner = runner_of(engine)
    for module in runner._model.modules():
        if isinstance(module, Router):
            module.routing = evolve(module.routing, num_groups=4, top_groups=2)
    ids = tokens(engine)
    assert runner.replays is not None and {count for count, _ in runner.replays.shapes} >= {1, 2, 4}
    runner.replays = None
    assert tokens(engine) == ids


def test_a_trial_writes_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a bit of the cache of the sequences that are running."""
    runner: Any = engine._runner
    captured, trials = Replays._captured, list[bool]()

    def held() -> list[Tensor]:
        return [t.view(torch.uint8).clone() for each in runner.cache.layers for t in each.values()]

    def compared(self: Replays, *sizes: Any) -> Any:
        before = held()
        shape = captured(self, *sizes)
        trials.append(all(map(torch.equal, before, held())))
        return shape

    monkeypatch.setattr(Replays, "_captured", compared)
    replays = fresh(engine)
    monkeypatch.setattr(runner, "replays", replays)
    tokens(engine)
    assert len(trials) == len(replays.shapes) >= 4 and all(trials)


def test_an_aborted_request_for_prompt_logprobs_does_not_keep_others_from_being_replayed() -> None:
    engine = Engine.load(
        open_model(
            "demo",
            Options(device="cpu", dtype="bfloat16", max_num_seqs=4, max_num_batched_tokens=16),
        )
    )
    greedy = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    engine.submit(Request(id="stays", token_ids=(5, 6, 7), params=greedy))
    engine.submit(
        Request(id="goes", token_ids=tuple(range(1, 99)), params=evolve(greedy, prompt_logprobs=1))
    )
    engine.step()
    engine.abort("goes")
    while engine.busy:
        engine.step()
    replays = runner_of(engine).replays
    assert replays is not None and replays.shapes == {(1, 8)}


def test_long_contexts_are_recorded_too() -> None:
    """Rotary tables grow with the context: not within a recorded step."""
    engine = Engine.load(
        open_model("demo", Options(device="cpu", dtype="bfloat16", max_model_len=2048))
    )
    prompt = tuple(100 + 3 * j % 900 for j in range(1022))
    engine.submit(
        Request(
            id="a",
            token_ids=prompt,
            params=SamplingParams(temperature=0, max_tokens=6, ignore_eos=True),
        )
    )
    while engine.busy:
        engine.step()
    replays = runner_of(engine).replays
    assert replays is not None
    assert replays.shapes == {(1, 64), (1, 128)}


def computed(found: Callable[[Tensor], Tensor], times: int = 3) -> Replays:
    """Steps of other token ids each, in which a model calls this function: they get its result."""

    def compute(batch: Batch, last_L: Tensor | None = None, /) -> Tensor:
        return found(batch.token_ids_T[:, None])

    use = CaptureUse(name="torch", sizes=(1,), blocks=(4,))
    replays = Replays(compute, CallCapture(), use, InputSpec(16, 64))
    tables = Tables(1, 64, 16)
    for token_id in range(times):
        tables.token_ids[0, 0] = token_id
        with torch.inference_mode():
            if (logits_TV := replays.run(tables.lay_out(Step((Slice(0, 0, 1, True),))))) is None:
                assert replays.refusal is not None and not replays.shapes
                break
            assert torch.equal(logits_TV, found(torch.tensor([[token_id]])))
    return replays


def test_what_cannot_be_recorded_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Picky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[x >= 0][:, None]

    replays = computed(Picky())
    assert replays.refusal is not None
    assert "aten.index.Tensor in Picky.forward (test_replay.py:" in replays.refusal
    assert "depends on values" in replays.refusal
    [record] = caplog.records
    assert replays.refusal in record.message and "microseconds" in record.message


def test_recordings_share_their_memory() -> None:
    """Sixteen sequences that end one after the other: as many shapes, and no more memory than the
    largest asks for."""
    engine = Engine.load(
        open_model("demo", Options(device="cpu", dtype="bfloat16", max_num_seqs=16))
    )
    replays = runner_of(engine).replays
    assert replays is not None
    for i in range(16):
        params = SamplingParams(temperature=0, max_tokens=4 + i, ignore_eos=True)
        engine.submit(Request(id=str(i), token_ids=(5, 6, 7), params=params))
    memory, size = replays.capture, None
    assert isinstance(memory, CallCapture)
    while engine.busy:
        engine.step()
        if replays.shapes and size is None:
            size = memory.nbytes
    assert len(replays.shapes) == 16
    assert memory.nbytes == size


@pytest.mark.slow
def test_torchs_attention_is_recorded_beside_native_kernels() -> None:
    options = Options(device="cpu", dtype="bfloat16", max_model_len=512, attention_backend="torch")
    engine = Engine.load(open_model("demo", options))
    runner = runner_of(engine)
    ids = tokens(engine)
    assert runner.replays is not None and {count for count, _ in runner.replays.shapes} >= {1, 2, 4}
    runner.replays = None
    assert tokens(engine) == ids


def test_a_step_is_not_recorded_beside_an_attention_backend_of_another_package() -> None:
    """What such a backend computes past torch's dispatcher would be skipped by a replay."""
    catalog = load_catalog()
    hook = "inferno_attention_backends"
    [torchs] = [offer for offer in catalog.of(hook) if offer.item.name == "torch"]
    theirs = Offer(evolve(torchs.item, name="theirs"), "their-attention")
    plugin = Plugin("theirs", "their-attention", "1.0")
    offers = {**catalog.offers, hook: (*catalog.of(hook), theirs)}
    with open_model(
        "demo",
        Options(device="cpu", dtype="bfloat16", attention_backend="theirs"),
        Catalog((*catalog.plugins, plugin), offers),
    ) as opened:
        assert opened.plan.capture is None
        assert any(
            "inferno-cpu cannot capture theirs of their-attention" in n for n in opened.plan.notes
        )


def test_a_backends_begin_is_called_before_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computed, captured or run again: with the step's own lengths, and the capture's tensors."""
    seen: list[tuple[bool, list[int], int]] = []

    def begin(need: AttentionNeed, batch: Batch) -> None:
        assert need.head_dim > 0
        seen.append((batch.captured, list(batch.context_lens), batch.slots_T.data_ptr()))

    catalog = load_catalog()
    hook = "inferno_attention_backends"
    offers = tuple(
        Offer(evolve(offer.item, begin=begin), offer.distribution) for offer in catalog.of(hook)
    )
    with open_model(
        "demo",
        Options(device="cpu", dtype="bfloat16"),
        Catalog(catalog.plugins, {**catalog.offers, hook: offers}),
    ) as opened:
        engine = Engine.load(opened)
    runner, lengths = runner_of(engine), list[int]()
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    engine.submit(Request(id="0", token_ids=(1, 2, 3), params=params))
    while engine.busy:
        engine.step()
        lengths.append(seen[-1][1][0])
    assert lengths == [3, 4, 5, 6, 7]
    assert runner.replays is not None and len(runner.replays.shapes) == 1
    replayed = [address for captured, _, address in seen[1:] if not captured]
    assert len(set(replayed)) == 1, "the steps are at the capture's address"
