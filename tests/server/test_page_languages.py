"""The chat page in languages that run from right to left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.server.page_chat import Chat, expect
from tests.server.server_fakes import FakeLLM

ARABIC = "ما هي عاصمة مصر؟"
HEBREW = "שלום"
ANSWER = f"""{ARABIC}

An English paragraph.

- {HEBREW}
- {ARABIC}

> {HEBREW}

| {HEBREW} | {ARABIC} |
|---|---|
| 1 | 2 |

```python
x = "{HEBREW}"
```
"""


def _style(node: Any, name: str) -> str:
    value: str = node.evaluate(f"node => getComputedStyle(node).{name}")
    return value


def test_each_text_runs_as_its_first_letter_says(chat: Callable[..., Chat]) -> None:
    it = chat(FakeLLM(reply=ANSWER))
    field = it.page.get_by_role("textbox", name="Message")
    field.fill(ARABIC)
    assert _style(field, "direction") == "rtl"
    it.page.keyboard.press("Enter")
    it.done()
    for reloaded in (False, True):
        if reloaded:
            it.page.reload()
        expect(it.answer.locator("pre")).to_be_visible()
        running = {
            name: _style(it.answer.locator(name).first, "direction")
            for name in ("p", "ul", "blockquote", "table", "pre")
        }
        wanted = dict.fromkeys(("p", "ul", "blockquote", "table"), "rtl")
        assert running == {**wanted, "pre": "ltr"}
        english = it.answer.get_by_text("An English paragraph.")
        assert _style(english, "direction") == "ltr"
        for node in (it.question, it.button(ARABIC), it.page.locator("#title")):
            assert _style(node, "direction") == "rtl"
    cell = it.answer.locator("th").first
    assert _style(cell, "textAlign") == "start"
    # The lines of a message are turned one by one.
    field.fill(f"a longer line\n{HEBREW}")
    it.page.keyboard.press("Enter")
    it.done()
    sides = it.question.evaluate(
        """node => [0, 14].map(at => {
            const range = document.createRange();
            range.setStart(node.firstChild, at);
            range.setEnd(node.firstChild, at + 3);
            const box = range.getBoundingClientRect();
            return box.left - node.getBoundingClientRect().left;
        })"""
    )
    assert sides[0] + 10 < sides[1]
    it.act(it.page.locator("article.user").first, "Edit message")
    edited = it.page.get_by_role("textbox", name="Change the message")
    assert _style(edited, "direction") == "rtl"
