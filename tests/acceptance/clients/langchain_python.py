"""LangChain: `langchain-openai`, and `langchain-anthropic` and `langchain-ollama` beside it."""

from __future__ import annotations

import importlib.util
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, SecretStr
from words import (
    ANSWER,
    ASK_PERSON,
    ASK_TOOLS,
    HELLO,
    MODEL,
    URL,
    equal,
    run_flows,
)
from words import add as add_numbers
from words import get_weather as ask_weather

model = ChatOpenAI(
    model=MODEL,
    base_url=f"{URL}/v1",
    api_key=SecretStr("none"),
    stream_usage=True,  # else a stream of another server than OpenAI's has no counts
    max_retries=0,
    timeout=30,
)


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return ask_weather(city)


@tool
def add(a: int, b: int) -> str:
    """The sum of two numbers."""
    return add_numbers(a, b)


class Person(BaseModel):
    """A person."""

    name: str
    age: int


ADA = Person(name="Ada Lovelace", age=36)


def _loop(model: Any) -> None:
    tools: dict[str, Any] = {"get_weather": get_weather, "add": add}
    bound, messages = model.bind_tools([get_weather, add]), [HumanMessage(ASK_TOOLS)]
    for turn in range(3):
        answer = bound.invoke(messages)
        messages.append(answer)
        equal(len(answer.tool_calls), 1 if turn < 2 else 0)
        messages += [tools[call["name"]].invoke(call) for call in answer.tool_calls]
    assert isinstance(messages[2], ToolMessage)
    equal(answer.text if isinstance(answer.text, str) else answer.text(), ANSWER)


def flow_chat() -> None:
    answer = model.invoke([SystemMessage("Be short."), HumanMessage("Hi")])
    equal(answer.content, HELLO)
    equal(answer.response_metadata["finish_reason"], "stop")
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] > 0


def flow_stream() -> None:
    parts = list(model.stream("Hi"))
    equal("".join(str(part.content) for part in parts), HELLO)
    whole: Any = sum(parts[1:], parts[0])
    assert whole.usage_metadata["output_tokens"] > 0, whole


async def flow_async() -> None:
    answers = await model.abatch([f"Say exactly: word{i}" for i in range(8)])
    equal([answer.content for answer in answers], [f"word{i}" for i in range(8)])


def flow_tools() -> None:
    _loop(model)


def flow_tools_stream() -> None:
    parts = list(model.bind_tools([get_weather, add]).stream(ASK_TOOLS))
    whole: Any = sum(parts[1:], parts[0])
    [call] = whole.tool_calls
    equal((call["name"], call["args"]), ("get_weather", {"city": "Paris"}))


def flow_history() -> None:
    """A turn with calls from another provider's history, whose content is empty."""
    call: Any = {"name": "get_weather", "args": {"city": "Paris"}, "id": "call_abcdefghi"}
    history = [HumanMessage(ASK_TOOLS), AIMessage("", tool_calls=[call])]
    history.append(ToolMessage("21 degrees", tool_call_id="call_abcdefghi"))
    answer = model.bind_tools([get_weather, add]).invoke(history)
    equal([call["name"] for call in answer.tool_calls], ["add"])


def flow_structured() -> None:
    methods: list[Any] = ["json_schema", "function_calling", "json_mode"]
    for method in methods:
        person = model.with_structured_output(Person, method=method).invoke(ASK_PERSON)
        equal(person, ADA)


def flow_responses() -> None:
    model = ChatOpenAI(
        model=MODEL,
        base_url=f"{URL}/v1",
        api_key=SecretStr("none"),
        use_responses_api=True,
        max_retries=0,
    )
    answer: Any = model.invoke("Hi")
    equal(answer.text if isinstance(answer.text, str) else answer.text(), HELLO)
    _loop(model)


def flow_embeddings() -> None:
    embeddings = OpenAIEmbeddings(
        model=MODEL,
        base_url=f"{URL}/v1",
        api_key=SecretStr("none"),
        check_embedding_ctx_length=False,  # else it sends the token ids of OpenAI's tokenizer
    )
    equal(len(embeddings.embed_documents(["cat", "dog"])), 2)
    assert len(embeddings.embed_query("cat")) > 0


def flow_anthropic() -> None:
    if importlib.util.find_spec("langchain_anthropic") is None:
        return
    from langchain_anthropic import ChatAnthropic

    options: Any = {"model": MODEL, "base_url": URL, "api_key": "none", "max_retries": 0}
    model = ChatAnthropic(**options)
    equal(model.invoke("Hi").content, HELLO)
    equal("".join(str(part.text) for part in model.stream("Hi")), HELLO)
    _loop(model)


def flow_ollama() -> None:
    if importlib.util.find_spec("langchain_ollama") is None:
        return
    from langchain_ollama import ChatOllama

    model = ChatOllama(model=MODEL, base_url=URL)
    equal(model.invoke("Hi").content, HELLO)
    _loop(model)


if __name__ == "__main__":
    run_flows(globals())
