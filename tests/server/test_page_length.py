"""Answers and messages of the chat page that are long, and what to do with them."""

from __future__ import annotations

from collections.abc import Callable

from tests.server.page_chat import Chat, expect
from tests.server.server_fakes import RESPONSE_TEMPLATE, FakeLLM


def test_an_answer_without_an_end_is_cut_off_and_can_go_on(chat: Callable[..., Chat]) -> None:
    llm = FakeLLM(reply="rubbish ", endless=True, max_model_len=1000)
    it = chat(llm)
    it.ask("hi")
    note = it.page.get_by_role("note")
    expect(note).to_contain_text("cut off after 250 tokens")
    assert llm.seen[-1][1].max_tokens == 250
    first = it.answer.locator(".prose").inner_text()
    it.page.reload()
    expect(note).to_contain_text("cut off after 250 tokens")
    it.button("Continue").click()
    expect(note).to_contain_text("cut off after 500 tokens")
    assert llm.prompts[-1].endswith("rubbish ru"), "the answer was left open"
    text = it.answer.locator(".prose").inner_text()
    assert text.startswith(first) and len(text) > len(first) + 200
    assert it.page.locator("article").count() == 2
    while not it.button("New conversation").nth(1).is_visible():
        it.button("Continue").click()
        it.done()
    expect(note).to_contain_text("The context is full")
    it.button("New conversation").nth(1).click()
    expect(it.page.locator("article")).to_have_count(0)
    assert it.problems == []


def test_a_stopped_answer_can_go_on(chat: Callable[..., Chat]) -> None:
    llm = FakeLLM(reply="word ", endless=True, delay=0.01)
    it = chat(llm)
    it.send("go")
    expect(it.answer).to_contain_text("word word")
    it.button("Stop the answer").click()
    it.done()
    length = len(it.answer.locator(".prose").inner_text())
    llm.endless, llm.reply = False, "and the end."
    it.button("Continue").click()
    expect(it.answer).to_contain_text("and the end.")
    it.done()
    assert len(it.answer.locator(".prose").inner_text()) >= length + 12
    expect(it.page.get_by_role("note")).to_have_count(0)
    expect(it.answer.locator(".stats")).not_to_contain_text("stopped")


def test_an_answer_whose_tab_was_closed_can_go_on(chat: Callable[..., Chat]) -> None:
    llm = FakeLLM(reply="word ", endless=True, delay=0.01)
    it = chat(llm)
    it.send("go")
    expect(it.answer).to_contain_text("word " * 60)
    it.page.reload()
    expect(it.page.get_by_role("note")).to_contain_text("interrupted")
    llm.endless, llm.reply = False, "The end."
    it.button("Continue").click()
    expect(it.answer).to_contain_text("The end.")


def test_thinking_that_is_cut_off_can_be_done_without_a_limit(chat: Callable[..., Chat]) -> None:
    thoughts = "<think>" + "Let me see. " * 40
    llm = FakeLLM(reply=thoughts, max_model_len=1000, response_template=RESPONSE_TEMPLATE)
    it = chat(llm)
    it.ask("why")
    expect(it.page.get_by_role("note")).to_contain_text("before it came to the point")
    llm.reply = thoughts + "</think>Because."
    it.button("Answer again without a limit").click()
    expect(it.answer).to_contain_text("Because.")
    assert llm.seen[-1][1].max_tokens is None
    expect(it.page.get_by_role("group", name="Versions")).to_have_text("2 / 2")


def test_a_long_message_is_folded(chat: Callable[..., Chat]) -> None:
    it = chat()
    it.ask("short")
    assert not it.page.locator(".folded").count()
    it.ask("a line of a long message\n" * 100 + "the end")
    folded = it.question.bounding_box()["height"]
    assert folded < 300
    it.button("Show all 2,507 characters").click()
    assert it.question.bounding_box()["height"] > 1500
    it.button("Show less").click()
    assert it.question.bounding_box()["height"] == folded
    assert "the end" in it.live.llm.prompts[-1]


def test_a_message_that_is_too_long_is_taken_back(chat: Callable[..., Chat]) -> None:
    llm = FakeLLM(max_model_len=200)
    it = chat(llm)
    field = it.page.get_by_role("textbox", name="Message")
    refusal = it.page.get_by_role("alert")
    it.send("long " * 60)
    expect(refusal).to_contain_text("the context holds 200")
    expect(field).to_have_value("long " * 60)
    expect(it.page.locator("article")).to_have_count(0)
    expect(it.page.locator("#list li")).to_have_count(0)
    it.ask("short")
    expect(refusal).to_have_count(0)
    it.send("x" * 90)
    expect(refusal).to_be_visible()
    expect(field).to_have_value("x" * 90)
    assert it.texts() == ["short", "Hello there"]
    it.page.reload()
    expect(field).to_have_value("x" * 90)
    assert it.texts() == ["short", "Hello there"]
    it.page.keyboard.press("Enter")
    it.button("Ask in a new conversation").click()
    expect(it.page.locator("article")).to_have_count(0)
    expect(field).to_have_value("x" * 90)
    it.page.keyboard.press("Enter")
    it.done()
    assert it.texts() == ["x" * 90, "Hello there"]
    it.button("short").click()
    expect(field).to_have_value("")


def test_a_refusal_has_room_on_a_phone(chat: Callable[..., Chat]) -> None:
    it = chat(FakeLLM(max_model_len=200), view={"viewport": {"width": 390, "height": 700}})
    it.ask("the first " * 9)
    title = it.page.locator("#title").inner_text()
    assert title == ("the first " * 8 + "…")
    it.send("long " * 60)
    reason = it.page.locator("#refusal p")
    expect(reason).to_be_visible()
    assert reason.bounding_box()["width"] > 300


def test_a_changed_message_that_is_too_long_leaves_the_old_one(chat: Callable[..., Chat]) -> None:
    it = chat(FakeLLM(max_model_len=200))
    it.ask("short")
    it.act(it.page.locator("article.user"), "Edit message")
    it.page.get_by_role("textbox", name="Change the message").fill("long " * 60)
    it.page.keyboard.press("Enter")
    expect(it.page.get_by_role("alert")).to_contain_text("the context holds 200")
    expect(it.page.get_by_role("textbox", name="Message")).to_have_value("long " * 60)
    assert it.texts() == ["short", "Hello there"]
