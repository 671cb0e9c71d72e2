"""The chat page follows an answer until its reader turns back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.server.conftest import wait_until
from tests.server.page_chat import Chat, expect
from tests.server.server_fakes import FakeLLM

ABOVE = "(s => s.scrollHeight - s.scrollTop - s.clientHeight)(document.querySelector('#scroller'))"
"""Pixels below what is shown."""
TOP = "document.querySelector('#scroller').scrollTop"
PHONE = {"viewport": {"width": 390, "height": 700}, "has_touch": True, "is_mobile": True}
LINES = "A line of the answer.\n\n"
SHORT = "Ah.\n\n"
"""Lines of few tokens: the page ends an answer after 1 024."""


def _drag(it: Chat) -> None:
    """Drag the conversation down with a finger."""
    session = it.page.context.new_cdp_session(it.page)
    point = {"x": 190, "y": 250}
    session.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [point]})
    for y in range(260, 460, 20):
        moved = [{**point, "y": y}]
        session.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": moved})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def _key(name: str) -> Callable[[Chat], None]:
    def press(it: Chat) -> None:
        it.page.locator("#scroller").focus()
        it.page.keyboard.press(name)

    return press


def _wheel(it: Chat) -> None:
    it.page.mouse.move(500, 300)
    for _ in range(6):
        it.page.mouse.wheel(0, -40)


def _bar(it: Chat) -> None:
    """What dragging the bar does: the position changes, and nothing says why."""
    step = "document.querySelector('#scroller').scrollTop -= 20"
    it.page.evaluate(f"for (let i = 0; i < 9; i++) setTimeout(() => {{ {step} }}, 20 * i)")


GESTURES: dict[str, Callable[[Chat], None]] = {
    "wheel": _wheel,
    "PageUp": _key("PageUp"),
    "ArrowUp": _key("ArrowUp"),
    "PageUp in the field": lambda it: it.page.keyboard.press("PageUp"),
    "bar": _bar,
    "finger": _drag,
}


def _rests(it: Chat) -> bool:
    place = it.page.evaluate(TOP)
    it.page.wait_for_timeout(200)
    return bool(it.page.evaluate(TOP) == place)


@pytest.mark.parametrize("gesture", GESTURES)
def test_a_page_scrolled_back_stays_there_until_it_is_scrolled_to_the_end(
    chat: Callable[..., Chat], gesture: str
) -> None:
    llm = FakeLLM(reply=SHORT, endless=True, delay=0.03)
    it = chat(
        llm, view=PHONE if gesture == "finger" else {"viewport": {"width": 800, "height": 600}}
    )
    latest = it.button("Go to the latest message")
    it.send("go")
    wait_until(lambda: it.page.evaluate(TOP) > 600)
    expect(latest).to_be_hidden()
    GESTURES[gesture](it)
    expect(latest).to_be_visible()
    wait_until(lambda: _rests(it))  # a smooth scroll has ended
    place, length = it.page.evaluate(TOP), it.page.evaluate(ABOVE)
    wait_until(lambda: it.page.evaluate(ABOVE) > length + 200)
    assert it.page.evaluate(TOP) == place
    latest.click()
    expect(latest).to_be_hidden()
    wait_until(lambda: it.page.evaluate(TOP) > place + length + 300)
    wait_until(lambda: it.page.evaluate(ABOVE) < 2)  # it is followed again
    assert it.problems == []


def test_scrolling_back_to_the_end_follows_again(chat: Callable[..., Chat]) -> None:
    llm = FakeLLM(reply=SHORT, endless=True, delay=0.03)
    it = chat(llm, view={"viewport": {"width": 800, "height": 600}})
    it.send("go")
    wait_until(lambda: it.page.evaluate(TOP) > 200)
    it.page.mouse.move(400, 300)
    it.page.mouse.wheel(0, -100)
    expect(it.button("Go to the latest message")).to_be_visible()
    it.page.mouse.wheel(0, 20_000)
    expect(it.button("Go to the latest message")).to_be_hidden()
    place = it.page.evaluate(TOP)
    wait_until(lambda: it.page.evaluate(TOP) > place + 200)


def _is_above_the_composer(it: Chat, selector: str) -> bool:
    box = it.page.locator(selector).last.bounding_box()
    composer = it.page.locator("#composer").bounding_box()
    return bool(box["y"] >= 0 and box["y"] + box["height"] <= composer["y"])


@pytest.mark.parametrize("width", [390, 1280])
def test_the_end_of_an_answer_and_an_error_are_in_view(
    chat: Callable[..., Chat], width: int
) -> None:
    llm = FakeLLM(reply=LINES * 60, chunk=40)
    it = chat(llm, view={"viewport": {"width": width, "height": 640}})
    it.ask("go")
    expect(it.answer.locator(".stats")).to_contain_text("tokens")
    wait_until(lambda: _is_above_the_composer(it, ".foot"))
    llm.fails_after = 20
    it.send("and on")
    expect(it.page.get_by_role("alert")).to_be_visible()
    wait_until(lambda: _is_above_the_composer(it, "[role=alert]:visible"))
    wait_until(lambda: _is_above_the_composer(it, ".foot"))


def test_a_window_that_is_made_narrower_stays_at_the_end(chat: Callable[..., Chat]) -> None:
    it = chat(FakeLLM(reply="Many words in one line. " * 12 + "\n\n" + LINES * 30, chunk=40))
    it.ask("go " * 100)
    wait_until(lambda: _is_above_the_composer(it, ".foot"))
    it.page.get_by_role("textbox", name="Message").fill("a draft of some words " * 10)
    lines = it.page.locator("#input").bounding_box()["height"]
    it.page.set_viewport_size({"width": 390, "height": 640})
    wait_until(lambda: _is_above_the_composer(it, ".foot"))
    wait_until(lambda: it.page.locator("#input").bounding_box()["height"] > lines)
    expect(it.button("Go to the latest message")).to_be_hidden()


def test_what_is_unfolded_after_the_end_does_not_move_the_page(chat: Callable[..., Chat]) -> None:
    thoughts: Any = {"content": "Done.", "reasoning": "Hm.\n\n" * 40}
    it = chat(view={"viewport": {"width": 800, "height": 500}})
    it.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(
            content_type="text/event-stream",
            body=f"data: {json.dumps({'choices': [{'delta': thoughts}]})}\n\ndata: [DONE]\n\n",
        ),
    )
    it.ask("why")
    it.ask("and why")
    it.answer.locator("summary").click()
    place = it.answer.locator("summary").bounding_box()["y"]
    it.page.wait_for_timeout(100)
    assert it.answer.locator("summary").bounding_box()["y"] == place
    expect(it.button("Go to the latest message")).to_be_visible()
