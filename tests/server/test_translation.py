"""Bodies of other APIs become chat requests: what must hold for any body."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from litestar.testing import TestClient
from tests.server.server_fakes import RESPONSE_TEMPLATE, FakeLLM
from tests.server.test_schema import JSON

from inferno.contracts import Delta
from inferno.errors import RequestError
from inferno.server import create_app
from inferno.server.chat.translate import Translation, without_late_systems
from inferno.server.responses.items import read_items, to_messages
from inferno.server.responses.output import Output

unhurried = settings(deadline=None)
TEXT = st.text(min_size=1, max_size=8)
ARGUMENTS = st.dictionaries(TEXT, JSON, max_size=3)
DELTAS = st.lists(
    st.builds(Delta, st.sampled_from(["content", "reasoning"]), TEXT)
    | st.builds(
        Delta, st.just("tool"), ARGUMENTS.map(json.dumps), TEXT, st.uuids().map("call_{}".format)
    ),
    max_size=8,
)


def built(deltas: Sequence[Delta], **options: Any) -> tuple[list[Any], list[Any]]:
    """The items of a response, and the events of its stream."""
    output = Output(**options)
    events = [event for delta in deltas for event in output.add(delta)]
    return output.items, [*events, *output.close()]


def joined(deltas: Sequence[Delta], kind: str) -> str:
    return "".join(delta.text for delta in deltas if delta.kind == kind)


def flat(messages: Sequence[dict[str, Any]], field: str) -> str:
    parts = [message.get(field) or "" for message in messages]
    return "".join(
        part if isinstance(part, str) else "".join(p["text"] for p in part) for part in parts
    )


def calls_of(messages: Sequence[dict[str, Any]]) -> list[Any]:
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    return [(c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]


def calls_in(deltas: Sequence[Delta]) -> list[Any]:
    return [(d.id, d.name, json.loads(d.text)) for d in deltas if d.kind == "tool"]


# --- what a model wrote comes back to it ----------------------------------------------------------


@unhurried
@given(DELTAS, st.booleans(), st.booleans())
def test_a_responses_output_sent_back_is_what_the_model_wrote(
    deltas: list[Delta], summarized: bool, sealed: bool
) -> None:
    items, _ = built(deltas, summarized=summarized, sealed=sealed)
    messages = to_messages(read_items(json.loads(json.dumps(items))))
    assert {m["role"] for m in messages} <= {"assistant"}
    assert flat(messages, "content") == joined(deltas, "content")
    assert flat(messages, "reasoning") == joined(deltas, "reasoning")
    assert calls_of(messages) == calls_in(deltas)


@unhurried
@given(DELTAS)
def test_sealed_reasoning_alone_is_enough(deltas: list[Delta]) -> None:
    items, _ = built(deltas, sealed=True)
    entries = [{k: v for k, v in item.items() if k != "content"} for item in items]
    thoughts = [item for item in entries if item["type"] == "reasoning"]
    assert flat(to_messages(read_items(thoughts)), "reasoning") == joined(deltas, "reasoning")


@unhurried
@given(DELTAS, st.booleans())
def test_a_responses_events_rebuild_its_items(deltas: list[Delta], summarized: bool) -> None:
    items, events = built(deltas, summarized=summarized)
    done = [values["item"] for kind, values in events if kind.endswith("output_item.done")]
    assert done == items
    for index, item in enumerate(items):
        rows = [(k, v) for k, v in events if v["output_index"] == index]
        assert rows[0][0] == "response.output_item.added"
        assert rows[-1][0] == "response.output_item.done"
        told = "".join(v["delta"] for k, v in rows if k.endswith(("text.delta", "arguments.delta")))
        text = item.get("arguments") or "".join(part["text"] for part in item.get("content", ()))
        shown_twice = item["type"] == "reasoning" and summarized
        assert len(told) == len(text) * (2 if shown_twice else 1)


@unhurried
@given(DELTAS)
def test_a_snapshot_of_an_unfinished_output_has_all_of_it(deltas: list[Delta]) -> None:
    output = Output()
    for delta in deltas:
        output.add(delta)
    assert flat(to_messages(output.snapshot()), "content") == joined(deltas, "content")


# --- items ----------------------------------------------------------------------------------------

ITEMS = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "developer"]), "content": TEXT}
    )
    | st.fixed_dictionaries(
        {"type": st.just("function_call"), "call_id": TEXT, "name": TEXT, "arguments": TEXT}
    )
    | st.fixed_dictionaries(
        {"type": st.just("function_call_output"), "call_id": TEXT, "output": TEXT}
    ),
    max_size=8,
)


@unhurried
@given(ITEMS)
def test_items_read_twice_are_the_same(items: list[Any]) -> None:
    once = read_items(items)
    assert read_items(once) == once
    assert all(item["id"] for item in once)


@unhurried
@given(ITEMS)
def test_no_item_is_lost_and_the_order_is_kept(items: list[Any]) -> None:
    def told(item: dict[str, Any]) -> str:
        return str(item.get("content") or item.get("arguments") or item.get("output"))

    messages = to_messages(read_items(items))
    text = "".join(
        f"{m['content']}" if "content" in m else "" for m in messages if m["role"] == "user"
    )
    assert text == "".join(i["content"] for i in items if i.get("role") == "user")
    assert [m["content"] for m in messages if m["role"] == "tool"] == [
        i["output"] for i in items if i.get("type") == "function_call_output"
    ]
    assert [
        call["function"]["arguments"] for m in messages for call in m.get("tool_calls", ())
    ] == [i["arguments"] for i in items if i.get("type") == "function_call"]
    whole = json.dumps(messages, ensure_ascii=False)
    assert all(json.dumps(told(item), ensure_ascii=False)[1:-1] in whole for item in items)


def test_leading_system_messages_are_one() -> None:
    items = [
        {"role": "developer", "content": "b"},
        {"role": "system", "content": "c"},
        {"role": "user", "content": "d"},
        {"role": "system", "content": "e"},
    ]
    messages = to_messages(read_items(items), "a")
    assert [(m["role"], m["content"]) for m in messages] == [
        ("system", "a\n\nb\n\nc"),
        ("user", "d"),
        ("system", "e"),
    ]


@unhurried
@given(st.lists(JSON, max_size=3) | JSON)
def test_any_input_is_read_or_refused(value: Any) -> None:
    try:
        to_messages(read_items(value if isinstance(value, list) else [value]))
    except RequestError as error:
        assert error.param is not None
        assert len(str(error)) < 500


# --- any body -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def http() -> Iterator[Any]:
    llm = FakeLLM(response_template=RESPONSE_TEMPLATE)
    with TestClient(create_app(llm), raise_server_exceptions=False) as client:  # type: ignore[arg-type]
        yield client


KINDS = st.sampled_from(
    "message reasoning function_call function_call_output item_reference custom_tool_call text "
    "tool_use tool_result thinking document image input_text output_text refusal function".split()
)
PART = st.fixed_dictionaries(
    {},
    optional={
        "type": KINDS | JSON,
        "text": TEXT | JSON,
        "role": st.sampled_from(["user", "assistant", "boss"]) | JSON,
        "content": TEXT | st.lists(JSON, max_size=2),
        **dict.fromkeys(("id", "call_id", "name", "arguments", "output", "summary"), TEXT | JSON),
        **dict.fromkeys(("tool_use_id", "input", "source", "thinking", "refusal"), TEXT | JSON),
        **dict.fromkeys(("input_schema", "parameters", "encrypted_content"), JSON),
    },
)
NESTED = PART | st.builds(lambda part, inner: part | {"content": inner}, PART, st.lists(PART))
OBJECT = st.dictionaries(st.sampled_from(["type", "name", "effort", "format", "id"]), JSON | TEXT)
RESPONSE_BODIES = st.fixed_dictionaries(
    {},
    optional={
        "input": TEXT | st.lists(NESTED, max_size=3) | JSON,
        "tools": st.lists(NESTED, max_size=2),
        **dict.fromkeys(("tool_choice", "text", "reasoning", "conversation", "metadata"), OBJECT),
        **dict.fromkeys(("include", "previous_response_id", "top_logprobs", "store"), JSON),
        **dict.fromkeys(("stream", "max_output_tokens", "instructions", "seed"), JSON),
    },
)
CONVERSATION_BODIES = st.fixed_dictionaries(
    {}, optional={"items": st.lists(NESTED, max_size=2) | JSON, "metadata": OBJECT | JSON}
)


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(
    st.tuples(st.just("/v1/responses"), RESPONSE_BODIES)
    | st.tuples(st.just("/v1/responses/input_tokens"), RESPONSE_BODIES)
    | st.tuples(st.just("/v1/conversations"), CONVERSATION_BODIES)
)
def test_no_body_is_a_500(http: Any, sent: tuple[str, dict[str, Any]]) -> None:
    path, body = sent
    answer = http.post(path, json=body)
    assert answer.status_code in (200, 400, 404), answer.text
    assert answer.status_code == 200 or len(answer.text) < 3000
    assert "server_error" not in answer.text and "api_error" not in answer.text


DEEP = "[" * 900 + "]" * 900


USER = {"role": "user", "content": "x"}
SCHEMA = {"type": "object", "properties": {"a": "DEEP"}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "DEEP"}),
        (
            "/v1/responses",
            {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}]},
        ),
        ("/v1/responses", {"input": [{"type": "web_search_call", "x": "DEEP"}, USER]}),
        ("/v1/conversations", {"items": [{**USER, "y": "DEEP"}]}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_deep_json_is_answered_or_refused(
    http: Any, path: str, body: dict[str, Any], stream: bool
) -> None:
    sent = json.dumps({**body, "stream": stream}).replace('"DEEP"', DEEP)
    answer = http.post(path, content=sent, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400), answer.text[:500]
    assert "server_error" not in answer.text and "api_error" not in answer.text


def test_late_system_messages_and_empty_ones_become_the_users() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "system", "content": "late"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    assert without_late_systems(messages) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "\n\na\n\nlate"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]


def test_a_name_is_translated_by_its_longest_known_beginning() -> None:
    names = Translation({}, {"tools[1]": "tools[4]", "tools[1].function": "tools[4].f", "a": "b"})
    for param, expected in {
        "tools[1].function.name": "tools[4].f.name",
        "tools[1].type": "tools[4].type",
        "tools[12]": "tools[12]",
        "a": "b",
        "ab": "ab",
    }.items():
        assert names.name(param) == expected
