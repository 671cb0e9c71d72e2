"""Answers in a form, and over HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.real.prompts import CHATS

from inferno import LLM, SamplingParams

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "married": {"type": "boolean"},
    },
    "required": ["name", "age", "married"],
    "additionalProperties": False,
}
PLANETS = {
    "type": "array",
    "minItems": 2,
    "maxItems": 4,
    "items": {
        "type": "object",
        "properties": {
            "planet": {"enum": ["Mercury", "Venus", "Earth", "Mars", "Jupiter"]},
            "moons": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["planet", "moons"],
        "additionalProperties": False,
    },
}
DATE = r"(January|April|July|October) [1-9], (19|20)\d\d"


@pytest.mark.slow
def test_answers_match_their_schemas_and_their_regex(llm: LLM) -> None:
    """Together in a batch, with one that is free."""
    prompts: list[tuple[str, dict[str, Any] | None]] = [
        ("Describe a person, as JSON.", {"json": PERSON}),
        ("List planets and their moons, as JSON.", {"json": PLANETS}),
        ("When were you born? Answer with a date.", {"regex": DATE}),
        (CHATS[0], None),
    ]
    params = [
        SamplingParams(
            temperature=0, max_tokens=24 if form is None else 160, structured_outputs=form
        )
        for _, form in prompts
    ]
    chats = [[{"role": "user", "content": text}] for text, _ in prompts]
    outputs = [output.outputs[0] for output in llm.chat(chats, params)]
    assert [output.finish_reason for output in outputs[:3]] == ["stop"] * 3
    person, planets, date, free = (output.text for output in outputs)
    described = json.loads(person)
    assert set(described) == {"name", "age", "married"}
    assert isinstance(described["name"], str) and type(described["married"]) is bool
    assert type(described["age"]) is int and 0 <= described["age"] <= 150
    listed = json.loads(planets)
    assert 2 <= len(listed) <= 4
    known = PLANETS["items"]["properties"]["planet"]["enum"]  # type: ignore[index]
    assert all(e.keys() == {"planet", "moons"} and e["planet"] in known for e in listed)
    assert all(type(e["moons"]) is int and 0 <= e["moons"] <= 99 for e in listed)
    assert re.fullmatch(DATE, date)
    [unmasked] = llm.chat([chats[3]], params[3:])
    assert free == unmasked.outputs[0].text, "a neighbour's grammar changes nothing"


@pytest.fixture(scope="module")
def client(gguf_file: str) -> Iterator[Any]:
    openai = pytest.importorskip("openai")
    from tests.server.test_openai_client import Served

    server = Served(gguf_file, "--memory", "1GiB", "--max-model-len", "2048", "--threads", "1")
    try:
        with openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="secret", timeout=60, max_retries=0
        ) as sdk:
            yield sdk
    finally:
        server.stop()


@pytest.mark.slow
def test_a_stream_over_http_is_the_whole_answer_and_the_engines_own(client: Any, llm: LLM) -> None:
    [model] = [listed.id for listed in client.models.list()]
    for text in CHATS[:4]:
        messages = [{"role": "user", "content": text}]
        options = {
            "model": model,
            "messages": messages,
            "max_tokens": 24,
            "temperature": 0,
            "logprobs": True,
        }
        whole = client.chat.completions.create(**options).choices[0]
        chunks = [
            chunk.choices[0]
            for chunk in client.chat.completions.create(**options, stream=True)
            if chunk.choices
        ]
        assert "".join(chunk.delta.content or "" for chunk in chunks) == whole.message.content
        streamed = [
            (each.token, each.logprob)
            for chunk in chunks
            if chunk.logprobs is not None
            for each in chunk.logprobs.content or ()
        ]
        assert streamed == [(each.token, each.logprob) for each in whole.logprobs.content]
        assert chunks[-1].finish_reason == whole.finish_reason
        [ours] = llm.chat([messages], SamplingParams(temperature=0, max_tokens=24))
        assert whole.message.content == ours.outputs[0].text


@pytest.mark.slow
def test_a_form_over_http_is_kept(client: Any) -> None:
    [model] = [listed.id for listed in client.models.list()]
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Describe a person, as JSON."}],
        max_tokens=160,
        temperature=0,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": PERSON, "strict": True},
        },
    )
    assert set(json.loads(answer.choices[0].message.content)) == {"name", "age", "married"}
