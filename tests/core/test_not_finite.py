"""A request whose logits are NaN or infinite ends with an error, and no other one."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.core.test_engine import CONFIG, VOCAB, assert_same, ids, prompt_of, run
from tests.core.test_in_flight import load
from tests.tiny_served import opened_llm, serving, write

from inferno import LLM
from inferno.errors import NonFiniteError
from inferno.plan import Options, open_model
from inferno.request.requests import FinishReason, Pooling, Request
from inferno.request.sampling_params import SamplingParams
from inferno.sampling import are_broken
from inferno.testing import randomize
from inferno.testing.alike import alike
from inferno_eval.forward import Scorer
from inferno_eval.windows import windows_of

POISON = 100 % VOCAB
"""The token whose embedding is NaN."""


def poison(folder: Path) -> Path:
    """Make one token's embedding NaN, as damaged weights would."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.embed_tokens.weight"][POISON] = math.nan
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("poisoned")
    fields = {k: v for k, v in CONFIG.items() if k != "architectures"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields), dtype=torch.float32)
    randomize(model)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "dtype": "float32"}))
    return poison(folder)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    write(folder)
    return poison(folder)


def clean(seed: int, length: int) -> tuple[int, ...]:
    return tuple(i for i in prompt_of(seed, 2 * length) if i != POISON)[:length]


SEEDED = SamplingParams(seed=1, max_tokens=9, logit_bias={POISON: -100.0})
GREEDY = SamplingParams(temperature=0, max_tokens=6)
WAYS = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1.0, "seed": 3},
    "of the best": {"temperature": 1.0, "seed": 3, "top_k": 5, "top_p": 0.9},
    "penalised": {"temperature": 0, "presence_penalty": 1.0},
    "scored": {"temperature": 0, "logprobs": 2},
    "with its prompt": {"temperature": 0, "prompt_logprobs": 1},
    "of a few tokens": {"temperature": 0, "allowed_token_ids": (3, 4, POISON)},
}


def broken_by(way: str, drawn: bool) -> Request:
    """A request that meets the poison: at the end of its prompt, or as the first token it draws."""
    params = SamplingParams(**WAYS[way], max_tokens=6)  # type: ignore[arg-type]
    if drawn:
        params = SamplingParams(
            **WAYS[way],  # type: ignore[arg-type]
            logit_bias={POISON: 99.0 + 1e4},
            max_tokens=6,
        )
    prompt = clean(1, 20) if drawn else (*clean(1, 20), POISON)
    return Request(id="broken", token_ids=prompt, params=params)


ENGINES: dict[str, Any] = {
    "at once": partial(load),
    "overlapping": partial(load, lag=1, overlaps=True),
    "with drafts": partial(load, speculative="ngram"),
    "without kernels": partial(load, disable=("inferno-cpu",)),
}


@alike
@pytest.mark.parametrize("how", ENGINES)
@pytest.mark.parametrize("drawn", [False, True], ids=["prompt", "drawn"])
def test_the_request_ends_with_an_error_and_its_neighbours_do_not_notice(
    checkpoint: Path, how: str, drawn: bool, caplog: pytest.LogCaptureFixture
) -> None:
    neighbours = [
        Request(id="greedy", token_ids=clean(2, 33), params=GREEDY),
        Request(id="seeded", token_ids=clean(3, 5), params=SEEDED),
    ]
    engine = ENGINES[how](checkpoint)
    expected = run(engine, neighbours)
    for count, way in enumerate(WAYS, 1):
        answers = run(engine, [neighbours[0], broken_by(way, drawn), neighbours[1]])
        *before, last = answers.pop("broken")
        assert ids(before) == ([POISON] if drawn else [])
        assert (last.token_id, last.finish) == (None, FinishReason.ERROR)
        error = last.failure()
        assert isinstance(error, NonFiniteError)
        assert "request broken: the model's output for token 21 is NaN" in error.cause
        assert "compute type float32, cache type float32" in error.cause
        for name, outputs in answers.items():
            assert_same(outputs, expected[name])
        assert engine.stats().non_finite == count
        lines = [r for r in caplog.records if "request broken" in r.getMessage()]
        assert len(lines) == count and lines[-1].levelno == logging.ERROR
    # Its blocks are free again, with NaN in them.
    later = [Request(id=str(i), token_ids=clean(i, 70), params=GREEDY) for i in range(9)]
    again = run(engine, later)
    fresh = ENGINES[how](checkpoint)
    for name, outputs in run(fresh, later).items():
        assert_same(again[name], outputs)


def test_a_prompt_whose_middle_cannot_be_scored_ends_though_its_end_could_be(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(checkpoint)
    runner: Any = engine._runner
    logits_of = runner._model.logits

    def spoiled(hidden_SD: torch.Tensor) -> torch.Tensor:
        logits_SV: torch.Tensor = logits_of(hidden_SD)
        if len(logits_SV) > 4:
            logits_SV[3] = math.inf
        return logits_SV

    monkeypatch.setattr(runner._model, "logits", spoiled)
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=0)
    request = Request(id="scored", token_ids=clean(1, 20), params=params)
    [output] = run(engine, [request])["scored"]
    error = output.failure()
    assert isinstance(error, NonFiniteError) and "token 4 " in error.cause


def test_rows_are_broken_by_nan_by_infinity_and_by_nothing_left() -> None:
    rows = torch.tensor(
        [[1, 2, 3], [1, math.nan, 3], [1, math.inf, 3], [-math.inf, 2, 3], [-math.inf] * 3]
    )
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert are_broken(rows.to(dtype)).tolist() == [False, True, True, False, True]


@pytest.mark.parametrize("pooling", ["last", "mean", "max"])
def test_an_embedding_is_never_nan(checkpoint: Path, pooling: Pooling) -> None:
    with LLM(str(checkpoint), device="cpu") as llm:
        with pytest.raises(NonFiniteError, match="NaN or infinite"):
            llm.embed([(*clean(1, 9), POISON)], pooling=pooling)
        assert all(math.isfinite(x) for x in llm.embed([clean(1, 9)], pooling=pooling)[0])


def test_llm_raises_the_error_and_goes_on(checkpoint: Path) -> None:
    with LLM(str(checkpoint), device="cpu", kv_cache_dtype="int8", dtype="bfloat16") as llm:
        good, bad = list(clean(1, 9)), [*clean(1, 9), POISON]
        before = llm.generate([good], GREEDY)[0].outputs[0].token_ids
        with pytest.raises(NonFiniteError) as raised:
            llm.generate([good, bad], GREEDY)
        assert "compute type bfloat16, cache type int8" in raised.value.cause
        assert raised.value.remedy.startswith("Try --kv-cache-dtype auto and --dtype float32;")
        with pytest.raises(NonFiniteError):
            list(llm.stream(bad, GREEDY))
        assert llm.generate([good], GREEDY)[0].outputs[0].token_ids == before


def test_async_llm_raises_it_too(served: Path) -> None:
    async def ask() -> None:
        async with opened_llm(served) as llm:
            with pytest.raises(NonFiniteError):
                await llm.generate([1, 2, POISON], GREEDY)
            with pytest.raises(NonFiniteError):
                await llm.embed([[1, 2, POISON]])

    asyncio.run(ask())


def test_a_server_answers_with_an_error(served: Path) -> None:
    with serving(served) as http:
        model = http.get("/v1/models").json()["data"][0]["id"]
        body = {"model": model, "prompt": [1, 2, POISON], "max_tokens": 4}
        answer = http.post("/v1/completions", json=body)
        assert answer.status_code == 500
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "non_finite_logits")
        assert "NaN or infinite" in error["message"]
        streamed = http.post("/v1/completions", json={**body, "stream": True})
        *_, last = [line for line in streamed.text.splitlines() if line.startswith("data: ")]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "non_finite_logits"
        vectors = http.post("/v1/embeddings", json={"model": model, "input": [[1, 2, POISON]]})
        assert vectors.status_code == 500
        # Greedy: a draw may be the poisoned token.
        good = http.post("/v1/completions", json={**body, "prompt": [1, 2, 3], "temperature": 0})
        assert good.status_code == 200
        metrics = http.get("/metrics").text
        [line] = [
            each
            for each in metrics.splitlines()
            if each.startswith("inferno_non_finite_requests_") and "_created" not in each
        ]
        assert line.endswith(" 3.0")


def test_an_evaluation_names_the_window(checkpoint: Path) -> None:
    token_ids = [*clean(1, 30), POISON, *clean(2, 9)]
    windows = windows_of(token_ids, window=8)
    options = Options(device="cpu", max_model_len=8, max_num_seqs=1, cache_policy="none")
    with open_model(str(checkpoint), options) as opened:
        scorer = Scorer(opened)
    with pytest.raises(NonFiniteError, match="window 3 of the text") as raised:
        list(scorer.score(windows, VOCAB))
    assert "compute type float32" in raised.value.cause
