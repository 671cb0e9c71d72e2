"""Ollama's API over a fake model: its JSON, and the `ollama` package."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from litestar.testing import TestClient
from tests.server.conftest import Live
from tests.server.server_fakes import RESPONSE_TEMPLATE, FakeLLM
from tests.server.test_pooling import MEAN, TRANSFORMER, dense, pooling_of
from tests.server.test_written_tools import WRITTEN, llm

from inferno.llm.pooling import PoolingConfig
from inferno.server.http.transport import Limits

Start = Callable[..., TestClient[Any]]
USER = [{"role": "user", "content": "hi"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def lines(answer: Any) -> list[Any]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def parsing(reply: str = "Hello there", **options: Any) -> FakeLLM:
    return FakeLLM(reply=reply, response_template=RESPONSE_TEMPLATE, **options)


# --- chat and generate ----------------------------------------------------------------------------


def test_chat_streams_json_lines(client: Start) -> None:
    *parts, last = lines(client().post("/api/chat", json={"model": "fake", "messages": USER}))
    assert "".join(p["message"]["content"] for p in parts) == "Hello there"
    assert not any(p["done"] for p in parts)
    assert all(p["model"] == "fake" and p["created_at"].endswith("Z") for p in (*parts, last))
    assert (last["done"], last["done_reason"], last["message"]["content"]) == (True, "stop", "")
    assert last["eval_count"] == 11 and last["prompt_eval_count"] > 0
    durations = [last[f"{name}_duration"] for name in ("total", "load", "prompt_eval", "eval")]
    assert all(isinstance(d, int) and d >= 0 for d in durations)
    assert durations[0] >= durations[2] + durations[3] - 1


def test_chat_whole(client: Start) -> None:
    body = {"model": "fake:latest", "messages": USER, "stream": False}
    answer = client().post("/api/chat", json=body).json()
    assert answer["message"] == {"role": "assistant", "content": "Hello there"}
    assert answer["model"] == "fake:latest" and answer["done"]


def test_generate_uses_the_template_unless_raw(client: Start) -> None:
    llm = FakeLLM()
    start = client(llm)
    body = {"model": "fake", "prompt": "hi", "stream": False}
    assert start.post("/api/generate", json=body).json()["response"] == "Hello there"
    start.post("/api/generate", json={**body, "system": "be brief"})
    start.post("/api/generate", json={**body, "raw": True})
    prompts = [bytes(ids).decode() for ids, _ in llm.seen]
    assert prompts == [
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n",
        "hi",
    ]
    assert [params.max_tokens for _, params in llm.seen] == [None, None, 4096]


def test_generate_streams_json_lines(client: Start) -> None:
    answer = client().post("/api/generate", json={"model": "fake", "prompt": "hi", "raw": True})
    *parts, last = lines(answer)
    assert "".join(p["response"] for p in parts) == "Hello there"
    assert last["response"] == "" and last["done_reason"] == "stop"


@pytest.mark.parametrize(
    ("path", "body", "part"),
    [
        ("/api/chat", {"messages": []}, {"message": {"role": "assistant", "content": ""}}),
        ("/api/generate", {"keep_alive": -1}, {"response": ""}),
    ],
)
def test_without_a_prompt_the_model_is_loaded(
    client: Start, path: str, body: dict[str, Any], part: dict[str, Any]
) -> None:
    llm = FakeLLM()
    answer = client(llm).post(path, json={"model": "fake", **body}).json()
    assert (answer["done"], answer["done_reason"]) == (True, "load")
    assert part.items() <= answer.items() and llm.seen == []


def test_options_are_sampling_parameters(client: Start) -> None:
    llm = FakeLLM()
    options = {
        "num_predict": 5,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 7,
        "stop": ["x"],
        "repeat_penalty": 1.2,
        "repeat_last_n": 8,
        "presence_penalty": 0.25,
        "frequency_penalty": 0.5,
        "num_ctx": 2048,
        "mirostat": 0,
    }
    body = {"model": "fake", "messages": USER, "stream": False, "options": options}
    answer = client(llm).post("/api/chat", json=body).json()
    params = llm.seen[0][1]
    assert (params.max_tokens, params.temperature, params.top_k, params.top_p) == (5, 0.5, 3, 0.9)
    assert (params.min_p, params.seed, params.stop) == (0.1, 7, ("x",))
    assert (params.repetition_penalty, params.repeat_last_n) == (1.2, 8)
    assert (params.presence_penalty, params.frequency_penalty) == (0.25, 0.5)
    assert answer["x_inferno"] == {"ignored": ["options.num_ctx"]}
    assert answer["done_reason"] == "length" and answer["eval_count"] == 5


def test_minus_one_is_until_the_end(client: Start) -> None:
    llm = FakeLLM()
    options = {"num_predict": -1, "seed": -1}
    body = {"model": "fake", "prompt": "hi", "stream": False, "options": options}
    assert client(llm).post("/api/generate", json=body).status_code == 200
    assert (llm.seen[0][1].max_tokens, llm.seen[0][1].seed) == (None, None)


@pytest.mark.parametrize("stream", [True, False])
def test_thoughts_are_apart(client: Start, stream: bool) -> None:
    llm = parsing("<think>so</think>yes")
    body = {"model": "fake", "messages": USER, "think": True, "stream": stream}
    answer = client(llm).post("/api/chat", json=body)
    messages = [line["message"] for line in (lines(answer) if stream else [answer.json()])]
    assert "".join(m.get("thinking", "") for m in messages) == "so"
    assert "".join(m["content"] for m in messages) == "yes"


def test_think_switches_the_template(client: Start) -> None:
    llm = parsing()
    start = client(llm)
    for think in (True, False):
        body = {"model": "fake", "messages": USER, "think": think, "stream": False}
        assert start.post("/api/chat", json=body).status_code == 200
    assert [prompt.endswith("</think>\n\n") for prompt in llm.prompts[-2:]] == [False, True]


@pytest.mark.parametrize("stream", [True, False])
def test_calls_have_arguments_as_objects(client: Start, stream: bool) -> None:
    body = {"model": "fake", "messages": USER, "tools": [TOOL], "stream": stream}
    answer = client(parsing(CALL)).post("/api/chat", json=body)
    answers = lines(answer) if stream else [answer.json()]
    calls = [call for line in answers for call in line["message"].get("tool_calls", ())]
    assert [(c["function"]["name"], c["function"]["arguments"]) for c in calls] == [
        ("add", {"a": 1})
    ]
    assert answers[-1]["done_reason"] == "stop"


def test_results_of_calls_are_told_apart(client: Start) -> None:
    """The history of an agent: two calls, and their results in another order."""
    calls = [{"function": {"name": name, "arguments": {"a": 1}}} for name in ("add", "sub")]
    messages = [
        *USER,
        {"role": "assistant", "thinking": "so", "tool_calls": calls},
        {"role": "tool", "tool_name": "sub", "content": "0"},
        {"role": "tool", "tool_name": "add", "content": "2"},
    ]
    template = (
        "{% for m in messages %}{{ m.role }}|{{ m.tool_call_id }}|{{ m.reasoning_content }}|"
        "{% for c in m.tool_calls or [] %}{{ c.id }}={{ c.function.name }}"
        "{{ c.function.arguments.a }},{% endfor %};{% endfor %}"
    )
    from inferno.text import ChatTemplate

    llm = FakeLLM(template=ChatTemplate({"default": template}))
    body = {"model": "fake", "messages": messages, "stream": False}
    assert client(llm).post("/api/chat", json=body).status_code == 200
    prompt = llm.prompts[-1]
    assert "assistant||so|call_1_0=add1,call_1_1=sub1," in prompt
    assert "tool|call_1_1|" in prompt and prompt.index("call_1_1||") < prompt.index("call_1_0||")


def test_log_probabilities(client: Start) -> None:
    body = {"model": "fake", "messages": USER, "logprobs": True, "top_logprobs": 1}
    streamed = lines(client().post("/api/chat", json=body))
    whole = client().post("/api/chat", json={**body, "stream": False}).json()
    entries = [entry for line in streamed for entry in line.get("logprobs", ())]
    assert entries == whole["logprobs"] and len(entries) == 11
    assert entries[0]["token"] == "H" and len(entries[0]["top_logprobs"]) == 1


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/api/chat", {"model": "other", "messages": USER}, 404, "'other' does not exist"),
        ("/api/chat", {"messages": USER}, 400, "model"),
        ("/api/chat", {"model": "fake", "messages": [{"role": "user", "images": ["x"]}]}, 400,
         "images"),
        ("/api/chat", {"model": "fake", "messages": [{"content": "x"}]}, 400, "role"),
        ("/api/chat", {"model": "fake", "messages": USER, "format": "xml"}, 400, "format"),
        ("/api/chat", {"model": "fake", "messages": USER, "think": 3}, 400, "think"),
        ("/api/chat", {"model": "fake", "messages": USER, "think": "hard"}, 400, "think"),
        ("/api/chat", {"model": "fake", "messages": USER, "options": {"mirostat": 1}}, 400,
         "mirostat"),
        ("/api/chat", {"model": "fake", "messages": USER, "options": {"top_p": 7}}, 400, "top_p"),
        ("/api/chat", {"model": "fake", "messages": USER, "options": {"num_predict": "x"}}, 400,
         "num_predict"),
        ("/api/generate", {"model": "fake", "prompt": "a", "suffix": "b"}, 400, "suffix"),
        ("/api/generate", {"model": "fake", "prompt": "a", "template": "b"}, 400, "template"),
        ("/api/generate", {"model": "fake", "prompt": "a", "raw": True, "system": "b"}, 400,
         "system"),
        ("/api/embed", {"model": "fake", "input": ["a", ""]}, 400, "input[1]"),
        ("/api/embed", {"model": "fake", "input": "a", "dimensions": 2}, 400, "dimensions"),
        ("/api/show", {}, 400, "model"),
        ("/api/show", {"model": "other"}, 404, "other"),
        ("/api/pull", {"model": "other"}, 400, "inferno pull"),
        ("/api/create", {"model": "x"}, 400, "cannot be changed"),
        ("/api/copy", {"source": "a", "destination": "b"}, 400, "cannot be changed"),
        ("/api/push", {"model": "x"}, 400, "cannot be changed"),
    ],
)  # fmt: skip
def test_errors_have_ollamas_form(
    refusing: TestClient[Any], path: str, body: dict[str, Any], status: int, words: str
) -> None:
    answer = refusing.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"] and words in answer.json()["error"]


def test_an_error_within_a_stream_is_a_line(client: Start) -> None:
    answer = client(FakeLLM(dies_after=1)).post(
        "/api/chat", json={"model": "fake", "messages": USER}
    )
    *_, last = lines(answer)
    assert list(last) == ["error"]


# --- models and embeddings ------------------------------------------------------------------------


def test_models_are_listed_and_described(client: Start) -> None:
    start = client(parsing(), served_names=["org/a", "b"])
    assert [m["name"] for m in start.get("/api/tags").json()["models"]] == ["org/a", "b"]
    [running] = start.get("/api/ps").json()["models"]
    assert running["model"] == "org/a" and running["context_length"] == 4096
    shown = start.post("/api/show", json={"model": "b:latest"}).json()
    assert shown["capabilities"] == ["completion", "tools", "thinking", "embedding"]
    assert shown["model_info"]["fake.context_length"] == 4096
    assert shown["details"] == {
        "parent_model": "",
        "format": "safetensors",
        "family": "fake",
        "families": ["fake"],
        "parameter_size": "134.52M",
        "quantization_level": "F32",
    }
    assert start.get("/api/version").json()["version"]
    assert start.head("/").status_code == 200
    assert start.request("DELETE", "/api/delete", json={"model": "b"}).status_code == 400


def test_a_served_model_needs_no_pull(client: Start) -> None:
    assert lines(client().post("/api/pull", json={"model": "fake"})) == [{"status": "success"}]


def test_embeddings_are_normalized_and_cut(client: Start) -> None:
    start = client(FakeLLM(max_model_len=6, pooling=PoolingConfig(normalize=False)))
    answer = start.post("/api/embed", json={"model": "fake", "input": ["abcdefgh", "b"]}).json()
    assert [sum(x * x for x in v) for v in answer["embeddings"]] == pytest.approx([1, 1])
    assert answer["prompt_eval_count"] == 6 + 1
    one = start.post("/api/embeddings", json={"model": "fake", "prompt": "b"}).json()
    assert one["embedding"] == [3.0, 4.0, 98.0, 1.0]
    long = {"model": "fake", "input": "abcdefgh", "truncate": False}
    assert start.post("/api/embed", json=long).status_code == 400
    assert start.post("/api/embed", json={"model": "fake", "input": []}).status_code == 400


# --- the `ollama` package -------------------------------------------------------------------------


def sdk(server: Live) -> Any:
    return pytest.importorskip("ollama").Client(host=server.url)


def test_the_package_chats_and_generates(live: Callable[..., Live]) -> None:
    ollama = sdk(live(FakeLLM()))
    assert ollama.chat("fake", messages=USER).message.content == "Hello there"
    parts = [part.message.content for part in ollama.chat("fake", messages=USER, stream=True)]
    assert "".join(parts) == "Hello there" and len(parts) > 2
    done = ollama.generate("fake", "hi", options={"num_predict": 3})
    assert (done.response, done.done_reason, done.eval_count) == ("Hel", "length", 3)
    pieces = [part.response for part in ollama.generate("fake", "hi", stream=True)]
    assert "".join(pieces) == "Hello there"


def test_the_packages_agent_loop(live: Callable[..., Live]) -> None:
    def add(a: int) -> str:
        """Adds.

        Args:
            a: a number
        """
        return str(a + 1)

    llm = parsing(CALL)
    ollama = sdk(live(llm))
    messages: list[Any] = list(USER)
    answer = ollama.chat("fake", messages=messages, tools=[add])
    [call] = answer.message.tool_calls
    assert call.function.name == "add"
    messages += [
        answer.message,
        {"role": "tool", "tool_name": "add", "content": add(**call.function.arguments)},
    ]
    llm.reply = "<think>so</think>it is 2"
    final = ollama.chat("fake", messages=messages, tools=[add], think=True)
    assert (final.message.content, final.message.thinking) == ("it is 2", "so")


def test_the_package_lists_and_embeds(live: Callable[..., Live]) -> None:
    package = pytest.importorskip("ollama")
    ollama = sdk(live(FakeLLM()))
    assert [m.model for m in ollama.list().models] == ["fake"]
    assert "completion" in ollama.show("fake").capabilities
    assert ollama.ps().models[0].context_length == 4096
    assert len(ollama.embed("fake", ["a", "b"]).embeddings) == 2
    assert ollama.pull("fake").status == "success"
    with pytest.raises(package.ResponseError, match="does not exist") as caught:
        ollama.chat("other", messages=USER)
    assert caught.value.status_code == 404


# --- what is the same in every API ----------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/chat", "/api/tags", "/api/nothing"])
def test_what_the_gate_refuses_has_ollamas_format(client: Start, path: str) -> None:
    http = client(api_keys=["k"], allowed_hosts=["testserver.local"])
    key = {"X-Api-Key": "k"}
    for headers in ({**key, "Host": "evil.example"}, {**key, "Origin": "https://evil.example"}, {}):
        answer = http.post(path, json={}, headers=headers)
        assert answer.status_code in (401, 403, 404, 405), answer.text
        assert set(answer.json()) == {"error"} and isinstance(answer.json()["error"], str)


def test_a_late_body_is_refused_in_the_paths_format(live: Any) -> None:
    server = live(limits=Limits(body_seconds=0.1, body_rate=1e9))
    head = "POST /api/chat HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(head.encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert b" 408 " in answer and b'{"error":"the request' in answer


def test_embeddings_pass_the_layers_behind_the_pooling(client: Start) -> None:
    pooling = pooling_of(TRANSFORMER, MEAN, dense(), config={"hidden_size": 4})
    http = client(FakeLLM(pooling=pooling))
    old = http.post("/api/embeddings", json={"model": "fake", "prompt": "a"}).json()
    assert old["embedding"] == [3.0, 5.0]
    [unit] = http.post("/api/embed", json={"model": "fake", "input": "a"}).json()["embeddings"]
    assert unit == pytest.approx([3 / 34**0.5, 5 / 34**0.5])


def test_a_call_is_read_where_the_template_has_no_tools(client: Start) -> None:
    model = llm()
    body = {"model": "fake", "messages": USER, "tools": [TOOL], "stream": False}
    [call] = client(model).post("/api/chat", json=body).json()["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("f", {"a": 1})
    assert model.prompts[-1].startswith("[system]You can call these functions.")


def test_earlier_calls_and_results_are_text_where_the_template_has_no_tools(client: Start) -> None:
    model = llm(reply="It is seven.")
    calls = [{"function": {"name": "f", "arguments": {"a": 1}}}]
    turns = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_name": "f", "content": "seven"},
    ]
    body = {"model": "fake", "messages": [*USER, *turns], "tools": [TOOL], "stream": False}
    answer = client(model).post("/api/chat", json=body)
    assert "It is seven." in answer.text
    assert model.prompts[-1].replace('{"a":1}', '{"a": 1}').endswith(WRITTEN)
