"""What each template expects of messages is found by rendering with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferno.errors import RequestError
from inferno.text import ChatTemplate

OBJECT = {"city": "Graz"}
TEXT = json.dumps(OBJECT)


def turn(content: Any = None, arguments: Any = TEXT, **more: Any) -> list[dict[str, Any]]:
    function = {"name": "weather", "arguments": arguments}
    call = {"id": "call_7", "type": "function", "function": function}
    message = {"role": "assistant", "content": content, "tool_calls": [call], **more}
    if content == "missing":
        del message["content"]
    return [
        {"role": "user", "content": "hi"},
        message,
        {"role": "tool", "tool_call_id": "call_7", "content": "sun"},
    ]


def render(source: str, messages: Any, **kwargs: Any) -> str:
    return ChatTemplate({"default": source}).render(messages, **kwargs)


def each(body: str) -> str:
    """A template that writes this for every message `m`."""
    return "{% for m in messages %}" + body + "{% endfor %}"


ARGUMENTS = "{{ c.function.name }}{{ c.function.arguments | tojson }}"
CALLS = "{% for c in m.tool_calls or [] %}" + ARGUMENTS + "{% endfor %}"
PRINTS = each("[{{ m.content }}]" + CALLS)
SPLITS = each("[{{ m.content.split('x')[-1] }}]" + CALLS)
ASKS_FOR_NONE = each(
    "{% if m.content is none %}" + CALLS + "{% else %}[{{ m.content }}]{% endif %}"
)


@pytest.mark.parametrize("content", [None, "", "missing"])
@pytest.mark.parametrize("arguments", [TEXT, OBJECT], ids=["text", "object"])
@pytest.mark.parametrize(
    "source", [PRINTS, SPLITS, ASKS_FOR_NONE], ids=["prints", "splits", "none"]
)
def test_no_content_beside_calls_is_what_the_template_can_render(
    source: str, content: Any, arguments: Any
) -> None:
    empty = "" if source is ASKS_FOR_NONE else "[]"
    assert render(source, turn(content, arguments)) == f"[hi]{empty}weather{TEXT}[sun]"


def test_content_beside_calls_stays() -> None:
    assert render(PRINTS, turn("I look")) == f"[hi][I look]weather{TEXT}[sun]"


def test_arguments_are_text_for_a_template_that_writes_them_as_they_are() -> None:
    call = "{{ c.function.name + c.function.arguments }}"
    source = each("{% for c in m.tool_calls or [] %}" + call + "{% endfor %}")
    assert render(source, turn()) == render(source, turn(arguments=OBJECT)) == f"weather{TEXT}"


def test_arguments_that_are_not_json_stay_text() -> None:
    assert '"{broken"' in render(PRINTS, turn(arguments="{broken"))


@pytest.mark.parametrize("arguments", ["[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900])
def test_arguments_that_are_nested_too_deeply_are_refused(arguments: str) -> None:
    for given in (arguments, json.loads(arguments)):
        with pytest.raises(RequestError, match="nested") as caught:
            render(PRINTS, turn(arguments=given))
        assert caught.value.param == "messages[1].tool_calls[0].function.arguments"


def test_ids_are_short_where_the_template_demands_it() -> None:
    source = each(
        "{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
        "{{ raise_exception('nine') }}{% endif %}({{ c.id }}" + ARGUMENTS + "){% endfor %}"
        "{% if m.role == 'tool' %}({{ m.tool_call_id }}){% endif %}"
    )
    call, result = render(source, turn()).strip("()").split(")(")
    assert len(result) == 9 and result.isalnum() and call.startswith(result)


def test_a_tool_s_message_has_the_name_that_the_template_needs() -> None:
    name = "{% if m.role == 'tool' %}{{ m.name.upper() }}{% endif %}"
    assert render(each(name + CALLS), turn()).endswith("WEATHER")
    assert "weather" not in render(each("{{ m.name }}"), turn())


@pytest.mark.parametrize("given", ["reasoning", "reasoning_content", "thinking"])
@pytest.mark.parametrize("read", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_is_given_back_under_the_name_that_the_template_reads(
    given: str, read: str
) -> None:
    source = each("{{ m." + read + " or '' }}{{ m.content }}")
    answer = {"role": "assistant", "content": "a", given: "hm"}
    assert render(source, [{"role": "user", "content": "hi"}, answer]) == "hihma"


def test_reasoning_is_left_out_where_the_template_refuses_it_beside_content() -> None:
    source = each(
        "{% if m.tool_calls and m.content and m.thinking %}{{ raise_exception('not both') }}"
        "{% endif %}[{{ m.thinking }}{{ m.content }}]" + CALLS
    )
    assert "I look" in render(source, turn("I look", thinking="hm"))
    assert "hm" in render(source, turn("", thinking="hm"))


def test_a_system_message_goes_into_the_first_user_s_where_the_template_has_none() -> None:
    shown = "[{{ m.role }}: {{ m.content }}]"
    refuses = each(
        "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + shown
    )
    drops = each("{% if m.role != 'system' %}" + shown + "{% endif %}")
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]
    for source in (refuses, drops):
        assert render(source, messages) == "[user: be brief\n\nhi]"


def test_a_template_that_only_mentions_developers_gets_a_system_message() -> None:
    only = "{% if m.role in ('system', 'user') %}[{{ m.role }}: {{ m.content }}]{% endif %}"
    knows = "{% if m.role != 'system' %}[{{ m.role }}: {{ m.content }}]{% endif %}"
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]
    for source, role in ((only, "system"), (knows, "developer")):
        source = each(source) + "{# for developers #}"
        assert render(source, messages) == f"[{role}: be brief][user: hi]"


def test_content_is_parts_for_a_template_that_knows_only_those() -> None:
    part = "{% if p.type == 'text' %}[{{ p.text }}]{% endif %}"
    source = each("{% for p in m.content %}" + part + "{% endfor %}")
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": ["a", "b"]}]
    assert render(source, messages) == "[s][a\nb]"
