"""Anthropic's Messages API against the `anthropic` package, its own types and its stream helper."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.server.conftest import Live, wait_until
from tests.server.server_fakes import RESPONSE_TEMPLATE, FakeLLM
from tests.server.test_written_tools import SCHEMA, WRITTEN
from tests.server.test_written_tools import llm as without_tools

from inferno.server.app import models_of
from inferno.text import ChatTemplate

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


def create(sdk: Any, **body: Any) -> Any:
    given = {"model": "fake", "max_tokens": 256, "messages": USER} | body
    extra = {k: given.pop(k) for k in ("temperature", "top_k", "top_p") if k in given}
    return sdk.messages.create(**given, extra_body=extra)


def post(served: Live, path: str = "/v1/messages", **body: Any) -> httpx.Response:
    sent = {"max_tokens": 256, "messages": USER} | body
    return httpx.post(served.url + path, json=sent, headers={"x-api-key": "k"}, timeout=20)


def events(served: Live, **body: Any) -> list[Any]:
    """A stream's events, each checked by the SDK's types."""
    found = []
    for block in post(served, stream=True, **body).text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] != "error":
            EVENT.validate_python(event)
        found.append(event)
    return found


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
    found = events(served, tools=[TOOL])
    kinds = [event["type"].removeprefix("content_block_") for event in found]
    unique = [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]
    block = ["start", "delta", "stop"]
    assert unique == ["message_start", *block * 3, "message_delta", "message_stop"]
    deltas = [event["delta"]["type"] for event in found if event["type"] == "content_block_delta"]
    assert set(deltas) == {"thinking_delta", "signature_delta", "text_delta", "input_json_delta"}
    assert [e["index"] for e in found if e["type"] == "content_block_start"] == [0, 1, 2]
    assert found[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert found[-2]["usage"]["output_tokens"] == len(llm.reply)


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
    asked = []

    def get_weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: its name
        """
        asked.append(city)
        llm.reply = "Sunny."
        return "sunny"

    llm.reply = CALL
    tools = [anthropic.beta_tool(get_weather)]
    runner = sdk.beta.messages.tool_runner(model="fake", max_tokens=256, messages=USER, tools=tools)
    assert runner.until_done().content[0].text == "Sunny."
    assert asked == ["Rome"]


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


# --- what is ignored and refused ------------------------------------------------------------------

EPHEMERAL = {"type": "ephemeral"}
CLAUDE_CODE: dict[str, Any] = {
    "model": "fake",
    "max_tokens": 32_000,
    "system": [
        {"type": "text", "text": "You are a coding agent.", "cache_control": EPHEMERAL},
        {"type": "text", "text": "Be careful.", "cache_control": EPHEMERAL},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>...</system-reminder>"},
                {"type": "text", "text": "List the files.", "cache_control": EPHEMERAL},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "abc"},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "Sure."},
                {"type": "tool_use", "id": "toolu_1", "name": "Tool1", "input": {"a": 1}},
                {"type": "tool_use", "id": "toolu_2", "name": "Tool2", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.py"},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "is_error": True,
                    "content": [{"type": "text", "text": "denied"}],
                    "cache_control": EPHEMERAL,
                },
                {"type": "text", "text": "Go on."},
            ],
        },
    ],
    "tools": [
        *({**TOOL, "name": f"Tool{i}", "cache_control": EPHEMERAL} for i in range(20)),
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
    "metadata": {"user_id": "user_1_account__session_2"},
    "thinking": {"type": "enabled", "budget_tokens": 10_000},
    "temperature": 1,
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
}


def test_what_claude_code_sends_is_answered(llm: FakeLLM, served: Live) -> None:
    headers = {
        "x-api-key": "k",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
        "user-agent": "claude-cli/2.1.0 (external, cli)",
        "x-claude-code-session-id": "s1",
    }
    url = f"{served.url}/v1/messages?beta=true"
    answer = httpx.post(url, json=CLAUDE_CODE, headers=headers)
    assert answer.status_code == 200, answer.text
    usage = httpx.get(f"{served.url}/v1/usage?session_id=s1", headers=headers).json()
    assert usage["requests"] == 1
    ignored = set(answer.json()["x_inferno"]["ignored"])
    assert {"metadata", "context_management", "tools[20]", "messages[1].content[1]"} <= ignored
    prompt = llm.prompts[-1]
    assert "system\nYou are a coding agent.\nBe careful.<|im_end|>" in prompt
    assert "assistant\n<think>Hm.</think>Sure.<|im_end|>" in prompt
    assert prompt.index("tool\na.py") < prompt.index("tool\ndenied") < prompt.index("user\nGo on.")
    assert "TOOLS 20" in prompt
    assert llm.seen[-1][1].max_tokens == 32_000, "the preprocessor limits it to the context"


STRICT = (
    "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% endif %}"
    "{% if not loop.first and loop.previtem.role == m.role %}{{ raise_exception('twice') }}"
    "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)


def test_late_system_messages_are_the_users_where_a_template_refuses_them(client: Any) -> None:
    llm = FakeLLM(template=ChatTemplate({"default": STRICT}))
    http = client(llm)
    late: Any = [*USER, {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}]
    body: Any = {"max_tokens": 5, "system": "Help.", "messages": late}
    assert http.post("/v1/messages", json=body).status_code == 200
    assert llm.prompts[-1] == "<system>Help.<user>hi\n\nBe brief."
    late += [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    refused = http.post("/v1/messages", json=body)
    assert refused.status_code == 400
    assert "system first" in refused.json()["error"]["message"]


def test_thinking_is_switched_where_the_template_can(llm: FakeLLM, sdk: Any) -> None:
    create(sdk, thinking={"type": "disabled"})
    assert llm.prompts[-1].endswith("<think>\n\n</think>\n\n")
    answer = create(sdk, thinking={"type": "adaptive"}, output_config={"effort": "high"})
    assert llm.prompts[-1].endswith("assistant\n")
    assert answer.x_inferno == {"ignored": ["output_config.effort"]}


def test_one_call_only_if_parallel_ones_are_disabled(llm: FakeLLM, sdk: Any) -> None:
    llm.reply = CALL + CALL
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert len(create(sdk, tools=[TOOL], tool_choice=choice).content) == 1


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"messages": []}, "no messages"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x"}]}]},
            "messages[0].content[0].input",
        ),
        ({"messages": "x"}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0]"),
        ({"tool_choice": {"type": "perhaps"}}, "tool_choice"),
        ({"tool_choice": {"type": ["auto"]}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"thinking": {"type": "much"}}, "thinking"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"stop_sequences": [""]}, "stop"),
        ({"top_k": "x"}, "top_k"),
        ({"prompt": "x"}, "prompt"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "tokens"),
    ],
)
def test_a_mistake_is_named(llm: FakeLLM, served: Live, body: dict[str, Any], named: str) -> None:
    answer = post(served, **body)
    assert answer.status_code == 400, answer.text
    shown = answer.json()
    assert (shown["type"], shown["error"]["type"]) == ("error", "invalid_request_error")
    assert named in shown["error"]["message"]
    assert shown["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


def test_errors_have_the_sdks_classes(llm: FakeLLM, served: Live, sdk: Any) -> None:
    with pytest.raises(anthropic.NotFoundError):
        create(sdk, model="other")
    with pytest.raises(anthropic.BadRequestError):
        create(sdk, messages=[])
    wrong = anthropic.Anthropic(base_url=served.url, api_key="wrong", max_retries=0)
    with wrong, pytest.raises(anthropic.AuthenticationError) as caught:
        create(wrong)
    assert caught.value.body["error"]["type"] == "authentication_error"
    bearer = anthropic.Anthropic(base_url=served.url, auth_token="k", max_retries=0)
    with bearer:
        assert create(bearer).stop_reason == "end_turn"


@pytest.mark.parametrize("request_id", ["\u2603", "x\r\nset-cookie: a=b"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_id_that_no_header_can_carry_is_replaced(
    llm: FakeLLM, served: Live, request_id: str, stream: bool
) -> None:
    answer = post(served, request_id=request_id, stream=stream)
    assert answer.status_code == 200
    assert answer.headers["request-id"] == answer.headers["x-request-id"] != request_id
    assert "set-cookie" not in answer.headers
    [hosted] = models_of(served.app).hosted
    wait_until(lambda: hosted.limiter.in_flight == 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("where", ["body", "header"])
def test_an_id_that_no_header_can_have_is_replaced(
    llm: FakeLLM, served: Live, where: str, stream: bool
) -> None:
    headers: dict[bytes, bytes] = {b"x-api-key": b"k"}
    body: dict[str, Any] = {"max_tokens": 9, "messages": USER, "stream": stream}
    if where == "body":
        body["request_id"] = "日本"
    else:
        headers[b"x-request-id"] = "日本".encode()
    answer = httpx.post(f"{served.url}/v1/messages", json=body, headers=headers, timeout=20)
    assert answer.status_code == 200, answer.text
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    wait_until(lambda: models_of(served.app).hosted[0].limiter.in_flight == 0)


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
