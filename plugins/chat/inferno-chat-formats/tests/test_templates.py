"""The conformance kit over reduced templates, and over a folder of real ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest

from inferno.contracts import ChatNeed
from inferno.testing import ChatFormatTests, load_catalog

HEAD = (
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
)
END = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
THINK = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
CONTENT = "{{ m.content or '' }}"


def reduced(call: str, before: str = "", after: str = "", think: str = "") -> str:
    """A template with a family's own way to write a call `c`."""
    calls = "{% for call in m.tool_calls %}{% set c = call.function %}" + call + "{% endfor %}"
    return (
        HEAD
        + think
        + CONTENT
        + "{% if m.tool_calls %}"
        + before
        + calls
        + after
        + "{% endif %}"
        + END
    )


class TestHermes(ChatFormatTests):
    name = "hermes"
    reasons = True
    template = reduced(
        '<tool_call>\n{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}\n'
        "</tool_call>\n",
        think=THINK,
    )


class TestQwen3Coder(ChatFormatTests):
    name = "qwen3-coder"
    template = reduced(
        "<tool_call>\n<function={{ c.name }}>\n{% for k, v in c.arguments.items() %}"
        "<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>\n"
    )


class TestGLM(ChatFormatTests):
    name = "glm4"
    reasons = True
    template = reduced(
        "\n<tool_call>{{ c.name }}\n{% for k, v in c.arguments.items() %}<arg_key>{{ k }}"
        "</arg_key>\n<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>",
        think=THINK,
    )


class TestMiniMaxM2(ChatFormatTests):
    name = "minimax-m2"
    template = reduced(
        '<invoke name="{{ c.name }}">\n{% for k, v in c.arguments.items() %}'
        '<parameter name="{{ k }}">{{ v }}</parameter>\n{% endfor %}</invoke>\n',
        "<minimax:tool_call>\n",
        "</minimax:tool_call>",
    )


class TestDeepSeekV31(ChatFormatTests):
    name = "deepseek-v3.1"
    template = reduced(
        "<｜tool▁call▁begin｜>{{ c.name }}<｜tool▁sep｜>{{ c.arguments | tojson }}"
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
    )


class TestMistralArgs(ChatFormatTests):
    name = "mistral-args"
    template = reduced("[TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments | tojson }}")


class TestKimiK2(ChatFormatTests):
    name = "kimi-k2"
    template = reduced(
        "<|tool_call_begin|>functions.{{ c.name }}:{{ loop.index0 }}<|tool_call_argument_begin|>"
        "{{ c.arguments | tojson }}<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    )


class TestErnie(ChatFormatTests):
    """ERNIE 4.5 Thinking: the prompt opens reasoning."""

    name = "ernie"
    reasons = True
    template = (
        reduced(
            '\n<tool_call>\n{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}\n'
            "</tool_call>\n",
            think="{% if m.role == 'assistant' %}<think>\n{{ m.reasoning_content or '' }}\n"
            "</think>\n{% endif %}",
        )
        .replace(
            CONTENT, f"{{% if m.content %}}\n<response>\n{CONTENT}\n</response>\n{{% endif %}}"
        )
        .replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    )


class TestHunyuanA13B(ChatFormatTests):
    """Its template shows calls as Apriel's does, and no markers of reasoning."""

    name = "hunyuan-a13b"
    template = (
        '<|startoftext|>{% if tools %}<tool_calls>[{"name": "func_name1"}]</tool_calls>'
        "{{ tools | tojson }}<|extra_4|>{% endif %}{% for m in messages %}"
        "{% if m.role == 'user' %}{{ m.content }}<|extra_0|>{% else %}{{ m.content or '' }}"
        "{% if m.tool_calls %}<tool_calls>["
        "{% for call in m.tool_calls %}{% set c = call.function %}"
        '{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}'
        "{{ ', ' if not loop.last }}{% endfor %}]</tool_calls>{% endif %}<|eos|>{% endif %}"
        "{% endfor %}"
    )


class TestLlama3(ChatFormatTests):
    name = "llama3-json"
    parallel = False
    template = '{# {"name": function name, "parameters": dictionary of arguments} #}' + reduced(
        '{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}'
    )


class TestLlama4(ChatFormatTests):
    """As transformers' processor has it: calls follow each other, after an empty pair of
    markers."""

    name = "llama4-json"
    template = (
        '{# <|header_start|> {"name": function name, "parameters": dictionary of arguments} #}'
        + reduced(
            '{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}',
            "<|python_start|><|python_end|>",
        )
    )


class TestLlama4InPython(ChatFormatTests):
    """As models also write, whatever they were told."""

    name = "llama4-pythonic"
    template = "{# <|header_start|> [func_name1(params_name1=params_value1, ...)] #}" + reduced(
        "{{ c.name }}({% for k, v in c.arguments | items %}{{ k }}={{ v | tojson }}"
        "{{ ', ' if not loop.last }}{% endfor %}){{ ', ' if not loop.last }}",
        "<|python_start|>[",
        "]<|python_end|>",
    )


PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class TestGeneric(ChatFormatTests):
    name = "generic"
    template = PLAIN


class TestGenericThatReasons(ChatFormatTests):
    name = "generic"
    reasons = True
    template = PLAIN.replace("{{ m.content", THINK + "{{ m.content")


class TestHarmony(ChatFormatTests):
    name = "harmony"
    parallel = False
    reasons = True
    template: ClassVar[str] = (
        "{% for m in messages %}"
        "{% if m.role == 'assistant' and m.tool_calls %}{% set c = m.tool_calls[0].function %}"
        "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>"
        "{% endif %}<|start|>assistant to=functions.{{ c.name }}<|channel|>commentary json"
        "<|message|>"
        "{{ c.arguments | tojson }}<|call|>"
        "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    )


# --- real templates -------------------------------------------------------------------------------

FOLDER = os.environ.get("INFERNO_TEMPLATES")
WRITE_NO_CALLS = {
    "CohereForAI-c4ai-command-r-plus-tool_use": "the turn begins before the prompt's end",
    "HuggingFaceTB-SmolLM3-3B": "it leaves out tool calls",
    "Kimi-K2-Instruct": "it changes a list, which the sandbox refuses",
    "Kimi-K2-Thinking": "it changes a list, which the sandbox refuses",
    "LFM2-8B-A1B": "it leaves out tool calls",
    "LFM2.5-Instruct": "it leaves out tool calls",
    "fireworks-ai-llama-3-firefunction-v2": "it needs a variable of its own",
    "google-gemma-2-2b-it": "it has no tools",
    "ibm-granite-granite-3.3-2B-Instruct": "it leaves out tool calls",
    "llama-cpp-deepseek-r1": "transformers cannot render it",
    "llama-cpp-rwkv-world": "it has no tools",
    "microsoft-Phi-3.5-mini-instruct": "it has no tools",
}
"""llama.cpp's templates from which no call can be read back, and why."""


@pytest.mark.skipif(not FOLDER, reason="INFERNO_TEMPLATES names no folder of templates")
def test_calls_of_real_templates_are_read() -> None:
    failed: dict[str, str] = {}
    catalog = load_catalog()
    for path in sorted(Path(FOLDER or ".").glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        choice, _, _ = catalog.chat_format(ChatNeed(template=source))
        if choice is None or path.stem in WRITE_NO_CALLS:
            continue

        chosen = choice.item.name

        class Real(ChatFormatTests):
            name, template = chosen, source

        for parallel in (True, False):
            Real.parallel = parallel
            try:
                Real().test_calls_that_the_template_writes_are_read()
                failed.pop(path.stem, None)
                break
            except Exception as error:
                failed[path.stem] = str(error)[:300]
    assert failed == {}
