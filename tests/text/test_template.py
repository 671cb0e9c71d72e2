from pathlib import Path
from typing import Any, cast

import pytest

from inferno.contracts import TextAssets
from inferno.errors import CheckpointError, OptionError, RequestError
from inferno.text import ChatTemplate, read_template
from inferno.text.messages import TemplateNeeds

CHATML = """{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
USER = [{"role": "user", "content": "hi"}]


def render(source: str, messages: Any = USER, **kwargs: Any) -> str:
    return ChatTemplate({"default": source}).render(messages, **kwargs)


def test_messages_become_the_prompt_and_open_the_answer() -> None:
    assert render(CHATML) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_the_answer_is_opened_only_when_asked() -> None:
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_a_final_message_is_continued() -> None:
    messages = [*USER, {"role": "assistant", "content": "well"}]
    assert render(CHATML, messages, continue_final_message=True).endswith(
        "<|im_start|>assistant\nwell"
    )


def test_template_variables_reach_the_template() -> None:
    assert render(CHATML, enable_thinking=False).endswith("<think>\n\n</think>\n\n")


def test_special_tokens_are_variables_whatever_form_the_file_gives_them() -> None:
    config = {
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "pad_token": None,
        "add_bos_token": True,
    }
    assets = TextAssets(
        chat_template="{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
        tokenizer_config=config,
    )
    assert ChatTemplate.from_assets(assets).render(USER) == "<s>hi</s>"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("  {% if true %}\nx\n  {% endif %}\n", "x\n"),
        ("{% if strftime_now('%Y') | int > 2000 %}now{% endif %}", "now"),
    ],
)
def test_templates_have_what_the_hub_s_templates_use(source: str, expected: str) -> None:
    assert render(source) == expected


@pytest.mark.parametrize(
    "content",
    ["a\nb", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], ["a", "b"]],
    ids=type,
)
def test_content_is_text_or_parts_of_text(content: Any) -> None:
    assert render("{{ messages[0].content }}", [{"role": "user", "content": content}]) == "a\nb"


def test_images_are_refused() -> None:
    with pytest.raises(RequestError, match="image_url"):
        render(
            CHATML,
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        )


def test_tool_arguments_are_objects_in_the_template() -> None:
    source = "{{ messages[0].tool_calls[0].function.arguments.city }}"
    call = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Graz"}'}}
    assert render(source, [{"role": "assistant", "content": None, "tool_calls": [call]}]) == "Graz"


def test_arguments_that_are_no_object_stay_as_they_are() -> None:
    source = "{{ messages[0].tool_calls[0].function.arguments }}"
    call = {"type": "function", "function": {"name": "weather", "arguments": "{broken"}}
    assert render(source, [{"role": "assistant", "tool_calls": [call]}]) == "{broken"


def test_developer_messages_are_system_messages_to_templates_that_do_not_know_them() -> None:
    developer = [{"role": "developer", "content": "x"}]
    assert render("{{ messages[0].role }}", developer) == "system"
    known = "{# developer #}{{ messages[0].role }}: {{ messages[0].content }}"
    assert render(known, developer) == "developer: x"


def test_the_tool_template_is_used_when_there_are_tools() -> None:
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools[0].name }}"},
    ]
    template = ChatTemplate.from_assets(TextAssets(tokenizer_config={"chat_template": named}))
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=[{"name": "f"}]) == "f"


def test_a_template_s_own_message_reaches_the_caller() -> None:
    with pytest.raises(RequestError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{% for i in range(10 ** 9) %}{{ i }}{% endfor %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].no.such }}",
    ],
)
def test_templates_run_in_a_sandbox(source: str) -> None:
    with pytest.raises(RequestError, match="the chat template refused the messages"):
        render(source)


def test_a_broken_template_is_the_checkpoint_s_fault() -> None:
    with pytest.raises(CheckpointError, match="line 2"):
        render("x\n{% if %}")


def test_without_a_template_the_error_says_what_to_do() -> None:
    template = ChatTemplate.from_assets(TextAssets())
    assert not template.exists
    with pytest.raises(RequestError, match="--chat-template"):
        template.render(USER)


@pytest.mark.parametrize("message", ["hi", {"content": "hi"}, {"role": 1}])
def test_messages_without_a_role_are_refused(message: Any) -> None:
    with pytest.raises(RequestError, match="role"):
        render(CHATML, [message])


def test_no_messages_are_refused() -> None:
    with pytest.raises(RequestError, match="no messages"):
        render(CHATML, [])


@pytest.mark.parametrize("name", ["chat_template", "messages", "return_assistant_tokens_mask"])
def test_callers_cannot_replace_the_renderer_s_own_arguments(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate({"default": CHATML}).render(USER, **cast(Any, {name: "x"}))
    assert caught.value.param == f"chat_template_kwargs.{name}"


def test_a_template_can_be_given_as_text_or_file(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("from {{ 'file' }}")
    assets = TextAssets(chat_template="own")
    assert read_template(str(file)) == "from {{ 'file' }}"
    assert ChatTemplate.from_assets(assets, read_template("{{ 1 + 1 }}")).render(USER) == "2"
    with pytest.raises(OptionError, match=r"no\.jinja"):
        read_template(str(tmp_path / "no.jinja"))


def test_a_template_of_an_unknown_form_is_the_checkpoint_s_fault() -> None:
    with pytest.raises(CheckpointError):
        ChatTemplate.from_assets(TextAssets(tokenizer_config={"chat_template": 3}))


def test_a_template_that_was_warmed_up_is_not_probed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ChatTemplate({}).warm_up()  # a model without one
    ChatTemplate({"default": "{% if %}"}).warm_up()  # the first prompt reports it
    template = ChatTemplate({"default": CHATML})
    template.warm_up()
    monkeypatch.setattr(TemplateNeeds, "of", None)
    assert template.render(USER).startswith("<|im_start|>user")
