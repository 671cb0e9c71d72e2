"""A checkpoint's chat template is a program that nobody has read: whatever it does ends soon, in a
sentence that names its line."""

from __future__ import annotations

from typing import Any

import pytest

from inferno.errors import RequestError
from inferno.testing import alike
from inferno.text import ChatTemplate
from inferno.text.bounded import SECONDS, Budget, TemplateTimeError
from inferno.text.template import SlowTemplateError

USER = [{"role": "user", "content": "x"}]
DOUBLING = (
    "{% set ns = namespace(x=START) %}{% for i in range(90) %}{% set ns.x = STEP %}{% endfor %}"
)
NESTED = DOUBLING.replace("START", "[1]").replace("STEP", "[ns.x, ns.x]")

SLOW = {
    "loops": "a\n{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "filtered": "\n{% for i in range(99999) if range(99999)|list|length == 3 %}{% endfor %}",
    "macros": "\n{% macro f(n) %}{{ f(n-1) ~ f(n-1) if n }}{% endmacro %}{{ f(40) }}",
    "filters": "\n{% for i in range(99999) %}{{ range(99999)|list|length }}{% endfor %}",
}
LARGE = {
    "strings": "\n{{ 'a' * 20000000000 }}",
    "lists": "\n{{ ([1] * 20000000000)|length }}",
    "powers": "\n{{ (9**9)**(9**9) }}",
    "doubled": "\n" + DOUBLING.replace("START", "'ab'").replace("STEP", "ns.x ~ ns.x"),
    "added": "\n" + DOUBLING.replace("START", "'ab'").replace("STEP", "ns.x + ns.x"),
    "centre": "\n{{ 'a'.center(2000000000) }}",
    "centred": "\n{{ 'a'|center(2000000000) }}",
    "formatted": "\n{{ '{:2000000000}'.format(1) }}",
    "by argument": "\n{{ '{:{w}}'.format(1, w=10**9) }}",
    "percent": "\n{{ '%2000000000s' % 'x' }}",
    "percent star": "\n{{ '%*d'|format(2000000000, 1) }}",
    "replaced": "\n{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
    "replacing": "\n{{ ('x' * 1000000)|replace('x', 'y' * 1000000) }}",
    "joined": "\n{{ (['x'] * 1000000)|join('y' * 1000000) }}",
    "joining": "\n{{ ('y' * 1000000).join(['x'] * 1000000) }}",
    "indented": "\n{{ ('\\n' * 1000000)|indent(1000) }}",
    "json indent": "\n{{ messages|tojson(indent=1000000000) }}",
    "nested json": "\n" + NESTED + "{{ ns.x|tojson }}",
    "nested text": "\n" + NESTED + "{{ ns.x }}",
    "nested string": "\n" + NESTED + "{{ ns.x|string|length }}",
    "nested format": "\n" + NESTED + "{{ '{}'.format(ns.x)|length }}",
    "wrapped": "\n{{ ('x' * 100000)|wordwrap(1) }}",
    "summed": "\n{{ ([[1] * 1000] * 10000)|sum(start=[])|length }}",
    "date": "\n{{ strftime_now('%A' * 1000) }}",
    "output": "\n{% set x = 'a' * 1000000 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
    "source": "\n{% for i in range(99999) %}" + "a" * 10_000 + "{% endfor %}",
}


@pytest.mark.parametrize("name", SLOW)
def test_a_template_that_does_not_end_is_stopped_and_names_its_line(name: str) -> None:
    template = ChatTemplate({"default": SLOW[name]})
    template._needs[SLOW[name]] = ChatTemplate({"default": ""}).needs("")
    with pytest.raises(SlowTemplateError, match="takes more than 2 s, line [12]"):
        template.render(USER, 0.05)


@alike
@pytest.mark.parametrize("name", LARGE)
def test_a_template_that_asks_for_gigabytes_is_refused_and_names_its_line(name: str) -> None:
    template = ChatTemplate({"default": LARGE[name]})
    template._needs[LARGE[name]] = ChatTemplate({"default": ""}).needs("")
    with pytest.raises(RequestError, match="(?s)the chat template .*, line [12]") as caught:
        template.render(USER)
    assert caught.value.param == "messages"


def test_conversations_that_show_what_a_template_needs_have_one_limit_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budgets = list[float]()

    def of(seconds: float, *values: Any) -> Budget:
        budgets.append(seconds)
        raise TemplateTimeError("late")

    monkeypatch.setattr(Budget, "of", of)
    ChatTemplate({"default": "{{ messages }}"}).warm_up()
    assert budgets == sorted(budgets, reverse=True) and budgets[0] <= SECONDS
    assert len(budgets) > 1 and budgets[-1] < budgets[0]


def test_a_budget_ends_by_its_own_clock() -> None:
    now = 0.0
    budget = Budget(seconds=1.0, clock=lambda: now)
    for _ in range(100):
        budget.tick()
    now = 1.1
    with pytest.raises(TemplateTimeError):
        for _ in range(100):
            budget.tick()


def test_what_templates_do_every_day_is_rendered_as_before() -> None:
    source = (
        "{% for m in messages if m.role %}{{ m.role ~ ':' + m.content|trim }}"
        "{% if loop.last %}!{% endif %}{% endfor %}{{ messages|tojson(indent=2) }}"
        "{% macro a(x) %}<{{ x }}>{% endmacro %}{{ a('pq'[1:]) }}{{ '%s-%d'|format('a', 3) }}"
        "{{ 'a'.replace('a', 'bb') }}{{ messages[::-1]|length }}{{ '{:>3}'.format(1) }}"
        "{{ messages|map(attribute='role')|join(', ') }}{% filter upper %}b{{ 1 }}{% endfilter %}"
        "{% set x %}q{{ 2 }}{% endset %}{{ x }}{{ 7 % 4 }}{{ [1, 2]|sum }}{{ 'ab'.center(4) }}"
        "{% for a in [[1, [2]]] recursive %}({{ loop(a) if a is iterable else a }}){% endfor %}"
        "{% macro b() %}[{{ caller() }}]{% endmacro %}{% call b() %}z{% endcall %}"
    )
    expected = (
        'user:hi![\n  {\n    "role": "user",\n    "content": " hi "\n  }\n]<q>a-3bb1'
        "  1userB1q233 ab ((1)((2)))[z]"
    )
    template = ChatTemplate({"default": source})
    assert template.render([{"role": "user", "content": " hi "}]) == expected


def test_a_long_conversation_that_is_copied_for_each_message_is_rendered() -> None:
    source = (
        "{% set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = ns.x ~ m.content %}"
        "{% endfor %}{{ ns.x }}"
    )
    text = "word " * 200
    messages = [{"role": "user", "content": text}] * 300
    assert ChatTemplate({"default": source}).render(messages) == text * 300


def test_an_error_of_a_template_names_its_line() -> None:
    with pytest.raises(RequestError, match=r"line 2\)"):
        ChatTemplate({"default": "a\n{{ 'x' + 1 }}"}).render(USER)
    with pytest.raises(RequestError, match="refused the messages: no tools here\n"):
        ChatTemplate({"default": "{{ raise_exception('no tools here') }}"}).render(USER)
