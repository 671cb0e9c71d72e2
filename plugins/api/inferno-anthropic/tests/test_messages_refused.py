"""What bodies of messages may hold: what is ignored, and which mistakes are named."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from messages_client import CALL, TOOL, USER, create, llm, post, sdk, served
from tests.server.conftest import Live, wait_until
from tests.server.server_fakes import FakeLLM

from inferno.server.app import models_of
from inferno.text import ChatTemplate

anthropic = pytest.importorskip("anthropic")

__all__ = ["llm", "sdk", "served"]

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
