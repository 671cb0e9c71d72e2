"""The `anthropic` package."""

from __future__ import annotations

from typing import Any

import anthropic
from words import (
    ANSWER,
    ASK_BOTH,
    ASK_THOUGHT,
    ASK_TOOLS,
    BOTH,
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

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=30)

FUNCTIONS = {"get_weather": get_weather, "add": add}
TOOLS: list[Any] = [
    {
        "name": "get_weather",
        "description": "The weather in a city.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
    {
        "name": "add",
        "description": "The sum of two numbers.",
        "input_schema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
]


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def flow_chat() -> None:
    message = client.messages.create(model=MODEL, max_tokens=200, messages=user("Hi"))
    equal(text_of(message), HELLO)
    equal((message.role, message.stop_reason), ("assistant", "end_turn"))
    assert message.usage.input_tokens > 0 and message.usage.output_tokens > 0


def flow_system_blocks() -> None:
    message = client.messages.create(
        model=MODEL,
        max_tokens=200,
        system=[
            {
                "type": "text",
                "text": "Answer in one word: yes",
                "cache_control": {"type": "ephemeral"},
            }
        ],
        messages=[{"role": "user", "content": [{"type": "text", "text": "Is it?"}]}],
    )
    equal(text_of(message), "yes")


def flow_max_tokens() -> None:
    message = client.messages.create(model=MODEL, max_tokens=3, messages=user("Hi"))
    equal(message.stop_reason, "max_tokens")


def flow_stop_sequence() -> None:
    message = client.messages.create(
        model=MODEL, max_tokens=200, messages=user("Hi"), stop_sequences=["scripted"]
    )
    equal((message.stop_reason, message.stop_sequence), ("stop_sequence", "scripted"))
    equal(text_of(message), HELLO.partition("scripted")[0])


def flow_stream() -> None:
    with client.messages.stream(model=MODEL, max_tokens=200, messages=user("Hi")) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    equal(text, HELLO)
    equal(text_of(message), HELLO)
    equal(message.stop_reason, "end_turn")
    assert message.usage.output_tokens > 0


def flow_tools() -> None:
    messages, turns = user(ASK_TOOLS), 0
    while True:
        turns += 1
        message = client.messages.create(
            model=MODEL, max_tokens=400, messages=messages, tools=TOOLS
        )
        messages.append({"role": "assistant", "content": message.content})
        if message.stop_reason != "tool_use":
            break
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block.id,
                "content": FUNCTIONS[block.name](**block.input),
            }
            for block in message.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})
    equal(turns, 3)
    equal(text_of(message), ANSWER)


def flow_tools_stream() -> None:
    with client.messages.stream(
        model=MODEL, max_tokens=400, messages=user(ASK_TOOLS), tools=TOOLS
    ) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    [call] = [block for block in message.content if block.type == "tool_use"]
    equal((call.name, call.input), ("get_weather", {"city": "Paris"}))
    equal(message.stop_reason, "tool_use")
    assert "".join(parts), "no event told of the arguments"


def flow_tools_parallel() -> None:
    messages = user(ASK_BOTH)
    message = client.messages.create(model=MODEL, max_tokens=400, messages=messages, tools=TOOLS)
    calls: list[Any] = [block for block in message.content if block.type == "tool_use"]
    equal([call.input["city"] for call in calls], ["Paris", "Rome"])
    messages.append({"role": "assistant", "content": message.content})
    results = [
        {
            "type": "tool_result",
            "tool_use_id": call.id,
            "content": [{"type": "text", "text": get_weather(**call.input)}],
        }
        for call in calls
    ]
    messages.append({"role": "user", "content": results})
    message = client.messages.create(model=MODEL, max_tokens=400, messages=messages, tools=TOOLS)
    equal(text_of(message), BOTH)


def flow_tools_forced() -> None:
    choices: list[Any] = [{"type": "any"}, {"type": "tool", "name": "get_weather"}]
    for choice in choices:
        message = client.messages.create(
            model=MODEL,
            max_tokens=400,
            messages=user(ASK_TOOLS),
            tools=TOOLS,
            tool_choice=choice,
        )
        [call] = [block for block in message.content if block.type == "tool_use"]
        equal(call.name, "get_weather")


def flow_thinking() -> None:
    """For models that think."""
    message = client.messages.create(
        model=MODEL,
        max_tokens=2048,
        messages=user(ASK_THOUGHT),
        thinking={"type": "enabled", "budget_tokens": 1024},
    )
    [thought] = [block for block in message.content if block.type == "thinking"]
    equal(thought.thinking, THOUGHT)
    equal(text_of(message), COUNT)
    follow_up = [
        *user(ASK_THOUGHT),
        {"role": "assistant", "content": message.content},
        *user("Say exactly: good"),
    ]
    message = client.messages.create(model=MODEL, max_tokens=2048, messages=follow_up)
    equal(text_of(message), "good")


def flow_thinking_stream() -> None:
    with client.messages.stream(
        model=MODEL,
        max_tokens=2048,
        messages=user(ASK_THOUGHT),
        thinking={"type": "enabled", "budget_tokens": 1024},
    ) as stream:
        thought = "".join(event.thinking for event in stream if event.type == "thinking")
        message = stream.get_final_message()
    equal(thought, THOUGHT)
    equal(text_of(message), COUNT)


def flow_count_tokens() -> None:
    short = client.messages.count_tokens(model=MODEL, messages=user("Hi"))
    long = client.messages.count_tokens(
        model=MODEL, messages=user("Hi"), system="Be short.", tools=TOOLS
    )
    assert 0 < short.input_tokens < long.input_tokens
    message = client.messages.create(model=MODEL, max_tokens=200, messages=user("Hi"))
    usage = message.usage
    equal((usage.cache_read_input_tokens or 0) + usage.input_tokens, short.input_tokens)


def flow_models() -> None:
    assert MODEL in [model.id for model in client.models.list()]


def flow_errors() -> None:
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (anthropic.NotFoundError, {"model": "nobody"}),
        (anthropic.BadRequestError, {"max_tokens": 0}),
        (anthropic.BadRequestError, {"messages": []}),
    ]
    for kind, change in wrong:
        body = {"model": MODEL, "max_tokens": 10, "messages": user("Hi"), **change}
        try:
            client.messages.create(**body)
        except kind as error:
            assert isinstance(error, anthropic.APIStatusError)
            answer: Any = error.body
            equal(answer["type"], "error")
            assert answer["error"]["type"] and answer["error"]["message"]
        else:
            raise AssertionError(f"{list(change)} was accepted")


if __name__ == "__main__":
    run_flows(globals())
