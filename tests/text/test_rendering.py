"""Prompts beside those that transformers renders of the same template."""

from __future__ import annotations

from collections import UserDict
from enum import StrEnum
from pathlib import Path
from typing import Any

import jinja2
import pytest
from attrs import frozen

from inferno.testing.tiny import run_python
from inferno.text.rendering import rendered

TEMPLATES = sorted((Path(__file__).parents[1] / "acceptance" / "templates").glob("*.jinja"))
CALL = {
    "id": "abcdefg12",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "<Graz> & Wien", "days": 2}},
}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "abcdefg12", "name": "weather", "content": "rain \u00e9"},
    {"role": "assistant", "content": "It rains. "},
]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
ALTERED = """{%- set n = namespace(x=1) %}
{%- generation %}{% set a = 1 %}{{ n.x }}{% endgeneration %}
{{ a is defined }} {{ dict(a=1) | tojson(indent=2) }} {{ documents is none }} {{ tools is none }}
  {%- for m in messages %}{{ m | tojson(sort_keys=true, separators=(',', ':')) }}
  {% if loop.index == 2 %}{% continue %}{% endif %}{% endfor %} {{ more }}
"""


class Role(StrEnum):
    user = "user"


def by_transformers(source: str, messages: Any, tools: Any = None, **options: Any) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    texts: Any = render_jinja_template([messages], tools=tools, chat_template=source, **options)[0]
    return str(texts[0])


@pytest.mark.parametrize("file", TEMPLATES, ids=lambda file: file.stem)
def test_prompts_are_those_of_transformers(file: Path) -> None:
    source = file.read_text()
    compared = 0
    for count in range(1, len(CONVERSATION) + 1):
        for tools in (None, TOOLS):
            options: dict[str, Any] = {
                "add_generation_prompt": True,
                "bos_token": "<s>",
                "eos_token": "</s>",
            }
            messages = CONVERSATION[:count]
            try:
                expected = by_transformers(source, messages, tools, **options)
            except jinja2.TemplateError:
                with pytest.raises(jinja2.TemplateError):
                    rendered(source, messages, tools, **options)
                continue
            if "strftime_now" not in source:
                assert rendered(source, messages, tools, **options) == expected
                compared += 1
    assert compared >= 2 or "strftime_now" in source


def test_blocks_filters_and_objects_are_those_of_transformers() -> None:
    messages: list[dict[str, Any]] = [
        {"role": Role.user, "content": "\u00e9<", "more": UserDict(a=(1, True, 0.5, None))},
        {"role": "user", "content": "b"},
        {"role": "user", "content": "c", "object": object()},
    ]
    assert rendered(ALTERED, messages, more=[3]) == by_transformers(ALTERED, messages, more=[3])


@pytest.mark.parametrize("content", ["It rains. ", [{"type": "text", "text": "It rains."}]])
@pytest.mark.parametrize("trim", ["", " | trim"])
def test_a_prompt_ends_within_the_message_that_is_continued(content: Any, trim: str) -> None:
    source = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content" + trim + " }}"
        "{% else %}{{ m.content[0].text" + trim + " }}{% endif %}<end>{% endfor %}"
    )
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]
    prompt = rendered(source, messages, continue_final_message=True)
    assert prompt == by_transformers(source, messages, continue_final_message=True)
    assert prompt.startswith("hi<end>It rains.")


def test_a_field_can_be_continued_instead_of_the_content() -> None:
    source = "{% for m in messages %}<think>{{ m.reasoning_content }}</think>{% endfor %}"
    messages = [{"role": "assistant", "content": "c", "reasoning_content": "so far"}]
    prompt = rendered(source, messages, continue_final_message="reasoning_content")
    assert prompt == "<think>so far"


@pytest.mark.parametrize(
    ("source", "message", "cause"),
    [
        ("{{ messages[0].content }}", {"role": "assistant"}, "no 'content'"),
        ("{{ messages[0].role }}", {"role": "assistant", "content": "x"}, "does not read"),
        ("{{ messages[0].content }}", {"role": "assistant", "content": [{}]}, "no text"),
        ("{{ messages[0].content[:1] }}", {"role": "a", "content": "xyz"}, "leaves the end"),
    ],
)
def test_what_cannot_be_continued_is_refused(source: str, message: Any, cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        rendered(source, [message], continue_final_message=True)


@pytest.mark.parametrize(
    "source",
    [
        "{% set n = namespace(__class__=1) %}",
        "{% set n = namespace() %}{% set n._x = 1 %}",
        "{{ dict.__class__ }}{{ dict.__class__.__mro__ }}",
        "{{ messages[0].content.format.__globals__.x }}",
    ],
)
def test_the_sandbox_hides_the_interpreter(source: str) -> None:
    with pytest.raises(jinja2.TemplateError):
        rendered(source, [{"role": "user", "content": "x"}])


def test_objects_lose_their_methods() -> None:
    @frozen
    class Writes:
        def write(self) -> str:
            return "written"

    with pytest.raises(jinja2.TemplateError):
        rendered("{{ messages[0].image.write() }}", [{"role": "user", "image": Writes()}])


def test_rendering_imports_neither_transformers_nor_numpy() -> None:
    done = run_python(
        "import sys\n"
        "from inferno.text import ChatTemplate\n"
        "template = ChatTemplate({'default': '{{ messages[0].content }}'})\n"
        "template.render([{'role': 'user', 'content': 'x'}])\n"
        "heavy = {'torch', 'transformers', 'numpy', 'huggingface_hub'} & set(sys.modules)\n"
        "sys.exit(str(sorted(heavy)) if heavy else 0)"
    )
    assert done.returncode == 0, done.stderr
