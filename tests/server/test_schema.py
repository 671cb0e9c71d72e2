from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import fields_dict
from hypothesis import given
from hypothesis import strategies as st

from inferno.errors import RequestError
from inferno.server.endpoints import BODIES
from inferno.server.fields.schema import ChatRequest, CompletionRequest
from inferno.server.fields.support import Field
from inferno.server.http.parsing import decode

MESSAGES = [{"role": "user", "content": "hi"}]
SMALLEST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/rerank": {"query": "hi", "documents": ["ho"]},
    "/v1/score": {"text_1": "hi", "text_2": "ho"},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1]},
    "/v1/batches": {"input_file_id": "file-1", "endpoint": "/v1/embeddings"},
    "/v1/responses": {"input": "hi"},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/conversations": {},
    "/v1/conversations/{id}": {},
    "/v1/conversations/{id}/items": {"items": []},
}
ROWS = [(cls, row) for cls in BODIES for row in cls.rows]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def send(cls: type[Any] = ChatRequest, strict: bool = False, **body: Any) -> tuple[Any, list[str]]:
    sent = json.dumps({**SMALLEST[cls.path], **body}).encode()
    parsed = decode(sent, cls, strict=strict)
    return parsed.body, list(parsed.ignored)


def refusal(cls: type[Any] = ChatRequest, strict: bool = False, **body: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        send(cls, strict, **body)
    return caught.value


@pytest.mark.parametrize("cls", BODIES)
def test_the_table_names_every_field_that_is_read_and_no_other_as_honoured(cls: type[Any]) -> None:
    rows = cls.rows
    assert sorted(r.name for r in rows if r.verdict == "honoured") == sorted(fields_dict(cls))
    assert len({r.name for r in rows}) == len(rows)
    assert all(r.note for r in rows)


@pytest.mark.parametrize(
    ("cls", "row"), [pytest.param(c, r, id=f"{c.__name__}-{r.name}") for c, r in ROWS]
)
def test_what_the_table_says_of_a_field_is_what_happens(cls: type[Any], row: Field) -> None:
    something: dict[str, Any] = {row.name: "something"}
    if row.verdict == "refused":
        error = refusal(cls, **something)
        assert (error.param, error.code, error.remedy) == (
            row.name,
            "unsupported_parameter",
            row.note,
        )
    elif row.verdict == "accepted":
        assert send(cls, **something)[1] == [row.name]
    for value in (*row.harmless, None):
        if row.verdict != "honoured":
            assert send(cls, strict=True, **{row.name: value})[1] == []


def test_true_is_not_one() -> None:
    assert refusal(best_of=True).param == "best_of"
    assert send(best_of=1)[1] == []


def test_unknown_fields_are_named_and_refused_where_that_is_wished() -> None:
    assert send(frobnicate=1, user="u")[1] == ["frobnicate", "user"]
    error = refusal(strict=True, frobnicate=1)
    assert (error.param, error.code) == ("frobnicate", "unknown_parameter")
    assert send(strict=True, user="u")[1] == ["user"]


def test_unknown_fields_of_messages_are_named_too() -> None:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "x",
        "annotations": [],
        "audio": None,
    }
    assert send(messages=[message])[1] == ["messages[].annotations"]
    assert refusal(strict=True, messages=[message]).param == "messages[].annotations"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": 3}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [MESSAGES[0], {"role": 5}]}, "messages[1].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 2**70}, "max_tokens"),
        ({"seed": 10**30}, "seed"),
        ({"n": True}, "n"),
        ({"stream": 1}, "stream"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"stop": {"Single": "</s>"}}, "stop"),
        ({"stream_options": []}, "stream_options"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"logit_bias": {"1": "x"}}, "logit_bias"),
        ({"tools": [1]}, "tools[0]"),
        ({"tool_choice": 1}, "tool_choice"),
    ],
)
def test_a_mistake_is_named_by_its_path(body: dict[str, Any], param: str) -> None:
    error = refusal(**body)
    assert error.param == param
    assert str(error).startswith(f"{param}: ")


def test_a_missing_field_is_named() -> None:
    with pytest.raises(RequestError, match="required field missing") as caught:
        decode(b"{}", CompletionRequest)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("prompt", "read"),
    [("x", "x"), (["x", "y"], ["x", "y"]), ([1, 2.0], [1, 2]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_a_prompt_has_four_forms(prompt: Any, read: Any) -> None:
    assert send(CompletionRequest, prompt=prompt)[0].prompt == read


@pytest.mark.parametrize("prompt", [None, [], {}, 5, ["x", 1], [1, "x"], [[1], 2], [[1], ["x"]]])
def test_and_no_fifth(prompt: Any) -> None:
    assert (refusal(CompletionRequest, prompt=prompt).param or "").startswith("prompt")


def test_null_is_not_given() -> None:
    nulls: dict[str, Any] = dict.fromkeys(fields_dict(ChatRequest).keys() - {"messages"})
    assert send(**nulls)[0] == send()[0]


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"3", b'"x"', b"null", b"\xff", b"{" * 1000, b"[" * 10**6, b"NaN"]
)
def test_what_is_not_a_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError):
        decode(body, ChatRequest)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": ["x"] * 100_000},
        {"messages": [{"role": "u", "content": [{}] * 5 + ["x" * 100_000] * 10}]},
        {"temperature": "x" * 1_000_000},
        {"x" * 1_000_000: 1, "temperature": "x"},
        {name: [] for name in fields_dict(ChatRequest) if name != "messages"},
    ],
)
def test_an_error_is_short_however_long_the_mistake(body: dict[str, Any]) -> None:
    assert len(str(refusal(**body))) < 1000


def test_unknown_names_are_shortened_and_limited() -> None:
    unknown: dict[str, Any] = {f"{i}{'x' * 1000}": i for i in range(1000)}
    ignored = send(**unknown)[1]
    assert len(ignored) == 100
    assert max(map(len, ignored)) < 200


@given(st.sampled_from([ChatRequest, CompletionRequest]), st.data())
def test_any_json_is_read_or_refused(cls: type[Any], data: st.DataObject) -> None:
    names = st.sampled_from(sorted(fields_dict(cls))) | st.text(max_size=5)
    body = {**SMALLEST[cls.path], **data.draw(st.dictionaries(names, JSON, max_size=5))}
    try:
        decode(json.dumps(body).encode(), cls)
    except RequestError as error:
        assert len(str(error)) < 2000
