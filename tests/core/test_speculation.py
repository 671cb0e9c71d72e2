"""Speculative decoding: the same output, token for token, in fewer steps."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from tests.core.test_engine import (
    CONFIG,
    MIXED,
    VOCAB,
    assert_same,
    ids,
    mixed_requests,
    prompt_of,
    run,
)
from tests.toy_states import catalog_with_toy, write_toy

from inferno import LLM
from inferno.builtin.draft_model import DraftModelDrafter
from inferno.builtin.ngram import continuation
from inferno.contracts import (
    CacheTensor,
    Drafter,
    DraftParts,
    DraftRequest,
    Lookahead,
    Span,
    StateSpec,
)
from inferno.core.engine import Engine
from inferno.core.runner import ModelRunner
from inferno.errors import OptionError, OutOfMemoryError, UnsupportedError
from inferno.plan import Opened, Options, StateUse, open_model, resolve, with_num_blocks
from inferno.plan.cache_size import CacheSizes
from inferno.plan.draft_cost import Acceptance, DraftCost, draft_counts, verify_cost
from inferno.plan.memory import size_cache
from inferno.request.requests import Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing import randomize
from inferno.testing.alike import alike

MODEL = {**CONFIG, "max_position_embeddings": 512}


def made(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A checkpoint of random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = {**MODEL, **changes}
    fields = {k: v for k, v in config.items() if k != "architectures"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields), dtype=torch.float32)
    randomize(model, seed)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def smaller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("draft"), 1, num_hidden_layers=1)


def load(ref: Path, speculative: str | None = None, num_blocks: int = 0, **options: Any) -> Engine:
    given = Options(
        **{
            "max_num_seqs": 32,
            "max_num_batched_tokens": 256,
            "block_size": 8,
            "device": "cpu",
            "speculative": speculative,
            **options,
        }
    )
    with open_model(str(ref), given) as opened:
        if num_blocks:
            groups = with_num_blocks(opened.plan.groups, num_blocks)
            opened = evolve(opened, plan=evolve(opened.plan, groups=groups, max_model_len=64))
        return Engine.load(opened)


@alike
@pytest.mark.parametrize("proposer", ["ngram", "smaller", "itself"])
@pytest.mark.parametrize("budget", [256, 40])
def test_a_mixed_batch_gets_the_same_as_without(
    model: Path, smaller: Path, proposer: str, budget: int
) -> None:
    reference = {"smaller": str(smaller), "itself": str(model)}.get(proposer, proposer)
    plain = load(model, max_num_batched_tokens=budget)
    drafting = load(model, reference, max_num_batched_tokens=budget)
    expected, answers = run(plain, mixed_requests()), run(drafting, mixed_requests())
    assert expected.keys() == answers.keys() and len(answers) == len(MIXED)
    for name, outputs in expected.items():
        assert_same(answers[name], outputs)
    # One at a time, drafts pay.
    for request in mixed_requests():
        assert_same(run(drafting, [request])[request.id], expected[request.id])
    stats = drafting.stats()
    assert stats.draft_tokens > 0
    if proposer == "itself":
        assert stats.accepted_tokens > 0.8 * stats.draft_tokens


def test_usage_counts_every_draft(model: Path) -> None:
    engine = load(model, str(model))
    request = Request(
        id="0", token_ids=prompt_of(1, 9), params=SamplingParams(temperature=0, max_tokens=40)
    )
    outputs = run(engine, [request])["0"]
    assert len(outputs) == 40
    assert sum(o.num_drafts for o in outputs) == engine.stats().draft_tokens > 0
    assert sum(o.num_accepted for o in outputs) == engine.stats().accepted_tokens > 0
    assert engine.stats().steps == 40 - engine.stats().accepted_tokens


def test_no_step_with_drafts_is_captured_in_the_middle_of_an_answer(model: Path) -> None:
    """A capture takes as long as some twenty steps of a small model: more than drafts gain."""
    engine = load(model, "ngram", dtype="bfloat16")
    replays = cast(Any, engine)._runner.replays
    ahead = {size for size, _ in replays.shapes}
    assert ahead == {1, *(1 + count for count in draft_counts(8))}
    captured: list[tuple[int, int]] = []
    capture = type(replays)._captured

    def note(*args: Any) -> Any:
        captured.append(args[1:])
        return capture(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(replays), "_captured", note)
        for temperature, length in ((0, 40), (1, 30), (0, 200)):
            params = SamplingParams(
                temperature=temperature, seed=0, max_tokens=150, ignore_eos=True
            )
            text = (prompt_of(1, 9) * 30)[:length]
            request = Request(id="0", token_ids=text, params=params)
            assert len(run(engine, [request])["0"]) == 150
    assert engine.stats().draft_tokens > 0 and not captured


def test_short_steps_of_a_draft_model_are_replayed(model: Path) -> None:
    engine = load(model, str(model), dtype="bfloat16")
    replays = cast(Any, engine)._runner.drafting.draft_replays
    replayed: list[bool] = []
    run_step = type(replays).run

    def note(*args: Any) -> Any:
        logits_SV = run_step(*args)
        replayed.append(args[0] is replays and logits_SV is not None)
        return logits_SV

    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(replays), "run", note)
        run(engine, [Request(id="0", token_ids=prompt_of(1, 9), params=params)])
    drafts = engine.stats().draft_tokens
    assert drafts > 0 and sum(replayed) > drafts / 2, "all but those after a prompt"


@alike
def test_preempted_requests_get_the_same(model: Path, smaller: Path) -> None:
    requests = [
        Request(
            id=str(i),
            token_ids=prompt_of(i, 9),
            params=SamplingParams(temperature=i % 2, seed=i, max_tokens=40),
        )
        for i in range(5)
    ]
    expected = run(load(model), requests)
    for proposer in ("ngram", str(smaller), str(model)):
        engine = load(model, proposer, num_blocks=9)
        answers = run(engine, requests)
        assert engine.stats().preemptions > 0
        for request in requests:
            assert_same(answers[request.id], expected[request.id])


def test_prefix_hits_and_drafts(model: Path, smaller: Path) -> None:
    engine, plain = load(model, str(smaller)), load(model)
    for length in (30, 60, 61, 90):
        request = Request(
            id="x",
            token_ids=prompt_of(3, length),
            params=SamplingParams(temperature=0, max_tokens=30),
        )
        ours, theirs = run(engine, [request])["x"], run(plain, [request])["x"]
        assert_same(ours, theirs)
        assert ours[0].num_cached == theirs[0].num_cached


# --- what cannot be ------------------------------------------------------------------------------


def test_a_plan_that_fails_leaves_no_draft_model_open(
    model: Path, smaller: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Opened] = []
    close = Opened.close

    def seen(self: Opened) -> None:
        opened.append(self)
        close(self)

    sized: list[int] = []

    def too_small(*args: Any, **more: Any) -> Any:
        sized.append(0)
        if len(sized) == 2:  # after the draft model's
            raise OutOfMemoryError("too little memory", "Add some.")
        return size_cache(*args, **more)

    monkeypatch.setattr(Opened, "close", seen)
    monkeypatch.setattr("inferno.plan.stages.size_cache", too_small)
    with pytest.raises(OutOfMemoryError):
        resolve(str(model), Options(speculative=str(smaller), device="cpu"))
    assert [each.plan.ref for each in opened] == [str(smaller)]


def test_a_draft_model_needs_the_same_vocabulary(model: Path, tmp_path: Path) -> None:
    larger = made(tmp_path / "larger", vocab_size=VOCAB + 8)
    with pytest.raises(OptionError, match="has 128 tokens, the model 120"):
        resolve(str(model), Options(speculative=str(larger)))


def test_a_draft_models_tokens_must_mean_the_same(tmp_path: Path) -> None:
    """The same number of tokens, two of them exchanged."""
    demo = Path(resolve("demo").path)
    draft = tmp_path / "draft"
    shutil.copytree(demo, draft)
    tokenizer = json.loads((draft / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    first, second = list(vocab)[500:502]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(OptionError, match="another vocabulary"):
        LLM("demo", speculative=str(draft), device="cpu")


def test_the_draft_proposer_needs_a_model() -> None:
    with pytest.raises(OptionError, match="names no model"):
        resolve("demo", Options(speculative="draft"))


def test_the_number_of_drafts_needs_a_proposer() -> None:
    with pytest.raises(OptionError, match="without speculative"):
        Options(num_speculative_tokens=3)


# --- proposers that cannot be trusted -------------------------------------------------------------


class Hostile(Drafter):
    """A proposer of other people, with every kind of answer."""

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self._answer = answer

    def propose(self, requests: Sequence[DraftRequest], lookahead: Lookahead) -> Any:
        return self._answer(len(requests))


@alike
@pytest.mark.parametrize(
    "answer",
    [
        lambda n: [[-1, 3]] * n,
        lambda n: [[3, VOCAB, 10**12]] * n,
        lambda n: [list(range(1000))] * n,
        lambda n: [np.array([1, 2, 3])] * n,
        lambda n: [],
        lambda n: [[1]] * (n + 1),
        lambda n: None,
        lambda n: [["a", None]] * n,
        lambda n: 1 / 0,
    ],
)
def test_a_bad_proposer_costs_nothing_but_drafts(model: Path, answer: Any) -> None:
    engine = load(model, "ngram")
    runner = engine._runner
    assert isinstance(runner, ModelRunner) and runner.drafting is not None
    runner.drafting.drafter = Hostile(answer)
    expected = run(load(model), mixed_requests())
    for name, outputs in run(engine, mixed_requests()).items():
        assert_same(outputs, expected[name])


@pytest.mark.parametrize(
    "disable", [(), pytest.param(("inferno-cpu",), marks=pytest.mark.slow)], ids=["native", "torch"]
)
def test_a_draft_model_may_have_fewer_tokens(
    model: Path, tmp_path: Path, disable: tuple[str, ...]
) -> None:
    """The model's vocabulary is often padded further."""
    fewer = made(tmp_path / "fewer", 1, num_hidden_layers=1, vocab_size=VOCAB - 10)
    engine, expected = load(model, str(fewer), disable=disable), run(load(model), mixed_requests())
    biased = Request(
        id="biased",
        token_ids=prompt_of(1, 9),
        params=SamplingParams(temperature=0, logit_bias={VOCAB - 1: 100.0}, max_tokens=12),
    )
    beyond = evolve(biased, id="beyond", token_ids=(*biased.token_ids, VOCAB - 1))
    answers = run(engine, [*mixed_requests(), biased, beyond])
    assert isinstance(engine._runner, ModelRunner) and engine._runner.drafting is not None
    assert engine._runner.drafting.drafter is not None, "it has not failed"
    assert set(ids(answers["biased"])) == {VOCAB - 1}
    for name, outputs in expected.items():
        assert_same(answers[name], outputs)
    for request in mixed_requests():  # one at a time, drafts pay however long steps take
        assert_same(run(engine, [request])[request.id], expected[request.id])
    assert engine.stats().draft_tokens > 0


# --- the plan ------------------------------------------------------------------------------------


def test_the_plan_has_the_draft_models_memory_and_cache(model: Path, smaller: Path) -> None:
    plain = resolve(str(model), Options(device="cpu"))
    plan = resolve(str(model), Options(device="cpu", speculative=str(smaller)))
    assert plan.speculation is not None and plan.speculation.draft is not None
    assert plan.speculation.proposer == "draft"
    layers = [layer for use in plan.attention for layer in use.layers]
    assert sorted(layers) == [0, 1, 2], "two of the model, one of the draft model"
    assert plan.groups[0].unit_bytes == 1.5 * plain.groups[0].unit_bytes
    assert "draft weights" in [item.name for item in plan.memory]


# --- n-grams -------------------------------------------------------------------------------------


def array(token_ids: list[int]) -> Any:
    return np.array(token_ids, np.int64)


def test_ngrams_find_the_latest_continuation_of_the_longest_end() -> None:
    assert continuation(array([1, 2, 3, 4, 9, 1, 2, 3]), 2) == [4, 9]
    assert continuation(array([1, 2, 5, 1, 2, 6, 1, 2]), 1) == [6]
    assert continuation(array([9, 1, 2, 5, 1, 2, 6, 9, 1, 2]), 1) == [5]
    assert continuation(array([1, 2, 1, 2, 1]), 5) == [2, 1, 2, 1, 2]
    assert continuation(array([1, 2, 3]), 5) == []
    assert continuation(array([3, 1, 4, 1]), 5) == [], "one token matches by chance"


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 8))
def test_ngrams_propose_what_followed_before(token_ids: list[int], count: int) -> None:
    drafts = continuation(array(token_ids), count)
    assert len(drafts) in (0, count)
    if drafts:
        followed = [
            token_ids[i + 1]
            for i in range(1, len(token_ids) - 1)
            if token_ids[i - 1 : i + 1] == token_ids[-2:]
        ]
        assert drafts[0] in followed


def test_a_draft_model_catches_up_in_bounded_batches() -> None:
    """Many rows may want drafts at once, after long contexts."""
    batches: list[int] = []

    class Counting:
        def logits(self, model: Any, spans: Sequence[Span]) -> torch.Tensor:
            batches.append(sum(span.num_tokens for span in spans))
            return torch.zeros(len(spans), VOCAB)

        def write(self, row: int, position: int, token_id: int) -> None: ...

        def draw_draft(self, logits: torch.Tensor, rows: Sequence[int], offset: int) -> list[int]:
            return [offset] * len(rows)

    drafter = DraftModelDrafter(
        DraftParts(model=cast(Any, None), draft=cast(Any, 1), max_model_len=9999)
    )
    requests = [DraftRequest(row, array([0] * 5000), 3) for row in range(16)]
    assert drafter.propose(requests, cast(Any, Counting())) == [[0, 1, 2]] * 16
    assert max(batches) <= 2048
    assert sum(batches) == 16 * (5000 + 2), "every token once"
    batches.clear()
    accepted = [DraftRequest(row, array([0] * 5000 + [0, 7]), 2) for row in range(16)]
    drafter.propose(accepted, cast(Any, Counting()))
    assert batches == [16, 16], "the accepted draft is computed, the rejected one was not kept"


# --- how many ------------------------------------------------------------------------------------


def test_the_number_of_drafts_follows_the_acceptance() -> None:
    cost = DraftCost(most=8)
    good, fair, bad = Acceptance(), Acceptance(), Acceptance()
    for _ in range(30):
        good.update(8, 8)
        fair.update(2, 1)
        bad.update(2, 0)
    assert good.count(cost, 1) == 8
    assert 0 < fair.count(cost, 1) < 8
    assert fair.count(cost, 64) == 0, "a large batch's step grows with its tokens"
    assert bad.count(cost, 1) == 0


def test_drafts_that_do_not_pay_are_tried_again_later_and_ever_more_seldom() -> None:
    cost, acceptance, tries = DraftCost(most=4), Acceptance(), []
    for token in range(3000):
        count = acceptance.count(cost, 1)
        if count:
            tries.append(token)
        acceptance.update(count, 0)
    assert 3 < len(tries) < 60
    assert tries[-1] > 2000


def test_drafts_are_tried_again_beside_other_sequences_too() -> None:
    cost, acceptance, tries = DraftCost(most=4), Acceptance(), 0
    for _ in range(400):
        count = acceptance.count(cost, 3)
        tries += count > 0
        acceptance.update(count, 0)
    assert 3 < tries < 40


@pytest.mark.parametrize("most", [1, 2, 3, 4, 8, 16])
def test_steps_verify_few_numbers_of_drafts(most: int) -> None:
    counts = draft_counts(most)
    assert counts[-1] == most and list(counts) == sorted(set(counts)) and len(counts) <= 4
    for verify in (0.02, 0.1, 0.3):
        for accepted in range(9):
            acceptance = Acceptance()
            for _ in range(20):
                acceptance.update(8, accepted)
            cost = DraftCost(most=most, verify=verify)
            assert acceptance.count(cost, 1) in (0, *counts)


def test_dear_drafts_are_tried_less_often_than_cheap_ones() -> None:
    tokens = {}
    for verify in (0.02, 0.45):
        cost, acceptance = DraftCost(most=8, verify=verify), Acceptance()
        tokens[verify] = 0
        for _ in range(400):
            count = acceptance.count(cost, 1)
            tokens[verify] += count
            acceptance.update(count, 0)
    assert 2 < tokens[0.45] < tokens[0.02] / 2
    assert 0.45 * tokens[0.45] < 0.02 * 400, "what was never accepted cost less than 2 %"


def test_the_cost_of_a_draft_is_that_of_the_shortest_steps() -> None:
    steps = iter([4.0, 20.0, 1.0, 9.0, 3.0, 2.6, 1.0, 2.7, 2.0, 30.0])
    assert verify_cost(lambda size: next(steps) / 1000, 8) == pytest.approx(0.2)
    sizes: list[int] = []

    def slow(size: int) -> float:
        sizes.append(size)
        return 0.1 * size

    assert verify_cost(slow, 4) == 0.45
    assert sizes == [1, 5], "long steps are not repeated"
    assert verify_cost(lambda size: 0.001, 8) == 0.01, "noise does not make drafts free"
    assert verify_cost(lambda size: 1.0 if size == 1 else math.inf, 8) is None


@pytest.mark.slow
def test_draws_of_drafts_have_the_models_distribution(model: Path) -> None:
    """Chi-square of the third token of 2000 draws, with and without drafts that are often right."""
    counts = []
    for speculative in (None, str(model)):
        engine = load(model, speculative, max_num_seqs=64)
        requests = [
            Request(
                id=str(i),
                token_ids=prompt_of(1, 9),
                params=SamplingParams(
                    temperature=0.2, max_tokens=3, seed=i + 5000 * bool(speculative)
                ),
            )
            for i in range(2000)
        ]
        counts.append(Counter(ids(o)[2] for o in run(engine, requests).values()))
    tokens = [t for t, n in (counts[0] + counts[1]).items() if n >= 10]
    chi2 = sum((counts[0][t] - counts[1][t]) ** 2 / (counts[0][t] + counts[1][t]) for t in tokens)
    freedom = len(tokens) - 1
    assert freedom > 3
    assert chi2 < freedom + 4 * (2 * freedom) ** 0.5


def test_usage_shows_drafts_in_llm() -> None:
    with LLM("demo", speculative="ngram", device="cpu") as llm:
        params = SamplingParams(temperature=0, max_tokens=60)
        [output] = llm.generate("The quick brown fox. The quick brown fox. The quick", params)
    with LLM("demo", device="cpu") as llm:
        [plain] = llm.generate("The quick brown fox. The quick brown fox. The quick", params)
    assert output.outputs[0].token_ids == plain.outputs[0].token_ids
    assert output.num_draft_tokens >= output.num_accepted_tokens > 20
    assert plain.num_draft_tokens == 0


@alike
@pytest.mark.parametrize("layers", [("state", "attention", "window"), ("state", "state")])
@pytest.mark.parametrize("lag", [0, 1])
def test_models_with_states_get_the_same_from_a_draft_model(
    smaller: Path, tmp_path: Path, layers: tuple[str, ...], lag: int
) -> None:
    """Also with steps in flight, although no plan has both."""
    toy, catalog = write_toy(tmp_path, layers, vocab=VOCAB), catalog_with_toy()

    def loaded(speculative: str | None) -> Engine:
        options = Options(
            device="cpu",
            speculative=speculative,
            max_num_seqs=8,
            max_num_batched_tokens=40,
            block_size=8,
        )
        with open_model(toy, options, catalog) as opened:
            opened = evolve(opened, plan=evolve(opened.plan, overlap=bool(lag)))
            return Engine.load(opened)

    plain, drafting = loaded(None), loaded(str(smaller))
    assert drafting.plan.groups[-1].num_drafts == 8 * 4
    expected, answers = run(plain, mixed_requests()), run(drafting, mixed_requests())
    for name, outputs in expected.items():
        assert_same(answers[name], outputs)
    for request in mixed_requests():
        assert_same(run(drafting, [request])[request.id], expected[request.id])
    assert drafting.stats().draft_tokens > 0


def test_a_draft_model_with_states_is_refused(model: Path, tmp_path: Path) -> None:
    toy = write_toy(tmp_path, ("state", "attention"), vocab=VOCAB)
    options = Options(device="cpu", speculative=toy)
    with pytest.raises(UnsupportedError, match="rolled back"):
        resolve(str(model), options, catalog_with_toy())


def test_states_of_drafts_are_as_many_as_memory_allows() -> None:
    each = 100 << 20
    spec = StateSpec(tensors={"state": CacheTensor((each // 4,), "float32")})
    use = StateUse(spec=spec, layers=(0,), cache=spec.resolved("float32"))
    for num_drafts, most in ((8, 8), (1, 2), (0, 0)):
        sizes = CacheSizes([], [use], 16, 4, 64, room=20 << 30, num_drafts=num_drafts)
        states = sizes.choose(1024)[-1]
        assert (states.num_slots, states.num_drafts) == (5 + most, most)
        assert sizes.state_bytes() == states.num_slots * each
