"""Forced and strict tool calls, and how requests ask for reasoning."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve
from tests.server.server_fakes import PLAN, RESPONSE_TEMPLATE, TEMPLATE, FakeLLM, grammars

from inferno.catalog import load_catalog
from inferno.contracts import AddedToken, ChatFormat, ChatNeed, OutputFormat
from inferno.text import ChatTemplate

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("f", "g")
]
STRICT = [{"type": "function", "function": {"name": "f", "strict": True}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
COMPILES = SimpleNamespace(**{**vars(PLAN), "grammars": (SimpleNamespace(kind="lark"),)})


def hermes() -> OutputFormat:
    return built("hermes", ChatNeed(template="<tool_call> <think></think>"))


def built(name: str, need: ChatNeed) -> OutputFormat:
    return load_catalog().named(ChatFormat, name).item.build(need)


def fake(**fields: Any) -> FakeLLM:
    return FakeLLM(**{"reply": CALL, "output_format": hermes(), "plan": COMPILES, **fields})


def ask(http: Any, status: int = 200, **body: Any) -> Any:
    answer = http.post(CHAT, json={"messages": MESSAGES, **body})
    assert answer.status_code == status, answer.text
    return answer.json()


def spec_of(llm: FakeLLM) -> Any:
    return llm.seen[-1][1].structured_outputs


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "function": {"name": "f"}},
        {"type": "function", "name": "f"},
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": "f"}}],
            },
        },
    ],
)
def test_a_forced_call_is_held_by_a_grammar(client: Any, choice: Any) -> None:
    llm = fake()
    answer = ask(client(llm), tools=TOOLS, tool_choice=choice)
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}
    spec = spec_of(llm)
    assert (spec.kind, spec.param) == ("lark", "tool_choice")
    assert '"const": "f"' in spec.text
    assert ('"const": "g"' in spec.text) == (choice == "required")
    assert (spec.reasoning.open, spec.reasoning.is_open) == ("<think>", False)
    assert spec.reasoning.calls == ("<tool_call>",)
    assert "TOOLS 2" in llm.prompts[-1], "the prompt is the same, whatever the choice"


def test_a_choice_that_is_free_has_no_grammar(client: Any) -> None:
    llm = fake()
    ask(client(llm), tools=TOOLS)
    assert spec_of(llm) is None


def test_strict_tools_are_held_from_their_marker_on(client: Any) -> None:
    llm = fake()
    ask(client(llm), tools=STRICT)
    assert spec_of(llm).param == "tools" and "lead" in spec_of(llm).text


def test_strict_is_ignored_and_said_so_where_nothing_compiles_grammars(client: Any) -> None:
    llm = fake(plan=PLAN)
    answer = ask(client(llm), tools=STRICT)
    assert spec_of(llm) is None
    assert answer["x_inferno"]["ignored"] == ["tools[0].function.strict"]


def test_an_answer_in_json_may_be_a_call_instead(client: Any) -> None:
    llm = fake()
    ask(client(llm), tools=TOOLS, response_format={"type": "json_object"})
    assert spec_of(llm).text.startswith("start: answer_only | calls_only")


def test_a_forced_call_goes_on_from_what_the_prompt_ends_with(client: Any) -> None:
    template = ChatTemplate({"default": "{{ messages[0].content }}>>>"})
    syntax = built("functionary-v3.2", ChatNeed(template=">>>all"))
    llm = fake(reply='f\n{"a": 1}', output_format=syntax, template=template)
    answer = ask(client(llm), tools=TOOLS, tool_choice="required")
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}
    constraint = grammars().compile(spec_of(llm))
    assert constraint.accept(ord("f")), "not the marker once more"


@pytest.mark.parametrize("special", [True, False])
def test_a_format_s_special_tokens_stay_in_the_text_whatever_the_client_says(
    client: Any, special: bool
) -> None:
    need = ChatNeed(
        template="<tool_call>",
        token=lambda text: AddedToken(9, special) if text == "<tool_call>" else None,
    )
    llm = fake(output_format=built("hermes", need))
    answer = ask(client(llm), tools=TOOLS, skip_special_tokens=True)
    assert llm.seen[-1][1].skip_special_tokens is not special
    ignored = answer.get("x_inferno", {}).get("ignored", [])
    assert ignored == (["skip_special_tokens"] if special else [])
    ask(client(llm), skip_special_tokens=True)
    assert llm.seen[-1][1].skip_special_tokens is True, "there is no call to be read"


ONE_OF = {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}
PAIR = {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}


@pytest.mark.parametrize(
    ("asked", "yes", "no"),
    [
        ({"json": PAIR}, "[1, 1]", "[1,      1]"),
        ({"json": PAIR, "disable_any_whitespace": True}, "[1,1]", "[1, 1]"),
        ({"json": PAIR, "whitespace_pattern": " +"}, "[1,      1]", "[1,\n1]"),
        ({"json": ONE_OF}, '"ab"', "1"),
        ({"json": True}, "null", "no"),
        ({"json_object": True}, '{"a": 1}', '{"a":      1}'),
    ],
)
def test_an_answer_in_json_is_held_alike_beside_tools(
    client: Any, asked: dict[str, Any], yes: str, no: str
) -> None:
    llm = fake()
    ask(client(llm), tools=TOOLS, structured_outputs=asked)
    spec = evolve(spec_of(llm), reasoning=None)
    for text, allowed in ((yes, True), (CALL, True), (no, False)):
        constraint = grammars().compile(spec)
        assert all(constraint.accept(byte) for byte in text.encode()) == allowed, text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "h"}}}, "tool_choice"),
        ({"tool_choice": {"type": "x"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice"),
        ({"tools": [{"function": {"name": ""}}]}, "tools[0].function.name"),
        (
            {"tools": [{"function": {"name": "f", "parameters": "x"}}]},
            "tools[0].function.parameters",
        ),
    ],
)
def test_a_wrong_choice_is_a_400(client: Any, body: dict[str, Any], param: str) -> None:
    assert ask(client(fake()), 400, **{"tools": TOOLS, **body})["error"]["param"] == param


def test_a_format_without_a_grammar_cannot_be_forced(client: Any) -> None:
    llm = FakeLLM(reply=CALL, response_template=RESPONSE_TEMPLATE, plan=COMPILES)
    error = ask(client(llm), 400, tools=TOOLS, tool_choice="required")["error"]
    assert error["param"] == "tool_choice"


@pytest.mark.parametrize("arguments", ["[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900])
@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_arguments_nested_too_deeply_are_a_400(client: Any, path: str, arguments: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [*MESSAGES, {"role": "assistant", "tool_calls": [call]}]
    answer = client(fake()).post(path, json={"messages": messages})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].endswith("function.arguments")


# --- reasoning ------------------------------------------------------------------------------------

SWITCH = TEMPLATE + "{% if SWITCH is defined %} {{ SWITCH }}{% endif %}"


@pytest.mark.parametrize("variable", ["enable_thinking", "thinking"])
@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({"enable_thinking": False}, "False"),
        ({"thinking": True}, "True"),
        ({"thinking": {"type": "disabled"}}, "False"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "True"),
        ({"reasoning_effort": "none"}, "False"),
        ({"reasoning_effort": "high"}, "True"),
        ({}, ""),
    ],
)
def test_reasoning_is_switched_by_the_variable_that_the_template_has(
    client: Any, variable: str, body: dict[str, Any], shown: str
) -> None:
    source = SWITCH.replace("SWITCH", variable)
    llm = fake(template=ChatTemplate({"default": source}))
    ask(client(llm), **body)
    assert llm.prompts[-1].rpartition("\n")[2].strip() == shown


def test_a_switch_that_the_template_lacks_is_listed_as_ignored(client: Any) -> None:
    llm = fake(template=ChatTemplate({"default": "{{ messages[0].content }}"}))
    answer = ask(client(llm), enable_thinking=False)
    assert answer["x_inferno"]["ignored"] == ["enable_thinking"]


@pytest.mark.parametrize(
    "body",
    [
        {"thinking_token_budget": 7},
        {"thinking": {"type": "enabled", "budget_tokens": 7}},
    ],
)
def test_a_budget_of_reasoning_knows_the_markers(client: Any, body: dict[str, Any]) -> None:
    llm = fake()
    ask(client(llm), **body)
    params = llm.seen[-1][1]
    assert params.thinking_token_budget == 7
    assert params.reasoning is not None
    assert (params.reasoning.open, params.reasoning.close) == ("<think>", "</think>")
