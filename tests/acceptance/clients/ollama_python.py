"""The `ollama` package, as editors use Ollama's API."""

from __future__ import annotations

import json
from typing import Any

import ollama
from words import (
    ANSWER,
    ASK_PERSON,
    ASK_THOUGHT,
    ASK_TOOLS,
    COUNT,
    HELLO,
    MODEL,
    THOUGHT,
    URL,
    add,
    equal,
    get_weather,
    run_flows,
)

client = ollama.Client(host=URL)

FUNCTIONS = {"get_weather": get_weather, "add": add}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def flow_chat() -> None:
    answer = client.chat(MODEL, user("Hi"), options={"temperature": 0, "num_ctx": 4096})
    equal(answer.message.content, HELLO)
    equal((answer.done, answer.done_reason), (True, "stop"))
    assert answer.eval_count and answer.prompt_eval_count and answer.total_duration


def flow_stream() -> None:
    parts = list(client.chat(MODEL, user("Hi"), stream=True))
    equal("".join(part.message.content or "" for part in parts), HELLO)
    equal([part.done for part in parts[-2:]], [False, True])


async def flow_async() -> None:
    parts = await ollama.AsyncClient(host=URL).chat(MODEL, user("Hi"), stream=True)
    equal("".join([part.message.content or "" async for part in parts]), HELLO)


def flow_generate() -> None:
    answer = client.generate(MODEL, "Hi")
    equal(answer.response, HELLO)
    assert answer.done and answer.eval_count
    parts = client.generate(MODEL, "Hi", system="Answer in one word: yes", stream=True)
    equal("".join(part.response for part in parts), "yes")


def flow_tools() -> None:
    """Tools are Python functions, whose signatures the package reads."""
    messages: list[Any] = user(ASK_TOOLS)
    for turn in range(3):
        answer = client.chat(MODEL, messages, tools=[get_weather, add])
        messages.append(answer.message)
        calls = answer.message.tool_calls or []
        equal(len(calls), 1 if turn < 2 else 0)
        for call in calls:
            result = FUNCTIONS[call.function.name](**call.function.arguments)
            messages.append({"role": "tool", "tool_name": call.function.name, "content": result})
    equal(answer.message.content, ANSWER)


def flow_tools_stream() -> None:
    parts = client.chat(MODEL, user(ASK_TOOLS), tools=[get_weather, add], stream=True)
    [call] = [call for part in parts for call in part.message.tool_calls or ()]
    equal((call.function.name, call.function.arguments), ("get_weather", {"city": "Paris"}))


def flow_structured() -> None:
    answer = client.chat(MODEL, user(ASK_PERSON), format=SCHEMA)
    equal(json.loads(answer.message.content or ""), {"name": "Ada Lovelace", "age": 36})
    answer = client.chat(MODEL, user(ASK_PERSON), format="json")
    equal(json.loads(answer.message.content or ""), {"name": "Ada Lovelace", "age": 36})


def flow_thinking() -> None:
    """For models that think."""
    answer = client.chat(MODEL, user(ASK_THOUGHT), think=True)
    equal((answer.message.thinking, answer.message.content), (THOUGHT, COUNT))
    parts = list(client.chat(MODEL, user(ASK_THOUGHT), think=True, stream=True))
    equal("".join(part.message.thinking or "" for part in parts), THOUGHT)
    equal("".join(part.message.content or "" for part in parts), COUNT)


def flow_models() -> None:
    names = [model.model for model in client.list().models]
    assert any(name in (MODEL, f"{MODEL}:latest") for name in names), names
    shown = client.show(MODEL)
    assert "completion" in (shown.capabilities or ()), shown
    running = [model.model for model in client.ps().models]
    assert any(name in (MODEL, f"{MODEL}:latest") for name in running), running


def flow_embeddings() -> None:
    answer = client.embed(MODEL, ["cat", "dog"])
    equal(len(answer.embeddings), 2)
    assert len(answer.embeddings[0]) > 0


def flow_errors() -> None:
    try:
        client.chat("nobody", user("Hi"))
    except ollama.ResponseError as error:
        equal(error.status_code, 404)
        assert error.error
    else:
        raise AssertionError("an unknown model was accepted")


if __name__ == "__main__":
    run_flows(globals())
