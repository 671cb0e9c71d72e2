"""What is typed in the chat page and not sent yet."""

from __future__ import annotations

from collections.abc import Callable

from tests.server.page_chat import Chat, expect
from tests.server.server_fakes import FakeLLM


def test_each_conversation_keeps_its_draft_over_a_reload(chat: Callable[..., Chat]) -> None:
    it = chat()
    field = it.page.get_by_role("textbox", name="Message")
    it.ask("first")
    field.fill("for the first")
    it.button("New conversation").click()
    expect(field).to_have_value("")
    field.fill("for a new one\nof two lines")
    it.page.reload()
    expect(field).to_have_value("for a new one\nof two lines")
    assert field.bounding_box()["height"] > 50, "the field has grown with it"
    it.button("first").click()
    expect(field).to_have_value("for the first")
    it.page.reload()
    expect(field).to_have_value("for the first")
    it.page.keyboard.press("Enter")
    it.done()
    it.page.reload()
    expect(it.question).to_have_text("for the first")
    expect(field).to_have_value("")
    it.button("New conversation").click()
    expect(field).to_have_value("for a new one\nof two lines")
    it.page.keyboard.press("Enter")
    it.done()
    it.button("New conversation").click()
    expect(field).to_have_value("")
    assert it.problems == []


def test_a_new_conversation_has_a_draft_in_each_tab(chat: Callable[..., Chat]) -> None:
    it = chat()
    it.page.get_by_role("textbox", name="Message").fill("typed here")
    it.page.wait_for_timeout(500)
    other = Chat(it.page.context.new_page(), it.live)
    expect(other.page.get_by_role("textbox", name="Message")).to_have_value("")


def test_a_draft_goes_with_its_conversation_and_comes_back(chat: Callable[..., Chat]) -> None:
    it = chat(FakeLLM())
    it.ask("first")
    field = it.page.get_by_role("textbox", name="Message")
    field.fill("more")
    it.page.get_by_role("button", name="Delete first").click()
    expect(field).to_have_value("")
    it.button("Undo").click()
    expect(field).to_have_value("more")
