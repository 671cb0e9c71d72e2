"""Older answers and messages in the chat page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.server.page_chat import Chat, expect
from tests.server.server_fakes import FakeLLM


def _three_answers(chat: Callable[..., Chat]) -> tuple[Chat, FakeLLM]:
    llm = FakeLLM(reply="first")
    it = chat(llm)
    it.ask("question")
    for reply in ("second", "third"):
        llm.reply = reply
        it.act(it.answer, "Answer again")
        expect(it.answer).to_contain_text(reply)
        it.done()
    return it, llm


def test_answers_are_kept_beside_the_new_one(chat: Callable[..., Chat]) -> None:
    it, llm = _three_answers(chat)
    versions = it.page.get_by_role("group", name="Versions")
    expect(versions).to_have_text("3 / 3")
    expect(it.button("Newer version")).to_be_disabled()
    it.button("Older version").click()
    expect(versions).to_have_text("2 / 3")
    assert it.texts() == ["question", "second"]
    llm.reply = "on from the second"
    it.ask("more")
    assert "second" in llm.prompts[-1] and "third" not in llm.prompts[-1]
    it.page.reload()
    expect(it.question).to_have_text("more")
    assert it.texts() == ["question", "second", "more", "on from the second"]
    it.button("Newer version").click()
    assert it.texts() == ["question", "third"]
    expect(it.button("Older version")).to_be_focused()
    it.page.keyboard.press("Enter")
    assert it.texts() == ["question", "second", "more", "on from the second"]
    assert it.problems == []


def test_a_changed_message_keeps_what_followed_the_old_one(chat: Callable[..., Chat]) -> None:
    llm = FakeLLM(reply="one")
    it = chat(llm)
    it.ask("question")
    it.ask("more")
    llm.reply = "two"
    it.act(it.page.locator("article.user").first, "Edit message")
    it.page.get_by_role("textbox", name="Change the message").fill("other question")
    it.page.get_by_role("article").get_by_role("button", name="Send").click()
    expect(it.answer).to_contain_text("two")
    it.done()
    assert it.texts() == ["other question", "two"]
    it.page.reload()
    expect(it.button("other question")).to_be_visible()
    expect(it.question).to_have_text("other question")
    it.button("Older version").click()
    assert it.texts() == ["question", "one", "more", "one"]


def test_a_version_is_deleted_alone(chat: Callable[..., Chat]) -> None:
    it, _ = _three_answers(chat)
    it.act(it.answer, "Delete this version")
    expect(it.page.get_by_role("group", name="Versions")).to_have_text("2 / 2")
    assert it.texts() == ["question", "second"]
    it.button("Undo").click()
    expect(it.page.get_by_role("group", name="Versions")).to_have_text("3 / 3")
    assert it.texts() == ["question", "third"]
    it.act(it.answer, "Delete this version")
    it.page.reload()
    expect(it.page.get_by_role("group", name="Versions")).to_have_text("2 / 2")
    stored = it.page.evaluate(
        """() => new Promise(resolve => {
            indexedDB.open("inferno").onsuccess = ({ target }) =>
                target.result.transaction("messages").objectStore("messages").getAll()
                    .onsuccess = ({ target }) => resolve(JSON.stringify(target.result));
        })"""
    )
    assert "second" in stored and "third" not in stored


def test_a_message_can_be_deleted_from_the_middle(chat: Callable[..., Chat]) -> None:
    llm = FakeLLM(reply="one")
    it = chat(llm)
    it.ask("question")
    it.ask("more")
    it.act(it.page.locator("article.assistant").first, "Delete message")
    assert it.texts() == ["question", "more", "one"]
    it.page.reload()
    expect(it.question).to_have_text("more")
    it.ask("again")
    assert it.texts() == ["question", "more", "one", "again", "one"]
    assert llm.prompts[-1].count("<|im_start|>assistant") == 2


def test_an_export_has_all_versions(chat: Callable[..., Chat]) -> None:
    it, _ = _three_answers(chat)
    it.button("Older version").click()
    it.button("Settings").click()
    with it.page.expect_download() as download:
        it.button("Export JSON").click()
    saved = json.loads(Path(download.value.path()).read_text())
    assert [message["content"] for message in saved["messages"]] == ["question", "second"]
    question, *answers = saved["versions"]
    assert question["parent"] is None
    assert {answer["parent"] for answer in answers} == {question["id"]}
    assert [answer["content"] for answer in answers] == ["first", "second", "third"]
