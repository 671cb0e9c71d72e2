"""SGLang's API over the demo model: trainers' requests, and how they read the answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file, save_file
from tests.peft_adapters import matrices, pairs, write_merged
from tests.server.conftest import Live

from inferno.llm import AsyncLLM
from inferno.plan import resolve

PROMPT = [5 + 7 * i % 90 for i in range(40)]
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Iterator[httpx.Client]:
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "max_num_seqs": 4}
    live = Live(AsyncLLM("demo", **options, memory="1GiB"))  # type: ignore[arg-type]
    yield httpx.Client(base_url=live.url, timeout=60)
    live.stop()


def asked(server: httpx.Client, path: str, body: dict[str, Any] | None = None) -> Any:
    """What verl's adapter gets: the JSON, or the text, of a POST that succeeds."""
    answer = server.post(path, json=body or {})
    assert answer.status_code == 200, answer.text
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    return answer.json() if is_json else answer.text


def generate(server: httpx.Client, **changes: Any) -> Any:
    return asked(server, "/generate", {"input_ids": PROMPT, "sampling_params": GREEDY, **changes})


def test_ids_go_in_and_ids_come_out_with_their_scores(server: httpx.Client) -> None:
    answer = generate(server, return_logprob=True, rid="mine")
    meta = answer["meta_info"]
    assert len(answer["output_ids"]) == 8 and isinstance(answer["text"], str)
    assert [id for _, id, _ in meta["output_token_logprobs"]] == answer["output_ids"]
    assert all(logprob <= 0 for logprob, _, _ in meta["output_token_logprobs"])
    assert meta["finish_reason"] == {"type": "length", "length": 8} and meta["id"] == "mine"
    assert meta["prompt_tokens"] == 40 and meta["completion_tokens"] == 8
    assert "input_token_logprobs" not in meta and "output_top_logprobs" not in meta
    again = generate(server, return_logprob=True, logprob_start_len=38, top_logprobs_num=2)
    meta = again["meta_info"]
    assert again["output_ids"] == answer["output_ids"] and meta["cached_tokens"] <= 38
    assert [id for _, id, _ in meta["input_token_logprobs"]] == PROMPT[38:]
    assert all(len(each) == 2 for each in meta["output_top_logprobs"])
    whole = generate(server, return_logprob=True, logprob_start_len=0)["meta_info"]
    assert whole["input_token_logprobs"][0] == [None, PROMPT[0], None]
    assert len(whole["input_token_logprobs"]) == 40


def test_several_prompts_and_several_outputs_are_a_list(server: httpx.Client) -> None:
    one = generate(server)
    answers = generate(server, input_ids=[PROMPT, PROMPT[:7]])
    assert answers[0]["output_ids"] == one["output_ids"]
    assert [each["meta_info"]["prompt_tokens"] for each in answers] == [40, 7]
    assert len(generate(server, input_ids=[PROMPT])) == 1
    assert len(generate(server, sampling_params={**GREEDY, "n": 3})) == 3
    text = generate(server, input_ids=None, text="Hello", sampling_params={"max_new_tokens": 3})
    assert text["meta_info"]["completion_tokens"] <= 3


def test_a_stream_has_all_of_the_text_so_far_in_each_event(server: httpx.Client) -> None:
    body = {"input_ids": PROMPT, "sampling_params": GREEDY, "stream": True}
    *events, done = server.post("/generate", json=body).text.strip().split("\n\n")
    entries = [json.loads(event.removeprefix("data: ")) for event in events]
    assert done == "data: [DONE]"
    ids = [entry["output_ids"] for entry in entries]
    assert all(later[: len(ids[i])] == ids[i] for i, later in enumerate(ids[1:]))
    assert ids[-1] == generate(server)["output_ids"]
    finished = [entry["meta_info"]["finish_reason"] for entry in entries]
    assert finished[-1]["type"] == "length" and not any(finished[:-1])


@pytest.mark.parametrize("paused", [False, True])
def test_a_loop_of_generating_and_updating_sees_the_version_and_the_answers_change(
    server: httpx.Client, tmp_path: Path, paused: bool
) -> None:
    model = Path(resolve("demo").path)
    other = write_merged(model, tmp_path / "other", pairs(matrices(model), 1, 8))
    outputs = []
    file = tmp_path / "weights.safetensors"  # written over each time, as trainers do
    for step, source in enumerate((other, model, other)):
        save_file(load_file(source / "model.safetensors"), file)
        if paused:
            told = asked(server, "/pause_generation", {"mode": "retract"})
            assert told["status"] == "ok" and server.get("/is_paused").json()["is_paused"]
        version = f"step-{step}-{paused}"
        body = {"model_path": str(file), "weight_version": version, "flush_cache": True}
        assert asked(server, "/update_weights_from_disk", body)["success"]
        if paused:
            asked(server, "/continue_generation")
        assert server.get("/flush_cache").status_code == 200
        answer = generate(server)
        assert answer["meta_info"]["weight_version"] == version
        assert answer["meta_info"]["cached_tokens"] == 0
        assert server.get("/get_model_info").json()["weight_version"] == version
        outputs.append(answer["output_ids"])
    assert outputs[0] == outputs[2] != outputs[1]


def test_requests_wait_in_a_pause_and_one_that_runs_goes_on_after_it(server: httpx.Client) -> None:
    long = {**GREEDY, "max_new_tokens": 300}
    expected = generate(server, sampling_params=long)["output_ids"]
    answers: dict[str, Any] = {}

    def ask(name: str, sampling: dict[str, Any]) -> None:
        answers[name] = generate(server, sampling_params=sampling)

    running = threading.Thread(target=ask, args=("running", long))
    running.start()
    asked(server, "/pause?mode=keep")
    late = threading.Thread(target=ask, args=("late", GREEDY))
    late.start()
    time.sleep(0.3)  # nobody may answer meanwhile: only a failure depends on it
    assert not answers.keys() & {"late"}
    asked(server, "/resume")
    for thread in (running, late):
        thread.join()
    assert answers["running"]["output_ids"] == expected
    assert answers["late"]["output_ids"] == expected[:8]


def test_requests_are_aborted_by_name_or_all(server: httpx.Client) -> None:
    body = {"input_ids": PROMPT, "sampling_params": {**GREEDY, "max_new_tokens": 900}}
    for abort in ({"rid": "mine"}, {"abort_all": True}):
        with server.stream("POST", "/generate", json={**body, "rid": "mine", "stream": True}) as s:
            lines = s.iter_lines()
            next(lines)
            asked(server, "/abort_request", abort)
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert events[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    assert asked(server, "/abort_request", {"rid": "none"}) == {"status": "ok"}
    assert generate(server)["output_ids"]


def test_memory_is_given_back_and_comes_by_parts(server: httpx.Client) -> None:
    expected = generate(server)["output_ids"]
    asked(server, "/release_memory_occupation", {"tags": ["kv_cache", "weights"]})
    body = {"input_ids": PROMPT, "sampling_params": GREEDY}
    assert server.post("/generate", json=body).status_code == 503
    asked(server, "/resume_memory_occupation", {"tags": ["weights"]})
    assert server.post("/generate", json=body).status_code == 503
    asked(server, "/resume_memory_occupation", {"tags": ["kv_cache", "cuda_graph"]})
    assert server.get("/health_generate").status_code == 200
    assert generate(server)["output_ids"] == expected


@pytest.mark.parametrize(
    "path",
    ["update_weights_from_tensor", "init_weight_transfer_engine", "init_communicator/"],
)
def test_weights_by_other_ways_are_refused_with_the_way_there_is(
    server: httpx.Client, path: str
) -> None:
    refused = server.post(f"/{path}", json={"serialized_named_tensors": ["gASVDA=="]})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["code"] == "unsupported_weight_transfer"
    assert "/update_weights_from_disk" in error["message"]


@pytest.mark.slow
def test_what_is_wrong_is_a_400_that_names_it(server: httpx.Client, tmp_path: Path) -> None:
    for body, param in (
        ({}, "input_ids"),
        ({"text": "a", "input_ids": [5]}, "input_ids"),
        ({"input_ids": [5], "sampling_params": {"top_p": 7}}, "sampling_params.top_p"),
        ({"input_ids": [5], "sampling_params": {"max_new_tokens": "x"}}, None),
        ({"input_ids": [10**9]}, None),
        ({"input_ids": [5], "image_data": ["x"]}, "image_data"),
    ):
        refused = server.post("/generate", json=body)
        assert refused.status_code == 400, refused.text
        assert param is None or refused.json()["error"]["param"] == param
    refused = server.post("/update_weights_from_disk", json={"model_path": str(tmp_path)})
    assert refused.status_code == 400 and not refused.json()["success"]
    assert server.post("/pause_generation", json={"mode": "x"}).status_code == 400
    forwarded = {"x-forwarded-for": "192.0.2.1"}
    assert server.post("/flush_cache", headers=forwarded).status_code == 403
