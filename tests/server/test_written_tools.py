"""Tools for a chat template that has none, through every API of the server that has tools."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.server.server_fakes import FakeLLM
from tests.server.test_tool_choice import CALL, COMPILES, built, fake, spec_of

from inferno.contracts import ChatNeed
from inferno.text import ChatTemplate

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
USER = {"role": "user", "content": "hi"}
WRITTEN = "[user]hi\n[assistant]" + CALL + "\n[user]Result of the call:\nseven\n[assistant]"
"""The turns of a call and its result, as every API's conversation is rendered."""


def llm(**fields: Any) -> FakeLLM:
    template = ChatTemplate({"default": TEMPLATE})
    return fake(
        template=template, output_format=built("generic", ChatNeed(template=TEMPLATE)), **fields
    )


def chat(call: Any = None) -> dict[str, Any]:
    function = {"name": "f", "arguments": '{"a": 1}'}
    calls = [{"id": "c", "type": "function", "function": function}]
    turns = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "seven"},
    ]
    return {"messages": [USER, *(turns if call else [])], "tools": [TOOL]}


def responses(call: Any = None) -> dict[str, Any]:
    turns = [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": "seven"},
    ]
    tool = {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA}
    return {"input": [USER, *(turns if call else [])], "tools": [tool]}


APIS = {
    "/v1/chat/completions": chat,
    "/v1/responses": responses,
}


def calls_of(path: str, answer: Any) -> list[tuple[str, Any]]:
    if path == "/v1/responses":
        items = [each for each in answer["output"] if each["type"] == "function_call"]
        return [(each["name"], json.loads(each["arguments"])) for each in items]
    functions = [each["function"] for each in answer["choices"][0]["message"]["tool_calls"]]
    return [(f["name"], json.loads(f["arguments"])) for f in functions]


@pytest.mark.parametrize("path", APIS)
def test_a_call_is_asked_for_and_read(client: Any, path: str) -> None:
    model = llm()
    answer = client(model).post(path, json={"model": "fake", **APIS[path]()})
    assert answer.status_code == 200, answer.text
    assert calls_of(path, answer.json()) == [("f", {"a": 1})]
    assert model.prompts[-1].startswith("[system]You can call these functions.")
    function = {"name": "f", "description": "d", "parameters": SCHEMA}
    assert f"\n{json.dumps(function)}\n" in model.prompts[-1]
    assert spec_of(model) is None, "the model decides"


@pytest.mark.parametrize("path", APIS)
def test_earlier_calls_and_results_are_text(client: Any, path: str) -> None:
    model = llm(reply="It is seven.")
    body = {"model": "fake", **APIS[path](call=True)}
    answer = client(model).post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert "It is seven." in answer.text
    assert model.prompts[-1].replace('{"a":1}', '{"a": 1}').endswith(WRITTEN)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_forced_call_is_held_by_a_grammar(client: Any, choice: Any) -> None:
    model = llm()
    answer = (
        client(model).post("/v1/chat/completions", json={**chat(), "tool_choice": choice}).json()
    )
    assert calls_of("/v1/chat/completions", answer) == [("f", {"a": 1})]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    spec = spec_of(model)
    assert (spec.kind, spec.param) == ("lark", "tool_choice")
    assert '"const": "f"' in spec.text and '"required": ["a"]' in spec.text


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_a_stream_is_the_whole_answer(live: Any, chunk: int) -> None:
    events = live(llm(reply=f"I look.\n{CALL}", chunk=chunk)).events(
        "/v1/chat/completions", **chat()
    )
    deltas = [e["choices"][0]["delta"] for e in events if isinstance(e, dict) and e["choices"]]
    assert "".join(d.get("content") or "" for d in deltas) == "I look."
    functions = [c["function"] for d in deltas for c in d.get("tool_calls") or ()]
    assert [f["name"] for f in functions if f.get("name")] == ["f"]
    assert json.loads("".join(f.get("arguments") or "" for f in functions)) == {"a": 1}


def test_without_tools_the_prompt_says_nothing_of_them(client: Any) -> None:
    model = llm()
    for body in ({"messages": [USER]}, {**chat(), "tool_choice": "none"}):
        answer = client(model).post("/v1/chat/completions", json=body).json()
        assert answer["choices"][0]["message"]["content"] == CALL
        assert model.prompts[-1] == "[user]hi\n[assistant]"


def test_tools_that_are_none_are_refused_where_a_prompt_is_only_rendered(client: Any) -> None:
    answer = client(llm()).post("/tokenize", json={"messages": [USER], "tools": [{}]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


def test_an_invalid_format_does_not_prevent_a_prompt(client: Any) -> None:
    """The model's own description is wrong: nothing parses the output, the template is all."""
    model = FakeLLM(response_template={"version": 1}, plan=COMPILES, reply="Seven.")
    answer = client(model).post("/v1/chat/completions", json={"messages": chat(True)["messages"]})
    assert answer.status_code == 200, answer.text
    assert "<|im_start|>tool\nseven" in model.prompts[-1]
