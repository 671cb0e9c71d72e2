"""The chat page in a headless Chromium, against a server on a socket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.server.conftest import wait_until
from tests.server.page_chat import Chat, expect
from tests.server.server_fakes import RESPONSE_TEMPLATE, FakeLLM

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Riga"}}</tool_call>'


def speaker(reply: str, **fields: Any) -> FakeLLM:
    return FakeLLM(reply=reply, response_template=RESPONSE_TEMPLATE, **fields)


def _count(text: str) -> int:
    return int(text.split()[0].replace(",", ""))


def test_an_answer_is_streamed_and_its_tokens_are_counted(chat: Callable[..., Chat]) -> None:
    it = chat(FakeLLM(reply="# Title\n\nSome **bold** text. " * 3, endless=True, delay=0.01))
    it.send("hi")
    expect(it.answer.locator("h3").first).to_have_text("Title")
    expect(it.button("Stop the answer")).to_be_visible()  # it still grows
    context = it.page.locator("#context")
    expect(context).to_contain_text("of 4,096 tokens of context")
    before = context.inner_text()
    expect(context).not_to_have_text(before)
    assert _count(before) < _count(context.inner_text())
    it.live.llm.endless = False
    it.done()
    expect(it.answer.locator(".stats")).to_contain_text("tokens/s")
    expect(it.answer.locator(".stats")).to_contain_text("2 of 52 prompt tokens cached")
    expect(it.page.locator("#context")).to_contain_text("of 4,096 tokens of context")
    assert it.problems == []


def test_stop_ends_the_answer_and_nothing_else(chat: Callable[..., Chat]) -> None:
    llm = FakeLLM(reply="word ", endless=True, delay=0.005)
    it = chat(llm)
    it.send("go on")
    expect(it.answer).to_contain_text("word word")
    it.button("Stop the answer").click()
    it.done()
    wait_until(lambda: len(llm.aborted) == 1)
    expect(it.answer.locator(".stats")).to_contain_text("stopped")
    expect(it.answer).to_contain_text("word word")
    llm.endless = False
    it.ask("again")
    assert len(it.texts()) == 4
    assert "word word" in llm.prompts[-1], "the part that was generated is in the history"


def test_escape_stops_too_and_keys_do_the_rest(chat: Callable[..., Chat]) -> None:
    llm = FakeLLM(reply="word ", endless=True, delay=0.005)
    it = chat(llm)
    field = it.page.get_by_role("textbox", name="Message")
    field.fill("one")
    it.page.keyboard.press("Shift+Enter")
    it.page.keyboard.type("two")
    it.page.keyboard.press("Enter")
    expect(it.answer).to_contain_text("word")
    it.page.keyboard.press("Escape")
    it.done()
    assert "one\ntwo" in llm.prompts[-1]
    llm.endless = False
    it.page.keyboard.press("ArrowUp")
    expect(it.page.get_by_role("textbox", name="Change the message")).to_be_focused()
    it.page.keyboard.press("ControlOrMeta+a")
    it.page.keyboard.type("three")
    it.page.keyboard.press("Enter")
    expect(it.question).to_have_text("three")
    it.done()
    assert "one" not in llm.prompts[-1] and "three" in llm.prompts[-1]


def test_answer_again_edit_delete_and_undo(chat: Callable[..., Chat]) -> None:
    llm = FakeLLM(reply="first")
    it = chat(llm)
    it.ask("question")
    llm.reply = "second"
    it.act(it.answer, "Answer again")
    expect(it.answer).to_contain_text("second")
    it.done()
    assert it.texts() == ["question", "second"]
    assert "first" not in llm.prompts[-1]
    it.ask("more")
    assert len(it.texts()) == 4
    it.act(it.page.locator("article.user").first, "Edit message")
    it.page.get_by_role("textbox", name="Change the message").fill("other question")
    it.page.get_by_role("article").get_by_role("button", name="Send").click()
    it.done()
    assert it.texts() == ["other question", "second"]
    it.act(it.answer, "Delete message")
    assert it.texts() == ["other question"]
    it.button("Undo").click()
    assert it.texts() == ["other question", "second"]


def test_conversations_survive_a_reload(chat: Callable[..., Chat]) -> None:
    llm = FakeLLM(reply="One.")
    it = chat(llm)
    it.ask("first question")
    it.button("New conversation").click()
    it.ask("second question")
    it.page.reload()
    expect(it.question).to_have_text("second question")
    it.button("first question").click()
    expect(it.question).to_have_text("first question")
    assert it.texts() == ["first question", "One."]
    it.ask("and then")
    assert "first question" in llm.prompts[-1] and "second" not in llm.prompts[-1]
    it.page.get_by_role("button", name="Delete second question").click()
    expect(it.button("second question")).to_have_count(0)
    it.page.reload()
    expect(it.button("second question")).to_have_count(0)
    expect(it.page.locator("article")).to_have_count(4)


def test_a_reload_keeps_what_had_arrived(chat: Callable[..., Chat]) -> None:
    it = chat(FakeLLM(reply="word ", endless=True, delay=0.02))
    it.send("go")
    expect(it.answer).to_contain_text("word " * 100)  # written about once a second
    it.page.reload()
    expect(it.answer).to_contain_text("word word")
    wait_until(lambda: len(it.live.llm.aborted) == 1)


def test_thoughts_are_folded(chat: Callable[..., Chat]) -> None:
    it = chat(speaker("<think>Let me *see*.</think>Here it is."))
    it.ask("why")
    expect(it.answer.locator("summary")).to_contain_text("Thought")
    expect(it.page.get_by_text("Let me see.")).not_to_be_visible()
    it.answer.locator("summary").click()
    expect(it.page.get_by_text("Let me see.")).to_be_visible()
    expect(it.page.get_by_text("Here it is.")).to_be_visible()


def test_a_call_is_shown_and_its_result_goes_back(chat: Callable[..., Chat]) -> None:
    llm = speaker(CALL)
    it = chat(llm)
    it.button("Settings").click()
    it.page.get_by_label("Tools").fill("[{]")
    it.page.get_by_label("Tools").blur()
    expect(it.page.locator("#tools-hint")).to_contain_text("This is no JSON")
    it.page.get_by_label("Tools").fill(json.dumps([TOOL]))
    it.page.get_by_label("Tools").blur()
    it.ask("weather in Riga?")
    assert "TOOLS 1" in llm.prompts[-1]
    expect(it.answer.locator(".call")).to_contain_text("Calls weather")
    expect(it.answer.locator(".call pre")).to_contain_text('"city": "Riga"')
    it.page.get_by_label("Result of weather").fill("rain, 4 degrees")
    llm.reply = "Take an umbrella."
    it.button("Send result").click()
    expect(it.answer).to_contain_text("umbrella")
    assert "<|im_start|>tool\nrain, 4 degrees" in llm.prompts[-1]
    expect(it.page.locator("article.tool")).to_contain_text("weather returned")


HOSTILE = """<img src=x onerror="pwned=1"><script>pwned=1</script>

[click](javascript:pwned=1) [click](data:text/html,<script>pwned=1</script>) <javascript:pwned=1>

![pixel](http://example.invalid/leak?secret)

<iframe srcdoc="<script>parent.pwned=1</script>"></iframe><svg onload=pwned=1>

| <b onmouseover=pwned=1>cell</b> | [x](javascript:pwned=1) |
|---|---|
| `<script>pwned=1</script>` | <style>*{display:none}</style> |

```html"><img src=x onerror=pwned=1>
</code></pre><script>pwned=1</script>
```
- [ ] <a href="javascript:pwned=1">a</a>
# <base href="http://example.invalid/">
"""


@pytest.mark.parametrize("where", ["content", "thoughts", "call", "question", "history"])
def test_what_a_model_or_a_person_writes_is_never_markup(
    chat: Callable[..., Chat], where: str
) -> None:
    hostile = json.dumps({"name": HOSTILE, "arguments": {"x": HOSTILE}})
    replies = {
        "thoughts": f"<think>{HOSTILE}</think>ok",
        "call": f"<tool_call>{hostile}</tool_call>",
    }
    it = chat(speaker(replies.get(where, HOSTILE), chunk=5))
    if where == "call":
        it.button("Settings").click()
        it.page.get_by_label("Tools").fill(json.dumps([TOOL]))
        it.page.get_by_label("Tools").blur()
    it.ask(HOSTILE if where in ("question", "history") else "hi")
    if where == "history":
        it.page.reload()
    expect(it.answer.locator(".stats")).to_contain_text("tokens")
    messages = it.page.locator("#messages")
    expect(messages).to_contain_text("onerror")
    expect(messages.locator("img, script, iframe, style, base, [onerror], [onload]")).to_have_count(
        0
    )
    links = it.page.eval_on_selector_all("#messages a", "all => all.map(a => a.href)")
    assert {link.split(":")[0] for link in links} <= {"http"}
    assert it.page.evaluate("window.pwned") is None
    assert not [url for url in it.requested if not url.startswith(it.live.url)]
    assert it.problems == [], "nothing was left for the policy to stop"


def test_a_key_is_asked_for_and_forgotten_with_the_tab(chat: Callable[..., Chat]) -> None:
    it = chat(api_keys=["right"])
    dialog = it.page.get_by_role("dialog")
    expect(dialog).to_contain_text("needs a key")
    it.page.keyboard.press("Escape")
    it.send("hello")
    for key in ("wrong", "right"):
        expect(dialog).to_be_visible()
        dialog.get_by_label("API key").fill(key)
        it.page.keyboard.press("Enter")
        expect(dialog).not_to_be_visible() if key == "right" else None
    expect(it.answer).to_contain_text("Hello there")
    it.done()
    assert it.texts() == ["hello", "Hello there"]
    assert "right" not in it.page.evaluate("JSON.stringify(localStorage)")
    it.page.reload()
    expect(it.page.locator("#model option")).to_have_text("fake")
    assert not dialog.is_visible()
    other = it.page.context.new_page()
    other.goto(it.live.url)
    expect(other.get_by_role("dialog")).to_be_visible()


def test_a_server_that_is_gone_costs_no_message(chat: Callable[..., Chat]) -> None:
    it = chat()
    it.ask("before")
    it.page.context.set_offline(True)
    it.send("important thought")
    error = it.page.get_by_role("alert")
    expect(error).to_contain_text("does not answer")
    it.page.context.set_offline(False)
    error.get_by_role("button", name="Try again").click()
    expect(error).to_have_count(0)
    it.done()
    assert it.texts() == ["before", "Hello there", "important thought", "Hello there"]
    it.live.stop()
    it.send("and another")
    expect(error).to_contain_text("does not answer")
    expect(it.question).to_have_text("and another")


@pytest.mark.parametrize("fault", ["dies_after", "fails_after"])
def test_an_engine_that_fails_leaves_its_part_and_a_reason(
    chat: Callable[..., Chat], fault: str
) -> None:
    faults: dict[str, Any] = {fault: 50}
    llm = FakeLLM(reply="word ", endless=True, delay=0.002, **faults)
    it = chat(llm)
    it.send("go")
    alert = it.page.get_by_role("alert")
    expect(alert).to_contain_text(
        "engine process ended" if fault == "dies_after" else "Internal server error"
    )
    expect(it.answer).to_contain_text("word word")
    llm.dies_after = llm.fails_after = None
    llm.endless = False
    alert.get_by_role("button", name="Try again").click()
    it.done()
    assert it.texts() == ["go", "word"]


def test_a_refusal_says_why(chat: Callable[..., Chat]) -> None:
    it = chat(FakeLLM(max_model_len=60))
    it.send("x" * 100)
    expect(it.page.get_by_role("alert")).to_contain_text("60")
    expect(it.button("Send")).to_be_visible()


def test_settings_reach_the_model_and_survive_a_reload(chat: Callable[..., Chat]) -> None:
    llm = FakeLLM()
    it = chat(llm)
    it.button("Settings").click()
    values = {"Temperature": "0.5", "Top p": "0.9", "Top k": "7", "Min p": "0.1", "Seed": "3"}
    for name, value in {**values, "Max tokens": "5", "System prompt": "Be brief."}.items():
        it.page.get_by_label(name).fill(value)
    it.page.get_by_label("Thinking").select_option("off")
    it.page.reload()
    it.ask("hi")
    params = llm.seen[-1][1]
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 7, 0.1)
    assert (params.seed, params.max_tokens) == (3, 5)
    assert llm.prompts[-1].startswith("<|im_start|>system\nBe brief.")
    assert llm.prompts[-1].endswith("<think>\n\n</think>\n\n")
    expect(it.answer.locator(".stats")).to_contain_text("cut off by the length limit")
    it.button("Settings").click()
    it.button("Back to the model’s defaults").click()
    it.ask("hi")
    assert llm.seen[-1][1] == llm.default_params.__class__(max_tokens=1024)


def test_the_servers_defaults_for_people_are_sent(chat: Callable[..., Chat]) -> None:
    llm = FakeLLM()
    it = chat(llm)
    it.ask("hi")
    assert llm.seen[-1][1].temperature == 1.0, "the server says nothing"
    defaults = {"temperature": 0.8, "top_k": 40, "min_p": 0.05, "max_tokens": None}
    card = {"id": "fake", "max_model_len": 4096, "interactive_sampling": defaults}
    it.page.route("**/v1/models", lambda route: route.fulfill(json={"data": [card]}))
    it.page.reload()
    it.button("Settings").click()
    expect(it.page.get_by_label("Temperature")).to_have_attribute("placeholder", "0.8")
    expect(it.page.get_by_label("Max tokens")).to_have_attribute("placeholder", "1024")
    it.page.get_by_label("Top k").fill("7")
    it.ask("hi")
    params = llm.seen[-1][1]
    assert (params.temperature, params.top_k, params.min_p) == (0.8, 7, 0.05)
    assert params.max_tokens == 1024
    it.button("Back to the model’s defaults").click()
    expect(it.page.get_by_label("Temperature")).to_have_attribute("placeholder", "0.8")
    it.ask("hi")
    assert llm.seen[-1][1].top_k == 40


def test_another_model_can_be_chosen(chat: Callable[..., Chat]) -> None:
    it = chat(served_names=["small", "large"])
    it.page.get_by_label("Model").select_option("large")
    with it.page.expect_request("**/chat/completions") as request:
        it.ask("hi")
    assert request.value.post_data_json["model"] == "large"
    it.page.reload()
    expect(it.page.get_by_label("Model")).to_have_value("large")


def test_an_export_has_the_conversation(chat: Callable[..., Chat]) -> None:
    it = chat(speaker("<think>hm</think>It is *so*."))
    it.ask("Is it so?")
    it.button("Settings").click()
    with it.page.expect_download() as download:
        it.button("Export JSON").click()
    assert download.value.suggested_filename == "Is-it-so.json"
    saved = json.loads(Path(download.value.path()).read_text())
    assert saved["model"] == "fake"
    assert saved["messages"] == [
        {"role": "user", "content": "Is it so?"},
        {"role": "assistant", "content": "It is *so*.", "reasoning_content": "hm"},
    ]
    with it.page.expect_download() as download:
        it.button("Export Markdown").click()
    text = Path(download.value.path()).read_text()
    assert text == "# Is it so?\n\n## You\n\nIs it so?\n\n## Answer\n\nIt is *so*.\n"


def test_the_theme_follows_the_system_until_one_is_chosen(chat: Callable[..., Chat]) -> None:
    it = chat(view={"color_scheme": "dark"})
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = it.page.evaluate(ground)
    it.page.emulate_media(color_scheme="light")
    light = it.page.evaluate(ground)
    assert sum(map(int, light[4:-1].split(","))) > 600 > 150 > sum(map(int, dark[4:-1].split(",")))
    it.button("Theme: system").click()
    it.button("Theme: light").click()
    assert it.page.evaluate(ground) == dark
    it.page.reload()
    assert it.page.evaluate(ground) == dark
    assert it.button("Theme: dark").is_visible()


SHOWN = (
    "<think>Hm.</think># One\n\nText with `code`, a [link](http://x.y) and **more**.\n\n## Two\n\n"
    "- [x] done\n- not\n\n> quote\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
    "```python\n# note\nx = 'text' + 1  # long line " + "x" * 200 + "\nreturn None\n```\n" + CALL
)


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_everyone_can_use_it(chat: Callable[..., Chat], theme: str, width: int) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="needs the extra: inferno[browser]"
    )
    view = {"color_scheme": theme, "viewport": {"width": width, "height": 800}}
    it = chat(speaker(SHOWN), view=view, api_keys=["k"])

    def check(where: str) -> None:
        it.page.wait_for_timeout(300)  # the colours of what fades are the final ones
        report = axe.Axe().run(it.page)
        assert report.violations_count == 0, f"{where}: {report.generate_report()}"
        wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not it.page.evaluate(wide), f"{where} scrolls sideways"

    expect(it.page.get_by_role("dialog")).to_be_visible()
    check("the key")
    it.page.get_by_label("API key").fill("k")
    it.page.keyboard.press("Enter")
    expect(it.page.locator("#empty-title")).to_have_text("fake")
    check("the empty page")
    it.button("Settings").click()
    it.page.get_by_label("Tools").fill(json.dumps([TOOL]))
    it.page.get_by_label("Tools").blur()
    check("settings")
    it.button("Close settings").click()
    it.ask("Show me")
    expect(it.answer.locator(".call")).to_be_visible()
    it.answer.locator("summary").click()
    check("an answer")
    if width < 500:
        it.button("Conversations").click()
        check("the conversations")
        it.page.keyboard.press("Escape")
    it.page.context.set_offline(True)
    it.send("More")
    expect(it.page.get_by_role("alert")).to_be_visible()
    check("an error")


def test_the_page_over_the_demo_model_in_a_process_of_its_own(browser: Any) -> None:
    command = [sys.executable, "-m", "inferno", "serve", "demo", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)
    assert server.stderr is not None
    try:
        url = next(line for line in server.stderr if "Chat at " in line).split("Chat at ")[1]
        page = browser.new_context().new_page()
        page.goto(url.split(". ")[0])
        for n in (1, 2):
            page.get_by_role("textbox", name="Message").fill("What does math.gcd do?")
            page.keyboard.press("Enter")
            expect(page.locator("article.assistant .stats")).to_have_count(n)
            expect(page.locator(".live")).to_have_count(0)
        expect(page.locator("article.assistant").first).to_contain_text("Divisor")
        cached = page.locator(".stats").last.inner_text().split(" · ")[-1]
        assert int(cached.split()[0]) > 0, cached
        page.context.close()
    finally:
        server.terminate()
        server.wait(30)
        server.stderr.close()
