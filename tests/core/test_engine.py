"""The engine with a real, tiny model: a request gets what it would get alone, whatever runs beside
it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferno.core.engine import Engine
from inferno.errors import RequestError
from inferno.plan import Options, reopen, resolve, with_num_blocks
from inferno.request.requests import EngineOutput, FinishReason, Logprobs, Request
from inferno.request.sampling_params import SamplingParams
from inferno.testing import randomize
from inferno.testing.tiny import Toy
from inferno.weights.loading import load_model

VOCAB = 120
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 10_000.0,
}


@pytest.fixture(scope="module")
def reference() -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**{k: v for k, v in CONFIG.items() if k != "architectures"})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomize(model)
    return model.eval()


@pytest.fixture(scope="module")
def checkpoint(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    reference.save_pretrained(path)
    (path / "config.json").write_text(json.dumps({**CONFIG, "dtype": "float32"}))
    return path


@pytest.fixture(scope="module")
def toy(checkpoint: Path) -> Toy:
    plan = resolve(
        str(checkpoint),
        Options(max_num_seqs=32, max_num_batched_tokens=256, block_size=8, device="cpu"),
    )
    return Toy(plan, load_model(reopen(plan)))


def prompt_of(seed: int, length: int) -> tuple[int, ...]:
    return tuple((seed * 31 + i * i * 7 + i * 13) % VOCAB for i in range(length))


Found = defaultdict[str, list[EngineOutput]]


def step(engine: Engine, found: Found) -> None:
    for token in engine.step():
        found[token.request_id].append(token)
    engine.check()


def run(engine: Engine, requests: Sequence[Request] = (), found: Found | None = None) -> Found:
    """Each request's tokens, until none is left; added to those already `found`."""
    found = Found(list) if found is None else found
    for request in requests:
        engine.submit(request)
    while engine.busy:
        step(engine, found)
    return found


def ids(tokens: Sequence[EngineOutput]) -> list[int]:
    token_ids = [token.token_id for token in tokens if token.token_id is not None]
    assert len(token_ids) == len(tokens), "an output without a token"
    return token_ids


def assert_same(ours: Sequence[EngineOutput], theirs: Sequence[EngineOutput]) -> None:
    assert ids(ours) == ids(theirs)
    assert [(t.finish, t.stop_id) for t in ours] == [(t.finish, t.stop_id) for t in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert_same_logprobs(mine.logprobs, other.logprobs)
        assert len(mine.prompt_logprobs or ()) == len(other.prompt_logprobs or ())
        for a, b in zip(mine.prompt_logprobs or (), other.prompt_logprobs or (), strict=True):
            assert_same_logprobs(a, b)


def assert_same_logprobs(ours: Logprobs | None, theirs: Logprobs | None) -> None:
    if ours is None or theirs is None:
        assert ours is theirs
        return
    assert (ours.token_id, ours.rank) == (theirs.token_id, theirs.rank)
    assert [i for i, _ in ours.top] == [i for i, _ in theirs.top]
    values = [ours.logprob, *(p for _, p in ours.top)]
    assert values == pytest.approx([theirs.logprob, *(p for _, p in theirs.top)], abs=1e-4)


MIXED = [
    SamplingParams(temperature=0, max_tokens=12),
    SamplingParams(temperature=1.0, seed=1, max_tokens=12),
    SamplingParams(temperature=1.0, seed=2, max_tokens=5),
    SamplingParams(temperature=0.2, seed=3, max_tokens=12),
    SamplingParams(temperature=3.0, seed=4, top_k=5, max_tokens=12),
    SamplingParams(temperature=1.5, seed=5, top_p=0.6, max_tokens=12),
    SamplingParams(temperature=1.5, seed=6, min_p=0.2, max_tokens=12),
    SamplingParams(temperature=1.5, seed=7, top_k=20, top_p=0.9, min_p=0.05, max_tokens=12),
    SamplingParams(temperature=0, repetition_penalty=1.8, max_tokens=12),
    SamplingParams(temperature=0, repetition_penalty=1.8, repeat_last_n=4, max_tokens=12),
    SamplingParams(temperature=0, presence_penalty=2.0, frequency_penalty=1.0, max_tokens=12),
    SamplingParams(temperature=0.8, seed=8, frequency_penalty=-2.0, max_tokens=12),
    SamplingParams(temperature=0, logit_bias={3: 100.0, 4: -100.0}, max_tokens=4),
    SamplingParams(
        temperature=1.0, seed=9, logit_bias=dict.fromkeys(range(60), -100.0), max_tokens=12
    ),
    SamplingParams(temperature=1.0, seed=10, logprobs=3, max_tokens=12),
    SamplingParams(temperature=0, logprobs=0, prompt_logprobs=2, max_tokens=12),
    SamplingParams(
        temperature=2.0, seed=11, stop_token_ids=tuple(range(0, VOCAB, 4)), max_tokens=12
    ),
    SamplingParams(
        temperature=2.0,
        seed=11,
        stop_token_ids=tuple(range(0, VOCAB, 4)),
        min_tokens=6,
        max_tokens=12,
    ),
    SamplingParams(temperature=1e-6, seed=12, top_p=0.01, max_tokens=12),
]


def mixed_requests() -> list[Request]:
    return [
        Request(
            id=str(i), token_ids=prompt_of(i % 7, 1 + 5 * (i % 7)), params=p, eos_token_ids=(11, 17)
        )
        for i, p in enumerate(MIXED)
    ]


def test_a_mixed_batch_gives_exactly_what_each_request_gives_alone(toy: Toy) -> None:
    requests = mixed_requests()
    together = run(toy.engine(), requests)
    for request in requests:
        assert_same(together[request.id], run(toy.engine(), [request])[request.id])
    assert len({tuple(ids(tokens)) for tokens in together.values()}) > len(MIXED) / 2, (
        "they are not all the same"
    )


def test_a_mixed_batch_is_the_same_when_its_prompts_are_chunked(toy: Toy) -> None:
    chunked = Toy(attrs.evolve(toy.plan, max_num_batched_tokens=32), toy.model)
    whole = run(toy.engine(), mixed_requests())
    for name, tokens in run(chunked.engine(), mixed_requests()).items():
        assert_same(tokens, whole[name])


REMEMBERING = [
    SamplingParams(temperature=0, presence_penalty=2.0, frequency_penalty=1.0, max_tokens=40),
    SamplingParams(temperature=0, repetition_penalty=1.8, repeat_last_n=9, max_tokens=40),
    SamplingParams(temperature=1.0, seed=1, frequency_penalty=2.0, logprobs=1, max_tokens=40),
    SamplingParams(
        temperature=1.0,
        seed=2,
        min_tokens=30,
        stop_token_ids=tuple(range(0, VOCAB, 3)),
        max_tokens=40,
    ),
    SamplingParams(temperature=0, repetition_penalty=1.8, prompt_logprobs=1, max_tokens=40),
    SamplingParams(temperature=0, frequency_penalty=1.0, repetition_penalty=1.5, max_tokens=40),
]


def test_a_preempted_request_goes_on_with_its_penalties_and_random_numbers(toy: Toy) -> None:
    requests = [
        Request(id=str(i), token_ids=prompt_of(i, 9), params=p) for i, p in enumerate(REMEMBERING)
    ]
    tight = Toy(
        attrs.evolve(toy.plan, groups=with_num_blocks(toy.plan.groups, 9), max_model_len=64),
        toy.model,
    ).engine()
    squeezed, whole = run(tight, requests), run(toy.engine(), requests)
    assert tight.stats().preemptions >= len(requests) / 2
    for request in requests:
        assert_same(squeezed[request.id], whole[request.id])


def test_requests_that_come_later_change_nothing(toy: Toy) -> None:
    engine = toy.engine()
    requests = mixed_requests()
    alone = run(toy.engine(), requests[:4])
    outputs = Found(list)
    for request in requests:
        engine.submit(request)
        step(engine, outputs)
    run(engine, found=outputs)
    for name, expected in alone.items():
        assert_same(outputs[name], expected)


params_st = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-9, 0.5, 1.0, 50.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, VOCAB - 1, VOCAB, 10_000]),
    top_p=st.sampled_from([0.0, 1e-6, 0.5, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.3, 1.0]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 2.0]),
    frequency_penalty=st.sampled_from([-2.0, 0.0, 0.7]),
    repetition_penalty=st.sampled_from([1e-3, 0.5, 1.0, 1.3, 1e3]),
    repeat_last_n=st.sampled_from([-1, 0, 1, 3, 1000]),
    logit_bias=st.dictionaries(
        st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.0, 0.0, 5.0, 1e6]), max_size=4
    ),
    seed=st.integers(-5, 2**64),
    stop_token_ids=st.lists(st.integers(0, VOCAB - 1), max_size=30).map(tuple),
    min_tokens=st.integers(0, 4),
    max_tokens=st.integers(4, 6),
    logprobs=st.sampled_from([None, 0, 2, 20]),
    prompt_logprobs=st.sampled_from([None, None, 1]),
)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(params=st.lists(params_st, min_size=2, max_size=4))
def test_any_combination_of_parameters_is_the_same_in_a_batch_and_alone(
    toy: Toy, params: list[SamplingParams]
) -> None:
    requests = [
        Request(id=str(i), token_ids=prompt_of(i, 4 + 9 * i), params=p, eos_token_ids=(5,))
        for i, p in enumerate(params)
    ]
    together = run(toy.engine(), requests)
    for request in requests:
        assert_same(together[request.id], run(toy.engine(), [request])[request.id])


# --- log-probabilities ----------------------------------------------------------------------------


def reference_logprobs(reference: Any, token_ids: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        logprobs: torch.Tensor = (
            reference(torch.tensor([list(token_ids)])).logits[0].log_softmax(-1)
        )
    return logprobs


@pytest.mark.parametrize("budget", [256, 32])
def test_prompt_logprobs_are_the_references(toy: Toy, reference: Any, budget: int) -> None:
    engine = Toy(attrs.evolve(toy.plan, max_num_batched_tokens=budget), toy.model).engine()
    params = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=4)
    prompts = {"long": prompt_of(1, 75), "short": prompt_of(2, 9), "one": prompt_of(3, 1)}
    for _ in range(2):  # the second time the prompts are in the cache
        ours = run(engine, [Request(id=i, token_ids=p, params=params) for i, p in prompts.items()])
        for name, prompt in prompts.items():
            first, *later = ours[name]
            assert first.prompt_logprobs is not None and first.prompt_logprobs[0] is None
            assert all(token.prompt_logprobs is None for token in later)
            expected_LV = reference_logprobs(reference, prompt)
            for i, logprobs in enumerate(first.prompt_logprobs[1:]):
                assert logprobs is not None and logprobs.token_id == prompt[i + 1]
                assert logprobs.logprob == pytest.approx(
                    float(expected_LV[i, prompt[i + 1]]), abs=1e-4
                )
                assert logprobs.rank == 1 + int(
                    (expected_LV[i] > expected_LV[i, prompt[i + 1]]).sum()
                )
                assert [p for _, p in logprobs.top] == pytest.approx(
                    expected_LV[i].topk(4).values.tolist(), abs=1e-4
                )


def test_logprobs_are_the_models_own_whatever_the_parameters(toy: Toy, reference: Any) -> None:
    params = SamplingParams(
        temperature=4.0, seed=1, top_k=30, repetition_penalty=2.0, logprobs=2, max_tokens=10
    )
    prompt = prompt_of(5, 20)
    tokens = run(toy.engine(), [Request(id="a", token_ids=prompt, params=params)])["a"]
    expected_LV = reference_logprobs(reference, [*prompt, *ids(tokens)])
    for i, token in enumerate(tokens):
        assert token.logprobs is not None
        own_V = expected_LV[len(prompt) - 1 + i]
        assert token.logprobs.logprob == pytest.approx(float(own_V[token.token_id]), abs=1e-4)
        assert [t for t, _ in token.logprobs.top] == own_V.topk(2).indices.tolist()


# --- requests that end otherwise ------------------------------------------------------------------


def test_an_aborted_request_leaves_nothing_and_the_others_alone(toy: Toy) -> None:
    engine = toy.engine()
    requests = mixed_requests()
    alone = run(toy.engine(), requests)
    for request in requests:
        engine.submit(request)
    outputs = Found(list)
    for gone in (*range(0, len(requests), 2), "never seen"):
        step(engine, outputs)
        engine.abort(str(gone))
        engine.check()
    run(engine, found=outputs)
    for i in range(1, len(requests), 2):
        assert_same(outputs[str(i)], alone[str(i)])
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_usage) == (0, 0, 0.0)


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (Request(id="x", token_ids=()), "empty"),
        (Request(id="x", token_ids=(1,) * 128), "the prompt has 128 tokens"),
        (Request(id="x", token_ids=(1, VOCAB)), f"token id {VOCAB}"),
        (Request(id="x", token_ids=(-1,)), "token id -1"),
        (
            Request(id="x", token_ids=(1,), params=SamplingParams(stop_token_ids=(VOCAB,))),
            "stop_token_ids",
        ),
        (
            Request(id="x", token_ids=(1,), params=SamplingParams(logit_bias={VOCAB: 1.0})),
            "logit_bias",
        ),
        (
            Request(id="x", token_ids=(1,), params=SamplingParams(logit_bias={1: float("nan")})),
            "logit_bias",
        ),
        (Request(id="busy", token_ids=(1,)), "in use"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_and_changes_nothing(
    toy: Toy, request_: Request, complaint: str
) -> None:
    engine = toy.engine()
    busy = Request(id="busy", token_ids=prompt_of(0, 5), params=MIXED[0])
    engine.submit(busy)
    with pytest.raises(RequestError, match=complaint):
        engine.submit(request_)
    engine.check()
    assert_same(run(engine)["busy"], run(toy.engine(), [busy])["busy"])


def test_the_longest_prompt_leaves_room_for_one_token(toy: Toy) -> None:
    tokens = run(toy.engine(), [Request(id="a", token_ids=prompt_of(0, 127), params=MIXED[0])])["a"]
    assert len(tokens) == 1 and tokens[0].finish == FinishReason.LENGTH


def test_an_idle_engine_has_nothing_to_say(toy: Toy) -> None:
    engine = toy.engine()
    assert not engine.busy and engine.step() == []


def test_loading_a_plan_gives_an_engine_that_a_close_ends(toy: Toy, checkpoint: Path) -> None:
    engine = Engine.load(reopen(toy.plan))
    request = mixed_requests()[1]
    assert_same(run(engine, [request])[request.id], run(toy.engine(), [request])[request.id])
    engine.close()
    engine.submit(request)
    with pytest.raises(RequestError, match="closed"):
        engine.step()


def test_a_seed_in_the_plan_repeats_requests_without_one(toy: Toy) -> None:
    seeded = Toy(attrs.evolve(toy.plan, seed=7), toy.model)
    request = Request(
        id="a", token_ids=prompt_of(0, 5), params=SamplingParams(temperature=1.5, max_tokens=20)
    )
    outputs = [ids(run(seeded.engine(), [request])["a"]) for _ in range(2)]
    assert outputs[0] == outputs[1]
