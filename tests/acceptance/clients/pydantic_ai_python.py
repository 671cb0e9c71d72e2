"""The `pydantic-ai` package: agents over each API, with the package's own loop."""

from __future__ import annotations

import importlib.util
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from words import (
    ANSWER,
    ASK_BOTH,
    ASK_PERSON,
    ASK_TOOLS,
    BOTH,
    HELLO,
    MODEL,
    URL,
    add,
    equal,
    get_weather,
    run_flows,
)

provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
model = OpenAIChatModel(MODEL, provider=provider)


class Person(BaseModel):
    name: str
    age: int


ADA = Person(name="Ada Lovelace", age=36)


def flow_chat() -> None:
    result = Agent(model, system_prompt="Be short.").run_sync("Hi")
    equal(result.output, HELLO)


def flow_tools() -> None:
    agent = Agent(model, tools=[get_weather, add])
    equal(agent.run_sync(ASK_TOOLS).output, ANSWER)
    equal(agent.run_sync(ASK_BOTH).output, BOTH)


async def flow_stream() -> None:
    async with Agent(model).run_stream("Hi") as result:
        equal([text async for text in result.stream_text()][-1], HELLO)


async def flow_tools_stream() -> None:
    agent = Agent(model, tools=[get_weather, add])
    async with agent.run_stream(ASK_TOOLS) as result:
        equal(await result.get_output(), ANSWER)


def flow_history() -> None:
    agent = Agent(model, tools=[get_weather, add])
    first = agent.run_sync(ASK_TOOLS)
    again = agent.run_sync("Say exactly: good", message_history=first.all_messages())
    equal(again.output, "good")


def flow_structured() -> None:
    outputs: list[Any] = [Person, NativeOutput(Person), PromptedOutput(Person)]
    for output in outputs:
        agent: Any = Agent(model, output_type=output)
        equal(agent.run_sync(ASK_PERSON).output, ADA)


def flow_responses() -> None:
    model = OpenAIResponsesModel(MODEL, provider=provider)
    equal(Agent(model).run_sync("Hi").output, HELLO)
    equal(Agent(model, tools=[get_weather, add]).run_sync(ASK_TOOLS).output, ANSWER)


def flow_anthropic() -> None:
    if importlib.util.find_spec("anthropic") is None:
        return
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    model = AnthropicModel(MODEL, provider=AnthropicProvider(base_url=URL, api_key="none"))
    equal(Agent(model).run_sync("Hi").output, HELLO)
    equal(Agent(model, tools=[get_weather, add]).run_sync(ASK_TOOLS).output, ANSWER)


if __name__ == "__main__":
    run_flows(globals())
