"""llama.cpp's API over a fake model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from litestar.testing import TestClient
from tests.fake_engine import byte_backend
from tests.server.server_fakes import FakeLLM

from inferno.text import Tokenizer

Start = Callable[..., TestClient[Any]]


def events(answer: Any) -> list[Any]:
    assert answer.status_code == 200, answer.text
    blocks = [block for block in answer.text.split("\n\n") if block]
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def test_completion_whole(client: Start) -> None:
    body = {"prompt": "hi", "n_predict": 5, "return_tokens": True, "seed": -1}
    llm = FakeLLM()
    answer = client(llm).post("/completion", json=body).json()
    assert (answer["content"], answer["tokens"]) == ("Hello", list(b"Hello"))
    assert (answer["stop"], answer["stop_type"]) == (True, "limit")
    assert (answer["tokens_predicted"], answer["tokens_evaluated"]) == (5, 2)
    timings = answer["timings"]
    assert (timings["predicted_n"], timings["cache_n"], timings["prompt_n"]) == (5, 2, 0)
    assert answer["generation_settings"]["n_predict"] == 5 and "x_inferno" not in answer
    assert llm.seen[0][1].seed is None


def test_completion_streams_events_and_ends_with_the_whole_answers_fields(client: Start) -> None:
    *parts, last = events(client().post("/completion", json={"prompt": "hi", "stream": True}))
    assert "".join(p["content"] for p in (*parts, last)) == "Hello there"
    assert not any(p["stop"] for p in parts)
    assert last["stop"] and last["stop_type"] == "eos" and last["timings"]["predicted_n"] == 11


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [("ab", b"ab"), ([97, 98], b"ab"), (["a", 98, "c"], b"abc"), ([98, "c"], b"bc")],
)
def test_prompts_mix_strings_and_tokens(client: Start, prompt: Any, ids: bytes) -> None:
    llm = FakeLLM()
    assert client(llm).post("/completion", json={"prompt": prompt}).status_code == 200
    assert bytes(llm.seen[0][0]) == ids


def test_parameters_have_llamacpps_names(client: Start) -> None:
    llm = FakeLLM()
    body = {
        "prompt": "a",
        "repeat_penalty": 1.1,
        "repeat_last_n": 4,
        "min_p": 0.1,
        "top_k": 2,
        "seed": 7,
        "stop": ["x"],
        "logit_bias": [[97, 2.5], [98, False]],
        "mirostat": 0,
        "cache_prompt": True,
        "samplers": ["top_k"],
    }
    answer = client(llm).post("/completion", json=body).json()
    params = llm.seen[0][1]
    assert (params.repetition_penalty, params.repeat_last_n, params.seed) == (1.1, 4, 7)
    assert params.logit_bias == {97: 2.5, 98: -100} and params.stop == ("x",)
    assert answer["x_inferno"] == {"ignored": ["samplers"]}


def test_probabilities(client: Start) -> None:
    body = {"prompt": "a", "n_probs": 2, "n_predict": 2}
    [first, _] = client().post("/completion", json=body).json()["completion_probabilities"]
    assert (first["id"], first["token"], len(first["top_logprobs"])) == (ord("H"), "H", 2)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/completion", {}, "prompt"),
        ("/completion", {"prompt": []}, "prompt"),
        ("/completion", {"prompt": {"a": 1}}, "prompt"),
        ("/completion", {"prompt": ["a", True]}, "prompt[1]"),
        ("/completion", {"prompt": [[1, 2]]}, "prompt[0]"),
        ("/completion", {"prompt": "a", "n_predict": -7}, "n_predict"),
        ("/completion", {"prompt": "a", "repeat_penalty": 0}, "repeat_penalty"),
        ("/completion", {"prompt": "a", "n_probs": 99}, "n_probs"),
        ("/completion", {"prompt": "a", "logit_bias": [["a", 1]]}, "logit_bias[0]"),
        ("/completion", {"prompt": "a", "mirostat": 2}, "mirostat"),
        ("/completion", {"prompt": "a", "model": "other"}, None),
        ("/infill", {"input_prefix": "a"}, "input_suffix"),
    ],
)
def test_bad_requests_name_the_field(
    refusing: TestClient[Any], path: str, body: dict[str, Any], param: str | None
) -> None:
    answer = refusing.post(path, json=body)
    assert answer.status_code == (404 if param is None else 400), answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("files", [True, False])
def test_infill_uses_the_vocabularys_tokens(client: Start, files: bool) -> None:
    backend = byte_backend()
    names = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    backend.add_special_tokens([*names, *(["<|repo_name|>", "<|file_sep|>"] if files else [])])
    llm = FakeLLM(tokenizer=Tokenizer(backend), vocab_size=300)
    body = {
        "input_prefix": "def f(",
        "input_suffix": "return",
        "prompt": "x",
        "input_extra": [{"filename": "a.py", "text": "A"}],
    }
    start = client(llm)
    assert start.post("/infill", json=body).json()["content"] == "Hello there"
    text = backend.decode(list(llm.seen[0][0]), skip_special_tokens=False)
    before = (
        "<|repo_name|>project\n<|file_sep|>a.py\nA<|file_sep|>file\n"
        if files
        else "--- a.py ---\nA\n\n"
    )
    assert text == f"{before}<|fim_prefix|>def f(<|fim_suffix|>return<|fim_middle|>x"
    refused = start.post("/infill", json={"input_extra": [{"filename": 3}]})
    assert refused.json()["error"]["param"] == "input_extra[0]"


def test_the_server_is_described(client: Start) -> None:
    start = client()
    props = start.get("/props").json()
    assert props["total_slots"] == 4 and props["model_alias"] == "fake"
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert "<|im_start|>" in props["chat_template"]
    assert [slot["is_processing"] for slot in start.get("/slots").json()] == [False] * 4
    assert start.get("/props", params={"model": "other"}).status_code == 404
    body = {"messages": [{"role": "user", "content": "hi"}]}
    answer = start.post("/apply-template", json=body).json()
    assert answer == {"prompt": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"}
