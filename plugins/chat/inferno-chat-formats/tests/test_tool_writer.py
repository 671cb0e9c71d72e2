"""Tools for chat templates without any: what the model is told, and how its answer is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferno.contracts import ChatFormat, ChatNeed, OutputFormat
from inferno.errors import RequestError
from inferno.testing import ChatTemplate, load_catalog, with_written_tools

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
STRICT_TURNS = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('turns must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}"
    "{% endfor %}"
)
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Wetter für {city}",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            "strict": True,
        },
    }
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Graz"}}\n</tool_call>'
USER = {"role": "user", "content": "Graz?"}
ASKED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": i, "type": "function", "function": {"name": "weather", "arguments": arguments}}
        for i, arguments in (("1", '{"city": "Graz"}'), ("2", {"city": "Graz"}))
    ],
}
RESULTS = [{"role": "tool", "tool_call_id": i, "content": f"{i}0 °C"} for i in "12"]


def chosen(template: str) -> tuple[str, str]:
    choice, why, _ = load_catalog().chat_format(ChatNeed(template=template))
    return (choice.item.name if choice else "none"), why


def generic() -> OutputFormat:
    item = load_catalog().named(ChatFormat, "generic").item
    built: OutputFormat = item.build(ChatNeed(template=PLAIN))
    return built


def written(messages: list[Any], tools: Any = TOOLS) -> list[dict[str, Any]]:
    writer = getattr(generic(), "tool_writer", None)
    assert writer is not None
    return with_written_tools(messages, tools, writer)


def test_it_is_chosen_where_the_template_has_no_tools() -> None:
    name, why = chosen(PLAIN)
    assert (name, why) == (
        "generic",
        "the chat template does not mention tools: they are written as text",
    )
    assert chosen(PLAIN + "</think>")[0] == "generic"
    assert chosen(PLAIN + "{{ tools }}")[0] == "json"
    assert chosen(PLAIN + "{{ tools }}</think>")[0] == "json"
    assert chosen("") == ("none", "")


@pytest.mark.parametrize("role", ["system", "developer", None])
def test_the_first_system_message_has_the_tools(role: str | None) -> None:
    before = [{"role": role, "content": "Be brief."}] if role else []
    system, user = written([*before, USER])
    assert system["role"] == role or "system"
    assert system["content"].startswith("Be brief.\n\nYou can call" if role else "You can call")
    [line] = [each for each in system["content"].splitlines() if "Wetter" in each]
    function = TOOLS[0]["function"]
    assert json.loads(line) == {key: function[key] for key in function if key != "strict"}
    assert '<tool_call>\n{"name": "function name", "arguments"' in system["content"]
    assert user == USER


def test_earlier_calls_and_results_are_text_even_without_tools() -> None:
    for tools in (TOOLS, None):
        messages = written([USER, ASKED, *RESULTS, {"role": "user", "content": "Thanks."}], tools)
        messages = messages[1:] if tools else messages
        assert [m["role"] for m in messages] == ["user", "assistant", "user"]
        assert messages[1] == {"role": "assistant", "content": f"{CALL}\n{CALL}"}
        result = "Result of the call:\n"
        assert messages[2]["content"] == f"{result}10 °C\n\n{result}20 °C\n\nThanks."


def test_content_stays_before_calls_and_later_turns_stay_apart() -> None:
    last = {"role": "assistant", "content": "10 °C"}
    messages = written([USER, {**ASKED, "content": "I look."}, *RESULTS, last, USER], None)
    assert messages[1]["content"] == f"I look.\n{CALL}\n{CALL}"
    assert messages[3:] == [last, USER]


def test_a_template_of_strict_turns_takes_them() -> None:
    template = ChatTemplate({"default": STRICT_TURNS})
    text = template.render(written([USER, ASKED, *RESULTS]), add_generation_prompt=False)
    assert text.startswith("[user]You can call") and "\n\nGraz?[assistant]<tool_call>" in text
    assert text.endswith("20 °C")


@pytest.mark.parametrize("calls", ["f", [{}], [{"function": {"name": 1}}], ["x"]])
def test_calls_without_a_name_are_refused(calls: Any) -> None:
    with pytest.raises(RequestError, match=r"tool_calls\[0\] has no function.name"):
        written([USER, {"role": "assistant", "tool_calls": calls}])


@pytest.mark.parametrize("tool", [{}, "f", {"function": "f"}, {"function": {"name": 1}}])
def test_tools_without_a_name_are_refused(tool: Any) -> None:
    with pytest.raises(RequestError, match=r"tools\[1\] has no function.name"):
        written([USER], [*TOOLS, tool])


ONE = '{"name": "weather", "arguments": {"city": "Graz"}}'


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "count", "content"),
    [
        (f"I look.\n{CALL}", 1, "I look."),
        (f"{CALL}\n{CALL}", 2, ""),
        (f"<tool_call>[{ONE}, {ONE}]</tool_call>", 2, ""),
        (ONE, 1, ""),
        (ONE.replace("weather", "fly"), 0, ONE.replace("weather", "fly")),
        ("<tool_call> is a tag", 0, "<tool_call> is a tag"),
        (CALL[:30], 0, CALL[:30]),
    ],
)
def test_forms_that_models_write_are_read(text: str, count: int, content: str, size: int) -> None:
    parser = generic().parser("", TOOLS)
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    deltas = [d for piece in pieces for d in parser.feed(piece)] + parser.finish()
    calls = [(d.name, json.loads(d.text)) for d in deltas if d.kind == "tool"]
    assert calls == [("weather", {"city": "Graz"})] * count
    assert "".join(d.text for d in deltas if d.kind == "content") == content


def test_a_forced_call_is_one_call() -> None:
    llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed")
    text = generic().call_grammar(TOOLS)
    assert text is not None and llguidance.LLMatcher.validate_grammar(text) == ""
    assert text.count("call:") == 1 and "*" not in text.splitlines()[0]
