"""Requests to the Messages API, by the `anthropic` package and plain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.server.conftest import Live
from tests.server.server_fakes import RESPONSE_TEMPLATE, FakeLLM

anthropic = pytest.importorskip("anthropic")
from anthropic import types  # noqa: E402
from pydantic import TypeAdapter  # noqa: E402

EVENT: Any = TypeAdapter(types.RawMessageStreamEvent)
TOOL: Any = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
USER: list[Any] = [{"role": "user", "content": "hi"}]


def create(sdk: Any, **body: Any) -> Any:
    given = {"model": "fake", "max_tokens": 256, "messages": USER} | body
    extra = {k: given.pop(k) for k in ("temperature", "top_k", "top_p") if k in given}
    return sdk.messages.create(**given, extra_body=extra)


def post(served: Live, path: str = "/v1/messages", **body: Any) -> httpx.Response:
    sent = {"max_tokens": 256, "messages": USER} | body
    return httpx.post(served.url + path, json=sent, headers={"x-api-key": "k"}, timeout=20)


def events(served: Live, **body: Any) -> list[Any]:
    """A stream's events, each checked by the SDK's types."""
    sequence = []
    for block in post(served, stream=True, **body).text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] != "error":
            EVENT.validate_python(event)
        sequence.append(event)
    return sequence


@pytest.fixture(scope="module")
def served() -> Iterator[Live]:
    server = Live(FakeLLM(response_template=RESPONSE_TEMPLATE), api_keys=["k"])
    yield server
    server.stop()


@pytest.fixture
def llm(served: Live) -> FakeLLM:
    fake = served.llm
    fake.reply, fake.delay, fake.endless, fake.dies_after = "Hello there", 0.0, False, None
    return fake


@pytest.fixture
def sdk(served: Live) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=served.url, api_key="k", max_retries=0) as client:
        yield client
