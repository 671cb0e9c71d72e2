"""The `openai` package."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any

import openai
from pydantic import BaseModel
from words import (
    ANSWER,
    ASK_BOTH,
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

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=30)

FUNCTIONS = {"get_weather": get_weather, "add": add}
TOOLS: list[Any] = [
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
RESPONSE_TOOLS: list[Any] = [{"type": "function", **tool["function"]} for tool in TOOLS]


class Person(BaseModel):
    name: str
    age: int


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def flow_models() -> None:
    names = [model.id for model in client.models.list()]
    assert MODEL in names, names
    equal(client.models.retrieve(MODEL).id, MODEL)


def flow_chat() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user("Hi"))
    equal(answer.choices[0].message.content, HELLO)
    equal(answer.choices[0].finish_reason, "stop")
    assert answer.usage is not None and answer.usage.total_tokens > answer.usage.prompt_tokens


def flow_stream() -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=user("Hi"), stream_options={"include_usage": True}
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        answer = stream.get_final_completion()
    equal(text, HELLO)
    equal(answer.choices[0].message.content, HELLO)
    assert answer.usage is not None and answer.usage.completion_tokens > 0


async def flow_async() -> None:
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none") as client:
        questions = [
            client.chat.completions.create(model=MODEL, messages=user(f"Say exactly: word{i}"))
            for i in range(8)
        ]
        answers = await asyncio.gather(*questions)
    equal([a.choices[0].message.content for a in answers], [f"word{i}" for i in range(8)])


def flow_tools() -> None:
    """An agent's loop: run what the model calls, until it answers."""
    messages, turns = user(ASK_TOOLS), 0
    while True:
        turns += 1
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        equal(answer.choices[0].finish_reason, "tool_calls")
        for call in message.tool_calls:
            assert call.type == "function"
            result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    equal(turns, 3)
    equal(message.content, ANSWER)


def flow_tools_null_content() -> None:
    """The same turn as other clients write it: content null, empty or left out."""
    answer = client.chat.completions.create(model=MODEL, messages=user(ASK_TOOLS), tools=TOOLS)
    [call] = [call.model_dump() for call in answer.choices[0].message.tool_calls or ()]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "21 degrees"}
    for content in ({"content": None}, {"content": ""}, {}):
        turn = {"role": "assistant", "tool_calls": [call], **content}
        messages: list[Any] = [*user(ASK_TOOLS), turn, result]
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
        [next_] = answer.choices[0].message.tool_calls or []
        assert next_.type == "function"
        equal(next_.function.name, "add")


def flow_tools_stream() -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=user(ASK_TOOLS), tools=TOOLS
    ) as stream:
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        message = stream.get_final_completion().choices[0]
    equal([(e.name, json.loads(e.arguments)) for e in done], [("get_weather", {"city": "Paris"})])
    equal(message.finish_reason, "tool_calls")


def flow_tools_parallel() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user(ASK_BOTH), tools=TOOLS)
    calls = answer.choices[0].message.tool_calls or []
    cities = [json.loads(c.function.arguments)["city"] for c in calls if c.type == "function"]
    equal(cities, ["Paris", "Rome"])


def flow_tools_none() -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=user(ASK_TOOLS), tools=TOOLS, tool_choice="none"
    )
    equal(answer.choices[0].message.tool_calls, None)
    equal(answer.choices[0].finish_reason, "stop")


def flow_tools_required() -> None:
    choices: list[Any] = ["required", {"type": "function", "function": {"name": "get_weather"}}]
    for choice in choices:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=user(ASK_TOOLS),
            tools=TOOLS,
            tool_choice=choice,
        )
        [call] = answer.choices[0].message.tool_calls or []
        assert call.type == "function"
        equal(call.function.name, "get_weather")
        equal(json.loads(call.function.arguments), {"city": "Paris"})


def flow_structured() -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=user(ASK_PERSON), response_format=Person
    )
    equal(answer.choices[0].message.parsed, Person(name="Ada Lovelace", age=36))


def flow_structured_stream() -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=user(ASK_PERSON), response_format=Person
    ) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    equal(message.parsed, Person(name="Ada Lovelace", age=36))


def flow_json_object() -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=user(ASK_PERSON), response_format={"type": "json_object"}
    )
    equal(json.loads(answer.choices[0].message.content or ""), {"name": "Ada Lovelace", "age": 36})


def flow_thinking() -> None:
    """For models that think."""
    answer = client.chat.completions.create(model=MODEL, messages=user(ASK_THOUGHT))
    message: Any = answer.choices[0].message
    equal(message.content, COUNT)
    equal(message.reasoning_content, THOUGHT)
    again = client.chat.completions.create(
        model=MODEL, messages=[*user(ASK_THOUGHT), message, *user("Say exactly: good")]
    )
    equal(again.choices[0].message.content, "good")


def flow_thinking_stream() -> None:
    stream = client.chat.completions.create(model=MODEL, messages=user(ASK_THOUGHT), stream=True)
    deltas: list[Any] = [chunk.choices[0].delta for chunk in stream if chunk.choices]
    equal("".join(getattr(d, "reasoning_content", None) or "" for d in deltas), THOUGHT)
    equal("".join(d.content or "" for d in deltas), COUNT)


def flow_responses() -> None:
    answer = client.responses.create(model=MODEL, input="Hi")
    equal(answer.output_text, HELLO)
    equal(answer.status, "completed")
    assert answer.usage is not None and answer.usage.output_tokens > 0
    answer = client.responses.create(
        model=MODEL,
        instructions="Be short.",
        input=[{"role": "user", "content": "Hi"}],
        store=False,
    )
    equal(answer.output_text, HELLO)


def flow_responses_stream() -> None:
    with client.responses.stream(model=MODEL, input="Hi") as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        answer = stream.get_final_response()
    equal(text, HELLO)
    equal(answer.output_text, HELLO)


def flow_responses_tools() -> None:
    """The loop with the conversation sent again each time."""
    items: list[Any] = user(ASK_TOOLS)
    for turn in range(3):
        answer = client.responses.create(
            model=MODEL, input=items, tools=RESPONSE_TOOLS, store=False
        )
        calls = [item for item in answer.output if item.type == "function_call"]
        equal(len(calls), 1 if turn < 2 else 0)
        items += answer.output
        for call in calls:
            output = FUNCTIONS[call.name](**json.loads(call.arguments))
            items.append(
                {"type": "function_call_output", "call_id": call.call_id, "output": output}
            )
    equal(answer.output_text, ANSWER)


def flow_responses_previous() -> None:
    """The loop with the conversation kept by the server."""
    items: Any = ASK_TOOLS
    previous: str | None = None
    for _ in range(3):
        answer = client.responses.create(
            model=MODEL, input=items, tools=RESPONSE_TOOLS, previous_response_id=previous
        )
        previous = answer.id
        items = [
            {
                "type": "function_call_output",
                "call_id": item.call_id,
                "output": FUNCTIONS[item.name](**json.loads(item.arguments)),
            }
            for item in answer.output
            if item.type == "function_call"
        ]
    equal(answer.output_text, ANSWER)
    equal(client.responses.retrieve(answer.id).output_text, ANSWER)
    client.responses.delete(answer.id)
    try:
        client.responses.retrieve(answer.id)
    except openai.NotFoundError:
        return
    raise AssertionError("a deleted response was found")


def flow_responses_tools_stream() -> None:
    with client.responses.stream(model=MODEL, input=ASK_TOOLS, tools=RESPONSE_TOOLS) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_response()
    assert "response.function_call_arguments.done" in kinds, kinds
    [call] = [item for item in answer.output if item.type == "function_call"]
    equal((call.name, json.loads(call.arguments)), ("get_weather", {"city": "Paris"}))


def flow_responses_structured() -> None:
    answer = client.responses.parse(model=MODEL, input=ASK_PERSON, text_format=Person)
    equal(answer.output_parsed, Person(name="Ada Lovelace", age=36))


def flow_responses_conversation() -> None:
    conversation = client.conversations.create()
    client.responses.create(model=MODEL, input="Hi", conversation=conversation.id)
    client.responses.create(model=MODEL, input="Say exactly: again", conversation=conversation.id)
    items = list(client.conversations.items.list(conversation.id, order="asc"))
    messages = [item.role for item in items if item.type == "message"]
    equal(messages, ["user", "assistant"] * 2)
    client.conversations.delete(conversation.id)


def flow_embeddings() -> None:
    answer = client.embeddings.create(model=MODEL, input=["cat", "dog"])  # base64 on the wire
    equal([each.index for each in answer.data], [0, 1])
    first = answer.data[0].embedding
    assert len(first) > 0 and abs(sum(x * x for x in first) - 1) < 1e-3, first[:4]
    plain = client.embeddings.create(model=MODEL, input="cat", encoding_format="float")
    assert max(abs(a - b) for a, b in zip(first, plain.data[0].embedding, strict=True)) < 1e-5
    raw: Any = client.embeddings.create(model=MODEL, input="cat", encoding_format="base64")
    packed = base64.b64decode(raw.data[0].embedding)
    equal(len(struct.unpack(f"<{len(packed) // 4}f", packed)), len(first))


def flow_completions() -> None:
    answer = client.completions.create(
        model=MODEL, prompt="Say exactly: word1", max_tokens=64, stop=["\n\n\n"]
    )
    equal(answer.choices[0].finish_reason, "stop")
    assert answer.choices[0].text
    chunks = client.completions.create(
        model=MODEL, prompt="Say exactly: word1", max_tokens=64, stream=True
    )
    equal("".join(chunk.choices[0].text for chunk in chunks), answer.choices[0].text)


def flow_errors() -> None:
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (openai.NotFoundError, {"model": "nobody"}),
        (openai.BadRequestError, {"temperature": -1}),
        (openai.BadRequestError, {"messages": []}),
        (openai.BadRequestError, {"messages": user("x " * 40_000)}),
    ]
    for kind, change in wrong:
        body: dict[str, Any] = {"model": MODEL, "messages": user("Hi"), **change}
        try:
            client.chat.completions.create(**body)
        except kind as error:
            assert isinstance(error, openai.APIStatusError)
            assert error.body and error.type, error
        else:
            raise AssertionError(f"{list(change)} was accepted")


if __name__ == "__main__":
    run_flows(globals())
