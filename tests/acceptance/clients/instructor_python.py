"""The `instructor` package: objects from every mode it has for OpenAI's API."""

from __future__ import annotations

from typing import Any

import instructor
import openai
from pydantic import BaseModel
from words import ASK_PERSON, MODEL, URL, equal, run_flows

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=30)


class Person(BaseModel):
    """A person."""

    name: str
    age: int


ADA = Person(name="Ada Lovelace", age=36)
MESSAGES: list[Any] = [{"role": "user", "content": ASK_PERSON}]


def _extract(mode: instructor.Mode) -> None:
    person = instructor.from_openai(client, mode=mode).chat.completions.create(
        model=MODEL, messages=MESSAGES, response_model=Person, max_retries=0
    )
    equal(person.model_dump(), ADA.model_dump())


def flow_tools() -> None:
    _extract(instructor.Mode.TOOLS)


def flow_json() -> None:
    _extract(instructor.Mode.JSON)


def flow_json_schema() -> None:
    _extract(instructor.Mode.JSON_SCHEMA)


def flow_markdown_json() -> None:
    _extract(instructor.Mode.MD_JSON)


def flow_stream() -> None:
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        parts: list[Any] = list(
            instructor.from_openai(client, mode=mode).chat.completions.create_partial(
                model=MODEL, messages=MESSAGES, response_model=Person, max_retries=0
            )
        )
        equal(parts[-1].model_dump(), ADA.model_dump())


if __name__ == "__main__":
    run_flows(globals())
