"""The `litellm` package, as a library, through each of the APIs that it knows."""

from __future__ import annotations

import json
from typing import Any

import litellm
from pydantic import BaseModel
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

litellm.num_retries = 0
OPENAI: dict[str, Any] = {
    "model": f"hosted_vllm/{MODEL}",
    "api_base": f"{URL}/v1",
    "api_key": "none",
}
ANTHROPIC: dict[str, Any] = {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": "none"}
OLLAMA: dict[str, Any] = {"model": f"ollama_chat/{MODEL}", "api_base": URL}

FUNCTIONS = {"get_weather": get_weather, "add": add}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "The sum of two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    },
]


class Person(BaseModel):
    name: str
    age: int


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def _chat(**route: Any) -> None:
    answer: Any = litellm.completion(**route, messages=user("Hi"))
    equal(answer.choices[0].message.content, HELLO)
    equal(answer.choices[0].finish_reason, "stop")


def _stream(**route: Any) -> None:
    chunks: Any = litellm.completion(**route, messages=user("Hi"), stream=True)
    equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks), HELLO)


def _tools(**route: Any) -> None:
    messages = user(ASK_TOOLS)
    for turn in range(3):
        answer: Any = litellm.completion(**route, messages=messages, tools=TOOLS)
        message = answer.choices[0].message
        messages.append(message)
        equal(len(message.tool_calls or ()), 1 if turn < 2 else 0)
        for call in message.tool_calls or ():
            result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    equal(message.content, ANSWER)


def flow_chat() -> None:
    _chat(**OPENAI)


def flow_stream() -> None:
    _stream(**OPENAI)


def flow_tools() -> None:
    _tools(**OPENAI)


def flow_structured() -> None:
    answer: Any = litellm.completion(**OPENAI, messages=user(ASK_PERSON), response_format=Person)
    person = Person.model_validate_json(answer.choices[0].message.content)
    equal(person, Person(name="Ada Lovelace", age=36))


def flow_thinking() -> None:
    """For models that think."""
    answer: Any = litellm.completion(**OPENAI, messages=user(ASK_THOUGHT))
    message = answer.choices[0].message
    equal((message.reasoning_content, message.content), (THOUGHT, COUNT))


def flow_responses() -> None:
    answer: Any = litellm.responses(
        model=f"openai/{MODEL}", api_base=f"{URL}/v1", api_key="none", input="Hi"
    )
    equal("".join(p.text for i in answer.output if i.type == "message" for p in i.content), HELLO)


def flow_embeddings() -> None:
    answer: Any = litellm.embedding(**OPENAI, input=["cat", "dog"])
    equal(len(answer.data), 2)


def flow_rerank() -> None:
    answer: Any = litellm.rerank(**OPENAI, query="cat", documents=["a cat", "a stone"], top_n=2)
    equal(sorted(result["index"] for result in answer.results), [0, 1])


def flow_anthropic_chat() -> None:
    _chat(**ANTHROPIC)


def flow_anthropic_stream() -> None:
    _stream(**ANTHROPIC)


def flow_anthropic_tools() -> None:
    _tools(**ANTHROPIC)


def flow_ollama_chat() -> None:
    _chat(**OLLAMA)


def flow_ollama_stream() -> None:
    _stream(**OLLAMA)


def flow_ollama_tools() -> None:
    _tools(**OLLAMA)


if __name__ == "__main__":
    run_flows(globals())
