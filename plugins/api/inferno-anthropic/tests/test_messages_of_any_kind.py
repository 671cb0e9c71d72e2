"""Bodies of messages become chat requests: what must hold for any body."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.server.test_schema import JSON
from tests.server.test_translation import (
    DEEP,
    DELTAS,
    NESTED,
    OBJECT,
    SCHEMA,
    TEXT,
    USER,
    calls_in,
    calls_of,
    flat,
    http,
    joined,
    unhurried,
)

from inferno.contracts import Delta
from inferno.server.http.parsing import decode
from inferno_anthropic.schema import MessagesRequest
from inferno_anthropic.shape import _Choice as Message
from inferno_anthropic.translation import _messages

__all__ = ["http"]


def written(deltas: Sequence[Delta]) -> Message:
    """The blocks of a message, and the events of its stream."""
    message = Message(0, parser=None, streamed=True)
    for delta in deltas:
        message._add(delta)
    message._close()
    return message


@unhurried
@given(DELTAS)
def test_a_messages_blocks_sent_back_are_what_the_model_wrote(deltas: list[Delta]) -> None:
    message = written(deltas)
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": message.blocks}]
    body = decode(json.dumps({"messages": turns, "max_tokens": 1}).encode(), MessagesRequest).body
    messages, ignored = _messages(body)
    assert ignored == []
    assert flat(messages[1:], "content") == joined(deltas, "content")
    assert flat(messages[1:], "reasoning") == joined(deltas, "reasoning")
    assert calls_of(messages) == calls_in(deltas)


@unhurried
@given(DELTAS)
def test_a_messages_events_rebuild_its_blocks(deltas: list[Delta]) -> None:
    message = written(deltas)
    rebuilt: list[Any] = []
    for event in message.events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(rebuilt)
            rebuilt.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            block, change = rebuilt[event["index"]], dict(event["delta"])
            if change.pop("type") == "input_json_delta":
                block["input"] = json.loads(change["partial_json"])
            else:
                block |= {name: block[name] + text for name, text in change.items()}
    assert rebuilt == message.blocks


TURN = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system", "x"]),
        "content": TEXT | st.lists(NESTED, max_size=3),
    }
)
MESSAGE_BODIES = st.fixed_dictionaries(
    {"messages": st.lists(TURN, max_size=3) | JSON, "max_tokens": st.just(5) | JSON},
    optional={
        "system": TEXT | st.lists(NESTED, max_size=2),
        "tools": st.lists(NESTED, max_size=2),
        **dict.fromkeys(("tool_choice", "thinking", "output_config", "metadata"), OBJECT),
        **dict.fromkeys(("stream", "stop_sequences", "temperature", "top_k"), JSON),
    },
)


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(st.sampled_from(["/v1/messages", "/v1/messages/count_tokens"]), MESSAGE_BODIES)
def test_no_message_is_a_500(http: Any, path: str, body: dict[str, Any]) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code in (200, 400, 404), answer.text
    assert answer.status_code == 200 or len(answer.text) < 3000
    assert "server_error" not in answer.text and "api_error" not in answer.text


CALL = {"type": "tool_use", "id": "i", "name": "f", "input": {"a": "DEEP"}}


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 5, "messages": [USER, {"role": "assistant", "content": [CALL]}]},
        {
            "max_tokens": 5,
            "messages": [USER],
            "tools": [{"name": "f", "input_schema": SCHEMA}],
        },
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_deep_json_in_a_message_is_answered_or_refused(
    http: Any, body: dict[str, Any], stream: bool
) -> None:
    sent = json.dumps({**body, "stream": stream}).replace('"DEEP"', DEEP)
    answer = http.post("/v1/messages", content=sent, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400), answer.text[:500]
    assert "server_error" not in answer.text and "api_error" not in answer.text
