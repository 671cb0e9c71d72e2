"""Anthropic's Messages API against the `anthropic` package, its own types and its stream helper."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from messages_client import CALL, TOOL, USER, create, events, llm, sdk, served
from tests.server.conftest import Live, wait_until
from tests.server.server_fakes import FakeLLM
from tests.server.test_written_tools import SCHEMA, WRITTEN
from tests.server.test_written_tools import llm as without_tools

anthropic = pytest.importorskip("anthropic")
from anthropic import types  # noqa: E402

__all__ = ["llm", "sdk", "served"]

# --- answers --------------------------------------------------------------------------------------


def test_a_message_has_anthropics_shape(llm: FakeLLM, sdk: Any) -> None:
    message = create(sdk, system="Be brief.", temperature=0.5, top_k=3)
    types.Message.model_validate(message.to_dict())
    assert (message.content[0].text, message.stop_reason) == ("Hello there", "end_turn")
    assert message.id.startswith("msg_")
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (
        len(llm.prompts[-1]) - 2,
        2,
    )
    assert message.usage.output_tokens == 11
    params = llm.seen[-1][1]
    assert (params.temperature, params.top_k, params.max_tokens) == (0.5, 3, 256)
    assert llm.prompts[-1].startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user")
    assert message._request_id


def test_thoughts_text_and_calls_are_blocks_in_order(llm: FakeLLM, sdk: Any) -> None:
    llm.reply = f"<think>Hm.</think>Let me look.{CALL}{CALL}"
    message = create(sdk, tools=[TOOL])
    types.Message.model_validate(message.to_dict())
    thought, text, call, second = message.content
    assert (thought.type, thought.thinking) == ("thinking", "Hm.")
    assert text.text == "Let me look."
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Rome"})
    assert call.id != second.id
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens_details.thinking_tokens == 3


def test_limits_and_stops_have_their_reasons(llm: FakeLLM, sdk: Any) -> None:
    message = create(sdk, max_tokens=4)
    assert (message.content[0].text, message.stop_reason) == ("Hell", "max_tokens")
    create(sdk, stop_sequences=["there"])
    assert llm.seen[-1][1].stop == ("there",)


def test_a_streams_events_are_in_anthropics_order(llm: FakeLLM, served: Live) -> None:
    llm.reply = f"<think>Hm.</think>Yes{CALL}"
    stream = events(served, tools=[TOOL])
    kinds = [event["type"].removeprefix("content_block_") for event in stream]
    unique = [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]
    block = ["start", "delta", "stop"]
    assert unique == ["message_start", *block * 3, "message_delta", "message_stop"]
    deltas = [event["delta"]["type"] for event in stream if event["type"] == "content_block_delta"]
    assert set(deltas) == {"thinking_delta", "signature_delta", "text_delta", "input_json_delta"}
    assert [e["index"] for e in stream if e["type"] == "content_block_start"] == [0, 1, 2]
    assert stream[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert stream[-2]["usage"]["output_tokens"] == len(llm.reply)


def test_the_sdks_stream_helper_builds_the_whole_message(llm: FakeLLM, sdk: Any) -> None:
    llm.reply = f"<think>Hm.</think>Let me look.{CALL}"
    body: Any = {"model": "fake", "max_tokens": 256, "messages": USER, "tools": [TOOL]}
    whole = sdk.messages.create(**body)
    with sdk.messages.stream(**body) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "Let me look."
    assert [b.type for b in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[0] == whole.content[0]
    assert final.content[1].text == whole.content[1].text
    assert final.content[2].input == {"city": "Rome"}
    assert final.usage.input_tokens == whole.usage.input_tokens
    assert (final.stop_reason, final.usage.output_tokens) == ("tool_use", len(llm.reply))


def test_an_error_ends_a_stream_with_an_event(llm: FakeLLM, served: Live, sdk: Any) -> None:
    llm.dies_after = 2
    last = events(served)[-1]
    assert last["error"]["type"] == "overloaded_error"
    assert last["request_id"]
    with (
        pytest.raises(anthropic.APIStatusError),
        sdk.messages.stream(model="fake", max_tokens=256, messages=USER) as stream,
    ):
        stream.get_final_message()


def test_a_silent_stream_pings(live: Any) -> None:
    server = live(FakeLLM(delay=0.3, chunk=100), ping_seconds=0.05)
    assert (
        'event: ping\ndata: {"type": "ping"}\n\n'
        in server.post("/v1/messages", max_tokens=5, messages=USER, stream=True).text
    )


def test_a_client_that_goes_aborts(llm: FakeLLM, sdk: Any) -> None:
    llm.endless, llm.delay = True, 0.001
    with sdk.messages.stream(model="fake", max_tokens=10**6, messages=USER) as stream:
        next(stream.text_stream)
    wait_until(lambda: not llm.live)


# --- several turns --------------------------------------------------------------------------------


def test_an_agents_loop(llm: FakeLLM, sdk: Any) -> None:
    """Two tools and three turns, each answer sent back as it came."""
    tools = [TOOL, TOOL | {"name": "get_time"}]
    messages: list[Any] = [{"role": "user", "content": "The weather in Rome, then the time?"}]
    for name, output in (
        ("get_weather", "sunny"),
        ("get_time", [{"type": "text", "text": "noon"}]),
    ):
        llm.reply = f"<think>Hm.</think>{CALL.replace('get_weather', name)}"
        answer = create(sdk, messages=messages, tools=tools)
        call = answer.content[-1]
        assert call.name == name
        result = {"type": "tool_result", "tool_use_id": call.id, "content": output}
        messages += [answer.to_param(), {"role": "user", "content": [result]}]
    llm.reply = "Sunny, and noon."
    assert create(sdk, messages=messages, tools=tools).content[0].text == "Sunny, and noon."
    prompt = llm.prompts[-1]
    assert prompt.index("tool\nsunny") < prompt.index("tool\nnoon")
    assert prompt.count("<think>Hm.</think>") == 2


def test_the_sdks_tool_runner_ends(llm: FakeLLM, sdk: Any) -> None:
    cities = []

    def get_weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: its name
        """
        cities.append(city)
        llm.reply = "Sunny."
        return "sunny"

    llm.reply = CALL
    tools = [anthropic.beta_tool(get_weather)]
    runner = sdk.beta.messages.tool_runner(model="fake", max_tokens=256, messages=USER, tools=tools)
    assert runner.until_done().content[0].text == "Sunny."
    assert cities == ["Rome"]


def test_a_begun_answer_is_continued(llm: FakeLLM, sdk: Any) -> None:
    create(sdk, messages=[*USER, {"role": "assistant", "content": "Well,"}])
    assert llm.prompts[-1].endswith("<|im_start|>assistant\nWell,")


def test_text_documents_are_read(llm: FakeLLM, sdk: Any) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Rome is sunny."}
    content = [{"type": "document", "title": "News", "source": source}]
    create(sdk, messages=[{"role": "user", "content": [*content, {"type": "text", "text": "So?"}]}])
    assert "user\nNews\n\nRome is sunny.\nSo?<|im_end|>" in llm.prompts[-1]


def test_tokens_are_counted(llm: FakeLLM, sdk: Any) -> None:
    body: Any = {"model": "fake", "messages": USER, "system": "Be brief.", "tools": [TOOL]}
    count = sdk.messages.count_tokens(**body)
    usage = sdk.messages.create(max_tokens=5, **body).usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_models_are_listed_in_anthropics_shape(llm: FakeLLM, served: Live, sdk: Any) -> None:
    listed = sdk.models.list()
    assert [model.id for model in listed] == ["fake"]
    model = sdk.models.retrieve("fake")
    types.ModelInfo.model_validate(model.to_dict())
    assert model == listed.data[0]
    plain = httpx.get(f"{served.url}/v1/models", headers={"authorization": "Bearer k"}).json()
    assert plain["object"] == "list"


# --- what is the same in every API ----------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/messages", "/messages", "/v1/messages/count_tokens"])
def test_what_the_gate_refuses_has_anthropics_format(client: Any, path: str) -> None:
    http = client(api_keys=["k"], allowed_hosts=["testserver.local"])
    key = {"X-Api-Key": "k"}
    for headers in ({**key, "Host": "evil.example"}, {**key, "Origin": "https://evil.example"}, {}):
        answer = http.post(path, json={}, headers=headers)
        assert answer.status_code in (401, 403), answer.text
        body = answer.json()
        assert body["type"] == "error" and set(body["error"]) == {"type", "message"}
        assert body["request_id"] == answer.headers["x-request-id"]


def test_a_call_is_read_where_the_template_has_no_tools(client: Any) -> None:
    model = without_tools()
    tool = {"name": "f", "description": "d", "input_schema": SCHEMA}
    body = {"max_tokens": 256, "messages": USER, "tools": [tool]}
    answer = client(model).post("/v1/messages", json=body).json()
    [call] = [block for block in answer["content"] if block["type"] == "tool_use"]
    assert (call["name"], call["input"]) == ("f", {"a": 1})
    assert model.prompts[-1].startswith("[system]You can call these functions.")


def test_earlier_calls_and_results_are_text_where_the_template_has_no_tools(client: Any) -> None:
    model = without_tools(reply="It is seven.")
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "seven"}
    turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    tool = {"name": "f", "description": "d", "input_schema": SCHEMA}
    body = {"max_tokens": 256, "messages": [*USER, *turns], "tools": [tool]}
    assert "It is seven." in client(model).post("/v1/messages", json=body).text
    assert model.prompts[-1].replace('{"a":1}', '{"a": 1}').endswith(WRITTEN)
