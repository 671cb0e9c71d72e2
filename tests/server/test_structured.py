"""Structured output over HTTP: every way to ask is one constraint, a bad one a 400 with its path.
And fields of plugins, which need no change in the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from litestar import Litestar
from litestar.testing import TestClient
from tests.server.server_fakes import FakeLLM

from inferno.builtin import inferno_request_fields
from inferno.contracts import FieldEffect, GrammarSpec, RequestField
from inferno.errors import QueueFullError
from inferno.request.sampling_params import SamplingParams
from inferno.server.access.limiter import Limiter
from inferno.server.app import models_of
from inferno.server.generate.generation import Prepared
from inferno.server.generate.pipeline import Pipeline

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
Client = Callable[..., TestClient[Any]]


def chat(client: TestClient[Any], **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    return client.post("/v1/chat/completions", json=body)


def asked(llm: FakeLLM) -> GrammarSpec | None:
    return llm.seen[-1][1].structured_outputs


WAYS = [
    ({"response_format": {"type": "json_object"}}, "json_object"),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
            }
        },
        "json_schema",
    ),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema"),
    ({"structured_outputs": {"json": SCHEMA}}, "json_schema"),
    ({"structured_outputs": {"regex": "a+"}}, "regex"),
    ({"structured_outputs": {"choice": ["a", "b"]}}, "choice"),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, "lark"),
    ({"guided_json": SCHEMA}, "json_schema"),
    ({"guided_json": json.dumps(SCHEMA)}, "json_schema"),
    ({"guided_regex": "a+"}, "regex"),
    ({"guided_choice": ["a"]}, "choice"),
    ({"guided_grammar": 'root ::= "a"'}, "gbnf"),
    ({"grammar": 'root ::= "a"'}, "gbnf"),
    ({"json_schema": SCHEMA}, "json_schema"),
]


@pytest.mark.parametrize(("fields", "kind"), WAYS)
def test_every_way_to_ask_is_one_constraint(client: Client, fields: Any, kind: str) -> None:
    llm = FakeLLM()
    server = client(llm)
    for answer in (
        chat(server, **fields),
        server.post("/v1/completions", json={"prompt": "x", **fields}),
    ):
        assert answer.status_code == 200, answer.text
        assert "x_inferno" not in answer.json(), "nothing is ignored"
        spec = asked(llm)
        assert spec is not None and spec.kind == kind


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"response_format": None, "guided_json": None, "grammar": ""},
        {"structured_outputs": {}},
        {"structured_outputs": {"json": None, "disable_fallback": True}},
    ],
)
def test_asking_for_nothing_constrains_nothing(client: Client, fields: Any) -> None:
    llm = FakeLLM()
    assert chat(client(llm), **fields).status_code == 200
    assert asked(llm) is None


BAD = [
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {}, "x": 1}, None),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nope"}}}},
        "response_format.json_schema.schema",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "schema": {"properties": {"a": {"type": "string", "pattern": "("}}},
                },
            }
        },
        "response_format.json_schema.schema.properties.a",
    ),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
    ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
    ({"structured_outputs": "a"}, "structured_outputs"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
    ({"guided_regex": "("}, "guided_regex"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_choice": []}, "guided_choice"),
    ({"grammar": "root ::= missing"}, "grammar"),
    ({"json_schema": {"type": "nope"}}, "json_schema"),
    ({"guided_regex": "a" * 2**20}, "guided_regex"),
    ({"logits_processors": [{"name": "none"}]}, "logits_processors[0].name"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
    ({"bad_words": [""]}, "bad_words"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "param"), BAD)
def test_a_bad_one_is_a_400_with_its_path(
    refusing: TestClient[Any], fields: Any, param: str | None, stream: bool
) -> None:
    llm: Any = models_of(cast(Litestar, refusing.app)).named(None).llm
    llm.seen.clear()
    answer = chat(refusing, stream=stream, **fields)
    if param is None:
        assert answer.status_code == 200
        return
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert error["message"].endswith((".", "?")) and not llm.seen


def test_a_prompt_is_truncated_before_it_is_counted(client: Client) -> None:
    llm = FakeLLM()
    server = client(llm)
    body = {"prompt": "abcdef", "truncate_prompt_tokens": 2, "echo": True, "max_tokens": 3}
    answer = server.post("/v1/completions", json=body).json()
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["choices"][0]["text"].startswith("ef")
    chatted = chat(server, truncate_prompt_tokens=4).json()
    assert chatted["usage"]["prompt_tokens"] == 4


# --- fields of plugins ----------------------------------------------------------------------------


def shouting(value: str) -> FieldEffect:
    if not value.isupper():
        raise ValueError("only capital letters")
    return FieldEffect(
        sampling={"temperature": 0.5, "stop": [value]},
        template_variables={"mood": value},
    )


FIELDS = {
    each.name: each
    for each in (
        RequestField(name="shout", type="string", apply=shouting, help="Shouts.", maximum=5),
        RequestField(
            name="only_text",
            type="boolean",
            apply=lambda value: FieldEffect(),
            help="Of one endpoint.",
            endpoints=["/v1/completions"],
        ),
        RequestField(
            name="broken",
            type="integer",
            apply=lambda value: FieldEffect(sampling={"nonsense": 1}),
            help="Sets what does not exist.",
        ),
        *inferno_request_fields(),
    )
}


def test_a_plugins_field_changes_the_request(client: Client) -> None:
    llm = FakeLLM(request_fields=FIELDS)
    answer = chat(client(llm, strict_params=True), shout="LOUD", temperature=1.5, top_p=0.5)
    assert answer.status_code == 200, answer.text
    params = llm.seen[-1][1]
    assert (params.temperature, params.stop, params.top_p) == (0.5, ("LOUD",), 0.5)


def test_its_null_and_its_other_endpoints_are_as_without_it(client: Client) -> None:
    server = client(FakeLLM(request_fields=FIELDS))
    assert chat(server, shout=None).status_code == 200
    assert chat(server, only_text=True).json()["x_inferno"]["ignored"] == ["only_text"]
    text = server.post("/v1/completions", json={"prompt": "x", "only_text": True})
    assert "x_inferno" not in text.json()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shout": 5}, "type string"),
        ({"shout": "quiet"}, "only capital letters"),
        ({"shout": "MUCHTOOLONG"}, "at most 5"),
        ({"no_repeat_ngram_size": 0}, "at least 1 and at most 1024"),
        ({"no_repeat_ngram_size": True}, "type integer"),
        ({"broken": 1}, "nonsense"),
    ],
)
def test_its_wrong_values_are_a_400(client: Client, fields: Any, message: str) -> None:
    answer = chat(client(FakeLLM(request_fields=FIELDS)), **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, next(iter(fields)))
    assert message in error["message"]


class Waiting(FakeLLM):
    """Its grammars wait for those of other requests, without an end."""

    async def check(self, params: SamplingParams) -> None:
        if params.structured_outputs is not None:
            await asyncio.Event().wait()


def test_a_grammar_that_waits_to_be_checked_counts_in_the_timeout(client: Client) -> None:
    http = client(Waiting(), request_timeout=0.1)
    answer = chat(http, structured_outputs={"regex": "a"})
    assert answer.status_code == 504, answer.text
    assert not models_of(http.app).hosted[0].limiter.running


def test_a_grammar_that_waits_to_be_checked_counts_in_the_limit() -> None:
    async def body() -> None:
        limiter, params = Limiter(limit=1), SamplingParams(structured_outputs={"regex": "a"})
        prepared = Prepared(model="m", prompts=[(1, 2)], params=params)
        llm: Any = Waiting()
        metrics: Any = SimpleNamespace(aborted=lambda outputs: None)
        unused: Any = None
        pipeline = Pipeline(llm, limiter, metrics)
        first = asyncio.create_task(pipeline.respond(prepared, unused, unused))
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await pipeline.respond(prepared, unused, unused)
        first.cancel()
        await asyncio.wait([first])
        assert not limiter.running and not limiter.in_flight

    asyncio.run(body())


def test_the_document_has_the_fields_of_plugins(client: Any) -> None:
    llm = FakeLLM()
    http = client(llm, only=())

    def properties(name: str) -> dict[str, Any]:
        schemas = http.get("/schema/openapi.json").json()["components"]["schemas"]
        fields: dict[str, Any] = schemas[name]["properties"]
        return fields

    before = properties("ChatRequest").keys()
    llm.request_fields = FIELDS  # a model with other plugins was loaded
    for name, field in FIELDS.items():
        assert name not in before
        if "/v1/chat/completions" not in field.endpoints:
            assert name not in properties("ChatRequest")
            continue
        [kind, null] = properties("ChatRequest")[name]["anyOf"]
        assert kind["type"] == field.type and null == {"type": "null"}
        assert properties("ChatRequest")[name]["description"] == field.help
        assert name not in properties("MessagesRequest")
